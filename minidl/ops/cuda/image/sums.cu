// Sums over images, many in one launch: the last part of every gradient.
//
// A job makes out (rows, columns) of b (n, columns) and, where there is one, a (n, rows): scale times the sum over n of
// a^T b, or, without a, of b alone (rows is 1 then). A block owns 16 rows and 64 columns of a job's product, a thread 4
// rows of a column; of a sum a block owns 32 columns, which 8 teams of threads share out. `first` is the number of a
// job's first block. Sums run over n in one fixed order.
// Requires: blockDim.x 256; `first` ascending from 0, and beyond every block where there is no job.
#include "common.cuh"

#define JOBS 64
#define THREADS_A_BLOCK 256
constexpr int ROWS = 16, COLUMNS = 64, STEP = 128;           // of a product, and the images that are taken at once
constexpr int WIDE = 32, TEAMS = THREADS_A_BLOCK / WIDE;     // of a sum
static_assert(ROWS * COLUMNS == 4 * THREADS_A_BLOCK, "a thread owns 4 rows of a column");

struct Jobs {
    unsigned long long a[JOBS], b[JOBS], out[JOBS];
    int n[JOBS], rows[JOBS], columns[JOBS], first[JOBS];
    double scale[JOBS];
};

// Rows of a matrix (n, columns) from row k and column j on, zeros beyond it.
template <int ACROSS> __device__ __forceinline__ void load_tile(REAL* to, const REAL* from, int k, int j, int n,
                                                                int columns) {
#pragma unroll
    for (int e = threadIdx.x; e < STEP * ACROSS; e += THREADS_A_BLOCK) {
        int r = k + e / ACROSS, c = j + e % ACROSS;
        to[e] = r < n && c < columns ? from[r * columns + c] : (REAL)0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS_A_BLOCK) sums(const Jobs jobs) {
    __shared__ __align__(16) REAL left[STEP * ROWS];
    __shared__ REAL right[STEP * COLUMNS];
    int job = 0;                           // the last one whose first block is not after this one
    for (int step = JOBS / 2; step > 0; step /= 2)
        if (jobs.first[job + step] <= (int)blockIdx.x) job += step;
    const REAL *a = (const REAL*)jobs.a[job], *b = (const REAL*)jobs.b[job];
    REAL *out = (REAL*)jobs.out[job], scale = (REAL)jobs.scale[job];
    int n = jobs.n[job], rows = jobs.rows[job], columns = jobs.columns[job], block = blockIdx.x - jobs.first[job];
    if (!a) {
        int lane = threadIdx.x % WIDE, team = threadIdx.x / WIDE, column = block * WIDE + lane;
        REAL sum = 0;
        if (column < columns)
#pragma unroll 16
            for (int k = team; k < n; k += TEAMS) sum += b[k * columns + column];
        right[threadIdx.x] = sum;
        __syncthreads();
        if (team || column >= columns) return;
        for (int t = 1; t < TEAMS; ++t) sum += right[t * WIDE + lane];
        out[column] = sum * scale;
        return;
    }
    int across = ceil_div(columns, COLUMNS), i0 = block / across * ROWS, j0 = block % across * COLUMNS;
    int i = threadIdx.x / COLUMNS * 4, j = threadIdx.x % COLUMNS;
    REAL sum[4] = {};
    for (int k = 0; k < n; k += STEP) {
        __syncthreads();
        load_tile<ROWS>(left, a, k, i0, n, rows);
        load_tile<COLUMNS>(right, b, k, j0, n, columns);
        __syncthreads();
#pragma unroll 16
        for (int s = 0; s < STEP; ++s) {
            REAL value = right[s * COLUMNS + j];
            Pack<4> four = *(const Pack<4>*)&left[s * ROWS + i];
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[e] += four.v[e] * value;
        }
    }
    if (j0 + j >= columns) return;
#pragma unroll
    for (int e = 0; e < 4; ++e)
        if (i0 + i + e < rows) out[(i0 + i + e) * columns + j0 + j] = sum[e] * scale;
}
