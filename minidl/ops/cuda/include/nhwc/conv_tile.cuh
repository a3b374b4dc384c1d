// How a tile of sums becomes part of y, of its maxima, or of a gradient that follows from it. Requires IMAGE, FILTERS,
// TALL, WIDE_Y and AFTER, as nhwc/conv/conv.cu has them.
#include "include/act.cuh"

#ifndef POOLED
#define POOLED 0
#endif
#ifndef GRADIENT
#define GRADIENT 0
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

// Where a lane's sums are: of its t-th pixel, the e-th of the neighbours that begin at a block of filters.
__device__ __forceinline__ int place_of(int t, int block, int e) { return (block + e / 2) * 4 + t % 2 * 2 + e % 2; }

// That element of y.
__device__ __forceinline__ float result(const float (&sums)[TALL][PAIRS], int t, int block, int e, float bias) {
    return after(sums[t / 2][place_of(t, block, e)] + bias);
}

__device__ __forceinline__ void read_biases(float (&bias)[NEIGHBOURS], const float* b, int filter, int filters) {
#pragma unroll
    for (int e = 0; e < NEIGHBOURS; ++e) bias[e] = b && filter + e < filters ? b[filter + e] : 0.0f;
}

// Writes a lane's sums to y, from a filter on. at: where its pixels are in y, or -1.
__device__ __forceinline__ void store_tile(const float (&sums)[TALL][PAIRS], IMAGE* y, const float* b, const ConvNhwc& g,
                                           const int (&at)[2 * TALL], int filter) {
    const int within = threadIdx.x % 4;
#pragma unroll
    for (int block = 0; block < FILTERS / 8; block += NEIGHBOURS / 2) {
        const int f = filter + block * 8 + within * NEIGHBOURS;
        float bias[NEIGHBOURS];
        read_biases(bias, b, f, g.m);
#pragma unroll
        for (int t = 0; t < 2 * TALL; ++t) {
            Neighbours found;
#pragma unroll
            for (int e = 0; e < NEIGHBOURS; e += 2)
                fill(found.v + e, result(sums, t, block, e, bias[e]), result(sums, t, block, e + 1, bias[e + 1]));
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

#if POOLED
constexpr int HALF = NEIGHBOURS / 2;

struct alignas(HALF * sizeof(IMAGE)) Maxima {
    IMAGE v[HALF];
};

struct alignas(HALF) Winners {
    unsigned char v[HALF];
};

// Writes the maxima of y over windows of 2x2, from a lane's sums, and which element of each won: the first of the
// largest, or the last NaN, as in nhwc/pool.cu, but before y is rounded. Squares are eight rows of an image high. A
// lane's t-th and next pixel, t even, are one column of a window; the lane that is 4 away has the other column. Each of
// the two lanes finds the maxima of half of their filters. Requires WIDE_Y. at: where the windows are, or -1.
__device__ __forceinline__ void store_maxima(const float (&sums)[TALL][PAIRS], IMAGE* maxima, unsigned char* winners,
                                             const float* b, const ConvNhwc& g, const int (&at)[TALL], int filter) {
    const int within = threadIdx.x % 4, right = threadIdx.x / 4 % 2, own = right * HALF;
#pragma unroll
    for (int block = 0; block < FILTERS / 8; block += NEIGHBOURS / 2) {
        const int f = filter + block * 8 + within * NEIGHBOURS;
        float bias[NEIGHBOURS];
        read_biases(bias, b, f, g.m);
#pragma unroll
        for (int t = 0; t < TALL; ++t) {
            float best[NEIGHBOURS];
            unsigned rows = 0;                                           // of these, a bit for each
#pragma unroll
            for (int e = 0; e < NEIGHBOURS; ++e) {
                const float upper = result(sums, 2 * t, block, e, bias[e]);
                const float lower = result(sums, 2 * t + 1, block, e, bias[e]);
                const bool wins = (lower > upper) | (lower != lower);
                best[e] = wins ? lower : upper;
                rows |= (unsigned)wins << e;
            }
            const unsigned there = __shfl_xor_sync(~0u, rows, 4) >> own, here = rows >> own;
            const unsigned later = right ? ~there | here : here & ~there;        // than the other column's
            unsigned lost = 0;
            float most[HALF];
#pragma unroll
            for (int e = 0; e < HALF; ++e) {
                const float mine = right ? best[HALF + e] : best[e];
                const float other = __shfl_xor_sync(~0u, right ? best[e] : best[HALF + e], 4);
                const bool after = later >> e & 1;
                const bool loses = (other > mine) | ((other == mine) & after) |
                                   ((other != other) & ((mine == mine) | !after));
                most[e] = loses ? other : mine;
                lost |= (unsigned)loses << e;
            }
            const unsigned row = (here & ~lost) | (there & lost), column = right ? ~lost : lost;
            Maxima found;
            Winners won;
#pragma unroll
            for (int e = 0; e < HALF; e += 2) fill(found.v + e, most[e], most[e + 1]);
#pragma unroll
            for (int e = 0; e < HALF; ++e) won.v[e] = (row >> e & 1) * 2 + (column >> e & 1);
            if (at[t] < 0 || f >= g.m) continue;
            *(Maxima*)(maxima + at[t] * g.m + f + own) = found;
            *(Winners*)(winners + at[t] * g.m + f + own) = won;
        }
    }
}
#endif

#if GRADIENT
// Filters are processed in steps of four lanes' neighbours. A slab of an image like y has two steps, or all if there
// are fewer.
constexpr int AT_A_STEP = 4 * NEIGHBOURS, STEPS = FILTERS / AT_A_STEP, STEPS_BESIDE = STEPS < 2 ? STEPS : 2;

__device__ __forceinline__ float widened(float x) { return x; }
__device__ __forceinline__ float widened(unsigned short x) { return __uint_as_float((unsigned)x << 16); }

// A lane's neighbours at a step, in a slab of shared memory that holds all pixels of the patch.
__device__ __forceinline__ Neighbours in_slab(const unsigned char* slab, int pixel, int step) {
    return *(const Neighbours*)(slab + swizzled(pixel * 128 + step % STEPS_BESIDE * 64 + threadIdx.x % 4 * 16));
}

// Adds a slab of another image to the sums, from a step on. pixel: which pixels of the patch are the lane's.
__device__ __forceinline__ void add_slab(float (&sums)[TALL][PAIRS], const unsigned char* slab,
                                         const int (&pixel)[2 * TALL], int first) {
#pragma unroll
    for (int step = first; step < first + STEPS_BESIDE; ++step)
#pragma unroll
        for (int t = 0; t < 2 * TALL; ++t) {
            const Neighbours more = in_slab(slab, pixel[t], step);
#pragma unroll
            for (int e = 0; e < NEIGHBOURS; ++e)
                sums[t / 2][place_of(t, step * NEIGHBOURS / 2, e)] += widened(more.v[e]);
        }
}

// Which of its neighbours' totals a lane has after total_of_lanes.
__device__ __forceinline__ int own_neighbour() {
    const int high = threadIdx.x / 4 % 2, middle = threadIdx.x / 8 % 2, low = threadIdx.x / 16 % 2;
    return NEIGHBOURS == 8 ? high * 4 + middle * 2 + low : high * 2 + middle;
}

// The sum over the eight lanes of a warp that hold the same filters, for one of these. Each lane keeps half of what it
// has and gives the other half away, as long as there are halves.
__device__ __forceinline__ float total_of_lanes(float (&v)[NEIGHBOURS]) {
    int half = NEIGHBOURS / 2;
#pragma unroll
    for (int apart = 4; apart < 32; apart *= 2, half /= 2) {
        const bool upper = threadIdx.x & apart;
        if (half == 0) v[0] += __shfl_xor_sync(~0u, v[0], apart);
#pragma unroll
        for (int e = 0; e < half; ++e) {
            const float given = upper ? v[e] : v[half + e], kept = upper ? v[half + e] : v[e];
            v[e] = kept + __shfl_xor_sync(~0u, given, apart);
        }
    }
    return v[0];
}

// Turns a lane's sums, from a step on, into gradients with respect to an activation's input; they were with respect to
// its result, which the slab holds (or the input: ACT_GRAD). totals: of all pixels until now, a filter for each step.
// at: where a lane's pixels are in gz, or -1. Requires WIDE_Y.
__device__ __forceinline__ void store_gradient(float (&sums)[TALL][PAIRS], IMAGE* gz, float (&totals)[STEPS],
                                               const unsigned char* slab, const int (&pixel)[2 * TALL],
                                               const ConvNhwc& g, const int (&at)[2 * TALL], int filter, int first) {
#pragma unroll
    for (int step = first; step < first + STEPS_BESIDE; ++step) {
        const int f = filter + step * AT_A_STEP + threadIdx.x % 4 * NEIGHBOURS;
        float total[NEIGHBOURS] = {};
#pragma unroll
        for (int t = 0; t < 2 * TALL; ++t) {
            const Neighbours known = in_slab(slab, pixel[t], step);
            Neighbours found;
#pragma unroll
            for (int e = 0; e < NEIGHBOURS; ++e) {
                float& sum = sums[t / 2][place_of(t, step * NEIGHBOURS / 2, e)];
                sum = at[t] < 0 ? 0.0f : ACT_GRAD(sum, widened(known.v[e]));
                total[e] += sum;
            }
#pragma unroll
            for (int e = 0; e < NEIGHBOURS; e += 2) {
                const float* pair = sums[t / 2] + place_of(t, step * NEIGHBOURS / 2, e);
                fill(found.v + e, pair[0], pair[1]);
            }
            if (at[t] >= 0 && f < g.m) *(Neighbours*)(gz + at[t] * g.m + f) = found;
        }
        totals[step] += total_of_lanes(total);
    }
}

// totals of products: of those gradients, and the slab's numbers minus their filter's mean.
__device__ __forceinline__ void add_products(const float (&sums)[TALL][PAIRS], float (&totals)[STEPS],
                                             const unsigned char* slab, const int (&pixel)[2 * TALL], const float* mean,
                                             const ConvNhwc& g, int filter, int first) {
#pragma unroll
    for (int step = first; step < first + STEPS_BESIDE; ++step) {
        float center[NEIGHBOURS], total[NEIGHBOURS] = {};
        read_biases(center, mean, filter + step * AT_A_STEP + threadIdx.x % 4 * NEIGHBOURS, g.m);
#pragma unroll
        for (int t = 0; t < 2 * TALL; ++t) {
            const Neighbours values = in_slab(slab, pixel[t], step);
#pragma unroll
            for (int e = 0; e < NEIGHBOURS; ++e)
                total[e] += sums[t / 2][place_of(t, step * NEIGHBOURS / 2, e)] * (widened(values.v[e]) - center[e]);
        }
        totals[step] += total_of_lanes(total);
    }
}
#endif
