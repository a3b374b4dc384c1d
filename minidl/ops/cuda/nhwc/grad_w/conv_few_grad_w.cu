// Gradient of the filters of a convolution of images of few channels in NHWC by mma, of float32 in tf32 or of bf16,
// with any strides: dw[m][tap, c] is a product whose sums run over all pixels, split among blocks.
//
// A block owns 64 filters and takes some of all tiles of HEIGHT x WIDTH outputs in turn. It reads STAGES - 1 tiles
// ahead: gradients, 64 numbers of a pixel, and what they meet of x, in pixels of 16 bytes, absent numbers zero. Pixels
// that are STEP apart in a row are stored next to each other, so that what neighbours in dy meet are neighbours. A warp
// takes 16 * TALL filters, 1 / HALVES of each row of taps, and every SHARES-th run of pixels. The sums of SHARES warps
// are added at the end, in their order.
//
// tf32: a pixel has four numbers, one for each channel. The columns of a product are the channels of two taps that are
//   neighbours in a row of the filter. Its rows are 16 filters, and a lane holds two neighbouring ones. It sums over
//   eight pixels of a row in the order 0, 2, 4, 6, 1, 3, 5, 7.
// bf16: a pixel has eight numbers, the channels of FOLD neighbours, which are the columns of a product. A product sums
//   over 16 pixels. ldmatrix transposes both factors. Runs of x begin at any number, so they go through registers.
//
// -DIMAGE, -DPRECISION: float TF32, or unsigned short BF16. -DKH -DKW -DSH -DSW; -DFOLD, which divides SW, 1 in tf32;
// -DHEIGHT; -DWIDTH, a multiple of eight; -DSTAGES; -DTALL 1, 2 or 4; -DHALVES 1 or 2. Requires: g.m is in whole runs
// of 16 bytes, and dy starts at a multiple of 16 bytes. Blocks write as nhwc/grad_w/conv_grad_w_sum.cu reads.
#include "include/common.cuh"
#include "include/tensor_cores/mma.cuh"
#include "include/nhwc/transposed.cuh"

constexpr int PER_PIECE = 16 / (int)sizeof(IMAGE);             // of a pixel
constexpr int TAPS = (KW + FOLD - 1) / FOLD, STEP = SW / FOLD;   // of a row
// Pairs of taps of a row, of all warps and of one; columns of eight of a pair; products of a warp and 16 filters
constexpr int OWN_PAIRS = (TAPS + 2 * HALVES - 1) / (2 * HALVES), PAIRS = OWN_PAIRS * HALVES, OF_PAIR = PER_PIECE / 4;
constexpr int COLUMNS = KH * OWN_PAIRS * OF_PAIR;
constexpr int THREADS_PER_BLOCK = 256, FILTERS = 64, WARPS = FILTERS / 16 / TALL;
constexpr int SHARES = THREADS_PER_BLOCK / 32 / WARPS / HALVES;
constexpr int LINES = (HEIGHT - 1) * SH + KH, SAME = WIDTH + (2 * PAIRS + STEP - 1) / STEP, LINE = SAME * STEP;
constexpr int PIXELS = HEIGHT * WIDTH, OF_DY = PIXELS * FILTERS, STAGE = OF_DY + LINES * LINE * PER_PIECE;    // numbers
constexpr int MEETING = (LINES * LINE + THREADS_PER_BLOCK - 1) / THREADS_PER_BLOCK;      // pixels of x of a thread

// n images of c channels, h x w; m filters, oh x ow outputs; zeros above and left of images; tiles of an image, down
// and across, and the parts of all tiles.
struct FewGradW {
    int n, c, h, w, m, oh, ow, top, left, down, across, splits;
};

struct alignas(16) Piece {
    IMAGE v[PER_PIECE];
};

