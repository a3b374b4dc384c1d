// A convolution's filters with the normalisation that follows it in evaluation: u = w * scale, v = (b - mean) * scale + bias
// with scale = weight / sqrt(var + eps) of each filter, `each` elements of w.
//
// A thread owns the elements THREAD, THREAD + THREADS, ... of w, and the first of a filter its v. Any grid and block do.
#include "include/common.cuh"

extern "C" __global__ void fold_norm(const REAL* w, const REAL* b, const REAL* mean, const REAL* var, const REAL* weight,
                                     const REAL* bias, REAL* u, REAL* v, REAL eps, int filters, int each) {
    for (int i = THREAD; i < filters * each; i += THREADS) {
        const int filter = i / each;
        const REAL rstd = (REAL)1 / sqrt(var[filter] + eps), scale = weight ? rstd * weight[filter] : rstd;
        u[i] = w[i] * scale;
        if (i % each == 0) {
            const REAL shift = ((b ? b[filter] : (REAL)0) - mean[filter]) * scale;
            v[filter] = bias ? shift + bias[filter] : shift;
        }
    }
}
