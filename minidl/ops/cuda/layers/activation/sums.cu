// An activation of a sum, and the gradient of one that two have read, element by element; ACT says which. y is act(z),
// or for activations whose gradient needs it the input z itself.
//
// A thread owns the elements THREAD, THREAD + THREADS, ... of `size`; a block owns nothing. Any grid and block will do.
#include "include/common.cuh"
#include "include/act.cuh"

extern "C" __global__ void add_act(const REAL* x, const REAL* other, REAL* y, unsigned size) {
    for (unsigned i = THREAD; i < size; i += THREADS) y[i] = ACT_VALUE(x[i] + other[i]);
}

extern "C" __global__ void add_grad_act(const REAL* gy, const REAL* other, const REAL* y, REAL* gz, unsigned size) {
    for (unsigned i = THREAD; i < size; i += THREADS) gz[i] = ACT_GRAD(gy[i] + other[i], y[i]);
}
