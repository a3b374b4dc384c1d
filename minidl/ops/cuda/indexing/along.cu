// Gradients of values taken by their numbers along an axis: gx (before, n, inner), index and gy (before, m, inner).
//
// add_along: gx[b,i,c] = the sum of gy[b,j,c] over all j with index[b,j,c] = i, in their order; it reads all m of them for
// each i, and so is for a small m. put_along: gx[b, index[b,j,c], c] = gy[b,j,c], where no place is named twice; the others
// stay.
//
// A thread owns the elements THREAD, THREAD + THREADS, ... of `size`, those of gx and gy in turn; any grid and block will
// do.
#include "include/common.cuh"
#include "include/wrapped.cuh"

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
