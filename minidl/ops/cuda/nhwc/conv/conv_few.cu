// conv_nhwc (conv.cu) for images of so few channels that 16 bytes hold a pixel: in one launch, from images and filters
// as they are. A block keeps its FILTERS filters in shared memory, rounded, and takes patches of x in turn (patch.cuh).
// Pixels of a patch are 16 bytes there, absent channels zero. While one patch is multiplied, the next one's pixels are
// read into registers. A group of four warps owns a square of y, and writes it to shared memory; the hardware copies it
// from there while the next patch is multiplied. A product takes two taps. Their pixels may be any distance apart in
// the patch, since the instruction is told where they are.
//
// Strides: FOLD neighbours of a row are one pixel of a patch if 16 bytes hold them; FOLD divides the stride. So there
// are fewer taps, and less of each is zero. A line of a patch has first every sw-th of its pixels, then those next to
// them, and so on (sw: the stride that is left), so that pixels which neighbours in y meet are neighbours: the
// instruction takes eight in 128 bytes. Taps of a row are in the same order, because the second one of a product must
// be after the first.
//
// -DIMAGE, -DPRECISION (not TF32X3), -DFILTERS, -DWIDE_Y, -DACT, -DAFTER: as in conv.cu; -DTALL 1. -DPIXELS: of a patch
// for each thread, at most; -DFOLD; -DWIDE: pixels of x are 16 bytes, and start at multiples of 16 bytes, FOLD 1;
// -DCOPIED: the hardware copies y, in boxes of ROWS rows of a square by DEPTH filters of the array `squares`; else
// threads store it. back: of the gradient of the image, with filters flipped and transposed. streamed: y is more than
// the L2 cache holds, and leaves room there for x.
#include "include/common.cuh"
#include "include/tensor_cores/mma.cuh"
#include "include/tensor_cores/wgmma.cuh"
#include "include/tensor_cores/wgmma_smem.cuh"
#include "include/tensor_cores/wgmma_registers.cuh"
#include "include/tensor_cores/tma.cuh"
#include "include/nhwc/conv_nhwc.cuh"
#include "include/nhwc/patch.cuh"
#include "include/nhwc/conv_tile.cuh"

constexpr int THREADS_PER_BLOCK = 2 * GROUP, SLAB = FILTERS * 128, PER_PIECE = 16 / (int)sizeof(IMAGE);
// A square of y in shared memory: BOXES of 64 rows, as wgmma_smem.cuh says; each row is a pixel's filters. A lane
// writes 32 bytes of a row, so eight lanes at once write to all banks, whatever the swizzle
constexpr int BOX = 64 * 128, BOXES = FILTERS / DEPTH, SQUARE = COPIED ? BOXES * BOX : 0;
constexpr int ORDER = COPIED ? 2 * NEIGHBOURS : NEIGHBOURS;              // a lane's neighbours in y

// Taps of a row of the filter, and the stride along rows, in pixels of a patch.
__device__ __forceinline__ int row_taps(const ConvNhwc& g) { return ceil_div(g.kw, FOLD); }
__device__ __forceinline__ int row_step(const ConvNhwc& g) { return g.sw / FOLD; }

// Which tap of its row is the i-th in a product's order. The first places in a stride may have one tap more.
__device__ __forceinline__ int tap_of(const ConvNhwc& g, int i) {
    const int step = row_step(g), few = row_taps(g) / step, more = row_taps(g) % step, of_more = more * (few + 1);
    const bool behind = i >= of_more;
    const int same = few + !behind, at = i - behind * of_more, first = at / same;
    return behind * more + first + (at - first * same) * step;
}

struct alignas(16) Pixel {
    IMAGE v[PER_PIECE];
};

struct alignas(8) Two {
    float v[2];
};

__device__ __forceinline__ float rounded(float x) { return __uint_as_float(tf32(x)); }
__device__ __forceinline__ unsigned short rounded(unsigned short x) { return x; }

__device__ __forceinline__ void round_filter(float& to, float v) { to = rounded(v); }
__device__ __forceinline__ void round_filter(unsigned short& to, float v) { to = bf16_pair(v, 0.0f) & 0xffff; }

