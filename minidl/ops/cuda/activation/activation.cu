// An activation, and its gradient from what it computed, element by element; ACT says which. Both of a sum of two, too.
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

extern "C" __global__ void add_act(const REAL* x, const REAL* other, REAL* y, unsigned size) {
    for (ELEMENTS) y[i] = ACT_VALUE(x[i] + other[i]);
}

extern "C" __global__ void add_grad_act(const REAL* gy, const REAL* other, const REAL* y, REAL* gz, unsigned size) {
    for (ELEMENTS) gz[i] = ACT_GRAD(gy[i] + other[i], y[i]);
}
