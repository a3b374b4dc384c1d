// Gradient of the filters of a convolution of images in NHWC, in bf16 or tf32, for steps of 1, where the hardware copies
// (include/tma.cuh): dw[m][tap, c] is a product whose sums run over all pixels, split among blocks.
//
// A block owns 64 filters, 64 channels and TAPS taps, and takes some of all patches (include/patch.cuh). One thread starts
// the copies: of a patch of dy, zero outside of y, and of what it meets of x. Both lie in shared memory pixel by pixel. For
// tap (r, s) x begins r lines and s pixels further than for (0, 0). Two groups of four warps multiply:
//
// bf16: a group takes half of the taps. wgmma reads x as B, pixels by channels; A, filters by pixels, goes to registers,
//   turned over, once for all taps of a group.
// tf32: wgmma takes no factors whose sums run over rows, so mma does it: a warp takes 8 channels. A product's eight pixels
//   are taken in the order 0, 2, 4, 6, 1, 3, 5, 7, so that the lanes' numbers lie in different banks, and a lane's two
//   pixels are neighbours: what the second meets at a tap is what the first meets at the next.
//
// Requires: rows of a patch in pairs, or images where `images` says so. -DIMAGE, -DPRECISION BF16 or TF32, -DTAPS,
// -DROW_TAPS of them side by side, -DSTAGES. What blocks leave is [split][tap][channel][filter], as in nhwc/conv_grad_w.cu.
#include "include/common.cuh"
#include "include/mma.cuh"
#include "include/wgmma.cuh"
#include "include/wgmma_registers.cuh"
#include "include/transposed.cuh"
#include "include/tma.cuh"
#include "include/conv_nhwc.cuh"
#include "include/patch.cuh"

constexpr int MULTIPLYING = 2 * GROUP, THREADS_PER_BLOCK = MULTIPLYING + GROUP, SIDE = 64;
constexpr int FIRST = (TAPS + 1) / 2;                                    // taps of the first group
constexpr int SLABS = SIDE / DEPTH;                                      // copied rows of a pixel

// n images of c channels, h x w; m filters; taps kh x kw, and how many runs of TAPS; oh x ow outputs.
struct GradWTma {
    int n, c, h, w, m, kh, kw, oh, ow, top, left, runs, splits;
};

// What a group multiplies with: the patches of a split, and the bytes of dy's and of both.
struct Turns {
    int first, last, of_dy, of_x, stage;
};

// What this block's split finds.
__device__ __forceinline__ float* part_of(float* parts, const GradWTma& g) {
    return parts + (long long)blockIdx.y * g.kh * g.kw * g.c * g.m;
}

// Pixels of a patch of x, from where tap (0, 0) begins to where each from `tap` on does.
template <int COUNT> __device__ __forceinline__ void shifts(int (&shift)[COUNT], const GradWTma& g, const Patch& patch, int tap) {
#pragma unroll
    for (int t = 0; t < COUNT; ++t) {
        const int at = imin(tap + t, g.kh * g.kw - 1), r = at / g.kw;
        shift[t] = r * patch.line + at - r * g.kw;
    }
}

// B of a product: eight pixels by 64 channels, and eight more so many bytes further.
__device__ __forceinline__ unsigned long long pixels_of(const void* at, int apart) {
    return (unsigned long long)((unsigned)__cvta_generic_to_shared(at) >> 4) | 1ull << 16 |
           (unsigned long long)(apart / 16) << 32 | 1ull << 62;
}

// Taps from `tap` on, COUNT of them, over all patches.
template <int COUNT>
__device__ __forceinline__ void multiply_bf16(unsigned char* memory, Barrier* full, Barrier* empty, const GradWTma& g,
                                         const Patch& patch, const Turns& turns, float* parts, int tap, int filter,
                                         int channel) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = lane % 8;
    // Of a lane's pixel in an eight, the numbers of a block of eight filters; eights begin on multiples of 1,024 bytes
    const int own = row * 128 + ((warp * 2 + lane / 8 % 2) ^ row) * 16;
    const int down = patch.images ? patch.n : patch.h;                   // along which eights are in pairs
    const int beside = patch.images ? patch.h : patch.n;
    const int dy_down = (patch.images ? patch.h : 1) * patch.w * 128;
    const int dy_beside = (patch.images ? 1 : patch.h) * patch.w * 128;
    const int x_down = (patch.images ? patch.lines : 1) * patch.line * 128;
    const int x_beside = (patch.images ? 1 : patch.lines) * patch.line * 128;
    int shift[COUNT];
    shifts(shift, g, patch, tap);
    float sums[COUNT][32] = {};
    Ring<STAGES> stage;
