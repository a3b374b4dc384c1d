// Convolution as a matrix product whose unrolled matrix exists only in shared memory, a slab at a time (PMPP section
// 16.5 and the lecture's "built-in" unrolling), with joint register + shared-memory tiling from linear/tile.cuh.
// With -DPRECISION other than FP32 the same kernels multiply on tensor cores.
//
// conv2d_implicit_gemm: y or dx. Rows are filters (channels for dx), columns are pixels of all images, the depth runs
//   over taps (c,p,q) (for dx: (m,p,q)). A block owns BM rows x 128 pixels. `taps` says for each depth where its
//   element stands relative to the pixel, {offset, row, column, offset in w}: so that one kernel serves both directions,
//   any stride, and for dx each residue of the pixel modulo the stride (only the taps that meet it).
// conv2d_implicit_gemm_dw: rows are filters, columns are taps, the depth runs over all pixels of all images. A block
//   owns BM filters x 128 taps and a share of the depth; the shares are summed afterwards, in their order.
#include "linear/tile.cuh"

// Blocks that a multiprocessor shall hold: two, but for the tiles whose registers do not allow it.
constexpr int RESIDENT = sizeof(REAL) == 8 || PRECISION == TF32X3 ? 1 : 2;

struct Pixels {
    int rows, depth, w_row;                  // sizes of the product; from one row's weights to the next's
    int images, gh, gw;                      // columns: images x gh x gw pixels
    int h, w, image;                         // source planes; from one source image to the next
    int sr, sc, r0, c0;                      // pixel (i, j) stands at source row i*sr + r0, column j*sc + c0
    int y_image, y_row, y_r, y_c, y_first;   // result strides: image, row of the product, pixel row and column; start
    int splits, size, bias_size;             // shares of the depth; elements of the result; of the bias
};

// A pixel's place in the source images.
struct Place { int base, row, column; };

__device__ __forceinline__ Place place_of(int column, const Pixels& p) {
    int l = p.gh * p.gw, image = column / l, i = (column - image * l) / p.gw, j = column - image * l - i * p.gw;
    Place at = {0, i * p.sr + p.r0, j * p.sc + p.c0};
    at.base = image * p.image + at.row * p.w + at.column;
    return at;
}

__device__ __forceinline__ REAL tap_of(const REAL* x, const Place& at, int4 tap, const Pixels& p) {
    bool valid = (unsigned)(at.row + tap.y) < (unsigned)p.h && (unsigned)(at.column + tap.z) < (unsigned)p.w;
    return valid ? x[at.base + tap.x] : (REAL)0;
}

struct PixelLoader {
    static constexpr int NA = BM * BK / BLOCK, NB = BN * BK / BLOCK;
    const REAL *w, *x;
    const int4* taps;
    const Pixels& p;
    int row0;
    bool column_valid;
    Place at;
    REAL ra[NA], rb[NB];

    __device__ __forceinline__ void fetch(int slab) {
        int k = slab * BK + threadIdx.x % BK, row = row0 + threadIdx.x / BK;     // lanes along the depth, as w lies
        const REAL* wk = w + (k < p.depth ? taps[k].w : 0);
#pragma unroll
        for (int i = 0; i < NA; ++i, row += BLOCK / BK) ra[i] = k < p.depth && row < p.rows ? wk[row * p.w_row] : (REAL)0;
        k = slab * BK + threadIdx.x / BN;                                        // lanes along the pixels
#pragma unroll
        for (int i = 0; i < NB; ++i, k += BLOCK / BN)
            rb[i] = column_valid && k < p.depth ? tap_of(x, at, taps[k], p) : (REAL)0;
    }

    __device__ __forceinline__ void put(Slab& slab) {
#pragma unroll
        for (int i = 0; i < NA; ++i) slab.a[threadIdx.x % BK][threadIdx.x / BK + i * (BLOCK / BK)] = ra[i];
#pragma unroll
        for (int i = 0; i < NB; ++i) slab.b[threadIdx.x / BN + i * (BLOCK / BN)][threadIdx.x % BN] = rb[i];
    }
};

