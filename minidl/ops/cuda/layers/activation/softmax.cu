// Softmax and log softmax along one axis, and their gradients (Krizhevsky 2009, section 5).
//
// The array is (outer, size, inner) with `size` the axis: a row is `size` elements `inner` apart, and there are
// rows = outer * inner of them. `lanes` threads own a row (rows.cuh) and walk over it, each touching only its own
// elements between the exchanges; a block of b threads owns b / lanes rows. Neighbouring threads are at neighbouring
// elements when inner is 1, and with lanes = 1 when it is not.
// Requires: blockDim.x a multiple of lanes and of 32; lanes a power of two up to 32, or blockDim.x.
#include "include/common.cuh"
#include "include/rows.cuh"

struct Row {
    int at, lane, size;
};  // first element, this thread's place, elements: 0 where there is no row

__device__ __forceinline__ Row my_row(int rows, int size, int inner, int lanes) {
    unsigned row = THREAD / lanes;
    if (row >= rows) return {0, 0, 0};
    return {(int)(row / inner * inner * size + row % inner), (int)(THREAD % lanes), size};
}

extern "C" __global__ void softmax(const REAL* x, REAL* y, int rows, int size, int inner, int lanes) {
    Row row = my_row(rows, size, inner, lanes);
    x += row.at, y += row.at;
    REAL top = largest(x, row.size, inner, row.lane, lanes), sum = 0;
    for (int i = row.lane; i < row.size; i += lanes) sum += y[i * inner] = exp(x[i * inner] - top);
    sum = reduce(sum, lanes, false);
    for (int i = row.lane; i < row.size; i += lanes) y[i * inner] /= sum;
}

extern "C" __global__ void softmax_grad_x(const REAL* gy, const REAL* y, REAL* gx, int rows, int size, int inner,
                                          int lanes) {
    Row row = my_row(rows, size, inner, lanes);
    gy += row.at, y += row.at, gx += row.at;
    REAL sum = 0;
    for (int i = row.lane; i < row.size; i += lanes) sum += gy[i * inner] * y[i * inner];
    sum = reduce(sum, lanes, false);
    for (int i = row.lane; i < row.size; i += lanes) gx[i * inner] = y[i * inner] * (gy[i * inner] - sum);
}

extern "C" __global__ void log_softmax(const REAL* x, REAL* y, int rows, int size, int inner, int lanes) {
    Row row = my_row(rows, size, inner, lanes);
    REAL top, log_sum;
    log_softmax_row(x + row.at, y + row.at, row.size, inner, row.lane, lanes, top, log_sum);
}

extern "C" __global__ void log_softmax_grad_x(const REAL* gy, const REAL* y, REAL* gx, int rows, int size, int inner,
                                              int lanes) {
    Row row = my_row(rows, size, inner, lanes);
    gy += row.at, y += row.at, gx += row.at;
    REAL sum = 0;
    for (int i = row.lane; i < row.size; i += lanes) sum += gy[i * inner];
    sum = reduce(sum, lanes, false);
    for (int i = row.lane; i < row.size; i += lanes) gx[i * inner] = gy[i * inner] - exp(y[i * inner]) * sum;
}
