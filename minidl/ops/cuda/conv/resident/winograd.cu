// Convolution of stride 1 with 9/16 of the multiplications: Winograd's F(2,2) on the phases of images, filters and
// gradients, for filters of even height and width. In one dimension, with x0[k] = x[2k], x1[k] = x[2k+1],
// x2[k] = x[2k+2], filters h0[a] = w[2a], h1[a] = w[2a+1] and gradients g0[k] = g[2k], g1[k] = g[2k+1], the outputs of
// even and odd columns and the gradients of even and odd taps are
//     y0 = h0*x0 + h1*x1 = h0*(x0-x1) + (h0+h1)*x1,    y1 = h0*x1 + h1*x2 = (h0+h1)*x1 + h1*(x2-x1),
//     dw[2a]   = sum g0[k] x0[k+a] + g1[k] x1[k+a] = sum g0[k] (x0-x1)[k+a] + sum (g0+g1)[k] x1[k+a],
//     dw[2a+1] = sum g0[k] x1[k+a] + g1[k] x2[k+a] = sum (g0+g1)[k] x1[k+a] + sum g1[k] (x2-x1)[k+a]:
// three products, filter or gradient kind k with plane kind k; output or tap i is the sum of kinds i and i+1. In both
// dimensions that makes nine kinds, each a convolution with half the filter at a quarter of the positions.
//
// conv2d_winograd: y. A block holds the nine kinds of all filters and of whole padded images in shared memory. A thread
//   owns TH x TW positions, which are 2*TH x 2*TW outputs, of TM filters; it works through the kinds one after another
//   and adds the sums of each to the outputs that take it. Filters are stored as [group of TM][kind][c][p][q][TM], in
//   the order in which a thread reads them. A block walks over groups of `images` images.
//
// conv2d_winograd_dw: a block owns TM*GROUPS maps of some images, one image after the other. It holds the nine kinds of
//   the whole padded image in shared memory, and the nine kinds of ROWS rows of positions of the gradients in two
//   buffers. A multiplying thread owns all KH/2 x KW/2 taps of a kind, a channel and TM filters: for 4 neighbouring
//   positions it multiplies 4*KH*KW/4*TM times for each row. Meanwhile the warps after those prepare the next rows,
//   from gradients that they fetched one step earlier. An item, which one thread prepares, is 4 neighbouring positions
//   of a map: 2 rows of 8 columns.
//
// Requires: all of it fits shared memory (the launcher checks this). -DKH -DKW (even) -DTM and those of resident.cuh.
// y: -DTH -DTW. -DGRADIENT, dw: -DGROUPS -DROWS; -DFOURS: a row of gradients is FOURS times 8 columns long; more
// threads than those that multiply; REAL is float. With -DFUSED gy is the gradient of averages over windows of size
// -DPOOL=2 or 4, and y what the activation -DACT before the pooling computed; the bias's gradient, the sums of these,
// follows each part.
#include "conv/resident/resident.cuh"

static_assert(KH % 2 == 0 && KW % 2 == 0, "filters fall into two phases: their height and width are even");

// Images as Winograd's F(2,2) wants them: in each dimension the pixels x[2k], x[2k+1], x[2k+2] under two neighbouring
// outputs become x[2k] - x[2k+1], x[2k+1] and x[2k+2] - x[2k+1]. In both dimensions that makes nine planes of half the
// size of one: plane 3 * r + s has kind r of the rows and kind s of the columns.
//
// Padded images [image][c][9][ph][pw] from `first` on, zeros beyond the last one.
__device__ __forceinline__ void load_planes(REAL* to, const REAL* x, int first, const PaddedImages& p) {
    int sources = imin(p.images, p.n - first) * p.c, size = p.ph * p.pw;
    const REAL* from = x + first * p.c * p.h * p.w;
    Odometer at(THREADS_PER_BLOCK, p.ph, p.pw);  // source plane, row, column
#pragma unroll 3
    for (int i = threadIdx.x; i < p.images * p.c * size; i += THREADS_PER_BLOCK, at.next()) {
        bool there = at.high < sources;
        const REAL* source = from + (there ? at.high * p.h * p.w : 0);
        REAL line[3][3];
#pragma unroll
        for (int r = 0; r < 3; ++r) {
            REAL pixel[3];
#pragma unroll
            for (int s = 0; s < 3; ++s)
                pixel[s] = inside(source, 2 * at.middle + r - p.top, 2 * at.low + s - p.left, there ? p.h : 0, p.w);
            line[r][0] = pixel[0] - pixel[1];
            line[r][1] = pixel[1];
            line[r][2] = pixel[2] - pixel[1];
        }
        REAL* plane = to + at.high * 8 * size + i;  // [source plane][0][row][column]
#pragma unroll
        for (int s = 0; s < 3; ++s) {
            plane[s * size] = line[0][s] - line[1][s];
            plane[(3 + s) * size] = line[1][s];
            plane[(6 + s) * size] = line[2][s] - line[1][s];
        }
    }
}

