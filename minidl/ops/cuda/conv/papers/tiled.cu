// Convolution through tiles in shared memory: PMPP ch. 16, Fig. 16.13 with its corrections, in the three directions;
// with CONSTANT=1 the lecture's baseline, whose filters lie in constant memory instead of shared memory.
//
// y and dx: a block owns a TILE x TILE patch of one map (an image and a filter; for dx an image and a channel), a thread
// one element of it. For each map of the sum the block loads the patch of the input that its elements meet (zeros
// outside) and the filter into shared memory. With CONSTANT=1 w is not read: FILTERS holds it, copied there before.
// dw: a block owns one filter m, one channel c, up to TILE*TILE taps and a chunk of images, a thread one tap and a share
// of the pixels; the shares meet in shared memory in order. It writes parts (chunks, m, c, kh, kw).
//
// Requires: blocks of TILE x TILE threads (y, dx) or TILE*TILE threads (dw), a one-dimensional grid, any number of
// images. Shared memory, in elements: for y and dw ((TILE-1)*sh + kh) * ((TILE-1)*sw + kw), for dx
// ((TILE+kh-2)/sh + 1) * ((TILE+kw-2)/sw + 1), and to it kh*kw for y and dx without CONSTANT, TILE*TILE for dw.
#include "include/common.cuh"

#define CONSTANT_BYTES 65536
#define MIN_BLOCKS 4  // blocks per multiprocessor; aiming higher, registers would spill

static_assert(TILE >= 1 && TILE * TILE <= 1024, "a block has TILE x TILE threads, at most 1024");

#if CONSTANT
__constant__ REAL FILTERS[CONSTANT_BYTES / sizeof(REAL)];
#endif

// Fills a tile (rows x columns) with a plane (h x w) from its element (row, column) on; zeros outside the plane.
__device__ __forceinline__ void load_tile(REAL* tile, int rows, int columns, const REAL* plane, int row, int column,
                                          int h, int w, int ti, int tj) {
    for (int i = ti; i < rows; i += TILE)
        for (int j = tj; j < columns; j += TILE) tile[i * columns + j] = inside(plane, row + i, column + j, h, w);
}

// The filter (m, c) for all threads of a block: in constant memory, or loaded into shared memory by them.
__device__ __forceinline__ const REAL* filter_of(const REAL* w, REAL* shared, int m, int c, Geometry g) {
#if CONSTANT
    return FILTERS + (m * g.c + c) * g.kh * g.kw;
#else
    const REAL* filter = w + (m * g.c + c) * g.kh * g.kw;
    for (int k = threadIdx.y * TILE + threadIdx.x; k < g.kh * g.kw; k += TILE * TILE) shared[k] = filter[k];
    return shared;
#endif
}

extern "C" __global__ void __launch_bounds__(TILE* TILE, MIN_BLOCKS)
    conv2d_tiled_y(const REAL* __restrict__ x, const REAL* __restrict__ w, const REAL* __restrict__ b,
                   REAL* __restrict__ y, Geometry g) {
    extern __shared__ REAL shared[];
    const int across = ceil_div(g.ow, TILE), tiles = ceil_div(g.oh, TILE) * across;
    const int tile = blockIdx.x % tiles, m = blockIdx.x / tiles % g.m, n = blockIdx.x / tiles / g.m;
    if (n >= g.n) return;
    const int i0 = tile / across * TILE, j0 = tile % across * TILE, ti = threadIdx.y, tj = threadIdx.x;
    const int rows = (TILE - 1) * g.sh + g.kh, columns = (TILE - 1) * g.sw + g.kw;
    const REAL* under = shared + ti * g.sh * columns + tj * g.sw;
    REAL sum = 0;
    for (int c = 0; c < g.c; c++) {
        __syncthreads();
        const REAL* filter = filter_of(w, shared + rows * columns, m, c, g);
        load_tile(shared, rows, columns, x + (n * g.c + c) * g.h * g.w, i0 * g.sh - g.top, j0 * g.sw - g.left, g.h, g.w,
                  ti, tj);
        __syncthreads();
        for (int p = 0; p < g.kh; p++)
            for (int q = 0; q < g.kw; q++) sum += under[p * columns + q] * filter[p * g.kw + q];
    }
    const int i = i0 + ti, j = j0 + tj;
    if (i < g.oh && j < g.ow) y[((n * g.m + m) * g.oh + i) * g.ow + j] = b ? sum + b[m] : sum;
}