#pragma unroll 1
    for (int turn = turns.first; turn < turns.last; ++turn, stage.next()) {
        await(full + stage.at, stage.parity);
        const unsigned char *dy = memory + stage.at * turns.stage, *x = dy + turns.of_dy;
#pragma unroll 1
        for (int i = 0; i < beside; ++i)
#pragma unroll 1
            for (int j = 0; j < down; j += 2)
#pragma unroll 1
                for (int k = 0; k < patch.w; k += 8) {
                    unsigned a[4];
                    load_transposed(a, dy + i * dy_beside + (j + lane / 16) * dy_down + k * 128 + own);
                    const unsigned char* meets = x + i * x_beside + j * x_down + k * 128;
                    begin_products();
#pragma unroll
                    for (int t = 0; t < COUNT; ++t) wgmma_rows<1>(sums[t], a, pixels_of(meets + shift[t] * 128, x_down));
                    end_products();
                    await_products<0>();
                }
        if (lane == 0) arrive(empty + stage.at);
    }
    float* part = part_of(parts, g);
#pragma unroll
    for (int t = 0; t < COUNT; ++t)
#pragma unroll
        for (int e = 0; e < 32; ++e) {
            const int c = channel + e / 4 * 8 + lane % 4 * 2 + e % 2, m = filter + warp * 16 + lane / 4 + e / 2 % 2 * 8;
            if (tap + t < g.kh * g.kw && c < g.c && m < g.m) part[((tap + t) * g.c + c) * g.m + m] = sums[t][e];
        }
}

// All taps, of 8 channels of this warp. A product's columns are these channels, and its rows filters, in an order that
// lets a lane read four of them at once: of product t, rows `own` and own + 8 are number t of two of its pieces.
__device__ __forceinline__ void multiply_tf32(unsigned char* memory, Barrier* full, Barrier* empty, const GradWTma& g,
                                              const Patch& patch, const Turns& turns, float* parts, int tap, int filter,
                                              int channel) {
    constexpr int LINES = TAPS / ROW_TAPS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, within = lane % 4, own = lane / 4;
    const int piece = warp % 4 * 2 + own / 4, from = own % 4 * 4;        // of a row of x, 16 bytes and the number's place
    int shift[LINES];                                                    // pixels to where a row of taps begins
#pragma unroll
    for (int r = 0; r < LINES; ++r) {
        const int at = imin(tap + r * ROW_TAPS, g.kh * g.kw - ROW_TAPS), row = at / g.kw;
        shift[r] = row * patch.line + at - row * g.kw + 2 * within;
    }
    // Of an eight of dy, which begins on a multiple of 1,024 bytes, a piece of pixel 2 within; another one lies 64 bytes from
    // it, and those of the next pixel 128 further, with their last bit swapped
    const int first = 2 * within * 128 + (own % 4 ^ 2 * within) * 16;
    float sums[TAPS][4][4] = {};
    Ring<STAGES> stage;
#pragma unroll 1
    for (int turn = turns.first; turn < turns.last; ++turn, stage.next()) {
        await(full + stage.at, stage.parity);
        const unsigned char* dy = memory + stage.at * turns.stage + own / 4 * turns.of_dy;
        const unsigned char* x = memory + stage.at * turns.stage + SLABS * turns.of_dy + warp / 4 * turns.of_x + from;
#pragma unroll 1
        for (int i = 0; i < patch.n; ++i)
#pragma unroll 1
            for (int j = 0; j < patch.h; ++j) {
                const int line = (i * patch.lines + j) * patch.line;
#pragma unroll 1
                for (int k = 0; k < patch.w; k += 8, dy += 1024) {
                    unsigned a[4][4];
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int4 four = *(const int4*)(dy + (first ^ e / 2 * 144 ^ e % 2 * 64));
                        a[0][e] = four.x;
                        a[1][e] = four.y;
                        a[2][e] = four.z;
                        a[3][e] = four.w;
                    }
#pragma unroll
                    for (int r = 0; r < LINES; ++r) {
                        unsigned b[ROW_TAPS + 1];                        // what the pixels meet, and the one after
#pragma unroll
                        for (int s = 0; s <= ROW_TAPS; ++s) {
                            const int q = line + k + shift[r] + s;
                            b[s] = *(const unsigned*)(x + q * 128 + (piece ^ (q & 7)) * 16);
                        }
#pragma unroll
                        for (int s = 0; s < ROW_TAPS; ++s)
#pragma unroll
                            for (int t = 0; t < 4; ++t) mma(sums[r * ROW_TAPS + s][t], a[t], b + s);
                    }
                }
            }
        __syncwarp();
        if (lane == 0) arrive(empty + stage.at);
    }
    float* part = part_of(parts, g);
