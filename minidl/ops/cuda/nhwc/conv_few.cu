// conv_nhwc (nhwc/conv.cu) for steps of 1 and images whose channels of a pixel are 16 bytes, where the hardware copies
// (include/tma.cuh). A block keeps all filters that it owns, FILTERS of them, in shared memory, and takes patches of x in
// turn (include/patch.cuh): a group of four warps owns a square of y. A product takes two taps: their pixels lie in the
// patch, 16 bytes each, where the instruction is told to find them, however far apart.
//
// Filters as nhwc/conv_pack.cu leaves them without -DCHUNKED. -DIMAGE, -DPRECISION (not TF32X3), -DFILTERS, -DWIDE_Y, -DACT,
// -DAFTER: as in nhwc/conv.cu; -DSTAGES of patches; -DTALL 1. images: boxes of a patch, of which a line's pixels
// and channels are one axis; filters: of FILTERS
// rows by DEPTH numbers.
#include "include/common.cuh"
#include "include/mma.cuh"
#include "include/wgmma.cuh"
#include "include/wgmma_smem.cuh"
#include "include/tma.cuh"
#include "include/conv_nhwc.cuh"
#include "include/patch.cuh"
#include "include/conv_tile.cuh"

constexpr int MULTIPLYING = 2 * GROUP, THREADS_PER_BLOCK = MULTIPLYING + 32, SLAB = FILTERS * 128, PIXEL = 16;

// A factor of a product that is not swizzled: eight rows of 16 bytes, the next eight, and the next 16 bytes of all.
__device__ __forceinline__ unsigned long long rows_of_pixels(const void* at, int eights, int pieces) {
    return (unsigned long long)((unsigned)__cvta_generic_to_shared(at) >> 4) | (unsigned long long)(pieces / 16) << 16 |
           (unsigned long long)(eights / 16) << 32;
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 2)
    conv_nhwc_few(const __grid_constant__ TensorMap images, const __grid_constant__ TensorMap filters,
                  const float* __restrict__ b, IMAGE* __restrict__ y, ConvNhwc g, Patch patch) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const int slabs = g.sum / DEPTH, taps = g.kh * g.kw;
    unsigned char* patches = memory + slabs * SLAB;
    Barrier *full = (Barrier*)(patches + STAGES * patch.bytes), *empty = full + STAGES, *there = empty + STAGES;
    const int group = threadIdx.x / GROUP, filter = blockIdx.y * FILTERS;
    const int tiles = ceil_div(g.n, patch.n) * patch.high * patch.wide;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            start_barrier(full + i, 1);
            start_barrier(empty + i, MULTIPLYING / 32);
        }
        start_barrier(there, 1);
        publish_barriers();
    }
    __syncthreads();
    Ring<STAGES> stage;
    if (group == 2) {
        if (threadIdx.x == MULTIPLYING) {
            expect_bytes(there, slabs * SLAB);
            for (int i = 0; i < slabs; ++i) copy_rows(memory + i * SLAB, &filters, there, i * DEPTH, filter);
            for (int number = blockIdx.x; number < tiles; number += gridDim.x, stage.next()) {
                const Tile tile(patch, g, number);
                await(empty + stage.at, stage.parity ^ 1);
                expect_bytes(full + stage.at, patch.n * patch.lines * patch.line * PIXEL);
                copy_pixels(patches + stage.at * patch.bytes, &images, full + stage.at, (tile.w - g.left) * g.c, 0,
                            tile.h - g.top, tile.n);
            }
        }
        return;
    }
    await(there, 0);
    const int apart = (patch.images ? patch.lines : 1) * patch.line * PIXEL;
    for (int number = blockIdx.x; number < tiles; number += gridDim.x, stage.next()) {
        const Tile tile(patch, g, number);
        int image, row, column, r = 0, s = 0;
        tile.square(group, image, row, column);
        const int start = (image * patch.lines + row) * patch.line + column;
        float sums[1][PAIRS] = {};
        await(full + stage.at, stage.parity);
        const unsigned char* at = patches + stage.at * patch.bytes + start * PIXEL;
        begin_products();
#pragma unroll 1
        for (int tap = 0; tap < taps; tap += 2) {
            const unsigned char* meets = at + (r * patch.line + s) * PIXEL;
            int step = 0;                                                // to the second tap; there may be none, whose
            for (int i = 0; i < 2; ++i) {                                // filters are zero
                if (i == 1 && tap + 1 < taps) step = (r * patch.line + s) * PIXEL - (int)(meets - at);
                if (++s == g.kw) {
                    s = 0;
                    ++r;
                }
            }
            wgmma_both(sums[0], rows_of_pixels(meets, apart, step), factor(memory + tap / 8 * SLAB + tap % 8 * PIXEL));
        }
        end_products();
        await_products<0>();
        if (threadIdx.x % 32 == 0) arrive(empty + stage.at);
        store_tile(sums, y, b, g, tile, group * 64, filter);
    }
}