// Packs filters from `first` on: each is a row of a slab, with eight taps in a row. taps_of_w: for each tap, its first
// one of w, and how many of w's row are left from there.
__device__ __forceinline__ void pack_filters(unsigned char* slabs, const float* w, const ConvNhwc& g, const int2* taps_of_w,
                                             int first, int back) {
    const int taps = g.kh * row_taps(g), whole = g.kh * g.kw;
#pragma unroll 4
    for (int i = threadIdx.x; i < ceil_div(taps, 8) * 8 * FILTERS; i += THREADS_PER_BLOCK) {
        const int tap = i / FILTERS, row = i % FILTERS, filter = first + filter_of_row<ORDER>(row);
        const int2 of_w = taps_of_w[imin(tap, taps - 1)];
        Pixel piece;
#pragma unroll
        for (int e = 0; e < PER_PIECE; ++e) {
            const int beside = FOLD == 1 ? 0 : e / g.c, c = e - beside * g.c, at = of_w.x + beside;
            const bool there = tap < taps && c < g.c && filter < g.m && beside < imin(FOLD, of_w.y);
            round_filter(piece.v[e], there ? w[back ? (c * g.m + filter) * whole + whole - 1 - at
                                                    : (filter * g.c + c) * whole + at] : 0.0f);
        }
        *(Pixel*)(slabs + tap / 8 * SLAB + swizzled(row * 128 + tap % 8 * 16)) = piece;
    }
}

// A patch's pixel of x.
__device__ __forceinline__ Pixel load(const IMAGE* x, const ConvNhwc& g, const Tile& tile, const Place& at) {
    const int image = tile.n + at.n, row = tile.h * g.sh - g.top + at.h, column = tile.w * g.sw - g.left + at.w * FOLD;
    const bool inside = image < g.n && (unsigned)row < (unsigned)g.h && (FOLD > 1 || (unsigned)column < (unsigned)g.w);
    const int first = column * g.c, width = g.w * g.c;                   // numbers of a row
    const IMAGE* from = x + (inside ? (image * g.h + row) * width + first : 0);
    Pixel pixel = {};
    if constexpr (WIDE) {
        if (inside) pixel = *(const Pixel*)from;
    } else {
#pragma unroll
        for (int c = 0; c < PER_PIECE; ++c)
            if (inside && c < FOLD * g.c && (FOLD == 1 || (unsigned)(first + c) < (unsigned)width)) pixel.v[c] = from[c];
    }
    return pixel;
}

// A thread's pixels of a patch, rounded, to shared memory.
__device__ __forceinline__ void put(Pixel* patch, Pixel (&coming)[PIXELS], int size) {
#pragma unroll
    for (int i = 0; i < PIXELS; ++i) {
        const int at = threadIdx.x + i * THREADS_PER_BLOCK;
        if (at >= size) break;
#pragma unroll
        for (int c = 0; c < PER_PIECE; ++c) coming[i].v[c] = rounded(coming[i].v[c]);
        patch[at] = coming[i];
    }
}

// Where a lane's 32 bytes of its first row are in a box; rows eight apart are swizzled alike.
__device__ __forceinline__ int place_in_box() { return swizzled(own_pixel(0) * 128 + threadIdx.x % 4 * 32); }

// A lane's sums as y, to its group's square in shared memory.
__device__ __forceinline__ void put_square(unsigned char* square, int place, const float (&sums)[PAIRS]) {
#pragma unroll
    for (int piece = 0; piece < PAIRS / 2 / PER_PIECE; ++piece)
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            Neighbours found;
#pragma unroll
            for (int e = 0; e < PER_PIECE; e += 2) {
                const float* of = sums + (piece * PER_PIECE + e) * 2 + t * 2;
                fill(found.v + e, after(of[0]), after(of[1]));
            }
            *(Neighbours*)(square + piece / 2 * BOX + t * 8 * 128 + (place ^ piece % 2 * 16)) = found;
        }
}

// Where the i-th tap meets a patch, in units of 16 bytes.
__device__ __forceinline__ int meets_at(const ConvNhwc& g, int i, int line) {
    const int across = row_taps(g), step = row_step(g), r = i / across, s = tap_of(g, i - r * across);
    return r * line + s % step * (line / step) + s / step;
}

// Where two taps of a product meet it: the first one, and how far the second one is from there.
__device__ __forceinline__ unsigned taps_at(const ConvNhwc& g, int pair, int taps, int line) {
    const int first = meets_at(g, 2 * pair, line);
    const int second = meets_at(g, imin(2 * pair + 1, taps - 1), line);  // there may be none, whose filters are zero
    return first | (unsigned)(second - first) << 16;
}

