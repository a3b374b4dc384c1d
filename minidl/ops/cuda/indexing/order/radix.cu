// A stable sort of long lines, by 8 bits of their keys in each pass: count, number, move.
//
// A line of keys (before, n, inner) is keys[b,:,c]. `kind` says what they are made from: KEYs already, floating-point
// numbers in rising or falling order (NaN counts as the largest, -0 is 0), or long longs, indices along an axis of
// `range`. Each key carries an ITEM with it: that of `items`, which has the shape of keys, or the key's place along the
// line if `items` is a null pointer. A pass writes (lines, n). The last one may write places to `order`
// (before, n, order_inner) instead.
//
// A block owns a tile of a line. A warp owns a run of neighbours in the tile and reads it 32 at a time. Votes say which
// lanes have the same digit, so a key's rank in its tile needs no atomics. count_digits counts how many keys of a tile
// have each digit. number_tiles makes the sums over the tiles before (a warp owns a digit of a line). move_items sorts
// a tile in shared memory and writes runs of equal digits. Neighbouring blocks own tiles of neighbouring lines.
// Requires: blocks of 512 threads for count_digits and move_items, one for each tile of all lines.
#include "include/common.cuh"
#include "include/wrapped.cuh"
#include "indexing/order/keys.cuh"

#ifndef KEY
#define KEY unsigned
#endif
#ifndef ITEM
#define ITEM unsigned
#endif

struct DigitPass {
    int lines, n, inner, order_inner, tiles, kind, range, shift;
};

enum Kind { READY, RISING, FALLING, PLACES };
constexpr int ROWS = 512, WARPS = ROWS / 32, DIGITS = 256;
constexpr int BYTES = 48;                  // of a thread's keys, and of its items
constexpr int PER_THREAD = BYTES / (sizeof(KEY) > sizeof(ITEM) ? sizeof(KEY) : sizeof(ITEM)), TILE = ROWS * PER_THREAD;

__device__ float number_like(unsigned);
__device__ double number_like(unsigned long long);
typedef decltype(number_like((KEY)0)) Number;

// A block's tile, and this thread's elements in it.
struct Tile {
    int line, number, first, step, n, shift;
    unsigned start;

    __device__ __forceinline__ Tile(const DigitPass& p)
        : line(blockIdx.x % p.lines), number(blockIdx.x / p.lines), step(p.inner), n(p.n), shift(p.shift),
          start(line / p.inner * p.n * p.inner + line % p.inner) {
        first = number * TILE + threadIdx.x / 32 * (32 * PER_THREAD) + threadIdx.x % 32;
    }

    __device__ __forceinline__ bool has(int j) const { return first + 32 * j < n; }
    __device__ __forceinline__ unsigned at(int j) const { return start + (first + 32 * j) * step; }
    __device__ __forceinline__ int digit(KEY key) const { return key >> shift & (DIGITS - 1); }

    // All of a thread's values are under way at the same time.
    template <class T, class Convert>
    __device__ __forceinline__ void read(const KEY* keys, KEY* key, Convert convert) const {
        T value[PER_THREAD];
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) value[j] = has(j) ? ((const T*)keys)[at(j)] : (T)0;
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) key[j] = convert(value[j]);
    }

    __device__ __forceinline__ void read(const KEY* keys, const DigitPass& p, KEY* key) const {
        if (p.kind == READY)
            read<KEY>(keys, key, [](KEY value) { return value; });
        else if (p.kind == PLACES)
            read<long long>(keys, key, [&](long long value) { return (KEY)wrapped(value, p.range); });
        else
            read<Number>(keys, key, [&](Number value) { return p.kind == FALLING ? ~key_of(value) : key_of(value); });
    }

    // counts: how many of each warp's keys have each digit; rank: of each key among its warp's keys of that digit.
    __device__ __forceinline__ void count(const KEY* key, unsigned short counts[][DIGITS], int* rank) const {
        for (int i = threadIdx.x; i < WARPS * DIGITS; i += ROWS) counts[0][i] = 0;
        __syncthreads();
        unsigned short* own = counts[threadIdx.x / 32];
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) {
            const int d = digit(key[j]);
            unsigned peers = __ballot_sync(~0u, has(j));
#pragma unroll
            for (int bit = 0; bit < 8; bit++) {
                const unsigned votes = __ballot_sync(~0u, d >> bit & 1);
                peers &= d >> bit & 1 ? votes : ~votes;
            }
            const int lower = __popc(peers & ((1u << threadIdx.x % 32) - 1));
            rank[j] = own[d] + lower;
            __syncwarp();
            if (has(j) && lower == 0) own[d] += __popc(peers);
            __syncwarp();
        }
        __syncthreads();
    }
};

