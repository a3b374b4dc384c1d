// Gradient of the filters of a convolution of images in NHWC on the tensor cores: dw[m][tap, c] is a product whose sums
// run over all pixels, split among blocks.
//
// conv2d_nhwc_dw: a block owns FILTERS filters and a run of taps of a slab of channels, TILES x 64 rows (tap, channel) a
//   group of four warps, and walks over chunks of pixels: whole rows of outputs, or a part of one. In shared memory lie
//   the chunk's gradients, and its image rows with their borders, which serve all the block's taps: a lane gathers A,
//   pixels by rows, from where its pixel and its tap are. B, pixels by filters, is read from shared memory by wgmma
//   itself: gradients of bf16 as they lie in memory, float32 ones rounded and moved to where pixels are neighbours.
//   Copies are ahead by some chunks.
// conv2d_nhwc_dw_sum: adds what the blocks found, in their order, and turns it to (m, c, kh, kw).
//
// Requires: PIXELS positions of a chunk; slab <= TILES * 64 * GROUPS. -DIMAGE: float, or unsigned short, the bits of bf16.
// -DPRECISION (include/mma.cuh): BF16 with images of it, and no others. -DSM_90A for wgmma, else mma. -DGROUPS -DTILES
// -DFILTERS -DPIXELS -DSTAGES -DBLOCKS, at least so many on a multiprocessor, -DX_COPY -DDY_COPY, bytes that are copied at
// once. -DWHOLE_ROWS: rows of the image are copied whole, not pixel by pixel, and lie there without gaps: for few channels.
#include "include/common.cuh"
#include "include/mma.cuh"
#include "include/wgmma.cuh"
#include "include/wgmma_registers.cuh"

// Geometry of a convolution, and: channels of a slab; taps of a block, runs of taps; rows of the image and filter
// that a chunk has, columns of outputs, pixels of a row of the image with its border; parts of a row of outputs; chunks
// of pixels, and the parts they are split into; elements from one pixel in shared memory to the next, and from one row;
// and those before a row's first pixel.
struct GradW {
    int n, c, h, w, m, kh, kw, oh, ow, sh, sw, top, left;
    int slab, taps, runs, rows, filter_rows, across, width, segments, chunks, splits, pitch, line, before;
};

constexpr int THREADS_PER_BLOCK = GROUPS * GROUP;
constexpr bool HALF = sizeof(IMAGE) == 2;                                // gradients are B as they are
constexpr int STEP = HALF ? 16 : 8;                                      // pixels of a product
constexpr int STEPS = PIXELS / STEP;                                     // products of a chunk
constexpr int AHEAD = HALF ? STAGES - 2 : STAGES - 1;                    // chunks that copies are ahead
constexpr int DY_COPIES = FILTERS * (int)sizeof(IMAGE) / DY_COPY;        // of a pixel
constexpr int BLOCK8 = PIXELS * 16 + 16;                                 // bytes of 8 filters' gradients of bf16
constexpr int DY_STAGE = HALF ? FILTERS / 8 * BLOCK8 : PIXELS * FILTERS * 4;
constexpr int B_PART = PIXELS * FILTERS * 4, B_SIZE = HALF ? 0 : PARTS * B_PART;
constexpr int PIECES = PIXELS / 4 * FILTERS / THREADS_PER_BLOCK;         // 16 bytes of B that a thread rounds
constexpr bool WIDE = HALF && X_COPY == 16 && !WHOLE_ROWS;               // 8 channels of a pixel can be read at once
// Operands of a group's products under way: where they are gathered there are registers for one step
constexpr int TURNS = WIDE ? 2 : 1;
static_assert(STEPS % TURNS == 0, "steps of products take turns in a chunk");
static_assert(HALF == (PRECISION == BF16), "products of bf16 are for images of it");
static_assert(HALF || PIECES * THREADS_PER_BLOCK * 4 == PIXELS * FILTERS, "threads round gradients alike");

template <int BYTES> __device__ __forceinline__ void copy_bytes(void* to, const void* from, bool valid) {
    if constexpr (BYTES == 2)
        *(unsigned short*)to = valid ? *(const unsigned short*)from : (unsigned short)0;
    else
        start_copy((Pack<BYTES / 4>*)to, (const Pack<BYTES / 4>*)from, valid);
}

// Four blocks of 8 x 8 numbers of bf16, each a row of 16 bytes by 8 lanes' addresses, transposed as mma takes A.
__device__ __forceinline__ void load_transposed(unsigned (&a)[4], const void* row) {
#if __CUDA_ARCH__ >= 750
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
#endif
}

// What a block works with.
struct Job {
    GradW p;
    const IMAGE *dy, *x;
    unsigned char *images, *gradients, *b;  // [stage], [stage], [of three]
    int *places, *slots, *lines;            // of a pixel; of a pixel of the image; [of two][line]
    int channel, channels, tap, filter, lines_in_chunk, image_stage;

