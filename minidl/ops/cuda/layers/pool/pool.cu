// Average and max pooling of any window, stride and padding, and their gradients.
//
// x and dx are images of h by w pixels; y, gy and index of oh by ow. index = p * kw + q is the element of the window
// that won, a WINNER: int, or unsigned char. -DLAYOUT says how images are in memory (layout.cuh): in NCHW each plane is an
// image of one channel, so that g.n counts planes; in NHWC images may be stored in bfloat16.
//
// A thread owns the runs THREAD, THREAD + THREADS, ... of its result (image.cuh); any grid and block will do. Gradients
// gather, in the order of the windows' rows and columns, so that no two threads write to one place; those of maxima for
// squares of 2x2 runs. If windows are side by side (_apart), a thread reads a run of a window's gradient once, and
// writes the gradient of all that the window held. Kernels that also sum over each channel (_b) walk PixelRuns in blocks
// of up to 256 threads.
#include "include/layout.cuh"
#include "include/image.cuh"

#ifndef WINNER
#define WINNER int
#endif
static_assert(LAYOUT == NHWC || WIDE == 1, "in NCHW neighbouring numbers are neighbouring columns");

__device__ __forceinline__ int channels_of(const Window& g) { return LAYOUT == NHWC ? g.c : 1; }

// Image, row, column and first channel of a run.
struct At {
    int image, row, column, channel;

    __device__ __forceinline__ At(unsigned element, int height, int width, const Window& g) {
        const unsigned pixel = element / channels_of(g), line = pixel / width;
        channel = element - pixel * channels_of(g);
        column = pixel - line * width;
        image = line / height;
        row = line - image * height;
    }

    // Where the run is in images of height by width pixels, if it is at a row and a column of them
    __device__ __forceinline__ int in(int height, int width, int row, int column, const Window& g) const {
        return ((image * height + row) * width + column) * channels_of(g) + channel;
    }
};

// The winners of a run's windows.
struct Winners {
    int v[WIDE];
};

__device__ __forceinline__ void store(WINNER* at, const Winners& winners) {
#if WIDE % 4
#pragma unroll
    for (int e = 0; e < WIDE; ++e) at[e] = winners.v[e];
#else
    Pack<WIDE / 4> pack;
#pragma unroll
    for (int i = 0; i < WIDE / 4; ++i) {
        const int* v = winners.v + 4 * i;
        pack.v[i] = __uint_as_float((unsigned)v[0] | (unsigned)v[1] << 8 | (unsigned)v[2] << 16 | (unsigned)v[3] << 24);
    }
    *(Pack<WIDE / 4>*)at = pack;
#endif
}

__device__ __forceinline__ Winners load(const WINNER* at) {
    Winners winners;
#if WIDE % 4
#pragma unroll
    for (int e = 0; e < WIDE; ++e) winners.v[e] = at[e];
#else
    Pack<WIDE / 4> pack = *(const Pack<WIDE / 4>*)at;
#pragma unroll
    for (int e = 0; e < WIDE; ++e) winners.v[e] = __float_as_uint(pack.v[e / 4]) >> e % 4 * 8 & 0xff;
#endif
    return winners;
}

// The windows [first, end) along one axis that hold position r, or another position up to `more` after it.
struct Range {
    int first, end;

    __device__ __forceinline__ Range(int r, int before, int size, int stride, int count, int more = 0)
        : first(first_meeting(r + before, size, stride)), end(imin((r + more + before) / stride + 1, count)) {}
};

extern "C" __global__ void max_pool2d(const STORE* __restrict__ x, STORE* __restrict__ y, WINNER* __restrict__ index,
                                      Window g) {
    const unsigned size = g.n * g.oh * g.ow * channels_of(g);
    for (unsigned i = THREAD * WIDE; i < size; i += THREADS * WIDE) {
        const At at(i, g.oh, g.ow, g);
        const int s = at.column * g.sw - g.left, r = at.row * g.sh - g.top;
        const STORE* image = x + at.in(g.h, g.w, 0, 0, g);
        Run best;
        Winners where;
#pragma unroll
        for (int e = 0; e < WIDE; ++e) {
            best.v[e] = -__int_as_float(0x7f800000);
            where.v[e] = -1;
        }
        for (int p = imax(0, -r); p < imin(g.kh, g.h - r); p++)
            for (int q = imax(0, -s); q < imin(g.kw, g.w - s); q++) {
                const Run run = load(image + ((r + p) * g.w + s + q) * channels_of(g));
                // the first element wins unless a later one is larger, or is NaN; the last NaN wins
#pragma unroll
                for (int e = 0; e < WIDE; ++e)
                    if (where.v[e] < 0 || run.v[e] > best.v[e] || run.v[e] != run.v[e])
                        best.v[e] = run.v[e], where.v[e] = p * g.kw + q;
            }
        store(y + i, best);
        store(index + i, where);
    }
}

