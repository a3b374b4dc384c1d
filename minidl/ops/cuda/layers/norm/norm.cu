// Normalisation: a set of values less its mean, over its deviation, times weight plus bias; and the gradients.
//
// One form for three: the array is (outer, sets, inner), and set s is its elements (o, s, i) of all o and i. For batch
// normalisation these are the images, the channels and the pixels; for layers and groups `outer` is 1 and `inner` a
// row.
// Element e has channel e / spread % channels, and there is one weight per channel; if channels are the sets (`own`), a
// set has one weight.
// A team of `lanes` threads owns a run of `chunk` of a set's outer * inner elements. If inner is 1, neighbouring
// elements belong to different sets. Then the teams of `near` neighbouring sets share `near * lanes` threads, in turns,
// so that neighbours read neighbours. If a set has several teams, one launch leaves moments or sums in parts of
// (splits, sets), and each team of the next launch adds up those of its set again, in an order that sizes alone decide:
// two launches each way, and one if a team owns a whole set.
// Sums are of differences: from the first of the values for the mean, from the mean for the variance. So float32 keeps
// the variance of values that differ by little. A team's elements are read again for each sum: they are in a cache
// then.
// -DWIDE: a thread takes WIDE neighbours at once: `own`, inner and chunk multiples of WIDE, arrays at multiples of 16
// bytes.
// -DFUSED: `normalize` adds `other`, if it is given, and applies the activation -DACT.
// Requires: blockDim.x 256; lanes and near powers of two, near up to 32; near * lanes up to 32, or 256; chunk at least
// 1.
#include "include/common.cuh"
#include "include/meet.cuh"
#include "include/act.cuh"

#ifndef WIDE
#define WIDE 1
#endif
#define FOR_WIDE(j) _Pragma("unroll") for (int j = 0; j < WIDE; ++j)
using Run = Pack<WIDE>;

struct Norm {
    int outer, sets, inner, channels, spread, own, splits, chunk, lanes, near;
};

// The sum of a team's values: the same bits in each of its threads. Every thread of the block calls this.
__device__ __forceinline__ REAL summed(REAL value, const Norm& g) { return met(Sum<REAL>{value}, g.lanes, g.near).sum; }

// Two of them at once.
struct Sums {
    REAL sum, product;

    __device__ __forceinline__ void merge(Sums other) { sum += other.sum, product += other.product; }
    __device__ __forceinline__ Sums away(int step) const {
        return {__shfl_xor_sync(~0u, sum, step), __shfl_xor_sync(~0u, product, step)};
    }
};
__device__ __forceinline__ void summed(REAL& sum, REAL& product, const Norm& g) {
    const Sums both = met(Sums{sum, product}, g.lanes, g.near);
    sum = both.sum;
    product = both.product;
}

// This thread's team, and its walk over the team's elements, WIDE at a time, dividing once at the start. How many steps
// there are is known then, so that the compiler can read for several steps at once.
#define WALK(t) _Pragma("unroll 4") for (t.start(); t.left > 0; t.next())
struct Team {
    const Norm& g;
    unsigned set, split, lane, size, begin, end, o, i, step_o, step_i, base;
    int left, steps;

    __device__ __forceinline__ Team(const Norm& g) : g(g) {
        const unsigned threads = g.near * g.lanes, team = THREAD >> bits(threads);
        const unsigned tiles = imax(1, (g.sets + g.near - 1) >> bits(g.near)), whole = team / tiles;
        lane = (THREAD & (threads - 1)) >> bits(g.near);
        set = (team - whole * tiles) * g.near + (THREAD & (g.near - 1));
        split = set < g.sets ? whole : g.splits;
        size = g.outer * g.inner;
        begin = end = 0;
        if (split < g.splits) {
            begin = split * g.chunk;
            end = begin + g.chunk < size ? begin + g.chunk : size;
        }
        const int step = bits(g.lanes * WIDE);
        steps = begin + lane * WIDE < end ? (end - begin - lane * WIDE + (1 << step) - 1) >> step : 0;
        step_o = g.lanes * WIDE / g.inner;
        step_i = g.lanes * WIDE - step_o * g.inner;
        base = g.own ? 0 : set * g.inner % imax(1, g.channels * g.spread);
    }

