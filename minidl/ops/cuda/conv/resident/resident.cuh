// Shared by the convolutions whose blocks hold whole padded images: loading the images, and storing the outputs.
//
// Sizes is PaddedImages, or a kernel's own struct that has its fields and more.
// -DTHREADS_PER_BLOCK. -DWIDE=4: images are copied 4 numbers at a time; these are all inside an image or all in the
// padding, on multiples of 4. -DALIGNED: rows of the result (dw: of gy) start on multiples of 4 elements. -DFUSED: the
// activation -DACT is applied to each output; with -DPOOL=2 or 4 windows of that size are also averaged.
#include "include/common.cuh"
#include "include/act.cuh"

struct PaddedImages {
    int n, c, h, w, m, oh, ow, top, left;  // source planes, result maps and planes, padding
    int ph, pw, images;                    // a padded plane in shared memory; images there at a time
};

#ifndef POOL
#define POOL 0
#endif
#ifndef WIDE
#define WIDE 1
#endif

// Padded images [image][c][ph][pw] from `first` on, zeros beyond the last one.
template <class Sizes> __device__ __forceinline__ void load_images(REAL* to, const REAL* x, int first, const Sizes& p) {
    int planes = imin(p.images, p.n - first) * p.c, wide = p.pw / WIDE;
    const REAL* from = x + first * p.c * p.h * p.w;
    Odometer at(THREADS_PER_BLOCK, p.ph, wide);  // plane, row, columns
    for (int i = threadIdx.x; i < p.images * p.c * p.ph * wide; i += THREADS_PER_BLOCK, at.next()) {
        int r = at.middle - p.top, s = at.low * WIDE - p.left;
        bool valid = (unsigned)r < (unsigned)p.h && (unsigned)s < (unsigned)p.w && at.high < planes;
        start_copy((Pack<WIDE>*)to + i, (const Pack<WIDE>*)(valid ? from + (at.high * p.h + r) * p.w + s : x), valid);
    }
}

// Stores four neighbours; the first `count` are within the row. If rows are ALIGNED, all four are.
__device__ __forceinline__ void store_four(REAL* to, REAL (&v)[4], int count) {
#if ALIGNED
    *(Pack<4>*)to = *(Pack<4>*)v;
#else
#pragma unroll
    for (int j = 0; j < 4; ++j)
        if (j < count) to[j] = v[j];
#endif
}

// TALL x 4 neighbouring outputs of one map (a filter's of an image), from row i0 and column j0 on.
template <int TALL, class Sizes, class Stored>
__device__ __forceinline__ void store_outputs(REAL (&sum)[TALL][4], REAL bias, Stored* y, REAL* pooled, int map, int i0,
                                              int j0, const Sizes& p) {
    Stored* to = y + (map * p.oh + i0) * p.ow + j0;
#pragma unroll
    for (int i = 0; i < TALL; ++i) {
        if (i0 + i >= p.oh) break;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            sum[i][j] += bias;
#ifdef FUSED
            sum[i][j] = ACT_VALUE(sum[i][j]);
#endif
        }
        store_four(to + i * p.ow, sum[i], p.ow - j0);
    }
#if POOL
    static_assert(TALL % POOL == 0 && 4 % POOL == 0, "windows must be within a thread's outputs");
    REAL* means = pooled + map * (p.oh / POOL) * (p.ow / POOL);
#pragma unroll
    for (int i = 0; i < TALL; i += POOL)
#pragma unroll
        for (int j = 0; j < 4; j += POOL) {
            if (i0 + i >= p.oh || j0 + j >= p.ow) continue;
            REAL total = 0;
#pragma unroll
            for (int e = 0; e < POOL * POOL; ++e) total += sum[i + e / POOL][j + e % POOL];
            means[(i0 + i) / POOL * (p.ow / POOL) + (j0 + j) / POOL] = total * (REAL)(1.0 / (POOL * POOL));
        }
#endif
}

// ---------------------------------------------------------------- on tensor cores: -DPRECISION=TF32 or TF32X3
#ifdef PRECISION
#include "include/tensor_cores/mma.cuh"

// Numbers in shared memory become part 0 of themselves; part 1 is stored `size` numbers, a multiple of 4, further on.
__device__ __forceinline__ void split(REAL* numbers, int size) {
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < size; i += THREADS_PER_BLOCK * 4) {
        Pack<4> whole = *(Pack<4>*)&numbers[i], out;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
#pragma unroll
            for (int e = 0; e < 4; ++e) out.v[e] = __uint_as_float(part_of(whole.v[e], part));
            *(Pack<4>*)&numbers[part * size + i] = out;
        }
    }
}

// A whole padded image, rounded or split, and with a block's first one its filters too; all of them are there.
template <class Sizes>
__device__ __forceinline__ void load_parts(REAL* padded, int padded_size, const REAL* x, int image, REAL* filters,
                                           int filter_size, const Sizes& p) {
    __syncthreads();  // everybody is done with the image before
    load_images(padded, x, image, p);
    end_copies();
    await_copies<0>();
    __syncthreads();
    split(padded, padded_size);
    if (blockIdx.x == image) split(filters, filter_size);
}
#endif
