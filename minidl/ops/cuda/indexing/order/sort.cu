// Sorts lines of x in shared memory. A line of x (before, n, inner) is x[b,:,c].
//
// A line's elements become integer keys in the same order. Batcher's bitonic network sorts the keys with their places.
// Of equal keys the one with the lower place comes first, so the sort is stable. `threads` threads sort a line, and a
// block owns blockDim.x / threads lines. `size` is the number of keys rounded up to a power of two, at least 2; the
// padding comes last.
// argsort: order (before, count, inner) gets the places of the first `count` elements in rising order, or in falling
// order if `falling`; NaN counts as the largest, and -0 is 0. If `chosen` (lines, m) is given, places in rising order,
// only these are sorted; else m is n.
// Requires: m at most 4096; size * (bytes of a key + 2) of shared memory for each line of a block.
#include "include/common.cuh"
#include "indexing/order/keys.cuh"

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

    // All threads of the block must call it.
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

extern "C" __global__ void argsort(const REAL* x, const int* chosen, long long* order, int lines, int m, int n,
                                   int inner, int count, int threads, int size, int falling) {
    extern __shared__ __align__(16) unsigned char memory[];
    typedef decltype(key_of((REAL)0)) Key;
    Line<Key> line(memory, threads, size);
    const bool exists = line.number < lines;
    const unsigned before = line.number / inner, c = line.number % inner;
    if (chosen) chosen += line.number * m;
    for (int i = line.thread; i < size; i += threads) {
        Key key = ~(Key)0;
        if (exists && i < m) {
            key = key_of(x[(before * n + (chosen ? chosen[i] : i)) * inner + c]);
            if (falling) key = ~key;
        }
        line.put(i, key);
    }
    line.sort();
    if (!exists) return;
    for (int i = line.thread; i < count; i += threads) {
        const int place = line.places[i];
        order[(before * count + i) * inner + c] = chosen ? chosen[place] : place;
    }
}
