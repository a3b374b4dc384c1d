// The bias's gradient: parts[share][m] = sum over a share of the images, and all pixels, of maps (n, m, l).
// A block of 1024 threads owns one map in one share of the images; its sum has a fixed order.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(1024) conv2d_grad_b(const REAL* maps, REAL* parts, int n, int m, int l,
                                                                int images) {
    __shared__ REAL sums[1024];
    int first = blockIdx.y * images, last = imin(n, first + images), count = (last - first) * l;
    const REAL* map = maps + ((size_t)first * m + blockIdx.x) * l;
    REAL sum[4] = {};                                        // four loads of a thread under way at a time
    Odometer at(1024, 1, l);                                 // image, -, pixel
    for (int i = threadIdx.x; i < count;)
#pragma unroll
        for (int k = 0; k < 4; ++k, i += 1024, at.next())
            if (i < count) sum[k] += map[(size_t)at.high * m * l + at.low];
    sums[threadIdx.x] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (int half = 512; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) parts[blockIdx.y * m + blockIdx.x] = sums[0];
}
