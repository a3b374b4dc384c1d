// An index along an axis of n: one below 0 counts from the end, and one beyond the axis wraps around, as in CuPy.
__device__ __forceinline__ int wrapped(long long i, int n) {
    if (i < 0) i += n;
    if (i < 0 || i >= n) i = (i % n + n) % n;
    return (int)i;
}
