// Cross-entropy: log softmax, each image's loss and their sum, and the gradient.
//
// x, log_p and gx are (n, classes), labels and the losses of images (n,). `lanes` threads own an image's row
// (include/rows.cuh). cross_entropy_rows: a block of b threads owns b / lanes rows and writes their losses.
// cross_entropy_of_log_p: a thread owns an image, whose log_p is there already (reduce/folds.cu).
// cross_entropy_all: one block owns everything, sums the losses too and writes the one number, total / divisor.
// cross_entropy_sum: one block makes that number of losses in memory. cross_entropy_grad_x: a thread owns elements.
// cross_entropy_with_grad: as cross_entropy_all, and the gradient of that number in the place of log_p.
// The loss is -keep log_p[label] - smoothing * mean of log_p, with keep = 1 - smoothing. A label that is not a class is
// not read at: its image's loss and gradient are NaN.
// Requires: blockDim.x a multiple of lanes and of 32; lanes a power of two up to 32, or blockDim.x (rows only).
#include "include/common.cuh"
#include "include/rows.cuh"

__device__ __forceinline__ bool is_class(long long label, int classes) {
    return (unsigned long long)label < (unsigned)classes;  // a negative label is a very large unsigned one
}

// log_p of an image, and its loss: true in the row's first lane, and 0 if there is no such image.
__device__ __forceinline__ REAL loss_of(const REAL* x, const long long* labels, REAL* log_p, int row, int n,
                                        int classes, int lane, int lanes, REAL smoothing, REAL keep) {
    bool live = row < n;
    int size = live ? classes : 0, at = live ? row * classes : 0;
    REAL top, log_sum, mean = 0;
    log_softmax_row(x + at, log_p + at, size, 1, lane, lanes, top, log_sum);
    if (smoothing != (REAL)0) {
        REAL sum = 0;
        for (int k = lane; k < size; k += lanes) sum += log_p[at + k];
        mean = reduce(sum, lanes, false) / (REAL)classes;
    }
    if (!live) return (REAL)0;
    long long label = labels[row];
    if (!is_class(label, classes)) return __int_as_float(0x7fffffff);
    REAL loss = -(x[at + label] - top - log_sum);  // log_p[label], which another lane may have written
    return smoothing != (REAL)0 ? keep * loss - smoothing * mean : loss;
}

extern "C" __global__ void cross_entropy_rows(const REAL* x, const long long* labels, REAL* log_p, REAL* losses, int n,
                                              int classes, int lanes, REAL smoothing, REAL keep) {
    unsigned row = THREAD / lanes, lane = THREAD % lanes;
    REAL loss = loss_of(x, labels, log_p, imin(row, n), n, classes, lane, lanes, smoothing, keep);
    if (row < n && lane == 0) losses[row] = loss;
}

// mean: of each image's log_p, or none if there is no smoothing.
extern "C" __global__ void cross_entropy_of_log_p(const REAL* log_p, const long long* labels, const REAL* mean,
                                                  REAL* losses, int n, int classes, REAL smoothing, REAL keep) {
    const int row = THREAD;
    if (row >= n) return;
    const long long label = labels[row];
    const REAL loss = is_class(label, classes) ? -log_p[row * classes + label] : (REAL)__int_as_float(0x7fffffff);
    losses[row] = mean ? keep * loss - smoothing * mean[row] : loss;
}

extern "C" __global__ void __launch_bounds__(1024)
    cross_entropy_all(const REAL* x, const long long* labels, REAL* log_p, REAL* total, int n, int classes, int lanes,
                      REAL smoothing, REAL keep, int divisor) {
    int lane = threadIdx.x % lanes;
    REAL sum = 0;
    for (int first = 0; first < n; first += blockDim.x / lanes) {
        REAL loss = loss_of(x, labels, log_p, first + threadIdx.x / lanes, n, classes, lane, lanes, smoothing, keep);
        if (lane == 0) sum += loss;
    }
    sum = reduce(sum, blockDim.x, false);
    if (threadIdx.x == 0) *total = sum / (REAL)divisor;  // the mean of no images: 0 / 0 is NaN, as it should be
}

extern "C" __global__ void __launch_bounds__(1024)
    cross_entropy_sum(const REAL* losses, REAL* total, int n, int divisor) {
    REAL sum = 0;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) sum += losses[i];
    sum = reduce(sum, blockDim.x, false);
    if (threadIdx.x == 0) *total = sum / (REAL)divisor;
}

// softmax - target, for class k of an image.
__device__ __forceinline__ REAL grad_of(REAL log_p, int k, long long label, int classes, REAL share, REAL keep) {
    REAL target = !is_class(label, classes) ? __int_as_float(0x7fffffff) : k == label ? keep : (REAL)0;
    return exp(log_p) - share - target;
}

// (softmax - target) * gy / divisor; `step` from one image's gy to the next: 0 if all have one.
extern "C" __global__ void cross_entropy_grad_x(const REAL* gy, const REAL* log_p, const long long* labels, REAL* gx,
                                                unsigned size, int classes, int step, int divisor, REAL share,
                                                REAL keep) {
    for (unsigned i = THREAD; i < size; i += THREADS) {
        int row = i / classes, k = i % classes;
        gx[i] = grad_of(log_p[i], k, labels[row], classes, share, keep) * (gy[row * step] / (REAL)divisor);
    }
}

// A lane turns the log_p that it wrote to gx into the gradient, which no other lane reads.
extern "C" __global__ void __launch_bounds__(1024)
    cross_entropy_with_grad(const REAL* x, const long long* labels, REAL* gx, REAL* total, int n, int classes,
                            int lanes, REAL smoothing, REAL keep, int divisor, REAL share) {
    int lane = threadIdx.x % lanes;
    REAL sum = 0;
    for (int first = 0; first < n; first += blockDim.x / lanes) {
        int row = first + threadIdx.x / lanes;
        REAL loss = loss_of(x, labels, gx, row, n, classes, lane, lanes, smoothing, keep);
        if (lane == 0) sum += loss;
        if (row < n) {
            REAL* mine = gx + row * classes;
            long long label = labels[row];
            for (int k = lane; k < classes; k += lanes)
                mine[k] = grad_of(mine[k], k, label, classes, share, keep) * ((REAL)1 / (REAL)divisor);
        }
    }
    sum = reduce(sum, blockDim.x, false);
    if (threadIdx.x == 0) *total = sum / (REAL)divisor;
}
