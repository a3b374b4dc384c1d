// The filter gradient of a convolution of stride 1 for few input channels by wgmma (linear/wgmma.cuh): dw sums over
// pixels, 8 at a step; rows of a product are 8 x 8 taps, columns 64 filters.
//
// conv2d_wgmma_dw: one half of a block, four warps, prepares gradients, the other one multiplies them by the image, which
//   it reads from shared memory, tap (r,q) at pixel j from (r, j + q). Gradients stand in a ring of PLACES places, each
//   of 4 steps, rounded to tf32. With -DPOOL gradients come from those of averaged windows and from y = act(...): gz =
//   ACT_GRAD(gy / POOL^2, y); the bias's gradient, the sum of gz, stands in `parts` after the filters'. A block walks over
//   images and leaves its sums in parts.
//
// Requires: compute capability 9.0 (-DSM_90A, else nothing is multiplied), and that all of it fits shared memory (the
// launcher looks). -DPRECISION: TF32, or TF32X3: numbers are split in two, and three of the four products made. -DKH -DKW
// -DPH -DPW (a padded plane) -DTILES (8 x 8 taps of channels that a block sums for) and those of conv/picture.cuh
// (-DALIGNED: rows of gy and y start on multiples of 4 elements).
#include "conv/picture.cuh"
#include "linear/wgmma.cuh"

constexpr int GROUP = 128, PLACES = 3, STEPS = 4, QUADS = 2 * STEPS;     // of a place: steps, and runs of 4 pixels
constexpr int PLACE = QUADS * COLUMNS * 4;               // numbers [quad][filter][pixel]; a place holds PARTS times as many
constexpr int TILES_A_CHANNEL = (KH + 7) / 8;
static_assert(KW <= 8, "a row of taps must fit the rows of a product");
static_assert(THREADS_A_BLOCK == 2 * GROUP, "one half prepares, the other one multiplies");

// The pixels of an image, row by row, in steps of 8; those beyond a row's end, or the last row, are zeros.
struct Steps {
    int across, count, places;                           // steps of a row, of the image; places that they fill

    __device__ __forceinline__ Steps(const Picture& p)
        : across(ceil_div(p.ow, 8)), count(p.oh * across), places(ceil_div(count, STEPS)) {}
};

// The row of the picture's planes where the image under 8 x 8 taps begins; beyond the last ones, that of the last.
__device__ __forceinline__ int plane_of(int tile, const Picture& p) {
    tile = imin(tile, p.c * TILES_A_CHANNEL - 1);
    return tile / TILES_A_CHANNEL * PH + tile % TILES_A_CHANNEL * 8;
}

// A lane's 4 neighbouring pixels of 2 filters, of 2 quads each, as they come from memory.
struct Slopes {
    static constexpr int MEANS = POOL ? 4 / POOL : 1;    // windows along 4 pixels
    Pack<4> value[4];                                    // POOL: of y, else of gy
    REAL mean[4][MEANS];                                 // POOL: the windows' gradients

    __device__ __forceinline__ void fetch(const REAL* gy, const REAL* y, int image, int place, const Steps& steps,
                                          const Picture& p) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            int m = filter(e), step = place * STEPS + quad(e) / 2, i = step / steps.across;
            int j = (step - i * steps.across) * 8 + quad(e) % 2 * 4;
            bool inside = m < p.m && i < p.oh && j < p.ow;
            const REAL* from = (POOL ? y : gy) + ((image * p.m + m) * p.oh + i) * p.ow + j;
#if ALIGNED
            value[e] = inside ? *(const Pack<4>*)from : Pack<4>{};
#else
#pragma unroll
            for (int v = 0; v < 4; ++v) value[e].v[v] = inside && j + v < p.ow ? from[v] : (REAL)0;
#endif
#if POOL
            const REAL* means = gy + ((image * p.m + m) * (p.oh / POOL) + i / POOL) * (p.ow / POOL) + j / POOL;
#pragma unroll
            for (int v = 0; v < MEANS; ++v) mean[e][v] = inside && j + v * POOL < p.ow ? means[v] : (REAL)0;
#endif
        }
    }

    __device__ __forceinline__ REAL at(int e, int v) const {
#if POOL
        return ACT_GRAD(mean[e][v / POOL] * (REAL)(1.0 / (POOL * POOL)), value[e].v[v]);
#else
        return value[e].v[v];
#endif
    }

    // A lane's filters, of the block's or of all, and its quads: so that a warp's stores of 16 bytes meet every bank.
    static __device__ __forceinline__ int column(int e) {
        return threadIdx.x % GROUP / 32 * 16 + e % 2 * 8 + threadIdx.x % 32 / 4;
    }
    static __device__ __forceinline__ int filter(int e) { return blockIdx.z * COLUMNS + column(e); }
    static __device__ __forceinline__ int quad(int e) { return e / 2 * 4 + threadIdx.x % 4; }
};

