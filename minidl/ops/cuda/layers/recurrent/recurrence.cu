// LSTM (GATES 4: i f g o), GRU (GATES 3: r z n) and the plain recurrence with an activation (GATES 1, ACT) over whole
// sequences, and their gradients: the formulas of ops/layers/recurrent.py. KEPT values of each element are kept for these.
//
// recurrence and recurrence_grad make all steps in one launch. A block owns ROWS sequences, and needs no other: it has
// all weights, so that no block waits for another one. Of its COLUMNS = GATES * H threads each owns H weights, REGISTERS
// of them in registers and the others in shared memory: reading all of them from the second-level cache at each step
// would take longer than the products. Sums have the same order in each run. Requires: THREADS_PER_BLOCK threads, which
// are COLUMNS or a few more; ROWS * H <= COLUMNS; H and REGISTERS are multiples of 4.
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

#define COLUMNS (GATES * H)
#define SHARED (H - REGISTERS)
#define STRIDE (COLUMNS + 1)               // of a row of weights in shared memory: so columns are in different banks, too

// A thread's weights, and sums of them times the values of a row: v, of H numbers that all threads share.
struct Weights {
    REAL held[REGISTERS];
    const REAL* near;                      // the thread's own, STRIDE apart

    __device__ __forceinline__ void times(REAL (&sums)[ROWS], const REAL* v, int apart) const {
#pragma unroll
        for (int k = 0; k < H; k += 4) {
            REAL w[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                w[i] = k < REGISTERS ? held[k < REGISTERS ? k + i : 0] : near[(k + i - REGISTERS) * STRIDE];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const Pack<4> x = *(const Pack<4>*)(v + r * apart + k);
#pragma unroll
                for (int i = 0; i < 4; i++) sums[r] += w[i] * x.v[i];
            }
        }
    }
};

