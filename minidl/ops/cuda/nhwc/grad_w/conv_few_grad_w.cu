// Gradient of the filters of a convolution of float32 images of up to four channels in NHWC, in tf32 by mma, for steps of
// 1: dw[m][tap, c] is a product whose sums run over all pixels, split among blocks.
//
// A block owns 64 filters and takes some of all tiles of HEIGHT x WIDTH outputs in turn. It copies STAGES - 1 tiles ahead:
// gradients, 64 numbers of a pixel, and what they meet of x, pixels of four numbers, absent channels zero. Columns of a
// product are the channels of two taps that are neighbours in a row of the filter; its rows 16 filters, of which a lane
// holds two neighbours; it sums over eight pixels of a row in the order 0, 2, 4, 6, 1, 3, 5, 7. A warp takes 16 * TALL
// filters and all taps, and each PARTS-th eight of pixels; PARTS warps' sums are added at the end, in their order.
//
// -DPRECISION TF32 -DKH -DKW -DHEIGHT -DWIDTH, of a multiple of eight; -DSTAGES -DTALL 1, 2 or 4. Requires g.m in fours, and
// dy on a multiple of 16 bytes. What blocks leave is as nhwc/grad_w/conv_grad_w_sum.cu reads it.
#include "include/common.cuh"
#include "include/tensor_cores/mma.cuh"

constexpr int THREADS_PER_BLOCK = 256, FILTERS = 64, PAIRS = (KW + 1) / 2, COLUMNS = KH * PAIRS;
constexpr int WARPS = FILTERS / 16 / TALL, SHARES = THREADS_PER_BLOCK / 32 / WARPS;    // by filters, and by pixels
constexpr int LINES = HEIGHT + KH - 1, LINE = WIDTH + 2 * PAIRS, PIXELS = HEIGHT * WIDTH;
constexpr int OF_DY = PIXELS * FILTERS, STAGE = OF_DY + LINES * LINE * 4;              // numbers

// n images of c channels, h x w; m filters, oh x ow outputs; zeros above and left of images; tiles of an image, down and
// across, and the parts of all.
struct FewGradW {
    int n, c, h, w, m, oh, ow, top, left, down, across, splits;
};

// Where 16 bytes of a pixel's gradients lie: such that those that lanes read at once lie in different banks.
__device__ __forceinline__ int place_of(int pixel, int piece) { return (pixel * (FILTERS / 4) + (piece ^ (pixel & 7))) * 4; }

