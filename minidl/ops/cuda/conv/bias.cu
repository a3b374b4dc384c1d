// The bias's gradient: parts[share][m] = sum over a share of the images, and all pixels, of maps (n, m, l).
// A block of 256 threads owns one map in one share of the images; its sum has a fixed order.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256) conv2d_grad_b(const REAL* maps, REAL* parts, int n, int m, int l,
                                                                int images) {
    __shared__ REAL sums[256];
    int first = blockIdx.y * images, last = imin(n, first + images), count = (last - first) * l;
    REAL sum = 0;
    int image = first, at = threadIdx.x;
    for (int i = threadIdx.x; i < count; i += 256, at += 256) {
        while (at >= l) {
            at -= l;
            ++image;
        }
        sum += maps[((size_t)image * m + blockIdx.x) * l + at];
    }
    sums[threadIdx.x] = sum;
    for (int half = 128; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) parts[blockIdx.y * m + blockIdx.x] = sums[0];
}
