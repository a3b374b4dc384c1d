// Lines of x in order, in shared memory: x (before, n, inner), of which a line is x[b,:,c], with n up to 4096.
//
// A line's elements become keys, whole numbers that rise as they do, and are sorted with their places by Batcher's
// bitonic network; of equal keys the lower place is the smaller, so that they stay in their order. A line belongs to
// `threads` threads, and a block owns as many lines as it has that many. `size` is the power of two from n on, at least
// 2: what fills it up comes last.
// argsort: order[b,i,c] is the place of the line's element i in rising order, or if `falling` in falling order; NaN
// counts as the largest, and -0 is 0. sum_along: gx[b,i,c] = the sum of gy[b,j,c] over all j with index[b,j,c] = i, in
// their order; gx (before, n, inner), gy and index (before, m, inner). Elements that nothing names are left as they
// are. A number below 0 counts from the end, and one beyond the axis goes on at its start.
// Requires: (bytes of a key + 2) of shared memory for each element of a block's lines, filled up.
#include "include/common.cuh"

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

// One line's keys and places in shared memory, and the threads that sort it.
template <class Key> struct Line {
    Key* keys;
    unsigned short* places;
    int number, thread, threads, size;     // of the line; of this thread among its own

    __device__ __forceinline__ Line(unsigned char* memory, int threads, int size) : threads(threads), size(size) {
        const int slot = threadIdx.x / threads, slots = blockDim.x / threads;
        number = blockIdx.x * slots + slot;
        thread = threadIdx.x % threads;
        keys = (Key*)memory + slot * size;
        places = (unsigned short*)((Key*)memory + slots * size) + slot * size;
    }

    __device__ __forceinline__ void put(int i, Key key) {
        keys[i] = key;
        places[i] = i;
    }

    // All threads of the block call it.
    __device__ __forceinline__ void sort() {
        for (int run = 2; run <= size; run *= 2)
            for (int step = run / 2; step > 0; step /= 2) {
                __syncthreads();
                for (int pair = thread; pair < size / 2; pair += threads) {
                    const int low = 2 * pair - (pair & (step - 1)), high = low + step;
                    const Key a = keys[low], b = keys[high];
                    const unsigned short p = places[low], q = places[high];
                    const bool greater = a > b || (a == b && p > q);
                    if (greater == !(low & run)) {
                        keys[low] = b;
                        keys[high] = a;
                        places[low] = q;
                        places[high] = p;
                    }
                }
            }
        __syncthreads();
    }
};

extern "C" __global__ void argsort(const REAL* x, long long* order, int lines, int n, int inner, int threads, int size,
                                   int falling) {
    extern __shared__ __align__(16) unsigned char memory[];
    typedef decltype(key_of((REAL)0)) Key;
    Line<Key> line(memory, threads, size);
    const bool exists = line.number < lines;
    const unsigned start = line.number / inner * n * inner + line.number % inner;
    for (int i = line.thread; i < size; i += threads) {
        Key key = ~(Key)0;
        if (exists && i < n) {
            key = key_of(x[start + i * inner]);
            if (falling) key = ~key;
        }
        line.put(i, key);
    }
    line.sort();
    if (!exists) return;
    for (int i = line.thread; i < n; i += threads) order[start + i * inner] = line.places[i];
}

extern "C" __global__ void sum_along(const REAL* gy, const long long* index, REAL* gx, int lines, int m, int n,
                                     int inner, int threads, int size) {
    extern __shared__ __align__(16) unsigned char memory[];
    Line<unsigned> line(memory, threads, size);
    const bool exists = line.number < lines;
    const unsigned start = line.number / inner * m * inner + line.number % inner;
    for (int i = line.thread; i < size; i += threads) {
        unsigned key = ~0u;
        if (exists && i < m) {
            const long long at = index[start + i * inner] % n;
            key = (unsigned)(at < 0 ? at + n : at);
        }
        line.put(i, key);
    }
    line.sort();
    if (!exists) return;
    const unsigned to = line.number / inner * n * inner + line.number % inner;
    for (int i = line.thread; i < m; i += threads) {
        const unsigned key = line.keys[i];
        if (i && line.keys[i - 1] == key) continue;
        REAL sum = 0;
        for (int j = i; j < m && line.keys[j] == key; j++) sum += gy[start + line.places[j] * inner];
        gx[to + key * inner] = sum;
    }
}
