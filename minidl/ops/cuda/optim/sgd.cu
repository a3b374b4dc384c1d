// Stochastic gradient descent: g += weight_decay * p; v = momentum * v + g; p -= lr * v, or with nesterov
// lr * (g + momentum * v). What a thread and a block own, and what is required: include/parameters.cuh.
#include "include/parameters.cuh"

extern "C" __global__ void sgd(const Parameters table, const double* rates, const long long* position, int last,
                               REAL lr, REAL momentum, REAL weight_decay, int nesterov) {
    const int at = parameter_of_block(table);
    REAL *params = (REAL*)table.p[at], *velocities = (REAL*)table.v[at];
    const REAL* grads = (const REAL*)table.g[at];
    lr = (REAL)rate_of(rates, position, last, lr);
    each_element(table.first[at], table.size[at], [&](unsigned i) {
        REAL p = params[i], g = grads[i];
        if (weight_decay != (REAL)0) g += weight_decay * p;
        if (velocities) {
            REAL v = momentum * velocities[i] + g;
            velocities[i] = v;
            g = nesterov ? g + momentum * v : v;
        }
        params[i] = p - lr * g;
    });
}
