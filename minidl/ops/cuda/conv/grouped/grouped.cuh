// What the kernels of grouped convolution share: sizes, runs of channels, and which row a tap reads.
//
// LAYOUT is NCHW, where a thread has one channel (or map) and STORE is REAL, or NHWC, as in nhwc/image.cuh. Constants of
// the compilation: the filters' KH and KW, the stride SH and SW, DOWN and ACROSS, the distances of the pixels that a
// filter reads; PHASE, the remainder of the top padding by SH; and STRIP, how many rows a thread has.
#include "include/layout.cuh"
#include "include/act.cuh"
#if LAYOUT == NHWC
#include "include/nhwc/image.cuh"
#else
#define WIDE 1
#ifndef AFTER
#define AFTER 0
#endif

struct Run {
    REAL v[WIDE];
};

__device__ __forceinline__ Run load(const REAL* at) { return {*at}; }
__device__ __forceinline__ void store(REAL* at, const Run& run) { *at = run.v[0]; }
__device__ __forceinline__ REAL after(REAL x) { return AFTER ? ACT_VALUE(x) : x; }
#endif

#define TAPS (KH * KW)

// Sizes of a convolution, with the channels and the maps of a group. A block has `lanes` runs of channels side by side
// and beside them as many places, each a column of a strip of rows, as its threads allow; `places` is how many it takes.
struct Groups {
    int n, c, h, w, m, oh, ow, top, left, channels, maps, lanes, places;
};

constexpr int NONE = -(1 << 30);

// The row, counted from the first that a strip of results needs, which tap p reads for result t of the strip: of the
// image for y, or BACK, of the gradient for dx; NONE where that lies between two rows.
template <bool BACK> __device__ constexpr int row_of(int t, int p) {
    return !BACK ? t * SH + p * DOWN : (t + PHASE - p * DOWN) % SH ? NONE : (t + PHASE - p * DOWN) / SH;
}

template <bool BACK> __device__ constexpr bool is_read(int row) {
    for (int t = 0; t < STRIP; ++t)
        for (int p = 0; p < KH; ++p)
            if (row_of<BACK>(t, p) == row) return true;
    return false;
}

// A column of a strip of one image.
struct Place {
    int image, strip, column;

    __device__ __forceinline__ Place(unsigned number, int strips, int columns) {
        column = number % columns;
        number /= columns;
        strip = number % strips;
        image = number / strips;
    }
};