#ifndef GRADIENT
constexpr int P = KH / 2, Q = KW / 2;            // a filter of one kind
constexpr int SUMS = TM * TH * TW;               // [filter][row][column]: what a thread owns of one kind
constexpr int XW = (TW + Q - 2) / TW * TW + TW;  // positions under TW of a row of a kind, whole packs
// As in whole_image.cu: rows of filters are unrolled to what fits the instruction cache.
constexpr int MAX_ROWS = 1024 / (Q * TH * TW * TM), UNROLL = MAX_ROWS < 1 ? 1 : MAX_ROWS < P ? MAX_ROWS : P;
static_assert(TW == 2 || TW == 4, "TW positions are loaded, and 2*TW outputs stored, in packs: 2 or 4");

// All kinds of all filters, [group][kind][c][p][q][TM], zeros beyond filter m; groups are `size` numbers apart.
__device__ __forceinline__ void load_filters(REAL* to, const REAL* w, int groups, int size, int c, int m) {
    int taps = c * P * Q;
    Odometer at(THREADS_PER_BLOCK, taps, TM);  // group, tap, filter of the group
#pragma unroll 6
    for (int i = threadIdx.x; i < groups * taps * TM; i += THREADS_PER_BLOCK, at.next()) {
        int f = at.high * TM + at.low, channel = at.middle / (P * Q), p = at.middle / Q % P, q = at.middle % Q;
        const REAL* from = w + ((f * c + channel) * KH + 2 * p) * KW + 2 * q;
        REAL line[2][3];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            line[r][0] = f < m ? from[r * KW] : (REAL)0;
            line[r][2] = f < m ? from[r * KW + 1] : (REAL)0;
            line[r][1] = line[r][0] + line[r][2];
        }
        REAL* kinds = to + at.high * size + at.middle * TM + at.low;
#pragma unroll
        for (int s = 0; s < 3; ++s) {
            kinds[s * taps * TM] = line[0][s];
            kinds[(3 + s) * taps * TM] = line[0][s] + line[1][s];
            kinds[(6 + s) * taps * TM] = line[1][s];
        }
    }
}

// Add the products of one kind at a thread's positions, from `positions` on, over all channels; moves `weights` past
// this kind's.
__device__ __forceinline__ void convolve(REAL* product, const REAL*& weights, const REAL* positions,
                                         const PaddedImages& p) {
#pragma unroll 1
    for (int c = 0; c < p.c; ++c, positions += 9 * p.ph * p.pw) {
        REAL pixel[TH][XW];
        auto load_row = [&](int r, REAL* to) {
#pragma unroll
            for (int s = 0; s < XW; s += TW) *(Pack<TW>*)&to[s] = *(const Pack<TW>*)&positions[r * p.pw + s];
        };
#pragma unroll
        for (int i = 1; i < TH; ++i) load_row(i - 1, pixel[i]);
#pragma unroll(UNROLL)
        for (int r = 0; r < P; ++r, weights += Q * TM) {
#pragma unroll
            for (int i = 1; i < TH; ++i)  // rows move up, and one is new
#pragma unroll
                for (int s = 0; s < XW; ++s) pixel[i - 1][s] = pixel[i][s];
            load_row(r + TH - 1, pixel[TH - 1]);
#pragma unroll
            for (int q = 0; q < Q; ++q) {
                constexpr int V = TM % 4 == 0 ? 4 : TM % 2 == 0 ? 2 : 1;
                REAL weight[TM];
#pragma unroll
                for (int f = 0; f < TM; f += V) *(Pack<V>*)&weight[f] = *(const Pack<V>*)&weights[q * TM + f];
#pragma unroll
                for (int i = 0; i < TH; ++i)
#pragma unroll
                    for (int j = 0; j < TW; ++j)
#pragma unroll
                        for (int e = 0; e < TM; ++e) {
                            int f = (i * TW + j) % 2 ? TM - 1 - e : e;  // there and back: the last one serves twice
                            product[(f * TH + i) * TW + j] += weight[f] * pixel[i][j + q];
                        }
            }
        }
    }
}