    // Where each line of a chunk's image starts in x, or -1.
    __device__ __forceinline__ void find_lines(int chunk) const {
        int row0 = chunk / p.segments * p.rows, r0 = tap / p.kw;
        for (int i = threadIdx.x; i < lines_in_chunk; i += THREADS_PER_BLOCK) {
            int row = row0 + i / p.filter_rows, image = row / p.oh;
            int r = r0 + i % p.filter_rows, at = (row - image * p.oh) * p.sh - p.top + r;
            bool valid = image < p.n && r < p.kh && (unsigned)at < (unsigned)p.h;
            lines[chunk % 2 * lines_in_chunk + i] = valid ? (image * p.h + at) * p.w : -1;
        }
    }

    // The image's rows of a chunk whose outputs start in a column.
    __device__ __forceinline__ void copy_image(IMAGE* to, const int* starts, int column0) const {
        constexpr int EACH = X_COPY / (int)sizeof(IMAGE);
#if WHOLE_ROWS
        int in_row = p.w * p.c / EACH, inside = p.before + p.left * p.c;  // what is beside a row stays zero
        for (int i = threadIdx.x; i < lines_in_chunk * in_row; i += THREADS_PER_BLOCK) {
            int row = i / in_row, at = (i - row * in_row) * EACH, start = starts[row];
            copy_bytes<X_COPY>(to + row * p.line + inside + at, start < 0 ? x : x + start * p.c + at, start >= 0);
        }
#else
        int per_pixel = (p.slab + EACH - 1) / EACH, slot = threadIdx.x / per_pixel;
        int number = threadIdx.x - slot * per_pixel;
        int step_slot = THREADS_PER_BLOCK / per_pixel, step_number = THREADS_PER_BLOCK - step_slot * per_pixel;
        while (slot < lines_in_chunk * p.width) {
            int where = slots[slot], start = starts[where >> 16];
            int column = column0 * p.sw - p.left + (where & 0xffff), c = number * EACH;
            bool valid = start >= 0 && (unsigned)column < (unsigned)p.w && c < channels;
            copy_bytes<X_COPY>(to + slot * p.pitch + c, valid ? x + (start + column) * p.c + channel + c : x, valid);
            number += step_number;
            slot += step_slot;
            if (number >= per_pixel) {
                number -= per_pixel;
                ++slot;
            }
        }
#endif
    }

    __device__ __forceinline__ void start_copies(int chunk) const {
        int row0 = chunk / p.segments * p.rows, column0 = chunk % p.segments * p.across, stage = chunk % STAGES;
        constexpr int OF_DY = DY_COPY / (int)sizeof(IMAGE);
        copy_image((IMAGE*)(images + stage * image_stage), lines + chunk % 2 * lines_in_chunk, column0);
        int live = p.segments > 1 ? imin(p.across, p.ow - column0) : imin(p.rows, p.n * p.oh - row0) * p.across;
        int first = row0 * p.ow + column0;
        unsigned char* gradients = this->gradients + stage * DY_STAGE;
#pragma unroll 4
        for (int i = threadIdx.x; i < PIXELS * DY_COPIES; i += THREADS_PER_BLOCK) {
            int pixel = i / DY_COPIES, f = i % DY_COPIES * OF_DY;
            bool valid = pixel < live && filter + f < p.m;
            unsigned char* to = gradients + (HALF ? f / 8 * BLOCK8 + pixel * 16 + f % 8 * 2 : (pixel * FILTERS + f) * 4);
            copy_bytes<DY_COPY>(to, valid ? dy + (first + pixel) * p.m + filter + f : dy, valid);
        }
    }

    // While a chunk is multiplied: start the copies of one that comes later, and look where the next one's rows are.
    __device__ __forceinline__ void advance(int chunk, int last) const {
        if (chunk + AHEAD < last) start_copies(chunk + AHEAD);
        end_copies();
        find_lines(chunk + AHEAD + 1);
    }

    // A piece of a chunk's gradients of float32 as B: [part][pixel / 4][filter][pixel % 4].
    __device__ __forceinline__ void round_gradients(int chunk, int piece) const {
        const float* from = (const float*)(gradients + chunk % STAGES * DY_STAGE);
        unsigned char* to = b + chunk % 3 * B_SIZE;
        int i = piece * THREADS_PER_BLOCK + threadIdx.x, block = i / FILTERS, f = i % FILTERS;
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = from[(block * 4 + e) * FILTERS + f];
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            Pack<4> packed;
#pragma unroll
            for (int e = 0; e < 4; ++e) packed.v[e] = __uint_as_float(part_of(v[e], part));
            *(Pack<4>*)(to + part * B_PART + i * 16) = packed;
        }
    }
};

