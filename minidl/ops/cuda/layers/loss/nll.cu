// The negative log likelihood of labels, with weights of the classes, an ignored label and smoothed targets.
//
// log_p and gx are (n, classes), labels (n), weight (classes) or none: then all are 1. The target of class k is
// weight[k] * (share + keep if k is the label) in an image that counts, 0 in one whose label is ignored, and NaN in one
// whose label is not a class. nll: `lanes` threads own an image (rows.cuh), a block as many as it has room for, in
// turns. It leaves the sums of its images' losses and of their labels' weights in parts (2, blocks) or, if there is one
// block, the results: loss, divided by that sum of weights if `mean` is set, and the sum itself, total. losses: those
// of images, if it is given. nll_total: one block makes the results of parts. nll_grad_x: a thread owns elements.
// Requires: blockDim.x a multiple of lanes and of 32; lanes a power of two up to 32.
#include "include/common.cuh"
#include "include/rows.cuh"

// The targets of an image.
struct Targets {
    const REAL* weight;
    long long label;
    REAL count;  // 1, 0 where the label is ignored, or NaN where it is not a class
    bool is_class;

    __device__ __forceinline__ Targets(const REAL* weight, long long label, int classes, int ignores, long long ignored)
        : weight(weight), label(label) {
        is_class = (unsigned long long)label < (unsigned)classes;  // a negative label is a very large unsigned one
        count = ignores && label == ignored ? (REAL)0 : is_class ? (REAL)1 : (REAL)__int_as_float(0x7fffffff);
    }
    __device__ __forceinline__ REAL of(int k) const { return weight ? count * weight[k] : count; }
    __device__ __forceinline__ REAL of_label() const { return is_class ? of((int)label) : count; }
};

// target * x, but 0 if the target is 0, whatever x is: log probabilities may be infinite.
__device__ __forceinline__ REAL times(REAL target, REAL x) { return target == (REAL)0 ? (REAL)0 : target * x; }

// The mean of nothing is NaN.
__device__ __forceinline__ void put(REAL loss, REAL sum, REAL* y, REAL* total, int mean) {
    *y = !mean ? loss : sum == (REAL)0 ? (REAL)__int_as_float(0x7fffffff) : loss / sum;
    *total = sum;
}

extern "C" __global__ void __launch_bounds__(1024)
    nll(const REAL* __restrict__ log_p, const long long* __restrict__ labels, const REAL* __restrict__ weight,
        REAL* __restrict__ losses, REAL* __restrict__ parts, REAL* y, REAL* total, int n, int classes, int lanes,
        REAL keep, REAL share, int mean, int ignores, long long ignored) {
    const int lane = threadIdx.x % lanes;
    REAL sum = 0, weights = 0;
    for (int first = 0; first < n; first += THREADS / lanes) {
        const int row = first + THREAD / lanes;
        const bool live = row < n;
        const Targets targets(weight, live ? labels[row] : 0, classes, ignores, ignored);
        const REAL* of_row = log_p + (live ? row * classes : 0);
        REAL loss = 0;
        if (share != (REAL)0) {
            for (int k = lane; k < (live ? classes : 0); k += lanes) loss += times(targets.of(k) * share, of_row[k]);
            loss = reduce(loss, lanes, false);
        }
        if (live && lane == 0) {
            const REAL of_label = targets.of_label();
            loss += targets.is_class ? times(of_label * keep, of_row[targets.label]) : of_label;
            sum -= loss;
            weights += of_label;
            if (losses) losses[row] = -loss;
        }
    }
    sum = reduce(sum, blockDim.x, false);
    weights = reduce(weights, blockDim.x, false);
    if (threadIdx.x) return;
    if (parts) {
        parts[blockIdx.x] = sum;
        parts[gridDim.x + blockIdx.x] = weights;
    } else {
        put(sum, weights, y, total, mean);
    }
}

extern "C" __global__ void __launch_bounds__(1024)
    nll_total(const REAL* __restrict__ parts, REAL* y, REAL* total, int count, int mean) {
    REAL sum = 0, weights = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        sum += parts[i];
        weights += parts[count + i];
    }
    sum = reduce(sum, blockDim.x, false);
    weights = reduce(weights, blockDim.x, false);
    if (threadIdx.x == 0) put(sum, weights, y, total, mean);
}

// -target * gy, divided by total if `mean` is set, and 0 if total is 0. `step` from one image's gy to the next.
extern "C" __global__ void nll_grad_x(const REAL* __restrict__ gy, const long long* __restrict__ labels,
                                      const REAL* __restrict__ weight, const REAL* total, REAL* __restrict__ gx,
                                      unsigned size, int classes, int step, REAL keep, REAL share, int mean,
                                      int ignores, long long ignored) {
    const REAL of_all = mean ? *total : (REAL)1, scale = of_all == (REAL)0 ? (REAL)0 : (REAL)1 / of_all;
    for (unsigned i = THREAD; i < size; i += THREADS) {
        const int row = i / classes, k = i % classes;
        const Targets targets(weight, labels[row], classes, ignores, ignored);
        const REAL part = k == targets.label ? share + keep : share;
        gx[i] = -times(part * targets.of(k), gy[row * step] * scale);
    }
}