__device__ __forceinline__ void add(REAL* to, const REAL* from) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) to[i] += from[i];
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1)
    conv2d_winograd(const REAL* x, const REAL* w, const REAL* b, REAL* y, REAL* pooled, PaddedImages p) {
#if POOL
    static_assert(2 * TH % POOL == 0 && 2 * TW % POOL == 0, "windows must be within a thread's outputs");
#endif
    extern __shared__ __align__(16) unsigned char memory[];
    int groups = ceil_div(p.m, TM), filters_size = 9 * p.c * P * Q * TM, plane_size = p.ph * p.pw;
    REAL* filters = (REAL*)memory;                                    // [group][kind][c][p][q][TM]
    REAL* planes = filters + ceil_div(groups * filters_size, 4) * 4;  // [image][c][kind][ph][pw], for packs
    load_filters(filters, w, groups, filters_size, p.c, p.m);
    int across = ceil_div(p.ow, 2 * TW), tiles = ceil_div(p.oh, 2 * TH) * across;
    for (int first = blockIdx.x * p.images; first < p.n; first += gridDim.x * p.images) {
        __syncthreads();  // everybody is done with the images before
        load_planes(planes, x, first, p);
        __syncthreads();
        int items = imin(p.images, p.n - first) * groups * tiles;
        for (int item = threadIdx.x; item < items; item += THREADS_PER_BLOCK) {
            int tile = item % tiles, group = item / tiles % groups, image = item / (tiles * groups);
            int i0 = tile / across * TH, j0 = tile % across * TW;
            // Outputs in even and odd rows and columns. Those in odd rows take in each kind's sums, and pass on those
            // that even rows need too. Each kind is summed by itself: long sums round more.
            REAL sum[2][2][SUMS] = {};
            const REAL* weights = filters + group * filters_size;
            const REAL* kind = planes + image * p.c * 9 * plane_size + i0 * p.pw + j0;
#pragma unroll 1
            for (int of_rows = 0; of_rows < 3; ++of_rows) {
#pragma unroll 1
                for (int of_columns = 0; of_columns < 3; ++of_columns, kind += plane_size) {
                    REAL product[SUMS] = {};
                    convolve(product, weights, kind, p);
                    if (of_columns < 2) add(sum[1][0], product);
                    if (of_columns > 0) add(sum[1][1], product);
                }
                if (of_rows < 2) {
                    add(sum[0][0], sum[1][0]);
                    add(sum[0][1], sum[1][1]);
                }
                if (of_rows < 1)
#pragma unroll
                    for (int i = 0; i < SUMS; ++i) sum[1][0][i] = sum[1][1][i] = 0;
            }
            // Whole rows at once, not resident.cuh's four columns: stored in halves, the report's layer takes 66 us,
            // not 58.
#pragma unroll
            for (int f = 0; f < TM; ++f) {
                int map = group * TM + f;
                if (map >= p.m) break;
                REAL bias = b ? b[map] : (REAL)0;
                REAL* to = y + (((first + image) * p.m + map) * p.oh + 2 * i0) * p.ow + 2 * j0;
#if POOL
                REAL* means = pooled + ((first + image) * p.m + map) * (p.oh / POOL) * (p.ow / POOL);
                means += 2 * i0 / POOL * (p.ow / POOL) + 2 * j0 / POOL;
                REAL total[2 * TW / POOL];
#endif
#pragma unroll
                for (int i = 0; i < 2 * TH; ++i) {
                    if (2 * i0 + i >= p.oh) break;
                    REAL out[2 * TW];
#pragma unroll
                    for (int j = 0; j < 2 * TW; ++j) {
                        out[j] = sum[i % 2][j % 2][(f * TH + i / 2) * TW + j / 2] + bias;
#ifdef FUSED
                        out[j] = ACT_VALUE(out[j]);
#endif
                    }
                    constexpr int V = ALIGNED ? 4 : 1;
#pragma unroll
                    for (int j = 0; j < 2 * TW; j += V)
                        if (2 * j0 + j < p.ow) *(Pack<V>*)&to[i * p.ow + j] = *(Pack<V>*)&out[j];
#if POOL
#pragma unroll
                    for (int j = 0; j < 2 * TW; ++j) {
                        REAL& mean = total[j / POOL];
                        mean = i % POOL || j % POOL ? mean + out[j] : out[j];
                        if (i % POOL == POOL - 1 && j % POOL == POOL - 1 && 2 * j0 + j < p.ow)
                            means[i / POOL * (p.ow / POOL) + j / POOL] = mean * (REAL)(1.0 / (POOL * POOL));
                    }
#endif
                }
            }
        }
    }
}

