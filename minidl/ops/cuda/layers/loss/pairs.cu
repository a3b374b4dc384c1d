// A loss of each pair (x, t), elementwise; their sum; and the gradients. LOSS says which: a row of
// ops/common/curves.py.
//
// A thread owns the elements THREAD, THREAD + THREADS, ... of `size`. pair_loss_sum: a block leaves the sum of its
// elements over divisor in sums, so that one block alone gives the result; cross_entropy_sum adds up those of several.
// p is the loss's number; gy has one value, or by `step` 1 one for each element.
// Requires: pair_loss_sum: blockDim.x a multiple of 32.
#include "include/common.cuh"
#include "include/rows.cuh"
#include "include/act.cuh"
#include "include/losses.cuh"

#ifndef LOSS
#define LOSS mse
#endif
#define OF_LOSS(what) JOIN(loss_, LOSS)::what

extern "C" __global__ void pair_loss(const REAL* __restrict__ x, const REAL* __restrict__ t, REAL* __restrict__ y,
                                     unsigned size, REAL p) {
    for (unsigned i = THREAD; i < size; i += THREADS) y[i] = OF_LOSS(value)(x[i], t[i], p);
}

extern "C" __global__ void pair_loss_sum(const REAL* __restrict__ x, const REAL* __restrict__ t,
                                         REAL* __restrict__ sums, unsigned size, REAL p, int divisor) {
    REAL sum = 0;
    for (unsigned i = THREAD; i < size; i += THREADS) sum += OF_LOSS(value)(x[i], t[i], p);
    sum = reduce(sum, blockDim.x, false);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum / (REAL)divisor;  // the mean of nothing: 0 / 0 is NaN
}

extern "C" __global__ void pair_loss_grad_x(const REAL* __restrict__ gy, const REAL* __restrict__ x,
                                            const REAL* __restrict__ t, REAL* __restrict__ gx, unsigned size, int step,
                                            REAL p, int divisor) {
    for (unsigned i = THREAD; i < size; i += THREADS)
        gx[i] = OF_LOSS(derivative_x)(x[i], t[i], p) * (gy[i * step] / (REAL)divisor);
}

extern "C" __global__ void pair_loss_grad_target(const REAL* __restrict__ gy, const REAL* __restrict__ x,
                                                 const REAL* __restrict__ t, REAL* __restrict__ gt, unsigned size,
                                                 int step, REAL p, int divisor) {
    for (unsigned i = THREAD; i < size; i += THREADS)
        gt[i] = OF_LOSS(derivative_target)(x[i], t[i], p) * (gy[i * step] / (REAL)divisor);
}
