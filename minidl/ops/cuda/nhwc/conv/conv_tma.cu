// conv_nhwc (nhwc/conv/conv.cu) for strides of 1. The hardware copies (tma.cuh), and copies a pixel once for all taps.
// A block owns squares of y by FILTERS filters, and a group of four warps owns TALL of these squares. A square is eight
// pixels of a row, in eight rows, or in eight images if these are small. One thread starts the copies: of a slab of
// channels of the patch of x that the squares meet, zero outside images, and of the filters' slabs, tap after tap. Two
// groups do nothing but multiply. The pixels of a square that tap (r, s) meets are in the patch as those of (0, 0) are,
// but r lines and s pixels further. Blocks stay, and take patches in turn, so that the next copies start while these
// sums are stored.
//
// Filters as conv_pack.cu leaves them for -DCHUNKED. -DIMAGE, -DPRECISION (not TF32X3), -DFILTERS, -DTALL, -DSTAGES,
// -DWIDE_Y, -DACT, -DAFTER: as in conv.cu. -DBLOCKS: of a multiprocessor, 1 or 2. -DAT_ONCE: how many taps of filters a
// stage has, at most. -DSTEPS_OF_SLAB: products of 32 bytes that a slab takes: 4, or fewer if g.c channels do not fill
// it, with zeros beyond g.c. images: boxes of the pixels that a patch meets by DEPTH channels; filters: boxes of
// FILTERS rows by DEPTH numbers.
//
// Two options, with WIDE_Y, for what else a tile does. -DPOOLED: y's maxima over windows of 2x2, and the winners, are
// stored in place of y; patch.images == 0. -DGRADIENT: y is the gradient by what the activation ACT computed, plus
// another image if `added` says so. The gradient by what ACT was given, gz, is stored, with sums over pixels in
// parts[blocks / across][GRADIENT][m]: of gz, and if GRADIENT is 2, of gz times a normalised image. A block keeps the
// same filters: there are as many blocks as filters take tiles, or a multiple. Slabs of images like y, of a patch's own
// pixels, follow those of x in the same buffers: what is added, what ACT_GRAD takes, and what was normalised.
#include "include/common.cuh"
#include "include/tensor_cores/mma.cuh"
#include "include/tensor_cores/wgmma.cuh"
#include "include/tensor_cores/wgmma_smem.cuh"
#include "include/tensor_cores/tma.cuh"
#include "include/nhwc/conv_nhwc.cuh"
#include "include/nhwc/patch.cuh"
#include "include/nhwc/conv_tile.cuh"

constexpr int MULTIPLYING = 2 * GROUP, THREADS_PER_BLOCK = MULTIPLYING + GROUP;
constexpr int SLAB = FILTERS * 128, STAGE = AT_ONCE * SLAB, PATCHES = 2;

// Three maps, of images like y: boxes of a patch's pixels by DEPTH channels.
struct alignas(64) Beside {
    unsigned long long words[48];
};

