// The kernels of Krizhevsky 2009, "Convolutional Neural Networks for Object Classification in CUDA": section 6.2
// (Fig. 5), the outputs, and section 6.6 (Fig. 12), the gradients of the filters image by image. His are for 8x8
// filters at stride 1 on 32x32 images of 3 channels; here filter and stride are constants, the rest is free.
//
// y: a block of 8 x 32 threads convolves one image with one filter, for 32 x 32 outputs. The whole filter is in shared
// memory; channel by channel a window of the image, for 8 rows of outputs, slides down in 4 steps, and a thread keeps
// one sum for each step. Shared memory: c*KH*KW + (7*SH + KH) * (31*SW + KW) elements.
//
// In NHWC a block of y has LANES filters, and CHANNELS channels at a time, in CHWN LANES images; it has 4 x 4 * LANES
// threads for 16 x 4 outputs of each. Neighbouring threads have neighbouring filters (or images), and then columns.
// Shared memory: MAPS*c*KH*KW + DEEP * (3*SH + KH) * (3*SW + KW) elements (include/layout.cuh). dw is for NCHW alone.
//
// dw: a block of KH x KW x Z threads serves one image and 2*Z filters; threads (p, q) are the filter element, and the
// third index says which two filters a thread sums for. Channel by channel chunks pass through shared memory: of
// the image the pixels under 4 x 32 outputs, and of gy 4 x 16 elements of each filter, in two steps to the right.
// It writes parts (images, m, c, KH, KW) for the images from `first` on; gridDim.x / ceil(m / 2*Z) of them.
// Shared memory: (3*SH + KH) * (31*SW + KW + 1) + 2*Z*64 elements.
//
// Requires: the constants KH, KW, SH, SW, Z, those block shapes and one-dimensional grids; any number of images.
#include "include/layout.cuh"

// Sections 6.2 and 6.6 also time the kernels without their loads. A 0 here leaves them out. Then results are wrong: it
// is for measurements alone. In dw the filters are gy.
#ifndef LOAD_IMAGES
#define LOAD_IMAGES 1
#endif
#ifndef LOAD_FILTERS
#define LOAD_FILTERS 1
#endif

static_assert(KH * KW * Z <= 1024, "a block of dw has KH x KW x Z threads, at most 1024");
static_assert(Z >= 1, "a block of dw serves at least two filters");

#define OUT 32                             // columns of outputs of a block of dw, and in NCHW of y
#define ACROSS (LAYOUT == NCHW ? OUT : 4)  // columns of outputs of a block of y
#define STEP (LAYOUT == NCHW ? 8 : 4)      // rows of outputs between two windows
#define STEPS 4
#define DOWN (STEPS * STEP)  // rows of outputs of a block of y
#define MIN_BLOCKS (LAYOUT == NHWC ? 3 : 4)  // blocks per multiprocessor; aiming higher, registers would spill
#define WINDOW_H ((STEP - 1) * SH + KH)
#define WINDOW_W ((ACROSS - 1) * SW + KW)

#define CHUNK 4  // rows of gy in a chunk
#define HALF 16  // columns of gy in a chunk
#define IMAGE_H ((CHUNK - 1) * SH + KH)
#define IMAGE_W ((OUT - 1) * SW + KW + 1)  // a column more keeps the rows of 8x8 filters in different banks
#define FILTERS (2 * Z)
#define WARPS ((KH * KW * Z + 31) / 32)
#define MIN_BLOCKS_DW (WARPS < 2 ? 16 : 32 / WARPS)  // as MIN_BLOCKS

static_assert(OUT % HALF == 0, "the chunks of gy must cover the outputs over a chunk of the image");

// Loops over a whole filter are unrolled if it is small, and in pieces if the code would grow without gain.
constexpr int UNROLL_H = KH * KW <= 128 ? KH : 1, UNROLL_W = KW <= 32 ? KW : 8;

