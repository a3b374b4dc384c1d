// What the kernels of grouped convolution share: sizes, runs of channels, and which pixel a tap reads.
//
// LAYOUT is NCHW (then a thread has one channel or map, and STORE is REAL) or NHWC, as in image.cuh. A thread has
// a tile of STRIP rows by COLUMNS columns. Further constants of the compilation: the filters' KH and KW; TAP_COLUMNS,
// how many of their columns are unrolled; the stride SH and SW; DOWN and ACROSS, the distances of the pixels that a
// filter reads; PHASE and PHASE_ACROSS, the remainders of the padding at the top by SH and at the left by SW; BLOCK,
// threads per block; RESIDENT, how many blocks a multiprocessor is to hold; MAX_LANES, how many runs of channels a
// block has at most.
#include "include/layout.cuh"
#include "include/act.cuh"
#include "include/image.cuh"

#define TAPS (KH * KW)

// A run of channels as it is in memory. It is kept in this form until it is needed, which takes fewer registers.
#if WIDE == 1
using Stored = STORE;
#else
using Stored = Pack<WIDE * (int)sizeof(STORE) / 4>;
#endif

__device__ __forceinline__ Run widened(const Stored& run) { return load((const STORE*)&run); }

// Sizes of a convolution, with the channels and the maps of a group. A block has `lanes` runs of channels next to each
// other, and for these as many places (tiles) at a time as its threads allow; `places` is how many there are, in
// gradients of the filters how many a block takes.
struct Groups {
    int n, c, h, w, m, oh, ow, top, left, channels, maps, lanes, places;
};

constexpr int NONE = -(1 << 30);

// Along one axis, the pixels of the source that RESULTS neighbouring results of a tile need: of the image for y, or
// BACK, of the gradient for dx. They are counted from the one that the first result has under the first tap.
template <bool BACK, int RESULTS, int TAPS_THERE, int DILATION, int STRIDE, int REMAINDER> struct Axis {
    static constexpr int FIRST = BACK ? -((TAPS_THERE - 1) * DILATION / STRIDE) : 0;
    static constexpr int LAST =
        BACK ? (RESULTS - 1 + REMAINDER) / STRIDE : (RESULTS - 1) * STRIDE + (TAPS_THERE - 1) * DILATION;
    static constexpr int PIXELS = LAST - FIRST + 1;

    // What a tap reads for a result; NONE if that is between two pixels
    static __device__ constexpr int pixel(int result, int tap) {
        if (!BACK) return result * STRIDE + tap * DILATION;
        const int at = result + REMAINDER - tap * DILATION;
        return at % STRIDE ? NONE : at / STRIDE;
    }

    // The tap under which a result has a pixel, or NONE
    static __device__ constexpr int tap(int result, int pixel) {
        const int distance = BACK ? result + REMAINDER - pixel * STRIDE : pixel - result * STRIDE;
        return distance < 0 || distance % DILATION || distance / DILATION >= TAPS_THERE ? NONE : distance / DILATION;
    }

    // Whether a tap under which a result has a pixel has met no pixel before
    static __device__ constexpr bool begins(int result) { return result < (BACK ? STRIDE : 1); }

    static __device__ constexpr bool is_read(int pixel) {
        for (int result = 0; result < RESULTS; ++result)
            if (tap(result, pixel) != NONE) return true;
        return false;
    }

    // A bit for each of up to 32 pixels that are read
    static __device__ constexpr unsigned read() {
        unsigned bits = 0;
        for (int pixel = FIRST; pixel <= LAST; ++pixel) bits |= (unsigned)is_read(pixel) << (pixel - FIRST);
        return bits;
    }
};

template <bool BACK> using Down = Axis<BACK, STRIP, KH, DOWN, SH, PHASE>;
template <bool BACK> using Along = Axis<BACK, COLUMNS, TAP_COLUMNS, ACROSS, SW, PHASE_ACROSS>;

// From a pixel to the next; with -DSTEP compiled in, so that the addresses of a tile are one register and constants.
#ifdef STEP
#define STEP_OF(images) STEP
#else
#define STEP_OF(images) (images).step()
#endif

// If a thread with several columns meets a row outside the source, it jumps over the products. A thread with a single
// column adds up zeros: a jump would keep the compiler from reading the next rows ahead.
constexpr bool JUMPS = COLUMNS > 1;

// The pixels of the source under a tile, of one channel: `first` is the one that Down and Along count from. A row is
// read into registers while the one before it is multiplied.
template <bool BACK> struct Patch {
    static_assert(Along<BACK>::PIXELS <= 32, "each has a bit");
    const STORE* first;
    int row, rows, down, step;
    unsigned there;                                                      // a bit for each column inside the source

    __device__ __forceinline__ Patch(const Images& of, const STORE* plane, int row, int column)
        : first(plane + (row * of.w + column) * STEP_OF(of)), row(row), rows(of.h), down(of.w * STEP_OF(of)),
          step(STEP_OF(of)), there(0) {
#pragma unroll
        for (int c = 0; c < Along<BACK>::PIXELS; ++c)
            there |= (unsigned)((unsigned)(column + Along<BACK>::FIRST + c) < (unsigned)of.w) << c;
    }

    __device__ __forceinline__ bool has(int r) const { return (unsigned)(row + r) < (unsigned)rows; }

    __device__ __forceinline__ void read(int r, Stored (&to)[Along<BACK>::PIXELS]) const {
        constexpr unsigned READ = Along<BACK>::read();
        const unsigned columns = has(r) ? there : 0;
        const STORE* line = first + r * down;
#pragma unroll
        for (int c = 0; c < Along<BACK>::PIXELS; ++c) {
            to[c] = {};
            if (READ >> c & 1 && columns >> c & 1)
                to[c] = *(const Stored*)(line + (Along<BACK>::FIRST + c) * step);
        }
    }
};

// A tile of one image.
struct Place {
    int image, row, column;

    __device__ __forceinline__ Place(unsigned number, int rows, int columns) {
        const unsigned strips = ceil_div(rows, STRIP), beside = ceil_div(columns, COLUMNS);
        column = number % beside * COLUMNS;
        number /= beside;
        row = number % strips * STRIP;
        image = number / strips;
    }
};
