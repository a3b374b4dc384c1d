// Up to 16 parts of arrays, copied in one launch: `rows` rows of `width` UNITs each, whose starts are a pitch apart, on
// either side.
//
// The table, passed by value, holds of each part where it is read and written, width and pitches, and the number of its
// first UNIT among all. A thread copies the UNITs THREAD, THREAD + THREADS, ... of `size`; any grid and block will do.
// Requires: addresses, widths and pitches that are multiples of a UNIT; `first` ascending, from 0, and beyond size where
// there is no part.
#include "include/common.cuh"

#define PARTS 16
#ifndef UNIT
#define UNIT unsigned
#endif

struct Parts {
    unsigned long long from[PARTS], to[PARTS];
    int first[PARTS], width[PARTS], from_pitch[PARTS], to_pitch[PARTS];
};

extern "C" __global__ void copy_parts(const Parts parts, int size) {
    int at = 0;
    for (unsigned e = THREAD; e < (unsigned)size; e += THREADS) {
        while (at + 1 < PARTS && (int)e >= parts.first[at + 1]) at++;
        const int i = (int)e - parts.first[at], row = i / parts.width[at], column = i - row * parts.width[at];
        const UNIT* from = (const UNIT*)parts.from[at] + (long long)row * parts.from_pitch[at];
        UNIT* to = (UNIT*)parts.to[at] + (long long)row * parts.to_pitch[at];
        to[column] = from[column];
    }
}
