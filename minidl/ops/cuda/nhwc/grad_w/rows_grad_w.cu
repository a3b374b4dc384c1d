// Gradient of the filters of a convolution of images in NHWC by 1x1, in bf16 or tf32, without padding and in steps of
// 1, and so of a linear layer's weight, where the hardware copies (include/tensor_cores/tma.cuh): dw[m][c] is a product
// whose sums run over all rows, which are pixels, split among blocks.
//
// A block owns CHANNELS channels and FILTERS filters, and takes some of all chunks of DEPTH rows. One thread starts the
// copies: of a chunk of x and of one of dy, zero beyond the last row, in slabs of DEPTH channels or filters. Two groups
// of four warps multiply:
//
// bf16: wgmma reads both factors, rows by channels and rows by filters, as they lie. A group has half of the channels.
// tf32: wgmma takes no factors whose sums run over rows, so mma does it. A group has half of the filters, and a warp of
//   it a quarter of the channels. A lane reads 16 bytes, four neighbours, which it gives to several products. A
//   product's eight rows are taken in the order 0, 2, 4, 6, 1, 3, 5, 7, so that the lanes' numbers lie in different
//   banks.
//
// Requires: c and m whole runs of 16 bytes. -DIMAGE, -DPRECISION BF16 or TF32, -DCHANNELS, a multiple of 128,
// -DFILTERS, 64, 128, 192 or 256; -DSTAGES of at least two. images, gradients: boxes of DEPTH rows by DEPTH numbers.
// What blocks leave is [split][channel][filter], as in nhwc/grad_w/conv_grad_w.cu for one tap.
#include "include/common.cuh"
#include "include/tensor_cores/mma.cuh"
#include "include/tensor_cores/wgmma.cuh"
#include "include/tensor_cores/wgmma_smem.cuh"
#include "include/tensor_cores/tma.cuh"
#include "include/nhwc/conv_nhwc.cuh"
#include "include/nhwc/patch.cuh"

constexpr int MULTIPLYING = 2 * GROUP, THREADS_PER_BLOCK = MULTIPLYING + GROUP;
constexpr int SLAB = DEPTH * 128, X_SLABS = CHANNELS / DEPTH, DY_SLABS = FILTERS / DEPTH;
constexpr int STAGE = (X_SLABS + DY_SLABS) * SLAB;
constexpr int TALL = CHANNELS / 128;  // slabs of x: in bf16 of a group, else of a warp

// Channels, filters; chunks of a split, and how many splits take one more.
struct RowsGradW {
    int c, m, each, more;
};

// Calls multiply(x, dy), where the chunk's slabs begin, for each of so many chunks. `pending`: how many chunks, of those
// that it was called for, may still be read after it: 0 or 1.
template <int pending, class Multiply>
__device__ __forceinline__ void each_chunk(unsigned char* memory, Barrier* full, Barrier* empty, int chunks,
                                           Multiply multiply) {
    Ring<STAGES> stage;
    int used = -1;
#pragma unroll 1
    for (; chunks > 0; --chunks, stage.next()) {
        const unsigned char* x = memory + stage.at * STAGE;
        await(full + stage.at, stage.parity);
        multiply(x, x + X_SLABS * SLAB);
        const int free = pending ? used : stage.at;
        used = stage.at;
        if (threadIdx.x % 32 == 0 && free >= 0) arrive(empty + free);
    }
}

// part: the sums of this block's split.
__device__ __forceinline__ void multiply_bf16(unsigned char* memory, Barrier* full, Barrier* empty, const RowsGradW& g,
                                              int chunks, float* part, int channel, int filter) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / GROUP;
    float sums[TALL][FILTERS / 2] = {};
    each_chunk<1>(memory, full, empty, chunks, [&](const unsigned char* x, const unsigned char* dy) {
        begin_products();
#pragma unroll
        for (int row = 0; row < DEPTH; row += 16)
#pragma unroll
            for (int t = 0; t < TALL; ++t)
                wgmma_both<1>(sums[t], transposed_factor(x + (group * TALL + t) * SLAB + row * 128, SLAB),
                              transposed_factor(dy + row * 128, SLAB));
        end_products();
        await_products<1>();
    });
    await_products<0>();
#pragma unroll
    for (int t = 0; t < TALL; ++t)
#pragma unroll
        for (int e = 0; e < FILTERS / 2; e += 2) {
            const int c = channel + (group * TALL + t) * 64 + warp * 16 + e / 2 % 2 * 8 + lane / 4;
            const int m = filter + e / 4 * 8 + lane % 4 * 2;
            if (c < g.c && m < g.m) *(Pack<2>*)(part + c * g.m + m) = {sums[t][e], sums[t][e + 1]};
        }
}