// A of a product: the lane's two rows of a tile, from the images of a stage, at the lane's pixels.
template <int COUNT>
__device__ __forceinline__ void load_a(unsigned (&a)[PARTS][4], const IMAGE* images, const int (&place)[COUNT], int row,
                                       int next) {
    if constexpr (WIDE) {
        load_transposed(a[0], images + place[0] + row);
    } else if constexpr (HALF) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const IMAGE* at = images + (e % 2 ? next : row);
            a[0][e] = (unsigned)at[place[e / 2 * 2 % COUNT]] | (unsigned)at[place[(e / 2 * 2 + 1) % COUNT]] << 16;
        }
    } else {
#pragma unroll
        for (int e = 0; e < 4; ++e)
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
                a[part][e] = part_of((float)images[place[e / 2 % COUNT] + (e % 2 ? next : row)], part);
    }
}

// c += a b, B at an address.
__device__ __forceinline__ void multiply(float (&c)[FILTERS / 2], const unsigned (&a)[4], const unsigned char* b) {
#if SM_90A
    wgmma_rows<HALF>(c, a, HALF ? blocks_of(b, 128, BLOCK8) : blocks_of(b, FILTERS * 16, 128));
#else
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int f = 0; f < FILTERS / 16; ++f) {
        unsigned both[4];
        if constexpr (HALF) {
            load_transposed(both, b + (2 * f + lane / 16) * BLOCK8 + lane % 16 * 16);
        } else {
#pragma unroll
            for (int e = 0; e < 4; ++e)
                both[e] = *(const unsigned*)(b + (e % 2 * FILTERS + f * 16 + e / 2 * 8 + lane / 4) * 16 + lane % 4 * 4);
        }
        mma(c + f * 8, a, both);
        mma(c + f * 8 + 4, a, both + 2);
    }
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, BLOCKS)
    conv2d_nhwc_dw(const IMAGE* dy, const IMAGE* x, float* parts, GradW p) {
    extern __shared__ __align__(128) unsigned char memory[];
    int tile = blockIdx.x, sets = ceil_div(p.m, FILTERS), split = blockIdx.y;
    Job job;
    job.p = p;
    job.dy = dy;
    job.x = x;
    job.filter = tile % sets * FILTERS;
    tile /= sets;
    job.tap = tile % p.runs * p.taps;
    job.channel = tile / p.runs * p.slab;
    job.channels = imin(p.slab, p.c - job.channel);
    job.lines_in_chunk = p.rows * p.filter_rows;
    job.image_stage = ceil_div(job.lines_in_chunk * p.line * (int)sizeof(IMAGE), 128) * 128;
    job.b = memory;
    job.gradients = job.b + 3 * B_SIZE;
    job.images = job.gradients + STAGES * DY_STAGE;
    job.places = (int*)(job.images + STAGES * job.image_stage);
    job.slots = job.places + PIXELS;
    job.lines = job.slots + (WHOLE_ROWS ? 0 : job.lines_in_chunk * p.width);

    for (int i = threadIdx.x; i < PIXELS; i += THREADS_PER_BLOCK) {  // pixels beyond the last have gradients of zero
        int row = i / p.across, column = i - row * p.across;
        job.places[i] = row < p.rows ? p.before + row * p.filter_rows * p.line + column * p.sw * p.pitch : 0;
    }
#if WHOLE_ROWS
    for (int i = threadIdx.x; i < STAGES * job.image_stage / 4; i += THREADS_PER_BLOCK) ((int*)job.images)[i] = 0;
#else
    for (int i = threadIdx.x; i < job.lines_in_chunk * p.width; i += THREADS_PER_BLOCK)
        job.slots[i] = i / p.width << 16 | i % p.width;
#endif

    // Where a lane's rows are, from a pixel's place on: two neighbouring blocks of 8, of which WIDE knows one
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / GROUP;
    int rows[TILES][2];
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            int row = (t * GROUPS + group) * 64 + warp * 16 + (WIDE ? lane / 8 % 2 * 8 : lane / 4 + e * 8);
            int tap = job.tap + row / p.slab, r = tap / p.kw;
            bool valid = row < p.taps * p.slab && tap < p.kh * p.kw;
            rows[t][e] = valid ? (r - job.tap / p.kw) * p.line + (tap - r * p.kw) * p.pitch + row % p.slab : 0;
        }

    int first = (long long)p.chunks * split / p.splits, last = (long long)p.chunks * (split + 1) / p.splits;
    for (int chunk = first; chunk < first + AHEAD; ++chunk) {
        job.find_lines(chunk);
        __syncthreads();
        if (chunk < last) job.start_copies(chunk);
        end_copies();
    }
    job.find_lines(first + AHEAD);
    if constexpr (!HALF) {
        await_copies<AHEAD - 1>();
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < PIECES; ++i) job.round_gradients(first, i);
    }

    float sum[TILES][FILTERS / 2] = {};
    for (int chunk = first; chunk < last; ++chunk) {
        await_copies<STAGES - 3>();  // this chunk's, and the next one's where its gradients are to be rounded
        publish();
        __syncthreads();
        if constexpr (TURNS == 2) job.advance(chunk, last);  // while the last step's products are under way
        const IMAGE* images = (const IMAGE*)(job.images + chunk % STAGES * job.image_stage);
        const unsigned char* b = HALF ? job.gradients + chunk % STAGES * DY_STAGE : job.b + chunk % 3 * B_SIZE;
        unsigned a[TURNS][TILES][PARTS][4];
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            constexpr int PLACES = WIDE ? 1 : HALF ? 4 : 2;
            int place[PLACES];
#pragma unroll
            for (int e = 0; e < PLACES; ++e)
                place[e] = job.places[k * STEP + (WIDE   ? lane / 16 * 8 + lane % 8
                                                  : HALF ? e / 2 * 8 + e % 2 + lane % 4 * 2
                                                         : e * 4 + lane % 4)];
#pragma unroll
            for (int t = 0; t < TILES; ++t) load_a(a[k % TURNS][t], images, place, rows[t][0], rows[t][1]);
            const unsigned char* columns = b + (HALF ? k * 256 : 2 * k * FILTERS * 16);
            begin_products();
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                const unsigned (&now)[PARTS][4] = a[k % TURNS][t];
                if constexpr (PARTS == 2) {
                    multiply(sum[t], now[PARTS - 1], columns);
                    multiply(sum[t], now[0], columns + B_PART);
                }
                multiply(sum[t], now[0], columns);
            }
            end_products();
            if (TURNS == 1 && k == 0) job.advance(chunk, last);
            if constexpr (!HALF)  // beyond the last chunk too: a branch here would have products wait for each other
