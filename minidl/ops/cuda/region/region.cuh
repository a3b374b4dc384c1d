// What one block does to IMAGES images at once: the device functions that a generated kernel (region/emit.py) strings
// together. Every value of an image is in shared memory, the next image's IMAGE_STRIDE numbers behind it; all sizes are
// known when the kernel is compiled. At the end a block may have fewer images, `count`: the others are zeros, and what is
// computed of them is written nowhere but in shared memory. Each function is called by the whole block, reads what was
// written before the last barrier, and leaves it to the kernel to place the next one. Each writes all values of its
// result, or its comment says which it does not write. Sums run in a fixed order, an image's by itself. If a function
// has fewer outputs than the block has threads, TEAMS of threads share out each sum, and meet in `scratch`. Functions
// between two barriers may run at the same time: those with FIRST begin with that thread.
//
// -DTHREADS_PER_BLOCK: a multiple of 32.
#include "include/common.cuh"
#include "include/act.cuh"

constexpr int T = THREADS_PER_BLOCK, WARPS = T / 32;
static_assert(T % 32 == 0, "THREADS_PER_BLOCK must be a multiple of a warp's 32 threads");

// C planes of H x W, each PLANE numbers, in rows of PW with LEFT columns before it, and SKEW more numbers behind every
// second row. Columns that are read but have no value hold zeros, or are not used.
template <int C_, int H_, int W_, int LEFT_, int PW_, int SKEW_, int PLANE_> struct Planes {
    static constexpr int C = C_, H = H_, W = W_, LEFT = LEFT_, PW = PW_, SKEW = SKEW_, PLANE = PLANE_, SIZE = C * H * W;
    static constexpr bool DENSE = PLANE == H * W;
    REAL* start;                               // of the block's first image

    __device__ __forceinline__ Planes of(int image) const { return {start + image * IMAGE_STRIDE}; }
    // How much further row k is than row 0, and row i + k than an even row i.
    static __host__ __device__ constexpr int row(int k) { return k * PW + (k - (k & 1)) / 2 * SKEW; }
    __device__ __forceinline__ REAL* at(int c, int i, int j) const { return start + c * PLANE + row(i) + j + LEFT; }
    __device__ __forceinline__ REAL& operator[](int k) const {  // by its place among the values alone
        return DENSE ? start[k] : *at(k / (H * W), k / W % H, k % W);
    }
};

// The thread's number, asked for anew: what one function computes of it is not kept in registers for the next image.
__device__ __forceinline__ int thread() {
#if __CUDA_ARCH__
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    __builtin_assume(x >= 0 && x < T);     // so that divisions need no case of negative numbers
    return x;
#else
    return threadIdx.x;
#endif
}

// Counted from thread FIRST on, round and round, so that other threads of the block have the first sums of a function.
template <int FIRST> __device__ __forceinline__ int thread_from() {
    int x = thread() - FIRST % T;
    return FIRST % T && x < 0 ? x + T : x;
}

// In the place of a bias where there is none.
struct Zeros {
    __device__ __forceinline__ REAL operator[](int) const { return 0; }
};

// The image that something is of, if each image has `items`, one after the other.
__device__ __forceinline__ int image_of(int at, int items) { return IMAGES == 1 ? 0 : at / items; }

// f(k) for each k below SIZE, which the threads share out.
template <int SIZE, class F> __device__ __forceinline__ void each(F f) {
    constexpr int ROUNDS = (SIZE + T - 1) / T, UNROLL = ROUNDS < 16 ? ROUNDS : 4;
#pragma unroll(UNROLL)
    for (int round = 0; round < ROUNDS; ++round)
        if (thread() + round * T < SIZE) f(thread() + round * T);
}

// f(image, k) for each k below SIZE of each image.
template <int SIZE, class F> __device__ __forceinline__ void each_of_all(F f) {
    each<SIZE * IMAGES>([&](int k) { f(image_of(k, SIZE), k - image_of(k, SIZE) * SIZE); });
}

