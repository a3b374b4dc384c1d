// Prepares what the convolutions of images in NHWC take.
//
// conv_nhwc_pack: filters as B, [part][filter][numbers of a sum], rounded, and zero up to whole tiles. back: flipped
//   and transposed, as the gradient of the image takes them. channels: of w; g.c may be more. If a lane stores
//   NEIGHBOURS numbers of y at once (conv_tile.cuh), their filters are placed where its sums are: a pair in each block
//   of 8.
// conv_nhwc_pad: the same, and images of g.c channels, a multiple of what 16 bytes hold, from images of fewer; the
//   added channels are zero.
// conv_nhwc_spread: moves pixels of images of h x w apart, so that neighbours are `down` rows and `right` columns
//   apart, with zeros between them. c: channels, in whole runs of 16 bytes.
// conv_nhwc_phases: filters of a convolution of dy, with strides of 1, that gives all pixels of dx that are next to
//   each other within strides of down x right, by phases: sorted[phase][c][m][window], biases[phase][c], from w
//   (m,c,kh,kw) and b (c), or none. 0 where a phase has no tap in the window.
// conv_nhwc_join: dx (n,h,w,c) from what that convolution gave, [n][row][column][phase][c]; 0 if a pixel's phase has no
//   tap. c: channels, in whole runs of 16 bytes.
//
// -DIMAGE, -DPRECISION, -DCHUNKED: as in nhwc/conv/conv.cu; a slab that channels do not fill is filled up with zeros.
// -DNEIGHBOURS 2, or as many as 16 bytes hold.
#include "include/common.cuh"
#include "include/tensor_cores/mma.cuh"
#include "include/nhwc/conv_nhwc.cuh"

constexpr int PER_PIECE = DEPTH / 8;
struct alignas(16) Piece {
    IMAGE v[PER_PIECE];
};

__device__ __forceinline__ void pack(const float* w, IMAGE* packed, const ConvNhwc& g, int channels, int back) {
    const int taps = g.kh * g.kw, known = CHUNKED ? g.sum / taps : g.c;  // channels, with those that fill up slabs
    const int width = known + g.sum - taps * known;                      // and the rest of a row
    for (int i = THREAD; i < g.filters * width; i += THREADS) {
        const int row = i / width, c = i - row * width, rest = c - known, filter = filter_of_row<NEIGHBOURS>(row);
        const bool there = filter < g.m && c < channels;
        const float* from = w + (back ? c * g.m + filter : filter * channels + c) * taps;
        const int at = CHUNKED ? c / DEPTH * taps * DEPTH + c % DEPTH : rest < 0 ? c : taps * g.c + rest;
        const int apart = CHUNKED ? DEPTH : g.c;                         // from a tap to the next
        IMAGE* to = packed + row * g.sum + at;
#pragma unroll 9
        for (int tap = 0; tap < (rest < 0 ? taps : 1); ++tap) {
            const float v = there ? from[back ? taps - 1 - tap : tap] : 0.0f;
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
                if constexpr (PRECISION == BF16)
                    to[tap * apart] = bf16_pair(v, 0.0f) & 0xffff;
                else
                    to[part * g.filters * g.sum + tap * apart] = __uint_as_float(part_of(v, part));
        }
    }
}

extern "C" __global__ void conv_nhwc_pack(const float* __restrict__ w, IMAGE* __restrict__ packed, ConvNhwc g,
                                           int channels, int back) {
    pack(w, packed, g, channels, back);
}

extern "C" __global__ void conv_nhwc_pad(const float* __restrict__ w, IMAGE* __restrict__ packed,
                                         const IMAGE* __restrict__ x, IMAGE* __restrict__ padded, ConvNhwc g,
                                         int channels, int back) {
    pack(w, packed, g, channels, back);
    const int pieces = g.c / PER_PIECE;
    for (int i = THREAD; i < g.n * g.h * g.w * pieces; i += THREADS) {
        const int pixel = i / pieces, first = (i - pixel * pieces) * PER_PIECE;
        Piece piece;
#pragma unroll
        for (int e = 0; e < PER_PIECE; ++e)
            piece.v[e] = first + e < channels ? x[pixel * channels + first + e] : (IMAGE)0;
        ((Piece*)padded)[i] = piece;
    }
}

extern "C" __global__ void conv_nhwc_spread(const IMAGE* __restrict__ x, IMAGE* __restrict__ y, int n, int h, int w, int c,
                                            int down, int right) {
    const int high = (h - 1) * down + 1, wide = (w - 1) * right + 1, pieces = c / PER_PIECE;
    for (int i = THREAD; i < n * high * wide * pieces; i += THREADS) {
        const int pixel = i / pieces, line = pixel / wide, column = pixel - line * wide, image = line / high;
        const int row = line - image * high, up = row / down, left = column / right;
        Piece piece = {};
        if (up * down == row && left * right == column)
            piece = ((const Piece*)x)[((image * h + up) * w + left) * pieces + i - pixel * pieces];
        ((Piece*)y)[i] = piece;
    }
}

// Along an axis, as conv.py says. A row p rows after a step begins meets the taps of phase (p + before) % step, if
// there is such a phase.
struct Phases {
    int step, before, taps, number, low, window;
};

// The tap of a phase that meets a row of the window of dy; each step has one row of a phase.
__device__ __forceinline__ int tap_of(const Phases& at, int phase, int row) {
    const int within = ((phase - at.before) % at.step + at.step) % at.step;
    const int tap = phase + ((within + at.before) / at.step - at.low - row) * at.step;
    return tap < at.taps ? tap : -1;
}

extern "C" __global__ void conv_nhwc_phases(const float* __restrict__ w, const float* __restrict__ b,
                                            float* __restrict__ sorted, float* __restrict__ biases, Phases down,
                                            Phases right, int m, int c) {
    const int window = down.window * right.window, filters = down.number * right.number * c;
    for (int i = THREAD; i < filters * m * window; i += THREADS) {
        const int filter = i / (m * window), rest = i - filter * (m * window), map = rest / window, at = rest % window;
        const int phase = filter / c, channel = filter - phase * c;
        const int r = tap_of(down, phase / right.number, at / right.window);
        const int s = tap_of(right, phase % right.number, at % right.window);
        sorted[i] = r < 0 || s < 0 ? 0.0f : w[((map * c + channel) * down.taps + r) * right.taps + s];
        if (b != nullptr && rest == 0) biases[filter] = b[channel];
    }
}

extern "C" __global__ void conv_nhwc_join(const IMAGE* __restrict__ x, IMAGE* __restrict__ y, Phases down, Phases right,
                                          int n, int h, int w, int c) {
    const int high = ceil_div(h, down.step), wide = ceil_div(w, right.step), pieces = c / PER_PIECE;
    for (int i = THREAD; i < n * h * w * pieces; i += THREADS) {
        const int pixel = i / pieces, line = pixel / w, column = pixel - line * w, image = line / h;
        const int row = line - image * h, up = row / down.step, left = column / right.step;
        const int r = (row + down.before) % down.step, s = (column + right.before) % right.step;
        Piece piece = {};
        if (r < down.number && s < right.number)
            piece = ((const Piece*)x)[(((image * high + up) * wide + left) * (down.number * right.number) +
                                       r * right.number + s) * pieces + i - pixel * pieces];
        ((Piece*)y)[i] = piece;
    }
}