#pragma unroll
    for (int s = 0; s < TAPS; ++s)
#pragma unroll
        for (int t = 0; t < 4; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int c = channel + warp * 8 + within * 2 + e % 2;
                const int m = filter + own / 4 * 32 + own % 4 * 4 + t + e / 2 * 16;
                if (tap + s < g.kh * g.kw && c < g.c && m < g.m) part[((tap + s) * g.c + c) * g.m + m] = sums[s][t][e];
            }
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1)
    conv2d_nhwc_dw_tma(const __grid_constant__ TensorMap gradients, const __grid_constant__ TensorMap images,
                       float* __restrict__ parts, GradWTma g, Patch patch) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const int of_dy = patch.n * patch.h * patch.w * 128, stage_size = SLABS * (of_dy + patch.bytes);
    Barrier *full = (Barrier*)(memory + STAGES * stage_size), *empty = full + STAGES;
    const int group = threadIdx.x / GROUP, sets = ceil_div(g.m, SIDE), run = blockIdx.x / sets % g.runs;
    const int filter = blockIdx.x % sets * SIDE, channel = blockIdx.x / sets / g.runs * SIDE;
    const int patches = ceil_div(g.n, patch.n) * patch.high * patch.wide;
    const int first = (long long)patches * blockIdx.y / g.splits, last = (long long)patches * (blockIdx.y + 1) / g.splits;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            start_barrier(full + i, 1);
            start_barrier(empty + i, MULTIPLYING / 32);
        }
        publish_barriers();
    }
    __syncthreads();
    const Turns turns = {first, last, of_dy, patch.bytes, stage_size};
    if (group == 2) {
        keep_registers<40>();
        if (threadIdx.x == MULTIPLYING) {
            Ring<STAGES> stage;
            for (int turn = first; turn < last; ++turn, stage.next()) {
                const int row = turn / patch.wide, image = row / patch.high;
                const int w = (turn - row * patch.wide) * patch.w, h = (row - image * patch.high) * patch.h;
                unsigned char* to = memory + stage.at * stage_size;
                await(empty + stage.at, stage.parity ^ 1);
                expect_bytes(full + stage.at, SLABS * (of_dy + patch.n * patch.lines * patch.line * 128));
                for (int i = 0; i < SLABS; ++i) {
                    copy_pixels(to + i * of_dy, &gradients, full + stage.at, filter + i * DEPTH, w, h, image * patch.n);
                    copy_pixels(to + SLABS * of_dy + i * patch.bytes, &images, full + stage.at, channel + i * DEPTH,
                                w - g.left, h - g.top, image * patch.n);
                }
            }
        }
    } else {
        take_registers<232>();
        if constexpr (PRECISION == TF32)
            multiply_tf32(memory, full, empty, g, patch, turns, parts, run * TAPS, filter, channel);
        else if (group == 0)
            multiply_bf16<FIRST>(memory, full, empty, g, patch, turns, parts, run * TAPS, filter, channel);
        else
            multiply_bf16<TAPS - FIRST>(memory, full, empty, g, patch, turns, parts, run * TAPS + FIRST, filter, channel);
    }
}
