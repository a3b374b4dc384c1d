// Updates by running averages. Threads, blocks and what is required: include/parameters.cuh.
//
// adam: t += 1; m += (1 - beta1) * (g - m); s = beta2 * s + (1 - beta2) * g^2;
// p -= lr / (1 - beta1^t) * m / (sqrt(s) / sqrt(1 - beta2^t) + eps), where m, s, t are the table's v, s, t. What
// depends on t alone is computed once, in double, by adam_begin, a launch before it: one block, a thread per parameter.
// scales[at] = {lr / (1 - beta1^t), sqrt(1 - beta2^t), what is left of p by decoupled decay}.
#include "include/parameters.cuh"

__device__ __forceinline__ double power(double x, long long n) {
    double y = 1;
    for (; n > 0; n >>= 1, x *= x)
        if (n & 1) y *= x;
    return y;
}

extern "C" __global__ void adam_begin(const Parameters table, const double* rates, const long long* position, int last,
                                      double lr, double beta1, double beta2, double decay, double* scales) {
    long long* steps = (long long*)table.t[threadIdx.x];
    if (steps) {
        const long long t = ++*steps;
        lr = rate_of(rates, position, last, lr);
        scales[3 * threadIdx.x] = lr / (1 - power(beta1, t));
        scales[3 * threadIdx.x + 1] = sqrt(1 - power(beta2, t));
        scales[3 * threadIdx.x + 2] = 1 - lr * decay;
    }
}

extern "C" __global__ void adam(const Parameters table, const double* scales, double beta1, double beta2, REAL eps,
                                REAL weight_decay) {
    const int at = parameter_of_block(table);
    REAL *params = (REAL*)table.p[at], *means = (REAL*)table.v[at], *squares = (REAL*)table.s[at];
    const REAL* grads = (const REAL*)table.g[at];
    const REAL size = (REAL)scales[3 * at], root = (REAL)scales[3 * at + 1], left = (REAL)scales[3 * at + 2];
    const REAL new1 = (REAL)(1 - beta1), old2 = (REAL)beta2, new2 = (REAL)(1 - beta2);
    struct Element { REAL p, g, m, s; };
    auto read = [&](unsigned i) { return Element{params[i], grads[i], means[i], squares[i]}; };
    each_element(table.first[at], table.size[at], read, [&](unsigned i, Element given) {
        auto [p, g, m, s] = given;
        g += weight_decay * p;
        m += new1 * (g - m);
        s = old2 * s + new2 * (g * g);
        means[i] = m;
        squares[i] = s;
        params[i] = left * p - size * (m / (sqrt(s) / root + eps));
    });
}

// g += weight_decay * p; s = alpha * s + (1 - alpha) * g^2; g /= sqrt(s) + eps; v = momentum * v + g; p -= lr * v,
// with the table's s and v. With means t also m += (1 - alpha) * (g - m), and s - m^2 under the root.
extern "C" __global__ void rmsprop(const Parameters table, const double* rates, const long long* position, int last,
                                   REAL lr, double alpha, REAL eps, REAL weight_decay, REAL momentum) {
    const int at = parameter_of_block(table);
    REAL *params = (REAL*)table.p[at], *squares = (REAL*)table.s[at];
    REAL *velocities = (REAL*)table.v[at], *means = (REAL*)table.t[at];
    const REAL* grads = (const REAL*)table.g[at];
    const REAL older = (REAL)alpha, newer = (REAL)(1 - alpha);
    lr = (REAL)rate_of(rates, position, last, lr);
    struct Element { REAL p, g, s, m, v; };
    auto read = [&](unsigned i) {
        return Element{params[i], grads[i], squares[i], means ? means[i] : (REAL)0,
                       velocities ? velocities[i] : (REAL)0};
    };
    each_element(table.first[at], table.size[at], read, [&](unsigned i, Element given) {
        auto [p, g, s, m, v] = given;
        g += weight_decay * p;
        s = older * s + newer * (g * g);
        squares[i] = s;
        if (means) {
            m += newer * (g - m);
            means[i] = m;
            s -= m * m;
            if (s < (REAL)0) s = 0;        // by rounding
        }
        g /= sqrt(s) + eps;
        if (velocities) {
            g += momentum * v;
            velocities[i] = g;
        }
        params[i] = p - lr * g;
    });
}

// p += (1 - decay) * (g - p): p is an average of values g.
extern "C" __global__ void ema(const Parameters table, double decay) {
    const int at = parameter_of_block(table);
    REAL* averages = (REAL*)table.p[at];
    const REAL* values = (const REAL*)table.g[at];
    const REAL newer = (REAL)(1 - decay);
    struct Element { REAL average, value; };
    auto read = [&](unsigned i) { return Element{averages[i], values[i]}; };
    each_element(table.first[at], table.size[at], read, [&](unsigned i, Element given) {
        averages[i] = given.average + newer * (given.value - given.average);
    });
}
