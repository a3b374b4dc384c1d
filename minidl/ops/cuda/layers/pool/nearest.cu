// Each pixel several times, and the gradient: x and gx (rows, w), y and gy (rows * fh, w * fw), of all images' rows.
//
// A thread of `interpolate` owns a column of y over the fh rows of one of x, so it reads a pixel once and neighbours write
// neighbours; a thread of `interpolate_grad_x` owns a pixel, and adds up its fh * fw in order of their rows and columns.
// Requires: a one-dimensional grid that covers rows * w * fw, or rows * w.
#include "include/common.cuh"

extern "C" __global__ void interpolate(const REAL* __restrict__ x, REAL* __restrict__ y, int rows, int w, int fh,
                                       int fw) {
    const unsigned ow = w * fw, row = THREAD / ow, column = THREAD - row * ow;
    if (row >= rows) return;
    const REAL value = x[row * w + column / fw];
    for (int p = 0; p < fh; ++p) y[(row * fh + p) * ow + column] = value;
}

extern "C" __global__ void interpolate_grad_x(const REAL* __restrict__ gy, REAL* __restrict__ gx, int rows, int w, int fh,
                                              int fw) {
    const unsigned row = THREAD / w, column = THREAD - row * w;
    if (row >= rows) return;
    const REAL* top = gy + (row * fh * w + column) * fw;
    REAL sum = 0;
    for (int p = 0; p < fh; ++p)
        for (int q = 0; q < fw; ++q) sum += top[p * w * fw + q];
    gx[row * w + column] = sum;
}