extern "C" __global__ void __launch_bounds__(512) count_digits(const KEY* keys, int* counts, DigitPass p) {
    __shared__ unsigned short warps[WARPS][DIGITS];
    const Tile tile(p);
    KEY key[PER_THREAD];
    int rank[PER_THREAD];
    tile.read(keys, p, key);
    tile.count(key, warps, rank);
    if (threadIdx.x >= DIGITS) return;
    int count = 0;
    for (int w = 0; w < WARPS; w++) count += warps[w][threadIdx.x];
    counts[(tile.line * DIGITS + threadIdx.x) * p.tiles + tile.number] = count;
}

extern "C" __global__ void number_tiles(int* counts, int* totals, int rows, int tiles) {
    const int row = THREAD / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;               // a whole warp
    counts += row * tiles;
    int total = 0;
#pragma unroll 4
    for (int first = 0; first < tiles; first += 32) {
        const int count = first + lane < tiles ? counts[first + lane] : 0;
        int sum = count;
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(~0u, sum, step);
            if (lane >= step) sum += other;
        }
        if (first + lane < tiles) counts[first + lane] = total + sum - count;
        total += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0) totals[row] = total;
}

extern "C" __global__ void __launch_bounds__(512, 2) move_items(
    const KEY* keys, const ITEM* items, const int* counts, const int* totals, KEY* moved_keys, ITEM* moved,
    long long* order, DigitPass p) {
    __shared__ __align__(8) unsigned char memory[BYTES * ROWS];
    __shared__ unsigned short warps[WARPS][DIGITS];
    __shared__ int starts[DIGITS];
    const Tile tile(p);
    KEY key[PER_THREAD];
    int place[PER_THREAD], to[PER_THREAD];
    tile.read(keys, p, key);
    tile.count(key, warps, place);
    const int digit = threadIdx.x, row = tile.line * DIGITS + digit;
    int count = 0;
    if (digit < DIGITS)
        for (int w = 0; w < WARPS; w++) {
            const int own = warps[w][digit];
            warps[w][digit] = count;
            count += own;
        }
    const int start = sum_before<WARPS>(count);
    const int line_start = sum_before<WARPS>(digit < DIGITS ? totals[row] : 0);
    if (digit < DIGITS) {
        for (int w = 0; w < WARPS; w++) warps[w][digit] += start;
        starts[digit] = line_start + counts[row * p.tiles + tile.number] - start;
    }
    __syncthreads();
    KEY* in_order = (KEY*)memory;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++)
        if (tile.has(j)) {
            place[j] += warps[threadIdx.x / 32][tile.digit(key[j])];
            in_order[place[j]] = key[j];
        }
    __syncthreads();
    const int held = imin(TILE, p.n - tile.number * TILE);
    const unsigned line = tile.line * p.n;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        const int i = threadIdx.x + j * ROWS;
        if (i < held) {
            const KEY next = in_order[i];
            to[j] = starts[tile.digit(next)] + i;
            if (moved_keys) moved_keys[line + to[j]] = next;
        }
    }
    __syncthreads();
    ITEM* carried = (ITEM*)memory;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++)
        if (tile.has(j)) carried[place[j]] = items ? items[tile.at(j)] : (ITEM)(tile.first + 32 * j);
    __syncthreads();
    const unsigned to_start = tile.line / p.order_inner * p.n * p.order_inner + tile.line % p.order_inner;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        const int i = threadIdx.x + j * ROWS;
        if (i >= held) continue;
        if (order)
            order[to_start + to[j] * p.order_inner] = carried[i];
        else
            moved[line + to[j]] = carried[i];
    }
}
