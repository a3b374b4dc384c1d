// y = x[mask], its gradient, and x[mask] = one number.
//
// mask (n,), y (rows whose mask is true, inner), x (n, inner). The place of row r in y is the number of true rows
// before it. A block owns `each` rows, a multiple of its threads. count_set writes how many rows of each block are
// true. take_set (y from x) and spread_set (x from y, elsewhere 0) add up the counts of the blocks before their own.
// They number the rows of a block by votes, as many at a time as it has threads. Nothing waits for the host. Requires:
// blocks of 256 threads that cover n. With one block, spread_set and take_set need no counts.
// fill_set: x = value where the mask is true; a thread owns the elements THREAD, THREAD + THREADS, ... of x.
#include "include/common.cuh"

constexpr int ROWS = 256, WARPS = ROWS / 32;

// The sum over the block, in all of its threads.
__device__ __forceinline__ int block_sum(int value) {
    __shared__ int warps[WARPS];
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    __syncthreads();                       // whoever reads the values of an earlier call is done
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (int i = 0; i < WARPS; i++) value += warps[i];
    return value;
}

extern "C" __global__ void count_set(const unsigned char* mask, int* counts, int n, int each) {
    const int first = blockIdx.x * each, end = imin(n - first, each);
    int count = 0;
    for (int i = threadIdx.x; i < end; i += ROWS) count += mask[first + i] != 0;
    count = block_sum(count);
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// move(row, place, c) moves one element of a row. `place` is the row's number in y, or below 0 if it has none.
template <class Move>
__device__ __forceinline__ void each_row(const unsigned char* mask, const int* counts, int n, int each, int inner,
                                         Move move) {
    __shared__ int warps[WARPS], places[ROWS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int start = 0;
    for (int i = threadIdx.x; i < (int)blockIdx.x; i += ROWS) start += counts[i];
    start = block_sum(start);
    const int end = imin(n, blockIdx.x * each + imin(each, n - blockIdx.x * each));
    for (int first = blockIdx.x * each; first < end; first += ROWS) {
        const int row = first + threadIdx.x;
        const bool set = row < end && mask[row];
        const unsigned votes = __ballot_sync(~0u, set);
        __syncthreads();                   // whoever reads the last turn's values is done
        if (lane == 0) warps[warp] = __popc(votes);
        __syncthreads();
        int place = start + __popc(votes & ((1u << lane) - 1));
        for (int i = 0; i < WARPS; i++) {
            if (i < warp) place += warps[i];
            start += warps[i];
        }
        if (inner == 1) {
            if (row < end) move(row, set ? place : -1, 0);
            continue;
        }
        places[threadIdx.x] = set ? place : -1;
        __syncthreads();
        const int size = imin(ROWS, end - first) * inner;
        for (int i = threadIdx.x; i < size; i += ROWS) move(first + i / inner, places[i / inner], i % inner);
    }
}

extern "C" __global__ void spread_set(const REAL* y, const unsigned char* mask, const int* counts, REAL* x, int n,
                                      int each, int inner) {
    each_row(mask, counts, n, each, inner, [=](int row, int place, int c) {
        x[row * inner + c] = place < 0 ? (REAL)0 : y[place * inner + c];
    });
}

extern "C" __global__ void take_set(const REAL* x, const unsigned char* mask, const int* counts, REAL* y, int n,
                                    int each, int inner) {
    each_row(mask, counts, n, each, inner, [=](int row, int place, int c) {
        if (place >= 0) y[place * inner + c] = x[row * inner + c];
    });
}

extern "C" __global__ void fill_set(REAL* x, const unsigned char* mask, unsigned size, int inner, REAL value) {
    constexpr int AHEAD = 8;               // of the mask, read at the same time
    for (unsigned e = THREAD; e < size; e += AHEAD * THREADS) {
        bool set[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const unsigned i = e + k * THREADS;
            set[k] = i < size && mask[inner == 1 ? i : i / inner];
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (set[k]) x[e + k * THREADS] = value;
    }
}
