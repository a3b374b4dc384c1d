// More of CUDA's names, most of which only kernels of users need: atomics, fences, votes, vectors, mathematics.
// Not looked at as plain accesses (watch.cpp), and never part of the kernel's own code.
#define UNWATCHED __attribute__((noinline, no_sanitize("thread"), no_sanitize_coverage))

#define GUARD(NAME) static unsigned char NAME[1024] __attribute__((section("block_shared"), used, aligned(128)))
#ifdef WATCH
GUARD(guard_before);
extern "C" void watch_launch(const unsigned char* shared, const unsigned char* shared_end, int dynamic, void* kernel);
extern "C" void watch_atomic(const void* at, int size, int does, void* from);
extern "C" void watch_barrier(void* from);
extern "C" void watch_copy(void* to, const void* from, size_t size, int reads);
extern "C" void watch_fence();
#else
static inline void watch_launch(const unsigned char*, const unsigned char*, int, void*) {}
static inline void watch_atomic(const void*, int, int, void*) {}
static inline void watch_barrier(void*) {}
static inline void watch_copy(void*, const void*, size_t, int) {}
static inline void watch_fence() {}
#endif

// ---------------------------------------------------------------- atomics: no other thread runs within one
enum { UPDATES = 2, EXCHANGES, COMPARES };               // as in watch.cpp
#define ATOMIC(NAME, DOES, NEW)                                                                             \
    template <class T> UNWATCHED static T NAME(T* at, std::common_type_t<T> value) {                        \
        watch_atomic(at, sizeof(T), DOES, __builtin_return_address(0));                                     \
        T old = *at;                                                                                        \
        *at = NEW;                                                                                          \
        return old;                                                                                         \
    }
ATOMIC(atomicAdd, UPDATES, old + value)
ATOMIC(atomicSub, UPDATES, old - value)
ATOMIC(atomicExch, EXCHANGES, value)
ATOMIC(atomicMin, UPDATES, value < old ? value : old)
ATOMIC(atomicMax, UPDATES, value > old ? value : old)
ATOMIC(atomicAnd, UPDATES, old & value)
ATOMIC(atomicOr, UPDATES, old | value)
ATOMIC(atomicXor, UPDATES, old ^ value)
ATOMIC(atomicInc, UPDATES, old >= value ? 0 : old + 1)
ATOMIC(atomicDec, UPDATES, old == 0 || old > value ? value : old - 1)
template <class T> UNWATCHED static T atomicCAS(T* at, std::common_type_t<T> compare, std::common_type_t<T> value) {
    watch_atomic(at, sizeof(T), COMPARES, __builtin_return_address(0));
    T old = *at;
    if (old == compare) *at = value;
    return old;
}
#define atomicAdd_block atomicAdd
#define atomicAdd_system atomicAdd
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
#define REDUCE(NAME, BOTH)                                                                  \
    template <class T> UNWATCHED static T __reduce_##NAME##_sync(unsigned mask, T value) { \
        const unsigned char* lanes = exchange(&value, sizeof value, mask);                  \
        T all = value, theirs;                                                              \
        for (int i = 0; i < warpSize; ++i) {                                                \
            memcpy(&theirs, lanes + i * EXCHANGED, sizeof theirs);                          \
            if (exchanged_with() >> i & 1 && i != lane()) all = BOTH;                       \
        }                                                                                   \
        return all;                                                                         \
    }
REDUCE(add, all + theirs) REDUCE(min, theirs < all ? theirs : all) REDUCE(max, theirs > all ? theirs : all)
REDUCE(and, all & theirs) REDUCE(or, all | theirs) REDUCE(xor, all ^ theirs)
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
typedef unsigned short ushort;
typedef unsigned int uint;
typedef long long longlong;
typedef unsigned long long ulonglong;
VECTORS(uchar) VECTORS(short) VECTORS(ushort) VECTORS(uint) VECTORS(longlong) VECTORS(ulonglong)
inline Place::operator uint3() const { return {x, y, z}; }
#define VECTOR_OF_4(T)                                                        \
    struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) T##4 { T x, y, z, w; }; \
    static inline T##4 make_##T##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTOR_OF_4(float) VECTOR_OF_4(double) VECTOR_OF_4(uchar) VECTOR_OF_4(short) VECTOR_OF_4(ushort) VECTOR_OF_4(uint)
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    dim3(Place at) : x(at.x), y(at.y), z(at.z) {}
    dim3(uint3 at) : x(at.x), y(at.y), z(at.z) {}
};

