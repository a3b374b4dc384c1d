// Sets of values over any axes, and the teams of threads that walk over them: for every kernel that reduces.
//
// Neighbouring axes are joined, so that an array has at most two axes of sets and two of elements, in any order of
// memory. Set s starts at s / near * far_step + s % near * near_step, and its element e is
// e / low * high_step + e % low * low_step further on.
// Threads are in groups of lanes * across: a power of two up to 32, or the block. A group has `across` neighbouring
// sets (a tile: near_tiles for each `near` sets, `tiles` in all). Of each set it has a run of `chunk` elements, which
// `lanes` of its threads, a team, share. So neighbouring threads read neighbouring sets if these are next to each other
// in memory, else neighbouring elements. If a set has several teams, they leave parts, which a second launch merges.
// Sizes alone decide all this, so sums are in one order.
#include "include/meet.cuh"

struct Sets {
    int sets, near, far_step, near_step, size, low, high_step, low_step, splits, chunk;
    int lanes, across, tiles, near_tiles;
};

// This thread's team. Requires: blockDim.x 256.
struct Team {
    const Sets& g;
    unsigned lane, set, split, begin, end, first;
    bool is_there;

    __device__ __forceinline__ Team(const Sets& g) : g(g) {
        const unsigned group = g.lanes * g.across, number = THREAD >> bits(group), within = THREAD & (group - 1);
        const unsigned column = within & (g.across - 1);
        lane = within >> bits(g.across);
        split = g.splits == 1 ? 0 : number / imax(1, g.tiles);
        const unsigned tile = number - split * g.tiles, far = g.tiles == g.near_tiles ? 0 : tile / g.near_tiles;
        const unsigned near = (tile - far * g.near_tiles) * g.across + column;
        is_there = tile < g.tiles && split < g.splits && near < g.near;
        set = far * g.near + near;
        first = far * g.far_step + near * g.near_step;
        begin = is_there ? split * g.chunk : 0;
        const unsigned behind = begin + g.chunk, size = g.size;  // may be beyond what an int holds
        end = !is_there ? 0 : behind < size ? behind : size;
    }
};

#ifndef AT_ONCE
#define AT_ONCE 8  // elements of a thread that are read at once
#endif

// Where a team's elements are, one after the other: a step apart, or in two digits, with one division at the start.
struct Straight {
    unsigned element, step;

    __device__ __forceinline__ Straight(const Team& t)
        : element(t.first + (t.begin + t.lane) * t.g.low_step), step(t.g.lanes * t.g.low_step) {}
    __device__ __forceinline__ unsigned next() {
        const unsigned now = element;
        element += step;
        return now;
    }
};
struct Digits {
    const Team& t;
    unsigned high, low, step_high, step_low;

    __device__ __forceinline__ Digits(const Team& t) : t(t) {
        step_high = t.g.lanes / t.g.low;
        step_low = t.g.lanes - step_high * t.g.low;
        high = (t.begin + t.lane) / t.g.low;
        low = t.begin + t.lane - high * t.g.low;
    }
    __device__ __forceinline__ unsigned next() {
        const unsigned now = t.first + high * t.g.high_step + low * t.g.low_step;
        high += step_high;
        low += step_low;
        if (low >= t.g.low) {
            low -= t.g.low;
            ++high;
        }
        return now;
    }
};

// COUNT elements at once while there are COUNT left, then half as many, down to one: their loads are under way
// together.
template <int COUNT, class Walk, class Use>
__device__ __forceinline__ void walk(const Team& t, const VALUE* __restrict__ x, unsigned at, Walk& along, Use use) {
    const unsigned lanes = t.g.lanes;
    for (; at + (COUNT - 1) * lanes < t.end; at += COUNT * lanes) {
        unsigned elements[COUNT];
        VALUE values[COUNT];
#pragma unroll
        for (int j = 0; j < COUNT; j++) values[j] = x[elements[j] = along.next()];
        use(values, elements, at);
    }
    if constexpr (COUNT > 1) walk<COUNT / 2>(t, x, at, along, use);
}

// Calls use(values, elements, at) for runs of the team's elements, of AT_ONCE or fewer: their values in x, their places
// in x, and the first one's number in the set; the next is `lanes` further.
template <class Use> __device__ __forceinline__ void runs_of(const Team& t, const VALUE* __restrict__ x, Use use) {
    if (t.g.low == t.g.size) {
        Straight along(t);
        walk<AT_ONCE>(t, x, t.begin + t.lane, along, use);
    } else {
        Digits along(t);
        walk<AT_ONCE>(t, x, t.begin + t.lane, along, use);
    }
}

// use(value, element) for each of them.
template <class Use> __device__ __forceinline__ void each(const Team& t, const VALUE* __restrict__ x, Use use) {
    runs_of(t, x, [&](const auto& values, const auto& elements, unsigned) {
#pragma unroll
        for (int j = 0; j < sizeof(elements) / sizeof(unsigned); j++) use(values[j], elements[j]);
    });
}
