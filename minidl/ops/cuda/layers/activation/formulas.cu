// Elementwise functions for which CuPy would take several launches: y = FORMULA(x, z, p, q), where z, a second array, may
// be a null pointer, and p and q are numbers. FORMULA, a constant of the compilation, names a function below.
//
// A thread owns the elements THREAD, THREAD + THREADS, ... of `size`; a block owns nothing. Any grid and block will do,
// and y may be x, since a thread reads an element before it writes it.
#include "include/common.cuh"

#ifndef FORMULA
#define FORMULA squared
#endif

__device__ __forceinline__ REAL squared(REAL x, REAL, REAL, REAL) { return x * x; }
__device__ __forceinline__ REAL cubed(REAL x, REAL, REAL, REAL) { return x * x * x; }

// Between low and high, where high counts last; NaN is passed on, of x and of a bound.
__device__ __forceinline__ REAL bounded(REAL x, REAL, REAL low, REAL high) {
    const REAL above = x >= low || x != x ? x : low;
    return above <= high || above != above ? above : high;
}
__device__ __forceinline__ REAL bounded_grad(REAL gy, REAL x, REAL low, REAL high) {
    return x >= low && x <= high ? gy : (REAL)0;
}

__device__ __forceinline__ REAL over_root(REAL x, REAL, REAL, REAL) { return (REAL)1 / sqrt(x); }
__device__ __forceinline__ REAL over_root_grad(REAL gy, REAL y, REAL, REAL) { return (REAL)-0.5 * gy * (y * y * y); }

extern "C" __global__ void formula(const REAL* x, const REAL* z, double p, double q, REAL* y, unsigned size) {
    for (unsigned i = THREAD; i < size; i += THREADS) y[i] = FORMULA(x[i], z ? z[i] : (REAL)0, (REAL)p, (REAL)q);
}
