// Padded images in shared memory as tensor cores want their numbers: rounded to tf32, or split in two such.
// -DPRECISION: TF32 or TF32X3, and the constants of conv/resident/resident.cuh.
#include "conv/resident/resident.cuh"
#include "include/mma.cuh"

constexpr int PARTS = PRECISION == TF32X3 ? 2 : 1;       // numbers that an operand is split into

struct Picture {
    int n, c, h, w, m, oh, ow, top, left;    // source planes, result maps and planes, padding
    int ph, pw, images;                      // a padded plane in shared memory; images there, always 1
};

// Part 0 of a number is it rounded to tf32, part 1 what that has lost.
__device__ __forceinline__ unsigned part_of(float x, int part) {
    return tf32(part ? x - __uint_as_float(tf32(x)) : x);
}

// Numbers in shared memory become part 0 of themselves; part 1 stands `size`, a multiple of 4, further on.
__device__ __forceinline__ void split(REAL* numbers, int size) {
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < size; i += THREADS_A_BLOCK * 4) {
        Pack<4> whole = *(Pack<4>*)&numbers[i], out;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
#pragma unroll
            for (int e = 0; e < 4; ++e) out.v[e] = __uint_as_float(part_of(whole.v[e], part));
            *(Pack<4>*)&numbers[part * size + i] = out;
        }
    }
}
