// Products of thin or tiny matrices as dot products: out[b, i, k] = sum over j of x[b, i, j] y[b, j, k], plus a bias.
//
// Matrices may have any order in memory: each axis has its stride. The batch has up to two axes. A team of `lanes`
// threads (rows.cuh) owns a run of `chunk` of the depth for -DROWS results of a column, which share y's elements and
// are evenly spaced, so that neighbouring threads read and write neighbours. Results of several runs leave parts
// (results, splits), which dots_finish adds up in an order that sizes alone decide.
// Requires: blockDim.x 256; lanes a power of two up to 32, or 256; lanes 1 if ROWS > 1; cols 1 if splits > 1.
#include "include/common.cuh"
#include "include/rows.cuh"

#ifndef ROWS
#define ROWS 1
#endif

constexpr int AT_ONCE = 4 / ROWS;         // steps whose reads of x are under way, of one line or of several

struct Dots {
    int batches, near, rows, cols, depth;  // near: how many of all batches are of the near axis
    int x_far, x_near, x_row, x_depth, y_far, y_near, y_col, y_depth;  // elements from one to the next
    int bias_row, bias_col;
    int lanes, splits, chunk;
};

extern "C" __global__ void __launch_bounds__(256)
    dots(const REAL* __restrict__ x, const REAL* __restrict__ y, const REAL* __restrict__ bias, REAL* __restrict__ out,
         Dots p) {
    const unsigned team = THREAD / p.lanes, lane = THREAD % p.lanes, each = ceil_div(p.rows, ROWS);
    const unsigned col = team % p.cols, line = team / p.cols, row = line % each, rest = line / each;
    const unsigned batch = rest % p.batches, split = rest / p.batches, far = batch / p.near, near = batch % p.near;
    const bool there = split < p.splits;
    const REAL* xs = x + (far * p.x_far + near * p.x_near + row * p.x_row);
    const REAL* ys = y + (far * p.y_far + near * p.y_near + col * p.y_col);
    const int begin = split * p.chunk, end = there ? imin(p.depth, begin + p.chunk) : 0;
    const int apart = each * p.x_row;
    REAL sum[ROWS] = {};
#pragma unroll (AT_ONCE)
    for (int j = begin + lane; j < end; j += p.lanes) {
        const REAL value = ys[j * p.y_depth];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (r == 0 || row + r * each < p.rows) sum[r] += xs[j * p.x_depth + r * apart] * value;
    }
    if (ROWS == 1) sum[0] = reduce(sum[0], p.lanes, false);
    if (!there || lane) return;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const unsigned i = row + r * each;
        if (i >= p.rows) break;
        if (bias && p.splits == 1) sum[r] += bias[i * p.bias_row + col * p.bias_col];
        out[((batch * p.rows + i) * p.cols + col) * p.splits + split] = sum[r];
    }
}

// parts (results, splits) -> out, by a team of `lanes` threads for each result
extern "C" __global__ void __launch_bounds__(256)
    dots_finish(const REAL* __restrict__ parts, const REAL* __restrict__ bias, REAL* __restrict__ out, int lanes,
                Dots p) {
    const unsigned at = THREAD / lanes, lane = THREAD % lanes;
    const bool there = at < p.batches * p.rows;
    REAL sum = 0;
    for (int s = lane; s < (there ? p.splits : 0); s += lanes) sum += parts[at * p.splits + s];
    sum = reduce(sum, lanes, false);
    if (there && lane == 0) out[at] = bias ? sum + bias[at % p.rows * p.bias_row] : sum;
}
