// Gradient of the filters of a convolution of images in NHWC, in bf16 or tf32, with strides of 1. The hardware copies
// (include/tensor_cores/tma.cuh). dw[m][tap, c] is a product whose sums run over all pixels, split among blocks.
//
// A block owns FILTERS filters, CHANNELS channels and TAPS taps, and takes some of all patches (patch.cuh). One thread
// starts the copies: of a patch of dy, zero outside of y, and of what it meets of x. Shared memory holds both pixel by
// pixel. For tap (r, s), x begins r lines and s pixels further than for (0, 0). Two groups of four warps multiply:
//
// bf16: a group takes half of the taps. wgmma reads x as B, pixels by channels. A, filters by pixels, goes to
//   registers, transposed, once for all taps of a group.
// tf32: wgmma takes no factors whose sums run over rows, so mma does it: a warp takes 8 channels. With fewer than 64
//   channels, warps share out the patches, and each share leaves a split of its own. A product's eight pixels are taken
//   in the order 0, 2, 4, 6, 1, 3, 5, 7, so that the lanes' numbers are in different banks.
//
// Requires: for bf16, rows of a patch in pairs, or images in pairs if `images` says so; for tf32, lines of a multiple
// of eight pixels, and at least SHARES stages. -DIMAGE, -DPRECISION BF16 or TF32, -DTAPS, for tf32 -DROW_TAPS of them
// side by side, -DSTAGES of at least two, -DCHANNELS and -DFILTERS: 16, 32 or 64, for bf16 64 filters. Blocks write
// [split][tap][channel][filter], as in nhwc/grad_w/conv_grad_w.cu.
#include "include/common.cuh"
#include "include/tensor_cores/mma.cuh"
#include "include/tensor_cores/wgmma.cuh"
#include "include/tensor_cores/wgmma_registers.cuh"
#include "include/nhwc/transposed.cuh"
#include "include/tensor_cores/tma.cuh"
#include "include/nhwc/conv_nhwc.cuh"
#include "include/nhwc/patch.cuh"

constexpr int MULTIPLYING = 2 * GROUP, THREADS_PER_BLOCK = MULTIPLYING + GROUP;
constexpr int FIRST = (TAPS + 1) / 2;                                    // taps of the first group
// Copied rows of a pixel of dy and of x; warps that take one patch, and how many sets of such warps there are
constexpr int DY_SLABS = (FILTERS + DEPTH - 1) / DEPTH, X_SLABS = (CHANNELS + DEPTH - 1) / DEPTH;
constexpr int WARPS = PRECISION == TF32 ? CHANNELS / 8 : MULTIPLYING / 32, SHARES = MULTIPLYING / 32 / WARPS;

// Images of c channels; m filters; taps kh x kw, and how many runs of TAPS; zeros above and left of images; patches of
// a split, and how many splits take one more.
struct GradWTma {
    int c, m, kh, kw, top, left, runs, each, more;
};

// Bytes of a patch of dy, of one of x, and of both with all their slabs.
struct Turns {
    int of_dy, of_x, stage;
};

// How many patches this block's split has.
__device__ __forceinline__ int patches_of(const GradWTma& g) { return g.each + ((int)blockIdx.y < g.more); }

// Where the sums of a share of this block's split are written.
__device__ __forceinline__ float* part_of(float* parts, const GradWTma& g, int share = 0) {
    return parts + (long long)(blockIdx.y * SHARES + share) * g.kh * g.kw * g.c * g.m;
}

// For each tap from `tap` on: how many pixels of a patch of x it begins after tap (0, 0).
template <int COUNT> __device__ __forceinline__ void shifts(int (&shift)[COUNT], const GradWTma& g, const Patch& patch, int tap) {
#pragma unroll
    for (int t = 0; t < COUNT; ++t) {
        const int at = imin(tap + t, g.kh * g.kw - 1), r = at / g.kw;
        shift[t] = r * patch.line + at - r * g.kw;
    }
}

