// Gradient of the filters of a convolution of images in NHWC on the tensor cores: dw[m][tap, c] is a product whose sums
// run over all pixels, split among blocks.
//
// conv2d_nhwc_dw: a block owns FILTERS filters and a run of taps of a slab of channels, TILES x 64 rows (tap, channel)
//   for each group of four warps. It walks over chunks of pixels: whole rows of outputs, or a part of one. Shared
//   memory holds the chunk's gradients, and its image rows with their borders, which serve all the block's taps. A lane
//   gathers A, pixels by rows, from where its pixel and its tap are. wgmma itself reads B, pixels by filters, from
//   shared memory: gradients of bf16 as they are in memory, float32 ones rounded and moved so that pixels are
//   neighbours. Copies are some chunks ahead, and start while products run. conv_grad_w_sum.cu adds up.
//
// Requires: at most PIXELS positions of a chunk; slab <= TILES * 64 * GROUPS. -DIMAGE: float, or unsigned short, the
// bits of bf16. -DPRECISION (mma.cuh), BF16 with images of it. -DSM_90A for wgmma, else mma. -DGROUPS -DTILES -DFILTERS
// -DPIXELS -DSTAGES; -DBLOCKS, the least number of blocks on a multiprocessor; -DX_COPY -DDY_COPY, bytes that are
// copied at once. -DWIDE: slabs of bf16 have a multiple of 8 channels, and 16 bytes of shared memory hold 8.
#include "include/common.cuh"
#include "include/tensor_cores/mma.cuh"
#include "include/tensor_cores/wgmma.cuh"
#include "include/tensor_cores/wgmma_registers.cuh"
#include "include/nhwc/transposed.cuh"

// Geometry of a convolution, and: channels of a slab, slabs; taps of a block, runs of taps; rows of outputs of a chunk,
// and of the filter for each, which together are the chunk's lines of the image; columns of outputs, pixels of a line
// with its border; parts of a row of outputs; chunks of pixels, and the parts they are split into. Elements of shared
// memory from a pixel to the next, and from a line to the next; where the first pixel is. A line is copied in slots:
// each pixel is one, or the `whole` line is, without its border. Slots of a line, the first one's column, elements from
// one to the next, where the first one is; copies of a slot, and the block's threads as slots and copies.
struct GradW {
    int n, c, h, w, m, kh, kw, oh, ow, sh, sw, top, left;
    int slab, slabs, taps, runs, rows, filter_rows, across, width, segments, chunks, splits;
    int pitch, line, lead, whole, slots, column, slot, offset, copies, step_slot, step_number;
};

constexpr int THREADS_PER_BLOCK = GROUPS * GROUP;
constexpr bool HALF = sizeof(IMAGE) == 2;                                // gradients are B as they are
constexpr int STEP = PRECISION == BF16 ? 16 : 8, PACK = STEP / 2;        // pixels of a product; numbers in 16 bytes
constexpr int STEPS = PIXELS / STEP;                                     // products of a chunk
constexpr int AHEAD = HALF ? STAGES - 2 : STAGES - 1;                    // chunks that copies are ahead
constexpr int DY_COPIES = FILTERS * (int)sizeof(IMAGE) / DY_COPY;        // of a pixel
constexpr int BLOCK8 = PIXELS * 16 + 16;                                 // bytes of 8 filters' gradients of bf16
constexpr int DY_STAGE = HALF ? FILTERS / 8 * BLOCK8 : PIXELS * FILTERS * 4;
constexpr int B_PART = PIXELS / PACK * FILTERS * 16, B_SIZE = HALF ? 0 : PARTS * B_PART;
constexpr int PIECES = PIXELS / PACK * FILTERS / THREADS_PER_BLOCK;      // 16 bytes of B that a thread rounds
// Steps whose operands a group keeps: gathering takes registers, and other groups multiply meanwhile
constexpr int TURNS = WIDE ? 2 : 1;
static_assert(!WIDE || HALF, "numbers of 16 bits");
static_assert(STEPS % TURNS == 0, "steps of products take turns in a chunk");
static_assert(HALF || PIECES * THREADS_PER_BLOCK * PACK == PIXELS * FILTERS, "threads round gradients alike");

template <int BYTES> __device__ __forceinline__ void copy_bytes(void* to, const void* from, bool valid) {
    if constexpr (BYTES == 2)
        *(unsigned short*)to = valid ? *(const unsigned short*)from : (unsigned short)0;
    else
        start_copy((Pack<BYTES / 4>*)to, (const Pack<BYTES / 4>*)from, valid);
}

