// gx[e] = the sum of all gy that were taken from element e, in the order in which they were taken.
// `taken` is sorted: the element of each gy[order[i]]. A thread looks at one of them, and where it is the first of its
// element, adds up all of that element. Elements that were not taken are left as they are.
#include "include/common.cuh"

extern "C" __global__ void scatter(const REAL* gy, const long long* taken, const long long* order, REAL* gx, int size) {
    for (int i = THREAD; i < size; i += THREADS) {
        long long element = taken[i];
        if (i && taken[i - 1] == element) continue;
        REAL sum = 0;
        for (int j = i; j < size && taken[j] == element; ++j) sum += gy[order[j]];
        gx[element] = sum;
    }
}
