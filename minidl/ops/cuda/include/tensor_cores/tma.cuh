// Copies of whole boxes of an array into shared memory and back, done by the hardware (TMA: PTX cp.async.bulk.tensor,
// of compute capability 9.0), and the barriers in shared memory (mbarrier) that tell when they have arrived. One thread
// starts a copy. A box's rows have 128 bytes and the layout that wgmma_smem.cuh reads, unless the map says otherwise.
//
// A barrier's phase ends when it has as many arrivals as it was started for, and the bytes that it was told to expect.
// Threads wait for a phase by its parity: 0, 1, 0, ...; before the first phase has ended, parity 1 counts as over.
//
// Requires wgmma.cuh. -DSM_90A, and compiled for it; elsewhere nothing is done.

// The memory layout of an array, and of a box of it, as the driver encodes them.
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

typedef unsigned long long Barrier;

__device__ __forceinline__ unsigned shared_address(const void* at) { return (unsigned)__cvta_generic_to_shared(at); }

__device__ __forceinline__ void start_barrier(Barrier* barrier, int arrivals) {
    ON_SM_90A("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// For a ring of stages: each is full when one thread's copies have come, and empty when all warps that read it are
// done.
__device__ __forceinline__ void start_barriers(Barrier* full, Barrier* empty, int stages, int warps) {
    for (int i = 0; i < stages; ++i) {
        start_barrier(full + i, 1);
        start_barrier(empty + i, warps);
    }
}

// Copies see what start_barrier wrote, once the block has synchronized.
__device__ __forceinline__ void publish_barriers() { ON_SM_90A("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrive, and expect `bytes` bytes more in this phase.
__device__ __forceinline__ void expect_bytes(Barrier* barrier, int bytes) {
    ON_SM_90A("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
              : "memory");
}

__device__ __forceinline__ void arrive(Barrier* barrier) {
    ON_SM_90A("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void await(Barrier* barrier, int parity) {
    int over = 1;
    do {
        ON_SM_90A("{.reg .pred over;\n\tmbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n\t"
                  "selp.b32 %0, 1, 0, over;}" : "=r"(over) : "r"(shared_address(barrier)), "r"(parity) : "memory");
    } while (!over);
}

// A box of a matrix, from (row, column) on.
__device__ __forceinline__ void copy_rows(void* to, const TensorMap* map, Barrier* barrier, int column, int row) {
    ON_SM_90A("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
              "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)),
              "r"(column), "r"(row)
              : "memory");
}

// A box of images in NHWC, from (image n, row h, column w, channel c) on. Outside of the images it is zero.
__device__ __forceinline__ void copy_pixels(void* to, const TensorMap* map, Barrier* barrier, int c, int w, int h,
                                            int n) {
    ON_SM_90A("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
              "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)),
              "r"(c), "r"(w), "r"(h), "r"(n)
              : "memory");
}

// If `first`, what is written with this policy leaves the second-level cache before all else.
__device__ __forceinline__ unsigned long long eviction(bool first) {
    unsigned long long policy = 0;
    if (first)
        ON_SM_90A("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    else
        ON_SM_90A("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// The reverse of copy_pixels: what is outside of the images is left out. What was written to shared memory must be
// published (wgmma.cuh) before the block, or the threads that wrote it, meet the thread that calls this. policy: see
// eviction.
__device__ __forceinline__ void store_pixels(const TensorMap* map, const void* from, int c, int w, int h, int n,
                                             unsigned long long policy) {
    ON_SM_90A("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint "
              "[%0, {%2, %3, %4, %5}], [%1], %6;" ::"l"(map),
              "r"(shared_address(from)), "r"(c), "r"(w), "r"(h), "r"(n), "l"(policy)
              : "memory");
}

__device__ __forceinline__ void end_stores() { ON_SM_90A("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until shared memory that this thread has stored from can be written again.
__device__ __forceinline__ void await_stores() { ON_SM_90A("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// The registers of each thread of this group of four warps.
template <int COUNT> __device__ __forceinline__ void keep_registers() {
    ON_SM_90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void take_registers() {
    ON_SM_90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
