// The filters' gradient of a convolution in thin groups: for each filter and channel of its group the sums over images
// and pixels of the gradient times what the taps met.
//
// A block adds up a share of the places, a thread the same as in grouped.cu: for a run of filters' channels and TAP_COLUMNS
// columns of taps it reads a column of STRIP gradients and the rows of the image under them. The threads of a block that
// have the same run are then added up in a tree, so that sizes alone decide the order.
//
// Requires: 256 threads; a grid (lanes' blocks of filters' channels, shares, blocks of taps' columns); g.places, those
// of a block. parts (shares, m, channels, KH, KW).
#include "conv/grouped/grouped.cuh"

constexpr int LAST = (STRIP - 1) * SH + (KH - 1) * DOWN;

extern "C" __global__ void __launch_bounds__(256, 2)
    conv2d_grouped_grad_w(const STORE* __restrict__ gy, const STORE* __restrict__ x, REAL* __restrict__ parts, Groups g) {
    __shared__ REAL shared[256 * WIDE];
    const Images images = {g.n, g.c, g.h, g.w}, maps = {g.n, g.m, g.oh, g.ow};
    const int rows = g.m * g.channels, strips = ceil_div(g.oh, STRIP);
    const int beside = blockDim.x / g.lanes, own = threadIdx.x / g.lanes;
    const int filter = (blockIdx.x * g.lanes + threadIdx.x % g.lanes) * WIDE, map = filter / g.channels;
    const int channel = map / g.maps * g.channels + filter % g.channels, left = blockIdx.z * TAP_COLUMNS;
    const bool live = own < beside && filter < rows;
    Run sum[KH][TAP_COLUMNS] = {};
    const int end = live ? imin(g.n * strips * g.ow, (blockIdx.y + 1) * g.places) : 0;
    for (int number = blockIdx.y * g.places + own; number < end; number += beside) {
        const Place at(number, strips, g.ow);
        const STORE* plane = x + images.plane(at.image, channel);
        const STORE* slopes = gy + maps.plane(at.image, map);
        const int row = at.strip * STRIP, top = row * SH - g.top;
        Run slope[STRIP];
#pragma unroll
        for (int t = 0; t < STRIP; ++t) {
            slope[t] = {};
            if (row + t < g.oh) slope[t] = load(slopes + ((row + t) * g.ow + at.column) * maps.step());
        }
#pragma unroll
        for (int q = 0; q < TAP_COLUMNS; ++q) {
            const int column = at.column * SW - g.left + (left + q) * ACROSS;
            const bool there = (unsigned)column < (unsigned)g.w;
#pragma unroll
            for (int r = 0; r <= LAST; ++r) {
                if (!is_read<false>(r)) continue;
                Run value = {};
                if (there && (unsigned)(top + r) < (unsigned)g.h)
                    value = load(plane + ((top + r) * g.w + column) * images.step());
#pragma unroll
                for (int t = 0; t < STRIP; ++t)
#pragma unroll
                    for (int p = 0; p < KH; ++p)
                        if (row_of<false>(t, p) == r)
#pragma unroll
                            for (int e = 0; e < WIDE; ++e) sum[p][q].v[e] += slope[t].v[e] * value.v[e];
            }
        }
    }
#pragma unroll
    for (int p = 0; p < KH; ++p)
#pragma unroll
        for (int q = 0; q < TAP_COLUMNS; ++q) {
            __syncthreads();
#pragma unroll
            for (int e = 0; e < WIDE; ++e) shared[threadIdx.x * WIDE + e] = sum[p][q].v[e];
            for (int left_over = beside; left_over > 1; left_over = (left_over + 1) / 2) {
                __syncthreads();
                const int half = (left_over + 1) / 2;
                if (own + half < left_over)
#pragma unroll
                    for (int e = 0; e < WIDE; ++e)
                        shared[threadIdx.x * WIDE + e] += shared[(threadIdx.x + half * g.lanes) * WIDE + e];
            }
            if (live && own == 0 && left + q < KW)
#pragma unroll
                for (int e = 0; e < WIDE; ++e)
                    parts[(blockIdx.y * rows + filter + e) * TAPS + p * KW + left + q] = shared[threadIdx.x * WIDE + e];
        }
}
