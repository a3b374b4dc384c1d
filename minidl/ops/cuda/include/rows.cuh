// Rows that several threads share, for softmax and the losses built on it.
//
// A row is `size` elements `stride` apart. Its threads are `lanes` neighbours: a power of two up to 32, or the whole
// block (a multiple of 32). Every thread of the block must call these functions, with size 0 if it has no row, because
// the threads of a warp or block exchange values in them. Sums are in an order that size and lanes alone decide.

// The sum, or the largest, of the lanes' values: the same bits in each of them.
__device__ __forceinline__ REAL reduce(REAL value, int lanes, bool largest) {
    for (int step = imin(lanes, 32) / 2; step > 0; step /= 2) {
        REAL other = __shfl_xor_sync(~0u, value, step);
        value = largest ? fmax(value, other) : value + other;
    }
    if (lanes <= 32) return value;
    __shared__ REAL warps[32];
    __syncthreads();  // whoever reads the values of an earlier call is done
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    value = warps[0];
    for (int i = 1; i < lanes / 32; i++) value = largest ? fmax(value, warps[i]) : value + warps[i];
    return value;
}

// The largest element; -inf if there is none. fmax passes over NaN, but a NaN still makes the row's sum NaN.
__device__ __forceinline__ REAL largest(const REAL* x, int size, int stride, int lane, int lanes) {
    REAL top = -__int_as_float(0x7f800000);
    for (int i = lane; i < size; i += lanes) top = fmax(top, x[i * stride]);
    return reduce(top, lanes, true);
}

// y = log softmax of x. Gives the largest element and the logarithm of the sum of e^(x - largest).
__device__ __forceinline__ void log_softmax_row(const REAL* x, REAL* y, int size, int stride, int lane, int lanes,
                                                REAL& top, REAL& log_sum) {
    top = largest(x, size, stride, lane, lanes);
    REAL sum = 0;
    for (int i = lane; i < size; i += lanes) sum += exp(x[i * stride] - top);
    log_sum = log(reduce(sum, lanes, false));
    for (int i = lane; i < size; i += lanes) y[i * stride] = x[i * stride] - top - log_sum;
}
