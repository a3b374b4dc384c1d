// Winograd's minimal filtering for filters of 3x3 (Lavin & Gray, arXiv 1509.09308, section 4.1), as products of
// matrices.
//
// An image is cut into squares of TILE x TILE outputs (-DTILE=2 or 4), each with the SIDE x SIDE pixels under them,
// SIDE = TILE + 2. Pixels, filters and gradients of a square are transformed into SIDE * SIDE numbers. For each of
// these there is one product of matrices (winograd_product.cu), which sums over channels, or for dw over squares:
//   y   u (e,c,m)^T @ v (e,c,columns);   dx the same with gy for x and mirrored filters
//   dw  g (e,columns,m)^T @ v (e,columns,c)
// Here e counts the SIDE * SIDE numbers, and a square of image i is column i * squares of an image + its number. The
// axis that is summed over comes before the one that is not, so that the products copy 16 bytes at a time: dw has
// squares before channels.
//
// A thread owns one square of one channel (or one filter of one channel), in registers. Neighbouring threads read
// neighbouring squares, and write neighbouring numbers. Sums are made in a fixed order.
// Requires: 3x3 filters, stride 1, one-dimensional grids of 256 threads that cover channels * columns, or m * c; for
// channels last, a block for each part of CHANNELS x SQUARES.
#include "include/common.cuh"
#include "include/runs.cuh"

#ifndef TILE
#define TILE 4
#endif
constexpr int SIDE = TILE + 2, ALL = SIDE * SIDE;

// Each transforms SIDE, or fewer, numbers in place, with stride S. The points are 0, 1, -1, infinity for F(2,3), and
// 0, 1, -1, 1/2, -2, infinity for F(4,3), which round less than those with 2 in place of 1/2.
#if TILE == 2
template <int S> __device__ __forceinline__ void of_pixels(REAL* d) {  // B^T
    const REAL d1 = d[S], d2 = d[2 * S];
    d[0] -= d2;
    d[S] = d1 + d2;
    d[2 * S] = d2 - d1;
    d[3 * S] -= d1;
}

template <int S> __device__ __forceinline__ void of_filter(REAL* w) {  // G, of 3 numbers
    const REAL even = w[0] + w[2 * S], odd = w[S];
    w[3 * S] = w[2 * S];
    w[S] = (REAL)0.5 * (even + odd);
    w[2 * S] = (REAL)0.5 * (even - odd);
}

template <int S> __device__ __forceinline__ void to_outputs(REAL* y) {  // A^T, to TILE numbers
    const REAL y1 = y[S], y2 = y[2 * S];
    y[0] += y1 + y2;
    y[S] = y1 - y2 + y[3 * S];
}

template <int S> __device__ __forceinline__ void of_gradients(REAL* g) {  // A, of TILE numbers
    const REAL g0 = g[0], g1 = g[S];
    g[S] = g0 + g1;
    g[2 * S] = g0 - g1;
    g[3 * S] = g1;
}

template <int S> __device__ __forceinline__ void to_filter(REAL* w) {  // G^T, to 3 numbers
    const REAL w1 = w[S], w2 = w[2 * S], even = (REAL)0.5 * (w1 + w2);
    w[0] += even;
    w[S] = (REAL)0.5 * (w1 - w2);
    w[2 * S] = even + w[3 * S];
}
#else
constexpr REAL THIRD = (REAL)1 / 3, FIFTEENTH = (REAL)1 / 15;

template <int S> __device__ __forceinline__ void of_pixels(REAL* d) {
    const REAL d0 = d[0], d1 = d[S], d2 = d[2 * S], d3 = d[3 * S], d4 = d[4 * S], d5 = d[5 * S];
    d[0] = d0 + (REAL)1.5 * (d3 - d1) - 2 * d2 + d4;
    d[S] = d4 - d1 + (REAL)0.5 * d2 + (REAL)2.5 * d3;
    d[2 * S] = d4 + d1 - (REAL)2.5 * d2 + (REAL)0.5 * d3;
    d[3 * S] = d4 - d2 + 2 * (d3 - d1);
    d[4 * S] = d4 - d2 + (REAL)0.5 * (d1 - d3);
    d[5 * S] = d1 + (REAL)1.5 * (d4 - d2) - 2 * d3 + d5;
}