extern "C" __global__ void __launch_bounds__(TILE* TILE, MIN_BLOCKS)
    conv2d_tiled_dx(const REAL* __restrict__ gy, const REAL* __restrict__ w, REAL* __restrict__ dx, Geometry g) {
    extern __shared__ REAL shared[];
    const int across = ceil_div(g.w, TILE), tiles = ceil_div(g.h, TILE) * across;
    const int tile = blockIdx.x % tiles, c = blockIdx.x / tiles % g.c, n = blockIdx.x / tiles / g.c;
    if (n >= g.n) return;
    const int ti = threadIdx.y, tj = threadIdx.x;
    const int top = tile / across * TILE + g.top, left = tile % across * TILE + g.left;  // of the patch, when padded
    const int row = top + ti, column = left + tj;
    const int rows = (TILE + g.kh - 2) / g.sh + 1, columns = (TILE + g.kw - 2) / g.sw + 1;
    const int above = first_meeting(top, g.kh, g.sh), before = first_meeting(left, g.kw, g.sw);
    const int i0 = first_meeting(row, g.kh, g.sh), i1 = imin(g.oh - 1, row / g.sh);  // the windows that meet it
    const int j0 = first_meeting(column, g.kw, g.sw), j1 = imin(g.ow - 1, column / g.sw);
    REAL sum = 0;
    for (int m = 0; m < g.m; m++) {
        __syncthreads();
        const REAL* filter = filter_of(w, shared + rows * columns, m, c, g);
        load_tile(shared, rows, columns, gy + (n * g.m + m) * g.oh * g.ow, above, before, g.oh, g.ow, ti, tj);
        __syncthreads();
        for (int i = i0; i <= i1; i++) {
            const REAL* taps = filter + (row - i * g.sh) * g.kw + column;
            const REAL* maps = shared + (i - above) * columns - before;
            for (int j = j0; j <= j1; j++) sum += maps[j] * taps[-j * g.sw];
        }
    }
    const int r = row - g.top, s = column - g.left;
    if (r < g.h && s < g.w) dx[((n * g.c + c) * g.h + r) * g.w + s] = sum;
}

extern "C" __global__ void __launch_bounds__(TILE* TILE, MIN_BLOCKS)
    conv2d_tiled_dw(const REAL* __restrict__ gy, const REAL* __restrict__ x, REAL* __restrict__ parts, Geometry g,
                    int images) {
    extern __shared__ REAL shared[];
    const int taps = g.kh * g.kw, own = imin(taps, TILE * TILE), groups = ceil_div(taps, own),
              shares = TILE * TILE / own;
    const int group = blockIdx.x % groups, map = blockIdx.x / groups;
    const int c = map % g.c, m = map / g.c % g.m, chunk = map / g.c / g.m;
    const int thread = threadIdx.x, ti = thread / TILE, tj = thread % TILE;
    const int tap = group * own + thread % own, share = thread / own;
    const bool works = tap < taps && share < shares;
    const int rows = (TILE - 1) * g.sh + g.kh, columns = (TILE - 1) * g.sw + g.kw;
    REAL* maps = shared + rows * columns;
    const REAL* under = shared + tap / g.kw * columns + tap % g.kw;
    REAL sum = 0;
    for (int n = chunk * images; n < imin(g.n, (chunk + 1) * images); n++) {
        for (int i0 = 0; i0 < g.oh; i0 += TILE) {
            for (int j0 = 0; j0 < g.ow; j0 += TILE) {
                __syncthreads();
                load_tile(shared, rows, columns, x + (n * g.c + c) * g.h * g.w, i0 * g.sh - g.top, j0 * g.sw - g.left,
                          g.h, g.w, ti, tj);
                load_tile(maps, TILE, TILE, gy + (n * g.m + m) * g.oh * g.ow, i0, j0, g.oh, g.ow, ti, tj);
                __syncthreads();
                if (works) {
                    // pixels share, share + shares, ... of the patch, which may be cut short by the map's edges
                    const int height = imin(TILE, g.oh - i0), width = imin(TILE, g.ow - j0);
                    const int down = shares / width, right = shares % width;
                    REAL patch = 0;
                    for (int i = share / width, j = share % width; i < height; i += down, j += right) {
                        if (j >= width) {
                            j -= width;
                            if (++i >= height) break;
                        }
                        patch += maps[i * TILE + j] * under[i * g.sh * columns + j * g.sw];
                    }
                    sum += patch;
                }
            }
        }
    }
    __syncthreads();
    maps[thread] = sum;
    __syncthreads();
    if (thread < own && tap < taps) {
        REAL total = 0;
        for (int k = 0; k < shares; k++) total += maps[k * own + thread];
        parts[((chunk * g.m + m) * g.c + c) * taps + tap] = total;
    }
}
