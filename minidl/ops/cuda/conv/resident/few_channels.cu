// Convolution of stride 1 for up to four input channels in bf16 on tensor cores of compute capability 9.0, which read
// an image directly from shared memory: nothing is unrolled. A pixel is four channels, absent ones zero. A unit is 16
// bytes, two neighbouring pixels. A padded row of an image is stored twice: units of line 0 start at even columns,
// those of line 1 at odd ones. So eight units in a row are what taps s and s + 1 meet, of every other of 16 pixels.
// Eight rows of 16 bytes are what wgmma takes for a block of a factor that is not swizzled. (A filter of odd width is
// filled up with a zero, so that a pixel which is not finite also spoils outputs one column further left.)
//
// conv2d_few_channels: y. Rows of a product are 64 filters, columns are 16 x ROWS neighbouring pixels, eight after
//   eight along the lines. A product sums over two units of taps; the instruction is told their distance. GROUPS of
//   four warps take turns: while one has the tensor cores, the others compute activations and store.
// conv2d_few_channels_dw: rows are 64 filters, from registers; columns are a unit of taps in eight rows of the filter,
//   which are two lines apart. A product sums over 16 pixels of a row, the even ones before the odd ones. Two groups
//   share an image's pixels, and take a window's rows in turn. Each thread copies the gradients that it will multiply
//   to shared memory STAGES steps ahead, for itself alone. With -DPOOL gradients come from those of averaged windows
//   and from y = act(...): gz = ACT_GRAD(gy / POOL^2, y); the bias's gradient, the sum of gz, is in `parts` after the
//   filters'. Blocks leave their sums in parts.
//
// Requires: compute capability 9.0 (-DSM_90A, else nothing is multiplied), and that all of it fits shared memory (the
// launcher checks this). -DPRECISION=BF16 -DKH -DKW -DROWS and those of conv/resident/resident.cuh. dw (-DGRADIENT): KH
// and KW at most 8, -DSTAGES. -DSTORE=float, or unsigned short with -DALIGNED and -DPOOL: y is stored in bf16, and dw
// reads it so.
#include "include/common.cuh"
#include "include/tensor_cores/mma.cuh"

// Four neighbours of y, rounded to bf16. This overloads the function of this name for float; store_outputs calls
// either.
__device__ __forceinline__ void store_four(unsigned short* to, const REAL (&v)[4], int) {
    *(int2*)to = make_int2(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]));
}

#include "conv/resident/resident.cuh"
#include "include/tensor_cores/wgmma.cuh"
#include "include/tensor_cores/wgmma_smem.cuh"
#include "include/tensor_cores/wgmma_registers.cuh"

// Padded images as PaddedImages, ph x pw pixels; units of a line.
struct FewChannels {
    int n, c, h, w, m, oh, ow, top, left;
    int ph, pw, images, line;
};

constexpr int FILTERS = 64, CHANNELS = 4, UNIT = 16;                     // rows of a product; of a pixel; bytes
constexpr int ACROSS = (KW + 1) / 2;                                     // units of a row of taps
constexpr int GROUPS = THREADS_PER_BLOCK / GROUP;

static_assert(sizeof(STORE) == sizeof(REAL) || (ALIGNED && POOL), "four neighbours of 2 bytes are copied at once");

// Four neighbours of y.
struct alignas(4 * sizeof(STORE)) Four {
    STORE v[4];
};

__device__ __forceinline__ REAL widened(REAL x) { return x; }
__device__ __forceinline__ REAL widened(unsigned short x) { return __uint_as_float((unsigned)x << 16); }

// Numbers of two pixels as a unit; each four of them are zero after the last channel.
__device__ __forceinline__ int4 unit_of(const REAL (&v)[2 * CHANNELS]) {
    return make_int4(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]), bf16_pair(v[6], v[7]));
}

// [row][line 0 or 1][unit], of padded planes [c][ph][pw].
__device__ __forceinline__ void pack_image(int4* to, const REAL* planes, const FewChannels& p) {
    Odometer at(THREADS_PER_BLOCK, 2, p.line);                           // row, line, unit
    for (int i = threadIdx.x; i < p.ph * 2 * p.line; i += THREADS_PER_BLOCK, at.next()) {
        const REAL* from = planes + at.high * p.pw + at.low * 2 + at.middle;
        REAL v[2 * CHANNELS];
#pragma unroll
        for (int e = 0; e < 2 * CHANNELS; ++e)
            v[e] = e % CHANNELS < p.c ? from[e % CHANNELS * p.ph * p.pw + e / CHANNELS] : (REAL)0;
        to[i] = unit_of(v);
    }
}

