// Sums along an axis up to each value, or from each on: y[e] = the sum of x[0] to x[e] of a row.
//
// A row is `size` elements `inner` apart, taken from its end if `reverse` is set; there are `rows` of them. A team of
// `lanes` threads (rows.cuh) owns a run of `chunk` of a row's elements, and takes tiles of ITEMS per thread: a thread
// adds up its own neighbours, then the threads exchange the sums before each. If a row has several teams, an earlier
// launch writes the sum of each chunk to parts (splits, rows), and each team adds up those before its own, in an order
// that sizes alone decide.
// Sums are of double, REAL; elements are VALUE.
// Requires: REAL double; blockDim.x a multiple of lanes and of 32; lanes a power of two up to 32, or blockDim.x.
#include "include/common.cuh"
#include "include/rows.cuh"

#ifndef VALUE
#define VALUE float
#endif
#define ITEMS 4

struct Running {
    int rows, size, inner, reverse, splits, chunk, lanes;
};

// This thread's row, and its team's run of elements: none if there is no team.
struct Run {
    const Running& g;
    int lane, row, split, begin, end, base;

    __device__ __forceinline__ Run(const Running& g) : g(g) {
        const unsigned team = THREAD / g.lanes, rows = imax(1, g.rows);
        lane = THREAD % g.lanes;
        row = team % rows;
        split = team / rows;
        base = row / g.inner * g.size * g.inner + row % g.inner;
        begin = end = 0;
        if (is_there()) {
            begin = split * g.chunk;
            end = imin(begin + g.chunk, g.size);
        }
    }
    __device__ __forceinline__ bool is_there() const { return g.rows && split < g.splits; }
    __device__ __forceinline__ unsigned element(int e) const {
        return base + (g.reverse ? g.size - 1 - e : e) * g.inner;
    }
};

// The sum of the values of the lanes before this one, and that of all.
__device__ __forceinline__ REAL before(REAL value, int lanes, REAL& all) {
    const int group = imin(lanes, 32), lane = threadIdx.x % group;
    REAL sum = value;
    for (int step = 1; step < group; step *= 2) {
        const REAL other = __shfl_sync(~0u, sum, (threadIdx.x - step) % 32);
        if (lane >= step) sum += other;
    }
    const REAL previous = __shfl_sync(~0u, sum, (threadIdx.x - 1) % 32);
    REAL first = lane ? previous : (REAL)0;
    all = __shfl_sync(~0u, sum, (threadIdx.x | (group - 1)) % 32);
    if (lanes <= 32) return first;
    __shared__ REAL warps[32];
    __syncthreads();  // whoever reads the values of an earlier call is done
    if (lane == 0) warps[threadIdx.x / 32] = all;
    __syncthreads();
    REAL behind = 0;
    all = 0;
    for (int i = 0; i < lanes / 32; i++) {
        if (i == threadIdx.x / 32) behind = all;
        all += warps[i];
    }
    return behind + first;
}

extern "C" __global__ void running_parts(const VALUE* __restrict__ x, REAL* __restrict__ parts, Running g) {
    Run run(g);
    REAL sum = 0;
    for (int e = run.begin + run.lane; e < run.end; e += g.lanes) sum += x[run.element(e)];
    sum = reduce(sum, g.lanes, false);
    if (run.is_there() && run.lane == 0) parts[run.split * g.rows + run.row] = sum;
}

extern "C" __global__ void running_sums(const VALUE* __restrict__ x, const REAL* __restrict__ parts,
                                        VALUE* __restrict__ y, Running g) {
    Run run(g);
    REAL sum = 0;
    if (parts) {
        for (int s = run.lane; s < (run.is_there() ? run.split : 0); s += g.lanes) sum += parts[s * g.rows + run.row];
        sum = reduce(sum, g.lanes, false);
    }
    const int tile = g.lanes * ITEMS;
    for (int first = 0; first < g.chunk; first += tile) {  // alike for all threads, which exchange values
        const int at = run.begin + first + run.lane * ITEMS;
        REAL values[ITEMS], all;
#pragma unroll
        for (int j = 0; j < ITEMS; j++) values[j] = at + j < run.end ? (REAL)x[run.element(at + j)] : (REAL)0;
#pragma unroll
        for (int j = 1; j < ITEMS; j++) values[j] += values[j - 1];
        const REAL start = sum + before(values[ITEMS - 1], g.lanes, all);
#pragma unroll
        for (int j = 0; j < ITEMS; j++)
            if (at + j < run.end) y[run.element(at + j)] = start + values[j];
        sum += all;
    }
}
