// The filter gradient of a convolution of stride 1 for few input channels by wgmma (linear/wgmma.cuh): dw sums over
// pixels, 8 at a step; rows of a product are 8 x 8 taps, columns 64 filters.
//
// conv2d_wgmma_dw: of a block's three groups of four warps one prepares gradients, and the others multiply them by the
//   image, which they read from shared memory, tap (r,q) at pixel j from (r, j + q): while one of them takes pixels, the
//   other one's products are at work. Gradients stand in a ring of PLACES places, each of 4 steps, rounded to tf32, and
//   those two take every other place. With -DPOOL gradients come from those of averaged windows and from y = act(...): gz =
//   ACT_GRAD(gy / POOL^2, y); the bias's gradient, the sum of gz, stands in `parts` after the filters'. A block walks over
//   images and leaves its sums in parts.
//
// Requires: compute capability 9.0 (-DSM_90A, else nothing is multiplied), and that all of it fits shared memory (the
// launcher looks). -DPRECISION: TF32, or TF32X3: numbers are split in two, and three of the four products made. -DKH -DKW
// -DPH -DPW (a padded plane) -DTILES (8 x 8 taps of channels that a block sums for) and those of conv/picture.cuh
// (-DALIGNED: rows of gy and y start on multiples of 4 elements).
#include "conv/picture.cuh"
#include "linear/wgmma.cuh"

constexpr int PLACES = 4, STEPS = 4, QUADS = 2 * STEPS;  // of a place: steps, and runs of 4 pixels
constexpr int AHEAD = 3;                                 // places whose gradients are on their way from memory
constexpr int PLACE = QUADS * COLUMNS * 4;               // numbers [quad][filter][pixel]; a place holds PARTS times as many
constexpr int TILES_A_CHANNEL = (KH + 7) / 8;
static_assert(KW <= 8, "a row of taps must fit the rows of a product");
static_assert(THREADS_A_BLOCK == 3 * GROUP, "two groups multiply, one prepares");

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

    // Into a place of the ring, and onto the sums of each filter.
    __device__ __forceinline__ void put(REAL* to, float (&total)[2]) const {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            Pack<4> gz[PARTS];
#pragma unroll
            for (int v = 0; v < 4; ++v) {
                REAL value = at(e, v);
                total[e % 2] += value;
#pragma unroll
                for (int part = 0; part < PARTS; ++part) gz[part].v[v] = __uint_as_float(part_of(value, part));
            }
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
                *(Pack<4>*)&to[part * PLACE + (quad(e) * COLUMNS + column(e)) * 4] = gz[part];
        }
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
    int group = __shfl_sync(~0u, threadIdx.x / GROUP, 0);                // the same for a warp, as the compiler sees
    int lane = threadIdx.x % 32, row8 = lane / 4, within = lane % 4, warp = threadIdx.x % GROUP / 32;
    int first = blockIdx.y * TILES, taps = p.c * KH * KW, place = 0;     // place: of the ring, in turn
    REAL* part = parts + (size_t)blockIdx.x * p.m * (taps + (POOL ? 1 : 0));
    Steps steps(p);
    auto load = [&](int image) {
        __syncthreads();                                 // everybody is done with the image before
        load_images(picture, x, image, p);
        end_copies();
        await_copies<0>();
        __syncthreads();
    };
    // Turn `place`: it is full. Turn PLACES + place: it is free again

    if (group == 2) {
        float bias[2] = {};
        for (int image = blockIdx.x; image < p.n; image += gridDim.x) {
            Slopes slopes[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) slopes[i].fetch(gy, y, image, i, steps, p);
            load(image);
            for (int at = 0; at < steps.places; at += AHEAD)
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) {
                    if (at + i >= steps.places) break;
                    await_turn(PLACES + place);
                    slopes[i].put(ring + place * PARTS * PLACE, bias);
                    publish();
                    give_turn(place);
                    slopes[i].fetch(gy, y, image, at + i + AHEAD, steps, p);
                    place = (place + 1) % PLACES;
                }
        }
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

    float sum[TILES][COLUMNS / 2] = {};
    for (int i = group; i < PLACES; i += 2) give_turn(PLACES + i);
    for (int image = blockIdx.x; image < p.n; image += gridDim.x) {
        load(image);
        // Row 8 * r + q of a product is tap (r, q): a lane's are (2 * warp, row8) and (2 * warp + 1, row8)
        const REAL* corner = picture + 2 * warp * PW + row8 + within;
        for (int at = 0; at < steps.places; ++at, place = (place + 1) % PLACES) {
            if (place % 2 != group) continue;
            REAL fetched[TILES][4];
            auto fetch = [&](int step) {                 // beyond the last step gradients are 0, and pixels any
                step = imin(step, steps.count - 1);
                int i = step / steps.across, j = step - i * steps.across;
#pragma unroll
                for (int e = 0; e < TILES * 4; ++e)
                    fetched[e / 4][e % 4] = corner[(plane_of(first + e / 4, p) + i + e % 2) * PW + j * 8 + e / 2 % 2 * 4];
            };
            fetch(at * STEPS);
            await_turn(place);
            unsigned long long slope = matrix(ring + place * PARTS * PLACE);
#pragma unroll
            for (int s = 0; s < STEPS; ++s, slope += COLUMNS * 2) {
                unsigned pixel[TILES][PARTS][4];
                await_products<0>();
#pragma unroll
                for (int e = 0; e < TILES * PARTS * 4; ++e)
                    pixel[e / 4 / PARTS][e / 4 % PARTS][e % 4] = part_of(fetched[e / 4 / PARTS][e % 4], e / 4 % PARTS);
                begin_products();
#pragma unroll
                for (int t = 0; t < TILES; ++t) {
                    if (PARTS == 2) {
                        wgmma(sum[t], pixel[t][PARTS - 1], slope);
                        wgmma(sum[t], pixel[t][0], slope + PLACE / 4);
                    }
                    wgmma(sum[t], pixel[t][0], slope);
                }
                end_products();
                if (s + 1 < STEPS) fetch(at * STEPS + s + 1);
            }
            await_products<0>();
            give_turn(PLACES + place);
        }
    }

    // The two groups' sums together
    REAL* sums = (REAL*)memory + threadIdx.x % GROUP;    // [TILES*COLUMNS/2][GROUP]
    await_turn(2 * PLACES);
    if (group == 1)
#pragma unroll
        for (int e = 0; e < TILES * COLUMNS / 2; ++e) sums[e * GROUP] = sum[e / (COLUMNS / 2)][e % (COLUMNS / 2)];
    await_turn(2 * PLACES);
    if (group == 1) return;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
        int channel = (first + t) / TILES_A_CHANNEL, r = (first + t) % TILES_A_CHANNEL * 8 + 2 * warp;
        if (channel >= p.c) break;
#pragma unroll
        for (int e = 0; e < COLUMNS / 2; ++e) {
            int m = blockIdx.z * COLUMNS + e / 4 * 8 + within * 2 + e % 2, down = r + e / 2 % 2;
            if (m < p.m && down < KH && row8 < KW)
                part[((m * p.c + channel) * KH + down) * KW + row8] = sum[t][e] + sums[(t * COLUMNS / 2 + e) * GROUP];
        }
    }
}
