// A number along an axis of n: below 0 it counts from the end, and beyond the axis it goes on at its start, as CuPy has
// it.
__device__ __forceinline__ int wrapped(long long i, int n) {
    if (i < 0) i += n;
    if (i < 0 || i >= n) i = (i % n + n) % n;
    return (int)i;
}
