// Convolution by its formula: PMPP ch. 16, Fig. 16.12 with its corrections, in the three directions.
//
// One thread owns one element of the result and sums all its terms in a fixed order, straight from global memory:
// an output of y, a pixel of dx, a filter element of dw (which loops over all images and output pixels).
// A block owns a run of elements that are neighbours in memory: neighbouring threads have neighbouring columns in NCHW,
// channels (of y and of filters: maps) in NHWC, images in CHWN (but for dw columns of filters, as in NCHW). Requires: a
// one-dimensional grid that covers the result; any number of images, any stride and padding. Terms that meet padding
// are left out by the bounds of the loops.
#include "include/layout.cuh"

// y[n,m,i,j] = b[m] + sum over c,p,q of x[n, c, i*sh + p - top, j*sw + q - left] * w[m,c,p,q]
extern "C" __global__ void conv2d_direct_y(const REAL* __restrict__ x, const REAL* __restrict__ w,
                                           const REAL* __restrict__ b, REAL* __restrict__ y, Geometry g) {
    const unsigned element = THREAD;
    if (element >= (unsigned)(g.n * g.m * g.oh * g.ow)) return;
    const Images in = images_x(g), out = images_y(g);
    const Filters filters = filters_of(g);
    const Element at = out.at(element);
    const int n = at.n, m = at.c, i = at.r, j = at.s;
    const int row = i * g.sh - g.top, column = j * g.sw - g.left;
    const int p0 = imax(0, -row), p1 = imin(g.kh, g.h - row);
    const int q0 = imax(0, -column), q1 = imin(g.kw, g.w - column);
    REAL sum = 0;
    for (int c = 0; c < g.c; c++) {
        const REAL* plane = x + in.plane(n, c);
        const REAL* filter = w + filters.plane(m, c);
        for (int p = p0; p < p1; p++)
            for (int q = q0; q < q1; q++)
                sum += plane[((row + p) * g.w + column + q) * in.step()] * filter[(p * g.kw + q) * filters.tap_step()];
    }
    y[element] = b ? sum + b[m] : sum;
}

// dx[n,c,r,s] = sum over m,i,j of gy[n,m,i,j] * w[m, c, r + top - i*sh, s + left - j*sw], if that is in the filter
extern "C" __global__ void conv2d_direct_dx(const REAL* __restrict__ gy, const REAL* __restrict__ w,
                                            REAL* __restrict__ dx, Geometry g) {
    const unsigned element = THREAD;
    if (element >= (unsigned)(g.n * g.c * g.h * g.w)) return;
    const Images in = images_y(g), out = images_x(g);
    const Filters filters = filters_of(g);
    const Element at = out.at(element);
    const int column = at.s + g.left, row = at.r + g.top, c = at.c, n = at.n;
    const int i0 = first_meeting(row, g.kh, g.sh), i1 = last_meeting(row, g.sh, g.oh);
    const int j0 = first_meeting(column, g.kw, g.sw), j1 = last_meeting(column, g.sw, g.ow);
    REAL sum = 0;
    for (int m = 0; m < g.m; m++) {
        const REAL* plane = gy + in.plane(n, m);
        const REAL* filter = w + filters.plane(m, c);
        for (int i = i0; i <= i1; i++)
            for (int j = j0; j <= j1; j++)
                sum += plane[(i * g.ow + j) * in.step()] *
                       filter[((row - i * g.sh) * g.kw + column - j * g.sw) * filters.tap_step()];
    }
    dx[element] = sum;
}

// dw[m,c,p,q] = sum over n,i,j of gy[n,m,i,j] * x[n, c, i*sh + p - top, j*sw + q - left]; an image's sum at a time,
// which keeps rounding errors small
extern "C" __global__ void conv2d_direct_dw(const REAL* __restrict__ gy, const REAL* __restrict__ x,
                                            REAL* __restrict__ dw, Geometry g) {
    const unsigned element = THREAD;
    if (element >= (unsigned)(g.m * g.c * g.kh * g.kw)) return;
    const Images of_y = images_y(g), of_x = images_x(g);
    const Element at = filters_of(g).at(element);
    const int m = at.n, c = at.c, p = at.r, q = at.s;
    const int down = g.top - p, right = g.left - q;  // output row i reads image row i*sh - down
    const int i0 = down > 0 ? ceil_div(down, g.sh) : 0, i1 = imin(g.oh, ceil_div(imax(0, g.h + down), g.sh));
    const int j0 = right > 0 ? ceil_div(right, g.sw) : 0, j1 = imin(g.ow, ceil_div(imax(0, g.w + right), g.sw));
    REAL sum = 0;
    for (int n = 0; n < g.n; n++) {
        const REAL* maps = gy + of_y.plane(n, m);
        const REAL* plane = x + of_x.plane(n, c);
        REAL image = 0;
        for (int i = i0; i < i1; i++)
            for (int j = j0; j < j1; j++)
                image += maps[(i * g.ow + j) * of_y.step()] *
                         plane[((i * g.sh - down) * g.w + j * g.sw - right) * of_x.step()];
        sum += image;
    }
    dw[element] = sum;
}