// B of a product: eight pixels by CHANNELS channels, and eight more `apart` bytes further.
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
    // Where a lane's pixel of eight has the numbers of a block of eight filters; each eight pixels begin at a multiple
    // of 1,024 bytes
    const int own = row * 128 + ((warp * 2 + lane / 8 % 2) ^ row) * 16;
    const int down = patch.images ? patch.n : patch.h;                   // along which eights are in pairs
    const int beside = patch.images ? patch.h : patch.n;
    const int dy_down = (patch.images ? patch.h : 1) * patch.w * 128;
    const int dy_beside = (patch.images ? 1 : patch.h) * patch.w * 128;
    const int x_down = (patch.images ? patch.lines : 1) * patch.line * 128;
    const int x_beside = (patch.images ? 1 : patch.lines) * patch.line * 128;
    int shift[COUNT];
    shifts(shift, g, patch, tap);
    float sums[COUNT][CHANNELS / 2] = {};
    Ring<STAGES> stage;
#pragma unroll 1
    for (int patches = patches_of(g); patches > 0; --patches, stage.next()) {
        await(full + stage.at, stage.parity);
        const unsigned char *dy = memory + stage.at * turns.stage + lane / 16 * dy_down + own;
        const unsigned char* x = memory + stage.at * turns.stage + turns.of_dy;
        int i = 0, j = 0, k = 0;
        // Products of filters in `a`. Meanwhile, once the products before no longer need the other registers, these get
        // the filters of the next pixels; the last load is not used
        const auto multiply = [&](unsigned (&a)[4], unsigned (&next)[4]) {
            const unsigned char* meets = x + i * x_beside + j * x_down + k * 128;
            begin_products();
#pragma unroll
            for (int t = 0; t < COUNT; ++t) wgmma_rows<1>(sums[t], a, pixels_of(meets + shift[t] * 128, x_down));
            end_products();
            if ((k += 8) == patch.w) {
                k = 0;
                if ((j += 2) == down) {
                    j = 0;
                    ++i;
                }
            }
            await_products<1>();
            load_transposed(next, dy + i * dy_beside + j * dy_down + k * 128);
        };
        unsigned even[4], odd[4];
        load_transposed(even, dy);
#pragma unroll 1
        for (int left = beside * down / 2 * (patch.w / 8); left > 0; left -= 2) {
            multiply(even, odd);
            if (left > 1) multiply(odd, even);
        }
        await_products<0>();
        if (lane == 0) arrive(empty + stage.at);
    }
    float* part = part_of(parts, g);
#pragma unroll
    for (int t = 0; t < COUNT; ++t)
#pragma unroll
        for (int e = 0; e < CHANNELS / 2; ++e) {
            const int c = channel + e / 4 * 8 + lane % 4 * 2 + e % 2, m = filter + warp * 16 + lane / 4 + e / 2 % 2 * 8;
            if (tap + t < g.kh * g.kw && c < g.c && m < g.m) part[((tap + t) * g.c + c) * g.m + m] = sums[t][e];
        }
}

