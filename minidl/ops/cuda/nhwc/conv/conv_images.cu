// conv_nhwc (nhwc/conv/conv.cu) for small images: the rows of a tile are one pixel of many images. A block owns that
// pixel of y in TALL * 128 images by FILTERS filters, and multiplies only by the taps that meet an image there: of 3x3
// taps, 9 within the image, 6 at its border and 4 in its corners. Other kernels multiply rows of pixels, by zeros where
// rows end.
//
// One thread starts the hardware's copies (include/tensor_cores/tma.cuh): for each tap and each slab of channels, the
// pixel that the tap meets, in all these images, and the filters. Two groups of four warps do nothing but multiply.
// Blocks with the most taps come first in the grid, so that all multiprocessors are done at about the same time.
//
// Filters as nhwc/conv/conv_pack.cu leaves them for -DCHUNKED. -DIMAGE, -DPRECISION (not TF32X3), -DFILTERS, -DTALL,
// -DSTAGES, -DWIDE_Y, -DACT, -DAFTER: as in nhwc/conv/conv.cu. images: rows of x as a matrix (n, h * w * c), in boxes
// of TALL * 128 rows by DEPTH numbers; filters: in boxes of FILTERS rows by DEPTH numbers. order: by falling number of
// taps.
#include "include/common.cuh"
#include "include/tensor_cores/mma.cuh"
#include "include/tensor_cores/wgmma.cuh"
#include "include/tensor_cores/wgmma_smem.cuh"
#include "include/tensor_cores/tma.cuh"
#include "include/nhwc/conv_nhwc.cuh"
#include "include/nhwc/patch.cuh"
#include "include/nhwc/conv_tile.cuh"

constexpr int MULTIPLYING = 2 * GROUP, THREADS_PER_BLOCK = MULTIPLYING + GROUP;
constexpr int ROWS = TALL * 128, PIXELS = ROWS * 128, STAGE = PIXELS + FILTERS * 128;  // images; bytes

// All pixels of y, in the order in which they are computed.
struct Order {
    unsigned char pixels[256];
};

// The pixel of x that a tap meets from a pixel of y, or -1.
__device__ __forceinline__ int met(const ConvNhwc& g, int pixel, int tap) {
    const int row = pixel / g.ow, r = tap / g.kw;
    const int h = row * g.sh - g.top + r, w = (pixel - row * g.ow) * g.sw - g.left + tap - r * g.kw;
    const bool whole = h % g.divided_h == 0 && w % g.divided_w == 0;
    const int at_h = h / g.divided_h, at_w = w / g.divided_w;
    return whole && 0 <= at_h && at_h < g.h && 0 <= at_w && at_w < g.w ? at_h * g.w + at_w : -1;
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1)
    conv_nhwc_images(const __grid_constant__ TensorMap images, const __grid_constant__ TensorMap filters,
                     const float* __restrict__ b, IMAGE* __restrict__ y, ConvNhwc g,
                     const __grid_constant__ Order order) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Barrier* full = (Barrier*)(memory + STAGES * STAGE);  // of stages, and whether they can be copied to
    Barrier* empty = full + STAGES;
    const int across = g.filters / FILTERS, beside = ceil_div(g.n, ROWS) * across, within = blockIdx.x % beside;
    const int pixel = order.pixels[blockIdx.x / beside], image = within / across * ROWS,
              filter = within % across * FILTERS;
    const int group = threadIdx.x / GROUP, taps = g.kh * g.kw;
    if (threadIdx.x == 0) {
        start_barriers(full, empty, STAGES, MULTIPLYING / 32);
        publish_barriers();
    }
    __syncthreads();
    Ring<STAGES> stage;
    if (group == 2) {
        keep_registers<40>();
        if (threadIdx.x == MULTIPLYING)
            for (int tap = 0; tap < taps; ++tap) {
                const int from = met(g, pixel, tap);
                if (from < 0) continue;
                for (int c = 0; c < g.c; c += DEPTH, stage.next()) {
                    unsigned char* to = memory + stage.at * STAGE;
                    await(empty + stage.at, stage.parity ^ 1);
                    expect_bytes(full + stage.at, STAGE);
                    copy_rows(to, &images, full + stage.at, from * g.c + c, image);
                    copy_rows(to + PIXELS, &filters, full + stage.at, c * taps + tap * DEPTH, filter);
                }
            }
    } else {
        take_registers<232>();
        const bool tells = threadIdx.x % 32 == 0;  // for its warp
        float sums[TALL][PAIRS] = {};
        int used = -1;  // the stage of the products before
#pragma unroll 1
        for (int tap = 0; tap < taps; ++tap) {
            if (met(g, pixel, tap) < 0) continue;
#pragma unroll 1
            for (int c = 0; c < g.c; c += DEPTH, stage.next()) {
                const unsigned char* rows = memory + stage.at * STAGE + group * TALL * 64 * 128;
                const unsigned char* columns = memory + stage.at * STAGE + PIXELS;
                await(full + stage.at, stage.parity);
                begin_products();
#pragma unroll
                for (int step = 0; step < 4; ++step)
#pragma unroll
                    for (int t = 0; t < TALL; ++t)
                        wgmma_both(sums[t], factor(rows + t * 64 * 128 + step * 32), factor(columns + step * 32));
                end_products();
                await_products<1>();
                if (tells && used >= 0) arrive(empty + used);
                used = stage.at;
            }
        }
        await_products<0>();
        int at[2 * TALL];
#pragma unroll
        for (int t = 0; t < 2 * TALL; ++t) {
            const int own = image + group * TALL * 64 + own_pixel(t);
            at[t] = own < g.n ? own * g.oh * g.ow + pixel : -1;
        }
        store_tile(sums, y, b, g, at, filter);
    }
}