// Where 16 bytes of a pixel's gradients are stored: those that lanes read at once are in different banks.
__device__ __forceinline__ int place_of(int pixel, int piece) {
    return (pixel * (FILTERS / PER_PIECE) + (piece ^ (pixel & 7))) * PER_PIECE;
}

// Where a tap of a row meets a line of x, in pixels from the line's first one on.
__device__ __forceinline__ int meets(int tap) { return tap % STEP * SAME + tap / STEP; }

struct Tile {
    int image, row, column;

    __device__ __forceinline__ Tile(const FewGradW& g, int number) {
        const int down = number / g.across;
        image = down / g.down;
        row = (down - image * g.down) * HEIGHT;
        column = (number - down * g.across) * WIDTH;
    }
};

// Of the at-th pixel that a tile meets: its row of x, and its first column there.
__device__ __forceinline__ int row_of(const FewGradW& g, const Tile& tile, int at) {
    return tile.row * SH - g.top + at / LINE;
}

__device__ __forceinline__ int column_of(const FewGradW& g, const Tile& tile, int at) {
    return tile.column * SW - g.left + (at % SAME * STEP + at % LINE / SAME) * FOLD;
}

__device__ __forceinline__ void start_gradients(IMAGE* to, const IMAGE* dy, const FewGradW& g, const Tile& tile, int filter) {
#pragma unroll
    for (int i = 0; i < OF_DY / PER_PIECE / THREADS_PER_BLOCK; ++i) {
        const int at = threadIdx.x + i * THREADS_PER_BLOCK;
        const int piece = at % (FILTERS / PER_PIECE), pixel = at / (FILTERS / PER_PIECE);
        const int h = tile.row + pixel / WIDTH, w = tile.column + pixel % WIDTH, m = filter + piece * PER_PIECE;
        const bool valid = h < g.oh && w < g.ow && m < g.m;
        start_copy((Piece*)(to + place_of(pixel, piece)),
                   (const Piece*)(dy + (valid ? ((tile.image * g.oh + h) * g.ow + w) * g.m + m : 0)), valid);
    }
}

#if PRECISION == BF16
// A thread's pixels of x, in registers.
struct Coming {
    Piece piece[MEETING];

    __device__ __forceinline__ void load(const IMAGE* x, const FewGradW& g, const Tile& tile) {
        const int width = g.w * g.c;
#pragma unroll
        for (int i = 0; i < MEETING; ++i) {
            const int at = threadIdx.x + i * THREADS_PER_BLOCK, h = row_of(g, tile, at), first = column_of(g, tile, at) * g.c;
            const bool inside = at < LINES * LINE && (unsigned)h < (unsigned)g.h;
            const IMAGE* from = x + (inside ? (tile.image * g.h + h) * width + first : 0);
            piece[i] = {};
#pragma unroll
            for (int e = 0; e < PER_PIECE; ++e)
                if (inside && e < FOLD * g.c && (unsigned)(first + e) < (unsigned)width) piece[i].v[e] = from[e];
        }
    }

    __device__ __forceinline__ void put(IMAGE* to) const {
#pragma unroll
        for (int i = 0; i < MEETING; ++i) {
            const int at = threadIdx.x + i * THREADS_PER_BLOCK;
            if (at < LINES * LINE) ((Piece*)to)[at] = piece[i];
        }
    }
};
#else
// Copies, which take numbers of four bytes one by one.
struct Coming {
    __device__ __forceinline__ void start(IMAGE* to, const IMAGE* x, const FewGradW& g, const Tile& tile) const {
        for (int at = threadIdx.x; at < LINES * LINE; at += THREADS_PER_BLOCK) {
            const int h = row_of(g, tile, at), w = column_of(g, tile, at);
            const bool valid = (unsigned)h < (unsigned)g.h && (unsigned)w < (unsigned)g.w;
            const IMAGE* from = x + (valid ? ((tile.image * g.h + h) * g.w + w) * g.c : 0);
            for (int c = 0; c < g.c; ++c) start_copy(to + at * PER_PIECE + c, from + (valid ? c : 0), valid);
        }
    }
};
#endif

