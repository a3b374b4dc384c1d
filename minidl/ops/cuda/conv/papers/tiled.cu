// Convolution through tiles in shared memory: PMPP ch. 16, Fig. 16.13 with its corrections, in the three directions;
// with CONSTANT=1 the lecture's baseline, whose filters are in constant memory instead of shared memory.
//
// y and dx: a block owns a TILE x TILE patch of one map (an image and a filter; for dx an image and a channel), a
// thread one element of it. For each map of the sum the block loads the patch of the input that its elements meet
// (zeros outside) and the filter into shared memory. With CONSTANT=1 w is not read: FILTERS holds it, copied there
// before.
// dw: a block owns one filter m, one channel c, up to TILE*TILE taps and a chunk of images, a thread one tap and a
// share of the pixels; the shares meet in shared memory in order. It writes parts (chunks, m, c, kh, kw).
//
// In NHWC a block has LANES maps of its patch instead, and CHANNELS channels of the input at a time; in CHWN LANES
// images. Neighbouring threads have neighbouring maps (or images), and then columns. dw and CONSTANT are for NCHW
// alone.
//
// Requires: blocks of TILE*LANES x TILE threads (y, dx) or TILE*TILE threads (dw), a one-dimensional grid, any number
// of images. Shared memory, in elements: for y and dw ((TILE-1)*sh + kh) * ((TILE-1)*sw + kw), for dx
// ((TILE+kh-2)/sh + 1) * ((TILE+kw-2)/sw + 1), both times DEEP (include/layout.cuh). Add kh*kw*CHANNELS*MAPS filter
// elements for y and dx without CONSTANT, and TILE*TILE for dw.
#include "include/layout.cuh"

#define CONSTANT_BYTES 65536
#define MIN_BLOCKS 4  // blocks per multiprocessor; aiming higher, registers would spill

#define THREADS_PER_BLOCK (TILE * TILE * LANES)

static_assert(TILE >= 1 && THREADS_PER_BLOCK <= 1024, "a block has TILE x TILE x LANES threads, at most 1024");
static_assert(!CONSTANT || LAYOUT == NCHW, "filters in constant memory are for NCHW");

#if CONSTANT
__constant__ REAL FILTERS[CONSTANT_BYTES / sizeof(REAL)];
#endif

// Fills a tile (rows x columns, DEEP elements each) with a plane from its element (row, column) on; zeros outside.
__device__ __forceinline__ void load_tile(REAL* tile, int rows, int columns, const REAL* plane, int row, int column,
                                          const Images& of, int live, int ti, int tj) {
    for (int i = ti; i < rows; i += TILE)
        for (int j = tj; j < columns * DEEP; j += TILE * LANES)
            tile[i * columns * DEEP + j] = inside_run(plane, row + i, column, j, live, of);
}

