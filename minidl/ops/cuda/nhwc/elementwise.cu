// Images in NHWC: a bias and an activation, sums over each channel, and an activation's gradient with them. The kernels
// walk PixelRuns (image.cuh) in blocks of up to 256 threads.
#include "include/image.cuh"

extern "C" __global__ void __launch_bounds__(256, 2)
    add_bias_nhwc(const STORE* __restrict__ x, const float* __restrict__ b, STORE* __restrict__ y, PixelRuns g) {
    const Walk walk(g);
#pragma unroll 4
    for (int row = walk.row; row < walk.end; row += walk.step) {
        const int at = row * g.channels + walk.channel;
        Run run = load(x + at);
#pragma unroll
        for (int i = 0; i < WIDE; ++i) run.v[i] = after(run.v[i] + b[walk.channel + i]);
        store(y + at, run);
    }
}

struct Values {
    const STORE* __restrict__ gy;

    __device__ __forceinline__ void operator()(int at, float (&sum)[1][WIDE]) const {
        const Run run = load(gy + at);
#pragma unroll
        for (int i = 0; i < WIDE; ++i) sum[0][i] += run.v[i];
    }
};

extern "C" __global__ void __launch_bounds__(256, 2)
    conv2d_grad_b_nhwc(const STORE* __restrict__ gy, float* __restrict__ parts, PixelRuns g) {
    add_up<1>(Values{gy}, parts, g);
}

struct Gradients {
    const STORE *__restrict__ gy, *__restrict__ other, *__restrict__ y;
    STORE* __restrict__ gx;

    __device__ __forceinline__ void operator()(int at, float (&sum)[1][WIDE]) const {
        Run run = summed(gy, other, at);
        const Run known = load(y + at);
#pragma unroll
        for (int i = 0; i < WIDE; ++i) {
            run.v[i] = ACT_GRAD(run.v[i], known.v[i]);
            sum[0][i] += run.v[i];
        }
        store(gx + at, run);
    }
};

extern "C" __global__ void __launch_bounds__(256, 2)
    act_grad_b_nhwc(const STORE* __restrict__ gy, const STORE* __restrict__ other, const STORE* __restrict__ y,
                    STORE* __restrict__ gx, float* __restrict__ parts, PixelRuns g) {
    add_up<1>(Gradients{gy, other, y, gx}, parts, g);
}
