// Sums over images: the last part of every gradient. A generated kernel (region/emit.py) is made of these: its blocks
// share out the jobs, each some of the results of one.
//
// All sizes are known when the kernel is compiled. `block` counts a job's own blocks from 0; `memory` is shared, STEP *
// (TALL + WIDE) numbers. Sums run over the N images in one fixed order. Requires: blockDim.x SUM_THREADS.
#include "include/common.cuh"

constexpr int SUM_THREADS = 256, STEP = 128;  // STEP: images of a product that are taken at once
constexpr int TALL = 16, WIDE = 32;           // rows and columns of a product's tile
static_assert(SUM_THREADS == 8 * WIDE && TALL == 16, "8 warps, in a product 2 teams of 4: a thread owns 4 rows");

// Rows of a matrix (N, COLUMNS) from row k and column j on, zeros beyond it, as (STEP, ACROSS).
template <int ACROSS, int N, int COLUMNS>
__device__ __forceinline__ void load_tile(REAL* to, const REAL* from, int k, int j) {
    constexpr int V = COLUMNS % 4 ? 1 : 4;
#pragma unroll
    for (int e = threadIdx.x * V; e < STEP * ACROSS; e += SUM_THREADS * V) {
        int r = k + e / ACROSS, c = j + e % ACROSS;
        *(Pack<V>*)&to[e] = r < N && c < COLUMNS ? *(const Pack<V>*)&from[r * COLUMNS + c] : Pack<V>();
    }
}

// out (ROWS, COLUMNS) = scale * a^T b for a (N, ROWS), b (N, COLUMNS). A block owns TALL rows and WIDE columns, a thread
// 4 rows of a column for every other image.
template <int N, int ROWS, int COLUMNS>
__device__ __forceinline__ void product(REAL* memory, int block, const REAL* a, const REAL* b, REAL* out, REAL scale) {
    constexpr int BLOCKS = (COLUMNS + WIDE - 1) / WIDE;  // side by side
    REAL *left = memory, *right = memory + STEP * TALL, sum[4] = {};
    int i0 = block / BLOCKS * TALL, j0 = block % BLOCKS * WIDE;
    int lane = threadIdx.x % WIDE, i = threadIdx.x / WIDE % 4 * 4, team = threadIdx.x / (4 * WIDE);
    for (int k = 0; k < N; k += STEP) {
        __syncthreads();
        load_tile<TALL, N, ROWS>(left, a, k, i0);
        load_tile<WIDE, N, COLUMNS>(right, b, k, j0);
        __syncthreads();
#pragma unroll 16
        for (int s = team; s < (N < STEP ? N : STEP); s += 2) {
            REAL value = right[s * WIDE + lane];
            Pack<4> four = *(const Pack<4>*)&left[s * TALL + i];
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[e] += four.v[e] * value;
        }
    }
    __syncthreads();
    if (team)
#pragma unroll
        for (int e = 0; e < 4; ++e) memory[(i + e) * WIDE + lane] = sum[e];
    __syncthreads();
    if (team || j0 + lane >= COLUMNS) return;
#pragma unroll
    for (int e = 0; e < 4; ++e)
        if (i0 + i + e < ROWS)
            out[(i0 + i + e) * COLUMNS + j0 + lane] = (sum[e] + memory[(i + e) * WIDE + lane]) * scale;
}

// out (COLUMNS) = scale * the sum of b (N, COLUMNS). A block owns WIDE columns, which its 8 warps share out.
template <int N, int COLUMNS>
__device__ __forceinline__ void sum(REAL* memory, int block, const REAL* b, REAL* out, REAL scale) {
    int lane = threadIdx.x % WIDE, team = threadIdx.x / WIDE, column = block * WIDE + lane;
    REAL total = 0;
    if (column < COLUMNS)
#pragma unroll 16
        for (int k = team; k < N; k += SUM_THREADS / WIDE) total += b[k * COLUMNS + column];
    memory[threadIdx.x] = total;
    __syncthreads();
    if (team || column >= COLUMNS) return;
#pragma unroll
    for (int t = 1; t < SUM_THREADS / WIDE; ++t) total += memory[t * WIDE + lane];
    out[column] = total * scale;
}
