// Sums over the first axis, in a fixed order: out[j] = sum over i of parts[i, j], with parts (s, columns).
//
// A block owns 32 columns, and of the rows a share of `each`; its 8 rows of threads share them. With several shares out is
// (shares, columns), to be summed again. Thread (x, y) sums rows y, y + 8, ... of column x in
// four independent accumulators, so that four loads are under way at once; the 8 sums of a column meet in shared
// memory, in the order of y. Requires: a block of 32 x 8 threads. Rows may be none (zeros come out), columns any number.
#include "include/common.cuh"

#define COLUMNS 32
#define ROWS 8

extern "C" __global__ void __launch_bounds__(COLUMNS* ROWS)
    sum_first(const REAL* __restrict__ parts, REAL* __restrict__ out, int s, int columns, int each) {
    __shared__ REAL sums[ROWS][COLUMNS];
    const int column = blockIdx.x * COLUMNS + threadIdx.x;
    if (column < columns) {
        const REAL* at = parts + column;
        REAL sum[4] = {0, 0, 0, 0};
        const int end = imin(s, (blockIdx.y + 1) * each);
        int row = blockIdx.y * each + threadIdx.y;
        for (; row < end - 3 * ROWS; row += 4 * ROWS) {
#pragma unroll
            for (int k = 0; k < 4; k++) sum[k] += at[(row + k * ROWS) * columns];
        }
        for (; row < end; row += ROWS) sum[0] += at[row * columns];
        sums[threadIdx.y][threadIdx.x] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
        REAL sum = 0;
#pragma unroll
        for (int k = 0; k < ROWS; k++) sum += sums[k][threadIdx.x];
        out[blockIdx.y * columns + column] = sum;
    }
}