// A factor `by` units of 16 bytes further.
__device__ __forceinline__ unsigned long long further(unsigned long long factor, unsigned by) {
    return (factor & ~0xffffffffull) | (unsigned)factor + by;
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, BLOCKS)
    conv_nhwc_few(const __grid_constant__ TensorMap squares, const IMAGE* __restrict__ x, const float* __restrict__ w,
                  const float* __restrict__ b, IMAGE* __restrict__ y, ConvNhwc g, Patch patch, int back, int streamed) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const int taps = g.kh * row_taps(g), pairs = ceil_div(taps, 2), tiles = ceil_div(g.n, patch.n) * patch.high * patch.wide;
    const int group = threadIdx.x / GROUP, filter = blockIdx.y * FILTERS, size = patch.n * patch.lines * patch.line;
    const bool copies = COPIED && threadIdx.x % GROUP == 0;              // for its group
    // The patch is first: compute-sanitizer takes a factor for 2,048 bytes in a row, and these must not be too many
    unsigned char *pixels = memory, *slabs = pixels + patch.bytes;
    unsigned char* own_square = slabs + ceil_div(taps, 8) * SLAB + group * SQUARE;
    Two* biases = (Two*)(own_square + (2 - group) * SQUARE);             // in the order of the rows of filters
    unsigned* meets = (unsigned*)(biases + FILTERS / 2);                 // as taps_at says
    // A table, because ptxas makes products wait for each other (C7519) if pack_filters divides
    int2* taps_of_w = (int2*)(meets + pairs + pairs % 2);
    Place pixel[PIXELS];                                                 // of a patch
    Pixel coming[PIXELS];
    Tile tile(patch, g, blockIdx.x);
    const Tile step(patch, g, gridDim.x);
#pragma unroll
    for (int i = 0; i < PIXELS; ++i) {
        const int at = threadIdx.x + i * THREADS_PER_BLOCK, line = at / patch.line, image = line / patch.lines;
        const int place = at - line * patch.line, same = patch.line / row_step(g);
        pixel[i] = {at < size ? image : g.n, line - image * patch.lines, place % same * row_step(g) + place / same};
        coming[i] = load(x, g, tile, pixel[i]);
    }
    for (int tap = threadIdx.x; tap < taps; tap += THREADS_PER_BLOCK) {
        const int r = tap / row_taps(g), s = tap_of(g, tap - r * row_taps(g)) * FOLD;
        taps_of_w[tap] = make_int2(r * g.kw + s, g.kw - s);
    }
    __syncthreads();
    pack_filters(slabs, w, g, taps_of_w, filter, back);
    if (threadIdx.x < FILTERS) {
        const int f = filter + filter_of_row<ORDER>(threadIdx.x);
        ((float*)biases)[threadIdx.x] = b && f < g.m ? b[f] : 0.0f;
    }
    if ((int)threadIdx.x < pairs) meets[threadIdx.x] = taps_at(g, threadIdx.x, taps, patch.line);
    const Place square = square_of(patch, group), own = pixel_of(patch, square, own_pixel(0));
    const Place below = {own.n + (patch.images ? 1 : 0), own.h + (patch.images ? 0 : 1), own.w};
    const int start = ((square.n * patch.lines + square.h * g.sh) * patch.line + square.w) * 16;
    const unsigned long long rows = blocks_of(pixels + start, 0, (patch.images ? patch.lines : g.sh) * patch.line * 16);
    const unsigned long long filters = factor(slabs);
    const int place = place_in_box();
    const unsigned long long policy = eviction(streamed);
    put((Pixel*)pixels, coming, size);
    publish();
    __syncthreads();
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
        const Place first = {tile.n + square.n, tile.h + square.h, tile.w + square.w};
        const int at[2] = {tile.index(own), tile.index(below)};
        if (number + (int)gridDim.x < tiles) {
            tile.skip(step);
#pragma unroll
            for (int i = 0; i < PIXELS; ++i) coming[i] = load(x, g, tile, pixel[i]);
        }
        float sums[1][PAIRS];
#pragma unroll
        for (int i = 0; i < PAIRS; i += 4) {
            const Two bias = biases[i + threadIdx.x % 4];
            sums[0][i] = sums[0][i + 2] = bias.v[0];
            sums[0][i + 1] = sums[0][i + 3] = bias.v[1];
        }
        unsigned next = meets[0];
        begin_products();
        int pair = 0;
#pragma unroll 1
        do {
            const unsigned long long meet = further(rows, next);
            const unsigned long long columns = further(filters, pair / 4 * (SLAB / 16) + pair % 4 * 2);
            next = meets[imin(++pair, pairs - 1)];
            wgmma_both(sums[0], meet, columns);
        } while (pair < pairs);
        end_products();
        await_products<0>();
        if constexpr (!COPIED) store_tile(sums, y, nullptr, g, at, filter);
        if (copies) await_stores();
        __syncthreads();                                                 // patch and squares may be written
        if constexpr (COPIED) put_square(own_square, place, sums[0]);
        put((Pixel*)pixels, coming, size);
        publish();
        __syncthreads();                                                 // and now be read
        if (copies) {
            for (int i = 0; i < BOXES * 8 / ROWS; ++i) {                 // neighbours in y one after the other
                const int box = i % BOXES, down = i / BOXES * ROWS;
                if (filter + box * DEPTH < g.m)
                    store_pixels(&squares, own_square + box * BOX + down * 8 * 128, filter + box * DEPTH, first.w,
                                 first.h + (patch.images ? 0 : down), first.n + (patch.images ? down : 0), policy);
            }
            end_stores();
        }
    }
    if (copies) await_stores();                                          // shared memory stays until then
}