#else
constexpr int A = KH / 2, B = KW / 2;                // taps of a kind
constexpr int XW = (B + 6) / 4 * 4;                  // positions under 4 of the gradients, whole fours
constexpr int PW = 4 * FOURS - 4 + XW;               // p.pw
constexpr int MAPS = TM * GROUPS, PITCH = MAPS | 1;  // PITCH is odd: maps of neighbouring positions, in other banks
constexpr int A_MAP = ROWS * FOURS;                  // items of one
constexpr int KIND = A_MAP * PITCH * 4;              // elements of a kind: [four][row][PITCH][4]
#ifdef FUSED
constexpr int WINDOWS = 8 / POOL, TOTAL = 1;
static_assert(POOL == 2 || POOL == 4, "windows are within an item's 8 columns, and its 2 rows within one: 2 or 4");
#else
constexpr int WINDOWS = 0, TOTAL = 0;
#endif
// What is fetched for an item: 16 gradients (FUSED: of y), the averages' gradients; and the sum of all its gradients.
constexpr int SLOT = ((19 + WINDOWS + TOTAL) / 4 | 1) * 4;  // an odd number of fours: neighbours in other banks
static_assert(sizeof(REAL) == 4, "doubles have neither the registers nor the shared memory");

// parts (blocks, m*c*KH*KW, and m more if FUSED)
extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1)
    conv2d_winograd_dw(const REAL* gy, const REAL* y, const REAL* x, REAL* parts, PaddedImages p) {
    extern __shared__ __align__(16) unsigned char memory[];
    REAL* fetched = (REAL*)memory;                // [item][SLOT]
    REAL* kinds = fetched + MAPS * A_MAP * SLOT;  // two of [kind][four][row][PITCH][4]
    REAL* planes = kinds + 2 * 9 * KIND;          // [c][kind][ph][PW]

    int first_map = blockIdx.y * MAPS, live = imin(MAPS, p.m - first_map), items = live * A_MAP;
    int chunks = ceil_div(p.oh, 2 * ROWS), plane_size = p.ph * PW;
    int team = 9 * p.c * GROUPS, workers = ceil_div(team, 32) * 32, preparers = THREADS_PER_BLOCK - workers;
    int line = threadIdx.x / GROUPS, group = threadIdx.x - line * GROUPS, kind = line / p.c, c = line - kind * p.c;
    REAL sum[TM][A][B] = {};

    auto fetch = [&](int i, int image, int chunk) {
        int map = image * p.m + first_map + i / A_MAP, row = 2 * (chunk * ROWS + i / FOURS % ROWS),
            column = i % FOURS * 8;
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
        constexpr int V = ALIGNED ? 4 : 1;  // elements that one copy moves
#pragma unroll
        for (int s = 0; s < 16; s += V) {
            bool valid = row + s / 8 < p.oh && column + s % 8 < p.ow;
            start_copy((Pack<V>*)(to + s), (const Pack<V>*)(valid ? rows + s / 8 * p.ow + s % 8 : from), valid);
        }
    };
    auto prepare = [&](int i, int chunk) {
        REAL* from = fetched + i * SLOT;
        REAL gradient[3][8];  // by kinds of rows
#pragma unroll
        for (int s = 0; s < 16; s += 4) *(Pack<4>*)&gradient[s / 8 * 2][s % 8] = *(const Pack<4>*)&from[s];
#ifdef FUSED
        REAL share[WINDOWS];
        *(Pack<WINDOWS>*)share = *(const Pack<WINDOWS>*)&from[16];
#pragma unroll
        for (int s = 0; s < WINDOWS; ++s) share[s] *= (REAL)(1.0 / (POOL * POOL));
#pragma unroll
        for (int s = 0; s < 8; ++s) {
            gradient[0][s] = ACT_GRAD(share[s / POOL], gradient[0][s]);
            gradient[2][s] = ACT_GRAD(share[s / POOL], gradient[2][s]);
        }
#endif
#pragma unroll
        for (int s = 0; s < 8; ++s) gradient[1][s] = gradient[0][s] + gradient[2][s];
        REAL* to = kinds + (chunk & 1) * 9 * KIND + ((i % FOURS * ROWS + i / FOURS % ROWS) * PITCH + i / A_MAP) * 4;
#pragma unroll
        for (int r = 0; r < 3; ++r) {
            Pack<4> even, both, odd;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                even.v[e] = gradient[r][2 * e];
                odd.v[e] = gradient[r][2 * e + 1];
                both.v[e] = even.v[e] + odd.v[e];
            }
            *(Pack<4>*)&to[3 * r * KIND] = even;
            *(Pack<4>*)&to[(3 * r + 1) * KIND] = both;
            *(Pack<4>*)&to[(3 * r + 2) * KIND] = odd;
            if (TOTAL && r == 1) from[SLOT - 1] += (both.v[0] + both.v[1]) + (both.v[2] + both.v[3]);
        }
    };
    auto multiply = [&](int chunk) {
        const REAL* gradients = kinds + ((chunk & 1) * 9 + kind) * KIND + 4 * group;
        const REAL* pixels = planes + (c * 9 + kind) * plane_size + chunk * ROWS * PW;
#pragma unroll 1
        for (int j = 0; j < FOURS; ++j, gradients += ROWS * PITCH * 4, pixels += 4) {
            REAL pixel[A + ROWS - 1][XW];
#pragma unroll
            for (int k = 0; k < ROWS; ++k) {
#pragma unroll
                for (int r = k ? A + k - 1 : 0; r < A + k; ++r)
#pragma unroll
                    for (int s = 0; s < XW; s += 4) *(Pack<4>*)&pixel[r][s] = *(const Pack<4>*)&pixels[r * PW + s];
#pragma unroll
                for (int f = 0; f < TM; ++f) {
                    REAL gradient[4];
                    *(Pack<4>*)gradient = *(const Pack<4>*)&gradients[(k * PITCH + f * GROUPS) * 4];
#pragma unroll
                    for (int e = 0; e < 4; ++e)
#pragma unroll
                        for (int a = 0; a < A; ++a)
#pragma unroll
                            for (int b = 0; b < B; ++b) sum[f][a][b] += gradient[e] * pixel[k + a][e + b];
                }
            }
        }
    };

    for (int i = threadIdx.x; i < MAPS * A_MAP; i += THREADS_PER_BLOCK) {
        fetched[i * SLOT + SLOT - 1] = 0;              // totals
        for (int k = 0; i >= items && k < 2 * 9; ++k)  // maps beyond the last
            *(Pack<4>*)&kinds[k * KIND + (i % A_MAP * PITCH + i / A_MAP) * 4] = Pack<4>{};
    }
    __syncthreads();
    for (int image = blockIdx.x; image < p.n; image += gridDim.x) {
        for (int i = threadIdx.x; i < items; i += THREADS_PER_BLOCK) fetch(i, image, 0);
        end_copies();
        load_planes(planes, x, image, p);
        await_copies<0>();
        for (int i = threadIdx.x; i < items; i += THREADS_PER_BLOCK) prepare(i, 0);
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
            __syncthreads();  // the buffers may be filled again
        }
    }

    REAL* sums = kinds;  // [kind][c][a][b][MAPS]
    if (threadIdx.x < team)