// parts (blocks, m*c*KH*KW, and m more with POOL)
extern "C" __global__ void __launch_bounds__(THREADS_A_BLOCK, 1)
conv2d_wgmma_dw(const REAL* gy, const REAL* y, const REAL* x, REAL* parts, Picture p) {
    extern __shared__ __align__(128) unsigned char memory[];
    REAL* ring = (REAL*)memory;                          // [PLACES][PARTS][quad][filter][pixel]
    REAL* picture = ring + PLACES * PARTS * PLACE;       // [c][PH][PW]
    bool prepares = threadIdx.x >= GROUP;
    int lane = threadIdx.x % 32, row8 = lane / 4, within = lane % 4, warp = threadIdx.x % GROUP / 32;
    int first = blockIdx.y * TILES, taps = p.c * KH * KW, place = 0;     // place: of the ring, in turn
    REAL* part = parts + (size_t)blockIdx.x * p.m * (taps + (POOL ? 1 : 0));
    Steps steps(p);
    float sum[TILES][COLUMNS / 2] = {}, bias[2] = {};
    // Turn `place`: it is full. Turn PLACES + place: it is free again
    if (!prepares)
        for (int i = 0; i < PLACES; ++i) give_turn(PLACES + i);
    for (int image = blockIdx.x; image < p.n; image += gridDim.x) {
        Slopes slopes;
        if (prepares) slopes.fetch(gy, y, image, 0, steps, p);
        __syncthreads();                                 // everybody is done with the image before
        load_images(picture, x, image, p);
        end_copies();
        await_copies<0>();
        __syncthreads();
        if (prepares) {
            for (int at = 0; at < steps.places; ++at) {
                Pack<4> gz[4][PARTS];
#pragma unroll
                for (int e = 0; e < 4; ++e)
#pragma unroll
                    for (int v = 0; v < 4; ++v) {
                        REAL value = slopes.at(e, v);
                        bias[e % 2] += value;
#pragma unroll
                        for (int half = 0; half < PARTS; ++half)
                            gz[e][half].v[v] = __uint_as_float(part_of(value, half));
                    }
                if (at + 1 < steps.places) slopes.fetch(gy, y, image, at + 1, steps, p);
                await_turn(PLACES + place);
#pragma unroll
                for (int e = 0; e < 4; ++e)
#pragma unroll
                    for (int half = 0; half < PARTS; ++half)
                        *(Pack<4>*)&ring[(place * PARTS + half) * PLACE +
                                         (Slopes::quad(e) * COLUMNS + Slopes::column(e)) * 4] = gz[e][half];
                publish();
                give_turn(place);
                place = place + 1 == PLACES ? 0 : place + 1;
            }
        } else {
            // Row 8 * r + q of a product is tap (r, q): a lane's are (2 * warp, row8) and (2 * warp + 1, row8)
            const REAL* corner = picture + 2 * warp * PW + row8 + within;
            int column = 0, left = steps.count;          // of the next step, and how many there are from it on
            unsigned pixel[4][TILES][PARTS][4];          // of the step at work, of the one before, and of the next two
            auto take = [&](int slot) {
#pragma unroll
                for (int t = 0; t < TILES; ++t) {
                    const REAL* from = corner + plane_of(first + t, p) * PW;
#pragma unroll
                    for (int e = 0; e < 4 * PARTS; ++e)
                        pixel[slot][t][e / 4][e % 4] = part_of(from[e % 2 * PW + e / 2 % 2 * 4], e / 4);
                }
                if (--left <= 0) return;                 // the last place's rest: gradients are 0 there
                corner += 8;
                if (++column < steps.across) return;
                corner += PW - column * 8;
                column = 0;
            };
            take(0);
            take(1);
            for (int at = 0; at < steps.places; ++at) {
                await_turn(place);
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    unsigned long long slope = matrix(ring + place * PARTS * PLACE) + step * COLUMNS * 2;
                    begin_products();
#pragma unroll
                    for (int t = 0; t < TILES; ++t) {
                        if (PARTS == 2) {
                            wgmma(sum[t], pixel[step][t][PARTS - 1], slope);
                            wgmma(sum[t], pixel[step][t][0], slope + PLACE / 4);
                        }
                        wgmma(sum[t], pixel[step][t][0], slope);
                    }
                    end_products();
                    await_products<1>();                 // the step before is done with
                    if (step == 0 && at > 0) give_turn(PLACES + (place + PLACES - 1) % PLACES);
                    take((step + 2) % 4);
                }
                place = place + 1 == PLACES ? 0 : place + 1;
            }
            await_products<0>();
            give_turn(PLACES + (place + PLACES - 1) % PLACES);
        }
    }

    if (prepares) {
        for (int i = 0; i < PLACES; ++i) await_turn(PLACES + i);         // the last ones that were given
#pragma unroll
        for (int f = 0; f < 2; ++f) {
#pragma unroll
            for (int lanes = 1; lanes < 4; lanes *= 2) bias[f] += __shfl_xor_sync(~0u, bias[f], lanes);
            if (POOL && Slopes::filter(f) < p.m && blockIdx.y == 0 && within == 0)
                part[p.m * taps + Slopes::filter(f)] = bias[f];
        }
        return;
    }
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
        int channel = (first + t) / TILES_A_CHANNEL, r = (first + t) % TILES_A_CHANNEL * 8 + 2 * warp;
        if (channel >= p.c) return;
#pragma unroll
        for (int e = 0; e < COLUMNS / 2; ++e) {
            int m = blockIdx.z * COLUMNS + e / 4 * 8 + within * 2 + e % 2, down = r + e / 2 % 2;
            if (m < p.m && down < KH && row8 < KW) part[((m * p.c + channel) * KH + down) * KW + row8] = sum[t][e];
        }
    }
}