__device__ __forceinline__ void start_tile(float* to, const float* dy, const float* x, const FewGradW& g, int number, int filter) {
    const int down = number / g.across, image = down / g.down;
    const int row = (down - image * g.down) * HEIGHT, column = (number - down * g.across) * WIDTH;
#pragma unroll
    for (int i = 0; i < PIXELS * FILTERS / 4 / THREADS_PER_BLOCK; ++i) {
        const int at = threadIdx.x + i * THREADS_PER_BLOCK, piece = at % (FILTERS / 4), pixel = at / (FILTERS / 4);
        const int h = row + pixel / WIDTH, w = column + pixel % WIDTH, m = filter + piece * 4;
        const bool valid = h < g.oh && w < g.ow && m < g.m;
        start_copy((Pack<4>*)(to + place_of(pixel, piece)),
                   (const Pack<4>*)(dy + (valid ? ((image * g.oh + h) * g.ow + w) * g.m + m : 0)), valid);
    }
    for (int at = threadIdx.x; at < LINES * LINE; at += THREADS_PER_BLOCK) {
        const int h = row - g.top + at / LINE, w = column - g.left + at % LINE;
        const bool valid = (unsigned)h < (unsigned)g.h && (unsigned)w < (unsigned)g.w;
        const float* from = x + (valid ? ((image * g.h + h) * g.w + w) * g.c : 0);
        for (int c = 0; c < g.c; ++c) start_copy(to + OF_DY + at * 4 + c, from + (valid ? c : 0), valid);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1)
    conv2d_nhwc_dw_few(const float* __restrict__ dy, const float* __restrict__ x, float* __restrict__ parts, FewGradW g) {
    extern __shared__ __align__(16) float few_memory[];
    const int lane = threadIdx.x % 32, within = lane % 4, own = lane / 4, warp = threadIdx.x / 32;
    const int filter = blockIdx.x * FILTERS, rows = warp % WARPS * TALL * 16, share = warp / WARPS;
    const int tiles = g.n * g.down * g.across;
    const int first = (long long)tiles * blockIdx.y / g.splits, last = (long long)tiles * (blockIdx.y + 1) / g.splits;
    for (int i = threadIdx.x; i < STAGES * LINES * LINE; i += THREADS_PER_BLOCK)       // absent channels are zero
        for (int c = g.c; c < 4; ++c) few_memory[i / (LINES * LINE) * STAGE + OF_DY + i % (LINES * LINE) * 4 + c] = 0;
#pragma unroll 1
    for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
        if (first + ahead < last) start_tile(few_memory + ahead * STAGE, dy, x, g, first + ahead, filter);
        end_copies();
    }
    float sums[COLUMNS][TALL][4] = {};
    int stage = 0;
#pragma unroll 1
    for (int number = first; number < last; ++number) {
        await_copies<STAGES - 2>();
        __syncthreads();                                                 // and everybody is done with the tile before
        const int next = stage ? stage - 1 : STAGES - 1;
        if (number + STAGES - 1 < last) start_tile(few_memory + next * STAGE, dy, x, g, number + STAGES - 1, filter);
        end_copies();
        const float *of_dy = few_memory + stage * STAGE, *of_x = of_dy + OF_DY;
#pragma unroll 1
        for (int eight = share; eight < PIXELS / 8; eight += SHARES) {
            const int pixel = eight * 8 + 2 * within, row = pixel / WIDTH, column = pixel % WIDTH;
            unsigned a[TALL][4];
#pragma unroll
            for (int t = 0; t < TALL; ++t)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const Pack<2> two = *(const Pack<2>*)(of_dy + place_of(pixel + e, (rows + t * 16) / 4 + own / 2) +
                                                          own % 2 * 2);
                    a[t][e * 2] = tf32(two.v[0]);
                    a[t][e * 2 + 1] = tf32(two.v[1]);
                }
            const float* meets = of_x + (row * LINE + column + own / 4) * 4 + own % 4;
#pragma unroll
            for (int r = 0; r < KH; ++r)
#pragma unroll
                for (int s = 0; s < PAIRS; ++s) {
                    const float* at = meets + (r * LINE + 2 * s) * 4;
                    const unsigned b[2] = {tf32(at[0]), tf32(at[4])};
#pragma unroll
                    for (int t = 0; t < TALL; ++t) mma(sums[r * PAIRS + s][t], a[t], b);
                }
        }
        if (++stage == STAGES) stage = 0;
    }
    await_copies<0>();
    float* found = few_memory;                                           // [column][two taps, channels][filter]
#pragma unroll 1
    for (int turn = 0; turn < SHARES; ++turn) {
        __syncthreads();
        if (share != turn) continue;
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
#pragma unroll
            for (int t = 0; t < TALL; ++t)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float* to = found + (i * 8 + within * 2 + e % 2) * FILTERS + rows + t * 16 + own * 2 + e / 2;
                    *to = turn ? *to + sums[i][t][e] : sums[i][t][e];
                }
    }
    __syncthreads();
    float* part = parts + (long long)blockIdx.y * KH * KW * g.c * g.m;
    for (int i = threadIdx.x; i < KH * KW * g.c * FILTERS; i += THREADS_PER_BLOCK) {
        const int m = i % FILTERS, number = i / FILTERS, tap = number / g.c, c = number - tap * g.c;
        const int r = tap / KW, s = tap % KW, column = (r * PAIRS + s / 2) * 8 + s % 2 * 4 + c;
        if (filter + m < g.m) part[number * g.m + filter + m] = found[column * FILTERS + m];
    }
}