    __device__ __forceinline__ bool is_first() const { return split == 0 && lane == 0; }
    __device__ __forceinline__ int splits() const { return split < g.splits ? g.splits : 0; }
    __device__ __forceinline__ int count_of(int split) const { return imin(g.chunk, size - split * g.chunk); }
    __device__ __forceinline__ unsigned element() const { return (o * g.sets + set) * g.inner + i; }  // the first one
    __device__ __forceinline__ unsigned channel() const {  // outer is 1, and a set is of one image: no division by channels
        return g.own ? set : g.spread == 1 ? base + i : (base + i) / g.spread;
    }
    __device__ __forceinline__ Run in(const REAL* __restrict__ x) const { return *(const Run*)(x + element()); }
    __device__ __forceinline__ void put(REAL* __restrict__ y, const Run& run) const { *(Run*)(y + element()) = run; }

    __device__ __forceinline__ void leave(REAL* sums, REAL sum, REAL product) const {
        if (!splits() || lane) return;
        sums[2 * split * g.sets + set] = product;  // as the gradients of weight and bias are stored
        sums[(2 * split + 1) * g.sets + set] = sum;
    }

    __device__ __forceinline__ void start() {
        const unsigned at = begin + lane * WIDE;
        left = steps;
        o = at / g.inner;
        i = at - o * g.inner;
    }
    __device__ __forceinline__ void next() {
        --left;
        o += step_o;
        i += step_i;
        if (i >= g.inner) {
            i -= g.inner;
            ++o;
        }
    }
};

// The mean of a team's elements, and the sum of squared differences from it.
__device__ __forceinline__ void moments(Team& t, const REAL* __restrict__ x, REAL& mean, REAL& squares) {
    const unsigned o = t.begin / t.g.inner;
    const REAL first = t.begin < t.end ? x[(o * t.g.sets + t.set) * t.g.inner + t.begin - o * t.g.inner] : (REAL)0;
    REAL sum = 0;
    WALK(t) {
        const Run xs = t.in(x);
        FOR_WIDE(j) sum += xs.v[j] - first;
    }
    mean = first + summed(sum, t.g) / imax(1, t.end - t.begin);
    squares = 0;
    WALK(t) {
        const Run xs = t.in(x);
        FOR_WIDE(j) {
            const REAL d = xs.v[j] - mean;
            squares += d * d;
        }
    }
    squares = summed(squares, t.g);
}

// The same of a whole set, from its parts: means (splits, sets) and squares (splits, sets).
__device__ __forceinline__ void whole_moments(const Team& t, const REAL* __restrict__ parts, REAL& mean,
                                              REAL& squares) {
    const int sets = t.g.sets, splits = t.splits();
    const REAL first = splits ? parts[t.set] : (REAL)0;
    REAL sum = 0;
    for (int s = t.lane; s < splits; s += t.g.lanes) sum += (parts[s * sets + t.set] - first) * t.count_of(s);
    mean = first + summed(sum, t.g) / t.size;
    squares = 0;
    for (int s = t.lane; s < splits; s += t.g.lanes) {
        const REAL d = parts[s * sets + t.set] - mean;
        squares += parts[(splits + s) * sets + t.set] + d * d * t.count_of(s);
    }
    squares = summed(squares, t.g);
}

extern "C" __global__ void norm_moments(const REAL* __restrict__ x, REAL* __restrict__ parts, Norm g) {
    Team t(g);
    REAL mean, squares;
    moments(t, x, mean, squares);
    if (t.splits() && t.lane == 0) {
        parts[t.split * g.sets + t.set] = mean;
        parts[(g.splits + t.split) * g.sets + t.set] = squares;
    }
}

