// Means over a grid of windows that differ in size, and their gradient: x (n, c, h, w), y (n, c, oh, ow).
//
// Window i of oh has the rows from i h / oh, rounded down, to (i + 1) h / oh, rounded up, and so have the columns: some
// windows overlap, in one row or column. An element of y belongs to `lanes` threads, as a row in rows.cuh does, or to
// `splits` such teams, each of which leaves its part of the mean in y (splits, n, c, oh, ow). x is read in place, by
// the steps from one element of an axis to the next. If channels are next to each other, neighbouring teams are at
// neighbouring channels. An element of gx belongs to one thread, which adds up the shares of the windows that hold it,
// in their order.
// Requires: a one-dimensional grid of blocks of a multiple of 32 threads that covers size * lanes * splits, or size.
#include "include/common.cuh"
#include "include/rows.cuh"

// (a n + more) / count, rounded down; in 32 bits if they suffice, since a division of 64 bits takes five times as
// many instructions.
__device__ __forceinline__ int share(int a, int n, int count, int more) {
    return n < 1 << 15 && count < 1 << 15 ? (int)((unsigned)(a * n + more) / (unsigned)count)
                                          : (int)(((long long)a * n + more) / count);
}

// Where part i of `count` of n begins, and where it ends.
__device__ __forceinline__ int begin(int i, int n, int count) { return share(i, n, count, 0); }
__device__ __forceinline__ int end(int i, int n, int count) { return share(i + 1, n, count, count - 1); }

// Sizes; `size` is that of y, without splits; step: elements of x from one to the next of n, c, h and w.
struct Windows {
    int size, c, h, w, oh, ow, lanes, splits, step[4];
};

extern "C" __global__ void adaptive_avg_pool2d(const REAL* __restrict__ x, REAL* __restrict__ y, Windows g) {
    const int team = (int)(THREAD / g.lanes), lane = threadIdx.x % g.lanes, split = team / imax(1, g.size);
    const bool exists = g.size > 0 && split < g.splits;
    REAL sum = 0;
    int area = 1, at = 0;
    if (exists) {
        int c, i, j, n, rest = team - split * g.size;
        if (g.step[1] < g.step[3]) {
            c = rest % g.c, rest /= g.c;
            j = rest % g.ow, rest /= g.ow;
            i = rest % g.oh, n = rest / g.oh;
        } else {
            j = rest % g.ow, rest /= g.ow;
            i = rest % g.oh, rest /= g.oh;
            c = rest % g.c, n = rest / g.c;
        }
        at = ((n * g.c + c) * g.oh + i) * g.ow + j;
        const int top = begin(i, g.h, g.oh), left = begin(j, g.w, g.ow);
        int wide = end(j, g.w, g.ow) - left;
        area = (end(i, g.h, g.oh) - top) * wide;
        x += n * g.step[0] + c * g.step[1] + top * g.step[2] + left * g.step[3];
        if (wide * g.step[3] == g.step[2]) wide = area;  // its rows are one
        const int chunk = ceil_div(area, g.splits), first = split * chunk + lane, last = imin(area, (split + 1) * chunk);
        const int down = g.lanes / wide, right = g.lanes - down * wide;
        int r = first / wide, s = first - r * wide;
#pragma unroll 4
        for (int steps = first < last ? ceil_div(last - first, g.lanes) : 0; steps > 0; --steps) {
            sum += x[r * g.step[2] + s * g.step[3]];
            r += down;
            s += right;
            if (s >= wide) {
                s -= wide;
                ++r;
            }
        }
    }
    sum = reduce(sum, g.lanes, false);
    if (exists && lane == 0) y[split * g.size + at] = sum / area;
}

extern "C" __global__ void adaptive_avg_pool2d_grad_x(const REAL* gy, REAL* gx, int size, int h, int w, int oh,
                                                      int ow) {
    const int e = (int)THREAD;
    if (e >= size) return;
    const int s = e % w, r = e / w % h;
    const REAL* plane = gy + (long long)(e / w / h) * oh * ow;
    // Row r is in the windows from r oh / h, rounded down, to before (r + 1) oh / h, rounded up: as windows have rows
    const int first = begin(s, ow, w), last = end(s, ow, w);
    REAL sum = 0;
    for (int i = begin(r, oh, h), below = end(r, oh, h); i < below; i++) {
        const int high = end(i, h, oh) - begin(i, h, oh);
        for (int j = first; j < last; j++) sum += plane[i * ow + j] / (high * (end(j, w, ow) - begin(j, w, ow)));
    }
    gx[e] = sum;
}
