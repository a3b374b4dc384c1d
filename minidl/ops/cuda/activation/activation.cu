// Sigmoid, tanh and relu with their gradients, element by element.
//
// A thread owns the elements THREAD, THREAD + THREADS, ... of `size`; a block owns nothing. Any grid and block will do.
// Gradients take what the forward computed, y, as those of these three functions are simplest in it.
#include "include/common.cuh"
#include "include/act.cuh"

#define ELEMENTS unsigned i = THREAD; i < size; i += THREADS

extern "C" __global__ void sigmoid(const REAL* x, REAL* y, unsigned size) {
    for (ELEMENTS) y[i] = sigmoid_value(x[i]);
}

extern "C" __global__ void sigmoid_grad_x(const REAL* gy, const REAL* y, REAL* gx, unsigned size) {
    for (ELEMENTS) gx[i] = sigmoid_grad(gy[i], y[i]);
}

extern "C" __global__ void tanh_y(const REAL* x, REAL* y, unsigned size) {
    for (ELEMENTS) y[i] = tanh_value(x[i]);
}

extern "C" __global__ void tanh_grad_x(const REAL* gy, const REAL* y, REAL* gx, unsigned size) {
    for (ELEMENTS) gx[i] = tanh_grad(gy[i], y[i]);
}

extern "C" __global__ void relu(const REAL* x, REAL* y, unsigned size) {
    for (ELEMENTS) y[i] = relu_value(x[i]);
}

extern "C" __global__ void relu_grad_x(const REAL* gy, const REAL* y, REAL* gx, unsigned size) {
    for (ELEMENTS) gx[i] = relu_grad(gy[i], y[i]);
}
