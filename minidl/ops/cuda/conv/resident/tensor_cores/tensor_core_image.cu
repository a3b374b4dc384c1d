// Convolution of stride 1 for few input channels on tensor cores: a block holds a whole padded image, rounded to tf32
// once, and reads the operands of its matrix products straight from it: nothing is unrolled. A row (c,p) of up to 8
// taps is one step of a product; shorter ones are filled up with zeros (so that a pixel which is not finite also spoils
// outputs up to 8 - KW columns further left).
//
// conv2d_tensor_core_image: y. A warp owns ROWS x 16 neighbouring outputs of 16*SETS filters. What it holds of an image
//   row serves all its output rows, each with another row of taps: a step loads one new row. All filters are in shared
//   memory in the order in which lanes take them. A block walks over images.
// conv2d_tensor_core_image_dw: a warp owns 16 filters and all taps of CHANNELS channels, and sums over its share of
//   each image's pixels, ROWS x 8 at a time. It reads their gradients from global memory itself; an image row serves
//   each of the ROWS, again with another row of taps. With -DPOOL gradients come from those of averaged windows and
//   from y = act(...): gz = ACT_GRAD(gy / POOL^2, y); the bias's gradient, the sum of gz, is in `parts` after the
//   filters'. Blocks leave their sums in parts; shares are added up in their order.
//
// Requires: all of it fits shared memory (the launcher checks this). -DPRECISION: TF32, or TF32X3: numbers are split in
// two, and three of the four products are made. -DKH -DKW -DROWS and those of conv/resident/resident.cuh (for dw
// -DALIGNED says that rows of gy and y start on multiples of 2 elements). y: -DSETS; dw: -DCHANNELS -DPH -DPW (a padded
// plane) -DTILES (warps side by side over filters) -DSHARES.
#include "conv/resident/resident.cuh"

static_assert(KW <= 8, "a row of taps must fit one step of a product, 8");

#ifndef GRADIENT
// A multiple of ROWS, or all: then no registers are moved. From 10.0 on, 8 rows would take more registers than there
// are.
#if __CUDA_ARCH__ >= 1000
constexpr int MAX_UNROLL = ROWS;
#else
constexpr int MAX_UNROLL = 8;
#endif
constexpr int UNROLL = KH < MAX_UNROLL ? KH : MAX_UNROLL;

