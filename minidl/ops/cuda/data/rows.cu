// Rows of an array of any type: y[i] = rows[order[(position[0] + 1) * batch + i]], of an epoch's order of `count` rows.
//
// A row is `words` WORDs, integers of one or four bytes, copied as they are. A thread owns every THREADS-th word of y,
// so that neighbours write neighbours. Any grid and block will do. Beyond the order's end each byte is 0xFF: NaN, -1.
#include "include/common.cuh"

extern "C" __global__ void next_rows(const WORD* rows, const long long* order, const long long* position, WORD* y,
                                     int count, int batch, int n, int words) {
    long long first = (position[0] + 1) * batch;
    for (unsigned i = THREAD; i < (unsigned)n * words; i += THREADS) {
        long long at = first + i / words;
        y[i] = at < count ? rows[order[at] * words + i % words] : (WORD)-1;
    }
}
