// What a kernel's source finds in the emulator in place of CUDA's own names. See scheduler.cpp, which runs the threads.
//
// The loader takes out the functions of common.cuh and mma.cuh that hold instructions of the GPU. Those here replace
// them: Pack and start_copy check the alignment that vector accesses need, and copies arrive when they are awaited.
#include "standard.h"

#ifndef UNPOISONED                                       // with more barriers, which hide that others lack
#define POISON                                           // generated kernels forget what an image left
#endif
#ifndef REAL
#define REAL float
#endif
#ifdef WATCH
#define __global__ __attribute__((flatten))              // one function, as nvcc makes it: counts.cpp goes by its order
#else
#define __global__
#endif
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(size) __attribute__((aligned(size)))
#define __shared__ static __attribute__((section("block_shared")))

struct uint3;
struct Place {
    unsigned x, y, z;
    inline operator uint3() const;
};
struct alignas(16) int4 { int x, y, z, w; };

extern "C" {
extern Place threadIdx, blockIdx, blockDim, gridDim;
extern unsigned char* dynamic_shared;
extern unsigned char __start_block_shared[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_block_shared[] __attribute__((weak, visibility("hidden")));
const char* run_grid(const int* sizes, unsigned char* shared, unsigned char* shared_end, void (*thread)(void**),
                     void** arguments);
void block_barrier();
void warp_barrier(unsigned mask);
void await_barrier(int number, int threads);
void arrive_at_barrier(int number, int threads);
void start_phases(void* barrier, int arrivals);
void expect_in_phase(void* barrier, int arrivals, int bytes);
void await_phase(void* barrier, int parity);
const unsigned char* exchange(const void* mine, size_t size, unsigned mask = ~0u);   // all lanes', EXCHANGED bytes apart
int lane();
unsigned exchanged_with();                                       // lanes that took part in the last exchange
unsigned live_lanes();
void take_undefined(void* value, size_t size, int lane);         // what `lane` did not give in the last exchange
long long steps_of_thread();
int print_of_kernel(const char* format, ...);
void queue_copy(void* to, const void* from, size_t size, bool valid);
void close_copies();
void arrive_copies(int later);
void see_aligned(const void* address, size_t size, const char* what);
void see(bool right, const char* message);
}
constexpr int EXCHANGED = 32;

static inline size_t __cvta_generic_to_shared(const void* at) { return (const unsigned char*)at - dynamic_shared; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline float __fdividef(float a, float b) { return a / b; }
template <class To, class From> static inline To with_bits_of(From from) {
    To to;
    static_assert(sizeof to == sizeof from, "the same bits");
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline float __int_as_float(int x) { return with_bits_of<float>(x); }
static inline float __uint_as_float(unsigned x) { return with_bits_of<float>(x); }
static inline unsigned __float_as_uint(float x) { return with_bits_of<unsigned>(x); }
static inline uint64_t __umul64hi(uint64_t a, uint64_t b) { return (unsigned __int128)a * b >> 64; }
static inline void __syncwarp(unsigned mask = ~0u) { warp_barrier(mask); }

template <class T> static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    const unsigned char* lanes = exchange(&value, sizeof value, mask);
    const int of = lane() / width * width + (unsigned)from % width;
    if (exchanged_with() >> of & 1) memcpy(&value, lanes + of * EXCHANGED, sizeof value);
    else take_undefined(&value, sizeof value, of);
    return value;
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int step, int width = 32) {
    const int of = lane() ^ step;
    return __shfl_sync(mask, value, of / width > lane() / width ? lane() : of);
}

#include "names.h"

// Everything below has internal linkage: what a kernel does not need is not compiled, and its shared arrays are in one
// section. The loader closes the namespace.
namespace {
using std::exp, std::fmax, std::log, std::tanh;

// Copied as the GPU does, by accesses of up to 16 bytes that must be aligned; an object of a thread's own may be
// anywhere. Zeros at first.
template <int V> struct Pack {
    REAL v[V];

    Pack() : v{} {}
    template <class... X> Pack(REAL first, X... rest) : v{first, (REAL)rest...} {}
    Pack(const Pack& from) { *this = from; }
    UNWATCHED static void copy(REAL* to, const REAL* from) { memcpy(to, from, sizeof v); }
    Pack& operator=(const Pack& from) {
        see_aligned(&from, sizeof v, "a pack is read");
        see_aligned(this, sizeof v, "a pack is written");
        watch_copy(this, &from, sizeof v, 1);
        copy(v, from.v);
        return *this;
    }
};

template <class T> void start_copy(T* to, const T* from, bool valid) {
    see_aligned(to, sizeof(T), "a copy is started to");
    see_aligned(from, sizeof(T), "a copy is started from");
    watch_copy(to, from, sizeof(T), valid);
    queue_copy(to, from, sizeof(T), valid);
}
template <class T> void stream_copy(T* to, const T* from) { start_copy(to, from, true); }
void end_copies() { close_copies(); }
template <int later> void await_copies() { arrive_copies(later); }
void await_turn(int number) { await_barrier(number, 256); }
void give_turn(int number) { arrive_at_barrier(number, 256); }

// Rounded to nearest, ties away from zero: cvt.rna.tf32.
unsigned tf32(float x) {
    unsigned bits = __float_as_uint(x);
    return (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0x1000) & ~0x1fffu;
}

// A bf16 of a pair, and a pair of two numbers rounded to nearest, ties to even: cvt.rn.bf16x2.
float of_bf16_pair(unsigned pair, int which) { return __uint_as_float(which ? pair & 0xffff0000 : pair << 16); }
unsigned bf16_pair(float low, float high) {
    auto rounded = [](float x) {
        unsigned bits = __float_as_uint(x);
        return x != x ? 0x7fffu : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    };
    return rounded(low) | rounded(high) << 16;
}

#define BF16 3                                           // as in mma.cuh
#if PRECISION == BF16
constexpr int NUMBERS = 2;                               // in a register of an operand
#else
constexpr int NUMBERS = 1;
#endif

// Number `which` of a register of an operand.
double operand(unsigned bits, int which) {
    if (NUMBERS == 2) return of_bf16_pair(bits, which);
    see(!(bits & 0x1fff), "an operand of mma is not rounded to tf32");
    return __uint_as_float(bits);
}

// mma.sync: exact products of 8, of bf16 16, added once in double. Tensor cores drop bits that are not 0 in operands.
void mma(float* c, const unsigned* a, const unsigned* b) {
    struct Fragment { unsigned a[4], b[2]; } mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, of;
    static_assert(sizeof mine <= EXCHANGED, "a lane's operands are exchanged at once");
    const unsigned char* lanes = exchange(&mine, sizeof mine);
    auto element = [&](int from) -> const Fragment& {
        memcpy(&of, lanes + from * EXCHANGED, sizeof of);
        return of;
    };
    int group = lane() / 4, within = lane() % 4;
    for (int e = 0; e < 4; ++e) {
        int row = group + e / 2 * 8, column = 2 * within + e % 2;
        double sum = 0;
        for (int k = 0; k < 8; ++k)
            for (int which = 0; which < NUMBERS; ++which) {
                double left = operand(element(row % 8 * 4 + k % 4).a[row / 8 + k / 4 * 2], which);
                sum += left * operand(element(column * 4 + k % 4).b[k / 4], which);
            }
        c[e] = (float)(c[e] + sum);
    }
}

// ldmatrix.x4.trans: four blocks of 8 rows of 16 bytes; 8 lanes give the addresses of each.
void load_transposed(unsigned (&a)[4], const void* row) {
    see_aligned(row, 16, "a row of ldmatrix is read");
    unsigned char line[16];
    memcpy(line, row, sizeof line);
    const unsigned char* lanes = exchange(line, sizeof line);
    for (int block = 0; block < 4; ++block) {
        unsigned short both[2];
        for (int e = 0; e < 2; ++e)
            memcpy(&both[e], lanes + (block * 8 + lane() % 4 * 2 + e) * EXCHANGED + lane() / 4 * 2, 2);
        a[block] = both[0] | (unsigned)both[1] << 16;
    }
}

// wgmma with A in registers, at once: B is stored in blocks of 8 columns by 16 bytes, or of 8 rows by 16 bytes.
template <int transposed, int SIZE> void wgmma_rows(float (&c)[SIZE], const unsigned (&a)[4], unsigned long long b) {
    const unsigned char* lanes = exchange(a, sizeof a);
    auto bytes = [=](int from) { return (size_t)(b >> from & 0x3fff) * 16; };
    auto number = [](const unsigned char* at, int which) UNWATCHED {
        unsigned bits;
        memcpy(&bits, at, sizeof bits);
        return operand(bits, which);
    };
    int group = lane() / 4, within = lane() % 4;
    for (int e = 0; e < SIZE; ++e) {
        int row = group + e / 2 % 2 * 8, column = e / 4 * 8 + 2 * within + e % 2;
        const unsigned char* columns = dynamic_shared + bytes(0) + column / 8 * bytes(32);
        double sum = 0;
        for (int k = 0; k < 8 * NUMBERS; ++k) {
            int word = k / NUMBERS, which = k % NUMBERS;
            double right;
            if (transposed) {
                unsigned short bits;
                const size_t at = bytes(0) + k / 8 * bytes(32) + k % 8 * 128 + column * 2;      // where swizzled
                memcpy(&bits, b >> 62 == 1 ? dynamic_shared + (at ^ (at >> 3 & 0x70))
                                           : columns + k / 8 * bytes(16) + k % 8 * 16 + column % 8 * 2, sizeof bits);
                right = of_bf16_pair(bits, 0);
            } else {
                right = number(columns + word / 4 * bytes(16) + column % 8 * 16 + word % 4 * 4, which);
            }
            sum += number(lanes + (group * 4 + word % 4) * EXCHANGED + (row / 8 + word / 4 * 2) * 4, which) * right;
        }
        c[e] = (float)(c[e] + sum);
    }
}

template <int SIZE> void wgmma(float (&c)[SIZE], const unsigned (&a)[4], unsigned long long b) {
    wgmma_rows<0>(c, a, b);
}

// wgmma of two factors in shared memory (wgmma_smem.cuh), at once.
template <int transposed = 0, int SIZE>
void wgmma_both(float (&c)[SIZE], unsigned long long a, unsigned long long b) {
    constexpr int size = 4 / NUMBERS, depth = 32 / size;
    auto number = [=](unsigned long long factor, int row, int k) UNWATCHED {
        const size_t along = (factor >> 16 & 0x3fff) * 16, eights = (factor >> 32 & 0x3fff) * 16;
        const size_t start = (factor & 0x3fff) * 16 + (transposed ? k / 8 : row / 8) * eights;
        size_t at = start + (transposed ? k % 8 * 128 + row / 64 * along + row % 64 * size : row % 8 * 128 + k * size);
        at ^= at >> 3 & 0x70;
        if (!(factor >> 62)) at = start + row % 8 * 16 + k * size / 16 * along + k * size % 16;
        unsigned bits = 0;
        memcpy((char*)&bits + 4 - size, dynamic_shared + at, size);
        return (double)__uint_as_float(size == 4 ? bits & ~0x1fffu : bits);
    };
    see(a >> 62 < 2 && b >> 62 < 2, "a factor of wgmma is swizzled otherwise than by 128 bytes");
    see(!transposed || (NUMBERS == 2 && a >> 62 && b >> 62), "wgmma transposes bf16 alone, here swizzled");
    int group = lane() / 4, within = lane() % 4, warp = threadIdx.x / 32 % 4;
    for (int e = 0; e < SIZE; ++e) {
        double sum = 0;
        for (int k = 0; k < depth; ++k)
            sum += number(a, warp * 16 + group + e / 2 % 2 * 8, k) * number(b, e / 4 * 8 + 2 * within + e % 2, k);
        c[e] = (float)(c[e] + sum);
    }
}

// Copies of boxes (tma.cuh), at once. A map is the array's address, the bytes of a number, the number of axes, their
// sizes, and those of a box, the last axis first; and whether float32 becomes tf32 on the way into shared memory.
void start_barrier(void* barrier, int arrivals) { start_phases(barrier, arrivals); }
void expect_bytes(void* barrier, int bytes) { expect_in_phase(barrier, 1, bytes); }
void arrive(void* barrier) { expect_in_phase(barrier, 1, 0); }
void await(void* barrier, int parity) { await_phase(barrier, parity); }

// each(where a number is in shared memory, and in the array or null, its bytes), of all in a box; returns their bytes.
template <class Map, class Each>
int each_of_box(const void* shared, const Map* map, std::initializer_list<int> first, Each each) {
    const unsigned long long *words = map->words, *sizes = words + 3, *box = sizes + 5;
    const int axes = (int)words[2], size = (int)words[1], numbers = (int)box[0];
    see(axes == (int)first.size(), "a copy has other coordinates than its array has axes");
    see(numbers * size == 128, "a box's rows are not of 128 bytes");
    size_t start = (const unsigned char*)shared - dynamic_shared, rows = 1;
    see(start % 1024 == 0, "a box does not start on a multiple of 1,024 bytes");
    for (int axis = 1; axis < axes; ++axis) rows *= box[axis];
    for (size_t row = 0; row < rows; ++row) {
        bool inside = true;
        size_t from = 0, step = 1, rest = row;
        for (int axis = 0; axis < axes; ++axis) {
            const long long at = first.begin()[axis] + (axis ? (long long)(rest % box[axis]) : 0);
            if (axis) {
                rest /= box[axis];
                inside = inside && at >= 0 && at < (long long)sizes[axis];
            }
            from += at * step;
            step *= sizes[axis];
        }
        for (int i = 0; i < 128; i += size) {
            const size_t place = start + row * 128 + i;
            unsigned char* there = dynamic_shared + (place ^ (place >> 3 & 0x70));
            const long long column = first.begin()[0] + i / size;
            const bool any = inside && column >= 0 && column < (long long)sizes[0];
            each(there, any ? (char*)words[0] + from * size + i : nullptr, size);
        }
    }
    return (int)rows * 128;
}
template <class Map> void copy_box(void* to, const Map* map, void* barrier, std::initializer_list<int> first) {
    const int bytes = each_of_box(to, map, first, [map](unsigned char* there, const char* number, int size) {
        float x = 0;
        if (number) memcpy(&x, number, size);
        const unsigned rounded = tf32(x);
        memcpy(there, size == 4 && map->words[13] ? (const void*)&rounded : &x, size);
    });
    expect_in_phase(barrier, 0, -bytes);
}
template <class Map> void store_pixels(const Map* map, const void* from, int c, int w, int h, int n, unsigned long long) {
    each_of_box(from, map, {c, w, h, n}, [](const unsigned char* there, char* number, int size) {
        if (!number) return;
        memcpy(number, there, size);
        queue_copy(number, there, size, true);               // again when it is awaited: wrongly, if written in between
    });
}
void end_stores() { close_copies(); }
void await_stores() { arrive_copies(0); }
template <class Map> void copy_rows(void* to, const Map* map, void* barrier, int column, int row) {
    copy_box(to, map, barrier, {column, row});
}
template <class Map> void copy_pixels(void* to, const Map* map, void* barrier, int c, int w, int h, int n) {
    copy_box(to, map, barrier, {c, w, h, n});
}
