// Values that depend on an element's place in its row: triangles of matrices, and the 1 of each label.
//
// A thread owns the elements THREAD, THREAD + THREADS, ...; a block owns nothing, and any grid and block will do.
// -DITEM: the type of an element's bits.
#include "include/common.cuh"

#define AHEAD 4  // elements that a thread reads before it writes them
#ifndef ITEM
#define ITEM unsigned
#endif

// x, y (..., rows, columns): y = x where column - row is at most `diagonal` (at least, if `upper`), and 0 elsewhere.
extern "C" __global__ void triangle(const ITEM* x, ITEM* y, unsigned size, unsigned rows, unsigned columns,
                                    int diagonal, int upper) {
    for (unsigned e = THREAD; e < size; e += AHEAD * THREADS) {
        ITEM item[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const unsigned i = e + k * THREADS, row = i / columns;
            const int right = (int)(i - row * columns) - (int)(row % rows);
            item[k] = i < size && (upper ? right >= diagonal : right <= diagonal) ? x[i] : (ITEM)0;
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (e + k * THREADS < size) y[e + k * THREADS] = item[k];
    }
}

// labels (...), y (..., classes): 1 at each label, and elsewhere 0. ITEM is that of y.
extern "C" __global__ void one_hot(const long long* labels, ITEM* y, unsigned size, unsigned classes) {
    for (unsigned e = THREAD; e < size; e += AHEAD * THREADS) {
        long long label[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const unsigned i = e + k * THREADS;
            label[k] = i < size ? labels[i / classes] : 0;
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const unsigned i = e + k * THREADS;
            if (i < size) y[i] = label[k] == (long long)(i % classes);
        }
    }
}