template <int S> __device__ __forceinline__ void of_filter(REAL* w) {
    const REAL w0 = w[0], w1 = w[S], w2 = w[2 * S];
    w[S] = THIRD * (w0 + w2 + w1);
    w[2 * S] = -THIRD * (w0 + w2 - w1);
    w[3 * S] = -FIFTEENTH * (16 * w0 + 8 * w1 + 4 * w2);
    w[4 * S] = FIFTEENTH * (w0 - 2 * w1 + 4 * w2);
    w[5 * S] = w2;
}

template <int S> __device__ __forceinline__ void to_outputs(REAL* y) {
    const REAL even = y[S] + y[2 * S], odd = y[S] - y[2 * S], y3 = y[3 * S], y4 = y[4 * S];
    y[0] += even + y3 + y4;
    y[S] = odd + (REAL)0.5 * y3 - 2 * y4;
    y[2 * S] = even + (REAL)0.25 * y3 + 4 * y4;
    y[3 * S] = odd + (REAL)0.125 * y3 - 8 * y4 + y[5 * S];
}

template <int S> __device__ __forceinline__ void of_gradients(REAL* g) {
    const REAL g0 = g[0], g1 = g[S], g2 = g[2 * S], g3 = g[3 * S];
    g[S] = g0 + g2 + (g1 + g3);
    g[2 * S] = g0 + g2 - (g1 + g3);
    g[3 * S] = g0 + (REAL)0.5 * g1 + (REAL)0.25 * g2 + (REAL)0.125 * g3;
    g[4 * S] = g0 - 2 * g1 + 4 * g2 - 8 * g3;
    g[5 * S] = g3;
}

template <int S> __device__ __forceinline__ void to_filter(REAL* w) {
    const REAL sum = THIRD * (w[S] + w[2 * S]), difference = THIRD * (w[S] - w[2 * S]);
    const REAL w3 = FIFTEENTH * w[3 * S], w4 = FIFTEENTH * w[4 * S];
    w[0] += difference - 16 * w3 + w4;
    w[S] = sum - 8 * w3 - 2 * w4;
    w[2 * S] = difference - 4 * w3 + 4 * w4 + w[5 * S];
}
#endif

// A square of a channel; column = image * squares of an image + square.
struct Square {
    int channel, image, row, column;  // of its first output
    bool exists;

    __device__ __forceinline__ Square(const Geometry& g, int channel, int at, bool exists)
        : channel(channel), exists(exists) {
        const int wide = ceil_div(g.ow, TILE), squares = ceil_div(g.oh, TILE) * wide, square = at % squares;
        image = at / squares;
        row = square / wide * TILE;
        column = square % wide * TILE;
    }
};

__device__ __forceinline__ int columns_of(const Geometry& g, int images) {
    return images * (ceil_div(g.oh, TILE) * ceil_div(g.ow, TILE));
}

// The square of this thread; neighbouring threads own neighbouring squares: element channel * columns + column.
__device__ __forceinline__ Square own_square(const Geometry& g, int channels, int images) {
    const unsigned element = THREAD, columns = columns_of(g, images), channel = element / columns;
    return Square(g, channel, element - channel * columns, channel < channels);
}

// A square's pixels, or the gradients of its outputs, of images x (images,channels,h,w), transformed along columns.
template <bool PIXELS>
__device__ __forceinline__ void read_square(const REAL* __restrict__ x, const Geometry& g, const Square& s, REAL* d) {
    constexpr int READ = PIXELS ? SIDE : TILE;
    const int channels = PIXELS ? g.c : g.m, h = PIXELS ? g.h : g.oh, w = PIXELS ? g.w : g.ow;
    const REAL* plane = x + (size_t)(s.image * channels + s.channel) * h * w;
    const int row = s.row - (PIXELS ? g.top : 0), column = s.column - (PIXELS ? g.left : 0);
#pragma unroll
    for (int i = 0; i < READ; ++i)
#pragma unroll
        for (int j = 0; j < READ; ++j)
            d[i * SIDE + j] = inside(plane, row + i, column + j, s.exists ? h : 0, w);
#pragma unroll
    for (int j = 0; j < READ; ++j) PIXELS ? of_pixels<SIDE>(d + j) : of_gradients<SIDE>(d + j);
}

// x (images,c,h,w) -> v (ALL, c, columns)
extern "C" __global__ void __launch_bounds__(256)
    winograd_pixels(const REAL* __restrict__ x, REAL* __restrict__ v, Geometry g, int images) {
    const Square s = own_square(g, g.c, images);
    if (!s.exists) return;
    REAL d[ALL];
    read_square<true>(x, g, s, d);
#pragma unroll
    for (int i = 0; i < SIDE; ++i) of_pixels<1>(d + i * SIDE);
    const size_t apart = (size_t)g.c * columns_of(g, images);
#pragma unroll
    for (int e = 0; e < ALL; ++e) v[e * apart + THREAD] = d[e];
}

