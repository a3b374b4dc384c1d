// A batch from stored bytes: y[i, c] = images[index, c] * scale[c] + shift[c], with a border of zero bytes.
//
// images (stored, channels, h, w) bytes; y (n, channels, h + 2 padding, w + 2 padding); affine holds all scales, then
// all shifts. A block owns whole planes of y, one after the other; a thread owns every blockDim.x-th pixel of them,
// so that neighbours write neighbours. Any grid and block will do. An index counts from the end where it is negative;
// one that names no image is not read at: its pixels are NaN.
// gather: the index of image i is indices[i]. next_batch: it is order[(position[0] + 1) * batch + i], or no image's where the
// order of `count` images has ended, and picked[i] is that image's label, or -1.
#include "include/common.cuh"

// Rounded twice, as on the CPU, so that both give the same bits.
__device__ __forceinline__ float affine_of(float byte, float scale, float shift) {
    return __fadd_rn(__fmul_rn(byte, scale), shift);
}
__device__ __forceinline__ double affine_of(double byte, double scale, double shift) {
    return __dadd_rn(__dmul_rn(byte, scale), shift);
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

extern "C" __global__ void gather(const unsigned char* images, const long long* indices, const REAL* affine, REAL* y,
                                  int stored, int n, int channels, int h, int w, int padding) {
    Images from{images, stored, channels, h, w, padding};
    for (unsigned plane = blockIdx.x; plane < n * channels; plane += gridDim.x)
        from.plane(indices[plane / channels], plane % channels, affine, y + plane * from.pixels());
}

extern "C" __global__ void next_batch(const unsigned char* images, const long long* labels, const long long* order,
                                      const long long* position, const REAL* affine, REAL* y, long long* picked,
                                      int stored, int count, int batch, int n, int channels, int h, int w,
                                      int padding) {
    Images from{images, stored, channels, h, w, padding};
    long long first = (position[0] + 1) * batch;
    for (unsigned plane = blockIdx.x; plane < n * channels; plane += gridDim.x) {
        int i = plane / channels, channel = plane % channels;
        long long index = first + i < count ? order[first + i] : stored;
        from.plane(index, channel, affine, y + plane * from.pixels());
        if (channel == 0 && threadIdx.x == 0) picked[i] = index < stored ? labels[index] : -1;
    }
}
