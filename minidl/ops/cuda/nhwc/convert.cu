// Images between NCHW in float32 and NHWC in STORE, by tiles in shared memory.
//
// A block takes TILE channels of 1024 / TILE pixels of one image, which is image blockIdx.x / tiles. Neighbouring
// threads read and write neighbours. Any number of threads works.
#include "include/image.cuh"

constexpr int PIXELS = 1024 / TILE;

struct Corner {
    int image, pixel, channel;

    __device__ __forceinline__ Corner(int tiles)
        : image(blockIdx.x / tiles), pixel(blockIdx.x % tiles * PIXELS), channel(blockIdx.y * TILE) {}
};

extern "C" __global__ void to_nhwc(const float* __restrict__ x, STORE* __restrict__ y, int channels, int pixels,
                                   int tiles) {
    __shared__ float tile[TILE][PIXELS + 1];
    const Corner first(tiles);
    for (int i = threadIdx.x; i < TILE * PIXELS; i += blockDim.x) {
        const int channel = first.channel + i / PIXELS, pixel = first.pixel + i % PIXELS;
        if (channel < channels && pixel < pixels)
            tile[i / PIXELS][i % PIXELS] = x[(first.image * channels + channel) * pixels + pixel];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * PIXELS; i += blockDim.x) {
        const int channel = first.channel + i % TILE, pixel = first.pixel + i / TILE;
        if (channel < channels && pixel < pixels)
            store(y + (first.image * pixels + pixel) * channels + channel, Run{tile[i % TILE][i / TILE]});
    }
}

extern "C" __global__ void to_nchw(const STORE* __restrict__ x, float* __restrict__ y, int channels, int pixels,
                                   int tiles) {
    __shared__ float tile[TILE][PIXELS + 1];
    const Corner first(tiles);
    for (int i = threadIdx.x; i < TILE * PIXELS; i += blockDim.x) {
        const int channel = first.channel + i % TILE, pixel = first.pixel + i / TILE;
        if (channel < channels && pixel < pixels)
            tile[i % TILE][i / TILE] = load(x + (first.image * pixels + pixel) * channels + channel).v[0];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * PIXELS; i += blockDim.x) {
        const int channel = first.channel + i / PIXELS, pixel = first.pixel + i % PIXELS;
        if (channel < channels && pixel < pixels)
            y[(first.image * channels + channel) * pixels + pixel] = tile[i / PIXELS][i % PIXELS];
    }
}