// What windows give back, by their number in gy, and where to. If y is given, it is what the windows computed: only what
// is above 0 passes. An image has high by wide things for threads to own.
struct Given {
    const STORE* __restrict__ gy;
    const WINNER* __restrict__ index;
    const STORE* __restrict__ y;
    STORE* __restrict__ dx;
    const Window& g;
    int high, wide;

    __device__ __forceinline__ Run passed(unsigned from) const {
        Run run = load(gy + from), known = {};
        if (y) known = load(y + from);
#pragma unroll
        for (int e = 0; e < WIDE; ++e) run.v[e] = y && known.v[e] <= 0 ? (REAL)0 : run.v[e] + (REAL)0;
        return run;
    }
};

// Adds up what the windows that hold a square of 2x2 runs of the image give back to it, and stores it. A window is read
// once for all four runs of a square.
struct Gathered : Given {
    __device__ __forceinline__ Run operator()(unsigned element) const {
        const At at(element, high, wide, g);
        const int row = at.row * 2, column = at.column * 2;
        const Range rows(row, g.top, g.kh, g.sh, g.oh, 1), columns(column, g.left, g.kw, g.sw, g.ow, 1);
        Run sums[4] = {}, all = {};
        for (int a = rows.first; a < rows.end; a++)
            for (int b = columns.first; b < columns.end; b++) {
                const int p = row + g.top - a * g.sh, q = column + g.left - b * g.sw;
                const unsigned from = at.in(g.oh, g.ow, a, b, g);
                const Run run = passed(from);
                const Winners winners = load(index + from);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int r = p + i / 2, s = q + i % 2;
                    const int own = (unsigned)r < (unsigned)g.kh && (unsigned)s < (unsigned)g.kw ? r * g.kw + s : -1;
#pragma unroll
                    for (int e = 0; e < WIDE; ++e)
                        if (winners.v[e] == own) sums[i].v[e] += run.v[e];
                }
            }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (row + i / 2 >= g.h || column + i % 2 >= g.w) continue;
            store(dx + at.in(g.h, g.w, row + i / 2, column + i % 2, g), sums[i]);
#pragma unroll
            for (int e = 0; e < WIDE; ++e) all.v[e] += sums[i].v[e];
        }
        return all;
    }
};

// Stores what a window gives back to all that it held, for windows that are side by side. Those beyond oh by ow are cut
// off, and give nothing.
struct Scattered : Given {
    __device__ __forceinline__ Run operator()(unsigned element) const {
        const At at(element, high, wide, g);
        Run run = {};
        Winners winners = {};
        if (at.row < g.oh && at.column < g.ow) {
            const unsigned from = at.in(g.oh, g.ow, at.row, at.column, g);
            run = passed(from);
            winners = load(index + from);
        }
        const int row = at.row * g.kh, column = at.column * g.kw;
        for (int p = 0; p < imin(g.kh, g.h - row); ++p)
            for (int q = 0; q < imin(g.kw, g.w - column); ++q) {
                Run own;
#pragma unroll
                for (int e = 0; e < WIDE; ++e) own.v[e] = winners.v[e] == p * g.kw + q ? run.v[e] : (REAL)0;
                store(dx + at.in(g.h, g.w, row + p, column + q, g), own);
            }
        return run;
    }
};

template <class Owned> __device__ __forceinline__ void each(const Owned& given) {
    const unsigned size = given.g.n * given.high * given.wide * channels_of(given.g);
    for (unsigned i = THREAD * WIDE; i < size; i += THREADS * WIDE) given(i);
}

