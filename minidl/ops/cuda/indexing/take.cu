// Values by their numbers along an axis: x (before, n, inner), index and y (before, m, inner).
//
// take: y[b,j,c] = x[b, index[b,j,c], c]. With `first`, which may be a null pointer, both are (m,) and y is (m, inner):
// y[j,c] = x[first[j], index[j], c]. ITEM is what has the size of an element of x.
//
// A thread owns the elements THREAD, THREAD + THREADS, ... of `size`, those of y; any grid and block will do.
#include "include/common.cuh"
#include "include/wrapped.cuh"

#ifndef ITEM
#define ITEM unsigned
#endif

extern "C" __global__ void take(const ITEM* x, const long long* first, const long long* index, ITEM* y, unsigned size,
                                int before, int n, int inner, int m) {
    for (unsigned e = THREAD; e < size; e += THREADS) {
        const unsigned at = e / inner, c = e % inner;
        const unsigned row = first ? wrapped(first[at], before) : at / m;
        y[e] = x[(row * n + wrapped(index[first ? at : e], n)) * inner + c];
    }
}
