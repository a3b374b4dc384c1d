// Products of tensor cores of compute capability 9.0 only (PTX wgmma) with A in registers, as for mma: 64 rows, 16 of
// each warp, and 8 numbers of tf32 or 16 of bf16 each. B has 16, 32, 64 or 128 columns. It is in shared memory in
// blocks of 8 columns by 16 bytes, each in 128 bytes without gaps: [column % 8][numbers of a column], or with
// `transposed`, for bf16 only, [row % 8][numbers of a row].
//
// -DPRECISION (mma.cuh); requires wgmma.cuh. -DSM_90A, and compiled for it; elsewhere nothing is computed.

// The descriptor of B at an address, with the distances, in bytes, of blocks along rows (which are summed over) and
// columns.
__device__ __forceinline__ unsigned long long blocks_of(const void* at, int along_rows, int along_columns) {
    return (unsigned long long)((unsigned)__cvta_generic_to_shared(at) >> 4) |
           (unsigned long long)(along_rows >> 4) << 16 | (unsigned long long)(along_columns >> 4) << 32;
}

#if PRECISION == BF16
#define TURNED(number) ", 1, 1, 1, %" number ";"
#define FACTORS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(transposed)
#else
#define TURNED(number) ", 1, 1, 1;"
#define FACTORS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
#endif

template <int transposed>
__device__ __forceinline__ void wgmma_rows(float (&c)[8], const unsigned (&a)[4], unsigned long long b) {
    ON_SM_90A(SHAPE("16") "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12" TURNED("13") : EIGHT(0) : FACTORS);
}

template <int transposed>
__device__ __forceinline__ void wgmma_rows(float (&c)[16], const unsigned (&a)[4], unsigned long long b) {
    ON_SM_90A(SHAPE("32") "{" TEN() "%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20" TURNED("21")
              : EIGHT(0), EIGHT(8) : FACTORS);
}

template <int transposed>
__device__ __forceinline__ void wgmma_rows(float (&c)[32], const unsigned (&a)[4], unsigned long long b) {
    ON_SM_90A(SHAPE("64") "{" TEN() TEN(1) TEN(2) "%30,%31}, {%32,%33,%34,%35}, %36" TURNED("37")
              : THIRTY_TWO(0) : FACTORS);
}

template <int transposed>
__device__ __forceinline__ void wgmma_rows(float (&c)[64], const unsigned (&a)[4], unsigned long long b) {
    ON_SM_90A(SHAPE("128") "{" SIXTY "%60,%61,%62,%63}, {%64,%65,%66,%67}, %68" TURNED("69")
              : THIRTY_TWO(0), THIRTY_TWO(32) : FACTORS);
}
