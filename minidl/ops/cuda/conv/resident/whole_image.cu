// Convolution for few input channels: a block holds whole padded images and all filters in shared memory, and a thread
// owns a register tile. This is the 2009 report's section 8 ("kernels in which each block convolves with multiple
// filters", "giving each thread more work, even at the expense of occupancy") on a machine with room for it.
//
// conv2d_whole_image: y, or with -DMIRROR the dx of stride 1, which is the same sum over gy with filters turned round.
//   A thread owns TH x 4 neighbouring outputs of TM filters: for each row of a filter it loads TH rows of the image and
//   then multiplies 4*TH*TM times for each tap, on 4*SW*TH + TM loaded numbers. A block walks over groups of `images`
//   images; filters are stored as [c][p][q][m], so that a thread's TM weights are neighbours.
// conv2d_whole_image_dw: a thread owns one row of KW taps of TM filters; it walks along output rows, 4 pixels at a
//   time: 4 gradients of each filter times the 4 + KW - 1 image pixels they meet. Lanes run over (c, p), so the
//   gradients are broadcast. `shares` teams of threads take the rows in turn; their sums are added in a fixed order.
//   Rows of gy come in two buffers: while one is multiplied, the next is copied.
//
// Requires: all of it fits shared memory (the launcher checks this). -DKH -DKW -DSH -DSW -DTH -DTM -DTHREADS_PER_BLOCK
// -DALIGNED: rows of the result (dw: of gy) start on multiples of 4 elements.
//
// -DFUSED: the forward applies the activation -DACT to each output, and with -DPOOL=2 or 4 also averages windows of
// that size, which are within a thread's outputs, into `pooled`. Then dw takes the gradient of these averages, and y,
// what the activation computed. A row then has one more tap, of pixels that are 1: its sum in the row of c = p = 0 is
// the bias's gradient.
#include "conv/resident/resident.cuh"

constexpr int TW = 4;
constexpr int XW = ((TW - 1) * SW + KW + 3) / 4 * 4;  // image pixels under TW outputs of a filter row, whole fours
// Filter rows are unrolled, so that the loads of one overlap with the products of another, but only up to about 1024
// products: more do not fit the instruction cache.
constexpr int MAX_ROWS = 1024 / (KW * TH * TW * TM), UNROLL = MAX_ROWS < 1 ? 1 : MAX_ROWS < KH ? MAX_ROWS : KH;
static_assert(TH >= 1 && TM >= 1, "TH and TM are the rows and filters that a thread owns: at least 1 each");

struct Whole {
    int n, c, h, w, m, oh, ow, top, left;  // source planes, result maps and planes, padding
    int ph, pw, ms;                        // a padded plane in shared memory; a row of filters there
    int images;                            // in shared memory at a time
    int rows, shares;                      // dw: output rows at a time; teams of threads
    int w_out, w_in;                       // strides of w along result maps and source channels
};

#ifndef GRADIENT
extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1)
    conv2d_whole_image(const REAL* x, const REAL* w, const REAL* b, REAL* y, REAL* pooled, Whole p) {
    extern __shared__ __align__(16) unsigned char memory[];
    REAL* filters = (REAL*)memory;                                         // [c][p][q][ms]
    REAL* padded = filters + p.c * KH * KW * p.ms;                         // [image][c][ph][pw]
    for (int m = threadIdx.x / 32; m < p.ms; m += THREADS_PER_BLOCK / 32)  // a warp takes a filter at a time
        for (int k = threadIdx.x % 32; k < p.c * KH * KW; k += 32) {
            int c = k / (KH * KW), t = k - c * KH * KW, tap = c * p.w_in + (MIRROR ? KH * KW - 1 - t : t);
            start_copy(filters + k * p.ms + m, w + (m < p.m ? m * p.w_out + tap : 0), m < p.m);
        }
    int across = ceil_div(p.ow, TW), tiles = ceil_div(p.oh, TH) * across, groups = ceil_div(p.m, TM);
    for (int first = blockIdx.x * p.images; first < p.n; first += gridDim.x * p.images) {
        __syncthreads();  // everybody is done with the images before
        load_images(padded, x, first, p);
        end_copies();
        await_copies<0>();
        __syncthreads();
        int items = imin(p.images, p.n - first) * groups * tiles;
        for (int item = threadIdx.x; item < items; item += THREADS_PER_BLOCK) {
            int tile = item % tiles, group = item / tiles % groups, image = item / (tiles * groups);
            int i0 = tile / across * TH, j0 = tile % across * TW;
            REAL sum[TM][TH][TW] = {};
            const REAL* weights = filters + group * TM;
            const REAL* rows = padded + (image * p.c * p.ph + i0 * SH) * p.pw + j0 * SW;
            for (int c = 0; c < p.c; ++c, rows += (p.ph - KH) * p.pw) {
#pragma unroll(UNROLL)
                for (int r = 0; r < KH; ++r, rows += p.pw, weights += KW * p.ms) {
                    REAL pixel[TH][XW];
#pragma unroll
                    for (int i = 0; i < TH; ++i)
#pragma unroll
                        for (int s = 0; s < XW; s += 4)
                            *(Pack<4>*)&pixel[i][s] = *(const Pack<4>*)&rows[i * SH * p.pw + s];
#pragma unroll
                    for (int q = 0; q < KW; ++q) {
                        constexpr int V = TM % 4 == 0 ? 4 : TM % 2 == 0 ? 2 : 1;
                        REAL weight[TM];
#pragma unroll
                        for (int f = 0; f < TM; f += V) *(Pack<V>*)&weight[f] = *(const Pack<V>*)&weights[q * p.ms + f];
#pragma unroll
                        for (int i = 0; i < TH; ++i)
#pragma unroll
                            for (int j = 0; j < TW; ++j)
#pragma unroll
                                for (int f = 0; f < TM; ++f) sum[f][i][j] += weight[f] * pixel[i][j * SW + q];
                    }
                }
            }
#pragma unroll
            for (int f = 0; f < TM; ++f) {
                int m = group * TM + f;
                if (m >= p.m) break;
                store_outputs<TH>(sum[f], b ? b[m] : (REAL)0, y, pooled, (first + image) * p.m + m, i0, j0, p);
            }
        }
    }
}

