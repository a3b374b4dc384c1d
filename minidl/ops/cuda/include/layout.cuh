// The order of images in memory, defined in one place: -DLAYOUT=NCHW (the default), NHWC or CHWN. The last letter is
// the axis that is contiguous in memory: columns, channels, or images. Filters are stored as (m,c,p,q), but in NHWC as
// (p,q,c,m): there neighbouring threads have neighbouring filters.
//
// In NCHW a block of the kernels that use shared memory has one image and one map. With -DLANES=16 it has LANES
// neighbours of the last axis: in NHWC LANES maps of the result, and CHANNELS (-D) channels of its input at a time, in
// CHWN LANES images. So a pixel in shared memory is a run of DEEP neighbours in global memory: 1, CHANNELS, LANES.
#include "include/common.cuh"

#define NCHW 0
#define NHWC 1
#define CHWN 2
#ifndef LAYOUT
#define LAYOUT NCHW
#endif
#ifndef LANES
#define LANES 1
#endif
#ifndef CHANNELS
#define CHANNELS 1
#endif

#define IMAGES (LAYOUT == CHWN ? LANES : 1)
#define MAPS (LAYOUT == NHWC ? LANES : 1)
#define DEEP (IMAGES * CHANNELS)

static_assert(LAYOUT != NCHW || LANES == 1, "NCHW has one image and one map per block");
static_assert(LAYOUT == NHWC || CHANNELS == 1, "only in NHWC are channels neighbours");

// Image, channel, row and column.
struct Element {
    int n, c, r, s;
};

// Sizes of images, and where each of their elements is in memory.
struct Images {
    int n, c, h, w;

    // From a pixel of a plane to the next
    __device__ __forceinline__ int step() const { return LAYOUT == NHWC ? c : LAYOUT == CHWN ? n : 1; }

    // The first pixel of an image's channel; its pixel (r, s) is (r * w + s) * step() further on
    __device__ __forceinline__ int plane(int image, int channel) const {
        if (LAYOUT == NHWC) return image * h * w * c + channel;
        if (LAYOUT == CHWN) return channel * h * w * n + image;
        return (image * c + channel) * h * w;
    }

    __device__ __forceinline__ int offset(int image, int channel, int r, int s) const {
        if (LAYOUT == NHWC) return ((image * h + r) * w + s) * c + channel;
        if (LAYOUT == CHWN) return ((channel * h + r) * w + s) * n + image;
        return ((image * c + channel) * h + r) * w + s;
    }

    // The element at an offset: threads that count along memory have neighbours of the last axis
    __device__ __forceinline__ Element at(unsigned offset) const {
        if (LAYOUT == NHWC) {
            const int pixel = offset / c, row = pixel / w;
            return {row / h, (int)(offset % c), row % h, pixel % w};
        }
        if (LAYOUT == CHWN) {
            const int pixel = offset / n, row = pixel / w;
            return {(int)(offset % n), row / h, row % h, pixel % w};
        }
        const int s = offset % w, r = offset / w % h, map = offset / (h * w);
        const int channel = map % c;
        return {map / c, channel, r, s};
    }
};

__device__ __forceinline__ Images images_x(const Geometry& g) { return {g.n, g.c, g.h, g.w}; }
__device__ __forceinline__ Images images_y(const Geometry& g) { return {g.n, g.m, g.oh, g.ow}; }

// Sizes of filters, and where each of their elements is in memory.
struct Filters {
    int m, c, kh, kw;

    // From a tap of a filter's channel to the next; to the next filter; to the next channel
    __device__ __forceinline__ int tap_step() const { return LAYOUT == NHWC ? c * m : 1; }
    __device__ __forceinline__ int filter_step() const { return LAYOUT == NHWC ? 1 : c * kh * kw; }
    __device__ __forceinline__ int channel_step() const { return LAYOUT == NHWC ? m : kh * kw; }

    // The first tap of a filter's channel; its tap (p, q) is (p * kw + q) * tap_step() further on
    __device__ __forceinline__ int plane(int filter, int channel) const {
        if (LAYOUT == NHWC) return channel * m + filter;
        return (filter * c + channel) * kh * kw;
    }

    // The element at an offset: {m, c, p, q}
    __device__ __forceinline__ Element at(unsigned offset) const {
        if (LAYOUT == NHWC) {
            const int rest = offset / m, tap = rest / c;
            return {(int)(offset % m), rest % c, tap / kw, tap % kw};
        }
        const int q = offset % kw, p = offset / kw % kh, map = offset / (kh * kw);
        const int channel = map % c;
        return {map / c, channel, p, q};
    }
};

__device__ __forceinline__ Filters filters_of(const Geometry& g) { return {g.m, g.c, g.kh, g.kw}; }

// How many channels of `all` a round from `first` on has.
__device__ __forceinline__ int channels_from(int first, int all) {
    return CHANNELS == 1 ? 1 : imin(CHANNELS, all - first);
}

// How many neighbours of a pixel's run are there in a round: channels from c0 on, or images from n0 on.
__device__ __forceinline__ int live_from(int n0, int c0, const Images& of) {
    return LAYOUT == NHWC ? of.c - c0 : LAYOUT == CHWN ? of.n - n0 : 1;
}

// Element k of a run of pixels from (r, s) on, DEEP elements each; zero outside the plane and beyond what is live.
__device__ __forceinline__ REAL inside_run(const REAL* plane, int r, int s, int k, int live, const Images& of) {
    if (DEEP == 1) return inside(plane, r, s + k, of.h, of.w);
    s += k / DEEP;
    const bool there = (unsigned)r < (unsigned)of.h && (unsigned)s < (unsigned)of.w && k % DEEP < live;
    return there ? plane[(r * of.w + s) * of.step() + k % DEEP] : (REAL)0;
}
