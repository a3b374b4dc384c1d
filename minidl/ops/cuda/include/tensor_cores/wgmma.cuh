// Products of tensor cores of compute capability 9.0 alone (PTX wgmma), and what goes with them: four warps, a group,
// add A (64 x 8, tf32, 16 rows per warp) times B (8 x COLUMNS) to C, asynchronously: registers and shared memory that
// products read must stay as they are until these have been awaited.
//
// -DSM_90A, and compiled for it; elsewhere nothing is computed.
constexpr int GROUP = 128, COLUMNS = 64;  // threads that multiply together

// B, 8 x 64 numbers that lie in shared memory as [row / 4][column][row % 4], as wgmma takes it: the address, the distance
// of its halves, and that of 8 columns, each in units of 16 bytes.
__device__ __forceinline__ unsigned long long matrix(const REAL* at) {
    return (unsigned long long)((unsigned)__cvta_generic_to_shared(at) >> 4) | (unsigned long long)COLUMNS << 16 |
           8ull << 32;
}

// c += a b. A lane holds of its warp's rows of a, and of each 8 columns of c, what it does for mma.
__device__ __forceinline__ void wgmma(float (&c)[COLUMNS / 2], const unsigned (&a)[4], unsigned long long b) {
#if SM_90A && __CUDA_ARCH__ == 900
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
        "%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]),
          "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]),
          "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]),
          "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

// Registers that other instructions wrote are there for the products that follow.
__device__ __forceinline__ void begin_products() {
#if SM_90A && __CUDA_ARCH__ == 900
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void end_products() {
#if SM_90A && __CUDA_ARCH__ == 900
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Wait until at most `later` of the youngest batches of products are under way.
template <int later> __device__ __forceinline__ void await_products() {
#if SM_90A && __CUDA_ARCH__ == 900
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(later) : "memory");
#endif
}

// What this thread has written to shared memory is there for the products behind the next barrier.
__device__ __forceinline__ void publish() {
#if SM_90A && __CUDA_ARCH__ == 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Two groups take turns: the one waits for a turn, until the other has given it.
__device__ __forceinline__ void await_turn(int number) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + number), "n"(2 * GROUP) : "memory");
}

__device__ __forceinline__ void give_turn(int number) {
    asm volatile("bar.arrive %0, %1;" ::"r"(1 + number), "n"(2 * GROUP) : "memory");
}
