// Reductions of sets of values to one value each; and values computed from a set's, as in softmax and gradients of
// reductions.
//
// FOLD says which: a struct below. It has the State that a set's elements are folded into, `take`, which folds some of
// them, and `result`, that of a set, or `value`, that of an element once the set's state is `ready`. Sets, and the
// teams of threads that share them, are those of teams.cuh. fold_sets: a set has one team, which writes its result to y
// (sets). If it has several, fold_in_parts writes their states to parts, each member of a state a row (splits, sets) of
// double, which holds every member exactly; fold_parts makes results of them. map_sets: each team writes the values of
// its elements. If parts are given it merges all parts of its set, as the other teams do, else it walks over its
// elements first.
// x is what is walked over; `other` has the layout of x; gy and y have a value for each set.
// Elements are VALUE, results OUT, and sums REAL.
// Requires: blockDim.x 256.
#include "include/common.cuh"

#ifndef VALUE
#define VALUE REAL
#endif
#ifndef OUT
#define OUT VALUE
#endif
#include "reduce/teams.cuh"

#define INFINITE __int_as_float(0x7f800000)

// What is given in addition to x: an array, and two values of the set.
struct Given {
    const VALUE* other;
    VALUE gy, y;
};

template <class T> __device__ __forceinline__ void put(const Sum<T>& state, double* at, int) { *at = state.sum; }
template <class T> __device__ __forceinline__ void get(Sum<T>& state, const double* at, int) { state.sum = (T)*at; }

// ---------------------------------------------------------------- sums and products
struct Total {
    using State = Sum<REAL>;
    template <int N>
    __device__ static void take(State& state, const VALUE (&x)[N], const unsigned (&)[N], unsigned, const Given&, int) {
        REAL sum = 0;
#pragma unroll
        for (int j = 0; j < N; j++) sum += (REAL)x[j];
        state.sum += sum;
    }
    __device__ static REAL result(const State& state, REAL divisor) { return state.sum / divisor; }
};

struct Factors {
    double product;

    __device__ __forceinline__ static Factors none() { return {1}; }
    __device__ __forceinline__ void merge(const Factors& other) { product *= other.product; }
    __device__ __forceinline__ Factors away(int step) const { return {__shfl_xor_sync(~0u, product, step)}; }
};
__device__ __forceinline__ void put(const Factors& state, double* at, int) { *at = state.product; }
__device__ __forceinline__ void get(Factors& state, const double* at, int) { state.product = *at; }

struct Product {
    using State = Factors;
    template <int N>
    __device__ static void take(State& state, const VALUE (&x)[N], const unsigned (&)[N], unsigned, const Given&, int) {
#pragma unroll
        for (int j = 0; j < N; j++) state.product *= (double)x[j];
    }
    __device__ static REAL result(const State& state, REAL) { return (REAL)state.product; }
};

// The product of the others, by division: the product of all that are not 0, and how many are 0.
struct Others {
    double product;
    int zeros;

    __device__ __forceinline__ static Others none() { return {1, 0}; }
    __device__ __forceinline__ void merge(const Others& other) {
        product *= other.product;
        zeros += other.zeros;
    }
    __device__ __forceinline__ Others away(int step) const {
        return {__shfl_xor_sync(~0u, product, step), __shfl_xor_sync(~0u, zeros, step)};
    }
};
__device__ __forceinline__ void put(const Others& state, double* at, int step) {
    at[0] = state.product;
    at[step] = state.zeros;
}
__device__ __forceinline__ void get(Others& state, const double* at, int step) {
    state = {at[0], (int)at[step]};
}

struct ProductGrad {
    using State = Others;
    template <int N>
    __device__ static void take(State& state, const VALUE (&x)[N], const unsigned (&)[N], unsigned, const Given&, int) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            state.zeros += x[j] == 0;
            state.product *= x[j] == 0 ? 1.0 : (double)x[j];
        }
    }
    __device__ static void ready(State&) {}
    __device__ static VALUE value(const State& state, VALUE x, unsigned, const Given& given) {
        const bool only = state.zeros == 1 && x == 0;  // where another is 0, so is the product of the others
        const double others = state.zeros == 0 ? state.product / (double)x : only ? state.product : 0.0;
        return given.gy * (VALUE)others;
    }
};

