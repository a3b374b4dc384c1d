// LSTM (GATES 4: i f g o), GRU (GATES 3: r z n) and the plain recurrence with an activation (GATES 1, ACT) over whole
// sequences, and their gradients: the formulas of ops/layers/recurrent.py. KEPT values of each element are kept for these.
//
// recurrence and recurrence_grad make all steps in one launch. The CLUSTER blocks of a cluster own ROWS sequences, and H /
// CLUSTER units each; other blocks they do not need. Together they have all weights: reading these from the second-level
// cache at each step would take longer than the products. Of a block's COLUMNS threads each has H weights, REGISTERS of them
// in registers and the others in shared memory. Forward a thread has a row of w, and blocks give each other their h; back
// it has columns of the block's rows, and blocks give each other parts of the gradient by h. Sums have the same order in
// each run. Requires: THREADS_PER_BLOCK threads, which are COLUMNS or a few more; ROWS <= GATES; REGISTERS and H / CLUSTER
// are multiples of 4; for clusters compute capability 9.0.
//
// recurrence_cell and recurrence_cell_grad make one step, in any sizes, whose product is made before: a thread has an
// element of the state.
#include "include/common.cuh"
#include "include/act.cuh"

#ifndef GATES
#define GATES 4
#endif
#define KEPT (GATES == 1 ? 0 : 4)
#ifndef H
#define H 8
#define ROWS 1
#define CLUSTER 1
#define REGISTERS 4
#define THREADS_PER_BLOCK 32
#endif

// A step of one element: its gates as they are kept, h and c.
struct Cell {
    REAL kept[4], h, c;                    // of which KEPT and, with 4 gates, c are set
};

__device__ __forceinline__ Cell step(const REAL* gx, const REAL* gh, REAL h, REAL c) {
    Cell s;
#if GATES == 4
    s.kept[0] = act_sigmoid::value(gx[0] + gh[0]);
    s.kept[1] = act_sigmoid::value(gx[1] + gh[1]);
    s.kept[2] = act_tanh::value(gx[2] + gh[2]);
    s.kept[3] = act_sigmoid::value(gx[3] + gh[3]);
    s.c = s.kept[1] * c + s.kept[0] * s.kept[2];
    s.h = s.kept[3] * act_tanh::value(s.c);
#elif GATES == 3
    s.kept[0] = act_sigmoid::value(gx[0] + gh[0]);
    s.kept[1] = act_sigmoid::value(gx[1] + gh[1]);
    s.kept[2] = act_tanh::value(gx[2] + s.kept[0] * gh[2]);
    s.kept[3] = gh[2];
    s.h = s.kept[2] + s.kept[1] * (h - s.kept[2]);
#else
    s.h = ACT_VALUE(gx[0] + gh[0]);
#endif
    return s;
}

// The gradients of a step of one element: by gx, by W h + b, by h directly, and by c.
struct Back {
    REAL ga[GATES], gq[GATES], h, c;
};

// gh, gc: gradients by its results. kept: as step leaves it. h, c: before the step. now: the last state behind it, c or h.
__device__ __forceinline__ Back step_back(REAL gh, REAL gc, const REAL* kept, REAL h, REAL c, REAL now) {
    Back s;
#if GATES == 4
    const REAL y = act_tanh::value(now);
    gc += act_tanh::grad(gh * kept[3], y);
    s.ga[0] = act_sigmoid::grad(gc * kept[2], kept[0]);
    s.ga[1] = act_sigmoid::grad(gc * c, kept[1]);
    s.ga[2] = act_tanh::grad(gc * kept[0], kept[2]);
    s.ga[3] = act_sigmoid::grad(gh * y, kept[3]);
    s.h = 0;
    s.c = gc * kept[1];
#elif GATES == 3
    s.ga[2] = act_tanh::grad(gh - gh * kept[1], kept[2]);
    s.ga[1] = act_sigmoid::grad(gh * (h - kept[2]), kept[1]);
    s.ga[0] = act_sigmoid::grad(s.ga[2] * kept[3], kept[0]);
    s.h = gh * kept[1];
    s.c = 0;
#else
    s.ga[0] = ACT_GRAD(gh, now);
    s.h = s.c = 0;
#endif
    for (int p = 0; p < GATES; p++) s.gq[p] = s.ga[p];
    if (GATES == 3) s.gq[2] = s.ga[2] * kept[0];
    return s;
}

