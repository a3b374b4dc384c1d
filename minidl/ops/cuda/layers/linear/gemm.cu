// Matrix products: C (rows x cols) = A (rows x depth) B (depth x cols), batched, with either matrix stored transposed.
//
// gemm_registers: joint register + shared-memory tiling (tile.cuh); a block owns BM x 128 elements of C.
// gemm_tiled: a block of 16 x 16 threads owns 16 x 16 elements, a thread one (PMPP's tiled product): for small C, where
// big tiles would leave most multiprocessors idle.
// gemm_finish: adds up the parts of a split depth in their order, and the bias.
//
// -DTA: A is stored (depth x rows). -DTB: B is stored (cols x depth). The sum runs over `sum_batches` pairs of matrices
// (one, or all of the batch); blockIdx.z = output batch * splits + split, and each split does its share of the slabs.
//
// -DFUSED=VALUE: each sum, with its bias, goes through the activation -DACT. -DFUSED=GRAD: it is a gradient, and is
// multiplied by the activation's derivative, which `y`, what the activation gave, tells. -DFUSED=BOTH: `y` takes the
// activation's value of each sum. -DFUSED=SUM: it is multiplied by -DALPHA, and -DBETA times `y` is added.
// -DWIDE: copies and stores of 16 bytes: arrays start on a multiple of them, cols % 4 == 0, and with TA rows % 4 == 0.
#include "include/tile.cuh"
#include "include/act.cuh"

#define VALUE 1
#define GRAD 2
#define BOTH 3
#define SUM 4
#ifndef WIDE
#define WIDE 0
#endif
constexpr int LINE = 16 / sizeof(REAL);  // elements in 16 bytes

struct Matrices {
    int rows, cols, depth;
    int a_batch, b_batch;  // elements from one matrix of the batch to the next; 0 where there is but one
    int sum_batches, splits;
    int bias_rows, bias_cols;  // bias[row * bias_rows + column * bias_cols]
    int accumulate;            // add to what is in C
};

// A sum that is complete, with what is fused to it; y is what the activation gave at the same place.
__device__ __forceinline__ REAL finished(REAL value, REAL* y) {
#if FUSED == VALUE
    return ACT_VALUE(value);
#elif FUSED == GRAD
    return ACT_GRAD(value, *y);
#elif FUSED == SUM
    return (REAL)(ALPHA) * value + (REAL)(BETA) * *y;
#else
#if FUSED == BOTH
    *y = ACT_VALUE(value);
#endif
    return value;
#endif
}

template <int V>
__device__ __forceinline__ void store(REAL* c, const REAL* bias, REAL* y, const Matrices& p, int row, int column,
                                      const REAL* values) {
    if (row >= p.rows || column >= p.cols) return;
    size_t at = (size_t)blockIdx.z * p.rows * p.cols + row * p.cols + column;
    Pack<V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) {
        out.v[j] = values[j];
        if (p.splits == 1) {
            if (bias) out.v[j] += bias[row * p.bias_rows + (column + j) * p.bias_cols];
            if (p.accumulate) out.v[j] += c[at + j];
            out.v[j] = finished(out.v[j], y + at + j);
        }
    }
    *(Pack<V>*)(c + at) = out;
}

template <int V> __device__ __forceinline__ void copy(REAL* to, const REAL* from, bool valid) {
    start_copy((Pack<V>*)to, (const Pack<V>*)from, valid);
}

// This thread's elements of a slab: lanes run along the axis that is contiguous in memory.
struct MatrixLoader {
    static constexpr int VA = WIDE && TA ? LINE : 1, VB = WIDE && !TB ? LINE : 1;  // elements of a copy
    static constexpr int ALL_A = BM * BK / VA, ALL_B = BN * BK / VB;               // copies of a slab
    const REAL *a, *b;
    const Matrices& p;
    int row0, column0, slabs;

    // Where the i-th copy of this thread goes in a slab of `size` rows (or columns), v at a time. Along the depth k is
    // the same for all i, which saves up to 50 registers.
    static __device__ __forceinline__ void place(int i, bool along_k, int size, int v, int& k, int& r) {
        const int lane = threadIdx.x, e = lane + i * BLOCK, across = size / v;
        k = along_k ? lane % BK : e / across;
        r = along_k ? lane / BK + i * (BLOCK / BK) : e % across * v;
    }

    __device__ __forceinline__ void fetch(Slab& slab, int number) {
        int batch = number / slabs, k0 = (number - batch * slabs) * BK, k, r;
        const REAL *am = a + (size_t)batch * p.a_batch, *bm = b + (size_t)batch * p.b_batch;
#pragma unroll
        for (int i = 0; i * BLOCK < ALL_A; ++i) {
            if (ALL_A < BLOCK && threadIdx.x >= ALL_A) break;
            place(i, !TA, BM, VA, k, r);
            int row = row0 + r, at = k0 + k;
            bool valid = row < p.rows && at < p.depth;
            copy<VA>(&slab.a[k][r], am + (valid ? TA ? at * p.rows + row : row * p.depth + at : 0), valid);
        }
#pragma unroll
        for (int i = 0; i * BLOCK < ALL_B; ++i) {
            place(i, TB, BN, VB, k, r);
            int column = column0 + r, at = k0 + k;
            bool valid = column < p.cols && at < p.depth;
            copy<VB>(&slab.b[k][r], bm + (valid ? TB ? column * p.depth + at : at * p.cols + column : 0), valid);
        }
    }
};

