// A batch from stored bytes: y[i, c] = images[index, c] * scale[c] + shift[c], with a border of zero bytes.
//
// images (stored, channels, h, w) bytes; y (n, channels, h + 2 padding, w + 2 padding); affine holds all scales, then
// all shifts. A block owns whole planes of y, one after the other; a thread owns every blockDim.x-th pixel of them, so
// that neighbours write neighbours. Any grid and block will do. A negative index counts from the end. An index that
// names no image is not read: its pixels are NaN.
// gather: the index of image i is indices[i]. next_batch: it is order[(position[0] + 1) * batch + i], or names no image
// if the order of `count` images has ended, and picked[i] is that image's label, or -1.
// augmented_gather, augmented_next_batch: the same with images changed at random. Block `index` of Philox(key) decides
// for an image, whatever batch it is in. The image is moved by up to `crop` pixels in each direction: zero bytes come
// in, or if `reflect` what a mirror at the outermost pixels shows. If flip is 1, it is mirrored from left to right with
// probability 1/2. If flip is 2, the block of epoch 0 decides, then it alternates with each epoch, which key[1]
// counts. It is multiplied by a number in 1 +- contrast; then one in +- brightness is added, and one in +- color for
// each channel. A square of `cutout` pixels a side around one of the pixels becomes 0, which is the mean of what is
// normalised.
#include "include/common.cuh"
#include "include/philox.cuh"

// Rounded twice, as on the CPU, so that both give the same bits.
__device__ __forceinline__ float affine_of(float byte, float scale, float shift) {
    return __fadd_rn(__fmul_rn(byte, scale), shift);
}
__device__ __forceinline__ double affine_of(double byte, double scale, double shift) {
    return __dadd_rn(__dmul_rn(byte, scale), shift);
}

// A number in [-most, most) from 32 random bits, as on the CPU.
__device__ __forceinline__ double spread(double most, Word bits) {
    return __dmul_rn(most, (double)(unsigned)bits * 0x1p-31 - 1);
}

struct Images {
    const unsigned char* bytes;
    int stored, channels, h, w, padding;

    // This thread's pixels of one plane of y.
    template <class T>
    __device__ __forceinline__ void plane(long long index, int channel, const T* affine, T* y) const {
        int width = w + 2 * padding, pixels = (h + 2 * padding) * width;
        if (index < 0) index += stored;
        bool exists = 0 <= index && index < stored;
        const unsigned char* image = bytes + (exists ? ((int)index * channels + channel) * h * w : 0);
        T scale = affine[channel], shift = exists ? affine[channels + channel] : (T)__int_as_float(0x7fffffff);
        for (int i = threadIdx.x; i < pixels; i += blockDim.x) {
            int r = i / width - padding, s = i % width - padding;
            bool within = exists && (unsigned)r < (unsigned)h && (unsigned)s < (unsigned)w;
            y[i] = affine_of((T)(within ? image[r * w + s] : 0), scale, shift);
        }
    }

    __device__ __forceinline__ unsigned pixels() const { return (h + 2 * padding) * (w + 2 * padding); }
};

// How images are changed at random.
struct Views {
    Images from;
    const Word* key;
    int crop, reflect, flip, cutout;
    double brightness, contrast, color;

    // A number in [0, size) from 32 random bits.
    static __device__ __forceinline__ int below(int size, Word bits) { return (int)((bits & 0xffffffff) * size >> 32); }

    // Pixel i of an axis of `size` with a border; beyond the border it is seen in a mirror.
    static __device__ __forceinline__ int mirror(int i, int border, int size) {
        int last = size - 1 + border;
        return i < -border ? -2 * border - i : i > last ? 2 * last - i : i;
    }

