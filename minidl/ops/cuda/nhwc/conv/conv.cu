// Convolution of images in NHWC on the tensor cores: y[pixel][filter] is a product whose sums run over (tap, channel).
// The gradient of the image is the same product of the gradient of y, with flipped filters, and with positions that are
// divided by a stride.
//
// A block owns TALL x 128 pixels by FILTERS filters, and a group of four warps owns TALL x 64 of these pixels. A block
// walks over slabs of the sum, 128 bytes of a row each. All threads copy, each the same 16 bytes of some rows of every
// slab, AHEAD slabs ahead of the products. Products run while the next copies start. conv_pack.cu prepares the filters.
//
// Requires: sum = DEPTH numbers times the slabs. -DIMAGE: float, or unsigned short, the bits of bf16. -DPRECISION
// (mma.cuh), BF16 only with images of bf16. -DFILTERS 64, 128 or 256; -DTALL; -DSTAGES; -DBLOCKS, the least number of
// blocks on a multiprocessor. -DWIDE: 16 bytes of what is read hold channels of one pixel; -DCHUNKED: so does a slab,
// and taps change before channels do, so that most copies find their pixels in the L1 cache; -DWIDE_Y: as WIDE, for
// what is written. -DDIVIDED: positions are divided. -DACT, -DAFTER: as in act.cuh. -DSM_90A for wgmma, else mma.
#include "include/common.cuh"
#include "include/tensor_cores/mma.cuh"
#include "include/tensor_cores/wgmma.cuh"
#include "include/tensor_cores/wgmma_smem.cuh"
#include "include/nhwc/conv_nhwc.cuh"
#include "include/nhwc/conv_tile.cuh"

constexpr int THREADS_PER_BLOCK = 2 * GROUP, ROWS = 128 * TALL;
constexpr int PER_PIECE = DEPTH / 8;                                          // numbers of a piece of 16 bytes
constexpr int ROW_STEP = THREADS_PER_BLOCK / 8;                          // rows from one piece of a thread to its next
constexpr int A_SIZE = ROWS * 128, B_SIZE = FILTERS * 128, STAGE = PARTS * (A_SIZE + B_SIZE);
// How many slabs' products still run when the next ones start: none if another block's products fill the gap, which
// leaves more shared memory to copies, and none if no slab would be ahead
constexpr int LAG = BLOCKS == 1 && STAGES > 2, AHEAD = STAGES - 1 - LAG;

struct alignas(16) Piece {
    IMAGE v[PER_PIECE];
};

// As start_copy, but past the L1 cache: all of a multiprocessor's blocks read filters only once.
template <class T> __device__ __forceinline__ void stream_copy(T* to, const T* from) {
#if __CUDA_ARCH__ >= 800
    unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
#else
    *to = *from;
#endif
}

// What a thread copies: of each slab the same piece of rows ROW_STEP apart.
struct Copies {
    ConvNhwc g;
    const IMAGE *x, *b;
    unsigned char* memory;
    int place;                               // in a stage
    int k, c, r, s;                          // next in the sum: channel, and tap
    int start[ROWS / ROW_STEP], row[ROWS / ROW_STEP], column[ROWS / ROW_STEP];    // of a pixel, at its first tap

    __device__ __forceinline__ Copies(const ConvNhwc& g, const IMAGE* x, const IMAGE* filters, unsigned char* memory,
                                      int pixel, int filter)
        : g(g), x(x), memory(memory) {
        const int own = threadIdx.x / 8;
        k = threadIdx.x % 8 * PER_PIECE;
        place = swizzled(own * 128 + threadIdx.x % 8 * 16);
        b = filters + (filter + own) * g.sum + k;
        const int tap = CHUNKED ? 0 : k / g.c;
        c = k - tap * g.c;
        r = tap / g.kw;
        s = tap - r * g.kw;
#pragma unroll
        for (int i = 0; i < ROWS / ROW_STEP; ++i) {
            const int at = pixel + own + i * ROW_STEP, line = at / g.ow, image = line / g.oh;
            column[i] = (at - line * g.ow) * g.sw - g.left;
            row[i] = (line - image * g.oh) * g.sh - g.top;
            start[i] = DIVIDED ? image * g.h * g.w * g.c : ((image * g.h + row[i]) * g.w + column[i]) * g.c;
            if (image >= g.n) row[i] = -(1 << 24);
        }
    }

    // Where the i-th pixel meets tap (r, s), or -1.
    __device__ __forceinline__ int meets(int i, int r, int s, int c) const {
        int h = row[i] + r, w = column[i] + s;
        if constexpr (DIVIDED) {
            const int up = h / g.divided_h, left = w / g.divided_w;
            const bool valid = r < g.kh && h >= 0 && w >= 0 && up < g.h && left < g.w && up * g.divided_h == h &&
                               left * g.divided_w == w;
            return valid ? start[i] + (up * g.w + left) * g.c + c : -1;
        }
        return r < g.kh && (unsigned)h < (unsigned)g.h && (unsigned)w < (unsigned)g.w ? start[i] + (r * g.w + s) * g.c + c
                                                                                      : -1;
    }