template <class A, class B> static inline std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B> static inline std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
template <class T> static inline T __ldg(const T* at) { return *at; }
#define __ldca __ldg                                     // caches are not emulated
#define __ldcg __ldg
#define __ldcs __ldg
template <class T> static inline void __stcg(T* at, std::common_type_t<T> value) { *at = value; }
#define __stcs __stcg
static inline void __nanosleep(unsigned) {}
#define __builtin_assume(condition)
#define printf(...) print_of_kernel(__VA_ARGS__)
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
#define __expf expf                                      // the C library has functions of these names
#define __logf logf
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __log2f log2f
#define __log10f log10f
#define __exp10f exp10f
#define __sincosf sincosf
#define ROUNDED(T, LETTER)                                              \
    static inline T __##LETTER##add_rn(T a, T b) { return a + b; }      \
    static inline T __##LETTER##sub_rn(T a, T b) { return a - b; }      \
    static inline T __##LETTER##mul_rn(T a, T b) { return a * b; }      \
    static inline T __##LETTER##div_rn(T a, T b) { return a / b; }      \
    static inline T __##LETTER##rcp_rn(T x) { return 1 / x; }           \
    static inline T __##LETTER##sqrt_rn(T x) { return std::sqrt(x); }
ROUNDED(float, f) ROUNDED(double, d)
static inline float __frsqrt_rn(float x) { return 1 / sqrtf(x); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline void sincospi(double x, double* sine, double* cosine) {
    *sine = sin(M_PI * x), *cosine = cos(M_PI * x);
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline unsigned long long __brevll(unsigned long long x) {
    unsigned long long turned = 0;
    for (int i = 0; i < 64; ++i) turned |= (x >> i & 1) << (63 - i);
    return turned;
}
static inline unsigned __brev(unsigned x) { return __brevll(x) >> 32; }
static inline int __mulhi(int a, int b) { return (long long)a * b >> 32; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
static inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }
static inline int __mul24(int a, int b) { return (int)((unsigned)(a << 8 >> 8) * (unsigned)(b << 8 >> 8)); }

// Of numbers to others, with the nearest whole one (rn) or one toward zero, upward or downward; beyond the range of the
// result the nearest that it has; of NaN 0, or 2^63 in 64 bits.
template <class To> static inline To whole(double x) {
    constexpr int sign = (To)-1 < 0, bits = 8 * sizeof(To) - sign;
    const double beyond = std::ldexp(1.0, bits);
    const To high = (To)(~0ull >> (64 - bits)), low = sign ? -high - 1 : 0;
    if (x != x) return bits < 63 ? 0 : (To)(1ull << 63);
    return x < (sign ? -beyond : 0) ? low : x >= beyond ? high : (To)x;
}
#define WHOLE(NAME, TO)                                                                    \
    static inline TO __##NAME##_rn(double x) { return whole<TO>(std::nearbyint(x)); }     \
    static inline TO __##NAME##_rz(double x) { return whole<TO>(std::trunc(x)); }         \
    static inline TO __##NAME##_ru(double x) { return whole<TO>(std::ceil(x)); }          \
    static inline TO __##NAME##_rd(double x) { return whole<TO>(std::floor(x)); }
WHOLE(float2int, int) WHOLE(float2uint, unsigned) WHOLE(float2ll, long long) WHOLE(float2ull, unsigned long long)
WHOLE(double2int, int) WHOLE(double2uint, unsigned) WHOLE(double2ll, long long) WHOLE(double2ull, unsigned long long)
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline double __int2double_rn(int x) { return x; }
static inline float __double2float_rn(double x) { return (float)x; }
static inline int __float_as_int(float x) { return with_bits_of<int>(x); }
static inline long long __double_as_longlong(double x) { return with_bits_of<long long>(x); }
static inline double __longlong_as_double(long long x) { return with_bits_of<double>(x); }

static inline long long clock64() { return steps_of_thread(); }        // not time: basic blocks that it entered
#define clock() ((int)steps_of_thread())                 // a function of this name may be there, of the C library
