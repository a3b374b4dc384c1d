// Convolution as a matrix product whose unrolled matrix exists only in shared memory, a slab at a time (PMPP section
// 16.5 and the lecture's "built-in" unrolling), with joint register + shared-memory tiling from include/tile.cuh.
// With -DPRECISION other than FP32 the same kernels multiply on tensor cores.
//
// conv2d_implicit_gemm: y or dx. Rows are filters (channels for dx), columns are pixels of all images, the depth runs
//   over taps (c,p,q) (for dx: (m,p,q)). A block owns BM rows x 128 pixels. `taps` has for each depth the place of its
//   element relative to the pixel, {offset, row, column, offset in w}. So one kernel serves both directions, any
//   stride, and for dx each residue of the pixel modulo the stride (only the taps that meet it).
// conv2d_implicit_gemm_dw: rows are filters, columns are taps, the depth runs over all pixels of all images. A block
//   owns BM filters x 128 taps and a share of the depth; the shares are summed afterwards, in their order.
//
// In NHWC the taps of a pixel have their channels innermost: depths are neighbours in memory, and threads count along
// them. In CHWN images are the innermost axis of pixels, so threads that count along pixels have neighbours.
#include "include/tile.cuh"
#include "include/layout.cuh"

static_assert(LAYOUT == NCHW || PRECISION == FP32, "NHWC and CHWN are for fp32");

// Blocks that a multiprocessor shall hold: two, except for the tiles whose registers do not allow it.
constexpr int RESIDENT = sizeof(REAL) == 8 || PRECISION == TF32X3 ? 1 : 2;

struct Pixels {
    int rows, depth, w_row, w_packed;       // sizes of the product; from one row's weights to the next's; rows packed
    int images, gh, gw;                     // columns: images x gh x gw pixels
    int h, w, image;                        // source planes; from one source image to the next
    int sr, sc, r0, c0;                     // pixel (i, j) is at source row i*sr + r0, column j*sc + c0
    int y_image, y_row, y_r, y_c, y_first;  // result strides: image, row of the product, pixel row and column; start
    int splits, size, bias_size;            // shares of the depth; elements of the result; of the bias
    int step;                               // from a pixel of a source plane to the next: 1 in NCHW
};

constexpr int OUTSIDE = -(1 << 24);  // a row or column that is in no plane, also with a tap's own added

// A column of the product: a pixel of the result.
struct Pixel {
    int image, i, j;
};

__device__ __forceinline__ Pixel pixel_of(int column, const Pixels& p) {
#if LAYOUT == CHWN
    int pixel = column / p.images, i = pixel / p.gw;
    return {column - pixel * p.images, i, pixel - i * p.gw};
#else
    int l = p.gh * p.gw, image = column / l, i = (column - image * l) / p.gw, j = column - image * l - i * p.gw;
    return {image, i, j};
#endif
}

// A pixel's place in the source images.
struct Place {
    int base, row, column;
};

__device__ __forceinline__ Place place_of(int column, const Pixels& p) {
    Pixel pixel = pixel_of(column, p);
    Place at = {0, pixel.i * p.sr + p.r0, pixel.j * p.sc + p.c0};
    at.base = pixel.image * p.image + (at.row * p.w + at.column) * (LAYOUT == NCHW ? 1 : p.step);
    return at;
}

__device__ __forceinline__ void copy_tap(REAL* to, const REAL* x, const Place& at, int4 tap, const Pixels& p) {
    bool valid = (unsigned)(at.row + tap.y) < (unsigned)p.h && (unsigned)(at.column + tap.z) < (unsigned)p.w;
    start_copy(to, x + at.base + tap.x, valid);  // nothing is read where it is not valid
}

// w as the product reads it: packed[depth][row], in whole slabs and tiles, zeros beyond the last depth and row.
extern "C" __global__ void conv2d_implicit_gemm_pack(const REAL* w, REAL* packed, const int4* taps, int size,
                                                     Pixels p) {
    for (int i = THREAD; i < size; i += THREADS) {
        int k = i / p.w_packed, row = i - k * p.w_packed;
        packed[i] = k < p.depth && row < p.rows ? w[taps[k].w + row * p.w_row] : (REAL)0;
    }
}

struct PixelLoader {
    static constexpr int V = 16 / sizeof(REAL), NA = BM * BK / V, NB = BN * BK / BLOCK;
    const REAL *w, *x;  // w from this block's first row on
    const int4* taps;   // in whole slabs: those beyond the last meet nothing
    const Pixels& p;
#if LAYOUT == NHWC
    const Place* places;  // of this block's columns, in shared memory
#else
    Place at;
#endif

