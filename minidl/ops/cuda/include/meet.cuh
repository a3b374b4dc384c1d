// How neighbouring threads that share a set of values put together what each of them has.
//
// Requires: blockDim.x 256.

__device__ __forceinline__ int bits(int power) { return __ffs(power) - 1; }  // of two: a division takes long

// The states of a set's `lanes` threads, merged: the same in each of them. Threads are in groups of lanes * across, a
// power of two up to 32, or the block; those of one set are `across` apart, which is 32 at most. All threads of a block
// must call it; those without a set have an empty state. A state has merge(another), and away(step): the state of the
// lane that is `step` threads away.
template <class State> __device__ __forceinline__ State met(State mine, int lanes, int across = 1) {
    const int group = lanes * across;
    for (int step = imin(group, 32) / 2; step >= across; step /= 2) mine.merge(mine.away(step));
    if (group <= 32) return mine;
    __shared__ State warps[8][32];
    __syncthreads();  // whoever reads the states of an earlier call is done
    if (threadIdx.x % 32 < across) warps[threadIdx.x / 32][threadIdx.x % 32] = mine;
    __syncthreads();
    const int column = threadIdx.x & (across - 1);
    mine = warps[0][column];
#pragma unroll
    for (int i = 1; i < 8; i++) mine.merge(warps[i][column]);
    return mine;
}

// A sum of T.
template <class T> struct Sum {
    static constexpr int MEMBERS = 1;
    T sum;

    __device__ __forceinline__ static Sum none() { return {0}; }
    __device__ __forceinline__ void merge(Sum other) { sum += other.sum; }
    __device__ __forceinline__ Sum away(int step) const { return {__shfl_xor_sync(~0u, sum, step)}; }
};
