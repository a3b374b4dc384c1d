// Many arrays, the table's g, as one vector: the sum of its squares, and all of it times a factor. What a thread and a
// block own, and what is required: include/parameters.cuh.
#include "include/parameters.cuh"

// sums[block]: of the squares of the block's elements, in double and in a fixed order.
extern "C" __global__ void square_sums(const Parameters table, double* sums) {
    __shared__ double of_threads[THREADS_PER_BLOCK];
    const int at = parameter_of_block(table);
    const REAL* values = (const REAL*)table.g[at];
    double sum = 0;
    auto read = [&](unsigned i) { return values[i]; };
    each_element(table.first[at], table.size[at], read, [&](unsigned i, REAL x) { sum += (double)x * (double)x; });
    of_threads[threadIdx.x] = sum;
    for (int half = THREADS_PER_BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) of_threads[threadIdx.x] += of_threads[threadIdx.x + half];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = of_threads[0];
}

// p = by * factor * g, or by * g without a factor
extern "C" __global__ void scaled(const Parameters table, const double* factor, double by) {
    const int at = parameter_of_block(table);
    REAL* results = (REAL*)table.p[at];
    const REAL* values = (const REAL*)table.g[at];
    const REAL times = (REAL)(factor ? by * *factor : by);
    auto read = [&](unsigned i) { return values[i]; };
    each_element(table.first[at], table.size[at], read, [&](unsigned i, REAL x) { results[i] = times * x; });
}
