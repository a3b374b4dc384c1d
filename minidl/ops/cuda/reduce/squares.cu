// Sums of squares over any axes: a variance, a deviation or a norm, and their gradients.
//
// Sets, and the teams of threads that share them, are those of teams.cuh. If a set has several teams, they write parts,
// each a row (splits, sets): the mean, and the sums of squares. squares_of_parts has a team for each set, which adds
// them up in an order that sizes alone decide.
// All is computed in double, REAL; elements are VALUE. Sums are of differences from the set's first element, so that
// equal values have a variance of 0 and a large mean costs no digits: `center` (2, sets) is that element and the mean
// minus it. A square of a double may overflow or underflow, so there are three sums: of the large, of the small and of
// the others. A team's elements are read again for the second sum; they are in a cache then.
// Requires: REAL double; blockDim.x 256.
#include "include/common.cuh"

#ifndef VALUE
#define VALUE float
#endif
#include "reduce/teams.cuh"

#define LARGE 0x1p480   // whose squares are summed in units of UP * UP,
#define SMALL 0x1p-480  // and whose in units of DOWN * DOWN
#define UP 0x1p600
#define DOWN 0x1p-600

struct Squares {
    static constexpr int RANGES = sizeof(VALUE) == 4 ? 1 : 3;  // no square of a float leaves the range of double
    REAL middle, large, small;

    __device__ __forceinline__ static Squares none() { return {0, 0, 0}; }
    __device__ __forceinline__ void add(REAL d, REAL times) {
        const REAL size = fabs(d);
        if (RANGES == 1 || !(size > LARGE || size < SMALL)) {
            middle += d * d * times;  // NaN too
        } else if (size > LARGE) {
            large += (d * DOWN) * (d * DOWN) * times;
        } else {
            small += (d * UP) * (d * UP) * times;
        }
    }
    __device__ __forceinline__ void merge(const Squares& other) {
        middle += other.middle;
        if (RANGES == 1) return;
        large += other.large;
        small += other.small;
    }
    __device__ __forceinline__ Squares away(int step) const {
        Squares other = none();
        other.middle = __shfl_xor_sync(~0u, middle, step);
        if (RANGES == 1) return other;
        other.large = __shfl_xor_sync(~0u, large, step);
        other.small = __shfl_xor_sync(~0u, small, step);
        return other;
    }
    __device__ __forceinline__ void put(REAL* parts, int step) const {
        parts[0] = middle;
        if (RANGES == 1) return;
        parts[step] = large;
        parts[2 * step] = small;
    }
    __device__ __forceinline__ void take(const REAL* parts, int step) {
        middle += parts[0];
        if (RANGES == 1) return;
        large += parts[step];
        small += parts[2 * step];
    }
    __device__ __forceinline__ REAL sum() const { return (small * DOWN * DOWN + middle) + large * UP * UP; }
    __device__ __forceinline__ REAL root() const {
        if (large > 0) return sqrt(large + middle * DOWN * DOWN) * UP;
        if (middle != 0) return sqrt(middle + small * DOWN * DOWN);
        return sqrt(small) * DOWN;
    }
};

// The mean of a team's elements minus `near` (0 if squares are not centered), and the squares of what is left.
__device__ __forceinline__ REAL off_and_squares(const Team& t, const VALUE* __restrict__ x, REAL near, int centered,
                                                Squares& squares) {
    REAL off = 0;
    if (centered) {
        each(t, x, [&](REAL value, unsigned) { off += value - near; });
        off = met(Sum<REAL>{off}, t.g.lanes, t.g.across).sum / imax(1, t.end - t.begin);
    }
    each(t, x, [&](REAL value, unsigned) { squares.add(value - near - off, 1); });
    squares = met(squares, t.g.lanes, t.g.across);
    return off;
}

__device__ __forceinline__ REAL near_of(const Team& t, const VALUE* __restrict__ x, int centered) {
    return centered && t.is_there && t.g.size ? (REAL)x[t.first] : (REAL)0;
}

// What the first lane of a team writes for a set.
__device__ __forceinline__ void finish(const Team& t, const Squares& squares, REAL near, REAL off, VALUE* y,
                                       VALUE* center, int root, REAL divisor) {
    if (!t.is_there || t.lane) return;
    y[t.set] = root ? squares.root() / sqrt(divisor) : squares.sum() / divisor;
    if (!center) return;
    center[t.set] = near;
    center[t.g.sets + t.set] = off;
}

// y (sets), the sum of squares over divisor, or the root of that. center: if it is given, squares are of differences
// from the mean.
extern "C" __global__ void squares(const VALUE* __restrict__ x, VALUE* __restrict__ y, VALUE* __restrict__ center,
                                   int root, REAL divisor, Sets g) {
    Team t(g);
    Squares squares = Squares::none();
    const REAL near = near_of(t, x, center != nullptr);
    const REAL off = off_and_squares(t, x, near, center != nullptr, squares);
    finish(t, squares, near, off, y, center, root, divisor);
}

extern "C" __global__ void squares_in_parts(const VALUE* __restrict__ x, REAL* __restrict__ parts, int centered,
                                            Sets g) {
    Team t(g);
    Squares squares = Squares::none();
    const REAL off = off_and_squares(t, x, near_of(t, x, centered), centered, squares);
    if (!t.is_there || t.lane) return;
    const int step = g.splits * g.sets;
    REAL* at = parts + t.split * g.sets + t.set;
    at[0] = off;
    squares.put(at + step, step);
}

// g: as above, except for lanes. There are `count` parts of a set, of `each` elements.
extern "C" __global__ void squares_of_parts(const VALUE* __restrict__ x, const REAL* __restrict__ parts,
                                            VALUE* __restrict__ y, VALUE* __restrict__ center, int root, REAL divisor,
                                            int count, int each, Sets g) {
    Team t(g);
    const int step = count * g.sets, some = t.is_there ? count : 0;
    const REAL* at = parts + t.set;
    REAL off = 0;
    if (center) {
        for (int s = t.lane; s < some; s += g.lanes) off += at[s * g.sets] * imin(each, g.size - s * each);
        off = met(Sum<REAL>{off}, g.lanes, g.across).sum / imax(1, g.size);
    }
    Squares squares = Squares::none();
    for (int s = t.lane; s < some; s += g.lanes) {
        squares.take(at + step + s * g.sets, step);
        if (center) squares.add(at[s * g.sets] - off, imin(each, g.size - s * each));
    }
    finish(t, met(squares, g.lanes, g.across), near_of(t, x, center != nullptr), off, y, center, root, divisor);
}

// gx = gy / divisor * 2 d, or if y is a root gy / divisor * d / y, and 0 where y is 0; d = x minus its mean.
extern "C" __global__ void squares_grad_x(const VALUE* __restrict__ gy, const VALUE* __restrict__ x,
                                          const VALUE* __restrict__ y, const VALUE* __restrict__ center,
                                          VALUE* __restrict__ gx, int root, REAL divisor, Sets g) {
    Team t(g);
    if (!t.is_there) return;
    const REAL near = center ? center[t.set] : 0, off = center ? center[g.sets + t.set] : 0, of_root = y[t.set];
    const REAL by = !root ? 0.5 : of_root == 0 ? 1 : of_root, inverse = 1 / by;
    const REAL share = root && of_root == 0 ? 0 : gy[t.set] / divisor;
    each(t, x, [&](REAL value, unsigned element) {
        const REAL d = value - near - off;
        // With doubles the inverse may overflow
        gx[element] = (sizeof(VALUE) == 4 ? d * inverse : d / by) * share;
    });
}
