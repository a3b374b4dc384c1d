// Products of tensor cores of compute capability 9.0 only (PTX wgmma), and what goes with them. Four warps, a group,
// add A (64 x 8, tf32, 16 rows per warp) times B (8 x COLUMNS) to C, asynchronously. Registers and shared memory that
// products read must not change until the products have been awaited.
//
// -DSM_90A, and compiled for it; elsewhere nothing is computed.
constexpr int GROUP = 128, COLUMNS = 64;  // threads that multiply together

#if SM_90A && __CUDA_ARCH__ == 900
#define ON_SM_90A(...) asm volatile(__VA_ARGS__)
#else
#define ON_SM_90A(...)
#endif

// The descriptor of B for wgmma. B is 8 x 64 numbers, in shared memory as [row / 4][column][row % 4]. It has the
// address, the distance of B's halves, and that of 8 columns, each in units of 16 bytes.
__device__ __forceinline__ unsigned long long matrix(const REAL* at) {
    return (unsigned long long)((unsigned)__cvta_generic_to_shared(at) >> 4) | (unsigned long long)COLUMNS << 16 |
           8ull << 32;
}

#if PRECISION == BF16
#define SHAPE(columns) "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 "
#else
#define SHAPE(columns) "wgmma.mma_async.sync.aligned.m64n" columns "k8.f32.tf32.tf32 "
#endif

// In the text of a product: ten of its operands, %t0 to %t9; and what it adds to, from c[i] on.
#define TEN(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define SIXTY TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5)
#define EIGHT(i)                                                                                                       \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]),        \
        "+f"(c[i + 7])
#define THIRTY_TWO(i) EIGHT(i), EIGHT(i + 8), EIGHT(i + 16), EIGHT(i + 24)

// c += a b. Of its warp's rows of a, and of each 8 columns of c, a lane holds the same as for mma.
__device__ __forceinline__ void wgmma(float (&c)[COLUMNS / 2], const unsigned (&a)[4], unsigned long long b) {
    ON_SM_90A("wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
              "{" TEN() TEN(1) TEN(2) "%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1;"
              : THIRTY_TWO(0)
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// The products that follow see registers that other instructions wrote.
__device__ __forceinline__ void begin_products() {
    ON_SM_90A("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void end_products() {
    ON_SM_90A("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Wait until at most `later` of the youngest batches of products are under way.
template <int later> __device__ __forceinline__ void await_products() {
    ON_SM_90A("wgmma.wait_group.sync.aligned %0;" ::"n"(later) : "memory");
}

// The products after the next barrier see what this thread has written to shared memory.
__device__ __forceinline__ void publish() {
    ON_SM_90A("fence.proxy.async.shared::cta;" ::: "memory");
}

// Two groups take turns: one waits for its turn until the other has given it.
__device__ __forceinline__ void await_turn(int number) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + number), "n"(2 * GROUP) : "memory");
}

__device__ __forceinline__ void give_turn(int number) {
    asm volatile("bar.arrive %0, %1;" ::"r"(1 + number), "n"(2 * GROUP) : "memory");
}