// Of each 32 channels a lane reads four neighbours: rows `own` and `own + 8` of two products. Of each 32 filters too:
// column `own` of four products. So its sums are those of eight neighbouring filters and four channels.
__device__ __forceinline__ void multiply_tf32(unsigned char* memory, Barrier* full, Barrier* empty, const RowsGradW& g,
                                              int chunks, float* part, int channel, int filter) {
    constexpr int WIDE = FILTERS / 64;                                   // slabs of dy of a group
    const int warp = threadIdx.x / 32 % 4, group = threadIdx.x / GROUP;
    const int within = threadIdx.x % 4, own = threadIdx.x % 32 / 4;
    int from[2];  // where a lane's two of a slab's eight rows are
#pragma unroll
    for (int i = 0; i < 2; ++i) from[i] = (2 * within + i) * 128 + (own ^ 2 * within + i) * 16;
    float sums[TALL][2][WIDE][4][4] = {};
    each_chunk<0>(memory, full, empty, chunks, [&](const unsigned char* x, const unsigned char* dy) {
#pragma unroll
        for (int row = 0; row < DEPTH; row += 8) {
            Pack<4> a[TALL][2], b[WIDE][2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int t = 0; t < TALL; ++t)
                    a[t][i] = *(const Pack<4>*)(x + (warp * TALL + t) * SLAB + row * 128 + from[i]);
#pragma unroll
                for (int t = 0; t < WIDE; ++t)
                    b[t][i] = *(const Pack<4>*)(dy + (group * WIDE + t) * SLAB + row * 128 + from[i]);
            }
#pragma unroll
            for (int t = 0; t < TALL * 2; ++t) {
                const Pack<4>(&pair)[2] = a[t / 2];
                const int e = t % 2 * 2;
                const unsigned left[4] = {__float_as_uint(pair[0].v[e]), __float_as_uint(pair[0].v[e + 1]),
                                          __float_as_uint(pair[1].v[e]), __float_as_uint(pair[1].v[e + 1])};
#pragma unroll
                for (int s = 0; s < WIDE * 4; ++s) {
                    const Pack<4>(&four)[2] = b[s / 4];
                    const unsigned right[2] = {__float_as_uint(four[0].v[s % 4]), __float_as_uint(four[1].v[s % 4])};
                    mma(sums[t / 2][t % 2][s / 4][s % 4], left, right);
                }
            }
        }
        __syncwarp();
    });
#pragma unroll
    for (int t = 0; t < TALL * 2; ++t)
#pragma unroll
        for (int s = 0; s < WIDE; ++s)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int c = channel + (warp * TALL + t / 2) * 32 + own * 4 + t % 2 * 2 + e / 2;
                const int m = filter + (group * WIDE + s) * 32 + within * 8 + e % 2 * 4;
                const float(&sum)[4][4] = sums[t / 2][t % 2][s];
                if (c < g.c && m < g.m) *(Pack<4>*)(part + c * g.m + m) = {sum[0][e], sum[1][e], sum[2][e], sum[3][e]};
            }
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1)
    conv2d_nhwc_dw_rows(const __grid_constant__ TensorMap gradients, const __grid_constant__ TensorMap images,
                        float* __restrict__ parts, RowsGradW g) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Barrier *full = (Barrier*)(memory + STAGES * STAGE), *empty = full + STAGES;
    const int sets = ceil_div(g.m, FILTERS), split = blockIdx.y, chunks = g.each + (split < g.more);
    const int channel = blockIdx.x / sets * CHANNELS, filter = blockIdx.x % sets * FILTERS;
    if (threadIdx.x == 0) {
        start_barriers(full, empty, STAGES, MULTIPLYING / 32);
        publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x / GROUP == 2) {
        keep_registers<40>();
        if (threadIdx.x == MULTIPLYING) {
            Ring<STAGES> stage;
            const int first = g.each * split + imin(split, g.more);
            for (int chunk = first; chunk < first + chunks; ++chunk, stage.next()) {
                unsigned char* to = memory + stage.at * STAGE;
                await(empty + stage.at, stage.parity ^ 1);
                expect_bytes(full + stage.at, STAGE);
                for (int i = 0; i < X_SLABS; ++i)
                    copy_rows(to + i * SLAB, &images, full + stage.at, channel + i * DEPTH, chunk * DEPTH);
                for (int i = 0; i < DY_SLABS; ++i)
                    copy_rows(to + (X_SLABS + i) * SLAB, &gradients, full + stage.at, filter + i * DEPTH,
                              chunk * DEPTH);
            }
        }
    } else {
        take_registers<232>();
        float* part = parts + (long long)split * g.c * g.m;
        if constexpr (PRECISION == TF32)
            multiply_tf32(memory, full, empty, g, chunks, part, channel, filter);
        else
            multiply_bf16(memory, full, empty, g, chunks, part, channel, filter);
    }
}