// ---------------------------------------------------------------- largest and smallest values: NaN is either
template <int SIGN> struct Best {
    REAL best;  // SIGN * the value

    __device__ __forceinline__ static Best none() { return {-(REAL)INFINITE}; }
    __device__ __forceinline__ void merge(const Best& other) {
        if (!(best >= other.best) && best == best) best = other.best;
    }
    __device__ __forceinline__ Best away(int step) const { return {__shfl_xor_sync(~0u, best, step)}; }
};
template <int SIGN> __device__ __forceinline__ void put(const Best<SIGN>& state, double* at, int) { *at = state.best; }
template <int SIGN> __device__ __forceinline__ void get(Best<SIGN>& state, const double* at, int) {
    state.best = (REAL)*at;
}

template <int SIGN> struct Extreme {
    using State = Best<SIGN>;
    template <int N>
    __device__ static void take(State& state, const VALUE (&x)[N], const unsigned (&)[N], unsigned, const Given&, int) {
#pragma unroll
        for (int j = 0; j < N; j++) state.merge({SIGN * (REAL)x[j]});
    }
    __device__ static REAL result(const State& state, REAL) { return SIGN * state.best; }
};
using Largest = Extreme<1>;
using Smallest = Extreme<-1>;

// Of equal values the first.
template <int SIGN> struct Place {
    REAL best;
    int at;

    __device__ __forceinline__ static Place none() { return {-(REAL)INFINITE, 0x7fffffff}; }
    __device__ __forceinline__ void merge(const Place& other) {
        const bool nan = best != best, equal = other.best == best || (nan && other.best != other.best);
        if (equal ? other.at < at : !nan && !(other.best < best)) *this = other;
    }
    __device__ __forceinline__ Place away(int step) const {
        return {__shfl_xor_sync(~0u, best, step), __shfl_xor_sync(~0u, at, step)};
    }
};
template <int SIGN> __device__ __forceinline__ void put(const Place<SIGN>& state, double* at, int step) {
    at[0] = state.best;
    at[step] = state.at;
}
template <int SIGN> __device__ __forceinline__ void get(Place<SIGN>& state, const double* at, int step) {
    state = {(REAL)at[0], (int)at[step]};
}

template <int SIGN> struct PlaceOf {
    using State = Place<SIGN>;
    template <int N>
    __device__ static void take(State& state, const VALUE (&x)[N], const unsigned (&)[N], unsigned at, const Given&,
                                int lanes) {
#pragma unroll
        for (int j = 0; j < N; j++) state.merge({SIGN * (REAL)x[j], (int)at + j * lanes});
    }
    __device__ static int result(const State& state, REAL) { return state.at; }
};
using PlaceOfLargest = PlaceOf<1>;
using PlaceOfSmallest = PlaceOf<-1>;

// The gradient of a largest or smallest value, y: equal values have equal shares of it.
struct ExtremeGrad {
    using State = Sum<int>;
    __device__ static bool wins(VALUE x, const Given& given) { return x == given.y || (x != x && given.y != given.y); }
    template <int N>
    __device__ static void take(State& state, const VALUE (&x)[N], const unsigned (&)[N], unsigned, const Given& given,
                                int) {
#pragma unroll
        for (int j = 0; j < N; j++) state.sum += wins(x[j], given);
    }
    __device__ static void ready(State&) {}
    __device__ static VALUE value(const State& state, VALUE x, unsigned, const Given& given) {
        return wins(x, given) ? given.gy / (VALUE)state.sum : (VALUE)0;
    }
};

// ---------------------------------------------------------------- softmax (Krizhevsky 2009, section 5)
// The largest element, which is -inf if there is none, and the sum of e^(x - largest). fmax passes over NaN, but a
// NaN still makes the sum NaN.
struct Exponents {
    REAL top, sum;

    __device__ __forceinline__ static Exponents none() { return {-(REAL)INFINITE, 0}; }
    __device__ __forceinline__ void merge(const Exponents& other) {
        const bool less = top < other.top;  // the smaller sum is scaled, whoever has it: both lanes get the same bits
        const REAL gap = top == other.top ? (REAL)0 : less ? top - other.top : other.top - top;
        const REAL small = less ? sum : other.sum, large = less ? other.sum : sum;
        sum = large + small * exp(gap);
        top = less ? other.top : top;
    }
    __device__ __forceinline__ Exponents away(int step) const {
        return {__shfl_xor_sync(~0u, top, step), __shfl_xor_sync(~0u, sum, step)};
    }
};
__device__ __forceinline__ void put(const Exponents& state, double* at, int step) {
    at[0] = state.top;
    at[step] = state.sum;
}
__device__ __forceinline__ void get(Exponents& state, const double* at, int step) {
    state = {(REAL)at[0], (REAL)at[step]};
}