// The filter (m, c) for all threads of a block: in constant memory, or loaded into shared memory by them. In NHWC those
// of all maps of the block and all channels of the round, [tap][CHANNELS][MAPS]. `live` channels and `maps` maps exist;
// `step` and `map_step` are the distances in w from one to the next (for dx channels are the maps, and maps the
// channels).
__device__ __forceinline__ const REAL* filter_of(const REAL* w, REAL* shared, int m, int c, Geometry g, int live,
                                                 int step, int maps, int map_step) {
    const Filters filters = filters_of(g);
#if CONSTANT
    return FILTERS + filters.plane(m, c);
#else
    const REAL* filter = w + filters.plane(m, c);
    for (int k = threadIdx.y * TILE * LANES + threadIdx.x; k < g.kh * g.kw * CHANNELS * MAPS; k += THREADS_PER_BLOCK) {
        const int map = k % MAPS, channel = k / MAPS % CHANNELS, tap = k / MAPS / CHANNELS;
        if (LAYOUT != NHWC || (map < maps && channel < live))
            shared[k] = filter[tap * filters.tap_step() + channel * step + map * map_step];
    }
    return shared;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, MIN_BLOCKS)
    conv2d_tiled_y(const REAL* __restrict__ x, const REAL* __restrict__ w, const REAL* __restrict__ b,
                   REAL* __restrict__ y, Geometry g) {
    extern __shared__ REAL shared[];
    const int across = ceil_div(g.ow, TILE), tiles = ceil_div(g.oh, TILE) * across;
    const int groups = ceil_div(g.m, MAPS);
    const int tile = blockIdx.x % tiles, m0 = blockIdx.x / tiles % groups * MAPS,
              n0 = blockIdx.x / tiles / groups * IMAGES;
    if (n0 >= g.n) return;
    const int i0 = tile / across * TILE, j0 = tile % across * TILE, ti = threadIdx.y, tj = threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES, m = m0 + lane % MAPS, n = n0 + lane % IMAGES;
    const Images in = images_x(g);
    const Filters filters = filters_of(g);
    const int rows = (TILE - 1) * g.sh + g.kh, columns = (TILE - 1) * g.sw + g.kw;
    const REAL* under = shared + (ti * g.sh * columns + tj * g.sw) * DEEP + lane % IMAGES;
    REAL sum = 0;
    for (int c0 = 0; c0 < g.c; c0 += CHANNELS) {
        const int channels = channels_from(c0, g.c);
        __syncthreads();
        const REAL* filter = filter_of(w, shared + rows * columns * DEEP, m0, c0, g, channels, filters.channel_step(),
                                       g.m - m0, filters.filter_step()) +
                             lane % MAPS;
        load_tile(shared, rows, columns, x + in.plane(n0, c0), i0 * g.sh - g.top, j0 * g.sw - g.left, in,
                  live_from(n0, c0, in), ti, threadIdx.x);
        __syncthreads();
        for (int c = 0; c < channels; c++)
            for (int p = 0; p < g.kh; p++)
                for (int q = 0; q < g.kw; q++)
                    sum += under[(p * columns + q) * DEEP + c] * filter[((p * g.kw + q) * CHANNELS + c) * MAPS];
    }
    const int i = i0 + ti, j = j0 + tj;
    if (i < g.oh && j < g.ow && (MAPS == 1 || m < g.m) && (IMAGES == 1 || n < g.n))
        y[images_y(g).offset(n, m, i, j)] = b ? sum + b[m] : sum;
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, MIN_BLOCKS)
    conv2d_tiled_dx(const REAL* __restrict__ gy, const REAL* __restrict__ w, REAL* __restrict__ dx, Geometry g) {
    extern __shared__ REAL shared[];
    const int across = ceil_div(g.w, TILE), tiles = ceil_div(g.h, TILE) * across;
    const int groups = ceil_div(g.c, MAPS);
    const int tile = blockIdx.x % tiles, c0 = blockIdx.x / tiles % groups * MAPS,
              n0 = blockIdx.x / tiles / groups * IMAGES;
    if (n0 >= g.n) return;
    const int ti = threadIdx.y, tj = threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES, c = c0 + lane % MAPS, n = n0 + lane % IMAGES;
    const Images in = images_y(g);
    const Filters filters = filters_of(g);
    const int top = tile / across * TILE + g.top, left = tile % across * TILE + g.left;  // of the patch, when padded
    const int row = top + ti, column = left + tj;
    const int rows = (TILE + g.kh - 2) / g.sh + 1, columns = (TILE + g.kw - 2) / g.sw + 1;
    const int above = first_meeting(top, g.kh, g.sh), before = first_meeting(left, g.kw, g.sw);
    const int i0 = first_meeting(row, g.kh, g.sh), i1 = imin(g.oh - 1, row / g.sh);  // the windows that meet it
    const int j0 = first_meeting(column, g.kw, g.sw), j1 = imin(g.ow - 1, column / g.sw);
    REAL sum = 0;
    for (int m0 = 0; m0 < g.m; m0 += CHANNELS) {
        const int maps = channels_from(m0, g.m);
        __syncthreads();
        const REAL* filter = filter_of(w, shared + rows * columns * DEEP, m0, c0, g, maps, filters.filter_step(),
                                       g.c - c0, filters.channel_step()) +
                             lane % MAPS;
        load_tile(shared, rows, columns, gy + in.plane(n0, m0), above, before, in, live_from(n0, m0, in), ti,
                  threadIdx.x);
        __syncthreads();
        for (int m = 0; m < maps; m++)
            for (int i = i0; i <= i1; i++) {
                const REAL* taps =
                    filter + (row - i * g.sh) * g.kw * CHANNELS * MAPS + column * CHANNELS * MAPS + m * MAPS;
                const REAL* under = shared + (i - above) * columns * DEEP - before * DEEP + lane % IMAGES + m;
                for (int j = j0; j <= j1; j++) sum += under[j * DEEP] * taps[-j * g.sw * CHANNELS * MAPS];
            }
    }
    const int r = row - g.top, s = column - g.left;
    if (r < g.h && s < g.w && (MAPS == 1 || c < g.c) && (IMAGES == 1 || n < g.n))
        dx[images_x(g).offset(n, c, r, s)] = sum;
}

#if LAYOUT == NCHW
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
    const Images of_x = images_x(g), of_y = images_y(g);
    REAL* maps = shared + rows * columns;
    const REAL* under = shared + tap / g.kw * columns + tap % g.kw;
    REAL sum = 0;
    for (int n = chunk * images; n < imin(g.n, (chunk + 1) * images); n++) {
        for (int i0 = 0; i0 < g.oh; i0 += TILE) {
            for (int j0 = 0; j0 < g.ow; j0 += TILE) {
                __syncthreads();
                load_tile(shared, rows, columns, x + of_x.plane(n, c), i0 * g.sh - g.top, j0 * g.sw - g.left, of_x, 1,
                          ti, tj);
                load_tile(maps, TILE, TILE, gy + of_y.plane(n, m), i0, j0, of_y, 1, ti, tj);
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
#endif
