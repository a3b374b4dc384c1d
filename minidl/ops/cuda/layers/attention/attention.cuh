// What the kernels of attention share: rows of heads in shared memory, and products of them, on tensor cores or, in
// FP32, by multiply-adds.
//
// A head's matrix is D numbers wide (a multiple of 8, up to 128). STORE is float, or unsigned short for bfloat16. Rows
// are in shared memory as words, each a number of float32 or tf32 or two of bf16 as PRECISION says, with four words
// between rows: then the 32 words that a warp reads at once, 4 from each of 8 rows or 8 from each of 4, are in
// different banks. If D does not fill the last step of a product, the rest is zeros; so are rows beyond the last one.
//
// A warp owns 16 rows. What it holds of a product is as in mma.cuh: c[j] are columns 8 j + 2 within and the next, of
// row group and then of row group + 8, of a lane with group = lane / 4 and within = lane % 4. In FP32 c[j] are four
// rows, from lane / 8 in steps of 4, of column 8 j + lane % 8: so 4 numbers of 12 rows, at 16 bytes per read, are 128
// multiply-adds. In a result with D columns, neighbouring lanes have VECTOR neighbouring columns each.
#include "include/common.cuh"
#include "include/tensor_cores/mma.cuh"
#include "include/nhwc/transposed.cuh"

#ifndef STORE
#define STORE float
#endif
#ifndef MASKED
#define MASKED 0  // whether there is a mask
#endif
#ifndef D
#define D 32
#endif

constexpr int NUMBERS_PER_WORD = PRECISION == BF16 ? 2 : 1, STEP = 8 * NUMBERS_PER_WORD;
constexpr int PADDED = (D + STEP - 1) / STEP * STEP, WORDS = PADDED / NUMBERS_PER_WORD, PITCH = WORDS + 4;
constexpr int WARPS_PER_BLOCK = 4, THREADS_PER_BLOCK = 32 * WARPS_PER_BLOCK;
constexpr int OWN = 16 * WARPS_PER_BLOCK;         // rows of a block
constexpr int TILE = PADDED > 64 ? 32 : 64;       // rows of what it walks over: registers hold a product with a tile
constexpr int BLOCKS = PADDED > 32 ? 2 : 3;       // of a multiprocessor, at least: that is how many registers there are
constexpr bool FMA = PRECISION == FP32;
constexpr int LANES_PER_ROW = FMA ? 8 : 4, HELD_ROWS = FMA ? 4 : 2;                // of a product; that a lane holds
constexpr int SCRATCH_PITCH = TILE + 8;           // of weights on their way to another product: 4 rows in different banks
constexpr int VECTOR = D % 32 == 0 ? 4 : D % 16 == 0 ? 2 : 1;
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

// Sizes of attention: matrix (n, h) of a batch with `heads` heads starts q[0] n + q[1] h numbers after q, and its rows
// are q[2] apart. The same holds for k, v and go. Number (i, j) of a head's mask is at mask[2] i + mask[3] j. Results
// are stored as (n,rows,heads,D), and numbers of queries as (n,heads,queries).
struct Heads {
    int heads, queries, keys, causal;
    int q[3], k[3], v[3], go[3], mask[4];
    float scale;
};

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// The place of number e of c[j] in what a warp holds of a product: which of the lane's rows that is, where this row is,
// and the column.
__device__ __forceinline__ int held(int e) { return FMA ? e : e / 2; }
__device__ __forceinline__ int held_row(int i) { return threadIdx.x % 32 / LANES_PER_ROW + i * (16 / HELD_ROWS); }
__device__ __forceinline__ int column_of(int j, int e) {
    return FMA ? j * 8 + threadIdx.x % 8 : j * 8 + threadIdx.x % 4 * 2 + e % 2;
}

// The largest, or the sum, of a row's numbers; each of its lanes has one.
__device__ __forceinline__ float over_row(float x, bool largest) {
#pragma unroll
    for (int step = 1; step < LANES_PER_ROW; step *= 2) {
        const float other = __shfl_xor_sync(0xffffffff, x, step);
        x = largest ? fmaxf(x, other) : x + other;
    }
    return x;
}

// Rows of a matrix, where they are and where they go.
struct Rows {
    unsigned* to;
    const STORE* from;
    int stride;
};

