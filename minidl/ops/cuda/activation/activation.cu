// Sigmoid, tanh and relu with their gradients, element by element.
//
// A thread owns the elements THREAD, THREAD + THREADS, ... of `size`; a block owns nothing. Any grid and block will do.
// Gradients take what the forward computed, y, as those of these three functions are simplest in it.
#include "common.cuh"

#define ELEMENTS unsigned i = THREAD; i < size; i += THREADS

extern "C" __global__ void sigmoid(const REAL* x, REAL* y, unsigned size) {
    for (ELEMENTS) y[i] = (REAL)1 / (exp(-x[i]) + (REAL)1);    // e^-x = inf for very negative x: 1 / inf = 0 is right
}

extern "C" __global__ void sigmoid_grad_x(const REAL* gy, const REAL* y, REAL* gx, unsigned size) {
    for (ELEMENTS) gx[i] = ((REAL)1 - y[i]) * y[i] * gy[i];
}

extern "C" __global__ void tanh_y(const REAL* x, REAL* y, unsigned size) {
    for (ELEMENTS) y[i] = tanh(x[i]);
}

extern "C" __global__ void tanh_grad_x(const REAL* gy, const REAL* y, REAL* gx, unsigned size) {
    for (ELEMENTS) gx[i] = ((REAL)1 - y[i] * y[i]) * gy[i];
}

extern "C" __global__ void relu(const REAL* x, REAL* y, unsigned size) {
    for (ELEMENTS) y[i] = x[i] <= (REAL)0 ? (REAL)0 : x[i];    // NaN is not <= 0: it is passed on
}

extern "C" __global__ void relu_grad_x(const REAL* gy, const REAL* y, REAL* gx, unsigned size) {
    for (ELEMENTS) gx[i] = y[i] > (REAL)0 ? gy[i] : (REAL)0;   // chosen, not multiplied: inf times 0 would be NaN
}