    template <class T>
    __device__ __forceinline__ void plane(long long index, int channel, const T* affine, T* y) const {
        int width = from.w + 2 * from.padding, height = from.h + 2 * from.padding;
        if (index < 0) index += from.stored;
        bool exists = 0 <= index && index < from.stored;
        int first = exists ? ((int)index * from.channels + channel) * from.h * from.w : 0;
        T scale = affine[channel], shift = exists ? affine[from.channels + channel] : (T)__int_as_float(0x7fffffff);
        Word word[4] = {(Word)index + 1, 0, 0, 0};
        philox(word, key[0], key[1]);
        int down = below(2 * crop + 1, word[0]) - crop - from.padding;
        int right = below(2 * crop + 1, word[0] >> 32) - crop - from.padding;
        bool mirrored = flip && word[1] & 1;
        if (flip == 2) {
            Word first_epoch[4] = {(Word)index + 1, 0, 0, 0};
            philox(first_epoch, key[0], key[1] & 3ull << 62);
            mirrored = (first_epoch[1] ^ key[1]) & 1;
        }
        bool jitters = brightness != 0 || contrast != 0 || color != 0;
        Word of_channel[4] = {(Word)index + 1, (Word)channel + 1, 0, 0};
        if (color != 0) philox(of_channel, key[0], key[1]);
        T gain = (T)(1 + spread(contrast, word[3]));
        T offset = (T)__dadd_rn(spread(brightness, word[3] >> 32), color != 0 ? spread(color, of_channel[0]) : 0);
        int top = below(height, word[2]) - cutout / 2, left = below(width, word[2] >> 32) - cutout / 2;
        for (int i = threadIdx.x; i < height * width; i += blockDim.x) {
            int row = i / width, column = i % width;
            int r = row + down, s = (mirrored ? width - 1 - column : column) + right;
            if (reflect) {
                r = mirror(r, from.padding, from.h);
                s = mirror(s, from.padding, from.w);
            }
            bool within = exists && (unsigned)r < (unsigned)from.h && (unsigned)s < (unsigned)from.w;
            bool cut = (unsigned)(row - top) < (unsigned)cutout && (unsigned)(column - left) < (unsigned)cutout;
            T pixel = affine_of((T)(within ? from.bytes[first + r * from.w + s] : 0), scale, shift);
            if (jitters) pixel = affine_of(pixel, gain, offset);
            y[i] = cut && exists ? (T)0 : pixel;
        }
    }

    __device__ __forceinline__ unsigned pixels() const { return from.pixels(); }
};

template <class Source>
__device__ __forceinline__ void pick(const Source& from, const long long* indices, const REAL* affine, REAL* y, int n,
                                     int channels) {
    for (unsigned plane = blockIdx.x; plane < n * channels; plane += gridDim.x)
        from.plane(indices[plane / channels], plane % channels, affine, y + plane * from.pixels());
}

template <class Source>
__device__ __forceinline__ void pick_next(const Source& from, const long long* labels, const long long* order,
                                          const long long* position, const REAL* affine, REAL* y, long long* picked,
                                          int stored, int count, int batch, int n, int channels) {
    long long first = (position[0] + 1) * batch;
    for (unsigned plane = blockIdx.x; plane < n * channels; plane += gridDim.x) {
        int i = plane / channels, channel = plane % channels;
        long long index = first + i < count ? order[first + i] : stored;
        from.plane(index, channel, affine, y + plane * from.pixels());
        if (channel == 0 && threadIdx.x == 0) picked[i] = index < stored ? labels[index] : -1;
    }
}

extern "C" __global__ void gather(const unsigned char* images, const long long* indices, const REAL* affine, REAL* y,
                                  int stored, int n, int channels, int h, int w, int padding) {
    pick(Images{images, stored, channels, h, w, padding}, indices, affine, y, n, channels);
}

extern "C" __global__ void augmented_gather(const unsigned char* images, const long long* indices, const REAL* affine,
                                            REAL* y, int stored, int n, int channels, int h, int w, int padding,
                                            const unsigned long long* key, int crop, int reflect, int flip, int cutout,
                                            double brightness, double contrast, double color) {
    Views from{{images, stored, channels, h, w, padding}, key, crop, reflect, flip, cutout,
               brightness, contrast, color};
    pick(from, indices, affine, y, n, channels);
}

extern "C" __global__ void next_batch(const unsigned char* images, const long long* labels, const long long* order,
                                      const long long* position, const REAL* affine, REAL* y, long long* picked,
                                      int stored, int count, int batch, int n, int channels, int h, int w,
                                      int padding) {
    Images from{images, stored, channels, h, w, padding};
    pick_next(from, labels, order, position, affine, y, picked, stored, count, batch, n, channels);
}

extern "C" __global__ void augmented_next_batch(const unsigned char* images, const long long* labels,
                                                const long long* order, const long long* position, const REAL* affine,
                                                REAL* y, long long* picked, int stored, int count, int batch, int n,
                                                int channels, int h, int w, int padding, const unsigned long long* key,
                                                int crop, int reflect, int flip, int cutout,
                                                double brightness, double contrast, double color) {
    Views from{{images, stored, channels, h, w, padding}, key, crop, reflect, flip, cutout,
               brightness, contrast, color};
    pick_next(from, labels, order, position, affine, y, picked, stored, count, batch, n, channels);
}
