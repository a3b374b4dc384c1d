// Operands of tensor cores whose numbers lie in shared memory the other way round.

// Four blocks of 8 x 8 numbers of bf16, each a row of 16 bytes by 8 lanes' addresses, transposed as mma takes A.
__device__ __forceinline__ void load_transposed(unsigned (&a)[4], const void* row) {
#if __CUDA_ARCH__ >= 750
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
#endif
}