// What a block works with. Where a chunk's image is in x is found two chunks ahead: line by line, then pixel by pixel.
struct Job {
    GradW p;
    const IMAGE *dy, *x;
    unsigned char *images, *gradients, *b;  // [stage], [stage], [of three]
    int *places, *slots;                    // of a chunk's pixel; line and column of a pixel of the image
    int *lines, *pixels;                    // [of two][line] and [of two][slot]: what is there in x, or -1
    int *firsts;                            // [thread]: its first slot and copy
    int channel, channels, tap, filter, lines_in_chunk, slots_in_chunk, image_stage;

    __device__ __forceinline__ void find_lines(int chunk) const {
        for (int i = threadIdx.x; i < lines_in_chunk; i += THREADS_PER_BLOCK) {
            int row = chunk / p.segments * p.rows + i / p.filter_rows, image = row / p.oh;
            int r = tap / p.kw + i % p.filter_rows, at = (row - image * p.oh) * p.sh - p.top + r;
            bool valid = image < p.n && r < p.kh && (unsigned)at < (unsigned)p.h;
            lines[chunk % 2 * lines_in_chunk + i] = valid ? (image * p.h + at) * p.w : -1;
        }
    }

    __device__ __forceinline__ void find_pixels(int chunk) const {
        int left = (p.segments > 1 ? chunk % p.segments * p.across * p.sw : 0) - p.left;
        for (int i = threadIdx.x; i < slots_in_chunk; i += THREADS_PER_BLOCK) {
            int where = slots[i], start = lines[chunk % 2 * lines_in_chunk + (where >> 16)];
            int column = left + (where & 0xffff);
            bool valid = start >= 0 && (unsigned)column < (unsigned)p.w;
            pixels[chunk % 2 * slots_in_chunk + i] = valid ? start + column : -1;
        }
    }

    __device__ __forceinline__ void copy_image(int chunk) const {
        constexpr int PER_PIECE = X_COPY / (int)sizeof(IMAGE);
        int first = firsts[threadIdx.x], slot = first >> 16, number = first & 0xffff;
        const int* pixels = this->pixels + chunk % 2 * slots_in_chunk;
        int limit = p.whole ? p.w * p.c : channels;
        IMAGE* images = (IMAGE*)(this->images + chunk % STAGES * image_stage) + p.offset;
        while (slot < slots_in_chunk) {
            int pixel = pixels[slot], c = number * PER_PIECE;
            bool valid = pixel >= 0 && c < limit;
            copy_bytes<X_COPY>(images + slot * p.slot + c, valid ? x + pixel * p.c + channel + c : x, valid);
            number += p.step_number;
            slot += p.step_slot;
            if (number >= p.copies) {
                number -= p.copies;
                ++slot;
            }
        }
    }

    __device__ __forceinline__ void copy_gradients(int chunk) const {
        constexpr int PER_PIECE = DY_COPY / (int)sizeof(IMAGE), COPIES = PIXELS * DY_COPIES;
        int row = chunk * p.rows, column = 0, live = imin(p.rows, p.n * p.oh - row) * p.across;
        if (p.segments > 1) {
            row = chunk / p.segments;
            column = chunk % p.segments * p.across;
            live = imin(p.across, p.ow - column);
        }
        const IMAGE* from = dy + (row * p.ow + column) * p.m + filter;
        unsigned char* gradients = this->gradients + chunk % STAGES * DY_STAGE;
#pragma unroll 2
        for (int first = 0; first < COPIES; first += THREADS_PER_BLOCK) {
            int i = first + threadIdx.x, pixel = i / DY_COPIES, f = i % DY_COPIES * PER_PIECE;
            bool valid = pixel < live && filter + f < p.m;
            unsigned char* to = gradients + (HALF ? f / 8 * BLOCK8 + pixel * 16 + f % 8 * 2 : (pixel * FILTERS + f) * 4);
            if (COPIES % THREADS_PER_BLOCK == 0 || i < COPIES)
                copy_bytes<DY_COPY>(to, valid ? from + pixel * p.m + f : dy, valid);
        }
    }

    // A piece of a chunk's gradients of float32 as B: [part][pixel / PACK][filter][pixel % PACK].
    __device__ __forceinline__ void round_gradients(int chunk, int piece) const {
        const float* from = (const float*)(gradients + chunk % STAGES * DY_STAGE);
        unsigned char* to = b + chunk % 3 * B_SIZE;
        int i = piece * THREADS_PER_BLOCK + threadIdx.x, block = i / FILTERS, f = i % FILTERS;
        float v[PACK];
#pragma unroll
        for (int e = 0; e < PACK; ++e) v[e] = from[(block * PACK + e) * FILTERS + f];
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            Pack<4> packed;
#pragma unroll
            for (int e = 0; e < 4; ++e)
                packed.v[e] = __uint_as_float(PRECISION == BF16 ? bf16_pair(v[2 * e % PACK], v[(2 * e + 1) % PACK])
                                                                : part_of(v[e], part));
            *(Pack<4>*)(to + part * B_PART + (block * FILTERS + f) * 16) = packed;
        }
    }
};

