// Gradient of the filters of a 1x1 convolution of images in NHWC, in bf16 or tf32, without padding and with strides of
// 1, and so of a linear layer's weight. The hardware copies (include/tensor_cores/tma.cuh). dw[m][c] is a product whose
// sums run over all rows, which are pixels, split among blocks.
//
// A block owns CHANNELS channels and FILTERS filters, and takes some of all chunks of DEPTH rows. One thread starts the
// copies: of a chunk of x and of one of dy, zero beyond the last row, in slabs of DEPTH channels or filters. Two groups
// of four warps multiply:
//
// bf16: wgmma reads both factors, rows by channels and rows by filters, as they are in memory. A group has half of the
//   channels.
// tf32: wgmma takes no factors whose sums run over rows, so mma does it. A group has half of the filters, and a warp of
//   it a quarter of the channels. A product's eight rows are taken in the order 0, 2, 4, 6, 1, 3, 5, 7, so that the
//   lanes' numbers are in different banks.
//
// Requires: c and m are whole runs of 16 bytes. -DIMAGE, -DPRECISION BF16 or TF32, -DCHANNELS, a multiple of 128,
// -DFILTERS, 64, 128, 192 or 256; -DSTAGES of at least two. images, gradients: boxes of DEPTH rows by DEPTH numbers.
// Blocks write [split][channel][filter], as in nhwc/grad_w/conv_grad_w.cu for one tap.
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

// Where this block's tile begins, and its split.
__device__ __forceinline__ int channel_of(const RowsGradW& g) { return blockIdx.x / ceil_div(g.m, FILTERS) * CHANNELS; }
__device__ __forceinline__ int filter_of(const RowsGradW& g) { return blockIdx.x % ceil_div(g.m, FILTERS) * FILTERS; }
__device__ __forceinline__ int chunk_of(const RowsGradW& g) { return g.each * blockIdx.y + imin(blockIdx.y, g.more); }
__device__ __forceinline__ int chunks_of(const RowsGradW& g) { return g.each + ((int)blockIdx.y < g.more); }

// Stores the sums of two neighbouring filters, if there are such.
__device__ __forceinline__ void store(float* parts, const RowsGradW& g, int c, int m, float low, float high) {
    if (c < g.c && m < g.m) *(Pack<2>*)(parts + (long long)blockIdx.y * g.c * g.m + c * g.m + m) = {low, high};
}

// Calls multiply(x, dy) for each of this block's chunks; x and dy are where the chunk's slabs begin. `pending`: how
// many of these chunks may still be read after the call: 0 or 1.
template <int pending, class Multiply>
__device__ __forceinline__ void each_chunk(unsigned char* memory, Barrier* full, Barrier* empty, const RowsGradW& g,
                                           Multiply multiply) {
    Ring<STAGES> stage;
    int used = -1;
#pragma unroll 1
    for (int left = chunks_of(g); left > 0; --left, stage.next()) {
        const unsigned char* x = memory + stage.at * STAGE;
        await(full + stage.at, stage.parity);
        multiply(x, x + X_SLABS * SLAB);
        const int free = pending ? used : stage.at;
        used = stage.at;
        if (threadIdx.x % 32 == 0 && free >= 0) arrive(empty + free);
    }
}

