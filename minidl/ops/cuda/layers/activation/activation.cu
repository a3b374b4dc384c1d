// An activation, its gradient, and both of a sum, element by element; ACT says which.
//
// A thread owns the runs THREAD, THREAD + THREADS, ... of `size` elements (image.cuh); a block owns nothing. Any grid
// and block will do. Requires: WIDE divides size.
#include "include/image.cuh"

#define RUNS                                                                                                           \
    unsigned at = THREAD * WIDE;                                                                                       \
    at < size;                                                                                                         \
    at += THREADS * WIDE

extern "C" __global__ void activation(const STORE* __restrict__ x, STORE* __restrict__ y, unsigned size) {
    for (RUNS) {
        Run run = load(x + at);
#pragma unroll
        for (int i = 0; i < WIDE; ++i) run.v[i] = ACT_VALUE(run.v[i]);
        store(y + at, run);
    }
}

// y is act(z), or z itself for activations whose gradient needs it; y's gradient is gy, plus `other` if it is given
extern "C" __global__ void activation_grad_x(const STORE* __restrict__ gy, const STORE* __restrict__ other,
                                             const STORE* __restrict__ y, STORE* __restrict__ gz, unsigned size) {
    for (RUNS) {
        Run run = summed(gy, other, at);
        const Run known = load(y + at);
#pragma unroll
        for (int i = 0; i < WIDE; ++i) run.v[i] = ACT_GRAD(run.v[i], known.v[i]);
        store(gz + at, run);
    }
}

// The activation of a sum, with AFTER; without, the sum
extern "C" __global__ void add_act(const STORE* __restrict__ x, const STORE* __restrict__ y, STORE* __restrict__ z,
                                   unsigned size) {
    for (RUNS) {
        Run run = load(x + at);
        const Run other = load(y + at);
#pragma unroll
        for (int i = 0; i < WIDE; ++i) run.v[i] = after(run.v[i] + other.v[i]);
        store(z + at, run);
    }
}
