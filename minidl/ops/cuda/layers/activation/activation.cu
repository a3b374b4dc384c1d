// An activation, and its gradient from what it computed, element by element; ACT says which.
//
// A thread owns the elements THREAD, THREAD + THREADS, ... of `size`; a block owns nothing. Any grid and block will do.
#include "include/common.cuh"
#include "include/act.cuh"

#define ELEMENTS                                                                                                       \
    unsigned i = THREAD;                                                                                               \
    i < size;                                                                                                          \
    i += THREADS

extern "C" __global__ void activation(const REAL* x, REAL* y, unsigned size) {
    for (ELEMENTS) y[i] = ACT_VALUE(x[i]);
}

extern "C" __global__ void activation_grad_x(const REAL* gy, const REAL* y, REAL* gx, unsigned size) {
    for (ELEMENTS) gx[i] = ACT_GRAD(gy[i], y[i]);
}