struct identity {
    static __device__ __forceinline__ REAL value(REAL x) { return x; }
    static __device__ __forceinline__ REAL grad(REAL gy, REAL) { return gy; }
};
__host__ __device__ constexpr int least(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int up(int a, int step) { return (a + step - 1) / step * step; }

__device__ __forceinline__ REAL warp_sum(REAL x) {
#pragma unroll
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// The sums of N numbers, a power of two: that of number lane / (32 / N).
template <int N> __device__ __forceinline__ REAL warp_sums(REAL (&x)[N]) {
    constexpr int LANES = 32 / N;
#pragma unroll
    for (int half = N / 2; half; half /= 2) {
        bool upper = thread() & half * LANES;
#pragma unroll
        for (int r = 0; r < half; ++r) {
            REAL other = __shfl_xor_sync(0xffffffffu, upper ? x[r] : x[r + half], half * LANES);
            x[r] = (upper ? x[r + half] : x[r]) + other;
        }
    }
#pragma unroll
    for (int step = LANES / 2; step; step /= 2) x[0] += __shfl_xor_sync(0xffffffffu, x[0], step);
    return x[0];
}

// The largest, or NaN if there is one.
__device__ __forceinline__ REAL warp_most(REAL x) {
#pragma unroll
    for (int step = 16; step; step /= 2) {
        REAL other = __shfl_xor_sync(0xffffffffu, x, step);
        x = other > x || other != other ? other : x;
    }
    return x;
}

// N neighbours, V with one instruction.
template <int V, int N> __device__ __forceinline__ void load(REAL* to, const REAL* from) {
#pragma unroll
    for (int i = 0; i < N; i += V) *(Pack<V>*)&to[i] = *(const Pack<V>*)&from[i];
}

// The team of a thread, or a warp, if `items` sums have TEAMS of them.
template <int TEAMS> __device__ __forceinline__ int team_of(int at, int items) { return TEAMS == 1 ? 0 : at / items; }

// How many columns can be loaded at once, from one at a multiple of 4 on, of planes whose padding is LEFT.
template <class X, int LEFT> __host__ __device__ constexpr int together() {
    return X::PW % 4 == 0 && (X::LEFT - LEFT) % 4 == 0 ? 4 : X::PW % 2 == 0 && (X::LEFT - LEFT) % 2 == 0 ? 2 : 1;
}

// ---------------------------------------------------------------- in and out
__device__ __forceinline__ void clear(REAL* memory, int size) {  // a multiple of 4
    for (int i = thread() * 4; i < size; i += T * 4) *(Pack<4>*)&memory[i] = Pack<4>();
}

// Before values are written, with -DPOISON: fills them, but not the room around them, with NaN. So a read of what was not
// written for this image is seen, or of what was there before, if other values had the same memory.
template <class... X> __device__ __forceinline__ void unwritten(const X... values) {
#ifdef POISON
    auto spoil = [](auto value) {
        for (int image = 0; image < IMAGES; ++image)
            for (int k = thread(); k < value.SIZE; k += T) value.of(image)[k] = __int_as_float(0x7fffffff);
    };
    __syncthreads();
    (spoil(values), ...);
    __syncthreads();
#endif
}

// Filters (maps, taps) from global memory, each on a multiple of 4 elements. They have arrived once each thread has
// called end_copies and await_copies, and after the next barrier.
template <int MAPS, int TAPS> __device__ __forceinline__ void load_filters(REAL* to, const REAL* w) {
    for (int m = thread() / 32; m < MAPS; m += WARPS)
        for (int t = thread() % 32; t < TAPS; t += 32) start_copy(&to[m * up(TAPS, 4) + t], &w[m * TAPS + t], true);
}

// Images; they arrive as filters do.
template <class X> __device__ __forceinline__ void load_images(const X x, const REAL* from, int count) {
    each_of_all<X::SIZE>([&](int image, int k) {
        start_copy(&x.of(image)[k], &from[image * X::SIZE + k], image < count);
    });
}

template <class X> __device__ __forceinline__ void store_images(REAL* to, const X x, int count) {
    each_of_all<X::SIZE>([&](int image, int k) {
        if (image < count) to[image * X::SIZE + k] = x.of(image)[k];
    });
}

template <class X, class Y> __device__ __forceinline__ void copy(const X x, const Y y) {
    each_of_all<X::SIZE>([&](int image, int k) { y.of(image)[k] = x.of(image)[k]; });
}

// ---------------------------------------------------------------- convolution, stride 1
// y of x (TOP, LEFT: the padding), with bias and activation; or MIRROR, the dx of a convolution, as the same sum over
// gy with filters turned round. A thread owns TH x TW outputs of M maps; teams share out the source planes, and leave
// their sums in scratch for conv_total. If TW is a whole row, it is known which columns of x each output has, and the
// others are left out. Rows above and below x are left out, too; where there are such and TW is less than a row, threads
// of one row of outputs are neighbours, so that a warp leaves out the same.
// filters: [map of y][plane of x] or, MIRROR, [plane of x][map of y], KH * KW up to fours.
template <int FIRST, class ACTIVATE, int KH, int KW, int TOP, int LEFT, bool MIRROR, int TH, int TW, int M, int TEAMS,
          int STRIDE, class X, class Y, class B>
__device__ __forceinline__ void conv(const X x, const REAL* filters, const B b, const Y y, REAL* scratch) {
    constexpr int ACROSS = (Y::W + TW - 1) / TW, DOWN = (Y::H + TH - 1) / TH, GROUPS = (Y::C + M - 1) / M;
    constexpr int TILES = DOWN * ACROSS, ITEMS = TILES * GROUPS, TAPS = up(KH * KW, 4);
    constexpr bool WHOLE = ACROSS == 1, BEYOND = TOP > 0 || TH * DOWN + KH - 1 - TOP > X::H;
    constexpr int BEFORE = WHOLE ? 0 : LEFT, N = up(WHOLE ? X::W : KW + TW - 1, 4);  // columns that a thread reads
    for (int k = thread_from<FIRST>(); k < ITEMS * TEAMS * IMAGES; k += T) {
        int image = image_of(k, ITEMS * TEAMS), at = k - image * ITEMS * TEAMS;
        int row, team, group, j = at % ACROSS * TW;
        if (BEYOND && !WHOLE)
            row = at / (TEAMS * GROUPS * ACROSS), team = at / (GROUPS * ACROSS) % TEAMS, group = at / ACROSS % GROUPS;
        else
            team = team_of<TEAMS>(at, ITEMS), group = at / TILES % GROUPS, row = at / ACROSS % DOWN;
        int i = row * TH, m = group * M, item = group * TILES + row * ACROSS + j / TW;
        REAL sum[M][TH * TW] = {};
#pragma unroll 1
        for (int c = team; c < X::C; c += TEAMS) {
            REAL weight[M][TAPS];
            const REAL* from[M];
#pragma unroll
            for (int f = 0; f < M; ++f) {
                int map = M == 1 ? m : imin(m + f, Y::C - 1);
                from[f] = filters + (MIRROR ? c * Y::C + map : map * X::C + c) * TAPS;
                if (TH > 1) load<4, TAPS>(weight[f], from[f]);
            }
            const REAL* pixels = x.of(image).at(c, 0, j - BEFORE) + row * X::row(TH);
#pragma unroll
            for (int r = 0; r < KH + TH - 1; ++r) {
                if (BEYOND && (unsigned)(i + r - TOP) >= (unsigned)X::H) continue;
                REAL pixel[N];
                load<together<X, BEFORE>(), N>(pixel, pixels + X::row(r - TOP));
                if (TH == 1)
#pragma unroll
                    for (int f = 0; f < M; ++f)
#pragma unroll
                        for (int q = 0; q < KW; ++q) {
                            int t = MIRROR ? KH * KW - 1 - r * KW - q : r * KW + q;
                            weight[f][t] = from[f][t];
                        }
#pragma unroll
                for (int q = 0; q < KW; ++q)
#pragma unroll
                    for (int f = 0; f < M; ++f)
#pragma unroll
                        for (int e = 0; e < TH * TW; ++e) {
                            int p = r - e / TW, t = p * KW + q, column = q + e % TW + BEFORE - LEFT;
                            if (p >= 0 && p < KH && (!WHOLE || (column >= 0 && column < X::W)))
                                sum[f][e] += weight[f][MIRROR ? KH * KW - 1 - t : t] * pixel[column];
                        }
            }
        }
#pragma unroll
        for (int f = 0; f < M; ++f)
#pragma unroll
            for (int e = 0; e < TH * TW; ++e)
                if (TEAMS > 1)
                    scratch[image * IMAGE_STRIDE + ((team * M + f) * TH * TW + e) * STRIDE + item] = sum[f][e];
                else if (m + f < Y::C && i + e / TW < Y::H && j + e % TW < Y::W)
                    *y.of(image).at(m + f, i + e / TW, j + e % TW) = ACTIVATE::value(sum[f][e] + b[m + f]);
    }
}

// y of what conv's teams left.
template <class ACTIVATE, int TH, int TW, int M, int TEAMS, int STRIDE, class Y, class B>
__device__ __forceinline__ void conv_total(const REAL* scratch, const B b, const Y y) {
    constexpr int ACROSS = (Y::W + TW - 1) / TW, TILES = ACROSS * ((Y::H + TH - 1) / TH), TILE = TH * TW;
    each_of_all<Y::SIZE>([&](int image, int k) {
        int m = k / (Y::H * Y::W), i = k / Y::W % Y::H, j = k % Y::W;
        int item = m / M * TILES + i / TH * ACROSS + j / TW, e = i % TH * TW + j % TW;
        REAL total = b[m];
#pragma unroll
        for (int team = 0; team < TEAMS; ++team)
            total += scratch[image * IMAGE_STRIDE + ((team * M + m % M) * TILE + e) * STRIDE + item];
        y.of(image)[k] = ACTIVATE::value(total);
    });
}

__device__ __forceinline__ void add_part(REAL& part, REAL sum, bool first) { part = first ? sum : part + sum; }

// part (maps of gy, planes of x, KH, KW), one behind the other for images at once: set for a block's first images,
// added to for later ones. A thread owns a row of KW taps of TM maps; teams share out the rows of gy, which end with zeros up
// to fours, and leave their sums for part_total.
template <int FIRST, int KH, int KW, int TOP, int LEFT, int TM, int TEAMS, class X, class G>
__device__ __forceinline__ void conv_grad_w(const G gy, const X x, REAL* part, bool first, int count,
                                            REAL* scratch) {
    constexpr int LINES = X::C * KH, ITEMS = LINES * ((G::C + TM - 1) / TM), N = up(KW + 3, 4),
                  SIZE = G::C * LINES * KW;
    constexpr bool BEYOND = TOP > 0 || G::H + KH - 1 - TOP > X::H;
    for (int k = thread_from<FIRST>(); k < ITEMS * TEAMS * count; k += T) {
        int image = image_of(k, ITEMS * TEAMS), at = k - image * ITEMS * TEAMS;
        int team = team_of<TEAMS>(at, ITEMS), item = at - team * ITEMS;
        int group = item / LINES, line = item - group * LINES, c = line / KH, p = line % KH;
        REAL sum[TM][KW] = {};
#pragma unroll 1
        for (int i = team; i < G::H; i += TEAMS) {
            if (BEYOND && (unsigned)(i + p - TOP) >= (unsigned)X::H) continue;
            const REAL* pixels = x.of(image).at(c, i + p - TOP, -LEFT);
            REAL pixel[N];
            load<together<X, LEFT>(), N - 4>(pixel + 4, pixels);
#pragma unroll 4
            for (int j = 0; j < G::W; j += 4) {
#pragma unroll
                for (int e = 0; e < N - 4; ++e) pixel[e] = pixel[e + 4];
                load<together<X, LEFT>(), 4>(pixel + N - 4, pixels + j + N - 4);
#pragma unroll
                for (int f = 0; f < TM; ++f) {
                    REAL gradient[4];
                    load<together<G, 0>(), 4>(gradient, gy.of(image).at(imin(group * TM + f, G::C - 1), i, j));
#pragma unroll
                    for (int e = 0; e < 4; ++e)
#pragma unroll
                        for (int q = 0; q < KW; ++q) sum[f][q] += gradient[e] * pixel[e + q];
                }
            }
        }
#pragma unroll
        for (int f = 0; f < TM; ++f) {
            if (group * TM + f >= G::C) break;
#pragma unroll
            for (int q = 0; q < KW; ++q) {
                int t = ((group * TM + f) * LINES + line) * KW + q;
                if (TEAMS > 1)
                    scratch[image * IMAGE_STRIDE + team * SIZE + t] = sum[f][q];
                else
                    add_part(part[image * SIZE + t], sum[f][q], first);
            }
        }
    }
}

// part (maps of gy): as conv_grad_w. A warp owns a map; its lanes, and teams of warps, share out the rows.
template <int FIRST, int TEAMS, class G>
__device__ __forceinline__ void conv_grad_b(const G gy, REAL* part, bool first, int count, REAL* scratch) {
    constexpr int ROWS = G::W < 32 ? 32 / G::W : 1;  // that a warp adds at once
    int lane = thread() % 32, down = lane / G::W;
    for (int k = thread_from<FIRST>() / 32; k < G::C * TEAMS * count; k += WARPS) {
        int image = image_of(k, G::C * TEAMS), at = k - image * G::C * TEAMS;
        int team = team_of<TEAMS>(at, G::C), m = at - team * G::C;
        REAL sum = 0;
#pragma unroll
        for (int j = lane % G::W; j < up(G::W, 32); j += 32)
#pragma unroll 8
            for (int i = team * ROWS + down; i < G::H; i += TEAMS * ROWS)
                if (down < ROWS && j < G::W) sum += *gy.of(image).at(m, i, j);
        sum = warp_sum(sum);
        if (lane) continue;
        if (TEAMS > 1)
            scratch[image * IMAGE_STRIDE + at] = sum;
        else
            add_part(part[image * G::C + m], sum, first);
    }
}

// A part (SIZE) of what the teams of conv_grad_w or conv_grad_b left.
template <int SIZE, int TEAMS>
__device__ __forceinline__ void part_total(const REAL* scratch, REAL* part, bool first, int count) {
    each_of_all<SIZE>([&](int image, int k) {
        if (image >= count) return;
        REAL total = first ? (REAL)0 : part[image * SIZE + k];
#pragma unroll 8
        for (int team = 0; team < TEAMS; ++team) total += scratch[image * IMAGE_STRIDE + team * SIZE + k];
        part[image * SIZE + k] = total;
    });
}

// ---------------------------------------------------------------- pooling and activation
template <int KH, int KW, int SH, int SW, class X, class Y>
__device__ __forceinline__ void avg_pool(const X x, const Y y) {
    each_of_all<Y::SIZE>([&](int image, int k) {
        int c = k / (Y::H * Y::W), i = k / Y::W % Y::H * SH, j = k % Y::W * SW;
        REAL sum = 0;
#pragma unroll
        for (int e = 0; e < KH * KW; ++e) sum += *x.of(image).at(c, i + e / KW, j + e % KW);
        y.of(image)[k] = sum * (REAL)(1.0 / (KH * KW));
    });
}

// The gradient of windows that do not overlap, through an activation that gave y. A thread owns windows. Outside the
// windows gx is not written: the kernel clears it once, and it stays zero.
template <class ACTIVATE, int KH, int KW, class G, class Y, class X>
__device__ __forceinline__ void avg_pool_grad(const G gy, const Y y, const X gx) {
    each_of_all<G::SIZE>([&](int image, int k) {
        int c = k / (G::H * G::W), i = k / G::W % G::H * KH, j = k % G::W * KW;
        REAL g = gy.of(image)[k] * (REAL)(1.0 / (KH * KW));
#pragma unroll
        for (int e = 0; e < KH * KW; ++e)
            *gx.of(image).at(c, i + e / KW, j + e % KW) =
                ACTIVATE::grad(g, *y.of(image).at(c, i + e / KW, j + e % KW));
    });
}

template <class ACTIVATE, class X, class Y> __device__ __forceinline__ void activate(const X x, const Y y) {
    each_of_all<X::SIZE>([&](int image, int k) { y.of(image)[k] = ACTIVATE::value(x.of(image)[k]); });
}

template <class ACTIVATE, class G, class Y, class X>
__device__ __forceinline__ void activate_grad(const G gy, const Y y, const X gx) {
    each_of_all<G::SIZE>([&](int image, int k) {
        gx.of(image)[k] = ACTIVATE::grad(gy.of(image)[k], y.of(image)[k]);
    });
}

// ---------------------------------------------------------------- linear
// Weights (outputs, IN) in global memory; the first STAGED rows, for which there was room, have been copied to shared.
template <int IN_, int STAGED_> struct Rows {
    static constexpr int IN = IN_, STAGED = STAGED_;
    REAL* near;
    const REAL* far;
};

// From compute capability 9.0 on the hardware copies them, which one thread starts: COUNT copies, counted in shared memory.
// Elsewhere they arrive as filters do.
template <int COUNT> __device__ __forceinline__ void start_rows(unsigned long long* arrived) {
#if __CUDA_ARCH__ >= 900
    unsigned barrier = (unsigned)__cvta_generic_to_shared(arrived);
    if (thread() == 0)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1; fence.mbarrier_init.release.cluster;" ::"r"(barrier), "n"(COUNT)
                     : "memory");
#endif
}

template <int IN, int STAGED>
__device__ __forceinline__ void load_rows(const Rows<IN, STAGED> w, unsigned long long* arrived) {
    constexpr int SIZE = STAGED * IN;
#if __CUDA_ARCH__ >= 900
    unsigned to = (unsigned)__cvta_generic_to_shared(w.near), barrier = (unsigned)__cvta_generic_to_shared(arrived);
    if (thread() == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%3], %2;\n\t"
                     "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                     "l"(w.far), "n"(SIZE * (int)sizeof(REAL)), "r"(barrier)
                     : "memory");
#else
    for (int i = thread() * 4; i < SIZE; i += T * 4)
        start_copy((Pack<4>*)(w.near + i), (const Pack<4>*)(w.far + i), true);
#endif
}