__device__ __forceinline__ void multiply_bf16(unsigned char* memory, Barrier* full, Barrier* empty, const RowsGradW& g,
                                              float* parts) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / GROUP;
    float sums[TALL][FILTERS / 2] = {};
    each_chunk<1>(memory, full, empty, g, [&](const unsigned char* x, const unsigned char* dy) {
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
    const int c = channel_of(g) + group * TALL * 64 + warp * 16 + lane / 4, m = filter_of(g) + lane % 4 * 2;
#pragma unroll
    for (int t = 0; t < TALL; ++t)
#pragma unroll
        for (int e = 0; e < FILTERS / 2; e += 2)
            store(parts, g, c + t * 64 + e / 2 % 2 * 8, m + e / 4 * 8, sums[t][e], sums[t][e + 1]);
}

// Of each 16 channels a lane has two neighbours, rows `own` and `own + 8` of a product. It reads these at once, but
// numbers of dy one by one: mma takes those of two rows from neighbouring registers, and moving numbers there costs
// more.
__device__ __forceinline__ void multiply_tf32(unsigned char* memory, Barrier* full, Barrier* empty, const RowsGradW& g,
                                              float* parts) {
    constexpr int HIGH = TALL * 2, WIDE = FILTERS / 16;                  // products of a warp, down and across
    const int warp = threadIdx.x / 32 % 4, group = threadIdx.x / GROUP;
    const int within = threadIdx.x % 4, own = threadIdx.x % 32 / 4;
    // The i-th 16 bytes of a slab's row r are stored at i ^ r % 8. The lane's first ones of x and dy are in row 2 *
    // within. In the next row the bits of 128 and 16 differ; 16 numbers further that of 64 does, and 8 further that of
    // 32
    const int first_x = 2 * within * 128 + (own / 2 ^ 2 * within) * 16 + own % 2 * 8;
    const int first_dy = 2 * within * 128 + (own / 4 ^ 2 * within) * 16 + own % 4 * 4;
    float sums[HIGH][WIDE][4] = {};
    each_chunk<0>(memory, full, empty, g, [&](const unsigned char* x, const unsigned char* dy) {
#pragma unroll
        for (int row = 0; row < DEPTH; row += 8) {
            unsigned a[HIGH][4], b[WIDE][2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int t = 0; t < HIGH; ++t) {
                    const int2 two = *(const int2*)(x + (warp * TALL + t / 2) * SLAB + row * 128 +
                                                    (first_x ^ i * 144 ^ t % 2 * 64));
                    a[t][i * 2] = two.x;
                    a[t][i * 2 + 1] = two.y;
                }
#pragma unroll
                for (int s = 0; s < WIDE; ++s)
                    b[s][i] = *(const unsigned*)(dy + (group * WIDE + s) / 4 * SLAB + row * 128 +
                                                 (first_dy ^ i * 144 ^ (group * WIDE + s) % 4 * 32));
            }
#pragma unroll
            for (int s = 0; s < WIDE; ++s)
#pragma unroll
                for (int t = 0; t < HIGH; ++t) mma(sums[t][s], a[t], b[s]);
        }
        __syncwarp();
    });
    const int c = channel_of(g) + warp * HIGH * 16 + own * 2, m = filter_of(g) + group * WIDE * 8 + within * 2;
#pragma unroll
    for (int t = 0; t < HIGH; ++t)
#pragma unroll
        for (int s = 0; s < WIDE; ++s)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                store(parts, g, c + t * 16 + e, m + s * 8, sums[t][s][e * 2], sums[t][s][e * 2 + 1]);
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1)
    conv2d_nhwc_dw_rows(const __grid_constant__ TensorMap gradients, const __grid_constant__ TensorMap images,
                        float* __restrict__ parts, RowsGradW g) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Barrier *full = (Barrier*)(memory + STAGES * STAGE), *empty = full + STAGES;
    if (threadIdx.x == 0) {
        start_barriers(full, empty, STAGES, MULTIPLYING / 32);
        publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x / GROUP == 2) {
        keep_registers<40>();
        if (threadIdx.x == MULTIPLYING) {
            Ring<STAGES> stage;
            const int first = chunk_of(g), last = first + chunks_of(g), channel = channel_of(g), filter = filter_of(g);
            for (int row = first * DEPTH; row < last * DEPTH; row += DEPTH, stage.next()) {
                unsigned char* to = memory + stage.at * STAGE;
                await(empty + stage.at, stage.parity ^ 1);
                expect_bytes(full + stage.at, STAGE);
                for (int i = 0; i < X_SLABS; ++i, to += SLAB)
                    copy_rows(to, &images, full + stage.at, channel + i * DEPTH, row);
                for (int i = 0; i < DY_SLABS; ++i, to += SLAB)
                    copy_rows(to, &gradients, full + stage.at, filter + i * DEPTH, row);
            }
        }
    } else {
        take_registers<232>();
        if constexpr (PRECISION == TF32)
            multiply_tf32(memory, full, empty, g, parts);
        else
            multiply_bf16(memory, full, empty, g, parts);
    }
}