// Start reading ROWS rows of each of some matrices, from `first` on, of `rows` that there are.
template <int ROWS, int MATRICES>
__device__ __forceinline__ void load_rows(const Rows (&matrices)[MATRICES], int first, int rows) {
    constexpr int PER_PIECE = 16 / (int)sizeof(STORE), CHUNKS = PADDED / PER_PIECE, COUNT = ROWS * CHUNKS;
    constexpr int AT_ONCE = 4;                    // reads on their way, of a matrix
    constexpr bool AS_STORED = FMA || sizeof(STORE) == 2;
#pragma unroll 1
    for (int start = 0; start < COUNT; start += AT_ONCE * THREADS_PER_BLOCK) {
        Pack<4> held[MATRICES][AT_ONCE];
#pragma unroll
        for (int e = 0; e < AT_ONCE; ++e) {
            const int i = start + e * THREADS_PER_BLOCK + threadIdx.x, row = i / CHUNKS, chunk = i % CHUNKS;
            const bool valid = i < COUNT && first + row < rows && chunk * PER_PIECE < D;
#pragma unroll
            for (int m = 0; m < MATRICES; ++m) {
                const STORE* at =
                    matrices[m].from + (valid ? (first + row) * matrices[m].stride + chunk * PER_PIECE : 0);
                if constexpr (AS_STORED) {
                    if (i < COUNT) start_copy((int4*)(matrices[m].to + row * PITCH + chunk * 4), (const int4*)at, valid);
                } else {
                    held[m][e] = {0, 0, 0, 0};
                    if (valid) held[m][e] = *(const Pack<4>*)at;
                }
            }
        }
        if constexpr (!AS_STORED) {
#pragma unroll
            for (int e = 0; e < AT_ONCE; ++e) {
                const int i = start + e * THREADS_PER_BLOCK + threadIdx.x, row = i / CHUNKS, chunk = i % CHUNKS;
                if (i >= COUNT) continue;
#pragma unroll
                for (int m = 0; m < MATRICES; ++m) {
                    const float* x = held[m][e].v;
                    unsigned* to = matrices[m].to + row * PITCH + chunk * (PER_PIECE / NUMBERS_PER_WORD);
                    if constexpr (PRECISION == BF16)
                        *(Pack<2>*)to = {__uint_as_float(bf16_pair(x[0], x[1])), __uint_as_float(bf16_pair(x[2], x[3]))};
                    else
                        *(Pack<4>*)to = {__uint_as_float(tf32(x[0])), __uint_as_float(tf32(x[1])),
                                         __uint_as_float(tf32(x[2])), __uint_as_float(tf32(x[3]))};
                }
            }
        }
    }
}

// Waits until all that the block has started to read is there.
__device__ __forceinline__ void await_rows() {
    end_copies();
    await_copies<0>();
    __syncthreads();
}

// c += x y^T: this warp's 16 rows of x, ROWS rows of y.
template <int ROWS>
__device__ __forceinline__ void add_by_rows(float (&c)[ROWS / 8][4], const unsigned* x, const unsigned* y) {
    const int lane = threadIdx.x % 32, at = lane / 4 * PITCH + lane % 4;
    if constexpr (FMA) {
        const Pack<4>* row = (const Pack<4>*)(x + held_row(0) * PITCH);
        const Pack<4>* other = (const Pack<4>*)(y + lane % 8 * PITCH);
#pragma unroll 4
        for (int step = 0; step < WORDS / 4; ++step) {
            Pack<4> a[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = row[i * PITCH + step];
#pragma unroll
            for (int j = 0; j < ROWS / 8; ++j) {
                const Pack<4> b = other[j * 2 * PITCH + step];
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int e = 0; e < 4; ++e) c[j][i] += a[i].v[e] * b.v[e];
            }
        }
    } else {
#pragma unroll
        for (int step = 0; step < WORDS; step += 8) {
            const unsigned* row = x + at + step;
            const unsigned a[4] = {row[0], row[8 * PITCH], row[4], row[8 * PITCH + 4]};
#pragma unroll
            for (int j = 0; j < ROWS / 8; ++j) {
                const unsigned* other = y + j * 8 * PITCH + at + step;
                const unsigned b[2] = {other[0], other[4]};
                mma(c[j], a, b);
            }
        }
    }
}