#ifndef GRADIENT
constexpr int UNITS = (KH * ACROSS + 1) / 2 * 2, PITCH = FILTERS + 1;    // of a filter; from unit to unit, in units
constexpr int LAST = 2;                                                  // steps before whose end the next group starts

// [set of 64 filters][unit][filter], zeros beyond the last filter and tap.
__device__ __forceinline__ void load_filters(int4* to, const REAL* __restrict__ w, int sets, const FewChannels& p) {
#pragma unroll 4
    for (int i = threadIdx.x; i < sets * FILTERS * UNITS; i += THREADS_PER_BLOCK) {
        const int f = i / UNITS, unit = i % UNITS, r = unit / ACROSS, s = unit % ACROSS * 2;
        REAL v[2 * CHANNELS];
#pragma unroll
        for (int e = 0; e < 2 * CHANNELS; ++e) {
            const int c = e % CHANNELS, q = s + e / CHANNELS;
            v[e] = f < p.m && r < KH && c < p.c && q < KW ? w[((f * p.c + c) * KH + r) * KW + q] : (REAL)0;
        }
        to[(f / FILTERS * UNITS + unit) * PITCH + f % FILTERS] = unit_of(v);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1)
    conv2d_few_channels(const REAL* __restrict__ x, const REAL* __restrict__ w, const REAL* __restrict__ b, STORE* y,
                        REAL* pooled, FewChannels p) {
    static_assert(ROWS == 8, "a product has 128 columns");
    extern __shared__ __align__(128) unsigned char memory[];
    const int sets = ceil_div(p.m, FILTERS);
    int4* packed = (int4*)memory;                                        // as pack_image says
    int4* filters = packed + p.ph * 2 * p.line;                          // as load_filters says
    REAL* bias = (REAL*)(filters + sets * UNITS * PITCH);                // [filter]
    REAL* planes = bias + sets * FILTERS;                                // [c][ph][pw]

    const int lane = threadIdx.x % 32, group = threadIdx.x / GROUP;
    const int across = ceil_div(p.ow, 16), places = ceil_div(p.oh, ROWS) * across, items = sets * places;
    if ((int)blockIdx.x < p.n) load_images(planes, x, blockIdx.x, p);
    end_copies();
    load_filters(filters, w, sets, p);
    for (int m = threadIdx.x; m < sets * FILTERS; m += THREADS_PER_BLOCK) bias[m] = b && m < p.m ? b[m] : (REAL)0;
    if (group == GROUPS - 1) give_turn(0);
    for (int image = blockIdx.x; image < p.n; image += gridDim.x) {
        await_copies<0>();
        __syncthreads();                                                 // and everybody is done with the image before
        pack_image(packed, planes, p);
        publish();
        __syncthreads();
        if (image + (int)gridDim.x < p.n) load_images(planes, x, image + gridDim.x, p);
        end_copies();
        for (int item = group; item < ceil_div(items, GROUPS) * GROUPS; item += GROUPS) {
            const bool there = item < items;
            const int set = there ? item / places : 0, place = there ? item % places : 0;
            const int i0 = place / across * ROWS, j0 = place % across * 16;
            float sum[64] = {};
            const unsigned long long taps = blocks_of(filters + set * UNITS * PITCH, PITCH * UNIT, 8 * UNIT);
            const unsigned long long pixels = blocks_of(packed + i0 * 2 * p.line + j0 / 2, 0, p.line * UNIT);
            await_turn(group);
            begin_products();
#pragma unroll
            for (int unit = 0; unit < UNITS; unit += 2) {
                const int r = unit / ACROSS, s = unit % ACROSS;
                // To the second unit: next to the first one, or at the start of the next row; there may be none
                const int apart = unit + 1 == KH * ACROSS ? 0 : s + 1 < ACROSS ? 1 : 2 * p.line - s;
                wgmma_both(sum, taps + unit * PITCH,
                           pixels + (unsigned)(r * 2 * p.line + s) + ((long long)apart << 16));
                if (unit + 2 == UNITS - 2 * LAST) end_products();
            }
            end_products();
            await_products<1>();
            give_turn((group + 1) % GROUPS);
            await_products<0>();
            const int j = j0 + lane % 4 * 4;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int m = set * FILTERS + threadIdx.x / 32 % 4 * 16 + half * 8 + lane / 4;
                REAL out[ROWS][4];
#pragma unroll
                for (int e = 0; e < ROWS * 4; ++e)
                    out[e / 4][e % 4] = sum[(e / 4 * 2 + e % 2) * 4 + half * 2 + e % 4 / 2];
                if (there && m < p.m && j < p.ow)
                    store_outputs<ROWS>(out, bias[m], y, pooled, image * p.m + m, i0, j, p);
            }
        }
    }
    if (group == 0) await_turn(0);                                       // the last one that was given
}

