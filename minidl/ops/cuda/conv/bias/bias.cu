// The bias's gradient: parts[share][m] = sum over a share of the images, and all pixels, of maps (n, m, l).
// A block of 1024 threads owns one map in one share of the images; its sum has a fixed order. A thread has eight loads
// (four of doubles) of WIDE elements in flight at a time: a few blocks must keep the memory busy.
// Requires: WIDE divides l.
#include "include/common.cuh"

constexpr int LOADS = sizeof(REAL) == 4 ? 8 : 4;
static_assert(WIDE == 1 || WIDE == 4, "WIDE is how many neighbouring elements one load brings: 1 or 4");

extern "C" __global__ void __launch_bounds__(1024)
    conv2d_grad_b(const REAL* maps, REAL* parts, int n, int m, int l, int images) {
    __shared__ REAL sums[1024];
    int first = blockIdx.y * images, count = (imin(n, first + images) - first) * (l / WIDE);
    const REAL* map = maps + ((size_t)first * m + blockIdx.x) * l;
    REAL sum[LOADS] = {};
    Odometer at(1024, 1, imax(1, l / WIDE));  // image, -, pixels
    for (int i = threadIdx.x; i < count;) {
        Pack<WIDE> value[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; ++k, i += 1024, at.next())
            value[k] = i < count ? *(const Pack<WIDE>*)&map[(size_t)at.high * m * l + at.low * WIDE] : Pack<WIDE>{};
#pragma unroll
        for (int k = 0; k < LOADS; ++k)
#pragma unroll
            for (int e = 0; e < WIDE; ++e) sum[k] += value[k].v[e];
    }
#pragma unroll
    for (int k = 1; k < LOADS; ++k) sum[0] += sum[k];
    sums[threadIdx.x] = sum[0];
    for (int half = 512; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) parts[blockIdx.y * m + blockIdx.x] = sums[0];
}
