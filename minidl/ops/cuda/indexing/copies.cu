// Up to 128 copies in one launch: boxes of up to 6 axes. Each axis has a stride for reading and one for writing; that
// for reading may be negative. blockIdx.y is the number of a copy.
//
// The table, passed by value, holds for each copy its kind and the addresses that it reads and writes. If the address
// to read is 0, all of the copy is `value`. For each kind it holds the sizes and strides, in UNITs, of the axes, the
// innermost first, and what divides by a size (see divided).
// Requires: addresses that are multiples of a UNIT; fewer than 2^31 UNITs per copy, and per stride.
#include "include/common.cuh"

#define PARTS 128
#define KINDS 8
#define AXES 6
#define ALL_AXES 48  // KINDS * AXES
#define AHEAD 4      // values that a thread reads before it writes them
#define TILE 1536    // values of a tile with its padding, see copy_tiles
#ifndef UNIT
#define UNIT unsigned
#endif

struct Boxes {
    unsigned long long from[PARTS], to[PARTS], value;
    unsigned magic[ALL_AXES], size[ALL_AXES];
    int shift[ALL_AXES], from_stride[ALL_AXES], to_stride[ALL_AXES];
    int axes[KINDS], count[KINDS], low[KINDS], high[KINDS], kind[PARTS];
};

// i / size for an i below 2^31, by a product: a division takes a GPU twenty instructions. magic is
// 2^(31 + shift) / size, rounded up, and 2^shift the power of two that is at least size (Granlund and Montgomery 1994,
// section 4).
__device__ __forceinline__ unsigned divided(unsigned i, unsigned magic, int shift) {
    return (unsigned)((unsigned long long)(2 * i) * magic >> 32) >> shift;
}

// A value of up to 8 bytes, repeated to fill 8 bytes, as a UNIT.
template <class T> __device__ __forceinline__ void set(T& unit, unsigned long long value) { unit = (T)value; }
__device__ __forceinline__ void set(int4& unit, unsigned long long value) {
    unit.x = unit.z = (int)value;
    unit.y = unit.w = (int)(value >> 32);
}

// Copies the UNITs e, e + THREADS, ... of N, counted along the target. All are read before the first is written.
template <int N> __device__ __forceinline__ void copied(const Boxes& table, int part, int first, int last, unsigned e) {
    const UNIT* from = (const UNIT*)table.from[part];
    UNIT* to = (UNIT*)table.to[part];
    UNIT unit[N];
    unsigned rest[N];
    long long here[N], there[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
        rest[k] = e + k * THREADS;
        here[k] = there[k] = 0;
    }
    for (int a = first; a <= last; a++) {
        const unsigned size = table.size[a], magic = table.magic[a];
        const int shift = table.shift[a], from_stride = table.from_stride[a], to_stride = table.to_stride[a];
#pragma unroll
        for (int k = 0; k < N; k++) {
            const unsigned next = a < last ? divided(rest[k], magic, shift) : 0;
            const int at = rest[k] - next * size;
            here[k] += (long long)at * from_stride;
            there[k] += (long long)at * to_stride;
            rest[k] = next;
        }
    }
#pragma unroll
    for (int k = 0; k < N; k++) {
        if (from)
            unit[k] = from[here[k]];
        else
            set(unit[k], table.value);
    }
#pragma unroll
    for (int k = 0; k < N; k++) to[there[k]] = unit[k];
}

extern "C" __global__ void copy_boxes(const Boxes table) {
    const int part = blockIdx.y, kind = table.kind[part], first = kind * AXES, last = first + table.axes[kind] - 1;
    const unsigned count = table.count[kind];
    for (unsigned e = THREAD; e < count;)
        if (e + (AHEAD - 1) * THREADS < count) {
            copied<AHEAD>(table, part, first, last, e);
            e += AHEAD * THREADS;
        } else if (e + THREADS < count) {
            copied<2>(table, part, first, last, e);
            e += 2 * THREADS;
        } else {
            copied<1>(table, part, first, last, e);
            e += THREADS;
        }
}

// Transpositions: axis 0 is the innermost of the target, axis 1 that of the source. A block reads tiles of 2^high by
// 2^low values along the source into shared memory, and writes them along the target. `count` is the number of tiles;
// divided() of axes 0 and 1 is by the number of tiles across and down. low + high is at most 10. Requires:
// AHEAD * blockDim.x = 1024.
extern "C" __global__ void __launch_bounds__(256, 5) copy_tiles(const Boxes table) {
    __shared__ UNIT tile[TILE];
    const int part = blockIdx.y, kind = table.kind[part], first = kind * AXES, last = first + table.axes[kind] - 1;
    const int low = table.low[kind], high = table.high[kind], rows = table.size[first], columns = table.size[first + 1];
    const int from_row = table.from_stride[first], from_column = table.from_stride[first + 1];
    const int to_row = table.to_stride[first], to_column = table.to_stride[first + 1];
    const int pitch = (1 << high) + imax(1, 32 >> low), values = 1 << (low + high);        // without conflicts of banks
    const unsigned across = (columns - 1 >> low) + 1, down = (rows - 1 >> high) + 1;
    const UNIT* from = (const UNIT*)table.from[part];
    UNIT* to = (UNIT*)table.to[part];
    for (unsigned n = blockIdx.x; n < (unsigned)table.count[kind]; n += gridDim.x) {
        unsigned rest = divided(n, table.magic[first], table.shift[first]);
        const int column = (int)(n - rest * across) << low;
        unsigned next = divided(rest, table.magic[first + 1], table.shift[first + 1]);
        const int row = (int)(rest - next * down) << high;
        rest = next;
        long long here = (long long)row * from_row + (long long)column * from_column;
        long long there = (long long)row * to_row + (long long)column * to_column;
        for (int a = first + 2; a <= last; a++) {
            next = divided(rest, table.magic[a], table.shift[a]);
            const int at = rest - next * table.size[a];
            here += (long long)at * table.from_stride[a];
            there += (long long)at * table.to_stride[a];
            rest = next;
        }
        UNIT unit[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int i = threadIdx.x + k * blockDim.x, c = i & ((1 << low) - 1), r = i >> low;
            if (i < values && row + r < rows && column + c < columns)
                unit[k] = from[here + (long long)r * from_row + (long long)c * from_column];
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int i = threadIdx.x + k * blockDim.x, c = i & ((1 << low) - 1), r = i >> low;
            if (i < values && row + r < rows && column + c < columns) tile[c * pitch + r] = unit[k];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int i = threadIdx.x + k * blockDim.x, r = i & ((1 << high) - 1), c = i >> high;
            if (i < values && row + r < rows && column + c < columns)
                to[there + (long long)r * to_row + (long long)c * to_column] = tile[c * pitch + r];
        }
        __syncthreads();
    }
}
