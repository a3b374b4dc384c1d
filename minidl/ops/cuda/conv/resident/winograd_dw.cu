// The filter gradient of a convolution of stride 1 with 9/16 of the multiplications: Winograd's F(2,2) on the phases of
// images and gradients, for filters of even height and width. In one dimension, with g0[k] = g[2k], g1[k] = g[2k+1] and
// x0[k] = x[2k], x1[k] = x[2k+1], x2[k] = x[2k+2], the gradients of even and odd taps are
//     dw[2a]   = sum g0[k] x0[k+a] + g1[k] x1[k+a] = sum g0[k] (x0-x1)[k+a] + sum (g0+g1)[k] x1[k+a],
//     dw[2a+1] = sum g0[k] x1[k+a] + g1[k] x2[k+a] = sum (g0+g1)[k] x1[k+a] + sum g1[k] (x2-x1)[k+a]:
// three sums, and tap 2a+i is the sum of kinds i and i+1. In both dimensions that makes nine kinds, each a filter gradient
// of half the size over a quarter of the positions.
//
// A block owns TM*GROUPS maps of some images, one image after the other. It holds the nine kinds of the whole padded image
// in shared memory, and the nine kinds of ROWS rows of positions of the gradients in two buffers. A multiplying thread
// owns all KH/2 x KW/2 taps of a kind, a channel and TM filters: for 4 neighbouring positions it multiplies 4*KH*KW/4*TM
// times for each row. The warps behind those prepare the next rows meanwhile, from gradients that they fetched one step
// earlier. An item, which one thread prepares, is 4 neighbouring positions of a map: 2 rows of 8 columns.
// Requires: all of it fits shared memory (the launcher looks); REAL is float. -DKH -DKW (even) -DTM -DGROUPS -DROWS
// -DFOURS: a row of gradients is so many times 8 columns long. -DTHREADS_A_BLOCK, more than those that multiply.
// -DALIGNED: rows of the gradients start on multiples of 4 elements.
//
// -DFUSED: gy is the gradient of averages over windows of size -DPOOL=2 or 4, and y what the activation -DACT before the
// pooling computed; then the sums of the gradients themselves, the bias's, follow each part.
#include "include/common.cuh"
#include "include/act.cuh"
#include "conv/resident/winograd.cuh"

constexpr int A = KH / 2, B = KW / 2;                    // taps of a kind
constexpr int XW = (B + 6) / 4 * 4;                      // positions under 4 of the gradients, whole fours
constexpr int PW = 4 * FOURS - 4 + XW;                   // p.pw
constexpr int MAPS = TM * GROUPS, PITCH = MAPS | 1;      // PITCH is odd: maps of neighbouring positions, in other banks
constexpr int A_MAP = ROWS * FOURS;                      // items of one
constexpr int KIND = A_MAP * PITCH * 4;                  // elements of a kind: [four][row][PITCH][4]
#ifdef FUSED
constexpr int WINDOWS = 8 / POOL, TOTAL = 1;
static_assert(POOL == 2 || POOL == 4, "windows lie within an item's 8 columns, and its 2 rows within one: 2 or 4");
#else
constexpr int WINDOWS = 0, TOTAL = 0;
#endif
// What is fetched for an item: 16 gradients (FUSED: of y), the averages' gradients; and the sum of all its gradients.
constexpr int SLOT = ((19 + WINDOWS + TOTAL) / 4 | 1) * 4;      // an odd number of fours: neighbours in other banks
static_assert(KH % 2 == 0 && KW % 2 == 0, "filters fall into two phases: their height and width are even");
static_assert(sizeof(REAL) == 4, "doubles have neither the registers nor the shared memory");

