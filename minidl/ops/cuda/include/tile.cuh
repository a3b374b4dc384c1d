// The joint register + shared-memory tiling (PMPP section 16.5), in one place: a block of 256 threads multiplies slabs
// of A (BK x BM) and B (BK x BN) in shared memory, depth first, and keeps the BM x BN sums in registers.
//
// -DBM: rows, 16, 32, 64 or 128. -DPRECISION: FP32 (fused multiply-adds, also for double), or on tensor cores TF32,
// TF32X3 or BF16. A kernel fills the slabs (its own way of finding elements), calls multiply_slabs, and gets its share
// of the sums through each(f): f(row, column, values) with WIDTH neighbouring columns.
#include "include/common.cuh"
#include "include/tensor_cores/mma.cuh"

constexpr int BN = 128;
constexpr int BK = sizeof(REAL) == 4 || BM <= 32 ? 16 : 8;  // two slabs of each matrix fit 48 KB
constexpr int BLOCK = 256;
// Tensor cores read 4 x 8 elements: rows start 8 banks apart. Elsewhere copies go along the depth.
constexpr int GAP = PRECISION == FP32 ? 4 : 8;
static_assert(BM == 16 || BM == 32 || BM == 64 || BM == 128, "BM must be 16, 32, 64 or 128: rows a block owns");

struct alignas(16) Slab {
    REAL a[BK][BM + GAP];
    REAL b[BK][BN + GAP];
};

#if PRECISION == FP32
// A thread owns BM/16 rows and two runs of 4 columns, 64 apart: then a warp's reads of b meet every bank once.
struct Product {
    static constexpr int ROWS = BM / 16, WIDTH = 4, V = ROWS % 4 ? ROWS : 4;
    REAL sum[ROWS][8];

    __device__ Product() : sum{} {}

    __device__ __forceinline__ void multiply(const Slab& slab) {
        int row = threadIdx.x / 16 * ROWS, column = threadIdx.x % 16 * 4;
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            REAL a[ROWS], b[8];
#pragma unroll
            for (int i = 0; i < ROWS; i += V) *(Pack<V>*)&a[i] = *(const Pack<V>*)&slab.a[k][row + i];
            *(Pack<4>*)&b[0] = *(const Pack<4>*)&slab.b[k][column];
            *(Pack<4>*)&b[4] = *(const Pack<4>*)&slab.b[k][column + 64];
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) sum[i][j] += a[i] * b[j];
        }
    }

    template <class F> __device__ __forceinline__ void each(F f) {
        int row = threadIdx.x / 16 * ROWS, column = threadIdx.x % 16 * 4;
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            f(row + i, column, &sum[i][0]);
            f(row + i, column + 64, &sum[i][4]);
        }
    }
};

#else
// Tensor cores: 8 warps side by side, each owning TILES_M x TILES_N products of 16 x 8.
struct Product {
    static constexpr int WIDTH = 2;
    static constexpr int WARPS_M = BM >= 64 ? 2 : 1, WARPS_N = 8 / WARPS_M;
    static constexpr int TILES_M = BM / WARPS_M / 16, TILES_N = BN / WARPS_N / 8;
    float sum[TILES_M][TILES_N][4];

    __device__ Product() : sum{} {}

    static __device__ __forceinline__ int warp_row() { return threadIdx.x / 32 / WARPS_N * TILES_M * 16; }
    static __device__ __forceinline__ int warp_column() { return threadIdx.x / 32 % WARPS_N * TILES_N * 8; }

    __device__ __forceinline__ void multiply(const Slab& slab) {
        int group = threadIdx.x % 32 / 4, within = threadIdx.x % 4;
        int row = warp_row() + group, column = warp_column() + group;
#if PRECISION == BF16
        unsigned a[TILES_M][4], b[TILES_N][2];
        int k = within * 2;
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                int r = row + i * 16 + e % 2 * 8, at = k + e / 2 * 8;
                a[i][e] = bf16_pair(slab.a[at][r], slab.a[at + 1][r]);
            }
#pragma unroll
        for (int j = 0; j < TILES_N; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                b[j][e] = bf16_pair(slab.b[k + e * 8][column + j * 8], slab.b[k + e * 8 + 1][column + j * 8]);
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) mma(sum[i][j], a[i], b[j]);
#else
#pragma unroll
        for (int first = 0; first < BK; first += 8) {
            float a[TILES_M][4], b[TILES_N][2];
#pragma unroll
            for (int i = 0; i < TILES_M; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e) a[i][e] = slab.a[first + within + e / 2 * 4][row + i * 16 + e % 2 * 8];
#pragma unroll
            for (int j = 0; j < TILES_N; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) b[j][e] = slab.b[first + within + e * 4][column + j * 8];
            products(a, b);
        }
#endif
    }

#if PRECISION != BF16
    // tf32: one product of the rounded operands. 3xtf32: x = high + low, and all of (ah + al)(bh + bl) except al bl,
    // the small terms first.
    __device__ __forceinline__ void products(const float (&a)[TILES_M][4], const float (&b)[TILES_N][2]) {
        unsigned ah[TILES_M][4], bh[TILES_N][2];
        high(&a[0][0], &ah[0][0], TILES_M * 4);
        high(&b[0][0], &bh[0][0], TILES_N * 2);
#if PRECISION == TF32X3
        unsigned al[TILES_M][4], bl[TILES_N][2];
        low(&a[0][0], &ah[0][0], &al[0][0], TILES_M * 4);
        low(&b[0][0], &bh[0][0], &bl[0][0], TILES_N * 2);
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
                mma(sum[i][j], al[i], bh[j]);
                mma(sum[i][j], ah[i], bl[j]);
            }
#endif
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) mma(sum[i][j], ah[i], bh[j]);
    }

    static __device__ __forceinline__ void high(const float* x, unsigned* h, int count) {
#pragma unroll
        for (int i = 0; i < count; ++i) h[i] = tf32(x[i]);
    }

    static __device__ __forceinline__ void low(const float* x, const unsigned* h, unsigned* l, int count) {
#pragma unroll
        for (int i = 0; i < count; ++i) l[i] = lost_of(x[i], h[i]);
    }
#endif

    template <class F> __device__ __forceinline__ void each(F f) {
        int row = warp_row() + threadIdx.x % 32 / 4, column = warp_column() + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
                f(row + i * 16, column + j * 8, &sum[i][j][0]);
                f(row + i * 16 + 8, column + j * 8, &sum[i][j][2]);
            }
    }
};
#endif

// The depth loop with two slabs in turn: while one is multiplied, the next one's elements are copied.
// Loader: fetch(slab, number) starts this thread's share of the copies into a slab.
template <class Loader>
__device__ __forceinline__ void multiply_slabs(Slab (&slabs)[2], Product& product, Loader& loader, int begin, int end) {
    if (begin < end) loader.fetch(slabs[0], begin);
    end_copies();
    for (int at = begin; at < end; ++at) {
        int now = (at - begin) & 1;
        await_copies<0>();
        __syncthreads();  // this slab is whole, and everybody is done with the other
        if (at + 1 < end) loader.fetch(slabs[now ^ 1], at + 1);
        end_copies();
        product.multiply(slabs[now]);
    }
}