#pragma unroll
        for (int e = 0; e < TM * A * B; ++e)
            sums[(line * A * B + e % (A * B)) * MAPS + e / (A * B) * GROUPS + group] =
                sum[e / (A * B)][e / B % A][e % B];
    __syncthreads();
    int taps = p.c * KH * KW, step = p.c * A * B * MAPS;
    REAL* part = parts + (size_t)blockIdx.x * p.m * (taps + TOTAL) + first_map * taps;
    Odometer at(THREADS_PER_BLOCK, p.c * A, B);  // map, channel and row, column of the kinds
    for (int i = threadIdx.x; i < live * p.c * A * B; i += THREADS_PER_BLOCK, at.next()) {
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
            if (TOTAL && p.m % 2)  // parts start anywhere
                to[r * KW] = pair.v[0], to[r * KW + 1] = pair.v[1];
            else
                *(Pack<2>*)&to[r * KW] = pair;
        }
    }
    for (int i = threadIdx.x; TOTAL && i < live; i += THREADS_PER_BLOCK) {
        REAL total = 0;
        for (int k = 0; k < A_MAP; ++k) total += fetched[(i * A_MAP + k) * SLOT + SLOT - 1];
        part[(p.m - first_map) * taps + first_map + i] = total;
    }
}
#endif