// y, and each set's mean and rstd = 1 / sqrt(variance + eps). parts: as norm_moments leaves them, or none if a team
// owns a set. The running values, if they are given, move by `momentum` of their way.
extern "C" __global__ void normalize(const REAL* __restrict__ x, const REAL* __restrict__ other, const REAL* w,
                                     const REAL* b, const REAL* parts, REAL* __restrict__ y, REAL* means, REAL* rstds,
                                     REAL* running_mean, REAL* running_var, REAL momentum, REAL eps, Norm g) {
    Team t(g);
    REAL mean, squares;
    if (parts) {
        whole_moments(t, parts, mean, squares);
    } else {
        moments(t, x, mean, squares);
    }
    const REAL rstd = (REAL)1 / sqrt(squares / imax(1, t.size) + eps);
    if (t.splits() && t.is_first()) {
        means[t.set] = mean;
        rstds[t.set] = rstd;
        if (running_mean) {
            running_mean[t.set] += momentum * (mean - running_mean[t.set]);
            running_var[t.set] += momentum * (squares / (t.size - 1) - running_var[t.set]);
        }
    }
    const REAL scale = g.own && w && t.splits() ? rstd * w[t.set] : rstd;
    WALK(t) {
        const unsigned channel = t.channel();
        const Run xs = t.in(x), others = other ? t.in(other) : Run{};
        Run ys;
        FOR_WIDE(j) {
            REAL value = (xs.v[j] - mean) * scale;
            if (w && !g.own) value *= w[channel];
            if (b) value += b[channel];
#ifdef FUSED
            value = ACT_VALUE(other ? value + others.v[j] : value);
#endif
            ys.v[j] = value;
        }
        t.put(y, ys);
    }
}

// y by moments that are known: those that run along in training, in evaluation.
extern "C" __global__ void normalize_by(const REAL* __restrict__ x, const REAL* mean, const REAL* var, const REAL* w,
                                        const REAL* b, REAL* __restrict__ y, REAL eps, Norm g) {
    Team t(g);
    if (!t.splits()) return;
    const REAL rstd = (REAL)1 / sqrt(var[t.set] + eps), center = mean[t.set];
    const REAL scale = g.own && w ? rstd * w[t.set] : rstd;
    WALK(t) {
        const unsigned channel = t.channel();
        const Run xs = t.in(x);
        Run ys;
        FOR_WIDE(j) {
            REAL value = (xs.v[j] - center) * scale;
            if (w && !g.own) value *= w[channel];
            ys.v[j] = b ? value + b[channel] : value;
        }
        t.put(y, ys);
    }
}

// gx = gy * rstd * w by moments that are known; and, if sums (splits, 2, sets) is given, the sums of gy * z and of gy
// over each team's elements, with z = (x - mean) * rstd.
extern "C" __global__ void normalize_by_grad(const REAL* __restrict__ gy, const REAL* __restrict__ x, const REAL* mean,
                                             const REAL* var, const REAL* w, REAL* __restrict__ gx, REAL* sums,
                                             REAL eps, Norm g) {
    Team t(g);
    const bool live = t.splits();
    const REAL rstd = live ? (REAL)1 / sqrt(var[t.set] + eps) : (REAL)0, center = live && sums ? mean[t.set] : (REAL)0;
    const REAL scale = live && w ? rstd * w[t.set] : rstd;
    REAL sum = 0, product = 0;
    WALK(t) {
        const Run gys = t.in(gy), xs = sums ? t.in(x) : Run{};
        Run gxs;
        FOR_WIDE(j) {
            sum += gys.v[j];
            product += gys.v[j] * ((xs.v[j] - center) * rstd);
            gxs.v[j] = gys.v[j] * scale;
        }
        t.put(gx, gxs);
    }
    if (!sums) return;
    summed(sum, product, t.g);
    t.leave(sums, sum, product);
}

// Of a team's elements: gz = gy * w, if w is given, and z = (x - mean) * rstd by set number `set`.
__device__ __forceinline__ void at_element(const Team& t, const REAL* __restrict__ gy, const REAL* __restrict__ x,
                                           const REAL* w, const REAL* mean, const REAL* rstd, unsigned set, Run& gz,
                                           Run& z) {
    const REAL factor = w ? w[t.channel()] : (REAL)1, center = mean[set], scale = rstd[set];
    gz = t.in(gy);
    z = t.in(x);
    FOR_WIDE(j) {
        if (w) gz.v[j] *= factor;
        z.v[j] = (z.v[j] - center) * scale;
    }
}

