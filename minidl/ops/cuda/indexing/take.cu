// Values by their numbers along an axis, and their gradients: x (before, n, inner), index and y (before, m, inner).
//
// take: y[b,j,c] = x[b, index[b,j,c], c]. With `first`, which may be a null pointer, both are (m,) and y is (m, inner):
// y[j,c] = x[first[j], index[j], c]. add_along: gx[b,i,c] = the sum of gy[b,j,c] over all j with index[b,j,c] = i, in
// their order; it reads all m of them for each i, and so is for a small m. put_along: gx[b, index[b,j,c], c] =
// gy[b,j,c], where no place is named twice; the others stay. A number below 0 counts from the end, and one beyond the
// axis goes on at its start, as CuPy has it. ITEM is what has the size of an element of x.
//
// A thread owns the elements THREAD, THREAD + THREADS, ... of `size`, those of y, gx and gy in turn; any grid and block
// will do.
#include "include/common.cuh"

#ifndef ITEM
#define ITEM REAL
#endif

__device__ __forceinline__ int wrapped(long long i, int n) {
    if (i < 0) i += n;
    if (i < 0 || i >= n) i = (i % n + n) % n;
    return (int)i;
}

extern "C" __global__ void take(const ITEM* x, const long long* first, const long long* index, ITEM* y, unsigned size,
                                int before, int n, int inner, int m) {
    for (unsigned e = THREAD; e < size; e += THREADS) {
        const unsigned at = e / inner, c = e % inner;
        const unsigned row = first ? wrapped(first[at], before) : at / m;
        y[e] = x[(row * n + wrapped(index[first ? at : e], n)) * inner + c];
    }
}

extern "C" __global__ void add_along(const REAL* gy, const long long* index, REAL* gx, unsigned size, int n, int inner,
                                     int m) {
    for (unsigned e = THREAD; e < size; e += THREADS) {
        const unsigned c = e % inner, i = e / inner % n, line = e / inner / n * m * inner + c;
        REAL sum = 0;
        for (int j = 0; j < m; j++)
            if (wrapped(index[line + j * inner], n) == (int)i) sum += gy[line + j * inner];
        gx[e] = sum;
    }
}

extern "C" __global__ void put_along(const REAL* gy, const long long* index, REAL* gx, unsigned size, int n, int inner,
                                     int m) {
    for (unsigned e = THREAD; e < size; e += THREADS)
        gx[(e / inner / m * n + wrapped(index[e], n)) * inner + e % inner] = gy[e];
}
