// Operands of tensor cores whose numbers are stored transposed in shared memory.

// Loads four blocks of 8 x 8 numbers of bf16, transposed as mma takes A. 8 lanes have the addresses of a block's rows.
__device__ __forceinline__ void load_transposed(unsigned (&a)[4], const void* row) {
#if __CUDA_ARCH__ >= 750
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
#endif
}
