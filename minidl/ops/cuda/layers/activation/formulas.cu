// Elementwise functions and arithmetic: y = FORMULA(x, z, p, q) of two arrays x and z of one shape, either of which may
// be a null pointer: then the number p, or q, takes its place. FORMULA, a constant of the compilation, names a function
// below.
//
// -DRESULT: the type of y, REAL or unsigned char. -DWIDE: all arrays begin on multiples of 16 bytes, and elements are
// read and written as many at a time as 16 bytes of REAL hold.
//
// A thread owns the runs THREAD, THREAD + THREADS, ... of `size` elements, and in the same way, one by one, the
// elements after the last whole run; a block owns nothing. Any grid and block will do, and y may be x or z, since a
// thread reads a run before it writes it.
#include "include/common.cuh"

#ifndef FORMULA
#define FORMULA squared
#define RESULT REAL
#define WIDE 1
#endif

constexpr unsigned RUN = WIDE ? 16 / sizeof(REAL) : 1;

struct alignas(WIDE ? 16 : sizeof(REAL)) Run {
    REAL v[RUN];
};

struct alignas(RUN * sizeof(RESULT)) Results {
    RESULT v[RUN];
};

#define OF_ONE(name, expression) __device__ __forceinline__ REAL name(REAL x, REAL, REAL, REAL) { return expression; }
#define OF_TWO(name, expression) __device__ __forceinline__ REAL name(REAL x, REAL z, REAL, REAL) { return expression; }
#define QUESTION(name, expression) __device__ __forceinline__ bool name(REAL x, REAL z, REAL, REAL) { return expression; }

OF_ONE(squared, x * x)
OF_ONE(cubed, x * x * x)
OF_ONE(exponential, exp(x))
OF_ONE(logarithm, log(x))
OF_ONE(root, sqrt(x))
OF_ONE(sine, sin(x))
OF_ONE(cosine, cos(x))
OF_ONE(logarithm_of_1_more, log1p(x))
OF_ONE(exponential_less_1, expm1(x))
OF_ONE(error_function, erf(x))
OF_ONE(rounded_down, floor(x))
OF_ONE(rounded_up, ceil(x))
OF_ONE(rounded, rint(x))
OF_ONE(negative, -x)
OF_ONE(absolute, fabs(x))
OF_ONE(sign, x > (REAL)0 ? (REAL)1 : x < (REAL)0 ? (REAL)-1 : x == (REAL)0 ? (REAL)0 : x)
OF_ONE(over_root, (REAL)1 / sqrt(x))
OF_TWO(over_root_grad, (REAL)-0.5 * x * (z * z * z))

OF_TWO(sum, x + z)
OF_TWO(difference, x - z)
OF_TWO(product, x * z)
OF_TWO(quotient, x / z)
OF_TWO(larger, x >= z || x != x ? x : z)                                 // NaN is passed on
OF_TWO(smaller, x <= z || x != x ? x : z)

QUESTION(greater, x > z)
QUESTION(greater_equal, x >= z)
QUESTION(less, x < z)
QUESTION(less_equal, x <= z)
QUESTION(equal, x == z)
QUESTION(unequal, x != z)

// x limited to low and high; high is applied last. NaN of x or of a bound is passed on.
__device__ __forceinline__ REAL bounded(REAL x, REAL, REAL low, REAL high) {
    const REAL above = x >= low || x != x ? x : low;
    return above <= high || above != above ? above : high;
}
__device__ __forceinline__ REAL bounded_grad(REAL gy, REAL x, REAL low, REAL high) {
    return x >= low && x <= high ? gy : (REAL)0;
}

// The derivatives of x^p, without gy: by x, and by p; that by p is 0 if x is 0 and p is not negative (y is then 0 or
// 1).
OF_TWO(power_derivative, z == (REAL)0 ? z : z * pow(x, z - (REAL)1))
__device__ __forceinline__ REAL power_derivative_p(REAL x, REAL y, REAL, REAL) {
    return x == (REAL)0 && y <= (REAL)1 ? (REAL)0 : y * log(x);
}
// gy p x^q, with q = p - 1
__device__ __forceinline__ REAL power_grad(REAL gy, REAL x, REAL p, REAL q) {
    return gy * (p * (q == (REAL)1 ? x : q == (REAL)2 ? x * x : pow(x, q)));
}

extern "C" __global__ void formula(const REAL* x, const REAL* z, double p, double q, RESULT* y, unsigned size) {
    const REAL low = (REAL)p, high = (REAL)q;
    const unsigned runs = size / RUN;
    Run of_x, of_z;
#pragma unroll
    for (unsigned e = 0; e < RUN; ++e) {
        of_x.v[e] = low;
        of_z.v[e] = high;
    }
    for (unsigned i = THREAD; i < runs; i += THREADS) {
        if (x) of_x = ((const Run*)x)[i];
        if (z) of_z = ((const Run*)z)[i];
        Results found;
#pragma unroll
        for (unsigned e = 0; e < RUN; ++e) found.v[e] = FORMULA(of_x.v[e], of_z.v[e], low, high);
        ((Results*)y)[i] = found;
    }
    for (unsigned i = runs * RUN + THREAD; i < size; i += THREADS)
        y[i] = FORMULA(x ? x[i] : low, z ? z[i] : high, low, high);
}