#else
constexpr int MEANS = POOL ? 4 / POOL : 0;                               // windows of four neighbours
constexpr int AT_ONCE = POOL ? POOL : 2;                                 // rows of a step, those of a window

static_assert(AT_ONCE % 2 == 0, "rows take turns with two factors");

// What a thread copies for itself: four neighbours in rows of two maps, and the gradients of their windows.
struct Slots {
    Four* values;                                                        // [stage][map][row][thread]
    REAL* means;                                                         // [stage][map][window][thread]

    __device__ __forceinline__ Four* value(int stage, int map, int row) const {
        return values + ((stage * 2 + map) * AT_ONCE + row) * THREADS_PER_BLOCK + threadIdx.x;
    }
    __device__ __forceinline__ REAL* mean(int stage, int map, int i) const {
        return means + ((stage * 2 + map) * MEANS + i) * THREADS_PER_BLOCK + threadIdx.x;
    }
};

// The first of AT_ONCE rows, and of 16 columns, that a group is at: groups take such rows in turn.
struct Place {
    int row, column;

    __device__ __forceinline__ void next(int wide) {
        column += 16;
        if (column >= wide) {
            column = 0;
            row += GROUPS * AT_ONCE;
        }
    }
};

// Zeros outside. first: the number of the filter's map among those of all images.
__device__ __forceinline__ void start_slots(const Slots& slots, int stage, const REAL* gy, const STORE* y, int first,
                                            int filter, const Place& place, const FewChannels& p) {
    const int i = place.row, j = place.column + threadIdx.x % 4 * 4;
    const STORE* all = POOL ? y : (const STORE*)gy;
#pragma unroll
    for (int map = 0; map < 2; ++map) {
        const bool inside = filter + map * 8 < p.m && j < p.ow;
        const STORE* from = all + ((first + map * 8) * p.oh + i) * p.ow + j;
#pragma unroll
        for (int r = 0; r < AT_ONCE; ++r) {
            const bool there = inside && i + r < p.oh;
            Four* to = slots.value(stage, map, r);
#if ALIGNED
            start_copy(to, (const Four*)(there ? from + r * p.ow : all), there);
#else
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const bool valid = there && j + e < p.ow;
                start_copy(&to->v[e], valid ? from + r * p.ow + e : all, valid);
            }
#endif
        }
#if POOL
        const unsigned row = (first + map * 8) * (p.oh / POOL) + (unsigned)i / POOL;
        const REAL* windows = gy + row * (p.ow / POOL) + (unsigned)j / POOL;
#pragma unroll
        for (int e = 0; e < MEANS; ++e) {
            const bool valid = inside && i < p.oh && j + e * POOL < p.ow;
            start_copy(slots.mean(stage, map, e), valid ? windows + e : gy, valid);
        }
#endif
    }
}

// A lane's sums, of two filters, stored or added to.
template <bool added>
__device__ __forceinline__ void leave_sums(REAL* sums, int pitch, int taps, const float (&sum)[ACROSS][32],
                                           const float (&bias)[2], int channels) {
    const int within = threadIdx.x % 4, own = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int map = 0; map < 2; ++map) {
        REAL* filter = sums + (own + map * 8) * pitch;
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            const int c = within % 2 * 2 + odd;
            REAL* to = filter + c * (KH * KW) + within / 2;
            if (c < channels)
#pragma unroll
                for (int s = 0; s < ACROSS; ++s)
#pragma unroll
                    for (int r = 0; r < KH; ++r) {
                        const float v = sum[s][r * 4 + map * 2 + odd];
                        REAL* at = to + r * KW + s * 2;
                        if (s * 2 + 1 < KW || within / 2 == 0) *at = added ? *at + v : v;
                    }
        }
        if (within == 0) filter[taps] = added ? filter[taps] + bias[map] : bias[map];
    }
}

