// Convolution of stride 1 with 9/16 of the multiplications: Winograd's F(2,2) on the phases of images and filters, for
// filters of even height and width. In one dimension, with X0[k] = x[2k], X1[k] = x[2k+1], X2[k] = x[2k+2] and filters
// H0[a] = w[2a], H1[a] = w[2a+1], the outputs of even and odd columns are
//     y0 = H0*X0 + H1*X1 = H0*(X0-X1) + (H0+H1)*X1,    y1 = H0*X1 + H1*X2 = (H0+H1)*X1 + H1*(X2-X1):
// three products, filter kind k with plane kind k, and output i is the sum of kinds i and i+1. In both dimensions that
// makes nine convolutions with filters of half the size at a quarter of the positions.
//
// conv2d_winograd: y. A block holds the nine kinds of all filters and of whole padded images in shared memory. A thread
//   owns TH x TW positions, which are 2*TH x 2*TW outputs, of TM filters; it works through the kinds one after another
//   and adds the sums of each to the outputs that take it. Filters lie [group of TM][kind][c][p][q][TM], in the order
//   in which a thread reads them. A block walks over groups of `images` images.
//
// Requires: all of it fits shared memory (the launcher looks). -DKH -DKW (even) -DTH -DTW -DTM -DTHREADS_A_BLOCK
// -DALIGNED -DFUSED -DACT -DPOOL: as in whole.cuh.
#include "conv/resident/resident.cuh"
#include "conv/resident/winograd.cuh"

constexpr int P = KH / 2, Q = KW / 2;                        // a filter of one kind
constexpr int SUMS = TM * TH * TW;                           // [filter][row][column]: what a thread owns of one kind
constexpr int XW = (TW + Q - 2) / TW * TW + TW;              // positions under TW of a row of a kind, whole packs
// As in whole_image.cu: rows of filters are unrolled to what fits the instruction cache.
constexpr int MOST = 1024 / (Q * TH * TW * TM), UNROLL = MOST < 1 ? 1 : MOST < P ? MOST : P;
static_assert(KH % 2 == 0 && KW % 2 == 0, "filters fall into two phases: their height and width are even");
static_assert(TW == 2 || TW == 4, "TW positions are loaded, and 2*TW outputs stored, in packs: 2 or 4");

// All kinds of all filters, [group][kind][c][p][q][TM], zeros beyond filter m; groups lie `size` apart.
__device__ __forceinline__ void load_filters(REAL* to, const REAL* w, int groups, int size, int c, int m) {
    int taps = c * P * Q;
    Odometer at(THREADS_A_BLOCK, taps, TM);                  // group, tap, filter of the group
#pragma unroll 6
    for (int i = threadIdx.x; i < groups * taps * TM; i += THREADS_A_BLOCK, at.next()) {
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

// Add the products of one kind at a thread's positions, from `positions` on, over all channels; passes its weights by.
__device__ __forceinline__ void convolve(REAL* product, const REAL*& weights, const REAL* positions, const Planes& p) {
#pragma unroll 1
    for (int c = 0; c < p.c; ++c, positions += 9 * p.ph * p.pw) {
        REAL pixel[TH][XW];
        auto load_row = [&](int r, REAL* to) {
#pragma unroll
            for (int s = 0; s < XW; s += TW) *(Pack<TW>*)&to[s] = *(const Pack<TW>*)&positions[r * p.pw + s];
        };
#pragma unroll
        for (int i = 1; i < TH; ++i) load_row(i - 1, pixel[i]);
#pragma unroll (UNROLL)
        for (int r = 0; r < P; ++r, weights += Q * TM) {
#pragma unroll
            for (int i = 1; i < TH; ++i)                     // rows move up, and one is new
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
                            int f = (i * TW + j) % 2 ? TM - 1 - e : e;      // there and back: the last one serves twice
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

extern "C" __global__ void __launch_bounds__(THREADS_A_BLOCK, 1)
conv2d_winograd(const REAL* x, const REAL* w, const REAL* b, REAL* y, REAL* pooled, Planes p) {
#if POOL
    static_assert(2 * TH % POOL == 0 && 2 * TW % POOL == 0, "windows must lie within a thread's outputs");
#endif
    extern __shared__ __align__(16) unsigned char memory[];
    int groups = ceil_div(p.m, TM), filters_size = 9 * p.c * P * Q * TM, plane_size = p.ph * p.pw;
    REAL* filters = (REAL*)memory;                           // [group][kind][c][p][q][TM]
    REAL* planes = filters + ceil_div(groups * filters_size, 4) * 4;         // [image][c][kind][ph][pw], for packs
    load_filters(filters, w, groups, filters_size, p.c, p.m);
    int across = ceil_div(p.ow, 2 * TW), tiles = ceil_div(p.oh, 2 * TH) * across;
    for (int first = blockIdx.x * p.images; first < p.n; first += gridDim.x * p.images) {
        __syncthreads();                                     // everybody is done with the images before
        load_planes(planes, x, first, p);
        __syncthreads();
        int items = imin(p.images, p.n - first) * groups * tiles;
        for (int item = threadIdx.x; item < items; item += THREADS_A_BLOCK) {
            int tile = item % tiles, group = item / tiles % groups, image = item / (tiles * groups);
            int i0 = tile / across * TH, j0 = tile % across * TW;
            // Outputs in even and odd rows and columns. Those in odd rows take in what is summed, and pass on what
            // those in even rows take too. Each kind is summed by itself: long sums round more.
            REAL sum[2][2][SUMS] = {};
            const REAL* weights = filters + group * filters_size;
            const REAL* kind = planes + image * p.c * 9 * plane_size + i0 * p.pw + j0;
#pragma unroll 1
            for (int of_rows = 0; of_rows < 3; ++of_rows) {
#pragma unroll (KINDS)
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
            // Whole rows at once, not whole.cuh's four columns: stored in halves, the report's layer takes 66 us, not 58.
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
