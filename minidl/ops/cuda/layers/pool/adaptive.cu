// Means over a grid of windows that differ in size, and their gradient: x (planes, h, w), y (planes, oh, ow).
//
// Window i of oh has the rows from i h / oh, rounded down, to (i + 1) h / oh, rounded up, and so have the columns: some
// windows overlap, in one row or column. An element of y belongs to `lanes` threads, as a row in rows.cuh does; an
// element of gx to one thread, which adds up the shares of the windows that hold it, in their order.
// Requires: a one-dimensional grid of blocks of a multiple of 32 threads that covers size * lanes, or size.
#include "include/common.cuh"
#include "include/rows.cuh"

// (a n + more) / count, rounded down; of 32 bits where these do, since a division of 64 takes five times as many instructions.
__device__ __forceinline__ int share(int a, int n, int count, int more) {
    return n < 1 << 15 && count < 1 << 15 ? (int)((unsigned)(a * n + more) / (unsigned)count)
                                          : (int)(((long long)a * n + more) / count);
}

// Where part i of `count` of n begins, and where it ends.
__device__ __forceinline__ int begin(int i, int n, int count) { return share(i, n, count, 0); }
__device__ __forceinline__ int end(int i, int n, int count) { return share(i + 1, n, count, count - 1); }

extern "C" __global__ void adaptive_avg_pool2d(const REAL* x, REAL* y, int size, int h, int w, int oh, int ow,
                                               int lanes) {
    const int e = (int)(THREAD / lanes), lane = threadIdx.x % lanes;
    const bool exists = e < size;
    REAL sum = 0;
    int area = 1;
    if (exists) {
        const int j = e % ow, i = e / ow % oh;
        const int top = begin(i, h, oh), left = begin(j, w, ow), wide = end(j, w, ow) - left;
        area = (end(i, h, oh) - top) * wide;
        const REAL* window = x + ((long long)(e / ow / oh) * h + top) * w + left;
        for (int t = lane; t < area; t += lanes) sum += window[(long long)(t / wide) * w + t % wide];
    }
    sum = reduce(sum, lanes, false);
    if (exists && lane == 0) y[e] = sum / area;
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
