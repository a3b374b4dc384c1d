// Stochastic gradient descent on up to 64 parameters in one launch, in place:
// g += weight_decay * p; v = momentum * v + g; p -= lr * v, or lr * (g + momentum * v) with nesterov.
//
// The table, passed by value, holds the addresses of each parameter, its gradient and its velocity (0: there is none),
// its size, and the number of the first block that works on it. A block owns 1024 elements of one parameter, the last
// block of a parameter fewer; a thread owns 4 of them, blockDim.x apart. Blocks never share elements: no parameter may
// be in the table twice.
// The rate is `lr`, or rates[*position] (up to rates[last]) where rates are given, or rates[0] without a position: so
// that a captured launch need not be made anew.
// Requires: blockDim.x 256; `first` ascending, from 0, and beyond every block where there is no parameter.
#include "include/common.cuh"

#define PARAMETERS 64
#define THREADS_PER_BLOCK 256
#define ELEMENTS_PER_THREAD 4
static_assert((PARAMETERS & (PARAMETERS - 1)) == 0, "the search in the table halves its step");

struct Parameters {
    unsigned long long p[PARAMETERS], g[PARAMETERS], v[PARAMETERS];
    int first[PARAMETERS], size[PARAMETERS];
};

extern "C" __global__ void sgd(const Parameters table, const double* rates, const long long* position, int last,
                               REAL lr, REAL momentum, REAL weight_decay, int nesterov) {
    if (rates) lr = (REAL)rates[position ? imin(*position, last) : 0];
    int at = 0;  // the last parameter whose first block is not after this one
    for (int step = PARAMETERS / 2; step > 0; step /= 2)
        if (table.first[at + step] <= (int)blockIdx.x) at += step;
    REAL* params = (REAL*)table.p[at];
    const REAL* grads = (const REAL*)table.g[at];
    REAL* velocities = (REAL*)table.v[at];
    unsigned size = table.size[at];
    unsigned begin = (blockIdx.x - table.first[at]) * (THREADS_PER_BLOCK * ELEMENTS_PER_THREAD) + threadIdx.x;
    for (int k = 0; k < ELEMENTS_PER_THREAD; k++) {
        unsigned i = begin + k * THREADS_PER_BLOCK;
        if (i >= size) return;
        REAL p = params[i], g = grads[i];
        if (weight_decay != (REAL)0) g += weight_decay * p;
        if (velocities) {
            REAL v = momentum * velocities[i] + g;
            velocities[i] = v;
            g = nesterov ? g + momentum * v : v;
        }
        params[i] = p - lr * g;
    }
}
