// gx[r] = the sum of all gy[i] that were taken from row r, in the order in which they were taken: gx (rows, inner).
// `taken` is sorted: the row of each gy[order[i]]. A thread looks at one of them in one column, and where it is the
// first of its row, adds up all of that row. Rows that were not taken are left as they are.
#include "include/common.cuh"

extern "C" __global__ void scatter(const REAL* gy, const int* taken, const long long* order, REAL* gx, int size,
                                   int inner) {
    for (int e = THREAD; e < size * inner; e += THREADS) {
        const int i = e / inner, c = e % inner, row = taken[i];
        if (i && taken[i - 1] == row) continue;
        REAL sum = 0;
        for (int j = i; j < size && taken[j] == row; ++j) sum += gy[(int)order[j] * inner + c];
        gx[row * inner + c] = sum;
    }
}