// What a product of dw takes: v (ALL, columns, channels). A block owns CHANNELS x SQUARES. Neighbouring threads read
// neighbouring squares, and write neighbouring channels: each row of numbers is exchanged in shared memory, in two
// buffers in turn.
constexpr int CHANNELS = 32, SQUARES = 256 / CHANNELS;
typedef REAL Row[SIDE][SQUARES][CHANNELS + 4];  // 4: a warp writes 8 squares of 4 channels, to all banks

template <bool PIXELS>
__device__ __forceinline__ void to_channels_last(const REAL* __restrict__ x, REAL* __restrict__ v, const Geometry& g,
                                                 int images, Row (&rows)[2]) {
    const int channels = PIXELS ? g.c : g.m, columns = columns_of(g, images), groups = ceil_div(channels, CHANNELS);
    const int first = blockIdx.x % groups * CHANNELS, column0 = blockIdx.x / groups * SQUARES;
    const int c = threadIdx.x / SQUARES, square = threadIdx.x % SQUARES;
    REAL d[ALL];
    const bool own = first + c < channels && column0 + square < columns;
    read_square<PIXELS>(x, g, Square(g, first + c, column0 + square, own), d);
    const int channel = threadIdx.x % CHANNELS, at = threadIdx.x / CHANNELS;
    const bool exists = first + channel < channels && column0 + at < columns;
    const size_t apart = (size_t)columns * channels;
    v += (size_t)(column0 + at) * channels + first + channel;
#pragma unroll
    for (int i = 0; i < SIDE; ++i) {
        REAL* row = d + i * SIDE;
        PIXELS ? of_pixels<1>(row) : of_gradients<1>(row);
#pragma unroll
        for (int j = 0; j < SIDE; ++j) rows[i % 2][j][square][c] = row[j];
        __syncthreads();  // everybody is also done with the row before
#pragma unroll
        for (int j = 0; j < SIDE; ++j)
            if (exists) v[(i * SIDE + j) * apart] = rows[i % 2][j][at][channel];
    }
}

// x (images,c,h,w) -> v (ALL, columns, c)
extern "C" __global__ void __launch_bounds__(256)
    winograd_pixels_channels_last(const REAL* __restrict__ x, REAL* __restrict__ v, Geometry g, int images) {
    __shared__ Row rows[2];
    to_channels_last<true>(x, v, g, images, rows);
}

// gy (images,m,oh,ow) -> v (ALL, columns, m)
extern "C" __global__ void __launch_bounds__(256)
    winograd_gradients(const REAL* __restrict__ gy, REAL* __restrict__ v, Geometry g, int images) {
    __shared__ Row rows[2];
    to_channels_last<false>(gy, v, g, images, rows);
}

// w (m,c,3,3) -> u (ALL, c, m); mirrored: w (c,m,3,3), turned by 180 degrees, -> u (ALL, c, m)
extern "C" __global__ void __launch_bounds__(256)
    winograd_filters(const REAL* __restrict__ w, REAL* __restrict__ u, int m, int c, int mirrored) {
    const int element = THREAD;
    if (element >= m * c) return;
    const REAL* taps = w + 9 * (mirrored ? element : element % m * c + element / m);
    REAL d[ALL];
#pragma unroll
    for (int i = 0; i < 3; ++i)
#pragma unroll
        for (int j = 0; j < 3; ++j) d[i * SIDE + j] = taps[mirrored ? 8 - 3 * i - j : 3 * i + j];
#pragma unroll
    for (int j = 0; j < 3; ++j) of_filter<SIDE>(d + j);
#pragma unroll
    for (int i = 0; i < SIDE; ++i) of_filter<1>(d + i * SIDE);
#pragma unroll
    for (int e = 0; e < ALL; ++e) u[(size_t)e * m * c + element] = d[e];
}

// As many of a square's row as the image has, V at a time: rows start on a multiple of V.
template <int V> __device__ __forceinline__ void store_row(REAL* to, const REAL* row, int left) {
#pragma unroll
    for (int j = 0; j < TILE; j += V)
        if (j < left) {
            Pack<V> some;
#pragma unroll
            for (int k = 0; k < V; ++k) some.v[k] = row[j + k];
            *(Pack<V>*)(to + j) = some;
        }
}