// Taps of a run, of 8 channels of this warp. A product's columns are these channels, and its rows are 16 filters; a
// lane holds two neighbouring ones. Steps go down the rows of eight columns, so that one line of x is new to a step.
// This line and the step's filters are read while the products of the step before run, also if that step is of another
// patch.
__device__ __forceinline__ void multiply_tf32(unsigned char* memory, Barrier* full, Barrier* empty, const GradWTma& g,
                                              const Patch& patch, const Turns& turns, float* parts, int run, int filter,
                                              int channel) {
    constexpr int LINES = TAPS / ROW_TAPS, SLOTS = LINES + 1, PERIOD = SLOTS % 2 ? 2 * SLOTS : SLOTS;
    const int lane = threadIdx.x % 32, within = lane % 4, own = lane / 4;
    // % SHARES: a constant if all warps share one patch, so that addresses of stages stay in uniform registers
    const int warp = threadIdx.x / 32 % WARPS, share = threadIdx.x / 32 / WARPS % SHARES;
    const int piece = warp % 4 * 2 + own / 4, from = own % 4 * 4;        // of a row of x, 16 bytes and the number's place
    const int down = run / ceil_div(g.kw, ROW_TAPS), right = run - down * ceil_div(g.kw, ROW_TAPS);
    const int r = imin(down * LINES, g.kh - LINES), s = imin(right * ROW_TAPS, g.kw - ROW_TAPS);    // the first tap
    int meets[ROW_TAPS + 1];                                             // bytes to what a lane's pixel meets, and one more
#pragma unroll
    for (int i = 0; i <= ROW_TAPS; ++i) {
        const int q = r * patch.line + s + 2 * within + i;
        meets[i] = DY_SLABS * turns.of_dy + warp / 4 * turns.of_x + q * 128 + (piece ^ (q & 7)) * 16 + from;
    }
    // Two filters of pixel 2 * within of eight pixels of dy, which begin at a multiple of 1,024 bytes. 16 filters
    // further the bit of 64 differs, and for the next pixel those of 128 and 16 differ
    const int pair = 2 * within * 128 + (own / 2 ^ 2 * within) * 16 + own % 2 * 8;
    const int row = patch.w * 128, line = patch.line * 128;              // bytes of dy, and of x
    // Where the next step's pixels have the first filters and the others, and what their first one meets at (0, 0)
    const unsigned char *dy = memory + share * turns.stage, *high = dy + turns.of_dy, *x = dy;
    const auto load = [&](unsigned (&a)[FILTERS / 16][4]) {
#pragma unroll
        for (int e = 0; e < FILTERS / 8; ++e) {
            const int2 two = *(const int2*)((e < 4 ? dy : high) + (pair ^ e / 2 % 2 * 64 ^ e % 2 * 144));
            a[e / 2][e % 2 * 2] = two.x;
            a[e / 2][e % 2 * 2 + 1] = two.y;
        }
    };
    // Two pixels of a lane for each tap. What two taps share is read twice (volatile): mma takes a pair from
    // neighbouring registers, and moving numbers there costs more
    const auto load_line = [&](unsigned (&b)[ROW_TAPS][2], int which) {
#pragma unroll
        for (int i = 0; i < 2 * ROW_TAPS; ++i)
            b[i / 2][i % 2] = *(const volatile unsigned*)(x + which * line + meets[i / 2 + i % 2]);
    };
    float sums[TAPS][FILTERS / 16][4] = {};
    unsigned a[2][FILTERS / 16][4], b[SLOTS][ROW_TAPS][2];                          // of this step and of the next, in turn
    Ring<STAGES> stage;
    stage.at = share;
    int patches = ceil_div(patches_of(g) - share, SHARES), image = 0, column = 0, left = patch.h;
    if (patches > 0) {
        await(full + share, 0);
        load(a[0]);
#pragma unroll
        for (int i = 0; i < LINES; ++i) load_line(b[i], i);
    }
    while (patches > 0) {
#pragma unroll
        for (int t = 0; t < PERIOD; ++t) {
            const bool ends = --left == 0;                               // these columns
            dy += row;
            high += row;
            x += line;
            if (ends) {
                left = patch.h;
                if ((column += 8) == patch.w) {
                    column = 0;
                    if (++image == patch.n) {
                        image = 0;
                        __syncwarp();
                        if (lane == 0) arrive(empty + stage.at);         // it has all been read
                        if (--patches > 0) {                             // else what is read is for nothing
#pragma unroll
                            for (int i = 0; i < SHARES; ++i) stage.next();
                            await(full + stage.at, stage.parity);
                        }
                    }
                }
                dy = memory + stage.at * turns.stage + image * patch.h * row + column * 128;
                high = dy + turns.of_dy;
                x = memory + stage.at * turns.stage + image * patch.lines * line + column * 128;
            }
            load(a[(t + 1) % 2]);
            load_line(b[(t + LINES) % SLOTS], LINES - 1);
#pragma unroll
            for (int tap = TAPS - 1; tap >= 0; --tap)                    // the last line was read first
#pragma unroll
                for (int m = 0; m < FILTERS / 16; ++m)
                    mma(sums[tap][m], a[t % 2][m], b[(t + tap / ROW_TAPS) % SLOTS][tap % ROW_TAPS]);
            if (ends) {
#pragma unroll
                for (int i = 0; i < LINES - 1; ++i) load_line(b[(t + 1 + i) % SLOTS], i);
                if (patches == 0) break;
            }
        }
    }
    float* part = part_of(parts, g, share);
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap)
#pragma unroll
        for (int t = 0; t < FILTERS / 16; ++t)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int y = r + tap / ROW_TAPS, x = s + tap % ROW_TAPS;
                const int c = channel + warp * 8 + within * 2 + e, m = filter + t * 16 + own * 2;
                // Only one run stores each tap; c and m are multiples of four
                if (y >= down * LINES && x >= right * ROW_TAPS && c < g.c && m < g.m)
                    *(Pack<2>*)(part + ((y * g.kw + x) * g.c + c) * g.m + m) = {sums[tap][t][e], sums[tap][t][e + 2]};
            }
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1)
    conv2d_nhwc_dw_tma(const __grid_constant__ TensorMap gradients, const __grid_constant__ TensorMap images,
                       float* __restrict__ parts, GradWTma g, Patch patch) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const int of_dy = patch.n * patch.h * patch.w * 128, stage_size = DY_SLABS * of_dy + X_SLABS * patch.bytes;
    Barrier *full = (Barrier*)(memory + STAGES * stage_size), *empty = full + STAGES;
    const int group = threadIdx.x / GROUP, sets = ceil_div(g.m, FILTERS), run = blockIdx.x / sets % g.runs;
    const int filter = blockIdx.x % sets * FILTERS, channel = blockIdx.x / sets / g.runs * CHANNELS;
    if (threadIdx.x == 0) {
        start_barriers(full, empty, STAGES, WARPS);
        publish_barriers();
    }
    __syncthreads();
    const Turns turns = {of_dy, patch.bytes, stage_size};
    if (group == 2) {
        keep_registers<40>();
        if (threadIdx.x == MULTIPLYING) {
            Ring<STAGES> stage;
            const int split = blockIdx.y, first = g.each * split + imin(split, g.more);
            for (int turn = first; turn < first + patches_of(g); ++turn, stage.next()) {
                const int row = turn / patch.wide, image = row / patch.high;
                const int w = (turn - row * patch.wide) * patch.w, h = (row - image * patch.high) * patch.h;
                unsigned char* to = memory + stage.at * stage_size;
                await(empty + stage.at, stage.parity ^ 1);
                expect_bytes(full + stage.at, DY_SLABS * of_dy + X_SLABS * patch.n * patch.lines * patch.line * 128);
                for (int i = 0; i < DY_SLABS; ++i)
                    copy_pixels(to + i * of_dy, &gradients, full + stage.at, filter + i * DEPTH, w, h, image * patch.n);
                for (int i = 0; i < X_SLABS; ++i)
                    copy_pixels(to + DY_SLABS * of_dy + i * patch.bytes, &images, full + stage.at, channel + i * DEPTH,
                                w - g.left, h - g.top, image * patch.n);
            }
        }
    } else {
        take_registers<232>();
        if constexpr (PRECISION == TF32)
            multiply_tf32(memory, full, empty, g, patch, turns, parts, run, filter, channel);
        else if (group == 0)
            multiply_bf16<FIRST>(memory, full, empty, g, patch, turns, parts, run * TAPS, filter, channel);
        else
            multiply_bf16<TAPS - FIRST>(memory, full, empty, g, patch, turns, parts, run * TAPS + FIRST, filter, channel);
    }
}
