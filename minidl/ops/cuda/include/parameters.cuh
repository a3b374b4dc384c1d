// Updates of up to 64 parameters in one launch, in place, element by element.
//
// The table, passed by value, holds the addresses of each parameter p, its gradient g and what else is kept of it (0:
// there is none), its size, and the number of the first block that works on it. A block owns 1024 elements of one
// parameter, or what is left of it; a thread owns 4 of them, blockDim.x apart. No parameter may be in the table twice.
// Requires: blockDim.x 256; `first` ascending, from 0, and beyond every block if there is no parameter.
#include "include/common.cuh"

#define PARAMETERS 64
#define THREADS_PER_BLOCK 256
#define ELEMENTS_PER_THREAD 4
static_assert((PARAMETERS & (PARAMETERS - 1)) == 0, "the search in the table halves its step");

struct Parameters {
    unsigned long long p[PARAMETERS], g[PARAMETERS], v[PARAMETERS], s[PARAMETERS], t[PARAMETERS];
    int first[PARAMETERS], size[PARAMETERS];
};

// The parameter that this block works on: the last one whose first block is not after it.
__device__ __forceinline__ int parameter_of_block(const Parameters& table) {
    int at = 0;
    for (int step = PARAMETERS / 2; step > 0; step /= 2)
        if (table.first[at + step] <= (int)blockIdx.x) at += step;
    return at;
}

// update(i, read(i)) for each element i of a parameter that this thread owns. All are read before the first one is
// written: else each would wait for memory by itself.
template <class Read, class Update>
__device__ __forceinline__ void each_element(int first, unsigned size, Read read, Update update) {
    unsigned begin = (blockIdx.x - first) * (THREADS_PER_BLOCK * ELEMENTS_PER_THREAD) + threadIdx.x;
    decltype(read(0u)) found[ELEMENTS_PER_THREAD];
#pragma unroll
    for (int k = 0; k < ELEMENTS_PER_THREAD; k++)
        if (begin + k * THREADS_PER_BLOCK < size) found[k] = read(begin + k * THREADS_PER_BLOCK);
#pragma unroll
    for (int k = 0; k < ELEMENTS_PER_THREAD; k++)
        if (begin + k * THREADS_PER_BLOCK < size) update(begin + k * THREADS_PER_BLOCK, found[k]);
}

// The learning rate: rates[*position] (up to rates[last]) if rates are given, or rates[0] without a position; else lr.
// With rates, a captured launch need not be captured again.
__device__ __forceinline__ double rate_of(const double* rates, const long long* position, int last, double lr) {
    return rates ? rates[position ? imin(*position, last) : 0] : lr;
}
