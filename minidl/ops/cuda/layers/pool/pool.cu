// Average and max pooling of any window, stride and padding, and their gradients.
//
// x and dx (n, c, h, w); y, gy and index (n, c, oh, ow), index = p * kw + q the element of the window that won. A
// thread owns the elements THREAD, THREAD + THREADS, ... of its result; a block owns nothing; any grid and block will
// do.
// Gradients gather: the thread of an input element adds up the windows that hold it, in order of their rows and
// columns, so that no two threads write to one place.
#include "include/common.cuh"
#include "include/act.cuh"

// The windows [first, end) along one axis that hold position r.
struct Range {
    int first, end;
};

__device__ __forceinline__ Range windows_on(int r, int before, int size, int stride, int count) {
    int from_first = r + before;  // position in the padded input
    return {from_first < size ? 0 : (from_first - size) / stride + 1, imin(from_first / stride + 1, count)};
}

extern "C" __global__ void avg_pool2d(const REAL* x, REAL* y, Window g) {
    unsigned size = g.n * g.c * g.oh * g.ow;
    REAL share = (REAL)1 / (REAL)(g.kh * g.kw);
    for (unsigned i = THREAD; i < size; i += THREADS) {
        int s = i % g.ow * g.sw - g.left, r = i / g.ow % g.oh * g.sh - g.top;
        const REAL* plane = x + i / (g.oh * g.ow) * (g.h * g.w);
        REAL sum = 0;
        for (int q = 0; q < g.kw; q++) {
            REAL column = 0;
            for (int p = 0; p < g.kh; p++) column += inside(plane, r + p, s + q, g.h, g.w);
            sum += column;
        }
        y[i] = sum * share;
    }
}

// The sum of gy over the windows that hold element i of the input.
__device__ __forceinline__ REAL sum_over_windows(const REAL* gy, unsigned i, Window g) {
    Range rows = windows_on(i / g.w % g.h, g.top, g.kh, g.sh, g.oh);
    Range columns = windows_on(i % g.w, g.left, g.kw, g.sw, g.ow);
    const REAL* plane = gy + i / (g.h * g.w) * (g.oh * g.ow);
    REAL sum = 0;
    for (int a = rows.first; a < rows.end; a++)
        for (int b = columns.first; b < columns.end; b++) sum += plane[a * g.ow + b];
    return sum;
}

extern "C" __global__ void avg_pool2d_grad_x(const REAL* gy, REAL* dx, Window g) {
    unsigned size = g.n * g.c * g.h * g.w;
    REAL share = (REAL)1 / (REAL)(g.kh * g.kw);
    for (unsigned i = THREAD; i < size; i += THREADS) dx[i] = sum_over_windows(gy, i, g) * share;
}

// Through the activation before the pooling as well: y (n, c, h, w) is what it computed.
extern "C" __global__ void avg_pool2d_grad_act(const REAL* gy, const REAL* y, REAL* dx, Window g) {
    unsigned size = g.n * g.c * g.h * g.w;
    REAL share = (REAL)1 / (REAL)(g.kh * g.kw);
    for (unsigned i = THREAD; i < size; i += THREADS) dx[i] = ACT_GRAD(sum_over_windows(gy, i, g) * share, y[i]);
}

extern "C" __global__ void max_pool2d(const REAL* x, REAL* y, int* index, Window g) {
    unsigned size = g.n * g.c * g.oh * g.ow;
    for (unsigned i = THREAD; i < size; i += THREADS) {
        int s = i % g.ow * g.sw - g.left, r = i / g.ow % g.oh * g.sh - g.top;
        const REAL* plane = x + i / (g.oh * g.ow) * (g.h * g.w);
        REAL best = -__int_as_float(0x7f800000);
        int where = -1;
        for (int p = imax(0, -r); p < imin(g.kh, g.h - r); p++)
            for (int q = imax(0, -s); q < imin(g.kw, g.w - s); q++) {
                REAL value = plane[(r + p) * g.w + s + q];
                // the first of the largest elements wins; a NaN wins over all, and the last NaN wins
                if (where < 0 || value > best || value != value) best = value, where = p * g.kw + q;
            }
        y[i] = best;
        index[i] = where;
    }
}

extern "C" __global__ void max_pool2d_grad_x(const REAL* gy, const int* index, REAL* dx, Window g) {
    unsigned size = g.n * g.c * g.h * g.w;
    for (unsigned i = THREAD; i < size; i += THREADS) {
        int s = i % g.w, r = i / g.w % g.h;
        Range rows = windows_on(r, g.top, g.kh, g.sh, g.oh), columns = windows_on(s, g.left, g.kw, g.sw, g.ow);
        int plane = i / (g.h * g.w) * (g.oh * g.ow);
        REAL sum = 0;
        for (int a = rows.first; a < rows.end; a++)
            for (int b = columns.first; b < columns.end; b++) {
                int p = r + g.top - a * g.sh, q = s + g.left - b * g.sw, at = plane + a * g.ow + b;
                if (index[at] == p * g.kw + q) sum += gy[at];
            }
        dx[i] = sum;
    }
}