// The sums of gz and of gz * z over a team's elements. Their means are those of sets of `row` elements, or with row 0
// of t's own set.
__device__ __forceinline__ void products(Team& t, const REAL* __restrict__ gy, const REAL* __restrict__ x,
                                         const REAL* w, const REAL* mean, const REAL* rstd, int row, REAL& sum,
                                         REAL& product) {
    const unsigned rows = row ? t.g.sets * t.g.inner / row : 0;  // per o
    const unsigned first = row ? t.set * t.g.inner / row : t.set;
    sum = product = 0;
    WALK(t) {
        Run gz, z;
        at_element(t, gy, x, w, mean, rstd, t.o * rows + first, gz, z);
        FOR_WIDE(j) {
            sum += gz.v[j];
            product += gz.v[j] * z.v[j];
        }
    }
    summed(sum, product, t.g);
}

// Both for each team, gz * z first: sums (splits, 2, sets). row: 0, or the elements of a set with a mean, if the sets
// that are summed are channels, and those with a mean are rows.
extern "C" __global__ void norm_products(const REAL* __restrict__ gy, const REAL* __restrict__ x, const REAL* w,
                                         const REAL* mean, const REAL* rstd, REAL* sums, int row, Norm g) {
    Team t(g);
    REAL sum, product;
    products(t, gy, x, w, mean, rstd, row, sum, product);
    t.leave(sums, sum, product);
}

// The same of a set's gz = act's gradient of gy, plus `other` if it is given, by y = act(z), or z (act.cuh); and gz.
extern "C" __global__ void norm_act_products(const REAL* __restrict__ gy, const REAL* __restrict__ other,
                                             const REAL* __restrict__ y, const REAL* __restrict__ x, const REAL* mean,
                                             const REAL* rstd, REAL* __restrict__ gz, REAL* sums, Norm g) {
    Team t(g);
    const REAL center = t.splits() ? mean[t.set] : (REAL)0, scale = t.splits() ? rstd[t.set] : (REAL)0;
    REAL sum = 0, product = 0;
    WALK(t) {
        const Run others = other ? t.in(other) : Run{}, ys = t.in(y), xs = t.in(x);
        Run run = t.in(gy);
        FOR_WIDE(j) {
            run.v[j] = ACT_GRAD(other ? run.v[j] + others.v[j] : run.v[j], ys.v[j]);
            sum += run.v[j];
            product += run.v[j] * ((xs.v[j] - center) * scale);
        }
        t.put(gz, run);
    }
    summed(sum, product, t.g);
    t.leave(sums, sum, product);
}

// gx = rstd * (gz - mean of gz - z * mean of gz * z). sums: as norm_products leaves them, or none if a team owns a set.
// gw and gb, if they are given: those of a channel that is the set.
extern "C" __global__ void normalize_grad(const REAL* __restrict__ gy, const REAL* __restrict__ x, const REAL* w,
                                          const REAL* mean, const REAL* rstd, const REAL* sums, REAL* __restrict__ gx,
                                          REAL* gw, REAL* gb, Norm g) {
    Team t(g);
    const REAL* each = g.own ? nullptr : w;  // a set's own weight is a factor of both sums
    REAL sum = 0, product = 0;
    if (sums) {
        for (int s = t.lane; s < t.splits(); s += g.lanes) {
            product += sums[2 * s * g.sets + t.set];
            sum += sums[(2 * s + 1) * g.sets + t.set];
        }
        summed(sum, product, t.g);
    } else {
        products(t, gy, x, each, mean, rstd, 0, sum, product);
    }
    if (!t.splits()) return;
    if (gw && t.is_first()) {
        gw[t.set] = product;
        gb[t.set] = sum;
    }
    const REAL scale = g.own && w ? rstd[t.set] * w[t.set] : rstd[t.set];
    sum /= imax(1, t.size);
    product /= imax(1, t.size);
    WALK(t) {
        Run gz, z;
        at_element(t, gy, x, each, mean, rstd, t.set, gz, z);
        FOR_WIDE(j) gz.v[j] = (gz.v[j] - sum - z.v[j] * product) * scale;
        t.put(gx, gz);
    }
}
