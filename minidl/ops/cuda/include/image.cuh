// Images as runs of WIDE numbers, read and written at once and computed in REAL: in NHWC neighbouring channels of one
// pixel, in NCHW one number.
//
// STORE is REAL, or unsigned short for bfloat16; WIDE is 1, or as many as 16 bytes hold. Pointers to runs of more than
// one are multiples of the run's size: WIDE divides the channels.
#include "include/common.cuh"
#include "include/tensor_cores/mma.cuh"
#include "include/act.cuh"

#ifndef STORE
#define STORE REAL
#endif
#ifndef WIDE
#define WIDE 1
#endif

struct Run {
    REAL v[WIDE];
};

// How a block of pixels is walked if each thread keeps to a run of channels. Along x a block has `lanes` runs next to
// each other and `chunk` rows, each a pixel; blocks along y take further channels.
struct PixelRuns {
    int rows, channels, lanes, chunk;
};

__device__ __forceinline__ Run load(const REAL* at) {
    Pack<WIDE> pack = *(const Pack<WIDE>*)at;
    Run run;
#pragma unroll
    for (int i = 0; i < WIDE; ++i) run.v[i] = pack.v[i];
    return run;
}

__device__ __forceinline__ void store(REAL* at, const Run& run) {
    Pack<WIDE> pack;
#pragma unroll
    for (int i = 0; i < WIDE; ++i) pack.v[i] = run.v[i];
    *(Pack<WIDE>*)at = pack;
}

#if WIDE == 1
__device__ __forceinline__ Run load(const unsigned short* at) { return {__uint_as_float((unsigned)*at << 16)}; }
__device__ __forceinline__ void store(unsigned short* at, const Run& run) { *at = bf16_pair(run.v[0], 0.0f) & 0xffff; }
#else
__device__ __forceinline__ Run load(const unsigned short* at) {
    Pack<WIDE / 2> pack = *(const Pack<WIDE / 2>*)at;
    Run run;
#pragma unroll
    for (int i = 0; i < WIDE / 2; ++i) {
        const unsigned bits = __float_as_uint(pack.v[i]);
        run.v[2 * i] = __uint_as_float(bits << 16);
        run.v[2 * i + 1] = __uint_as_float(bits & 0xffff0000u);
    }
    return run;
}

__device__ __forceinline__ void store(unsigned short* at, const Run& run) {
    Pack<WIDE / 2> pack;
#pragma unroll
    for (int i = 0; i < WIDE / 2; ++i) pack.v[i] = __uint_as_float(bf16_pair(run.v[2 * i], run.v[2 * i + 1]));
    *(Pack<WIDE / 2>*)at = pack;
}
#endif

// The gradient that comes to an element: gy, plus `other` if two have read what the activation computed.
__device__ __forceinline__ Run summed(const STORE* gy, const STORE* other, int at) {
    Run run = load(gy + at);
    if (other) {
        const Run more = load(other + at);
#pragma unroll
        for (int i = 0; i < WIDE; ++i) run.v[i] += more.v[i];
    }
    return run;
}

// This thread's run of channels, and the rows that it walks: from `row` to before `end`, `step` apart. None if the
// thread is left over because `lanes` does not divide the block, or if the image has no such channels.
struct Walk {
    int channel, row, end, step;

    __device__ __forceinline__ Walk(const PixelRuns& g) {
        const int own = threadIdx.x / g.lanes;
        step = blockDim.x / g.lanes;
        channel = (blockIdx.y * g.lanes + threadIdx.x % g.lanes) * WIDE;
        row = blockIdx.x * g.chunk + own;
        end = own < step && channel < g.channels ? imin(g.rows, (blockIdx.x + 1) * g.chunk) : 0;
    }
};

// parts[blockIdx.x][s][channel] = the sums of a block's rows, in an order that sizes alone decide. each(at, sum) adds
// the run at element `at` of the image to sum[s]; AT_ONCE runs are read before they are needed.
template <int SUMS, int AT_ONCE = 4, class Each>
__device__ __forceinline__ void add_up(const Each& each, float* parts, const PixelRuns& g) {
    constexpr int ROWS = AT_ONCE;                                        // nvcc unrolls by no template parameter
    __shared__ float shared[256 * WIDE];
    const Walk walk(g);
    float sum[SUMS][WIDE] = {};
#pragma unroll (ROWS)
    for (int row = walk.row; row < walk.end; row += walk.step) each(row * g.channels + walk.channel, sum);
    const int columns = g.lanes * WIDE;
#pragma unroll
    for (int s = 0; s < SUMS; ++s) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < WIDE; ++i) shared[threadIdx.x * WIDE + i] = sum[s][i];
        __syncthreads();
        for (int column = threadIdx.x; column < columns; column += blockDim.x) {
            const int channel = blockIdx.y * columns + column;
            float total = 0;
#pragma unroll 1
            for (int own = 0; own < walk.step; ++own) total += shared[own * columns + column];
            if (channel < g.channels) parts[(blockIdx.x * SUMS + s) * g.channels + channel] = total;
        }
    }
}
