// What every kernel file shares: the geometries that ops/common/geometry computes, and a few one-line helpers.
#ifndef REAL
#define REAL float
#endif

// Sizes of a pooling: images n, channels c, input h w, window kh kw, output oh ow, stride, padding.
struct Window {
    int n, c, h, w, kh, kw, oh, ow, sh, sw, top, bottom, left, right;
};

// Sizes of a convolution: as Window, with m filters.
struct Geometry {
    int n, c, h, w, m, kh, kw, oh, ow, sh, sw, top, bottom, left, right;
};

// This thread's number in a one-dimensional grid, and how many there are: for loops over any number of elements.
#define THREAD (blockIdx.x * blockDim.x + threadIdx.x)
#define THREADS (gridDim.x * blockDim.x)

__device__ __forceinline__ int ceil_div(int a, int b) { return (a + b - 1) / b; }

__device__ __forceinline__ int imin(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int imax(int a, int b) { return a > b ? a : b; }

// Element (r, s) of an h x w plane; zero outside it.
__device__ __forceinline__ REAL inside(const REAL* plane, int r, int s, int h, int w) {
    return (unsigned)r < (unsigned)h && (unsigned)s < (unsigned)w ? plane[r * w + s] : (REAL)0;
}

// The windows that meet padded position `at` of an axis: from first_meeting to last_meeting, for a filter of k taps.
__device__ __forceinline__ int first_meeting(int at, int k, int stride) { return at < k ? 0 : (at - k) / stride + 1; }
__device__ __forceinline__ int last_meeting(int at, int stride, int outputs) { return imin(outputs - 1, at / stride); }

// V neighbours in memory, read and written with one instruction if they start at a multiple of their size.
template <int V> struct alignas(sizeof(REAL) * V) Pack {
    REAL v[V];
};

// Start copying one T (4, 8 or 16 bytes) into shared memory, or zeros if it is not valid. The copies of a thread have
// arrived once it has called await_copies, and those of its block after the barrier that follows.
template <class T> __device__ __forceinline__ void start_copy(T* to, const T* from, bool valid) {
#if __CUDA_ARCH__ >= 800
    unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(sizeof(T)),
                 "r"(valid ? (int)sizeof(T) : 0)
                 : "memory");
#else
    T zero = {};
    *to = valid ? *from : zero;
#endif
}

// Close a group of started copies.
__device__ __forceinline__ void end_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until at most `later` of this thread's youngest groups are under way.
template <int later> __device__ __forceinline__ void await_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(later) : "memory");
#endif
}

// Counts threadIdx.x, threadIdx.x + threads, ... in three digits, high * mids * lows + middle * lows + low: dividing
// once at the start instead of at each step.
struct Odometer {
    int high, middle, low, mids, lows, step_high, step_middle, step_low;

    __device__ __forceinline__ Odometer(int threads, int mids, int lows) : mids(mids), lows(lows) {
        split(threadIdx.x, high, middle, low);
        split(threads, step_high, step_middle, step_low);
    }

    __device__ __forceinline__ void split(int number, int& high, int& middle, int& low) const {
        middle = number / lows;
        low = number - middle * lows;
        high = middle / mids;
        middle -= high * mids;
    }

    __device__ __forceinline__ void next() {
        low += step_low;
        middle += step_middle;
        high += step_high;
        if (low >= lows) {
            low -= lows;
            ++middle;
        }
        if (middle >= mids) {
            middle -= mids;
            ++high;
        }
    }
};