// COUNT weights of each row of w, as columns in shared memory; neighbours in memory are read by neighbouring threads.
template <int COUNT> __device__ __forceinline__ void load_columns(REAL* to, const REAL* w) {
    if constexpr (COUNT > 0)
        for (int at = threadIdx.x; at < COLUMNS * COUNT; at += THREADS_PER_BLOCK)
            to[at % COUNT * STRIDE + at / COUNT] = w[at / COUNT * H + at % COUNT];
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1) recurrence(
        const REAL* __restrict__ gx, const REAL* __restrict__ w, const REAL* __restrict__ b,
        const REAL* __restrict__ state, REAL* __restrict__ states, REAL* __restrict__ kept, int l, int n, int reverse) {
    extern __shared__ __align__(16) unsigned char bytes[];
    REAL* h = (REAL*)bytes;                // (ROWS,H)
    REAL* gates = h + ROWS * H;            // (ROWS,COLUMNS): W h + b
    REAL* near = gates + ROWS * COLUMNS;   // (SHARED,STRIDE)
    const int j = threadIdx.x, first = blockIdx.x * ROWS, row = first + j / H, i = j % H;
    const bool column = j < COLUMNS, owns = j < ROWS * H && row < n;
    const size_t plane = (size_t)l * n * H;
    Weights mine;
    mine.near = near + j;
    load_columns<REGISTERS>(gates, w);     // whose place, and that of what is behind it, is free yet
    __syncthreads();
#pragma unroll
    for (int k = 0; k < REGISTERS; k++) mine.held[k] = column ? gates[k * STRIDE + j] : (REAL)0;
    __syncthreads();
    load_columns<SHARED>(near, w + REGISTERS);
    const REAL bias = b && column ? b[j] : (REAL)0;
    REAL was = owns ? state[row * H + i] : (REAL)0, c = GATES == 4 && owns ? state[(n + row) * H + i] : (REAL)0;
    if (j < ROWS * H) h[j] = was;
    __syncthreads();
    for (int step_ = 0; step_ < l; step_++) {
        const int t = reverse ? l - 1 - step_ : step_;
        REAL x[GATES];
        if (owns)
            for (int p = 0; p < GATES; p++) x[p] = gx[((size_t)t * n + row) * COLUMNS + p * H + i];
        if (column) {
            REAL sums[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) sums[r] = bias;
            mine.times(sums, h, H);
#pragma unroll
            for (int r = 0; r < ROWS; r++) gates[r * COLUMNS + j] = sums[r];
        }
        __syncthreads();
        if (owns) {
            REAL own[GATES];
            for (int p = 0; p < GATES; p++) own[p] = gates[j / H * COLUMNS + p * H + i];
            const Cell s = step(x, own, was, c);
            const size_t at = ((size_t)t * n + row) * H + i;
            for (int p = 0; p < KEPT; p++) kept[((size_t)t * n + row) * KEPT * H + p * H + i] = s.kept[p];
            states[at] = h[j] = was = s.h;
            if (GATES == 4) states[plane + at] = c = s.c;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1) recurrence_grad(
        const REAL* __restrict__ gy, const REAL* __restrict__ w, const REAL* __restrict__ state,
        const REAL* __restrict__ states, const REAL* __restrict__ kept, REAL* __restrict__ ga, REAL* __restrict__ gq,
        REAL* __restrict__ gstate, int l, int n, int reverse) {
    extern __shared__ __align__(16) unsigned char bytes[];
    REAL* gates = (REAL*)bytes;            // (ROWS,COLUMNS): gradients by W h + b
    REAL* parts = gates + ROWS * COLUMNS;  // (ROWS,COLUMNS): for each gate, its part of the gradient by h
    REAL* near = parts + ROWS * COLUMNS;   // (SHARED,STRIDE)
    const int j = threadIdx.x, first = blockIdx.x * ROWS, row = first + j / H, i = j % H, gate = j / H;
    const bool column = j < COLUMNS, owns = j < ROWS * H && row < n;
    const size_t plane = (size_t)l * n * H;
    Weights mine;                          // of h[i] in the gate's H rows of w
    mine.near = near + j;
#pragma unroll
    for (int k = 0; k < REGISTERS; k++) mine.held[k] = column ? w[(gate * H + k) * H + i] : (REAL)0;
    if (column)
        for (int k = 0; k < SHARED; k++) near[k * STRIDE + j] = w[(gate * H + REGISTERS + k) * H + i];
    for (int at = j; at < ROWS * COLUMNS; at += THREADS_PER_BLOCK) gates[at] = 0;      // also those of rows beyond n
    REAL direct = 0, gc = 0;
    for (int step_ = 0; step_ <= l; step_++) {                     // the last for the gradient by what was given
        const int t = reverse ? step_ : l - 1 - step_;
        REAL s_kept[4], gh = 0, before = 0, c = 0, now = 0;
        if (owns && step_ < l) {
            const size_t at = ((size_t)t * n + row) * H + i, other = reverse ? at + (size_t)n * H : at - (size_t)n * H;
            const bool begins = step_ == l - 1;                    // no step was before it
            for (int p = 0; p < KEPT; p++) s_kept[p] = kept[((size_t)t * n + row) * KEPT * H + p * H + i];
            gh = gy[at];
            if (GATES == 4) {
                gc += gy[plane + at];
                c = begins ? state[(n + row) * H + i] : states[plane + other];
                now = states[plane + at];
            } else if (GATES == 1) {
                now = states[at];
            } else {
                before = begins ? state[row * H + i] : states[other];
            }
        }
        if (step_ && column) {
            REAL sums[ROWS] = {};
            mine.times(sums, gates + gate * H, COLUMNS);
#pragma unroll
            for (int r = 0; r < ROWS; r++) parts[r * COLUMNS + j] = sums[r];
        }
        __syncthreads();
        if (owns) {
            REAL all = direct;
            if (step_)
                for (int p = 0; p < GATES; p++) all += parts[j / H * COLUMNS + p * H + i];
            if (step_ == l) {
                gstate[row * H + i] = all;
                if (GATES == 4) gstate[(n + row) * H + i] = gc;
            } else {
                const Back s = step_back(gh + all, gc, s_kept, before, c, now);
                direct = s.h;
                gc = s.c;
                for (int p = 0; p < GATES; p++) {
                    const size_t at = ((size_t)t * n + row) * COLUMNS + p * H + i;
                    ga[at] = s.ga[p];
                    if (GATES == 3) gq[at] = s.gq[p];
                    gates[j / H * COLUMNS + p * H + i] = s.gq[p];
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