// A factor of a product: 64 rows in eights, with `apart` bytes from one eight to the next.
__device__ __forceinline__ unsigned long long rows_of(const void* at, int apart) {
    return (unsigned long long)((unsigned)__cvta_generic_to_shared(at) >> 4) | 1ull << 16 |
           (unsigned long long)(apart / 16) << 32 | 1ull << 62;
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, BLOCKS)
    conv_nhwc_tma(const __grid_constant__ TensorMap images, const __grid_constant__ TensorMap filters,
                  const __grid_constant__ Beside beside, const float* __restrict__ b, const float* __restrict__ mean,
                  const float* __restrict__ rstd, IMAGE* __restrict__ y, unsigned char* __restrict__ winners,
                  float* __restrict__ parts, ConvNhwc g, Patch patch, int added) {
    extern __shared__ __align__(1024) unsigned char memory[];
    unsigned char* slabs = memory + PATCHES * patch.bytes;               // of filters
    Barrier* full = (Barrier*)(slabs + STAGES * STAGE);                  // of these, and whether they can be copied to
    Barrier *empty = full + STAGES, *full_patch = empty + STAGES, *empty_patch = full_patch + PATCHES;
    const int group = threadIdx.x / GROUP, across = g.filters / FILTERS;
    const int tiles = ceil_div(g.n, patch.n) * patch.high * patch.wide * across;
    if (threadIdx.x == 0) {
        start_barriers(full, empty, STAGES, MULTIPLYING / 32);
        start_barriers(full_patch, empty_patch, PATCHES, MULTIPLYING / 32);
        publish_barriers();
    }
    __syncthreads();
    Ring<STAGES> stage;
    Ring<PATCHES> buffer;
    if (group == 2) {
        keep_registers<BLOCKS == 1 ? 40 : 24>();
        if (threadIdx.x == MULTIPLYING)
            for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
                const Tile tile(patch, g, number / across);
                const int filter = number % across * FILTERS;
                const int first = tile.first_row() * g.kw, last = tile.last_row() * g.kw;
                for (int c = 0; c < g.c; c += DEPTH, buffer.next()) {
                    await(empty_patch + buffer.at, buffer.parity ^ 1);
                    expect_bytes(full_patch + buffer.at, patch.n * patch.lines * patch.line * 128);
                    copy_pixels(memory + buffer.at * patch.bytes, &images, full_patch + buffer.at, c, tile.w - g.left,
                                tile.h - g.top, tile.n);
                    for (int tap = first; tap < last; tap += AT_ONCE, stage.next()) {
                        const int count = imin(AT_ONCE, last - tap), column = c * g.kh * g.kw + tap * DEPTH;
                        await(empty + stage.at, stage.parity ^ 1);
                        expect_bytes(full + stage.at, count * SLAB);
                        for (int i = 0; i < count; ++i)
                            copy_rows(slabs + stage.at * STAGE + i * SLAB, &filters, full + stage.at,
                                      column + i * DEPTH, filter);
                    }
                }
#if GRADIENT
                for (int c = filter; c < filter + FILTERS; c += DEPTH)
                    for (int image = !added; image <= GRADIENT; ++image, buffer.next()) {
                        await(empty_patch + buffer.at, buffer.parity ^ 1);
                        expect_bytes(full_patch + buffer.at, patch.n * patch.h * patch.w * 128);
                        copy_pixels(memory + buffer.at * patch.bytes, (const TensorMap*)beside.words + image,
                                    full_patch + buffer.at, c, tile.w, tile.h, tile.n);
                    }
#endif
            }
    } else {
        take_registers<BLOCKS == 1 ? 232 : 104>();
        const bool tells = threadIdx.x % 32 == 0;                        // for its warp
        int start[TALL];                                                 // of a square in a patch
        Place square[TALL];
#pragma unroll
        for (int t = 0; t < TALL; ++t) {
            const Place at = square[t] = square_of(patch, group * TALL + t);
            start[t] = ((at.n * patch.lines + at.h) * patch.line + at.w) * 128;
        }
#if GRADIENT
        float totals[GRADIENT][STEPS] = {};
#endif
        for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
            const Tile tile(patch, g, number / across);
            const int apart = (patch.images ? patch.lines : 1) * patch.line * 128;
            float sums[TALL][PAIRS] = {};
            int used = -1;                                               // the buffers of the products before
            const int first = tile.first_row() * g.kw, last = tile.last_row() * g.kw;
#pragma unroll 1
            for (int c = 0; c < g.c; c += DEPTH, buffer.next()) {
                const unsigned char* line = memory + buffer.at * patch.bytes + tile.first_row() * patch.line * 128;
                int s = 0;
                await(full_patch + buffer.at, buffer.parity);
#pragma unroll 1
                for (int tap = first; tap < last; tap += AT_ONCE, stage.next()) {
                    await(full + stage.at, stage.parity);
                    begin_products();
#pragma unroll 1
                    for (int i = 0; i < AT_ONCE && tap + i < last; ++i) {
                        const unsigned char *meets = line + s * 128, *columns = slabs + stage.at * STAGE + i * SLAB;
#pragma unroll
                        for (int step = 0; step < STEPS_OF_SLAB; ++step)
#pragma unroll
                            for (int t = 0; t < TALL; ++t)
                                wgmma_both(sums[t], rows_of(meets + start[t] + step * 32, apart),
                                           factor(columns + step * 32));
                        if (++s == g.kw) {
                            s = 0;
                            line += patch.line * 128;
                        }
                    }
                    end_products();
                    await_products<1>();
                    if (tells && used >= 0) {
                        arrive(empty + used);
                        if (tap == first) arrive(empty_patch + (buffer.at ^ 1));
                    }
                    used = stage.at;
                }
            }
            await_products<0>();
            if (tells) {
                arrive(empty + used);
                arrive(empty_patch + (buffer.at ^ 1));
            }
            const int filter = number % across * FILTERS;
            Place own[2 * TALL];                                         // a lane's pixels there
#pragma unroll
            for (int t = 0; t < 2 * TALL; ++t)
                own[t] = pixel_of(patch, square[t / 2], own_pixel(t) % 64);
#if POOLED
            int at[TALL];
#pragma unroll
            for (int t = 0; t < TALL; ++t) at[t] = tile.window(own[2 * t]);
            store_maxima(sums, y, winners, b, g, at, filter);
#else
            int at[2 * TALL];
#pragma unroll
            for (int t = 0; t < 2 * TALL; ++t) at[t] = tile.index(own[t]);
#if GRADIENT
            int pixel[2 * TALL];
#pragma unroll
            for (int t = 0; t < 2 * TALL; ++t) pixel[t] = (own[t].n * patch.h + own[t].h) * patch.w + own[t].w;
#pragma unroll
            for (int step = 0; step < STEPS; step += STEPS_BESIDE)
#pragma unroll 1
                for (int image = !added; image <= GRADIENT; ++image, buffer.next()) {
                    const unsigned char* slab = memory + buffer.at * patch.bytes;
                    await(full_patch + buffer.at, buffer.parity);
                    if (image == 0)
                        add_slab(sums, slab, pixel, step);
                    else if (image == 1)
                        store_gradient(sums, y, totals[0], slab, pixel, g, at, filter, step);
                    else
                        add_products(sums, totals[GRADIENT - 1], slab, pixel, mean, g, filter, step);
                    __syncwarp();
                    if (tells) arrive(empty_patch + buffer.at);
                }
#else
            store_tile(sums, y, b, g, at, filter);
#endif
#endif
        }
#if GRADIENT
        // Over all warps, in shared memory that no warp reads any more
        float* shared = (float*)memory;
        const int of_step = threadIdx.x % 4 * NEIGHBOURS + own_neighbour(), filter = blockIdx.x % across * FILTERS;
        await_turn(0);
#pragma unroll
        for (int i = 0; i < GRADIENT * STEPS; ++i)
            shared[threadIdx.x / 32 * GRADIENT * FILTERS + i * AT_A_STEP + of_step] = totals[i / STEPS][i % STEPS];
        await_turn(0);
        for (int i = threadIdx.x; i < GRADIENT * FILTERS; i += MULTIPLYING) {
            const int f = filter + i % FILTERS, sum = i / FILTERS;
            float total = 0;
#pragma unroll
            for (int warp = 0; warp < MULTIPLYING / 32; ++warp) total += shared[warp * GRADIENT * FILTERS + i];
            if (f < g.m) parts[(blockIdx.x / across * GRADIENT + sum) * g.m + f] = sum ? total * rstd[f] : total;
        }
#endif
    }
}
