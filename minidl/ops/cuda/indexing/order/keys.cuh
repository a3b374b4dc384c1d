// What sorting kernels share: integer keys in the order of floating-point numbers, and sums over preceding threads.
//
// A NaN's key is the largest, and -0's is that of 0.
__device__ __forceinline__ unsigned key_of(float x) {
    union {
        float number;
        unsigned bits;
    } both = {x + 0.0f};
    if (x != x) return ~0u;
    return both.bits >> 31 ? ~both.bits : both.bits | 0x80000000u;
}
__device__ __forceinline__ unsigned long long key_of(double x) {
    union {
        double number;
        unsigned long long bits;
    } both = {x + 0.0};
    if (x != x) return ~0ull;
    return both.bits >> 63 ? ~both.bits : both.bits | 0x8000000000000000ull;
}

// The sum of the values of the block's threads before this one. All threads of the block, WARPS warps, must call it.
template <int WARPS> __device__ __forceinline__ int sum_before(int value) {
    __shared__ int sums[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = value;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    __syncthreads();                       // whoever reads the sums of an earlier call is done
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warp; i++) sum += sums[i];
    return sum - value;
}
