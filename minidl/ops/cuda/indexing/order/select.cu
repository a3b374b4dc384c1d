// The places of a line's first k values, in rising order of the places. A line of x (before, n, inner) is x[b,:,c].
//
// first_of: places (lines, shares, k) gets the places of the k smallest values of each share of a line, or of the k
// largest if `falling`. NaN counts as the largest, -0 is 0, and of equal values the first are taken. If `chosen`
// (lines, m) is given, places in rising order, only these are looked at; else m is n.
//
// A block owns a share and has its keys in registers. It finds the k-th smallest key bit by bit: each step counts the
// keys below a bound, until k are. That takes at most a step per bit, and needs no atomics. Neighbouring blocks own
// the same share of neighbouring lines. Requires: lines * shares blocks of 256 threads; shares of k to 7168 elements.
#include "include/common.cuh"
#include "indexing/order/keys.cuh"

constexpr int ROWS = 256, WARPS = ROWS / 32, PER_THREAD = 28, COUNTS = PER_THREAD * WARPS;

extern "C" __global__ void __launch_bounds__(256) first_of(const REAL* x, const int* chosen, int* places, int lines,
                                                           int m, int n, int inner, int k, int shares, int falling) {
    typedef decltype(key_of((REAL)0)) Key;
    __shared__ int sums[2][WARPS], counts[COUNTS];
    const int line = blockIdx.x % lines, share = blockIdx.x / lines, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int begin = (long long)m * share / shares, held = (long long)m * (share + 1) / shares - begin;
    const unsigned before = line / inner, c = line % inner;
    if (chosen) chosen += line * m + begin;
    Key keys[PER_THREAD];
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        const int i = j * ROWS + threadIdx.x;
        keys[j] = ~(Key)0;
        if (i < held) {
            const Key key = key_of(x[(before * n + (chosen ? chosen[i] : begin + i)) * inner + c]);
            keys[j] = falling ? ~key : key;
        }
    }
    Key bound = 0;                         // a key with at most k keys below it; the largest such if fewer are
    int below = 0;
    for (int bit = 8 * sizeof(Key) - 1; bit >= 0 && below < k; bit--) {
        const Key next = bound | (Key)1 << bit;
        int count = 0;
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) count += keys[j] < next;
        for (int step = 16; step > 0; step /= 2) count += __shfl_xor_sync(~0u, count, step);
        if (lane == 0) sums[bit & 1][warp] = count;
        __syncthreads();                   // in turns, so that no thread waits for the readers of the last step
        count = 0;
        for (int i = 0; i < WARPS; i++) count += sums[bit & 1][i];
        if (count > k) continue;
        bound = next;
        below = count;
    }
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) { // how many are below in the lower half, how many are equal in the upper
        const int i = j * ROWS + threadIdx.x;
        const unsigned less = __ballot_sync(~0u, i < held && keys[j] < bound);
        const unsigned equal = __ballot_sync(~0u, i < held && keys[j] == bound);
        if (lane == 0) counts[j * WARPS + warp] = __popc(less) | __popc(equal) << 16;
    }
    __syncthreads();
    const int preceding = sum_before<WARPS>(threadIdx.x < COUNTS ? counts[threadIdx.x] : 0), wanted = k - below;
    if (threadIdx.x < COUNTS) counts[threadIdx.x] = preceding;
    __syncthreads();
    places += (line * shares + share) * k;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        const int i = j * ROWS + threadIdx.x;
        const bool is_less = i < held && keys[j] < bound, is_equal = i < held && keys[j] == bound;
        const unsigned less = __ballot_sync(~0u, is_less), equal = __ballot_sync(~0u, is_equal);
        const unsigned lower = (1u << lane) - 1;
        const int packed = counts[j * WARPS + warp];
        const int equals = (packed >> 16) + __popc(equal & lower);
        if (is_less || (is_equal && equals < wanted))
            places[(packed & 0xffff) + __popc(less & lower) + imin(equals, wanted)] = chosen ? chosen[i] : begin + i;
    }
}
