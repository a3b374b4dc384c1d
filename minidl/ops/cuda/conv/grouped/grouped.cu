// Convolution in thin groups (KSH 2012, section 3.2; depthwise, a group to a channel, in Howard et al. 2017): y, or
// with -DGRADIENT=1 dx.
//
// A thread owns a run of channels of the result at a tile of STRIP rows and COLUMNS columns. It reads every pixel of
// the source that the tile needs once, row by row, and adds it to all results which have it under a tap. Filters of
// many taps need tiles of several columns: then a number is read, and widened from bfloat16, for a dozen products, and
// products take the time. If filters are small, reading bytes takes the time, and a tile of one column has room for
// longer runs.
//
// In NHWC the lanes of a block are neighbouring channels. If a run has more than one channel, its filters are in shared
// memory, tap by tap. In NCHW neighbouring threads have neighbouring tiles.
//
// Requires: BLOCK threads; in NHWC a grid (any, lanes' blocks of channels), in which blocks stride over places, and
// shared memory of TAPS * PITCH floats if WIDE > 1 (then each group has one channel and one map); in NCHW any grid.
// TAP_COLUMNS is KW; or TAP_COLUMNS and COLUMNS are 1, and PHASE_ACROSS is 0.
#include "conv/grouped/grouped.cuh"

#ifndef GRADIENT
#define GRADIENT 0
#endif
constexpr bool BACK = GRADIENT;
using Rows = Down<BACK>;
using Columns = Along<BACK>;
static_assert(!BACK || STRIP % SH == 0 && (COLUMNS % SW == 0 || TAP_COLUMNS == 1), "a tile of dx begins where gy does");
static_assert(TAP_COLUMNS == KW || TAP_COLUMNS == 1 && COLUMNS == 1 && PHASE_ACROSS == 0, "columns of taps are a loop");

constexpr int PITCH = (MAX_LANES + 1) * WIDE;                  // so that neighbouring taps are in other banks

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    conv2d_grouped(const STORE* __restrict__ from, const REAL* __restrict__ w, const REAL* __restrict__ b,
                   STORE* __restrict__ to, Groups g) {
    const Images x = {g.n, g.c, g.h, g.w}, y = {g.n, g.m, g.oh, g.ow};
    const Images source = BACK ? y : x, result = BACK ? x : y;
#if LAYOUT == NHWC
    const int beside = blockDim.x / g.lanes, own = threadIdx.x / g.lanes, lane = threadIdx.x % g.lanes * WIDE;
    const int channel = blockIdx.y * g.lanes * WIDE + lane;
#if WIDE > 1
    extern __shared__ float filters[];
    const int across = g.lanes * WIDE, first = blockIdx.y * across;
    for (int i = threadIdx.x; i < imin(across, result.c - first) * TAPS; i += blockDim.x)
        start_copy(filters + i % TAPS * PITCH + i / TAPS, w + first * TAPS + i, true);
    end_copies();
    await_copies<0>();
    __syncthreads();
#endif
    if (own >= beside || channel >= result.c) return;
    for (unsigned number = blockIdx.x * beside + own; number < (unsigned)g.places; number += gridDim.x * beside) {
        const Place at(number, result.h, result.w);
        const int image = at.image;
#else
    for (unsigned number = THREAD; number < (unsigned)g.places; number += THREADS) {
        const Place at(number, result.h, result.w);
        const int channel = at.image % result.c, image = at.image / result.c;
#endif
        const int top = BACK ? (at.row + g.top - PHASE) / SH : at.row * SH - g.top;
        const int group = channel / (BACK ? g.channels : g.maps), depth = BACK ? g.maps : g.channels;
        Run sum[STRIP][COLUMNS] = {};
#pragma unroll 1
        for (int k = 0; k < depth; ++k) {
            const int other = group * depth + k;
            const STORE* plane = from + source.plane(image, other);
#if WIDE == 1
            const REAL* filter = w + (BACK ? other * g.channels + channel % g.channels : channel * g.channels + k) * TAPS;
#endif
#pragma unroll 1
            for (int left = 0; left < KW; left += TAP_COLUMNS) {
                int column = BACK ? at.column + g.left - PHASE_ACROSS - left * ACROSS
                                  : at.column * SW - g.left + left * ACROSS;
                if (BACK && column % SW != 0) continue;
                const Patch<BACK> patch(source, plane, top, BACK ? column / SW : column);
                Stored line[2][Columns::PIXELS];
                Run tap[KH][TAP_COLUMNS];
                patch.read(Rows::FIRST, line[Rows::FIRST & 1]);
#pragma unroll
                for (int r = Rows::FIRST; r <= Rows::LAST; ++r) {
                    if (JUMPS) asm volatile("" ::: "memory");      // else all taps are read at first, into registers
                    if (r < Rows::LAST && Rows::is_read(r + 1)) patch.read(r + 1, line[r + 1 & 1]);
#pragma unroll
                    for (int t = 0; t < STRIP; ++t) {
                        const int p = Rows::tap(t, r);
                        if (p == NONE || !Rows::begins(t)) continue;
#pragma unroll
                        for (int q = 0; q < TAP_COLUMNS; ++q)
#if WIDE == 1
                            tap[p][q].v[0] = filter[p * KW + left + q];
#else
                            tap[p][q] = load(filters + (p * KW + left + q) * PITCH + lane);
#endif
                    }
                    if (!Rows::is_read(r) || JUMPS && !patch.has(r)) continue;
#pragma unroll
                    for (int t = 0; t < STRIP; ++t) {
                        const int p = Rows::tap(t, r);
                        if (p == NONE) continue;
#pragma unroll
                        for (int q = 0; q < TAP_COLUMNS; ++q)
#pragma unroll
                            for (int s = 0; s < COLUMNS; ++s) {
                                const int c = Columns::pixel(s, q);
                                if (c == NONE) continue;
                                const Run value = widened(line[r & 1][c - Columns::FIRST]);
#pragma unroll
                                for (int e = 0; e < WIDE; ++e) sum[t][s].v[e] += value.v[e] * tap[p][q].v[e];
                            }
                    }
                }
            }
        }
        Run bias = {};
        if (b)
#pragma unroll
            for (int e = 0; e < WIDE; ++e) bias.v[e] = b[channel + e];
        STORE* out = to + result.plane(image, channel);
#pragma unroll
        for (int t = 0; t < STRIP; ++t) {
            if (at.row + t >= result.h) break;
#pragma unroll
            for (int s = 0; s < COLUMNS; ++s) {
                if (at.column + s >= result.w) break;
#pragma unroll
                for (int e = 0; e < WIDE; ++e) sum[t][s].v[e] = after(sum[t][s].v[e] + bias.v[e]);
                store(out + ((at.row + t) * result.w + at.column + s) * STEP_OF(result), sum[t][s]);
            }
        }
    }
}
