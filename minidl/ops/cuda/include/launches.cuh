// What a kernel begins with that does not let the blocks of the next launch in before its own have ended; the others
// do both where they begin (launch/compiling.py).
__device__ __forceinline__ void await_launches() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
