// How a tile of sums becomes part of y. Requires IMAGE, FILTERS, TALL, WIDE_Y and AFTER, as nhwc/conv.cu has them.
#include "include/act.cuh"

#ifndef AFTER
#define AFTER 0
#endif

constexpr int PAIRS = FILTERS / 2;                                       // sums of a lane in 64 rows
constexpr int EIGHTS = FILTERS < 32 ? 1 : 4;                             // of filters, that are stored together

// Four lanes that hold one number each of four blocks hold four numbers of one block instead.
__device__ __forceinline__ void exchange_blocks(unsigned (&v)[4]) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const bool upper = threadIdx.x & step;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int low = step == 1 ? 2 * i : i, high = low + step;
            const unsigned other = __shfl_xor_sync(~0u, upper ? v[low] : v[high], step);
            (upper ? v[low] : v[high]) = other;
        }
    }
}

__device__ __forceinline__ void store_numbers(float* to, float low, float high, bool both) {
    if (WIDE_Y) {
        *(Pack<2>*)to = {low, high};
        return;
    }
    to[0] = low;
    if (both) to[1] = high;
}

__device__ __forceinline__ void store_numbers(unsigned short* to, float low, float high, bool both) {
    const unsigned bits = bf16_pair(low, high);
    to[0] = bits & 0xffff;
    if (both) to[1] = bits >> 16;
}

// A group's sums, of TALL * 64 pixels from the tile's `first` on by FILTERS filters, as y. Tile::pixel says where its
// i-th pixel lies, or -1.
template <class Tile>
__device__ __forceinline__ void store_tile(const float (&sums)[TALL][PAIRS], IMAGE* y, const float* b, const ConvNhwc& g,
                                           const Tile& tile, int first, int filter) {
    const int within = threadIdx.x % 4;
    int at[2 * TALL];
#pragma unroll
    for (int t = 0; t < 2 * TALL; ++t)
        at[t] = tile.pixel(first + t / 2 * 64 + t % 2 * 8 + threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4);
#pragma unroll
    for (int block = 0; block < FILTERS / 8; block += EIGHTS) {
        float bias[2 * EIGHTS];
#pragma unroll
        for (int e = 0; e < 2 * EIGHTS; ++e) {
            const int f = filter + (block + e / 2) * 8 + 2 * within + e % 2;
            bias[e] = b && f < g.m ? b[f] : 0.0f;
        }
#pragma unroll
        for (int t = 0; t < 2 * TALL; ++t) {
            float v[2 * EIGHTS];
#pragma unroll
            for (int e = 0; e < 2 * EIGHTS; ++e) {
                const float sum = sums[t / 2][(block + e / 2) * 4 + t % 2 * 2 + e % 2] + bias[e];
                v[e] = AFTER ? ACT_VALUE(sum) : sum;
            }
            if constexpr (WIDE_Y && PRECISION == BF16 && EIGHTS == 4) {
                unsigned bits[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) bits[e] = bf16_pair(v[2 * e], v[2 * e + 1]);
                exchange_blocks(bits);
                const int f = filter + (block + within) * 8;
                if (at[t] >= 0 && f < g.m)
                    *(int4*)(y + at[t] * g.m + f) = make_int4(bits[0], bits[1], bits[2], bits[3]);
            } else {
#pragma unroll
                for (int e = 0; e < EIGHTS; ++e) {
                    const int f = filter + (block + e) * 8 + 2 * within;
                    if (at[t] >= 0 && f < g.m) store_numbers(y + at[t] * g.m + f, v[2 * e], v[2 * e + 1], f + 1 < g.m);
                }
            }
        }
    }
}