extern "C" __global__ void __launch_bounds__(STEP * ACROSS * LANES, MIN_BLOCKS)
    conv2d_krizhevsky_y(const REAL* __restrict__ x, const REAL* __restrict__ w, const REAL* __restrict__ b,
                        REAL* __restrict__ y, Geometry g) {
    extern __shared__ REAL shared[];
    const int across = ceil_div(g.ow, ACROSS), tiles = ceil_div(g.oh, DOWN) * across, groups = ceil_div(g.m, MAPS);
    const int tile = blockIdx.x % tiles, m0 = blockIdx.x / tiles % groups * MAPS,
              n0 = blockIdx.x / tiles / groups * IMAGES;
    if (n0 >= g.n) return;
    const int i0 = tile / across * DOWN, j0 = tile % across * ACROSS, ti = threadIdx.y, tj = threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES, m = m0 + lane % MAPS, n = n0 + lane % IMAGES;
    const Images in = images_x(g), out = images_y(g);
    REAL* window = shared + g.c * KH * KW * MAPS;
    // In the order of the filters in global memory: in NCHW [c][KH][KW], in NHWC [KH][KW][c][MAPS]
    for (int k = ti * ACROSS * LANES + threadIdx.x; LOAD_FILTERS && k < g.c * KH * KW * MAPS; k += STEP * ACROSS * LANES)
        if (MAPS == 1 || m0 + k % MAPS < g.m)
            shared[k] = w[MAPS == 1 ? m0 * g.c * KH * KW + k : k / MAPS * g.m + m0 + k % MAPS];
    const int tap_step = LAYOUT == NHWC ? g.c * MAPS : 1;
    const REAL* under = window + (ti * SH * WINDOW_W + tj * SW) * DEEP + lane % IMAGES;
    REAL sum[STEPS] = {};
    for (int c0 = 0; c0 < g.c; c0 += CHANNELS) {
        const REAL* filter = shared + c0 * (LAYOUT == NHWC ? MAPS : KH * KW) + lane % MAPS;
        const REAL* plane = x + in.plane(n0, c0);
        const int live = live_from(n0, c0, in), channels = channels_from(c0, g.c);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (i0 + step * STEP < g.oh) {
                __syncthreads();
                for (int i = ti; LOAD_IMAGES && i < WINDOW_H; i += STEP) {
                    for (int j = threadIdx.x; j < WINDOW_W * DEEP; j += ACROSS * LANES) {
                        window[i * WINDOW_W * DEEP + j] =
                            inside_run(plane, (i0 + step * STEP) * SH - g.top + i, j0 * SW - g.left, j, live, in);
                    }
                }
                __syncthreads();
                for (int c = 0; c < channels; c++) {
#pragma unroll(UNROLL_H)
                    for (int p = 0; p < KH; p++) {
#pragma unroll(UNROLL_W)
                        for (int q = 0; q < KW; q++)
                            sum[step] +=
                                under[(p * WINDOW_W + q) * DEEP + c] * filter[(p * KW + q) * tap_step + c * MAPS];
                    }
                }
            }
        }
    }
    const REAL bias = b && (MAPS == 1 || m < g.m) ? b[m] : (REAL)0;
    REAL* map = y + out.plane(n, m);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const int i = i0 + step * STEP + ti, j = j0 + tj;
        if (i < g.oh && j < g.ow && (MAPS == 1 || m < g.m) && (IMAGES == 1 || n < g.n))
            map[(i * g.ow + j) * out.step()] = sum[step] + bias;
    }
}

#if LAYOUT == NCHW
extern "C" __global__ void __launch_bounds__(KH * KW * Z, MIN_BLOCKS_DW)
    conv2d_krizhevsky_dw(const REAL* __restrict__ gy, const REAL* __restrict__ x, REAL* __restrict__ parts, Geometry g,
                         int first) {
    extern __shared__ REAL shared[];
    const int groups = ceil_div(g.m, FILTERS);
    const int m0 = blockIdx.x % groups * FILTERS, image = blockIdx.x / groups, n = first + image;
    if (n >= g.n) return;
    const int q = threadIdx.x, p = threadIdx.y, z = threadIdx.z, thread = (z * KH + p) * KW + q;
    REAL* maps = shared + IMAGE_H * IMAGE_W;  // FILTERS x CHUNK x HALF
    const REAL* maps0 = maps + z * CHUNK * HALF;
    const REAL* maps1 = maps + (z + Z) * CHUNK * HALF;
    for (int c = 0; c < g.c; c++) {
        const REAL* plane = x + (n * g.c + c) * g.h * g.w;
        REAL sum0 = 0, sum1 = 0;
        for (int i0 = 0; i0 < g.oh; i0 += CHUNK) {
            for (int j0 = 0; j0 < g.ow; j0 += OUT) {
                for (int half = 0; half < OUT && j0 + half < g.ow; half += HALF) {
                    __syncthreads();
                    if (LOAD_IMAGES && half == 0) {
                        for (int k = thread; k < IMAGE_H * IMAGE_W; k += KH * KW * Z) {
                            shared[k] =
                                inside(plane, i0 * SH - g.top + k / IMAGE_W, j0 * SW - g.left + k % IMAGE_W, g.h, g.w);
                        }
                    }
                    for (int k = thread; LOAD_FILTERS && k < FILTERS * CHUNK * HALF; k += KH * KW * Z) {
                        const int m = m0 + k / (CHUNK * HALF);
                        const int i = i0 + k / HALF % CHUNK, j = j0 + half + k % HALF;
                        maps[k] = m < g.m ? inside(gy + (n * g.m + m) * g.oh * g.ow, i, j, g.oh, g.ow) : (REAL)0;
                    }
                    __syncthreads();
                    const REAL* under = shared + p * IMAGE_W + half * SW + q;
                    REAL chunk0 = 0, chunk1 = 0;
#pragma unroll
                    for (int i = 0; i < CHUNK; i++) {
#pragma unroll
                        for (int j = 0; j < HALF; j++) {
                            const REAL pixel = under[i * SH * IMAGE_W + j * SW];
                            chunk0 += maps0[i * HALF + j] * pixel;
                            chunk1 += maps1[i * HALF + j] * pixel;
                        }
                    }
                    sum0 += chunk0;
                    sum1 += chunk1;
                }
            }
        }
        REAL* out = parts + ((image * g.m + m0 + z) * g.c + c) * KH * KW + p * KW + q;
        if (m0 + z < g.m) *out = sum0;
        if (m0 + z + Z < g.m) out[Z * g.c * KH * KW] = sum1;
    }
}
#endif
