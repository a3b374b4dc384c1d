// Sums over images, many in one launch: the last part of every gradient.
//
// A job makes out (rows, columns) of b (n, columns) and, where there is one, a (n, rows): the sum over n of a^T b, or,
// without a, of b alone (rows is 1 then), times scale. A block owns 16 rows and 32 columns of a job's result, or without
// a 32 columns; `first` is the number of a job's first block. Sums run over n in one fixed order.
// Requires: blockDim.x 256; `first` ascending from 0, and beyond every block where there is no job.
#include "common.cuh"

#define JOBS 64
#define THREADS_A_BLOCK 256
constexpr int TILE_ROWS = 16, TILE_COLUMNS = 32, TEAMS = THREADS_A_BLOCK / TILE_COLUMNS, STEP = 128;
static_assert(TILE_ROWS * TILE_COLUMNS == 2 * THREADS_A_BLOCK, "a thread owns 2 rows of a column");

struct Jobs {
    unsigned long long a[JOBS], b[JOBS], out[JOBS];
    int n[JOBS], rows[JOBS], columns[JOBS], first[JOBS];
    double scale[JOBS];
};

extern "C" __global__ void __launch_bounds__(THREADS_A_BLOCK) sums(const Jobs jobs) {
    __shared__ REAL left[STEP * TILE_ROWS], right[STEP * TILE_COLUMNS];
    int job = 0;                           // the last one whose first block is not after this one
    for (int step = JOBS / 2; step > 0; step /= 2)
        if (jobs.first[job + step] <= (int)blockIdx.x) job += step;
    const REAL *a = (const REAL*)jobs.a[job], *b = (const REAL*)jobs.b[job];
    REAL* out = (REAL*)jobs.out[job];
    int n = jobs.n[job], rows = jobs.rows[job], columns = jobs.columns[job], block = blockIdx.x - jobs.first[job];
    int across = ceil_div(columns, TILE_COLUMNS), i = block / across * TILE_ROWS, j = block % across * TILE_COLUMNS;
    int column = threadIdx.x % TILE_COLUMNS, team = threadIdx.x / TILE_COLUMNS;
    REAL scale = (REAL)jobs.scale[job];
    if (!a) {
        REAL sum = 0;
        if (j + column < columns)
#pragma unroll 16
            for (int k = team; k < n; k += TEAMS) sum += b[k * columns + j + column];
        right[threadIdx.x] = sum;
        __syncthreads();
        if (team || j + column >= columns) return;
        for (int t = 1; t < TEAMS; ++t) sum += right[t * TILE_COLUMNS + column];
        out[j + column] = sum * scale;
        return;
    }
    REAL sum[2] = {};
    for (int k = 0; k < n; k += STEP) {
        __syncthreads();
#pragma unroll
        for (int e = threadIdx.x; e < STEP * TILE_ROWS; e += THREADS_A_BLOCK) {
            int r = k + e / TILE_ROWS, c = i + e % TILE_ROWS;
            left[e] = r < n && c < rows ? a[r * rows + c] : (REAL)0;
        }
#pragma unroll
        for (int e = threadIdx.x; e < STEP * TILE_COLUMNS; e += THREADS_A_BLOCK) {
            int r = k + e / TILE_COLUMNS, c = j + e % TILE_COLUMNS;
            right[e] = r < n && c < columns ? b[r * columns + c] : (REAL)0;
        }
        __syncthreads();
#pragma unroll 16
        for (int s = 0; s < STEP; ++s) {
            REAL value = right[s * TILE_COLUMNS + column];
            Pack<2> two = *(const Pack<2>*)&left[s * TILE_ROWS + team * 2];
            sum[0] += two.v[0] * value;
            sum[1] += two.v[1] * value;
        }
    }
    if (j + column >= columns) return;
#pragma unroll
    for (int e = 0; e < 2; ++e)
        if (i + team * 2 + e < rows) out[(i + team * 2 + e) * columns + j + column] = sum[e] * scale;
}