// A of a product: the lane's two rows of a tile, from the images of a stage, at the lane's pixels.
template <int COUNT>
__device__ __forceinline__ void load_a(unsigned (&a)[PARTS][4], const IMAGE* images, const int (&place)[COUNT], int row,
                                       int next) {
    if constexpr (WIDE) {
        load_transposed(a[0], images + place[0] + row);
    } else if constexpr (PRECISION == BF16) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const IMAGE* at = images + (e % 2 ? next : row);
            IMAGE low = at[place[e / 2 * 2 % COUNT]], high = at[place[(e / 2 * 2 + 1) % COUNT]];
            if constexpr (HALF)
                a[0][e] = (unsigned)low | (unsigned)high << 16;
            else
                a[0][e] = bf16_pair((float)low, (float)high);
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
    job.slots_in_chunk = job.lines_in_chunk * p.slots;
    job.image_stage = ceil_div(job.lines_in_chunk * p.line * (int)sizeof(IMAGE), 128) * 128;
    job.b = memory;
    job.gradients = job.b + 3 * B_SIZE;
    job.images = job.gradients + STAGES * DY_STAGE;
    job.places = (int*)(job.images + STAGES * job.image_stage);
    job.slots = job.places + PIXELS;
    job.firsts = job.slots + job.slots_in_chunk;
    job.lines = job.firsts + THREADS_PER_BLOCK;
    job.pixels = job.lines + 2 * job.lines_in_chunk;

    for (int i = threadIdx.x; i < PIXELS; i += THREADS_PER_BLOCK) {  // pixels beyond the last have gradients of zero
        int row = i / p.across, column = i - row * p.across;
        job.places[i] = (row < p.rows ? row * p.filter_rows * p.line + column * p.sw * p.pitch : 0) + p.lead;
    }
    for (int i = threadIdx.x; i < job.slots_in_chunk; i += THREADS_PER_BLOCK)
        job.slots[i] = i / p.slots << 16 | (i % p.slots + p.column);
    if (p.whole)  // borders stay zero
        for (int i = threadIdx.x; i < STAGES * job.image_stage / 4; i += THREADS_PER_BLOCK) ((int*)job.images)[i] = 0;
    job.firsts[threadIdx.x] = threadIdx.x / p.copies << 16 | threadIdx.x % p.copies;

    // Where a lane's rows are, from a pixel's place on: two neighbouring blocks of 8; with WIDE a lane knows one
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
    job.find_lines(first);
    __syncthreads();
    job.find_pixels(first);
    job.find_lines(first + 1);
    for (int chunk = first; chunk < first + AHEAD; ++chunk) {
        __syncthreads();
        if (chunk < last) {
            job.copy_image(chunk);
            job.copy_gradients(chunk);
        }
        end_copies();
        job.find_pixels(chunk + 1);
        job.find_lines(chunk + 2);
    }
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
        int next = chunk + AHEAD;
        const IMAGE* images = (const IMAGE*)(job.images + chunk % STAGES * job.image_stage);
        const unsigned char* b = HALF ? job.gradients + chunk % STAGES * DY_STAGE : job.b + chunk % 3 * B_SIZE;
        unsigned a[TURNS][TILES][PARTS][4];
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            constexpr int PLACES = WIDE ? 1 : PRECISION == BF16 ? 4 : 2;
            int place[PLACES];
#pragma unroll
            for (int e = 0; e < PLACES; ++e)
                place[e] = job.places[k * STEP + (WIDE                ? lane / 16 * 8 + lane % 8
                                                  : PRECISION == BF16 ? e / 2 * 8 + e % 2 + lane % 4 * 2
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
            if constexpr (!HALF)  // beyond the last chunk too: a branch here would have products wait for each other
#pragma unroll
                for (int i = k * PIECES / STEPS; i < (k + 1) * PIECES / STEPS; ++i) job.round_gradients(chunk + 1, i);
            if (k == 0 && next < last) job.copy_image(next);
            if (k == STEPS / 2) {
                if (next < last) job.copy_gradients(next);
                end_copies();
                job.find_pixels(next + 1);
                job.find_lines(next + 2);
            }
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