#else
// A block's share of rows i0 .. of the gradients of some images, [image][ms maps][rows][gw]: gw = ow rounded up to
// fours, ms = m rounded up to TM. Calls visit(element there, whether it is a gradient and not padding, its map among
// all images' and its row and column) for each V neighbours.
constexpr int V = ALIGNED ? 16 / sizeof(REAL) : 1;  // elements that one copy moves

template <class Visit>
__device__ __forceinline__ void each_gradient(int first, int i0, int gw, const Whole& p, Visit visit) {
    int images = imin(p.images, p.n - first);
    Odometer at(THREADS_PER_BLOCK, p.rows, gw / V);  // map, row, column
    int image = 0, map = at.high;
    for (int i = threadIdx.x; i < p.images * p.ms * p.rows * (gw / V); i += THREADS_PER_BLOCK, at.next()) {
        for (map = at.high - image * p.ms; map >= p.ms; map -= p.ms) ++image;
        int row = i0 + at.middle, column = at.low * V;
        bool valid = column < p.ow && row < p.oh && map < p.m && image < images;
        visit(i * V, valid, (first + image) * p.m + map, row, column);
    }
}

// Loads gradients, or y, through which they pass; zeros for padding.
__device__ __forceinline__ void load_gradients(REAL* to, const REAL* from, int first, int i0, int gw, const Whole& p) {
    each_gradient(first, i0, gw, p, [&](int i, bool valid, int map, int row, int column) {
        const REAL* source = valid ? from + (map * p.oh + row) * p.ow + column : from;
        start_copy((Pack<V>*)(to + i), (const Pack<V>*)source, valid);
    });
}

#ifdef FUSED
// Turns y into gradients, by the gradients of the averages. Each thread takes the elements that it has copied itself.
__device__ __forceinline__ void turn_gradients(REAL* y, const REAL* means, int first, int i0, int gw, const Whole& p) {
    constexpr int RUN = V < POOL ? V : POOL;  // neighbours in one window
    each_gradient(first, i0, gw, p, [&](int i, bool valid, int map, int row, int column) {
        const REAL* mean = means + (map * (p.oh / POOL) + row / POOL) * (p.ow / POOL) + column / POOL;
#pragma unroll
        for (int e = 0; e < V; ++e) {
            REAL share = valid ? mean[e / RUN] * (REAL)(1.0 / (POOL * POOL)) : (REAL)0;
            y[i + e] = ACT_GRAD(share, y[i + e]);
        }
    });
}
constexpr int SUMS = KW + 1;
#else
constexpr int SUMS = KW;
#endif