// The slabs [begin, end) of this block's split, of `all` slabs.
__device__ __forceinline__ void share(const Matrices& p, int all, int& begin, int& end) {
    int split = blockIdx.z % p.splits, each = ceil_div(all, p.splits);
    begin = imin(all, split * each);
    end = imin(all, begin + each);
}

extern "C" __global__ void __launch_bounds__(256)
    gemm_registers(const REAL* a, const REAL* b, const REAL* bias, REAL* y, REAL* c, Matrices p) {
    __shared__ Slab slabs[2];
    int batch = blockIdx.z / p.splits, begin, end;
    bool own = p.sum_batches == 1;  // each output has its own pair of matrices
    MatrixLoader loader{own ? a + (size_t)batch * p.a_batch : a,
                        own ? b + (size_t)batch * p.b_batch : b,
                        p,
                        (int)blockIdx.y * BM,
                        (int)blockIdx.x * BN,
                        ceil_div(p.depth, BK)};
    share(p, p.sum_batches * loader.slabs, begin, end);
    Product product;
    multiply_slabs(slabs, product, loader, begin, end);
    product.each([&](int row, int column, const REAL* values) {
        constexpr int V = !WIDE ? 1 : Product::WIDTH < LINE ? Product::WIDTH : LINE;
#pragma unroll
        for (int j = 0; j < Product::WIDTH; j += V)
            store<V>(c, bias, y, p, loader.row0 + row, loader.column0 + column + j, values + j);
    });
}

constexpr int TILE = 16, DEPTH = 64;  // of C; of a slab: few slabs, since each costs a wait for memory

extern "C" __global__ void __launch_bounds__(256)
    gemm_tiled(const REAL* a, const REAL* b, const REAL* bias, REAL* y, REAL* c, Matrices p) {
    __shared__ __align__(16) REAL as[TILE][DEPTH + LINE], bs[TILE][DEPTH + LINE];  // a thread reads 16 bytes of a line
    int row0 = blockIdx.y * TILE, column0 = blockIdx.x * TILE;
    int batch = blockIdx.z / p.splits, slabs = ceil_div(p.depth, DEPTH), begin, end;
    share(p, p.sum_batches * slabs, begin, end);
    REAL ra[4], rb[4];
    auto fetch = [&](int slab) {
        int of = p.sum_batches == 1 ? batch : slab / slabs, k0 = slab % slabs * DEPTH;
        const REAL *am = a + (size_t)of * p.a_batch, *bm = b + (size_t)of * p.b_batch;
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // threads run along the axis that is contiguous in memory
            int e = threadIdx.x + i * 256;
            int r = TA ? e % TILE : e / DEPTH, k = k0 + (TA ? e / TILE : e % DEPTH), at = row0 + r;
            ra[i] = at < p.rows && k < p.depth ? am[TA ? k * p.rows + at : at * p.depth + k] : (REAL)0;
            int s = TB ? e / DEPTH : e % TILE;
            k = k0 + (TB ? e % DEPTH : e / TILE);
            at = column0 + s;
            rb[i] = at < p.cols && k < p.depth ? bm[TB ? at * p.depth + k : k * p.cols + at] : (REAL)0;
        }
    };
    REAL sum = 0;
    if (begin < end) fetch(begin);
    for (int slab = begin; slab < end; ++slab) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int e = threadIdx.x + i * 256;
            as[TA ? e % TILE : e / DEPTH][TA ? e / TILE : e % DEPTH] = ra[i];
            bs[TB ? e / DEPTH : e % TILE][TB ? e % DEPTH : e / TILE] = rb[i];
        }
        __syncthreads();
        if (slab + 1 < end) fetch(slab + 1);  // which is under way meanwhile
#pragma unroll 4
        for (int k = 0; k < DEPTH; k += LINE) {
            Pack<LINE> row = *(const Pack<LINE>*)&as[threadIdx.x / TILE][k];
            Pack<LINE> column = *(const Pack<LINE>*)&bs[threadIdx.x % TILE][k];
#pragma unroll
            for (int i = 0; i < LINE; ++i) sum += row.v[i] * column.v[i];
        }
        __syncthreads();
    }
    store<1>(c, bias, y, p, row0 + threadIdx.x / TILE, column0 + threadIdx.x % TILE, &sum);
}

// parts (batches, splits, rows, cols) -> c (batches, rows, cols), one thread an element
extern "C" __global__ void gemm_finish(const REAL* parts, const REAL* bias, REAL* y, REAL* c, int batches,
                                       Matrices p) {
    int size = p.rows * p.cols;
    for (int i = THREAD; i < batches * size; i += THREADS) {
        int batch = i / size, at = i - batch * size;
        const REAL* part = parts + (size_t)batch * p.splits * size + at;
        REAL sum = p.accumulate ? c[i] : (REAL)0;
        for (int s = 0; s < p.splits; ++s) sum += part[(size_t)s * size];
        if (bias) sum += bias[at / p.cols * p.bias_rows + at % p.cols * p.bias_cols];
        c[i] = finished(sum, y + i);
    }
}