#define UNITS (H / CLUSTER)               // of a block
#define COLUMNS (GATES * UNITS)
#define SHARED (H - REGISTERS)
#define STRIDE (COLUMNS + 1)               // of a row of weights in shared memory: so columns are in different banks, too

#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

// The block's number in its cluster, and a barrier of all threads of the cluster.
__device__ __forceinline__ int rank_of_block() {
    unsigned rank = 0;
#if CLUSTER > 1
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}
__device__ __forceinline__ void meet() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

// Write x where `to` is, in the shared memory of a block of the cluster.
__device__ __forceinline__ void give(REAL* to, int block, REAL x) {
#if CLUSTER > 1
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address) : "r"((unsigned)__cvta_generic_to_shared(to)), "r"(block));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
#else
    *to = x;
#endif
}

// A thread's H weights. near: those in shared memory, STRIDE apart.
struct Weights {
    REAL held[REGISTERS];
    const REAL* near;

    __device__ __forceinline__ REAL operator[](int k) const {      // k is known when this is compiled
        return k < REGISTERS ? held[k < REGISTERS ? k : 0] : near[(k - REGISTERS) * STRIDE];
    }
};

// A thread with few sums makes each in parts, so that products do not wait for each other.
#define CHAINS(sums) ((sums) == 1 ? 4 : (sums) < 4 ? 2 : 1)
template <int PARTS> __device__ __forceinline__ REAL total(const REAL (&parts)[PARTS]) {
    REAL sum = parts[0];
#pragma unroll
    for (int i = 1; i < PARTS; i++) sum += parts[i];
    return sum;
}

// The row of w that is a column of the block.
__device__ __forceinline__ int row_of(int column, int rank) {
    return column / UNITS * H + rank * UNITS + column % UNITS;
}

