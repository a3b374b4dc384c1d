// Copies between arrays that a captured graph owns and those that each of its replays is given anew.
//
// The host writes the addresses of what a replay is given into a row of a table, in its own memory, before it starts the
// replay: row 0, 1, ..., `rows` - 1, and from the first on again. A block counts by itself which row is next, so that no
// launch says it. Block (b, k) has every gridDim.x-th part of copy k: from column first + k to the graph's own array, or
// back. own: the address and the bytes of each of these. A thread copies 16 bytes at a time, or 4, or one, as both
// arrays allow. Requires: a grid of (any number, copies); turns: a number for each block, zero at first.
#include "include/common.cuh"

template <class T> __device__ __forceinline__ void copy_part(const char* from, char* to, unsigned long long bytes) {
    for (unsigned long long i = THREAD; i < bytes / sizeof(T); i += THREADS) {
        ((T*)to)[i] = ((const T*)from)[i];
    }
}

extern "C" __global__ void copy_given(const unsigned long long* table, const unsigned long long* own, int* turns,
                                      int rows, int columns, int first, int back) {
    __shared__ unsigned long long given;
    if (threadIdx.x == 0) {
        int* turn = turns + blockIdx.y * gridDim.x + blockIdx.x;
        given = ((const volatile unsigned long long*)table)[*turn * columns + first + blockIdx.y];
        *turn = *turn + 1 == rows ? 0 : *turn + 1;
    }
    __syncthreads();
    unsigned long long mine = own[2 * blockIdx.y], bytes = own[2 * blockIdx.y + 1];
    const char* from = (const char*)(back ? mine : given);
    char* to = (char*)(back ? given : mine);
    switch ((mine | given | bytes) % 16) {
        case 0: copy_part<int4>(from, to, bytes); break;
        case 4: case 8: case 12: copy_part<int>(from, to, bytes); break;
        default: copy_part<char>(from, to, bytes);
    }
}
