// More of CUDA's names, most of which only kernels of users need: atomics, fences, votes, vectors, mathematics.
#include <math.h>
#include <stdlib.h>

#include <cassert>
#include <cstdio>
#include <type_traits>

// Not looked at as plain accesses (watch.cpp), and never part of the kernel's own code.
#define UNWATCHED __attribute__((noinline, no_sanitize("thread"), no_sanitize_coverage))

#define GUARD(NAME) static unsigned char NAME[1024] __attribute__((section("block_shared"), used, aligned(128)))
#ifdef WATCH
GUARD(guard_before);
extern "C" void watch_launch(const unsigned char* shared, const unsigned char* shared_end, int dynamic, void* kernel);
extern "C" void watch_atomic(const void* at, int size, void* from);
extern "C" void watch_barrier(void* from);
extern "C" void watch_copy(void* to, const void* from, size_t size, int reads);
extern "C" void watch_fence();
#else
static inline void watch_launch(const unsigned char*, const unsigned char*, int, void*) {}
static inline void watch_atomic(const void*, int, void*) {}
static inline void watch_barrier(void*) {}
static inline void watch_copy(void*, const void*, size_t, int) {}
static inline void watch_fence() {}
#endif

// ---------------------------------------------------------------- atomics: no other thread runs within one
#define ATOMIC(NAME, NEW)                                                                                   \
    template <class T> UNWATCHED static T NAME(T* at, std::common_type_t<T> value) {                        \
        watch_atomic(at, sizeof(T), __builtin_return_address(0));                                           \
        T old = *at;                                                                                        \
        *at = NEW;                                                                                          \
        return old;                                                                                         \
    }
ATOMIC(atomicAdd, old + value)
ATOMIC(atomicSub, old - value)
ATOMIC(atomicExch, value)
ATOMIC(atomicMin, value < old ? value : old)
ATOMIC(atomicMax, value > old ? value : old)
ATOMIC(atomicAnd, old & value)
ATOMIC(atomicOr, old | value)
ATOMIC(atomicXor, old ^ value)
ATOMIC(atomicInc, old >= value ? 0 : old + 1)
ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
template <class T> UNWATCHED static T atomicCAS(T* at, std::common_type_t<T> compare, std::common_type_t<T> value) {
    watch_atomic(at, sizeof(T), __builtin_return_address(0));
    T old = *at;
    if (old == compare) *at = value;
    return old;
}
static inline void __threadfence() { watch_fence(); }
static inline void __threadfence_block() { watch_fence(); }
static inline void __threadfence_system() { watch_fence(); }

// ---------------------------------------------------------------- warps and blocks
constexpr int warpSize = 32;

UNWATCHED static void __syncthreads() {
    watch_barrier(__builtin_return_address(0));
    block_barrier();
}

template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned step, int width = 32) {
    int to = lane() + (int)step;
    return __shfl_sync(mask, value, to / width == lane() / width ? to : lane());
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned step, int width = 32) {
    int to = lane() - (int)step;
    return __shfl_sync(mask, value, to >= 0 && to / width == lane() / width ? to : lane());
}
// Which of those lanes give the same value.
template <class T> UNWATCHED static unsigned __match_any_sync(unsigned mask, T value) {
    const unsigned char* lanes = exchange(&value, sizeof value, mask);
    unsigned same = 0;
    for (int i = 0; i < warpSize; ++i)
        same |= (unsigned)(exchanged_with() >> i & 1 && memcmp(lanes + i * EXCHANGED, &value, sizeof value) == 0) << i;
    return same;
}
static inline unsigned __ballot_sync(unsigned mask, int vote) {
    const bool yes = vote != 0;
    const unsigned same = __match_any_sync(mask, yes);
    return yes ? same : exchanged_with() & ~same;
}
static inline unsigned __activemask() { return live_lanes(); }
static inline int __any_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) != 0; }
static inline int __all_sync(unsigned mask, int vote) { return __ballot_sync(mask, !vote) == 0; }
template <class T> UNWATCHED static T __reduce_add_sync(unsigned mask, T value) {
    const unsigned char* lanes = exchange(&value, sizeof value, mask);
    T sum = 0, theirs;
    for (int i = 0; i < warpSize; ++i) {
        memcpy(&theirs, lanes + i * EXCHANGED, sizeof theirs);
        if (exchanged_with() >> i & 1) sum += theirs;
    }
    return sum;
}
UNWATCHED static int __syncthreads_count(int vote) {
    static int votes;
    watch_barrier(__builtin_return_address(0));
    block_barrier();
    votes = 0;
    block_barrier();
    votes += vote != 0;
    block_barrier();
    return votes;
}
static inline int __syncthreads_or(int vote) { return __syncthreads_count(vote) != 0; }
static inline int __syncthreads_and(int vote) { return __syncthreads_count(!vote) == 0; }

// ---------------------------------------------------------------- vectors and mathematics
#define VECTORS(T)                                           \
    struct alignas(2 * sizeof(T)) T##2 { T x, y; };          \
    struct T##3 { T x, y, z; };                              \
    static inline T##2 make_##T##2(T x, T y) { return {x, y}; } \
    static inline T##3 make_##T##3(T x, T y, T z) { return {x, y, z}; }
VECTORS(float) VECTORS(double) VECTORS(int)
typedef unsigned char uchar;
typedef unsigned int uint;
VECTORS(uchar) VECTORS(uint)
#define VECTOR_OF_4(T)                                                        \
    struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) T##4 { T x, y, z, w; }; \
    static inline T##4 make_##T##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTOR_OF_4(float) VECTOR_OF_4(double) VECTOR_OF_4(uchar) VECTOR_OF_4(uint)
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    dim3(Place at) : x(at.x), y(at.y), z(at.z) {}
};

template <class A, class B> static inline std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B> static inline std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
template <class T> static inline T __ldg(const T* at) { return *at; }
#define printf(...) print_of_kernel(__VA_ARGS__)
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline float __frcp_rn(float x) { return 1 / x; }
#define __expf expf                                      // the C library has functions of these names
#define __logf logf
#define __powf powf
#define __sinf sinf
#define __cosf cosf
static inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline void sincospi(double x, double* sine, double* cosine) {
    *sine = sin(M_PI * x), *cosine = cos(M_PI * x);
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
