// Sums over images: the last part of every gradient. A generated kernel (region/emit.py) is made of these: its blocks
// share out the jobs, each some of the results of one.
//
// All sizes are known when the kernel is compiled. `block` counts a job's own blocks from 0; `memory` is shared,
// STAGES * STEP * (TALL + WIDE) numbers. Sums run over the N images in one fixed order. Requires: blockDim.x SUM_THREADS.
#include "include/common.cuh"

constexpr int SUM_THREADS = 256;
constexpr int STEP = 128, STAGES = 2;         // images of a product that are taken at once, and steps copied ahead + 1
constexpr int TALL = 16, WIDE = 32;           // rows and columns of a product's tile
static_assert(TALL * WIDE == 16 * 32, "a warp has a tile, and a thread 4 rows and 4 columns of it");

// Start copying rows of a matrix (N, COLUMNS) from row k and column j on, zeros beyond it, as (STEP, ACROSS).
template <int ACROSS, int N, int COLUMNS>
__device__ __forceinline__ void load_tile(REAL* to, const REAL* from, int k, int j) {
    constexpr int V = COLUMNS % 4 ? 1 : 4;
#pragma unroll
    for (int e = threadIdx.x * V; e < STEP * ACROSS; e += SUM_THREADS * V) {
        int r = k + e / ACROSS, c = j + e % ACROSS;
        start_copy((Pack<V>*)&to[e], (const Pack<V>*)&from[r * COLUMNS + c], r < N && c < COLUMNS);
    }
}

// out (ROWS, COLUMNS) = scale * a^T b for a (N, ROWS), b (N, COLUMNS). A block owns TALL rows and WIDE columns, a warp
// all of these for some of the images. Later images are copied while these are multiplied.
template <int N, int ROWS, int COLUMNS>
__device__ __forceinline__ void product(REAL* memory, int block, const REAL* a, const REAL* b, REAL* out, REAL scale) {
    constexpr int BLOCKS = (COLUMNS + WIDE - 1) / WIDE;  // side by side
    constexpr int STEPS = (N + STEP - 1) / STEP, WARPS = SUM_THREADS / 32, SIZE = STEP * (TALL + WIDE);
    int i0 = block / BLOCKS * TALL, j0 = block % BLOCKS * WIDE;
    int warp = threadIdx.x / 32, i = threadIdx.x % 32 / 8 * 4, j = threadIdx.x % 8 * 4;
    Pack<4> sum[4] = {};
    for (int step = 0; step < STEPS + STAGES - 1; ++step) {
        if (step < STEPS) {
            REAL* to = memory + step % STAGES * SIZE;
            load_tile<TALL, N, ROWS>(to, a, step * STEP, i0);
            load_tile<WIDE, N, COLUMNS>(to + STEP * TALL, b, step * STEP, j0);
        }
        end_copies();
        if (step < STAGES - 1) continue;
        await_copies<STAGES - 1>();
        __syncthreads();
        const REAL *left = memory + (step - STAGES + 1) % STAGES * SIZE, *right = left + STEP * TALL;
#pragma unroll 8
        for (int s = warp; s < (N < STEP ? N : STEP); s += WARPS) {
            Pack<4> x = *(const Pack<4>*)&left[s * TALL + i], y = *(const Pack<4>*)&right[s * WIDE + j];
#pragma unroll
            for (int e = 0; e < 16; ++e) sum[e / 4].v[e % 4] += x.v[e / 4] * y.v[e % 4];
        }
        __syncthreads();
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) *(Pack<4>*)&memory[(warp * TALL + i + e) * WIDE + j] = sum[e];
    __syncthreads();
#pragma unroll
    for (int e = threadIdx.x; e < TALL * WIDE; e += SUM_THREADS) {
        int row = i0 + e / WIDE, column = j0 + e % WIDE;
        REAL total = memory[e];
#pragma unroll
        for (int k = 1; k < WARPS; ++k) total += memory[k * TALL * WIDE + e];
        if (row < ROWS && column < COLUMNS) out[row * COLUMNS + column] = total * scale;
    }
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