// Before a barrier.
__device__ __forceinline__ void await_rows(unsigned long long* arrived) {
#if __CUDA_ARCH__ >= 900
    unsigned barrier = (unsigned)__cvta_generic_to_shared(arrived);
    int over = 0;
    while (!over)
        asm volatile("{.reg .pred over;\n\tmbarrier.try_wait.parity.shared::cta.b64 over, [%1], 0;\n\t"
                     "selp.b32 %0, 1, 0, over;}" : "=r"(over) : "r"(barrier) : "memory");
#else
    await_copies<0>();
#endif
}

// COUNT outputs of linear from `begin` on, whose rows of weights are in one memory, from w on. A warp owns ROWS of them
// at a time; its lanes, and teams of warps, share out the inputs. The last ROWS begin early if there are fewer.
template <class ACTIVATE, int TEAMS, int COUNT, class X, class Y, class B>
__device__ __forceinline__ void linear_rows(const X x, const REAL* w, const B b, const Y y, int begin, REAL* scratch) {
    constexpr int IN = X::SIZE, V = IN % 4 == 0 ? 4 : 1, ROWS = least(6, (COUNT + WARPS - 1) / WARPS);
    constexpr int GROUPS = (COUNT + ROWS - 1) / ROWS, UNROLL = least(4, 6 / ROWS);
    constexpr int N = ROWS > 4 ? 8 : ROWS > 2 ? 4 : ROWS, LANES = 32 / N;  // for warp_sums: LANES end with one output
    int lane = thread() % 32, r = lane / LANES;
    for (int at = thread() / 32; at < GROUPS * TEAMS; at += WARPS) {
        int team = team_of<TEAMS>(at, GROUPS), first = (at - team * GROUPS) * ROWS, o = imin(first, COUNT - ROWS);
        REAL sum[IMAGES][N] = {}, bias = team ? (REAL)0 : b[begin + imin(o + r, COUNT - 1)];
#pragma unroll(UNROLL)
        for (int k = (team * 32 + lane) * V; k < IN; k += TEAMS * 32 * V) {
            Pack<V> given[IMAGES], weight[ROWS];
#pragma unroll
            for (int image = 0; image < IMAGES; ++image) given[image] = *(const Pack<V>*)&x.of(image).start[k];
#pragma unroll
            for (int e = 0; e < ROWS; ++e) weight[e] = *(const Pack<V>*)&w[(o + e) * IN + k];
#pragma unroll
            for (int e = 0; e < ROWS; ++e)
#pragma unroll
                for (int v = 0; v < V * IMAGES; ++v) sum[v / V][e] += weight[e].v[v % V] * given[v / V].v[v % V];
        }
#pragma unroll
        for (int image = 0; image < IMAGES; ++image) {
            REAL total = warp_sums(sum[image]) + bias;
            if (lane % LANES || r >= ROWS || o + r < first) continue;
            if (TEAMS > 1)
                scratch[image * IMAGE_STRIDE + team * Y::SIZE + begin + o + r] = total;
            else
                y.of(image)[begin + o + r] = ACTIVATE::value(total);
        }
    }
}

