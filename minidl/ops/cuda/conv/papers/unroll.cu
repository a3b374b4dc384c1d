// Unrolled images: PMPP ch. 16, Figs. 16.15 to 16.18, for a convolution as a matrix product.
//
// unroll: x (nb,c,h,w) -> u (nb, c*kh*kw, oh*ow); row (c,p,q), column (i,j) holds
// x[c, i*sh + p - top, j*sw + q - left], or zero if that is padding. A thread owns one column and one channel of an
// image, and writes its kh*kw elements; neighbouring threads write neighbouring columns. col2im: the reverse, du -> dx;
// a thread owns one pixel and sums, in a fixed order, the elements of du that came from it. No two threads write to one
// place.
// Requires: one-dimensional grids that cover nb*c*oh*ow and nb*c*h*w; g.n is not read, nb may be 0.
#include "include/common.cuh"

extern "C" __global__ void unroll(const REAL* __restrict__ x, REAL* __restrict__ u, Geometry g, int nb) {
    const int outputs = g.oh * g.ow;
    const unsigned element = THREAD;
    if (element >= (unsigned)(nb * g.c * outputs)) return;
    const int map = element / outputs, column = element % outputs;  // map: image * channels + channel
    const int row = column / g.ow * g.sh - g.top, left = column % g.ow * g.sw - g.left;
    const REAL* plane = x + map * g.h * g.w;
    REAL* out = u + map * g.kh * g.kw * outputs + column;
    for (int p = 0; p < g.kh; p++) {
        for (int q = 0; q < g.kw; q++) {
            *out = inside(plane, row + p, left + q, g.h, g.w);
            out += outputs;
        }
    }
}

extern "C" __global__ void col2im(const REAL* __restrict__ du, REAL* __restrict__ dx, Geometry g, int nb) {
    const int pixels = g.h * g.w, outputs = g.oh * g.ow;
    const unsigned element = THREAD;
    if (element >= (unsigned)(nb * g.c * pixels)) return;
    const int map = element / pixels, row = element % pixels / g.w + g.top, column = element % g.w + g.left;
    const int i0 = first_meeting(row, g.kh, g.sh), i1 = last_meeting(row, g.sh, g.oh);
    const int j0 = first_meeting(column, g.kw, g.sw), j1 = last_meeting(column, g.sw, g.ow);
    const REAL* rows = du + map * g.kh * g.kw * outputs;
    REAL sum = 0;
    for (int i = i0; i <= i1; i++)
        for (int j = j0; j <= j1; j++)
            sum += rows[((row - i * g.sh) * g.kw + column - j * g.sw) * outputs + i * g.ow + j];
    dx[element] = sum;
}
