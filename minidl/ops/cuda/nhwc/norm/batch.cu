// Batch normalisation of images in NHWC, and its gradients; statistics and sums are in float32.
//
// Three launches each way: the sums over blocks of pixels (add_up in image.cuh), their sum (folds.cu), and what follows
// from it for each element. All walk PixelRuns in blocks of up to 256 threads, and a thread keeps the same channels.
// Moments are sums of differences from one pixel in the middle, so that float32 keeps the variance of values that
// differ by little. With AFTER the activation ACT follows; it takes the sum with `other` if that is given. The first
// launch of the gradients also computes ACT's gradient: y is what ACT computed, and gz is what comes through it, which
// the third launch reads again. Without y, ACT_GRAD takes what ACT was given: x, normalised once more.
#include "include/image.cuh"

__device__ __forceinline__ const STORE* middle(const STORE* x, const PixelRuns& g, int channel) {
    return x + g.rows / 2 * g.channels + channel;
}

// A channel's values that are the same for all pixels, in float32.
__device__ __forceinline__ Run known(const float* values, int channel, float otherwise) {
    Run run;
#pragma unroll
    for (int i = 0; i < WIDE; ++i) run.v[i] = values ? values[channel + i] : otherwise;
    return run;
}

__device__ __forceinline__ float normal(float x, float mean, float scale, float bias) {
    return (x - mean) * scale + bias;
}

struct Moments {
    const STORE* __restrict__ x;
    const Run& near;

    __device__ __forceinline__ void operator()(int at, float (&sum)[2][WIDE]) const {
        const Run run = load(x + at);
#pragma unroll
        for (int i = 0; i < WIDE; ++i) {
            const float d = run.v[i] - near.v[i];
            sum[0][i] += d;
            sum[1][i] += d * d;
        }
    }
};

extern "C" __global__ void __launch_bounds__(256, 2)
    batch_moments_nhwc(const STORE* __restrict__ x, float* __restrict__ parts, PixelRuns g) {
    const Walk walk(g);
    Run near = {};
    if (walk.channel < g.channels) near = load(middle(x, g, walk.channel));
    add_up<2>(Moments{x, near}, parts, g);
}

__device__ __forceinline__ void normalized(const STORE* __restrict__ x, const STORE* __restrict__ other,
                                           STORE* __restrict__ y, const Walk& walk, const Run& mean, const Run& scale,
                                           const Run& bias, const PixelRuns& g) {
#pragma unroll 4
    for (int row = walk.row; row < walk.end; row += walk.step) {
        const int at = row * g.channels + walk.channel;
        Run run = load(x + at), more = {};
        if (other) more = load(other + at);
#pragma unroll
        for (int i = 0; i < WIDE; ++i) run.v[i] = after(normal(run.v[i], mean.v[i], scale.v[i], bias.v[i]) + more.v[i]);
        store(y + at, run);
    }
}

// sums (2, channels): of the differences from the pixel in the middle, and of their squares.
extern "C" __global__ void __launch_bounds__(256, 2)
    batch_norm_nhwc(const STORE* __restrict__ x, const STORE* __restrict__ other, const float* w, const float* b,
                    const float* sums, STORE* __restrict__ y, float* mean, float* rstd, float* running_mean,
                    float* running_var, float momentum, float eps, PixelRuns g) {
    const Walk walk(g);
    if (walk.channel >= g.channels) return;
    const Run near = load(middle(x, g, walk.channel));
    Run center, scale = known(w, walk.channel, 1.0f);
#pragma unroll
    for (int i = 0; i < WIDE; ++i) {
        const int channel = walk.channel + i;
        const float off = sums[channel] / g.rows;
        const float squares = fmax(sums[g.channels + channel] - off * sums[channel], 0.0f);
        const float own = 1.0f / sqrt(squares / g.rows + eps);
        center.v[i] = near.v[i] + off;
        scale.v[i] *= own;
        if (blockIdx.x == 0 && threadIdx.x < g.lanes) {
            mean[channel] = center.v[i];
            rstd[channel] = own;
            running_mean[channel] += momentum * (center.v[i] - running_mean[channel]);
            running_var[channel] += momentum * (squares / (g.rows - 1) - running_var[channel]);
        }
    }
    normalized(x, other, y, walk, center, scale, known(b, walk.channel, 0.0f), g);
}

// Normalises with moments that are known: in evaluation.
extern "C" __global__ void __launch_bounds__(256, 2)
    normalize_by_nhwc(const STORE* __restrict__ x, const float* mean, const float* var, const float* w, const float* b,
                      STORE* __restrict__ y, float eps, PixelRuns g) {
    const Walk walk(g);
    if (walk.channel >= g.channels) return;
    Run scale = known(w, walk.channel, 1.0f);
#pragma unroll
    for (int i = 0; i < WIDE; ++i) scale.v[i] /= sqrt(var[walk.channel + i] + eps);
    normalized(x, nullptr, y, walk, known(mean, walk.channel, 0.0f), scale, known(b, walk.channel, 0.0f), g);
}

