// The gradient of x[mask]: where the mask holds, gx has gy's rows in their order, elsewhere 0.
//
// mask (n,), gy (rows that it holds, inner), gx (n, inner). The place of row r in gy is the number of rows before it
// that the mask holds. A block owns `each` rows, a multiple of its threads. count_set leaves how many of each block's
// rows the mask holds; spread_set adds up those of the blocks before its own, and numbers its rows by votes, as many at
// a time as it has threads. Nothing waits for the host. Requires: blocks of 256 threads that cover n; of one block no
// counts.
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

extern "C" __global__ void spread_set(const REAL* gy, const unsigned char* mask, const int* counts, REAL* gx, int n,
                                      int each, int inner) {
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
            if (row < end) gx[row] = set ? gy[place] : (REAL)0;
            continue;
        }
        places[threadIdx.x] = set ? place : -1;
        __syncthreads();
        const int size = imin(ROWS, end - first) * inner;
        for (int i = threadIdx.x; i < size; i += ROWS) {
            const int from = places[i / inner];
            gx[first * inner + i] = from < 0 ? (REAL)0 : gy[from * inner + i % inner];
        }
    }
}