// COUNT weights of each of the block's rows of w, as columns in shared memory; neighbours in memory are read by
// neighbouring threads.
template <int COUNT> __device__ __forceinline__ void load_columns(REAL* to, const REAL* w, int rank) {
    if constexpr (COUNT > 0)
        for (int at = threadIdx.x; at < COLUMNS * COUNT; at += THREADS_PER_BLOCK)
            to[at % COUNT * STRIDE + at / COUNT] = w[row_of(at / COUNT, rank) * H + at % COUNT];
}

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS_PER_BLOCK, 1) recurrence(
        const REAL* __restrict__ gx, const REAL* __restrict__ w, const REAL* __restrict__ b,
        const REAL* __restrict__ state, REAL* __restrict__ states, REAL* __restrict__ kept, int l, int n, int reverse) {
    extern __shared__ __align__(16) unsigned char bytes[];
    REAL* h = (REAL*)bytes;                // (2,ROWS,H): before a step and behind it, in turn
    REAL* gates = h + 2 * ROWS * H;        // (ROWS,COLUMNS): W h + b
    REAL* near = gates + ROWS * COLUMNS;   // (SHARED,STRIDE)
    const int j = threadIdx.x, rank = rank_of_block(), first = blockIdx.x / CLUSTER * ROWS, r = j / UNITS;
    const int row = first + r, i = j % UNITS, unit = rank * UNITS + i;
    const bool column = j < COLUMNS, owns = j < ROWS * UNITS && row < n;
    const size_t plane = (size_t)l * n * H;
    Weights mine;                          // of row j of the block's, times h
    mine.near = near + j;
    load_columns<REGISTERS>(gates, w, rank);       // whose place, and that of what is behind it, is free yet
    __syncthreads();
#pragma unroll
    for (int k = 0; k < REGISTERS; k++) mine.held[k] = column ? gates[k * STRIDE + j] : (REAL)0;
    __syncthreads();
    load_columns<SHARED>(near, w + REGISTERS, rank);
    const REAL bias = b && column ? b[row_of(j, rank)] : (REAL)0;
    for (int at = j; at < ROWS * H; at += THREADS_PER_BLOCK)
        h[at] = first + at / H < n ? state[(first + at / H) * H + at % H] : (REAL)0;
    REAL was = owns ? state[row * H + unit] : (REAL)0, c = GATES == 4 && owns ? state[(n + row) * H + unit] : (REAL)0;
    meet();
    for (int step_ = 0; step_ < l; step_++) {
        const int t = reverse ? l - 1 - step_ : step_;
        const REAL* before = h + step_ % 2 * ROWS * H;
        REAL* after = h + (step_ + 1) % 2 * ROWS * H;
        REAL x[GATES];
        if (owns)
            for (int p = 0; p < GATES; p++) x[p] = gx[((size_t)t * n + row) * GATES * H + p * H + unit];
        if (column) {
            REAL sums[ROWS][CHAINS(ROWS)] = {};
#pragma unroll
            for (int k = 0; k < H; k += 4) {
                const REAL weights[4] = {mine[k], mine[k + 1], mine[k + 2], mine[k + 3]};
#pragma unroll
                for (int s = 0; s < ROWS; s++) {
                    const Pack<4> v = *(const Pack<4>*)(before + s * H + k);
#pragma unroll
                    for (int e = 0; e < 4; e++) sums[s][e % CHAINS(ROWS)] += weights[e] * v.v[e];
                }
            }
#pragma unroll
            for (int s = 0; s < ROWS; s++) gates[s * COLUMNS + j] = bias + total(sums[s]);
        }
        __syncthreads();
        if (owns) {
            REAL own[GATES];
            for (int p = 0; p < GATES; p++) own[p] = gates[r * COLUMNS + p * UNITS + i];
            const Cell s = step(x, own, was, c);
            const size_t at = ((size_t)t * n + row) * H + unit;
            for (int p = 0; p < KEPT; p++) kept[((size_t)t * n + row) * KEPT * H + p * H + unit] = s.kept[p];
            states[at] = was = s.h;
            if (GATES == 4) states[plane + at] = c = s.c;
            for (int block = 0; block < CLUSTER; block++) give(after + r * H + unit, block, s.h);
        }
        meet();
    }
}

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS_PER_BLOCK, 1) recurrence_grad(
        const REAL* __restrict__ gy, const REAL* __restrict__ w, const REAL* __restrict__ state,
        const REAL* __restrict__ states, const REAL* __restrict__ kept, REAL* __restrict__ ga, REAL* __restrict__ gq,
        REAL* __restrict__ gstate, int l, int n, int reverse) {
    extern __shared__ __align__(16) unsigned char bytes[];
    REAL* gates = (REAL*)bytes;            // (ROWS,COLUMNS): gradients by W h + b
    // (2,CLUSTER,ROWS,COLUMNS): parts of the gradient by h, of each block and gate; written for this step and the next
    REAL* parts = gates + ROWS * COLUMNS;
    REAL* near = parts + 2 * CLUSTER * ROWS * COLUMNS;             // (SHARED,STRIDE)
    const int j = threadIdx.x, rank = rank_of_block(), first = blockIdx.x / CLUSTER * ROWS, r = j / UNITS, gate = r;
    const int row = first + r, i = j % UNITS, unit = rank * UNITS + i;
    const bool column = j < COLUMNS, owns = j < ROWS * UNITS && row < n;
    const size_t plane = (size_t)l * n * H;
    // Of the gate's rows of w that are the block's units: their products with these give parts of the gradient by unit i
    // of each block m, weights m * UNITS + u
    const REAL* own_rows = w + (gate * H + rank * UNITS) * H + i;
    Weights mine;
    mine.near = near + j;
#pragma unroll
    for (int k = 0; k < REGISTERS; k++)
        mine.held[k] = column ? own_rows[k % UNITS * H + k / UNITS * UNITS] : (REAL)0;
    if (column)
        for (int k = REGISTERS; k < H; k++)
            near[(k - REGISTERS) * STRIDE + j] = own_rows[k % UNITS * H + k / UNITS * UNITS];
    for (int at = j; at < ROWS * COLUMNS; at += THREADS_PER_BLOCK) gates[at] = 0;      // also those of rows beyond n
    REAL direct = 0, gc = 0;
    meet();
    for (int step_ = 0; step_ <= l; step_++) {                     // the last for the gradient by what was given
        const int t = reverse ? step_ : l - 1 - step_;
        REAL* now_parts = parts + step_ % 2 * CLUSTER * ROWS * COLUMNS;
        REAL s_kept[4], gh = 0, before = 0, c = 0, now = 0;
        if (owns && step_ < l) {
            const size_t at = ((size_t)t * n + row) * H + unit;
            const size_t other = reverse ? at + (size_t)n * H : at - (size_t)n * H;
            const bool begins = step_ == l - 1;                    // no step was before it
            for (int p = 0; p < KEPT; p++) s_kept[p] = kept[((size_t)t * n + row) * KEPT * H + p * H + unit];
            gh = gy[at];
            if (GATES == 4) {
                gc += gy[plane + at];
                c = begins ? state[(n + row) * H + unit] : states[plane + other];
                now = states[plane + at];
            } else if (GATES == 1) {
                now = states[at];
            } else {
                before = begins ? state[row * H + unit] : states[other];
            }
        }
        if (step_ && column) {
            REAL sums[CLUSTER][ROWS][CHAINS(CLUSTER * ROWS)] = {};
#pragma unroll
            for (int u = 0; u < UNITS; u += 4) {
                Pack<4> v[ROWS];
#pragma unroll
                for (int s = 0; s < ROWS; s++) v[s] = *(const Pack<4>*)(gates + s * COLUMNS + gate * UNITS + u);
#pragma unroll
                for (int m = 0; m < CLUSTER; m++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const REAL weight = mine[m * UNITS + u + e];
#pragma unroll
                        for (int s = 0; s < ROWS; s++)
                            sums[m][s][e % CHAINS(CLUSTER * ROWS)] += weight * v[s].v[e];
                    }
                }
            }
#pragma unroll
            for (int m = 0; m < CLUSTER; m++)
#pragma unroll
                for (int s = 0; s < ROWS; s++) give(now_parts + (rank * ROWS + s) * COLUMNS + j, m, total(sums[m][s]));
        }
        meet();
        if (owns) {
            REAL all = direct;
            if (step_)
                for (int block = 0; block < CLUSTER; block++)
                    for (int p = 0; p < GATES; p++) all += now_parts[(block * ROWS + r) * COLUMNS + p * UNITS + i];
            if (step_ == l) {
                gstate[row * H + unit] = all;
                if (GATES == 4) gstate[(n + row) * H + unit] = gc;
            } else {
                const Back s = step_back(gh + all, gc, s_kept, before, c, now);
                direct = s.h;
                gc = s.c;
                for (int p = 0; p < GATES; p++) {
                    const size_t at = ((size_t)t * n + row) * GATES * H + p * H + unit;
                    ga[at] = s.ga[p];
                    if (GATES == 3) gq[at] = s.gq[p];
                    gates[r * COLUMNS + p * UNITS + i] = s.gq[p];
                }
            }
        }
        __syncthreads();
    }
}