// y = w x + b: each weight is read once for all images.
template <class ACTIVATE, int TEAMS, class X, class Y, class W, class B>
__device__ __forceinline__ void linear(const X x, const W w, const B b, const Y y, REAL* scratch) {
    static_assert(X::DENSE, "linear reads a dense value");
    constexpr int OUT = Y::SIZE, STAGED = W::STAGED;
    if constexpr (STAGED < OUT)
        linear_rows<ACTIVATE, TEAMS, OUT - STAGED>(x, w.far + STAGED * W::IN, b, y, STAGED, scratch);
    if constexpr (STAGED > 0) linear_rows<ACTIVATE, TEAMS, STAGED>(x, w.near, b, y, 0, scratch);
    if (TEAMS == 1) return;
    __syncthreads();
    each_of_all<OUT>([&](int image, int o) {
        REAL total = 0;
        for (int team = 0; team < TEAMS; ++team) total += scratch[image * IMAGE_STRIDE + team * OUT + o];
        y.of(image)[o] = ACTIVATE::value(total);
    });
}

// gx = gy w, through an activation that gave y. A thread owns V inputs; teams share out the outputs, in order. EARLY rows
// from global memory are on their way while those in shared memory are added up.
template <class ACTIVATE, int TEAMS, class G, class Y, class X, class W>
__device__ __forceinline__ void linear_grad_x(const G gy, const W w, const Y y, const X gx, REAL* scratch) {
    constexpr int IN = X::SIZE, OUT = G::SIZE, V = IN % 4 == 0 ? 4 : 1, ITEMS = IN / V;
    constexpr int STAGED = W::STAGED, EARLY = STAGED < OUT ? least(8, (OUT - STAGED + TEAMS - 1) / TEAMS) : 1;
    for (int at = thread(); at < ITEMS * TEAMS; at += T) {
        int team = team_of<TEAMS>(at, ITEMS), k = (at - team * ITEMS) * V;
        auto row = [&](const REAL* weights, int o) { return *(const Pack<V>*)&weights[o * IN + k]; };
        Pack<V> sum[IMAGES] = {}, early[EARLY];
        auto add = [&](int o, Pack<V> weight) {
#pragma unroll
            for (int image = 0; image < IMAGES; ++image) {
                REAL gradient = gy.of(image)[o];
#pragma unroll
                for (int v = 0; v < V; ++v) sum[image].v[v] += weight.v[v] * gradient;
            }
        };
        int o = team, far = STAGED + (team + TEAMS - STAGED % TEAMS) % TEAMS;
#pragma unroll
        for (int e = 0; e < EARLY; ++e) early[e] = row(w.far, imin(far + e * TEAMS, OUT - 1));
#pragma unroll 8
        for (; o < STAGED; o += TEAMS) add(o, row(w.near, o));
#pragma unroll
        for (int e = 0; e < EARLY; ++e, o += TEAMS)
            if (o < OUT) add(o, early[e]);
#pragma unroll 8
        for (; o < OUT; o += TEAMS) add(o, row(w.far, o));
#pragma unroll
        for (int image = 0; image < IMAGES; ++image)
            *(Pack<V>*)&scratch[image * IMAGE_STRIDE + team * IN + k] = sum[image];
    }
    __syncthreads();
    each_of_all<IN>([&](int image, int k) {
        REAL total = 0;
#pragma unroll 8
        for (int team = 0; team < TEAMS; ++team) total += scratch[image * IMAGE_STRIDE + team * IN + k];
        gx.of(image)[k] = ACTIVATE::grad(total, y.of(image)[k]);
    });
}

