// Lab 10: a convolution of your own, with images of any stride and padding. Say here what a thread computes, and why.
#include "include/common.cuh"

// y[n][m][i][j] = b[m] + sum over c, p, q of x[n][c][i * sh - top + p][j * sw - left + q] * w[m][c][p][q]; b may be null.
// g has the sizes: g.n g.c g.h g.w g.m g.kh g.kw g.oh g.ow g.sh g.sw g.top g.left. inside(image, row, column, g.h, g.w) is
// a pixel, or 0 in the padding. THREAD is the number of the thread in the grid, ceil_div(a, b) rounds up. REAL is float.
extern "C" __global__ void mine_y(const REAL* x, const REAL* w, const REAL* b, REAL* y, Geometry g) {
    // TODO 1: several outputs per thread
}
