// What training reports, summed on the device: sums[0] += loss * n, sums[1] += how many of n images were classified
// right, sums[2] += 1 while sums[0] is finite: the host, which looks later, knows by it in which step that ended.
//
// x (n, classes) are the logits, loss is the images' mean loss, one number. An image is right if its largest logit, the
// first of equal ones and NaN above all, is its label's. One block owns everything; a thread owns every blockDim.x-th
// image. Requires: blockDim.x a multiple of 32.
#include "include/common.cuh"

extern "C" __global__ void update_metrics(double* sums, const REAL* loss, const REAL* x, const long long* labels, int n,
                                          int classes) {
    int right = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const REAL* row = x + i * classes;
        int best = -1;
        REAL top = 0;
        for (int k = 0; k < classes; k++) {
            REAL value = row[k];
            if (best < 0 || value > top || (value != value && top == top)) best = k, top = value;
        }
        right += best == labels[i];
    }
    for (int step = 16; step > 0; step /= 2) right += __shfl_xor_sync(~0u, right, step);
    __shared__ int warps[32];
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = right;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < blockDim.x / 32; i++) right += warps[i];
        sums[0] = __dadd_rn(sums[0], __dmul_rn((double)*loss, (double)n));
        sums[1] += right;
        sums[2] += isfinite(sums[0]);
    }
}
