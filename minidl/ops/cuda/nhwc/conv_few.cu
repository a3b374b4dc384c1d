// conv_nhwc (nhwc/conv.cu) for steps of 1 and images of so few channels that 16 bytes hold a pixel: in one launch, from
// images and filters as they are. A block keeps all filters that it owns, FILTERS of them, in shared memory, rounded, and
// takes patches of x in turn (include/patch.cuh), whose pixels are 16 bytes there, absent channels zero; while one is
// multiplied and stored, the next one's pixels are on their way to registers. A group of four warps owns a square of y. A
// product takes two taps: their pixels lie in the patch where the instruction is told to find them, however far apart.
//
// -DIMAGE, -DPRECISION (not TF32X3), -DFILTERS, -DWIDE_Y, -DACT, -DAFTER: as in nhwc/conv.cu; -DTALL 1. -DPIXELS of a
// patch for each thread, at most; -DWIDE: pixels of x are 16 bytes, and begin on multiples of that. back: of the gradient
// of the image, filters turned over, and the other way round.
#include "include/common.cuh"
#include "include/mma.cuh"
#include "include/wgmma.cuh"
#include "include/wgmma_smem.cuh"
#include "include/wgmma_registers.cuh"
#include "include/conv_nhwc.cuh"
#include "include/patch.cuh"
#include "include/conv_tile.cuh"

constexpr int THREADS_PER_BLOCK = 2 * GROUP, SLAB = FILTERS * 128, EACH = 16 / (int)sizeof(IMAGE);

struct alignas(16) Pixel {
    IMAGE v[EACH];
};

__device__ __forceinline__ float rounded(float x) { return __uint_as_float(tf32(x)); }
__device__ __forceinline__ unsigned short rounded(unsigned short x) { return x; }

__device__ __forceinline__ void round_filter(float& to, float v) { to = rounded(v); }
__device__ __forceinline__ void round_filter(unsigned short& to, float v) { to = bf16_pair(v, 0.0f) & 0xffff; }

// From filter `first` on, a row of a slab each, eight taps in a row.
__device__ __forceinline__ void pack_filters(unsigned char* slabs, const float* w, const ConvNhwc& g, int first, int back) {
    const int taps = g.kh * g.kw;
#pragma unroll 4
    for (int i = threadIdx.x; i < ceil_div(taps, 8) * 8 * FILTERS; i += THREADS_PER_BLOCK) {
        const int tap = i / FILTERS, row = i % FILTERS, filter = first + filter_of_row<NEIGHBOURS>(row);
        Pixel piece;
#pragma unroll
        for (int c = 0; c < EACH; ++c) {
            const bool there = tap < taps && c < g.c && filter < g.m;
            round_filter(piece.v[c], there ? w[back ? (c * g.m + filter) * taps + taps - 1 - tap
                                                    : (filter * g.c + c) * taps + tap] : 0.0f);
        }
        *(Pixel*)(slabs + tap / 8 * SLAB + swizzled(row * 128 + tap % 8 * 16)) = piece;
    }
}

// A patch's pixel of x.
__device__ __forceinline__ Pixel load(const IMAGE* x, const ConvNhwc& g, const Tile& tile, const Place& at) {
    const int image = tile.n + at.n, row = tile.h - g.top + at.h, column = tile.w - g.left + at.w;
    const bool inside = image < g.n && (unsigned)row < (unsigned)g.h && (unsigned)column < (unsigned)g.w;
    const IMAGE* from = x + (inside ? ((image * g.h + row) * g.w + column) * g.c : 0);
    Pixel pixel = {};
    if constexpr (WIDE) {
        if (inside) pixel = *(const Pixel*)from;
    } else {
#pragma unroll
        for (int c = 0; c < EACH; ++c)
            if (inside && c < g.c) pixel.v[c] = from[c];
    }
    return pixel;
}

// Where two taps of a product meet a patch, in units of 16 bytes: the first one, and how far the second one is from there.
__device__ __forceinline__ unsigned taps_at(int pair, int taps, int kw, int line) {
    const int tap = 2 * pair, next = imin(tap + 1, taps - 1);            // there may be none, whose filters are zero
    const int first = tap / kw * line + tap % kw, second = next / kw * line + next % kw;
    return first | (unsigned)(second - first) << 16;
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, BLOCKS)
    conv_nhwc_few(const IMAGE* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b,
                  IMAGE* __restrict__ y, ConvNhwc g, Patch patch, int back) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const int taps = g.kh * g.kw, pairs = ceil_div(taps, 2), tiles = ceil_div(g.n, patch.n) * patch.high * patch.wide;
    const int group = threadIdx.x / GROUP, filter = blockIdx.y * FILTERS, size = patch.n * patch.lines * patch.line;
    unsigned char* patches = memory + ceil_div(taps, 8) * SLAB;          // two
    unsigned* meets = (unsigned*)(patches + 2 * patch.bytes);            // as taps_at says
    Place own[2], pixel[PIXELS];                                         // of y, and of a patch
    Pixel coming[PIXELS];
    Tile tile(patch, g, blockIdx.x);
#pragma unroll
    for (int i = 0; i < PIXELS; ++i) {
        const int at = threadIdx.x + i * THREADS_PER_BLOCK, line = at / patch.line, image = line / patch.lines;
        pixel[i] = {at < size ? image : g.n, line - image * patch.lines, at - line * patch.line};
        coming[i] = load(x, g, tile, pixel[i]);
    }
    pack_filters(memory, w, g, filter, back);
    if ((int)threadIdx.x < pairs) meets[threadIdx.x] = taps_at(threadIdx.x, taps, g.kw, patch.line);
#pragma unroll
    for (int t = 0; t < 2; ++t) own[t] = pixel_of(patch, group * 64 + own_pixel(t));
    const Place square = square_of(patch, group);
    const int start = ((square.n * patch.lines + square.h) * patch.line + square.w) * 16;
    const int apart = (patch.images ? patch.lines : 1) * patch.line * 16;
    int turn = 0;
    for (int number = blockIdx.x; number < tiles; number += gridDim.x, turn ^= 1) {
        unsigned char* pixels = patches + turn * patch.bytes;
#pragma unroll
        for (int i = 0; i < PIXELS; ++i) {
            if (threadIdx.x + i * THREADS_PER_BLOCK >= size) break;
#pragma unroll
            for (int c = 0; c < EACH; ++c) coming[i].v[c] = rounded(coming[i].v[c]);
            ((Pixel*)pixels)[threadIdx.x + i * THREADS_PER_BLOCK] = coming[i];
        }
        publish();
        __syncthreads();                                                 // and everybody is done with the patch before
        int at[2];
#pragma unroll
        for (int t = 0; t < 2; ++t) at[t] = tile.index(own[t]);
        if (number + (int)gridDim.x < tiles) {
            tile.go(number + gridDim.x);
#pragma unroll
            for (int i = 0; i < PIXELS; ++i) coming[i] = load(x, g, tile, pixel[i]);
        }
        const unsigned long long rows = blocks_of(pixels + start, 0, apart);
        float sums[1][PAIRS] = {};
        unsigned next = meets[0];
        begin_products();
#pragma unroll 1
        for (int pair = 0; pair < pairs; ++pair) {
            const unsigned long long columns = factor(memory + pair / 4 * SLAB + pair % 4 * 32), meet = rows + next;
            next = meets[imin(pair + 1, pairs - 1)];
            wgmma_both(sums[0], meet, columns);
        }
        end_products();
        await_products<0>();
        store_tile(sums, y, b, g, at, filter);
    }
}