// The terms of the sums: gz, and gz times z = (x - mean) * rstd. With AFTER, gz comes through the activation and is
// kept. AGAIN: without y; ACT_GRAD takes (x - mean) * scale + bias.
template <bool AGAIN> struct Products {
    const STORE *__restrict__ gy, *__restrict__ other, *__restrict__ y, *__restrict__ x;
    STORE* __restrict__ kept;
    const Run &mean, &rstd, &scale, &bias;

    __device__ __forceinline__ void operator()(int at, float (&sum)[2][WIDE]) const {
        Run gz = summed(gy, other, at);
        const Run values = load(x + at);
        if (AFTER) {
            Run known;
            if (!AGAIN) known = load(y + at);
#pragma unroll
            for (int i = 0; i < WIDE; ++i)
                gz.v[i] = ACT_GRAD(gz.v[i], AGAIN ? normal(values.v[i], mean.v[i], scale.v[i], bias.v[i]) : known.v[i]);
            store(kept + at, gz);
        }
#pragma unroll
        for (int i = 0; i < WIDE; ++i) {
            sum[0][i] += gz.v[i];
            sum[1][i] += gz.v[i] * (values.v[i] - mean.v[i]) * rstd.v[i];
        }
    }
};

extern "C" __global__ void __launch_bounds__(256, 2)
    batch_products_nhwc(const STORE* __restrict__ gy, const STORE* __restrict__ other, const STORE* __restrict__ y,
                        const STORE* __restrict__ x, const float* mean, const float* rstd, STORE* __restrict__ gz,
                        float* __restrict__ parts, PixelRuns g) {
    const Walk walk(g);
    Run center = {}, deviation = {};
    if (walk.channel < g.channels) {
        center = known(mean, walk.channel, 0.0f);
        deviation = known(rstd, walk.channel, 1.0f);
    }
    add_up<2>(Products<false>{gy, other, y, x, gz, center, deviation, deviation, deviation}, parts, g);
}

extern "C" __global__ void __launch_bounds__(256, 3)
    batch_products_again_nhwc(const STORE* __restrict__ gy, const STORE* __restrict__ other, const STORE* __restrict__ x,
                              const float* w, const float* b, const float* mean, const float* rstd,
                              STORE* __restrict__ gz, float* __restrict__ parts, PixelRuns g) {
    const Walk walk(g);
    Run center = {}, deviation = {}, scale = {}, bias = {};
    if (walk.channel < g.channels) {
        center = known(mean, walk.channel, 0.0f);
        deviation = known(rstd, walk.channel, 1.0f);
        scale = known(w, walk.channel, 1.0f);
        bias = known(b, walk.channel, 0.0f);
#pragma unroll
        for (int i = 0; i < WIDE; ++i) scale.v[i] *= deviation.v[i];
    }
    add_up<2, 2>(Products<true>{gy, other, nullptr, x, gz, center, deviation, scale, bias}, parts, g);
}

// gx = rstd * w * (gz - mean of gz - z * mean of gz * z); sums (2, channels): of gz, and of gz * z.
extern "C" __global__ void __launch_bounds__(256, 2)
    normalize_grad_nhwc(const STORE* __restrict__ gz, const STORE* __restrict__ x, const float* w, const float* mean,
                        const float* rstd, const float* sums, STORE* __restrict__ gx, float* gw, float* gb,
                        PixelRuns g) {
    const Walk walk(g);
    if (walk.channel >= g.channels) return;
    const Run center = known(mean, walk.channel, 0.0f);
    Run off = known(sums, walk.channel, 0.0f), product = known(sums + g.channels, walk.channel, 0.0f);
    Run scale = known(rstd, walk.channel, 1.0f);
    const float share = 1.0f / g.rows;
#pragma unroll
    for (int i = 0; i < WIDE; ++i) {
        const int channel = walk.channel + i;
        if (blockIdx.x == 0 && threadIdx.x < g.lanes) {
            gb[channel] = off.v[i];
            gw[channel] = product.v[i];
        }
        off.v[i] *= share;
        product.v[i] *= share * scale.v[i];
        if (w) scale.v[i] *= w[channel];
    }
#pragma unroll 2
    for (int row = walk.row; row < walk.end; row += walk.step) {
        const int at = row * g.channels + walk.channel;
        Run run = load(gz + at);
        const Run values = load(x + at);
#pragma unroll
        for (int i = 0; i < WIDE; ++i)
            run.v[i] = (run.v[i] - off.v[i] - (values.v[i] - center.v[i]) * product.v[i]) * scale.v[i];
        store(gx + at, run);
    }
}