#pragma unroll
                for (int i = k * PIECES / STEPS; i < (k + 1) * PIECES / STEPS; ++i) job.round_gradients(chunk + 1, i);
            await_products<TURNS - 1>();  // operands of this step, or of the one before, are free
        }
    }
    await_products<0>();

    float* part = parts + (long long)split * p.kh * p.kw * p.c * p.m;  // [tap][channel][filter]
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            int row = (t * GROUPS + group) * 64 + warp * 16 + lane / 4 + e * 8;
            int tap = row / p.slab, c = row - tap * p.slab;
            bool valid = tap < p.taps && job.tap + tap < p.kh * p.kw && c < job.channels;
            float* to = part + ((job.tap + tap) * p.c + job.channel + c) * p.m;
            if (valid)
#pragma unroll
                for (int f = 0; f < FILTERS / 8; ++f) {
                    int m = job.filter + f * 8 + lane % 4 * 2;
                    float low = sum[t][f * 4 + e * 2], high = sum[t][f * 4 + e * 2 + 1];
                    if (m + 1 < p.m && p.m % 2 == 0) {
                        *(Pack<2>*)(to + m) = Pack<2>{low, high};
                    } else {
                        if (m < p.m) to[m] = low;
                        if (m + 1 < p.m) to[m + 1] = high;
                    }
                }
        }
}

constexpr int SIDE = 32;  // filters that a block adds up at once

// A block owns SIDE filters, SIDE / teams numbers of each, and teams of a number's parts: each adds every teams-th part.
extern "C" __global__ void __launch_bounds__(SIDE* SIDE)
    conv2d_nhwc_dw_sum(const float* parts, float* dw, int splits, int m, int c, int taps, int teams) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto sums = (float (*)[SIDE + 1])memory;
    int lane = threadIdx.x % SIDE, line = threadIdx.x / SIDE, size = c * taps, numbers = SIDE / teams;
    int filter = blockIdx.y * SIDE + lane, number = blockIdx.x * numbers + line % numbers, channel = number / taps;
    bool valid = number < size && filter < m;
    const float* from = parts + (valid ? ((number - channel * taps) * c + channel) * m + filter : 0);
    long long step = (long long)size * m;
    float sum = 0;
    if (valid)
#pragma unroll 8
        for (int split = line / numbers; split < splits; split += teams) sum += from[split * step];
    sums[line][lane] = sum;
    __syncthreads();
    int to = blockIdx.x * numbers + threadIdx.x % numbers, of = threadIdx.x / numbers;
    if (of >= SIDE) return;
    sum = sums[threadIdx.x % numbers][of];
    for (int team = 1; team < teams; ++team) sum += sums[team * numbers + threadIdx.x % numbers][of];
    of += blockIdx.y * SIDE;
    if (of < m && to < size) dw[of * size + to] = sum;
}