// [c][p][16 filters][lane][4]: what a lane takes of a row of taps of 16 filters is contiguous. A warp loads a filter at
// a time, a lane always the same tap of its rows.
__device__ __forceinline__ void load_filters(REAL* to, const REAL* w, int tiles, const PaddedImages& p) {
    int rows = p.c * KH, q = threadIdx.x % 8;
    for (int f = threadIdx.x / 32; f < tiles * 16; f += THREADS_PER_BLOCK / 32) {
        bool valid = f < p.m && q < KW;
        REAL* tap = to + f / 16 * 128 + f % 8 * 16 + f % 16 / 8 + q % 4 * 4 + q / 4 * 2;
        const REAL* from = w + (valid ? f * rows * KW + q : 0);
#pragma unroll 2
        for (int row = threadIdx.x % 32 / 8; row < rows; row += 4)
            start_copy(tap + row * tiles * 128, valid ? from + row * KW : w, valid);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1)
    conv2d_tensor_core_image(const REAL* x, const REAL* w, const REAL* b, REAL* y, REAL* pooled, PaddedImages p) {
    extern __shared__ __align__(16) unsigned char memory[];
    int sets = ceil_div(p.m, 16 * SETS), tiles = sets * SETS;
    int filter_size = p.c * KH * tiles * 128, padded_size = p.c * p.ph * p.pw;
    REAL* filters = (REAL*)memory;                 // [part] as load_filters says
    REAL* padded = filters + PARTS * filter_size;  // [part][c][ph][pw]
    load_filters(filters, w, tiles, p);

    int lane = threadIdx.x % 32, group = lane / 4, within = lane % 4;
    int across = ceil_div(p.ow, 16), places = ceil_div(p.oh, ROWS) * across;
    for (int image = blockIdx.x; image < p.n; image += gridDim.x) {
        load_parts(padded, padded_size, x, image, filters, filter_size, p);
        __syncthreads();
        for (int item = threadIdx.x / 32; item < sets * places; item += THREADS_PER_BLOCK / 32) {
            int place = item % places, set = item / places, i0 = place / across * ROWS, j0 = place % across * 16;
            __syncwarp();  // products need all lanes, also those that had no outputs
            // Column n of product `half` is output 4*(n/2) + 2*half + n%2: so that a lane gets 4 neighbours
            float sum[SETS][ROWS][2][4] = {};
            const REAL* row = padded + i0 * p.pw + j0 + group / 2 * 4 + group % 2 + within;
            const REAL* weights = filters + (set * SETS * 32 + lane) * 4;
            for (int c = 0; c < p.c; ++c, row += (p.ph - ROWS - KH + 1) * p.pw) {
                unsigned pixel[ROWS][2][PARTS][2];  // the image row under each output row
                auto take = [&](int i) {
#pragma unroll
                    for (int part = 0; part < PARTS; ++part)
#pragma unroll
                        for (int e = 0; e < 4; ++e)
                            pixel[i][e / 2][part][e % 2] =
                                __float_as_uint(row[part * padded_size + e / 2 * 2 + e % 2 * 4]);
                    row += p.pw;
                };
#pragma unroll
                for (int i = 1; i < ROWS; ++i) take(i);
#pragma unroll(UNROLL)
                for (int r = 0; r < KH; ++r, weights += tiles * 128) {
#pragma unroll
                    for (int i = 1; i < ROWS; ++i)
#pragma unroll
                        for (int e = 0; e < 4 * PARTS; ++e)
                            pixel[i - 1][e / 2 / PARTS][e / 2 % PARTS][e % 2] =
                                pixel[i][e / 2 / PARTS][e / 2 % PARTS][e % 2];
                    take(ROWS - 1);
#pragma unroll
                    for (int t = 0; t < SETS; ++t) {
                        unsigned weight[PARTS][4];
#pragma unroll
                        for (int part = 0; part < PARTS; ++part) {
                            Pack<4> four = *(const Pack<4>*)&weights[part * filter_size + t * 128];
#pragma unroll
                            for (int e = 0; e < 4; ++e) weight[part][e] = __float_as_uint(four.v[e]);
                        }
#pragma unroll
                        for (int i = 0; i < ROWS; ++i)
#pragma unroll
                            for (int half = 0; half < 2; ++half) products(sum[t][i][half], weight, pixel[i][half]);
                    }
                }
            }
            int j = j0 + within * 4;
            if (j >= p.ow) continue;
#pragma unroll
            for (int f = 0; f < SETS * 2; ++f) {
                int m = set * SETS * 16 + f * 8 + group;
                if (m >= p.m) break;
                REAL out[ROWS][4];
#pragma unroll
                for (int e = 0; e < ROWS * 4; ++e) out[e / 4][e % 4] = sum[f / 2][e / 4][e / 2 % 2][f % 2 * 2 + e % 2];
                store_outputs<ROWS>(out, b ? b[m] : (REAL)0, y, pooled, image * p.m + m, i0, j, p);
            }
        }
    }
}

#else
constexpr int ROWS_OF_TAPS = CHANNELS * KH, COLUMNS = TILES * 32, MEANS = POOL ? ROWS / POOL : 1;

// A lane's 2 neighbouring pixels in ROWS rows of two maps, as they come from memory.
struct Slopes {
    REAL value[ROWS][2][2], mean[MEANS][2];  // POOL: of y and of the windows' gradients; else of gy alone

    __device__ __forceinline__ void fetch(const REAL* gy, const REAL* y, int image, int m0, int i0, int j,
                                          const PaddedImages& p) {
#pragma unroll
        for (int f = 0; f < 2; ++f) {
            int m = m0 + f * 8;
            bool inside = m < p.m && j < p.ow;
            const REAL* from = (POOL ? y : gy) + ((image * p.m + m) * p.oh + i0) * p.ow + j;
#pragma unroll
            for (int i = 0; i < ROWS; ++i, from += p.ow) {
                bool valid = inside && i0 + i < p.oh;
#if ALIGNED
                *(Pack<2>*)value[i][f] = valid ? *(const Pack<2>*)from : Pack<2>{};
#else
#pragma unroll
                for (int e = 0; e < 2; ++e) value[i][f][e] = valid && j + e < p.ow ? from[e] : (REAL)0;
#endif
            }
#if POOL
            static_assert(ROWS % POOL == 0, "windows must be within the rows that a warp takes at a time");
            const REAL* means = gy + ((image * p.m + m) * (p.oh / POOL) + i0 / POOL) * (p.ow / POOL) + j / POOL;
#pragma unroll
            for (int i = 0; i < MEANS; ++i, means += p.ow / POOL)
                mean[i][f] = inside && i0 + i * POOL < p.oh ? *means : (REAL)0;
#endif
        }
    }

    __device__ __forceinline__ REAL at(int i, int f, int e) const {
#if POOL
        return ACT_GRAD(mean[i / POOL][f] * (REAL)(1.0 / (POOL * POOL)), value[i][f][e]);
#else
        return value[i][f][e];
#endif
    }
};

// A thread's sums are written to memory, or those in memory are added to them
template <bool TAKE_IN>
__device__ __forceinline__ void hand_over(REAL* at, float (&sum)[ROWS_OF_TAPS][4], float (&bias)[2]) {
#pragma unroll
    for (int e = 0; e < ROWS_OF_TAPS * 4 + 2; ++e) {
        float& mine = e < ROWS_OF_TAPS * 4 ? sum[e / 4][e % 4] : bias[e - ROWS_OF_TAPS * 4];
        if (TAKE_IN)
            mine += at[e * COLUMNS];
        else
            at[e * COLUMNS] = mine;
    }
}

// parts (blocks, m*c*KH*KW, and m more with POOL)
extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1)
    conv2d_tensor_core_image_dw(const REAL* gy, const REAL* y, const REAL* x, REAL* parts, PaddedImages p) {
    static_assert(THREADS_PER_BLOCK == SHARES * COLUMNS, "a warp for each tile of filters and share of the pixels");
    extern __shared__ __align__(16) unsigned char memory[];
    REAL* padded = (REAL*)memory;  // [part][c][PH][PW], c rounded up to CHANNELS
    int padded_size = ceil_div(p.c, CHANNELS) * CHANNELS * PH * PW;
    int lane = threadIdx.x % 32, group = lane / 4, within = lane % 4;
    int share = threadIdx.x / COLUMNS, tile = threadIdx.x / 32 % TILES;
    int m0 = (blockIdx.z * TILES + tile) * 16 + group, c0 = blockIdx.y * CHANNELS;
    int across = ceil_div(p.ow, 8), steps = ceil_div(p.oh, ROWS) * across;
    float sum[ROWS_OF_TAPS][4] = {}, bias[2] = {};
    for (int image = blockIdx.x; image < p.n; image += gridDim.x) {
        __syncthreads();  // everybody is done with the image before
        load_images(padded, x, image, p);
        end_copies();
        Slopes next;
        next.fetch(gy, y, image, m0, share / across * ROWS, share % across * 8 + within * 2, p);
        await_copies<0>();
        __syncthreads();
        split(padded, padded_size);
        __syncthreads();
        for (int step = share; step < steps; step += SHARES) {
            // Of the 8 pixels of a row a product's column k < 4 is pixel 2*k, k >= 4 is 2*(k - 4) + 1: neighbours in a
            // lane
            unsigned gradient[ROWS][PARTS][4];
#pragma unroll
            for (int e = 0; e < ROWS * 4; ++e) {
                REAL value = next.at(e / 4, e % 2, e / 2 % 2);
                bias[e % 2] += value;
#pragma unroll
                for (int part = 0; part < PARTS; ++part) gradient[e / 4][part][e % 4] = part_of(value, part);
            }
            int after = step + SHARES;
            if (after < steps) next.fetch(gy, y, image, m0, after / across * ROWS, after % across * 8 + within * 2, p);
            const REAL* row = padded + (c0 * PH + step / across * ROWS) * PW + step % across * 8 + within * 2 + group;
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c)
#pragma unroll
                for (int r = 0; r < KH + ROWS - 1; ++r) {
                    unsigned pixel[PARTS][2];
#pragma unroll
                    for (int e = 0; e < PARTS * 2; ++e)
                        pixel[e / 2][e % 2] = __float_as_uint(row[e / 2 * padded_size + (c * PH + r) * PW + e % 2]);
#pragma unroll
                    for (int i = 0; i < ROWS; ++i)
                        if (r >= i && r - i < KH) products(sum[c * KH + r - i], gradient[i], pixel);
                }
        }
    }

    // Shares add up in their order
    REAL* sums = (REAL*)memory;  // [4*ROWS_OF_TAPS + 2][COLUMNS]
    REAL* at = sums + threadIdx.x % COLUMNS;
    for (int s = 1; s < SHARES; ++s) {
        __syncthreads();
        if (share == s) hand_over<false>(at, sum, bias);
        __syncthreads();
        if (share == 0) hand_over<true>(at, sum, bias);
    }
    if (share) return;
    int taps = p.c * KH * KW;
    REAL* part = parts + (size_t)blockIdx.x * p.m * (taps + (POOL ? 1 : 0));
#pragma unroll
    for (int f = 0; f < 2; ++f) {
        int m = m0 + f * 8;
#pragma unroll
        for (int e = 0; e < ROWS_OF_TAPS * 2; ++e) {
            int r = e / 2, q = within * 2 + e % 2;
            if (m < p.m && q < KW && c0 + r / KH < p.c)
                part[((m * p.c + c0) * KH + r) * KW + q] = sum[r][f * 2 + e % 2];
        }
#pragma unroll
        for (int lanes = 1; lanes < 4; lanes *= 2) bias[f] += __shfl_xor_sync(~0u, bias[f], lanes);
        if (POOL && m < p.m && blockIdx.y == 0 && within == 0) part[p.m * taps + m] = bias[f];
    }
}
#endif
