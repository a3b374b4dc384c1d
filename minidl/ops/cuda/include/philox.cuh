// NumPy's generator Philox4x64-10 (Salmon et al., SC 2011): numbers by a counter, so that any thread draws any of them.

typedef unsigned long long Word;

// A counter of four words becomes the block of four that it gives. NumPy's block j = 0, 1, ... is of {j + 1, 0, 0, 0}.
__device__ __forceinline__ void philox(Word (&word)[4], Word key0, Word key1) {
    for (int round = 0; round < 10; round++) {
        Word high0 = __umul64hi(0xD2E7470EE14C6C93ull, word[0]), low0 = 0xD2E7470EE14C6C93ull * word[0];
        Word high1 = __umul64hi(0xCA5A826395121157ull, word[2]), low1 = 0xCA5A826395121157ull * word[2];
        word[0] = high1 ^ word[1] ^ key0, word[1] = low1;
        word[2] = high0 ^ word[3] ^ key1, word[3] = low0;
        key0 += 0x9E3779B97F4A7C15ull, key1 += 0xBB67AE8584CAA73Bull;
    }
}
