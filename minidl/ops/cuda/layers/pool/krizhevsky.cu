// Average pooling by windows that tile the image, and its gradient: the averaging kernel of Krizhevsky 2009, section
// 6.3, and the supersampling kernel of section 6.5, for windows of any KH x KW instead of 4 x 4.
//
// x and dx (planes, oh * KH, w), y and gy (planes, oh, ow) with w = ow * KW. As windows tile the planes, all planes
// below each other are one tall plane of `rows` = planes * oh rows of windows. A block owns `band` of these rows,
// the last block fewer; the paper's block owns one plane. A thread owns every blockDim.x-th column of height KH in
// the band: neighbours are at neighbouring elements of x and dx in each of the KH steps.
// Requires: shared memory of KW * pitch elements (average) or band * ow (gradient); pitch >= band * ow.
#include "include/common.cuh"
#include "include/act.cuh"

#ifndef KH
#define KH 4
#endif
#ifndef KW
#define KW 4
#endif
static_assert(KH > 0 && KW > 0, "a window has at least one row and one column");

#define SHARE ((REAL)(1.0 / (KH * KW)))

// Each thread sums its column of a window into shared memory, which holds element (q, window) at q * pitch + window:
// the KW column sums of one window are below each other. Then one thread per window adds them up. With pitch = 32 / KW
// modulo 32 the KW rows that neighbouring threads write to start in different banks; the paper's 4 x 64 array with 8
// columns of padding is this.
extern "C" __global__ void avg_pool2d_tiled(const REAL* x, REAL* y, int rows, int band, int w, int ow, int pitch) {
    extern __shared__ __align__(8) unsigned char memory[];
    REAL* columns = (REAL*)memory;
    int first = blockIdx.x * band, live = imin(band, rows - first);
    x += first * KH * w, y += first * ow;
    for (int i = threadIdx.x; i < live * w; i += blockDim.x) {
        int a = i / w, s = i % w;
        const REAL* top = x + a * KH * w + s;
        REAL sum = 0;
        for (int p = 0; p < KH; p++) sum += top[p * w];
        columns[s % KW * pitch + a * ow + s / KW] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < live * ow; i += blockDim.x) {
        REAL sum = 0;
        for (int q = 0; q < KW; q++) sum += columns[q * pitch + i];
        y[i] = sum * SHARE;
    }
}

// The block's part of gy goes to shared memory, already divided by KH * KW; then each thread reads the value of its
// column's window, KW neighbours the same one, and writes it to the KH rows: with AFTER, through the activation before
// the pooling, which computed y (planes, oh * KH, w).
extern "C" __global__ void avg_pool2d_tiled_grad_x(const REAL* __restrict__ gy, const REAL* __restrict__ y,
                                                   REAL* __restrict__ dx, int rows, int band, int w, int ow) {
    extern __shared__ __align__(8) unsigned char memory[];
    REAL* shares = (REAL*)memory;
    int first = blockIdx.x * band, live = imin(band, rows - first);
    gy += first * ow, dx += first * KH * w;
    if (AFTER) y += first * KH * w;
    for (int i = threadIdx.x; i < live * ow; i += blockDim.x) shares[i] = gy[i] * SHARE;
    __syncthreads();
    for (int i = threadIdx.x; i < live * w; i += blockDim.x) {
        int a = i / w, s = i % w;
        int top = a * KH * w + s;
        REAL share = shares[a * ow + s / KW];
        for (int p = 0; p < KH; p++) dx[top + p * w] = AFTER ? ACT_GRAD(share, y[top + p * w]) : share;
    }
}
