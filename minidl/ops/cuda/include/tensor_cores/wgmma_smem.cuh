// Products of tensor cores with both factors in shared memory: a group of four warps adds A (64 rows) times B (8, 32,
// 64, 128, 192 or 256 columns), 8 numbers of tf32 or 16 of bf16 deep, to registers. Of its warp's 16 rows, and of each
// 8 columns, a lane holds the same as for mma.
//
// Shared memory is swizzled: a row has 128 bytes, rows follow each other, eight of them start at a multiple of 1,024
// bytes, and the 16 bytes at `offset` are stored at swizzled(offset). A row holds one row of A or column of B, along
// what is summed over. With `transposed`, for bf16 and wgmma only, a row holds 64 rows of A or columns of B, at one
// index of what is summed over.
//
// wgmma_both: by PTX wgmma, of compute capability 9.0 only. -DSM_90A, and compiled for it; elsewhere nothing is
// computed.
// mma_both: by mma, at once.
//
// -DPRECISION (mma.cuh); requires wgmma.cuh. Numbers in float32 are truncated to tf32.
__device__ __forceinline__ int swizzled(int offset) { return offset ^ (offset >> 3 & 0x70); }

// The descriptor of a factor: the next 32 bytes of its rows, from an address on.
__device__ __forceinline__ unsigned long long factor(const void* at) {
    return (unsigned long long)((unsigned)__cvta_generic_to_shared(at) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// The descriptor of a transposed factor: the next 16 rows of shared memory from an address on. 64 numbers more of each
// row are `apart` bytes further.
__device__ __forceinline__ unsigned long long transposed_factor(const void* at, int apart) {
    return (unsigned long long)((unsigned)__cvta_generic_to_shared(at) >> 4) | (unsigned long long)(apart / 16) << 16 |
           64ull << 32 | 1ull << 62;
}

#if PRECISION == BF16
#define SIGNS(number) ", 1, 1, 1, %" number ", %" number ";"
#define BOTH "l"(a), "l"(b), "n"(transposed)
#else
#define SIGNS(number) ", 1, 1, 1;"
#define BOTH "l"(a), "l"(b)
#endif

template <int transposed = 0>
__device__ __forceinline__ void wgmma_both(float (&c)[4], unsigned long long a, unsigned long long b) {
    ON_SM_90A(SHAPE("8") "{%0,%1,%2,%3}, %4, %5" SIGNS("6") : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : BOTH);
}

template <int transposed = 0>
__device__ __forceinline__ void wgmma_both(float (&c)[16], unsigned long long a, unsigned long long b) {
    ON_SM_90A(SHAPE("32") "{" TEN() "%10,%11,%12,%13,%14,%15}, %16, %17" SIGNS("18") : EIGHT(0), EIGHT(8) : BOTH);
}

template <int transposed = 0>
__device__ __forceinline__ void wgmma_both(float (&c)[32], unsigned long long a, unsigned long long b) {
    ON_SM_90A(SHAPE("64") "{" TEN() TEN(1) TEN(2) "%30,%31}, %32, %33" SIGNS("34") : THIRTY_TWO(0) : BOTH);
}

template <int transposed = 0>
__device__ __forceinline__ void wgmma_both(float (&c)[64], unsigned long long a, unsigned long long b) {
    ON_SM_90A(SHAPE("128") "{" SIXTY "%60,%61,%62,%63}, %64, %65" SIGNS("66") : THIRTY_TWO(0), THIRTY_TWO(32) : BOTH);
}

template <int transposed = 0>
__device__ __forceinline__ void wgmma_both(float (&c)[96], unsigned long long a, unsigned long long b) {
    ON_SM_90A(SHAPE("192") "{" SIXTY TEN(6) TEN(7) TEN(8) "%90,%91,%92,%93,%94,%95}, %96, %97" SIGNS("98")
              : THIRTY_TWO(0), THIRTY_TWO(32), THIRTY_TWO(64) : BOTH);
}

template <int transposed = 0>
__device__ __forceinline__ void wgmma_both(float (&c)[128], unsigned long long a, unsigned long long b) {
    ON_SM_90A(SHAPE("256") "{" SIXTY TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11)
              "%120,%121,%122,%123,%124,%125,%126,%127}, %128, %129" SIGNS("130")
              : THIRTY_TWO(0), THIRTY_TWO(32), THIRTY_TWO(64), THIRTY_TWO(96) : BOTH);
}

template <int SIZE>
__device__ __forceinline__ void mma_both(float (&c)[SIZE], const unsigned char* a, const unsigned char* b) {
    constexpr unsigned KEPT = PRECISION == BF16 ? ~0u : 0xffffe000u;
    const int warp = threadIdx.x / 32 % 4 * 16, own = threadIdx.x % 32 / 4, within = threadIdx.x % 4 * 4;
    const int base = (int)__cvta_generic_to_shared(a) & 0x60;            // of a row's 128 bytes, those that come next
    a -= base;
    b -= base;
    // Rows 8 apart are swizzled in the same way
    const int low = swizzled(own * 128 + base + within), high = swizzled(own * 128 + base + 16 + within);
    unsigned left[4];
#pragma unroll
    for (int e = 0; e < 4; ++e)
        left[e] = *(const unsigned*)(a + warp * 128 + e % 2 * 1024 + (e < 2 ? low : high)) & KEPT;
#pragma unroll
    for (int block = 0; block < SIZE / 4; ++block) {
        const unsigned right[2] = {*(const unsigned*)(b + block * 1024 + low), *(const unsigned*)(b + block * 1024 + high)};
        mma(c + 4 * block, left, right);
    }
}