// A warp's products of a tile. rows: its first filter.
__device__ __forceinline__ void multiply(float (&sums)[COLUMNS][TALL][4], const IMAGE* of_dy, const IMAGE* of_x, int rows,
                                         int half, int share) {
    const int lane = threadIdx.x % 32;
    int at[OWN_PAIRS];
#if PRECISION == BF16
    const int within = lane % 8 + lane / 8 % 2 * 8;                      // of x, a lane's row for ldmatrix
#pragma unroll
    for (int s = 0; s < OWN_PAIRS; ++s) at[s] = meets(2 * (half * OWN_PAIRS + s) + lane / 16) * PER_PIECE;
#pragma unroll 1
    for (int first = share * 16; first < PIXELS; first += SHARES * 16) {
        unsigned a[TALL][4];
        const int pixel = first + lane % 8 + lane / 16 * 8;
#pragma unroll
        for (int t = 0; t < TALL; ++t)
            load_transposed(a[t], of_dy + place_of(pixel, (rows + t * 16) / 8 + lane / 8 % 2));
        const IMAGE* met = of_x + ((first + within) / WIDTH * SH * LINE + (first + within) % WIDTH) * PER_PIECE;
#pragma unroll
        for (int r = 0; r < KH; ++r)
#pragma unroll
            for (int s = 0; s < OWN_PAIRS; ++s) {
                unsigned b[4];
                load_transposed(b, met + at[s] + r * LINE * PER_PIECE);
#pragma unroll
                for (int tap = 0; tap < 2; ++tap)
#pragma unroll
                    for (int t = 0; t < TALL; ++t) mma(sums[(r * OWN_PAIRS + s) * 2 + tap][t], a[t], b + tap * 2);
            }
    }
#else
    const int within = lane % 4, own = lane / 4;
#pragma unroll
    for (int s = 0; s < OWN_PAIRS; ++s) at[s] = meets(2 * (half * OWN_PAIRS + s) + own / 4) * PER_PIECE + own % 4;
#pragma unroll 1
    for (int eight = share; eight < PIXELS / 8; eight += SHARES) {
        const int pixel = eight * 8 + 2 * within, row = pixel / WIDTH, column = pixel % WIDTH;
        unsigned a[TALL][4];
#pragma unroll
        for (int t = 0; t < TALL; ++t)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const Pack<2> two = *(const Pack<2>*)(of_dy + place_of(pixel + e, (rows + t * 16) / 4 + own / 2) +
                                                      own % 2 * 2);
                a[t][e * 2] = tf32(two.v[0]);
                a[t][e * 2 + 1] = tf32(two.v[1]);
            }
        const IMAGE* met = of_x + (row * SH * LINE + column) * PER_PIECE;
#pragma unroll
        for (int r = 0; r < KH; ++r)
#pragma unroll
            for (int s = 0; s < OWN_PAIRS; ++s) {
                const IMAGE* from = met + at[s] + r * LINE * PER_PIECE;
                const unsigned b[2] = {tf32(from[0]), tf32(from[PER_PIECE])};
#pragma unroll
                for (int t = 0; t < TALL; ++t) mma(sums[r * OWN_PAIRS + s][t], a[t], b);
            }
    }
#endif
}

// Where the sums of a number of the filters are: in which column of 8 of a row of taps, and at which place of that.
__device__ __forceinline__ int place_of_sum(int s, int c, int channels) {
    return PRECISION == BF16 ? s / FOLD * 8 + s % FOLD * channels + c : s / 2 * 8 + s % 2 * 4 + c;
}