// Adds up element (row, column) of each of the ALL products: the parts of its tile, SIDE products at a time. A tile
// begins `behind` slabs after the beginning of a run. Its k-th part, from 0, is that of the k-th run from this one, if
// the tile reaches that run. WHOLE: runs are of whole tiles, so a tile is one part.
template <bool WHOLE>
__device__ __forceinline__ void add_parts(const REAL* __restrict__ parts, const Runs& p, int row, int column, REAL* d) {
    const int down = row / p.high, across = column / p.wide, tiles = p.down * p.across, tile = across * p.down + down;
    const int first = tile * p.slabs / p.each, runs = tiles * p.slabs / p.each, rest = tiles * p.slabs - runs * p.each;
    const size_t size = (size_t)p.high * p.wide;
    parts += (size_t)(first + tile) * size + (row - down * p.high) * p.wide + column - across * p.wide;
    int behind = tile * p.slabs - first * p.each;
#pragma unroll
    for (int i = 0; i < SIDE; ++i) {
        const REAL* at[SIDE];
        int slabs[SIDE];  // from the beginning of the run to the end of the tile
#pragma unroll
        for (int j = 0; j < SIDE; ++j) {
            at[j] = parts;
            slabs[j] = behind + p.slabs;
            d[i * SIDE + j] = *parts;
            const bool next = (behind += rest) >= p.each;
            behind -= next ? p.each : 0;
            parts += (runs + tiles + next) * size;
        }
#pragma unroll 1
        for (int k = 1; !WHOLE && k * p.each < p.slabs + p.each - 1; ++k)
#pragma unroll
            for (int j = 0; j < SIDE; ++j)
                if (k * p.each < slabs[j]) d[i * SIDE + j] += at[j][k * size];
    }
}

// sums, ALL products (m, columns) -> y (images,m,oh,ow), with the bias
template <bool WHOLE>
__device__ __forceinline__ void outputs(const REAL* __restrict__ parts, const Runs& p, const REAL* __restrict__ b,
                                        REAL* __restrict__ y, const Geometry& g, int images) {
    const Square s = own_square(g, g.m, images);
    if (!s.exists) return;
    REAL d[ALL];
    add_parts<WHOLE>(parts, p, s.channel, THREAD - s.channel * p.cols, d);
#pragma unroll
    for (int j = 0; j < SIDE; ++j) to_outputs<SIDE>(d + j);
#pragma unroll
    for (int i = 0; i < TILE; ++i) to_outputs<1>(d + i * SIDE);
    const REAL bias = b ? b[s.channel] : (REAL)0;
#pragma unroll
    for (int e = 0; e < ALL; ++e) d[e] += bias;
    REAL* out = y + (size_t)(s.image * g.m + s.channel) * g.oh * g.ow + s.row * g.ow + s.column;
#pragma unroll
    for (int i = 0; i < TILE; ++i) {
        if (s.row + i >= g.oh) break;
        if (g.ow % TILE == 0)
            store_row<TILE>(out + i * g.ow, d + i * SIDE, TILE);
        else if (g.ow % 2 == 0)
            store_row<2>(out + i * g.ow, d + i * SIDE, g.ow - s.column);
        else
            store_row<1>(out + i * g.ow, d + i * SIDE, g.ow - s.column);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    winograd_outputs(const REAL* __restrict__ parts, Runs p, const REAL* __restrict__ b, REAL* __restrict__ y,
                     Geometry g, int images) {
    outputs<false>(parts, p, b, y, g, images);
}

// The same of runs of whole tiles, in fewer registers.
extern "C" __global__ void __launch_bounds__(256)
    winograd_outputs_whole(const REAL* __restrict__ parts, Runs p, const REAL* __restrict__ b, REAL* __restrict__ y,
                           Geometry g, int images) {
    outputs<true>(parts, p, b, y, g, images);
}

// sums, ALL products (m, c) -> dw (m,c,3,3)
extern "C" __global__ void __launch_bounds__(256)
    winograd_taps(const REAL* __restrict__ parts, Runs p, REAL* __restrict__ dw) {
    const int element = THREAD;
    if (element >= p.rows * p.cols) return;
    REAL d[ALL];
    add_parts<false>(parts, p, element / p.cols, element % p.cols, d);
#pragma unroll
    for (int j = 0; j < SIDE; ++j) to_filter<SIDE>(d + j);
#pragma unroll
    for (int i = 0; i < 3; ++i) to_filter<1>(d + i * SIDE);
#pragma unroll
    for (int i = 0; i < 3; ++i)
#pragma unroll
        for (int j = 0; j < 3; ++j) dw[9 * element + 3 * i + j] = d[i * SIDE + j];
}