struct Softmax {
    using State = Exponents;
    template <int N>
    __device__ static void take(State& state, const VALUE (&x)[N], const unsigned (&)[N], unsigned, const Given&, int) {
        State some = {state.top, 0};
#pragma unroll
        for (int j = 0; j < N; j++) some.top = fmax(some.top, x[j]);
#pragma unroll
        for (int j = 0; j < N; j++) some.sum += exp(x[j] == some.top ? (REAL)0 : x[j] - some.top);
        state.merge(some);
    }
    // Infinite values have no softmax: all NaN
    __device__ static void ready(State& state) { state.sum += state.top - state.top; }
    __device__ static VALUE value(const State& state, VALUE x, unsigned, const Given&) {
        return exp(x - state.top) / state.sum;
    }
};

struct LogSoftmax : Softmax {
    __device__ static void ready(State& state) { state.sum = log(state.sum + (state.top - state.top)); }
    __device__ static VALUE value(const State& state, VALUE x, unsigned, const Given&) {
        return x - state.top - state.sum;
    }
};

// y (gy - sum of gy y); x is y, and `other` gy.
struct SoftmaxGrad {
    using State = Sum<REAL>;
    template <int N>
    __device__ static void take(State& state, const VALUE (&x)[N], const unsigned (&elements)[N], unsigned,
                                const Given& given, int) {
        REAL sum = 0;
#pragma unroll
        for (int j = 0; j < N; j++) sum += x[j] * given.other[elements[j]];
        state.sum += sum;
    }
    __device__ static void ready(State&) {}
    __device__ static VALUE value(const State& state, VALUE x, unsigned element, const Given& given) {
        return x * (given.other[element] - state.sum);
    }
};

// gy - e^y * sum of gy; x is gy, and `other` y.
struct LogSoftmaxGrad : Total {
    __device__ static void ready(State&) {}
    __device__ static VALUE value(const State& state, VALUE x, unsigned element, const Given& given) {
        return x - exp((REAL)given.other[element]) * state.sum;
    }
};

// ---------------------------------------------------------------- kernels
using State = FOLD::State;

__device__ __forceinline__ State folded(const Team& t, const VALUE* __restrict__ x, const Given& given) {
    State state = State::none();
    runs_of(t, x, [&](const auto& values, const auto& elements, unsigned at) {
        FOLD::take(state, values, elements, at, given, t.g.lanes);
    });
    return met(state, t.g.lanes, t.g.across);
}

__device__ __forceinline__ State of_parts(const Team& t, const double* __restrict__ parts, int count) {
    State state = State::none();
    for (int s = t.lane; s < (t.is_there ? count : 0); s += t.g.lanes) {
        State part;
        get(part, parts + s * t.g.sets + t.set, count * t.g.sets);
        state.merge(part);
    }
    return met(state, t.g.lanes, t.g.across);
}

__device__ __forceinline__ Given given_to(const Team& t, const VALUE* other, const VALUE* gy, const VALUE* y) {
    return {other, gy && t.is_there ? gy[t.set] : (VALUE)0, y && t.is_there ? y[t.set] : (VALUE)0};
}

extern "C" __global__ void fold_in_parts(const VALUE* __restrict__ x, const VALUE* __restrict__ other, const VALUE* gy,
                                         const VALUE* y, double* __restrict__ parts, Sets g) {
    Team t(g);
    const State state = folded(t, x, given_to(t, other, gy, y));
    if (t.is_there && t.lane == 0) put(state, parts + t.split * g.sets + t.set, g.splits * g.sets);
}

#ifndef MAP
extern "C" __global__ void fold_sets(const VALUE* __restrict__ x, OUT* __restrict__ y, REAL divisor, Sets g) {
    Team t(g);
    const State state = folded(t, x, {nullptr, 0, 0});
    if (t.is_there && t.lane == 0) y[t.set] = (OUT)FOLD::result(state, divisor);
}

extern "C" __global__ void fold_parts(const double* __restrict__ parts, OUT* __restrict__ y, REAL divisor, int count,
                                         Sets g) {
    Team t(g);
    const State state = of_parts(t, parts, count);
    if (t.is_there && t.lane == 0) y[t.set] = (OUT)FOLD::result(state, divisor);
}
#else
extern "C" __global__ void map_sets(const VALUE* __restrict__ x, const VALUE* __restrict__ other, const VALUE* gy,
                               const VALUE* y, const double* __restrict__ parts, VALUE* __restrict__ out, Sets g) {
    Team t(g);
    const Given given = given_to(t, other, gy, y);
    State state;
    if (parts) {
        state = of_parts(t, parts, g.splits);
    } else {
        state = folded(t, x, given);
    }
    FOLD::ready(state);
    each(t, x, [&](VALUE value, unsigned element) { out[element] = FOLD::value(state, value, element, given); });
}
#endif
