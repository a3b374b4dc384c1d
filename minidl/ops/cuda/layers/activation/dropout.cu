// Dropout with the mask that the CPU draws: y = x / (1 - p) if the i-th float32 of Philox(key) is at least p, else 0.
//
// NumPy's Philox gives blocks j = 0, 1, ... of four 64-bit words. A word is two 32-bit numbers, low half first, and a
// float32 is the upper 24 bits of one: block j decides elements 8j to 8j + 7. A thread computes one block and keeps 8
// bits of it; a warp owns 256 elements, which its lanes then handle side by side, each asking the lane that holds the
// bit: reads and writes are coalesced.
// keys: the address of the key, or null: then the key is key0 and key1.
// Requires: blockDim.x a multiple of 32, and a thread for every 8 elements.
#include "include/common.cuh"
#include "include/philox.cuh"

// Which of the 8 numbers of block j are at least p: bit i for number i.
__device__ __forceinline__ unsigned at_least(float p, Word j, Word key0, Word key1) {
    Word word[4] = {j + 1, 0, 0, 0};
    philox(word, key0, key1);
    unsigned bits = 0;
    for (int i = 0; i < 8; i++) {
        unsigned number = (unsigned)(word[i / 2] >> 32 * (i % 2));
        bits |= (unsigned)((float)(number >> 8) * 0x1p-24f >= p) << i;
    }
    return bits;
}

extern "C" __global__ void dropout(const REAL* x, REAL* y, unsigned size, float p, REAL keep,
                                   const unsigned long long* keys, unsigned long long key0, unsigned long long key1) {
    if (keys) {
        key0 = keys[0];
        key1 = keys[1];
    }
    const unsigned lane = threadIdx.x % 32, first = (THREAD - lane) * 8 + lane;
    REAL own[8];  // read before the draws, which take as long
#pragma unroll
    for (unsigned step = 0; step < 8; step++) {
        const unsigned i = first + step * 32;
        own[step] = i < size ? x[i] : (REAL)0;
    }
    const unsigned bits = at_least(p, THREAD, key0, key1);
#pragma unroll
    for (unsigned step = 0; step < 8; step++) {
        const unsigned holder = __shfl_sync(~0u, bits, step * 4 + lane / 8), i = first + step * 32;
        if (i < size) y[i] = holder >> lane % 8 & 1 ? own[step] / keep : (REAL)0;
    }
}
