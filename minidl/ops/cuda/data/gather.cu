// A batch from stored bytes: y[i, c] = images[indices[i], c] * scale[c] + shift[c], with a border of zero bytes.
//
// images (stored, channels, h, w) bytes; y (n, channels, h + 2 padding, w + 2 padding); affine holds all scales, then
// all shifts. A block owns whole planes of y, one after the other; a thread owns every blockDim.x-th pixel of them,
// so that neighbours write neighbours. Any grid and block will do. An index counts from the end where it is negative;
// one that names no image is not read at: its pixels are NaN.
#include "common.cuh"

// Rounded twice, as on the CPU, so that both give the same bits.
__device__ __forceinline__ float affine_of(float byte, float scale, float shift) {
    return __fadd_rn(__fmul_rn(byte, scale), shift);
}
__device__ __forceinline__ double affine_of(double byte, double scale, double shift) {
    return __dadd_rn(__dmul_rn(byte, scale), shift);
}

extern "C" __global__ void gather(const unsigned char* images, const long long* indices, const REAL* affine, REAL* y,
                                  int stored, int n, int channels, int h, int w, int padding) {
    int width = w + 2 * padding, pixels = (h + 2 * padding) * width;
    for (unsigned plane = blockIdx.x; plane < n * channels; plane += gridDim.x) {
        int channel = plane % channels;
        long long index = indices[plane / channels];
        if (index < 0) index += stored;
        bool exists = 0 <= index && index < stored;
        const unsigned char* image = images + (exists ? ((int)index * channels + channel) * h * w : 0);
        REAL scale = affine[channel], shift = exists ? affine[channels + channel] : __int_as_float(0x7fffffff);
        for (int i = threadIdx.x; i < pixels; i += blockDim.x) {
            int r = i / width - padding, s = i % width - padding;
            bool within = exists && (unsigned)r < (unsigned)h && (unsigned)s < (unsigned)w;
            y[plane * pixels + i] = affine_of((REAL)(within ? image[r * w + s] : 0), scale, shift);
        }
    }
}
