// Convolution in thin groups (KSH 2012, section 3.2; depthwise, a group to a channel, in Howard et al. 2017): y, or with
// -DGRADIENT=1 dx.
//
// A thread owns a run of channels of the result at one column of STRIP rows. For each tap's column it reads every row of
// the source that the strip needs once, and adds it to all results which have it under a tap. In NHWC the lanes of a
// block are neighbouring channels, and where a run has more than one, its filters lie in shared memory, tap by tap. In
// NCHW neighbouring threads have neighbouring columns.
//
// Requires: 256 threads; in NHWC a grid (any, lanes' blocks of channels), where blocks stride over places, and shared
// memory of TAPS * lanes * WIDE floats if WIDE > 1, where each group has one channel and one map; in NCHW any grid.
#include "conv/grouped/grouped.cuh"

#ifndef GRADIENT
#define GRADIENT 0
#endif
constexpr bool BACK = GRADIENT;
static_assert(!BACK || STRIP % SH == 0, "a strip of dx begins where the gradient does");

constexpr int FIRST = BACK ? -((KH - 1) * DOWN / SH) : 0;
constexpr int LAST = BACK ? (STRIP - 1 + PHASE) / SH : (STRIP - 1) * SH + (KH - 1) * DOWN;

extern "C" __global__ void __launch_bounds__(256, 2)
    conv2d_grouped(const STORE* __restrict__ from, const REAL* __restrict__ w, const REAL* __restrict__ b,
                   STORE* __restrict__ to, Groups g) {
    const Images x = {g.n, g.c, g.h, g.w}, y = {g.n, g.m, g.oh, g.ow};
    const Images source = BACK ? y : x, result = BACK ? x : y;
    const int strips = ceil_div(result.h, STRIP);
#if LAYOUT == NHWC
    const int beside = blockDim.x / g.lanes, own = threadIdx.x / g.lanes, lane = threadIdx.x % g.lanes * WIDE;
    const int channel = blockIdx.y * g.lanes * WIDE + lane;
#if WIDE > 1
    extern __shared__ float filters[];
    const int across = g.lanes * WIDE, first = blockIdx.y * across;
    for (int i = threadIdx.x; i < imin(across, result.c - first) * TAPS; i += blockDim.x)
        filters[i % TAPS * across + i / TAPS] = w[first * TAPS + i];
    __syncthreads();
#endif
    if (own >= beside || channel >= result.c) return;
    for (unsigned number = blockIdx.x * beside + own; number < (unsigned)g.places; number += gridDim.x * beside) {
        const Place at(number, strips, result.w);
        const int image = at.image;
#else
    for (unsigned number = THREAD; number < (unsigned)g.places; number += THREADS) {
        const Place at(number, strips, result.w);
        const int channel = at.image % result.c, image = at.image / result.c;
#endif
        const int row = at.strip * STRIP, top = BACK ? (row + g.top - PHASE) / SH : row * SH - g.top;
        const int group = channel / (BACK ? g.channels : g.maps), depth = BACK ? g.maps : g.channels;
        Run sum[STRIP] = {};
#pragma unroll 1
        for (int k = 0; k < depth; ++k) {
            const int other = group * depth + k;
            const STORE* plane = from + source.plane(image, other);
#if WIDE == 1
            const REAL* filter = w + (BACK ? other * g.channels + channel % g.channels : channel * g.channels + k) * TAPS;
#endif
#pragma unroll 1
            for (int q = 0; q < KW; ++q) {
                int column = BACK ? at.column + g.left - q * ACROSS : at.column * SW - g.left + q * ACROSS;
                const bool between = BACK && column % SW != 0;
                column = BACK ? column / SW : column;
                const bool there = !between && (unsigned)column < (unsigned)source.w;
                Run tap[KH];
#pragma unroll
                for (int p = 0; p < KH; ++p)
#pragma unroll
                    for (int e = 0; e < WIDE; ++e)
#if WIDE == 1
                        tap[p].v[e] = filter[p * KW + q];
#else
                        tap[p].v[e] = filters[(p * KW + q) * across + lane + e];
#endif
#pragma unroll
                for (int r = FIRST; r <= LAST; ++r) {
                    if (!is_read<BACK>(r)) continue;
                    Run value = {};
                    if (there && (unsigned)(top + r) < (unsigned)source.h)
                        value = load(plane + ((top + r) * source.w + column) * source.step());
#pragma unroll
                    for (int t = 0; t < STRIP; ++t)
#pragma unroll
                        for (int p = 0; p < KH; ++p)
                            if (row_of<BACK>(t, p) == r)
#pragma unroll
                                for (int e = 0; e < WIDE; ++e) sum[t].v[e] += value.v[e] * tap[p].v[e];
                }
            }
        }
        STORE* out = to + result.plane(image, channel);
#pragma unroll
        for (int t = 0; t < STRIP; ++t) {
            if (row + t >= result.h) break;
#pragma unroll
            for (int e = 0; e < WIDE; ++e) sum[t].v[e] = after(sum[t].v[e] + (b ? b[channel + e] : (REAL)0));
            store(out + ((row + t) * result.w + at.column) * result.step(), sum[t]);
        }
    }
}
