// Values by their indices along an axis: x (before, n, inner) -> y (before, m, inner).
//
// take: y[b,j,c] = x[b, index[b,j,c], c]; `by_row`: index is (m,), and y[b,j,c] = x[b, index[j], c]. With `first`,
// which may be a null pointer, both are (m,) and y is (m, inner): y[j,c] = x[first[j], index[j], c]. ITEM is a type of
// the size of an element of x. If WIDTH is above 1, WIDTH elements move together: 16 contiguous bytes with one index.
//
// A thread owns the elements THREAD, THREAD + THREADS, ... of `size` (that of y / WIDTH); any grid and block will do.
// Requires: inner a multiple of WIDTH; x and y aligned to WIDTH elements; WIDTH 1 if each element has its own index.
#include "include/common.cuh"
#include "include/wrapped.cuh"

#ifndef ITEM
#define ITEM unsigned
#endif
#ifndef WIDTH
#define WIDTH 1
#endif

#if WIDTH > 1
typedef int4 Items;
#else
typedef ITEM Items;
#endif

constexpr int AHEAD = 4;                   // reads of a thread that are under way at the same time

extern "C" __global__ void take(const ITEM* x, const long long* first, const long long* index, ITEM* y, unsigned size,
                                int before, int n, int inner, int m, int by_row) {
    const unsigned width = inner / WIDTH;
    for (unsigned e = THREAD; e < size; e += AHEAD * THREADS) {
        unsigned from[AHEAD];
        Items found[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const unsigned to = e + k * THREADS;
            if (to >= size) continue;
            const unsigned at = to / width, c = to - at * width, b = first ? wrapped(first[at], before) : at / m;
            from[k] = (b * n + wrapped(index[first ? at : by_row ? at - b * m : to], n)) * width + c;
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (e + k * THREADS < size) found[k] = ((const Items*)x)[from[k]];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (e + k * THREADS < size) ((Items*)y)[e + k * THREADS] = found[k];
    }
}