// parts (blocks, m*c*KH*KW, and m more with POOL)
extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1)
    conv2d_few_channels_dw(const REAL* gy, const STORE* y, const REAL* x, REAL* parts, FewChannels p) {
    static_assert(KH <= 8 && KW <= 8, "a group keeps the sums of all taps");
    static_assert(GROUPS == 2, "two groups' sums are added up");
    extern __shared__ __align__(128) unsigned char memory[];
    int4* packed = (int4*)memory;                                        // as pack_image says
    Four* values = (Four*)(packed + p.ph * 2 * p.line);
    const Slots slots = {values, (REAL*)(values + STAGES * 2 * AT_ONCE * THREADS_PER_BLOCK)};
    REAL* planes = slots.means + STAGES * 2 * MEANS * THREADS_PER_BLOCK; // [c][ph][pw]

    const int lane = threadIdx.x % 32, within = lane % 4, group = threadIdx.x / GROUP;
    const int first = blockIdx.y * FILTERS, own = threadIdx.x / 32 % 4 * 16 + lane / 4;   // a block's filters, a lane's
    const int steps = ceil_div(p.oh, GROUPS * AT_ONCE) * ceil_div(p.ow, 16);
    const unsigned long long pixels = blocks_of(packed, p.line * UNIT, 2 * p.line * UNIT);    // of the first tap
    float sum[ACROSS][32] = {}, bias[2] = {};
    if ((int)blockIdx.x < p.n) load_images(planes, x, blockIdx.x, p);
    end_copies();
    for (int image = blockIdx.x; image < p.n; image += gridDim.x) {
        Place coming = {group * AT_ONCE, 0}, place = coming;
        const int map = image * p.m + first + own;
#pragma unroll 1
        for (int stage = 0; stage < STAGES - 1; ++stage, coming.next(p.ow)) {
            start_slots(slots, stage, gy, y, map, first + own, coming, p);
            end_copies();
        }
        await_copies<STAGES - 1>();
        __syncthreads();                                                 // and everybody is done with the image before
        pack_image(packed, planes, p);
        publish();
        __syncthreads();
        if (image + (int)gridDim.x < p.n) load_images(planes, x, image + gridDim.x, p);       // with the first step's
        int stage = 0;
        unsigned gradient[2][4];                                         // of the products under way, and of the next
#pragma unroll 1
        for (int step = 0; step < steps; ++step, coming.next(p.ow), place.next(p.ow)) {
            start_slots(slots, stage ? stage - 1 : STAGES - 1, gy, y, map, first + own, coming, p);
            end_copies();
            await_copies<STAGES - 1>();
#if POOL
            REAL mean[2][MEANS];
#pragma unroll
            for (int e = 0; e < 2 * MEANS; ++e)
                mean[e / MEANS][e % MEANS] = *slots.mean(stage, e / MEANS, e % MEANS) * (REAL)(1.0 / (POOL * POOL));
#endif
#pragma unroll
            for (int r = 0; r < AT_ONCE; ++r) {
                unsigned* of = gradient[r % 2];
#pragma unroll
                for (int map = 0; map < 2; ++map) {
                    const Four four = *slots.value(stage, map, r);
                    REAL value[4];
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
#if POOL
                        value[e] = ACT_GRAD(mean[map][e / POOL], widened(four.v[e]));
#else
                        value[e] = widened(four.v[e]);
#endif
                        bias[map] += value[e];
                    }
                    of[map] = bf16_pair(value[0], value[2]);
                    of[map + 2] = bf16_pair(value[1], value[3]);
                }
                const int row = place.row + r < p.oh ? place.row + r : 0;    // beyond the last one all gradients are 0
                const unsigned long long at = pixels + (unsigned)(row * 2 * p.line + place.column / 2);
                begin_products();
#pragma unroll
                for (int s = 0; s < ACROSS; ++s) wgmma_rows<1>(sum[s], gradient[r % 2], at + s);
                end_products();
                await_products<1>();
            }
            if (++stage == STAGES) stage = 0;
        }
        await_products<0>();
        await_copies<0>();
    }

    // The groups' sums, in their order; a filter's numbers are contiguous: those of eight lanes are in different banks
    const int taps = p.c * KH * KW, pitch = taps / 8 * 8 + 12;
    REAL* sums = (REAL*)slots.values;                                    // [filter][c][KH][KW], and a bias
#pragma unroll
    for (int map = 0; map < 2; ++map)
#pragma unroll
        for (int lanes = 1; lanes < 4; lanes *= 2) bias[map] += __shfl_xor_sync(~0u, bias[map], lanes);
    __syncthreads();
    if (group == 1) leave_sums<false>(sums, pitch, taps, sum, bias, p.c);
    __syncthreads();
    if (group == 0) leave_sums<true>(sums, pitch, taps, sum, bias, p.c);
    __syncthreads();
    REAL* part = parts + (size_t)blockIdx.x * p.m * (taps + (POOL ? 1 : 0));
    for (int m = threadIdx.x / 32; m < imin(FILTERS, p.m - first); m += THREADS_PER_BLOCK / 32) {
        for (int i = lane; i < taps; i += 32) part[(first + m) * taps + i] = sums[m * pitch + i];
        if (POOL && lane == 0) part[p.m * taps + first + m] = sums[m * pitch + taps];
    }
}
#endif
