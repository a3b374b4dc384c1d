// Stochastic gradient descent: g += weight_decay * p; v = momentum * v + g; p -= lr * v, or with nesterov
// lr * (g + momentum * v). What a thread and a block own, and what is required: include/parameters.cuh.
#include "include/parameters.cuh"

extern "C" __global__ void sgd(const Parameters table, const double* rates, const long long* position, int last,
                               REAL lr, REAL momentum, REAL weight_decay, int nesterov) {
    const int at = parameter_of_block(table);
    REAL *params = (REAL*)table.p[at], *velocities = (REAL*)table.v[at];
    const REAL* grads = (const REAL*)table.g[at];
    lr = (REAL)rate_of(rates, position, last, lr);
    struct Element { REAL p, g, v; };
    auto read = [&](unsigned i) { return Element{params[i], grads[i], velocities ? velocities[i] : (REAL)0}; };
    each_element(table.first[at], table.size[at], read, [&](unsigned i, Element given) {
        auto [p, g, v] = given;
        if (weight_decay != (REAL)0) g += weight_decay * p;
        if (velocities) {
            velocities[i] = v = momentum * v + g;
            g = nesterov ? g + momentum * v : v;
        }
        params[i] = p - lr * g;
    });
}