    __device__ __forceinline__ void fetch(Slab& slab, int number) {
#pragma unroll
        for (int i = 0; i < NA; i += BLOCK) {
            int e = i + threadIdx.x, k = e / (BM / V), r = e % (BM / V) * V;
            if (NA % BLOCK == 0 || e < NA)
                start_copy((Pack<V>*)&slab.a[k][r], (const Pack<V>*)&w[(number * BK + k) * p.w_packed + r], true);
        }
#if LAYOUT == NHWC
        int k = threadIdx.x % BK, column = threadIdx.x / BK;
        int4 tap = taps[number * BK + k];
#pragma unroll
        for (int i = 0; i < NB; ++i, column += BLOCK / BK) copy_tap(&slab.b[k][column], x, places[column], tap, p);
#else
        int k = threadIdx.x / BN;
#pragma unroll
        for (int i = 0; i < NB; ++i, k += BLOCK / BN)
            copy_tap(&slab.b[k][threadIdx.x % BN], x, at, taps[number * BK + k], p);
#endif
    }
};

// The offset of a pixel in the result's map 0.
__device__ __forceinline__ int place_in_y(int column, const Pixels& p) {
    Pixel at = pixel_of(column, p);
    return at.image * p.y_image + at.i * p.y_r + at.j * p.y_c;
}

extern "C" __global__ void __launch_bounds__(256, RESIDENT)
    conv2d_implicit_gemm(const REAL* x, const REAL* w, const REAL* b, REAL* y, const int4* taps, Pixels p) {
    __shared__ Slab slabs[2];
    int columns = p.images * p.gh * p.gw, column0 = blockIdx.x * BN, column = column0 + threadIdx.x % BN;
    int row0 = blockIdx.y * BM;
#if LAYOUT == NHWC
    __shared__ Place places[BN];
    for (int i = threadIdx.x; i < BN; i += BLOCK)
        places[i] = column0 + i < columns ? place_of(column0 + i, p) : Place{0, OUTSIDE, 0};
    __syncthreads();
    PixelLoader loader{w + row0, x, taps, p, places};
#else
    PixelLoader loader{w + row0, x, taps, p, place_of(column, p)};
    if (column >= columns) loader.at.row = OUTSIDE;
#endif
    int all = ceil_div(p.depth, BK), each = ceil_div(all, p.splits);
    Product product;
    multiply_slabs(slabs, product, loader, imin(all, blockIdx.z * each), imin(all, (blockIdx.z + 1) * each));
    y += (size_t)blockIdx.z * p.size + p.y_first;
#if LAYOUT == NHWC
    // A thread's rows are neighbours in memory; with NEIGHBOURS their number is a multiple of V
    constexpr int V = NEIGHBOURS ? Product::V : 1;
    row0 += threadIdx.x / 16 * Product::ROWS;  // as Product::each shares them
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        int at = column0 + threadIdx.x % 16 * 4 + j % 4 + j / 4 * 64;
        if (at >= columns) continue;
        REAL* to = y + place_in_y(at, p);
#pragma unroll
        for (int i = 0; i < Product::ROWS; i += V) {
            if (row0 + i >= p.rows) break;
            Pack<V> out;
#pragma unroll
            for (int v = 0; v < V; ++v)
                out.v[v] = product.sum[i + v][j] + (b && p.splits == 1 ? b[row0 + i + v] : (REAL)0);
            *(Pack<V>*)(to + row0 + i) = out;
        }
    }
#else
    product.each([&](int row, int column, const REAL* values) {
        row += row0;
        column += column0;
        if (row >= p.rows || column >= columns) return;
        REAL bias = b && p.splits == 1 ? b[row] : (REAL)0;
        Pixel at = pixel_of(column, p);
        REAL* to = y + at.image * p.y_image + row * p.y_row + at.i * p.y_r + at.j * p.y_c;
#if NEIGHBOURS
        // Neighbouring columns are neighbours in memory, and a multiple of WIDTH of them makes a plane
        Pack<Product::WIDTH> out;
#pragma unroll
        for (int e = 0; e < Product::WIDTH; ++e) out.v[e] = values[e] + bias;
        *(Pack<Product::WIDTH>*)to = out;
#elif LAYOUT == CHWN
        to -= place_in_y(column, p);
#pragma unroll
        for (int e = 0; e < Product::WIDTH; ++e)
            if (column + e < columns) to[place_in_y(column + e, p)] = values[e] + bias;
#else
#pragma unroll
        for (int e = 0; e < Product::WIDTH; ++e) {
            if (column + e >= columns) return;
            *to = values[e] + bias;
            to += p.y_c;
            if (++at.j == p.gw) {
                at.j = 0;
                to += p.y_r - p.gw * p.y_c;
                if (++at.i == p.gh) {
                    at.i = 0;
                    to += p.y_image - p.gh * p.y_r;
                }
            }
        }
#endif
    });
