// What Krizhevsky 2009 tried beside the kernel of section 6.2: a thread convolves EACH filters with the image, and a
// block has STEP rows of threads and loads the image for WINDOW rows of outputs at once. krizhevsky.cu is EACH 1,
// STEP 8, WINDOW 8. STEP 16, WINDOW 16: half of a 32x32 image by 512 threads; WINDOW 32: all of it.
//
// A block convolves one image with EACH filters, for 32 x 32 outputs. Their weights lie in shared memory; channel by
// channel the window slides down in 32 / WINDOW steps. A thread keeps EACH * 32 / STEP sums, each in the order of
// krizhevsky.cu, so that outputs have the same bits.
// Shared memory: EACH*c*KH*KW + ((WINDOW - 1)*SH + KH) * (31*SW + KW) elements.
//
// Requires: the constants KH, KW, SH, SW, EACH, STEP, WINDOW; blocks of STEP x 32 threads, a one-dimensional grid.
// For measurements alone.
#include "include/common.cuh"

#define OUT 32  // outputs of a block along each axis
#define STEPS (OUT / STEP)
#define WINDOW_H ((WINDOW - 1) * SH + KH)
#define WINDOW_W ((OUT - 1) * SW + KW)
#define MIN_BLOCKS (32 / STEP / (EACH > 1 ? 2 : 1))  // per multiprocessor: 64 registers per thread, or 128

static_assert(EACH >= 1 && WINDOW % STEP == 0 && OUT % WINDOW == 0, "windows must cover the outputs, steps a window");

// Loops over a whole filter are unrolled where it is small, and in pieces where the code would grow without gain.
constexpr int UNROLL_H = KH * KW <= 128 ? KH : 1, UNROLL_W = KW <= 32 ? KW : 8;

extern "C" __global__ void __launch_bounds__(STEP* OUT, MIN_BLOCKS)
    conv2d_krizhevsky_variant_y(const REAL* __restrict__ x, const REAL* __restrict__ w, const REAL* __restrict__ b,
                                REAL* __restrict__ y, Geometry g) {
    extern __shared__ REAL shared[];
    const int across = ceil_div(g.ow, OUT), tiles = ceil_div(g.oh, OUT) * across, groups = ceil_div(g.m, EACH);
    const int tile = blockIdx.x % tiles, m0 = blockIdx.x / tiles % groups * EACH, n = blockIdx.x / tiles / groups;
    if (n >= g.n) return;
    const int i0 = tile / across * OUT, j0 = tile % across * OUT, ti = threadIdx.y, tj = threadIdx.x;
    const int weights = g.c * KH * KW, there = imin(EACH, g.m - m0) * weights;
    REAL* window = shared + EACH * weights;
    for (int k = ti * OUT + tj; k < EACH * weights; k += STEP * OUT)
        shared[k] = k < there ? w[m0 * weights + k] : (REAL)0;
    REAL sum[EACH][STEPS] = {};
    for (int c = 0; c < g.c; c++) {
        const REAL* plane = x + (n * g.c + c) * g.h * g.w;
#pragma unroll
        for (int first = 0; first < OUT; first += WINDOW) {
            if (i0 + first < g.oh) {
                __syncthreads();
                for (int i = ti; i < WINDOW_H; i += STEP) {
                    for (int j = tj; j < WINDOW_W; j += OUT) {
                        window[i * WINDOW_W + j] =
                            inside(plane, (i0 + first) * SH - g.top + i, j0 * SW - g.left + j, g.h, g.w);
                    }
                }
                __syncthreads();
#pragma unroll
                for (int row = 0; row < WINDOW; row += STEP) {
                    const REAL* under = window + (row + ti) * SH * WINDOW_W + tj * SW;
#pragma unroll(UNROLL_H)
                    for (int p = 0; p < KH; p++) {
#pragma unroll(UNROLL_W)
                        for (int q = 0; q < KW; q++) {
                            const REAL pixel = under[p * WINDOW_W + q];
#pragma unroll
                            for (int k = 0; k < EACH; k++)
                                sum[k][(first + row) / STEP] += pixel * shared[k * weights + (c * KH + p) * KW + q];
                        }
                    }
                }
            }
        }
    }
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        if (m0 + k >= g.m) break;
        const REAL bias = b ? b[m0 + k] : (REAL)0;
        REAL* out = y + (n * g.m + m0 + k) * g.oh * g.ow;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const int i = i0 + step * STEP + ti, j = j0 + tj;
            if (i < g.oh && j < g.ow) out[i * g.ow + j] = sum[k][step] + bias;
        }
    }
}