// c += p y: p (16,ROWS) as a product has left it, ROWS rows of y. With tf32 a lane holds two neighbours of a row of p,
// and not two that are four apart: so what mma takes for columns within and within + 4 are 2 within and the next, of p
// and of y. In FP32 the lanes of a row need all of p's: it goes through the warp's part of `scratch`.
template <int ROWS>
__device__ __forceinline__ void add_by_columns(float (&c)[PADDED / 8][4], const float (&p)[ROWS / 8][4],
                                               const unsigned* y, unsigned* scratch) {
    const int lane = threadIdx.x % 32;
    if constexpr (FMA) {
        float* weights = (float*)scratch + threadIdx.x / 32 * 16 * SCRATCH_PITCH + held_row(0) * SCRATCH_PITCH;
        __syncwarp();                             // the product before has been computed
#pragma unroll
        for (int j = 0; j < ROWS / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) weights[i * 4 * SCRATCH_PITCH + column_of(j, i)] = p[j][i];
        __syncwarp();
#pragma unroll 2
        for (int step = 0; step < ROWS; step += 4) {
            Pack<4> a[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = *(const Pack<4>*)(weights + i * 4 * SCRATCH_PITCH + step);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const Pack<VECTOR>* row = (const Pack<VECTOR>*)(y + (step + e) * PITCH) + lane % 8;
#pragma unroll
                for (int j = 0; j < PADDED / 8; ++j)
#pragma unroll
                    for (int i = 0; i < 4; ++i) c[j][i] += a[i].v[e] * row[j / VECTOR * 8].v[j % VECTOR];
            }
        }
    } else if constexpr (PRECISION == BF16) {
#pragma unroll
        for (int step = 0; step < ROWS / 16; ++step) {
            const float(&low)[4] = p[2 * step], (&high)[4] = p[2 * step + 1];
            const unsigned a[4] = {bf16_pair(low[0], low[1]), bf16_pair(low[2], low[3]), bf16_pair(high[0], high[1]),
                                   bf16_pair(high[2], high[3])};
#pragma unroll
            for (int j = 0; j < PADDED / 16; ++j) {
                unsigned b[4];
                load_transposed(b, y + (step * 16 + lane % 16) * PITCH + (2 * j + lane / 16) * 4);
                mma(c[2 * j], a, b);
                mma(c[2 * j + 1], a, b + 2);
            }
        }
    } else {
#pragma unroll
        for (int step = 0; step < ROWS / 8; ++step) {
            const unsigned a[4] = {tf32(p[step][0]), tf32(p[step][2]), tf32(p[step][1]), tf32(p[step][3])};
            const unsigned* row = y + (step * 8 + lane % 4 * 2) * PITCH + lane / 4;
#pragma unroll
            for (int j = 0; j < PADDED / 8; ++j) {
                const unsigned b[2] = {row[j * 8], row[PITCH + j * 8]};
                mma(c[j], a, b);
            }
        }
    }
}

// This warp's rows of a result times a factor for each that a lane holds; `first` is the warp's first row, of `rows`.
__device__ __forceinline__ void store_rows(STORE* to, int stride, int first, int rows, const float (&c)[PADDED / 8][4],
                                           const float (&factor)[HELD_ROWS]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < HELD_ROWS; ++half) {
        const int row = first + held_row(half);
        if (row >= rows) continue;
        if constexpr (FMA) {
#pragma unroll
            for (int j = 0; j < D / 8; j += VECTOR) {
                Pack<VECTOR> held;
#pragma unroll
                for (int e = 0; e < VECTOR; ++e) held.v[e] = c[j + e][half] * factor[half];
                ((Pack<VECTOR>*)(to + row * stride))[j / VECTOR * 8 + lane % 8] = held;
            }
            continue;
        }
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
            STORE* at = to + row * stride + j * 8 + lane % 4 * 2;
            const float x = c[j][half * 2] * factor[half], y = c[j][half * 2 + 1] * factor[half];
            if constexpr (sizeof(STORE) == 2)
                *(unsigned*)at = bf16_pair(x, y);
            else
                *(Pack<2>*)at = {x, y};
        }
    }
}

__device__ __forceinline__ void store_rows(STORE* to, int stride, int first, int rows, const float (&c)[PADDED / 8][4],
                                           float factor) {
    float factors[HELD_ROWS];
#pragma unroll
    for (int half = 0; half < HELD_ROWS; ++half) factors[half] = factor;
    store_rows(to, stride, first, rows, c, factors);
}