#endif
}

// parts (splits, ..., maps, l) -> y (..., maps, l), plus the bias of each map
extern "C" __global__ void conv2d_implicit_gemm_finish(const REAL* parts, const REAL* b, REAL* y, int l, Pixels p) {
    for (int i = THREAD; i < p.size; i += THREADS) {
        REAL sum = b ? b[i / l % p.bias_size] : (REAL)0;
        for (int s = 0; s < p.splits; ++s) sum += parts[(size_t)s * p.size + i];
        y[i] = sum;
    }
}

// The filters' gradient: both matrices are read along the pixels.
struct TapLoader {
    static constexpr int NA = BM * BK / BLOCK, NB = BN * BK / BLOCK;
    const REAL *gy, *x;
    const int4* tap;  // of this block's columns, in shared memory
    const Pixels& p;
    int row0;

    __device__ __forceinline__ void fetch(Slab& slab, int number) {
#if LAYOUT == NHWC
        // Maps are neighbours in memory, and taps: threads count along them
        int pixels = p.images * p.gh * p.gw, r = threadIdx.x % BM, c = threadIdx.x % BN;
#pragma unroll
        for (int i = 0; i < NA; ++i) {
            int k = threadIdx.x / BM + i * (BLOCK / BM), pixel = number * BK + k;
            bool valid = pixel < pixels && row0 + r < p.rows;
            start_copy(&slab.a[k][r], gy + (valid ? pixel * p.rows + row0 + r : 0), valid);
        }
#pragma unroll
        for (int i = 0; i < NB; ++i) {
            int k = threadIdx.x / BN + i * (BLOCK / BN), pixel = number * BK + k;
            Place at = place_of(pixel, p);
            if (pixel >= pixels) at.row = OUTSIDE;
            copy_tap(&slab.b[k][c], x, at, tap[c], p);
        }
#else
        int k = threadIdx.x % BK, r = threadIdx.x / BK, pixel = number * BK + k, l = p.gh * p.gw, image = pixel / l;
        bool valid = pixel < p.images * l;
#if LAYOUT == CHWN
        const REAL* map = gy + (valid ? pixel : 0);
        l *= p.images;  // from a map to the next
#else
        const REAL* map = gy + (valid ? image * p.rows * l + pixel - image * l : 0);
#endif
        Place at = place_of(pixel, p);
        if (!valid) at.row = OUTSIDE;
#pragma unroll
        for (int i = 0; i < NA; ++i) {
            int row = row0 + r + i * (BLOCK / BK);
            bool both = valid && row < p.rows;
            start_copy(&slab.a[k][r + i * (BLOCK / BK)], map + (both ? row * l : 0), both);
        }
#pragma unroll
        for (int i = 0; i < NB; ++i) {
            int column = r + i * (BLOCK / BK);
            copy_tap(&slab.b[k][column], x, at, tap[column], p);
        }
#endif
    }
};

// dw (splits, m, c*kh*kw), in NHWC (splits, kh*kw*c, m)
extern "C" __global__ void __launch_bounds__(256, RESIDENT)
    conv2d_implicit_gemm_dw(const REAL* gy, const REAL* x, REAL* dw, const int4* taps, Pixels p) {
    __shared__ Slab slabs[2];
    __shared__ int4 tap[BN];
    int column0 = blockIdx.x * BN;
    for (int i = threadIdx.x; i < BN; i += BLOCK)  // columns beyond the last meet nothing
        tap[i] = column0 + i < p.depth ? taps[column0 + i] : make_int4(0, 2 * OUTSIDE, 0, 0);
    __syncthreads();
    TapLoader loader{gy, x, tap, p, (int)blockIdx.y * BM};
    int all = ceil_div(p.images * p.gh * p.gw, BK), each = ceil_div(all, p.splits);
    Product product;
    multiply_slabs(slabs, product, loader, imin(all, blockIdx.z * each), imin(all, (blockIdx.z + 1) * each));
    dw += (size_t)blockIdx.z * p.rows * p.depth;
    product.each([&](int row, int column, const REAL* values) {
        row += loader.row0;
        column += column0;
#pragma unroll
        for (int e = 0; e < Product::WIDTH; ++e)
            if (row < p.rows && column + e < p.depth)
                dw[LAYOUT == NHWC ? (column + e) * p.rows + row : row * p.depth + column + e] = values[e];
    });
}