// Which filter of 16 a lane's row of a product is.
__device__ __forceinline__ int filter_of(int own, int second) {
    return PRECISION == BF16 ? own + second * 8 : own * 2 + second;
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1)
    conv2d_nhwc_dw_few(const IMAGE* __restrict__ dy, const IMAGE* __restrict__ x, float* __restrict__ parts, FewGradW g) {
    extern __shared__ __align__(16) unsigned char few_memory[];
    IMAGE* memory = (IMAGE*)few_memory;
    const int lane = threadIdx.x % 32, within = lane % 4, own = lane / 4, warp = threadIdx.x / 32;
    const int filter = blockIdx.x * FILTERS, rows = warp % WARPS * TALL * 16, half = warp / WARPS % HALVES;
    const int share = warp / WARPS / HALVES, tiles = g.n * g.down * g.across;
    const int first = (long long)tiles * blockIdx.y / g.splits, last = (long long)tiles * (blockIdx.y + 1) / g.splits;
    Coming coming;
    if (PRECISION != BF16)                                               // absent channels are zero
        for (int i = threadIdx.x; i < STAGES * LINES * LINE; i += THREADS_PER_BLOCK)
            for (int c = g.c; c < PER_PIECE; ++c)
                memory[i / (LINES * LINE) * STAGE + OF_DY + i % (LINES * LINE) * PER_PIECE + c] = 0;
#pragma unroll 1
    for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
        if (first + ahead < last) {
            const Tile tile(g, first + ahead);
            IMAGE* to = memory + ahead * STAGE;
            start_gradients(to, dy, g, tile, filter);
#if PRECISION == BF16
            coming.load(x, g, tile);
            coming.put(to + OF_DY);
#else
            coming.start(to + OF_DY, x, g, tile);
#endif
        }
        end_copies();
    }
    float sums[COLUMNS][TALL][4] = {};
    int stage = 0;
#pragma unroll 1
    for (int number = first; number < last; ++number) {
        await_copies<STAGES - 2>();
        __syncthreads();                                                 // and everybody is done with the tile before
        IMAGE* next = memory + (stage ? stage - 1 : STAGES - 1) * STAGE;
        const bool more = number + STAGES - 1 < last;
        if (more) {
            const Tile tile(g, number + STAGES - 1);
            start_gradients(next, dy, g, tile, filter);
#if PRECISION == BF16
            coming.load(x, g, tile);
#else
            coming.start(next + OF_DY, x, g, tile);
#endif
        }
        end_copies();
        multiply(sums, memory + stage * STAGE, memory + stage * STAGE + OF_DY, rows, half, share);
#if PRECISION == BF16
        if (more) coming.put(next + OF_DY);
#endif
        if (++stage == STAGES) stage = 0;
    }
    await_copies<0>();
    float* found = (float*)few_memory;                                   // [columns of rows of taps][eight][filter]
#pragma unroll 1
    for (int turn = 0; turn < SHARES; ++turn) {
        __syncthreads();
        if (share != turn) continue;
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            constexpr int OF_ROW = OWN_PAIRS * OF_PAIR;
            const int column = (i / OF_ROW * HALVES + half) * OF_ROW + i % OF_ROW;
#pragma unroll
            for (int t = 0; t < TALL; ++t)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float* to = found + (column * 8 + within * 2 + e % 2) * FILTERS + rows + t * 16 + filter_of(own, e / 2);
                    *to = turn ? *to + sums[i][t][e] : sums[i][t][e];
                }
        }
    }
    __syncthreads();
    float* part = parts + (long long)blockIdx.y * KH * KW * g.c * g.m;
    for (int i = threadIdx.x; i < KH * KW * g.c * FILTERS; i += THREADS_PER_BLOCK) {
        const int m = i % FILTERS, number = i / FILTERS, tap = number / g.c, c = number - tap * g.c;
        const int at = tap / KW * PAIRS * OF_PAIR * 8 + place_of_sum(tap % KW, c, g.c);
        if (filter + m < g.m) part[number * g.m + filter + m] = found[at * FILTERS + m];
    }
}