// gx (n,GATES,size), gh (n,GATES,size), h and c (n,size) -> h_after, c_after (n,size), kept (n,KEPT,size)
extern "C" __global__ void recurrence_cell(const REAL* gx, const REAL* gh, const REAL* h, const REAL* c, REAL* h_after,
                                           REAL* c_after, REAL* kept, int n, int size) {
    for (unsigned at = THREAD; at < (unsigned)n * size; at += THREADS) {
        const unsigned row = at / size, i = at % size;
        REAL x[GATES], own[GATES];
        for (int p = 0; p < GATES; p++) {
            x[p] = gx[((size_t)row * GATES + p) * size + i];
            own[p] = gh[((size_t)row * GATES + p) * size + i];
        }
        const Cell s = step(x, own, h[at], GATES == 4 ? c[at] : (REAL)0);
        for (int p = 0; p < KEPT; p++) kept[((size_t)row * KEPT + p) * size + i] = s.kept[p];
        h_after[at] = s.h;
        if (GATES == 4) c_after[at] = s.c;
    }
}

// gy, gy_c (n,size): gradients by h and c after the step, without those of the steps behind it, if there are: more_h plus
// direct, and gc. These two are changed to those of the step before. kept, h, c, now: as in step_back.
extern "C" __global__ void recurrence_cell_grad(const REAL* gy, const REAL* gy_c, const REAL* more_h, const REAL* kept,
                                                const REAL* h, const REAL* c, const REAL* now, REAL* direct, REAL* gc,
                                                REAL* ga, REAL* gq, int n, int size) {
    for (unsigned at = THREAD; at < (unsigned)n * size; at += THREADS) {
        const unsigned row = at / size, i = at % size;
        REAL own[4], gh = gy[at] + (more_h ? more_h[at] + direct[at] : (REAL)0);
        for (int p = 0; p < KEPT; p++) own[p] = kept[((size_t)row * KEPT + p) * size + i];
        const Back s = GATES == 4 ? step_back(gh, gy_c[at] + (more_h ? gc[at] : (REAL)0), own, 0, c[at], now[at])
                                  : step_back(gh, 0, own, h[at], 0, now[at]);
        direct[at] = s.h;
        if (GATES == 4) gc[at] = s.c;
        for (int p = 0; p < GATES; p++) {
            ga[((size_t)row * GATES + p) * size + i] = s.ga[p];
            if (GATES == 3) gq[((size_t)row * GATES + p) * size + i] = s.gq[p];
        }
    }
}
