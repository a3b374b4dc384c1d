// How a tile of sums becomes part of y. Requires IMAGE, FILTERS, TALL, WIDE_Y and AFTER, as nhwc/conv/conv.cu has them.
#include "include/act.cuh"

#ifndef AFTER
#define AFTER 0
#endif

constexpr int PAIRS = FILTERS / 2;                                       // sums of a lane in 64 rows
// Of these, how many are neighbours in y: nhwc/conv/conv_pack.cu orders filters so that they are stored together
constexpr int NEIGHBOURS = FILTERS < 32 ? 2 : 16 / (int)sizeof(IMAGE);

struct alignas(NEIGHBOURS * sizeof(IMAGE)) Neighbours {
    IMAGE v[NEIGHBOURS];
};

__device__ __forceinline__ void fill(float* to, float low, float high) {
    to[0] = low;
    to[1] = high;
}

__device__ __forceinline__ void fill(unsigned short* to, float low, float high) {
    const unsigned bits = bf16_pair(low, high);
    to[0] = bits & 0xffff;
    to[1] = bits >> 16;
}

// The t-th of a lane's 2 * TALL pixels, among those of its group.
__device__ __forceinline__ int own_pixel(int t) {
    return t / 2 * 64 + t % 2 * 8 + threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4;
}

// A lane's sums as y, from a filter on. at: where its pixels lie in y, or -1.
__device__ __forceinline__ void store_tile(const float (&sums)[TALL][PAIRS], IMAGE* y, const float* b, const ConvNhwc& g,
                                           const int (&at)[2 * TALL], int filter) {
    const int within = threadIdx.x % 4;
#pragma unroll
    for (int block = 0; block < FILTERS / 8; block += NEIGHBOURS / 2) {
        const int f = filter + block * 8 + within * NEIGHBOURS;
        float bias[NEIGHBOURS];
#pragma unroll
        for (int e = 0; e < NEIGHBOURS; ++e) bias[e] = b && f + e < g.m ? b[f + e] : 0.0f;
#pragma unroll
        for (int t = 0; t < 2 * TALL; ++t) {
            Neighbours found;
#pragma unroll
            for (int e = 0; e < NEIGHBOURS; e += 2) {
                const float* of = sums[t / 2] + (block + e / 2) * 4 + t % 2 * 2;
                const float low = of[0] + bias[e], high = of[1] + bias[e + 1];
                fill(found.v + e, AFTER ? ACT_VALUE(low) : low, AFTER ? ACT_VALUE(high) : high);
            }
            if (at[t] < 0) continue;
            IMAGE* to = y + at[t] * g.m + f;
            if (WIDE_Y) {
                if (f < g.m) *(Neighbours*)to = found;
            } else {
#pragma unroll
                for (int e = 0; e < NEIGHBOURS; ++e)
                    if (f + e < g.m) to[e] = found.v[e];
            }
        }
    }
}