// parts (blocks, m*c*KH*KW, and m more if FUSED)
extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1)
    conv2d_whole_image_dw(const REAL* gy, const REAL* y, const REAL* x, REAL* parts, Whole p) {
    extern __shared__ __align__(16) unsigned char memory[];
    int gw = ceil_div(p.ow, 4) * 4;
    int gradient_size = p.images * p.ms * p.rows * gw, padded_size = p.images * p.c * p.ph * p.pw;
    REAL* gradients = (REAL*)memory;               // two of [image][ms][rows][gw]
    REAL* padded = gradients + 2 * gradient_size;  // two of [image][c][ph][pw]

    int lines = p.c * KH, groups = ceil_div(p.m, TM), team = lines * groups;
    int share = threadIdx.x / team, member = threadIdx.x - share * team;
    int group = member / lines, line = member - group * lines, c = line / KH, r = line - c * KH;
    bool active = share < p.shares;
    REAL sum[TM][SUMS] = {};

    // A step is `rows` output rows of `images` images. A block's steps: all rows of its first images, of its next, ...
    int chunks = ceil_div(p.oh, p.rows);
    int packs = ceil_div(p.n, p.images), mine = packs > blockIdx.x ? (packs - blockIdx.x - 1) / gridDim.x + 1 : 0;
    int steps = mine * chunks;
    auto load = [&](int step) {
        int turn = step / chunks, chunk = step - turn * chunks, first = (blockIdx.x + turn * gridDim.x) * p.images;
        load_gradients(gradients + (step & 1) * gradient_size, y ? y : gy, first, chunk * p.rows, gw, p);
        if (chunk == 0) load_images(padded + (turn & 1) * padded_size, x, first, p);
        end_copies();
    };
    if (steps) load(0);
    for (int step = 0; step < steps; ++step) {
        if (step + 1 < steps) {
            load(step + 1);
            await_copies<1>();
        } else {
            await_copies<0>();
        }
        int turn = step / chunks, i0 = (step - turn * chunks) * p.rows;
        const REAL* planes = padded + (turn & 1) * padded_size;
        REAL* maps = gradients + (step & 1) * gradient_size;
#ifdef FUSED
        turn_gradients(maps, gy, (blockIdx.x + turn * gridDim.x) * p.images, i0, gw, p);
#endif
        __syncthreads();
        if (active) {
            for (int image = 0, i = share; image < p.images; i += p.shares) {
                for (; i >= p.rows && image < p.images; ++image) i -= p.rows;
                if (image >= p.images || i0 + i >= p.oh) continue;
                const REAL* pixels = planes + ((image * p.c + c) * p.ph + (i0 + i) * SH + r) * p.pw;
                const REAL* filters[TM];
#pragma unroll
                for (int f = 0; f < TM; ++f) filters[f] = maps + ((image * p.ms + group * TM + f) * p.rows + i) * gw;
#pragma unroll 2
                for (int j = 0; j < gw; j += TW) {
                    REAL pixel[XW];
#pragma unroll
                    for (int s = 0; s < XW; s += 4) *(Pack<4>*)&pixel[s] = *(const Pack<4>*)&pixels[j * SW + s];
#pragma unroll
                    for (int f = 0; f < TM; ++f) {
                        REAL gradient[TW];
                        *(Pack<4>*)gradient = *(const Pack<4>*)&filters[f][j];
#pragma unroll
                        for (int e = 0; e < TW; ++e)
#pragma unroll
                            for (int q = 0; q < SUMS; ++q)
                                sum[f][q] += gradient[e] * (q < KW ? pixel[e * SW + q] : (REAL)1);
                    }
                }
            }
        }
        __syncthreads();  // the buffers may be filled again
    }

    // Teams add up in halves: shares is a power of two
    REAL* sums = (REAL*)memory;  // [share][TM*SUMS][member]
    for (int half = p.shares / 2; half; half /= 2) {
        if (active && share >= half && share < 2 * half)
#pragma unroll
            for (int e = 0; e < TM * SUMS; ++e)
                sums[((share - half) * TM * SUMS + e) * team + member] = sum[e / SUMS][e % SUMS];
        __syncthreads();
        if (share < half)
#pragma unroll
            for (int e = 0; e < TM * SUMS; ++e)
                sum[e / SUMS][e % SUMS] += sums[(share * TM * SUMS + e) * team + member];
        __syncthreads();
    }
    if (share) return;
    REAL* part = parts + (size_t)blockIdx.x * p.m * (lines * KW + SUMS - KW);
#pragma unroll
    for (int f = 0; f < TM; ++f) {
        if (group * TM + f >= p.m) break;
#pragma unroll
        for (int q = 0; q < KW; ++q) part[((group * TM + f) * lines + line) * KW + q] = sum[f][q];
        if (SUMS > KW && line == 0) part[p.m * lines * KW + group * TM + f] = sum[f][SUMS - 1];
    }
}
#endif