// parts (blocks, m*c*KH*KW, and m more where FUSED)
extern "C" __global__ void __launch_bounds__(THREADS_A_BLOCK, 1)
conv2d_winograd_dw(const REAL* gy, const REAL* y, const REAL* x, REAL* parts, Planes p) {
    extern __shared__ __align__(16) unsigned char memory[];
    REAL* fetched = (REAL*)memory;                       // [item][SLOT]
    REAL* kinds = fetched + MAPS * A_MAP * SLOT;         // two of [kind][four][row][PITCH][4]
    REAL* planes = kinds + 2 * 9 * KIND;                 // [c][kind][ph][PW]

    int first_map = blockIdx.y * MAPS, live = imin(MAPS, p.m - first_map), items = live * A_MAP;
    int chunks = ceil_div(p.oh, 2 * ROWS), plane_size = p.ph * PW;
    int team = 9 * p.c * GROUPS, workers = ceil_div(team, 32) * 32, preparers = THREADS_A_BLOCK - workers;
    int line = threadIdx.x / GROUPS, group = threadIdx.x - line * GROUPS, kind = line / p.c, c = line - kind * p.c;
    REAL sum[TM][A][B] = {};

    auto fetch = [&](int i, int image, int chunk) {
        int map = image * p.m + first_map + i / A_MAP, row = 2 * (chunk * ROWS + i / FOURS % ROWS), column = i % FOURS * 8;
        REAL* to = fetched + i * SLOT;
#ifdef FUSED
        const REAL* from = y;
        const REAL* means = gy + (map * (p.oh / POOL) + row / POOL) * (p.ow / POOL) + column / POOL;
#pragma unroll
        for (int s = 0; s < WINDOWS; ++s) {
            bool valid = row < p.oh && column + s * POOL < p.ow;
            start_copy(to + 16 + s, valid ? means + s : gy, valid);
        }
#else
        const REAL* from = gy;
#endif
        const REAL* rows = from + (map * p.oh + row) * p.ow + column;
        constexpr int V = ALIGNED ? 4 : 1;               // elements that one copy moves
#pragma unroll
        for (int s = 0; s < 16; s += V) {
            bool valid = row + s / 8 < p.oh && column + s % 8 < p.ow;
            start_copy((Pack<V>*)(to + s), (const Pack<V>*)(valid ? rows + s / 8 * p.ow + s % 8 : from), valid);
        }
    };
    auto prepare = [&](int i, int chunk) {
        REAL* from = fetched + i * SLOT;
        REAL slope[3][8];                                // by kinds of rows
#pragma unroll
        for (int s = 0; s < 16; s += 4) *(Pack<4>*)&slope[s / 8 * 2][s % 8] = *(const Pack<4>*)&from[s];
#ifdef FUSED
        REAL share[WINDOWS];
        *(Pack<WINDOWS>*)share = *(const Pack<WINDOWS>*)&from[16];
#pragma unroll
        for (int s = 0; s < WINDOWS; ++s) share[s] *= (REAL)(1.0 / (POOL * POOL));
#pragma unroll
        for (int s = 0; s < 8; ++s) {
            slope[0][s] = ACT_GRAD(share[s / POOL], slope[0][s]);
            slope[2][s] = ACT_GRAD(share[s / POOL], slope[2][s]);
        }
#endif
#pragma unroll
        for (int s = 0; s < 8; ++s) slope[1][s] = slope[0][s] + slope[2][s];
        REAL* to = kinds + (chunk & 1) * 9 * KIND + ((i % FOURS * ROWS + i / FOURS % ROWS) * PITCH + i / A_MAP) * 4;
#pragma unroll
        for (int r = 0; r < 3; ++r) {
            Pack<4> even, both, odd;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                even.v[e] = slope[r][2 * e];
                odd.v[e] = slope[r][2 * e + 1];
                both.v[e] = even.v[e] + odd.v[e];
            }
            *(Pack<4>*)&to[3 * r * KIND] = even;
            *(Pack<4>*)&to[(3 * r + 1) * KIND] = both;
            *(Pack<4>*)&to[(3 * r + 2) * KIND] = odd;
            if (TOTAL && r == 1) from[SLOT - 1] += (both.v[0] + both.v[1]) + (both.v[2] + both.v[3]);
        }
    };
    auto multiply = [&](int chunk) {
        const REAL* slopes = kinds + ((chunk & 1) * 9 + kind) * KIND + 4 * group;
        const REAL* pixels = planes + (c * 9 + kind) * plane_size + chunk * ROWS * PW;
#pragma unroll 1
        for (int j = 0; j < FOURS; ++j, slopes += ROWS * PITCH * 4, pixels += 4) {
            REAL pixel[A + ROWS - 1][XW];
#pragma unroll
            for (int k = 0; k < ROWS; ++k) {
#pragma unroll
                for (int r = k ? A + k - 1 : 0; r < A + k; ++r)
#pragma unroll
                    for (int s = 0; s < XW; s += 4) *(Pack<4>*)&pixel[r][s] = *(const Pack<4>*)&pixels[r * PW + s];
#pragma unroll
                for (int f = 0; f < TM; ++f) {
                    REAL slope[4];
                    *(Pack<4>*)slope = *(const Pack<4>*)&slopes[(k * PITCH + f * GROUPS) * 4];
#pragma unroll
                    for (int e = 0; e < 4; ++e)
#pragma unroll
                        for (int a = 0; a < A; ++a)
#pragma unroll
                            for (int b = 0; b < B; ++b) sum[f][a][b] += slope[e] * pixel[k + a][e + b];
                }
            }
        }
    };

    for (int i = threadIdx.x; i < MAPS * A_MAP; i += THREADS_A_BLOCK) {
        fetched[i * SLOT + SLOT - 1] = 0;                // totals
        for (int k = 0; i >= items && k < 2 * 9; ++k)    // maps beyond the last
            *(Pack<4>*)&kinds[k * KIND + (i % A_MAP * PITCH + i / A_MAP) * 4] = Pack<4>{};
    }
    __syncthreads();
    for (int image = blockIdx.x; image < p.n; image += gridDim.x) {
        for (int i = threadIdx.x; i < items; i += THREADS_A_BLOCK) fetch(i, image, 0);
        end_copies();
        load_planes(planes, x, image, p);
        await_copies<0>();
        for (int i = threadIdx.x; i < items; i += THREADS_A_BLOCK) prepare(i, 0);
        __syncthreads();
        int mine = (int)threadIdx.x - workers;
        if (mine >= 0 && chunks > 1)
            for (int i = mine; i < items; i += preparers) fetch(i, image, 1);
        end_copies();
        for (int chunk = 0; chunk < chunks; ++chunk) {
            if (mine < 0) {
                if (threadIdx.x < team) multiply(chunk);
            } else if (chunk + 1 < chunks) {
                await_copies<0>();
                for (int i = mine; i < items; i += preparers) {
                    prepare(i, chunk + 1);
                    if (chunk + 2 < chunks) fetch(i, image, chunk + 2);
                }
                end_copies();
            }
            __syncthreads();                             // the buffers may be filled again
        }
    }

    REAL* sums = kinds;                                  // [kind][c][a][b][MAPS]
    if (threadIdx.x < team)