extern "C" __global__ void max_pool2d_grad_x(const STORE* __restrict__ gy, const WINNER* __restrict__ index,
                                             const STORE* __restrict__ y, STORE* __restrict__ dx, Window g, int high,
                                             int wide) {
    each(Gathered{{gy, index, y, dx, g, high, wide}});
}

extern "C" __global__ void max_pool2d_grad_x_apart(const STORE* __restrict__ gy, const WINNER* __restrict__ index,
                                                   const STORE* __restrict__ y, STORE* __restrict__ dx, Window g,
                                                   int high, int wide) {
    each(Scattered{{gy, index, y, dx, g, high, wide}});
}

extern "C" __global__ void avg_pool2d(const STORE* __restrict__ x, STORE* __restrict__ y, Window g) {
    const unsigned size = g.n * g.oh * g.ow * channels_of(g);
    const REAL share = (REAL)1 / (REAL)(g.kh * g.kw);
    for (unsigned i = THREAD * WIDE; i < size; i += THREADS * WIDE) {
        const At at(i, g.oh, g.ow, g);
        const int s = at.column * g.sw - g.left, r = at.row * g.sh - g.top;
        const STORE* image = x + at.in(g.h, g.w, 0, 0, g);
        Run sum = {};
        for (int p = imax(0, -r); p < imin(g.kh, g.h - r); p++)
#pragma unroll 4
            for (int q = imax(0, -s); q < imin(g.kw, g.w - s); q++) {
                const Run run = load(image + ((r + p) * g.w + s + q) * channels_of(g));
#pragma unroll
                for (int e = 0; e < WIDE; ++e) sum.v[e] += run.v[e];
            }
#pragma unroll
        for (int e = 0; e < WIDE; ++e) sum.v[e] *= share;
        store(y + i, sum);
    }
}

// y: what the activation before the pooling computed, if AFTER says that there is one
extern "C" __global__ void avg_pool2d_grad_x(const STORE* __restrict__ gy, const STORE* __restrict__ y,
                                             STORE* __restrict__ dx, Window g) {
    const unsigned size = g.n * g.h * g.w * channels_of(g);
    const REAL share = (REAL)1 / (REAL)(g.kh * g.kw);
    for (unsigned i = THREAD * WIDE; i < size; i += THREADS * WIDE) {
        const At at(i, g.h, g.w, g);
        const Range rows(at.row, g.top, g.kh, g.sh, g.oh), columns(at.column, g.left, g.kw, g.sw, g.ow);
        Run sum = {}, known = {};
        for (int a = rows.first; a < rows.end; a++)
            for (int b = columns.first; b < columns.end; b++) {
                const Run run = load(gy + at.in(g.oh, g.ow, a, b, g));
#pragma unroll
                for (int e = 0; e < WIDE; ++e) sum.v[e] += run.v[e];
            }
        if (AFTER) known = load(y + i);
#pragma unroll
        for (int e = 0; e < WIDE; ++e) sum.v[e] = before(sum.v[e] * share, known.v[e]);
        store(dx + i, sum);
    }
}

#if LAYOUT == NHWC
template <class Owned> struct Summed {
    const Owned& given;

    __device__ __forceinline__ void operator()(int at, float (&sum)[1][WIDE]) const {
        const Run run = given(at);
#pragma unroll
        for (int i = 0; i < WIDE; ++i) sum[0][i] += run.v[i];
    }
};

extern "C" __global__ void __launch_bounds__(256, 2)
    max_pool2d_grad_relu_b(const STORE* __restrict__ gy, const WINNER* __restrict__ index,
                                const STORE* __restrict__ y, STORE* __restrict__ dx, float* __restrict__ parts,
                                Window window, PixelRuns g, int high, int wide) {
    const Gathered gathered{{gy, index, y, dx, window, high, wide}};
    add_up<1>(Summed<Gathered>{gathered}, parts, g);
}

extern "C" __global__ void __launch_bounds__(256, 2)
    max_pool2d_grad_relu_b_apart(const STORE* __restrict__ gy, const WINNER* __restrict__ index,
                                      const STORE* __restrict__ y, STORE* __restrict__ dx, float* __restrict__ parts,
                                      Window window, PixelRuns g, int high, int wide) {
    const Scattered scattered{{gy, index, y, dx, window, high, wide}};
    add_up<1>(Summed<Scattered>{scattered}, parts, g);
}
#endif