// ---------------------------------------------------------------- loss
// The label of the image whose cross_entropy this warp computes, as an int, or -1 if it is negative or too large. It
// waits in a register from the start on.
__device__ __forceinline__ int label_of(const long long* labels, int count) {
    long long label = labels[IMAGES == 1 ? 0 : imin(thread() / 32, count - 1)];
    return (unsigned long long)label <= 0x7fffffffu ? (int)label : -1;
}

// The images' losses, and (softmax - target) * scale. Each image has a warp. A label that is not a class makes both
// NaN.
template <class X, class Y>
__device__ __forceinline__ void cross_entropy(const X xs, int label, REAL* loss, const Y gxs, REAL smoothing,
                                              REAL scale, int count) {
    constexpr int K = X::SIZE;
    int image = thread() / 32, lane = thread() % 32;
    if (image >= count) return;
    X x = xs.of(image);
    Y gx = gxs.of(image);
    bool is_class = (unsigned)label < (unsigned)K;
    REAL nan = __int_as_float(0x7fffffff), top = x[imin(lane, K - 1)], total = 0, mean = 0;
    for (int k = lane + 32; k < K; k += 32) top = x[k] > top || x[k] != x[k] ? x[k] : top;
    top = warp_most(top);
    for (int k = lane; k < K; k += 32) {
        total += exp(x[k] - top);
        mean += x[k];
    }
    total = warp_sum(total);
    REAL log_sum = log(total) + top, keep = (REAL)1 - smoothing;
    mean = smoothing != (REAL)0 ? smoothing * (warp_sum(mean) / (REAL)K - log_sum) : (REAL)0;
    if (lane == 0) loss[image] = is_class ? keep * (log_sum - x[label]) - mean : nan;
    for (int k = lane; k < K; k += 32) {
        REAL target = !is_class ? nan : k == label ? keep : (REAL)0;
        gx[k] = (exp(x[k] - log_sum) - smoothing / (REAL)K - target) * scale;
    }
}
