// Sets of values over any axes, and the teams of threads that walk over them: for every kernel that reduces.
//
// Axes beside each other are one, so that an array has at most two of sets and two of elements, in any order of
// memory: set s starts at s / near * far_step + s % near * near_step, and its element e lies
// e / low * high_step + e % low * low_step behind.
// Threads are in groups of lanes * across: a power of two up to 32, or the block. A group has `across` neighbouring sets
// (a tile, of which there are near_tiles to each `near` sets, and `tiles` in all), and of each a run of `chunk`
// elements, which `lanes` of its threads share, a team. So neighbouring threads read neighbouring sets where these lie
// beside each other, else neighbouring elements. Where a set has several teams, these leave parts, and a second launch
// adds them up. Sizes alone decide all this, so sums are in one order.
struct Sets {
    int sets, near, far_step, near_step, size, low, high_step, low_step, splits, chunk, lanes, across, tiles, near_tiles;
};

// This thread's team.
struct Team {
    const Sets& g;
    unsigned lane, set, split, begin, end, first;
    bool is_there;

    __device__ __forceinline__ Team(const Sets& g) : g(g) {
        const unsigned group = g.lanes * g.across, number = THREAD / group, within = THREAD % group;
        const unsigned column = within % g.across;
        lane = within / g.across;
        split = g.splits == 1 ? 0 : number / imax(1, g.tiles);
        const unsigned tile = number - split * g.tiles, far = g.tiles == g.near_tiles ? 0 : tile / g.near_tiles;
        const unsigned near = (tile - far * g.near_tiles) * g.across + column;
        is_there = tile < g.tiles && split < g.splits && near < g.near;
        set = far * g.near + near;
        first = far * g.far_step + near * g.near_step;
        begin = is_there ? split * g.chunk : 0;
        end = is_there ? imin(begin + g.chunk, g.size) : 0;
    }
};

#ifndef AT_ONCE
#define AT_ONCE (sizeof(VALUE) == 1 ? 8 : 4)  // elements of a thread that are read at once
#endif

// use(values, elements, at) for runs of the team's elements, of AT_ONCE or of one: what x has there, where that is, and
// which of the set the first is; lanes * across[j] lie between.
template <class Use> __device__ __forceinline__ void runs_of(const Team& t, const VALUE* __restrict__ x, Use use) {
    constexpr int COUNT = AT_ONCE;
    const unsigned lanes = t.g.lanes;
    unsigned at = t.begin + t.lane;
    if (t.g.low == t.g.size) {
        const unsigned step = lanes * t.g.low_step;
        unsigned element = t.first + at * t.g.low_step;
        for (; at + (COUNT - 1) * lanes < t.end; at += COUNT * lanes) {
            unsigned elements[COUNT];
            VALUE values[COUNT];
#pragma unroll
            for (int j = 0; j < COUNT; j++) {
                elements[j] = element;
                values[j] = x[element];
                element += step;
            }
            use(values, elements, at);
        }
        for (; at < t.end; at += lanes, element += step) {
            const VALUE values[1] = {x[element]};
            const unsigned elements[1] = {element};
            use(values, elements, at);
        }
        return;
    }
    // In two digits, dividing once at the start
    const unsigned step_high = lanes / t.g.low, step_low = lanes - step_high * t.g.low;
    unsigned high = at / t.g.low, low = at - high * t.g.low;
    const auto next = [&] {
        const unsigned element = t.first + high * t.g.high_step + low * t.g.low_step;
        high += step_high;
        low += step_low;
        if (low >= t.g.low) {
            low -= t.g.low;
            ++high;
        }
        return element;
    };
    for (; at + (COUNT - 1) * lanes < t.end; at += COUNT * lanes) {
        unsigned elements[COUNT];
        VALUE values[COUNT];
#pragma unroll
        for (int j = 0; j < COUNT; j++) values[j] = x[elements[j] = next()];
        use(values, elements, at);
    }
    for (; at < t.end; at += lanes) {
        const unsigned elements[1] = {next()};
        const VALUE values[1] = {x[elements[0]]};
        use(values, elements, at);
    }
}

// use(value, element) for each of them.
template <class Use> __device__ __forceinline__ void each(const Team& t, const VALUE* __restrict__ x, Use use) {
    runs_of(t, x, [&](const auto& values, const auto& elements, unsigned) {
#pragma unroll
        for (int j = 0; j < sizeof(elements) / sizeof(unsigned); j++) use(values[j], elements[j]);
    });
}

// The states of a team's lanes, merged: the same in each of them. All threads of a block call it, those without a team
// with an empty state. A state can merge(another), and give that of the lane which is a step of threads away.
template <class State> __device__ __forceinline__ State met(State mine, const Sets& g) {
    const int group = g.lanes * g.across;
    for (int step = imin(group, 32) / 2; step >= g.across; step /= 2) mine.merge(mine.away(step));
    if (group <= 32) return mine;
    __shared__ State warps[8][32];
    __syncthreads();  // whoever reads the states of an earlier call is done
    if (threadIdx.x % 32 < g.across) warps[threadIdx.x / 32][threadIdx.x % 32] = mine;
    __syncthreads();
    const int column = threadIdx.x % g.across;
    mine = warps[0][column];
    for (int i = 1; i < blockDim.x / 32; i++) mine.merge(warps[i][column]);
    return mine;
}

// A sum of T.
template <class T> struct Sum {
    static constexpr int MEMBERS = 1;
    T sum;

    __device__ __forceinline__ static Sum none() { return {0}; }
    __device__ __forceinline__ void merge(Sum other) { sum += other.sum; }
    __device__ __forceinline__ Sum away(int step) const { return {__shfl_xor_sync(~0u, sum, step)}; }
};
