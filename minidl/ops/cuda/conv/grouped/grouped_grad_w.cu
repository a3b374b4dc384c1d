// The filters' gradient of a convolution in thin groups: for each filter and channel of its group the sums over images
// and pixels of the gradient times what the taps met.
//
// A block adds up a share of the places. A thread takes places as in grouped.cu: for a run of filters' channels and
// TAP_COLUMNS columns of taps it reads a tile of STRIP by COLUMNS gradients, and row by row the pixels of the image
// under them. The sums of a block's threads that have the same run are added up in an order that sizes alone decide.
//
// Requires: BLOCK threads; a grid (lanes' blocks of filters' channels, shares, blocks of taps' columns); g.places,
// those of a block; shared memory of SUMS * PITCH numbers. parts (shares, m, channels, KH, KW).
#include "conv/grouped/grouped.cuh"

using Rows = Down<false>;
using Columns = Along<false>;

constexpr int SUMS = KH * TAP_COLUMNS;
constexpr int PITCH = (BLOCK + 1) * WIDE;                        // so that neighbouring taps are in other banks
constexpr int IN_TURN = 8;                                       // of a filter's sums, that one thread adds up

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    conv2d_grouped_grad_w(const STORE* __restrict__ gy, const STORE* __restrict__ x, REAL* __restrict__ parts, Groups g) {
    extern __shared__ __align__(16) unsigned char memory[];
    REAL* shared = (REAL*)memory;
    const Images images = {g.n, g.c, g.h, g.w}, maps = {g.n, g.m, g.oh, g.ow};
    const int rows = g.m * g.channels, beside = BLOCK / g.lanes, own = threadIdx.x / g.lanes;
    const int filter = (blockIdx.x * g.lanes + threadIdx.x % g.lanes) * WIDE, map = filter / g.channels;
    const int channel = map / g.maps * g.channels + filter % g.channels, left = blockIdx.z * TAP_COLUMNS;
    const bool live = own < beside && filter < rows;
    Run sum[KH][TAP_COLUMNS] = {};
    const int all = g.n * ceil_div(g.oh, STRIP) * ceil_div(g.ow, COLUMNS);
    const int end = live ? imin(all, (blockIdx.y + 1) * g.places) : 0;
#pragma unroll 1
    for (int number = blockIdx.y * g.places + own; number < end; number += beside) {
        const Place at(number, g.oh, g.ow);
        const STORE* gradients = gy + maps.plane(at.image, map);
        Run gradient[STRIP][COLUMNS] = {};
#pragma unroll
        for (int t = 0; t < STRIP; ++t)
#pragma unroll
            for (int s = 0; s < COLUMNS; ++s)
                if (at.row + t < g.oh && at.column + s < g.ow)
                    gradient[t][s] = load(gradients + ((at.row + t) * g.ow + at.column + s) * STEP_OF(maps));
        const Patch<false> patch(images, x + images.plane(at.image, channel), at.row * SH - g.top,
                                 at.column * SW - g.left + left * ACROSS);
        Stored line[2][Columns::PIXELS];
        patch.read(0, line[0]);
#pragma unroll
        for (int r = 0; r <= Rows::LAST; ++r) {
            if (r < Rows::LAST && Rows::is_read(r + 1)) patch.read(r + 1, line[r + 1 & 1]);
            if (!Rows::is_read(r) || JUMPS && !patch.has(r)) continue;
#pragma unroll
            for (int t = 0; t < STRIP; ++t) {
                const int p = Rows::tap(t, r);
                if (p == NONE) continue;
#pragma unroll
                for (int q = 0; q < TAP_COLUMNS; ++q)
#pragma unroll
                    for (int s = 0; s < COLUMNS; ++s) {
                        const Run value = widened(line[r & 1][Columns::pixel(s, q)]);
#pragma unroll
                        for (int e = 0; e < WIDE; ++e) sum[p][q].v[e] += gradient[t][s].v[e] * value.v[e];
                    }
            }
        }
    }
    const int across = g.lanes * WIDE;
#pragma unroll
    for (int k = 0; k < SUMS; ++k)
#pragma unroll
        for (int e = 0; e < WIDE; ++e)
            shared[k * PITCH + threadIdx.x * WIDE + e] = sum[k / TAP_COLUMNS][k % TAP_COLUMNS].v[e];
    __syncthreads();
    int left_over = beside;
    for (; left_over > IN_TURN; left_over = (left_over + 1) / 2) {
        const int half = (left_over + 1) / 2;
        if (own + half < left_over)
#pragma unroll 8
            for (int k = 0; k < SUMS; ++k)
#pragma unroll
                for (int e = 0; e < WIDE; ++e) {
                    REAL* at = shared + k * PITCH + threadIdx.x * WIDE + e;
                    *at += at[half * across];
                }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < across * SUMS; i += BLOCK) {
        const int k = i % SUMS, q = left + k % TAP_COLUMNS, row = blockIdx.x * across + i / SUMS;
        if (row >= rows || q >= KW) continue;
        const REAL* at = shared + k * PITCH + i / SUMS;
        REAL total = 0;
        for (int other = 0; other < left_over; ++other) total += at[other * across];
        parts[(blockIdx.y * rows + row) * TAPS + k / TAP_COLUMNS * KW + q] = total;
    }
}