#pragma unroll
        for (int e = 0; e < TM * A * B; ++e)
            sums[(line * A * B + e % (A * B)) * MAPS + e / (A * B) * GROUPS + group] = sum[e / (A * B)][e / B % A][e % B];
    __syncthreads();
    int taps = p.c * KH * KW, step = p.c * A * B * MAPS;
    REAL* part = parts + (size_t)blockIdx.x * p.m * (taps + TOTAL) + first_map * taps;
    Odometer at(THREADS_A_BLOCK, p.c * A, B);            // map, channel and row, column of the kinds
    for (int i = threadIdx.x; i < live * p.c * A * B; i += THREADS_A_BLOCK, at.next()) {
        const REAL* of = sums + (at.middle * B + at.low) * MAPS + at.high;
        REAL row[3][2];
#pragma unroll
        for (int r = 0; r < 3; ++r)
#pragma unroll
            for (int s = 0; s < 2; ++s) row[r][s] = of[(3 * r + s) * step] + of[(3 * r + s + 1) * step];
        REAL* to = part + at.high * taps + at.middle * 2 * KW + 2 * at.low;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            Pack<2> pair = {row[r][0] + row[r + 1][0], row[r][1] + row[r + 1][1]};
            if (TOTAL && p.m % 2)                          // parts start anywhere
                to[r * KW] = pair.v[0], to[r * KW + 1] = pair.v[1];
            else
                *(Pack<2>*)&to[r * KW] = pair;
        }
    }
    for (int i = threadIdx.x; TOTAL && i < live; i += THREADS_A_BLOCK) {
        REAL total = 0;
        for (int k = 0; k < A_MAP; ++k) total += fetched[(i * A_MAP + k) * SLOT + SLOT - 1];
        part[(p.m - first_map) * taps + first_map + i] = total;
    }
}
