// Random numbers of a key, the ones that the CPU draws: of NumPy's Philox, blocks j = 0, 1, ... of four 64-bit words.
//
// uniform: in [0, 1), the upper 53 bits of a word, or for float the upper 24 of half a word, its lower half first.
// normal: two of each pair u, v of such doubles: r cos(2 pi v) and r sin(2 pi v), r = sqrt(-2 log(1 - u)). In double
// for float too: the CPU's functions and these, rounded to float, are nearly always equal.
// integers: low + word % count.
//
// A thread computes one block, and its four or eight numbers, which are contiguous in y.
// keys: the address of the key, or null; then the key is key0 and key1.
// Requires: a one-dimensional grid with a thread for each block.
#include "include/common.cuh"
#include "include/philox.cuh"

// This thread's block.
__device__ __forceinline__ void draw(Word (&word)[4], const Word* keys, Word key0, Word key1) {
    word[0] = (Word)THREAD + 1, word[1] = word[2] = word[3] = 0;
    philox(word, keys ? keys[0] : key0, keys ? keys[1] : key1);
}

__device__ __forceinline__ double in_0_to_1(Word word) { return (double)(word >> 11) * 0x1p-53; }

extern "C" __global__ void uniform(REAL* y, unsigned size, const unsigned long long* keys, unsigned long long key0,
                                   unsigned long long key1) {
    constexpr unsigned COUNT = 32 / sizeof(REAL);
    Word word[4];
    draw(word, keys, key0, key1);
#pragma unroll
    for (unsigned i = 0; i < COUNT; i++) {
        unsigned half = (unsigned)(word[i / 2 % 4] >> 32 * (i % 2)), at = THREAD * COUNT + i;
        if (at < size) y[at] = COUNT == 8 ? (REAL)(half >> 8) * (REAL)0x1p-24 : (REAL)in_0_to_1(word[i % 4]);
    }
}

extern "C" __global__ void normal(REAL* y, unsigned size, const unsigned long long* keys, unsigned long long key0,
                                  unsigned long long key1) {
    Word word[4];
    draw(word, keys, key0, key1);
#pragma unroll
    for (unsigned i = 0; i < 4; i += 2) {
        double r = sqrt(-2 * log(1 - in_0_to_1(word[i]))), sine, cosine;
        sincospi(2 * in_0_to_1(word[i + 1]), &sine, &cosine);      // sincos has a stack, for angles that are large
        unsigned at = THREAD * 4 + i;
        if (at < size) y[at] = (REAL)(r * cosine);
        if (at + 1 < size) y[at + 1] = (REAL)(r * sine);
    }
}

extern "C" __global__ void integers(long long* y, unsigned size, long long low, unsigned long long count,
                                    const unsigned long long* keys, unsigned long long key0,
                                    unsigned long long key1) {
    Word word[4];
    draw(word, keys, key0, key1);
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        unsigned at = THREAD * 4 + i;
        if (at < size) y[at] = (long long)((Word)low + word[i] % count);
    }
}