    __device__ __forceinline__ void of(int slab) {
        unsigned char* to = memory + slab % STAGES * STAGE + place;
        if constexpr (WIDE) {
#pragma unroll
            for (int i = 0; i < ROWS / ROW_STEP; ++i) {
                const int at = meets(i, r, s, c);
                start_copy((Piece*)(to + i * ROW_STEP * 128), (const Piece*)(at < 0 ? x : x + at), at >= 0);
            }
            if constexpr (CHUNKED) {
                if (++s == g.kw) {
                    s = 0;
                    if (++r == g.kh) {
                        r = 0;
                        c += DEPTH;
                    }
                }
            } else {
                c += DEPTH;
                while (c >= g.c) {
                    c -= g.c;
                    if (++s == g.kw) {
                        s = 0;
                        ++r;
                    }
                }
            }
        } else {
            int channel[PER_PIECE], up[PER_PIECE], left[PER_PIECE];
#pragma unroll
            for (int e = 0; e < PER_PIECE; ++e) {
                const int tap = (k + e) / g.c;
                channel[e] = k + e - tap * g.c;
                up[e] = tap / g.kw;
                left[e] = tap - up[e] * g.kw;
            }
            k += DEPTH;
#pragma unroll
            for (int i = 0; i < ROWS / ROW_STEP; ++i) {
                Piece piece;
#pragma unroll
                for (int e = 0; e < PER_PIECE; ++e) {
                    const int at = meets(i, up[e], left[e], channel[e]);
                    piece.v[e] = at < 0 ? (IMAGE)0 : x[at];
                }
                *(Piece*)(to + i * ROW_STEP * 128) = piece;
            }
        }
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
#pragma unroll
            for (int i = 0; i < FILTERS / ROW_STEP; ++i)
                stream_copy((Piece*)(to + PARTS * A_SIZE + part * B_SIZE + i * ROW_STEP * 128),
                            (const Piece*)(b + (part * g.filters + i * ROW_STEP) * g.sum));
        b += DEPTH;
    }

    // With TF32X3, what tf32 cuts off of the numbers that this thread has copied.
    __device__ __forceinline__ void split(int slab) const {
        if constexpr (PARTS == 2) {
            unsigned char* at = memory + slab % STAGES * STAGE + place;
#pragma unroll
            for (int i = 0; i < ROWS / ROW_STEP; ++i) {
                Piece piece = *(const Piece*)(at + i * ROW_STEP * 128);
#pragma unroll
                for (int e = 0; e < PER_PIECE; ++e)
                    piece.v[e] -= __uint_as_float(__float_as_uint(piece.v[e]) & 0xffffe000u);
                *(Piece*)(at + A_SIZE + i * ROW_STEP * 128) = piece;
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, BLOCKS)
    conv_nhwc(const IMAGE* __restrict__ x, const IMAGE* __restrict__ filters, const float* __restrict__ b,
              IMAGE* __restrict__ y, ConvNhwc g) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const int across = g.filters / FILTERS, pixel = blockIdx.x / across * ROWS, filter = blockIdx.x % across * FILTERS;
    const int slabs = g.sum / DEPTH, group = threadIdx.x / GROUP;
    Copies copies(g, x, filters, memory, pixel, filter);
    float sums[TALL][PAIRS] = {};
#pragma unroll 1
    for (int slab = 0; slab < AHEAD; ++slab) {
        if (slab < slabs) copies.of(slab);
        end_copies();
    }
#pragma unroll 1
    for (int slab = 0; slab < slabs; ++slab) {
        await_copies<AHEAD - 1>();
        copies.split(slab);
        publish();
        __syncthreads();
        const unsigned char* at = memory + slab % STAGES * STAGE;
        begin_products();
#pragma unroll
        for (int turn = PARTS == 2 ? 0 : 2; turn < 3; ++turn)            // the small terms first
#pragma unroll
            for (int step = 0; step < 4; ++step)
#pragma unroll
                for (int t = 0; t < TALL; ++t) {
                    const unsigned char* rows = at + (turn == 0) * A_SIZE + (group * TALL + t) * 64 * 128 + step * 32;
                    const unsigned char* columns = at + PARTS * A_SIZE + (turn == 1) * B_SIZE + step * 32;
#if SM_90A
                    wgmma_both(sums[t], factor(rows), factor(columns));
#else
                    mma_both(sums[t], rows, columns);
#endif
                }
        end_products();
        if (slab + AHEAD < slabs) copies.of(slab + AHEAD);
        end_copies();
        await_products<LAG>();
    }
    await_products<0>();

    int place[2 * TALL];
#pragma unroll
    for (int t = 0; t < 2 * TALL; ++t) {
        place[t] = pixel + group * TALL * 64 + own_pixel(t);
        if (place[t] >= g.n * g.oh * g.ow) place[t] = -1;
    }
    store_tile(sums, y, b, g, place, filter);
}
