// Copies between arrays that a captured graph owns and those that each of its replays is given anew.
//
// Before the host starts a replay, it writes the addresses of the replay's arrays into a row of a table, in the host's
// memory: row 0, 1, ..., `rows` - 1, and from the first on again. read_given, one block, brings the next row to the
// device, once for all copies: reads of the host's memory are not cached, and each block of a copy would make one. It
// counts by itself which row is next, so no launch has to say it. turn: zero at first.
//
// Block (b, k) of copy_given has every gridDim.x-th part of copy k: from column first + k of the row to the graph's own
// array, or back. own: the address and the bytes of each of these. A thread copies 16 bytes at a time, or 4, or one, as
// both arrays allow. Requires: a grid of (any number, copies).
#include "include/common.cuh"

template <class T> __device__ __forceinline__ void copy_part(const char* from, char* to, unsigned long long bytes) {
    for (unsigned long long i = THREAD; i < bytes / sizeof(T); i += THREADS) {
        ((T*)to)[i] = ((const T*)from)[i];
    }
}

extern "C" __global__ void read_given(const unsigned long long* table, unsigned long long* row, int* turn, int rows,
                                      int columns) {
    const int at = *turn;
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        row[i] = ((const volatile unsigned long long*)table)[at * columns + i];
    __syncthreads();                       // all have read the turn
    if (threadIdx.x == 0) *turn = at + 1 == rows ? 0 : at + 1;
}

extern "C" __global__ void copy_given(const unsigned long long* row, const unsigned long long* own, int first,
                                      int back) {
    unsigned long long given = row[first + blockIdx.y], mine = own[2 * blockIdx.y], bytes = own[2 * blockIdx.y + 1];
    const char* from = (const char*)(back ? mine : given);
    char* to = (char*)(back ? given : mine);
    switch ((mine | given | bytes) % 16) {
        case 0: copy_part<int4>(from, to, bytes); break;
        case 4: case 8: case 12: copy_part<int>(from, to, bytes); break;
        default: copy_part<char>(from, to, bytes);
    }
}