extern "C" __global__ void __launch_bounds__(256, RESIDENT)
conv2d_implicit_gemm(const REAL* x, const REAL* w, const REAL* b, REAL* y, const int4* taps, Pixels p) {
    __shared__ Slab slabs[2];
    int columns = p.images * p.gh * p.gw, column0 = blockIdx.x * BN, column = column0 + threadIdx.x % BN;
    PixelLoader loader{w, x, taps, p, (int)blockIdx.y * BM, column < columns, place_of(column, p)};
    int all = ceil_div(p.depth, BK), each = ceil_div(all, p.splits);
    Product product;
    multiply_slabs(slabs, product, loader, imin(all, blockIdx.z * each), imin(all, (blockIdx.z + 1) * each));
    y += (size_t)blockIdx.z * p.size + p.y_first;
    product.each([&](int row, int column, const REAL* values) {
        row += loader.row0;
        column += column0;
        if (row >= p.rows || column >= columns) return;
        REAL bias = b && p.splits == 1 ? b[row] : (REAL)0;
        int l = p.gh * p.gw, image = column / l, i = (column - image * l) / p.gw, j = column - image * l - i * p.gw;
        REAL* to = y + image * p.y_image + row * p.y_row + i * p.y_r + j * p.y_c;
#if NEIGHBOURS
        // Neighbouring columns are neighbours in memory, and a multiple of WIDTH of them makes a plane
        Pack<Product::WIDTH> out;
#pragma unroll
        for (int e = 0; e < Product::WIDTH; ++e) out.v[e] = values[e] + bias;
        *(Pack<Product::WIDTH>*)to = out;
#else
#pragma unroll
        for (int e = 0; e < Product::WIDTH; ++e) {
            if (column + e >= columns) return;
            *to = values[e] + bias;
            to += p.y_c;
            if (++j == p.gw) {
                j = 0;
                to += p.y_r - p.gw * p.y_c;
                if (++i == p.gh) {
                    i = 0;
                    to += p.y_image - p.gh * p.y_r;
                }
            }
        }
#endif
    });
}

// parts (splits, images, maps, l) -> y (images, maps, l), plus the bias of each map
extern "C" __global__ void conv2d_implicit_gemm_finish(const REAL* parts, const REAL* b, REAL* y, int l, Pixels p) {
    for (int i = THREAD; i < p.size; i += THREADS) {
        REAL sum = b ? b[i / l % p.bias_size] : (REAL)0;
        for (int s = 0; s < p.splits; ++s) sum += parts[(size_t)s * p.size + i];
        y[i] = sum;
    }
}

// The filters' gradient: both matrices are read along the pixels.
struct TapLoader {
    static constexpr int NA = BM * BK / BLOCK, NB = BN * BK / BLOCK;
    const REAL *gy, *x;
    const int4* tap;                         // of this block's columns, in shared memory
    const Pixels& p;
    int row0;
    REAL ra[NA], rb[NB];

    __device__ __forceinline__ void fetch(int slab) {
        int pixel = slab * BK + threadIdx.x % BK, l = p.gh * p.gw;
        bool valid = pixel < p.images * l;
        int image = pixel / l, row = row0 + threadIdx.x / BK;
        const REAL* map = gy + (image * p.rows * l + pixel - image * l);
#pragma unroll
        for (int i = 0; i < NA; ++i, row += BLOCK / BK) ra[i] = valid && row < p.rows ? map[row * l] : (REAL)0;
        Place at = place_of(pixel, p);
        if (!valid) at.row = -(1 << 24);                                         // outside every plane
#pragma unroll
        for (int i = 0; i < NB; ++i) rb[i] = tap_of(x, at, tap[threadIdx.x / BK + i * (BLOCK / BK)], p);
    }

    __device__ __forceinline__ void put(Slab& slab) {
#pragma unroll
        for (int i = 0; i < NA; ++i) slab.a[threadIdx.x % BK][threadIdx.x / BK + i * (BLOCK / BK)] = ra[i];
#pragma unroll
        for (int i = 0; i < NB; ++i) slab.b[threadIdx.x % BK][threadIdx.x / BK + i * (BLOCK / BK)] = rb[i];
    }
};

// dw (splits, m, c*kh*kw)
extern "C" __global__ void __launch_bounds__(256, RESIDENT)
conv2d_implicit_gemm_dw(const REAL* gy, const REAL* x, REAL* dw, const int4* taps, Pixels p) {
    __shared__ Slab slabs[2];
    __shared__ int4 tap[BN];
    int column0 = blockIdx.x * BN;
    for (int i = threadIdx.x; i < BN; i += BLOCK)                                // columns beyond the last meet nothing
        tap[i] = column0 + i < p.depth ? taps[column0 + i] : make_int4(0, 1 << 25, 0, 0);
    __syncthreads();
    TapLoader loader{gy, x, tap, p, (int)blockIdx.y * BM};
    int all = ceil_div(p.images * p.gh * p.gw, BK), each = ceil_div(all, p.splits);
    Product product;
    multiply_slabs(slabs, product, loader, imin(all, blockIdx.z * each), imin(all, (blockIdx.z + 1) * each));
    dw += (size_t)blockIdx.z * p.rows * p.depth;
    product.each([&](int row, int column, const REAL* values) {
        row += loader.row0;
        column += column0;
#pragma unroll
        for (int e = 0; e < Product::WIDTH; ++e)
            if (row < p.rows && column + e < p.depth) dw[row * p.depth + column + e] = values[e];
    });
}
