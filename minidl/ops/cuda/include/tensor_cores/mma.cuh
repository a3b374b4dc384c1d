// One product of tensor cores (PTX mma.sync), and operands rounded for it.
//
// A warp adds A (16 x 8, in BF16 16 x 16) times B (8 x 8, in BF16 16 x 8) to C (16 x 8). With group = lane / 4 and
// within = lane % 4, a lane holds for TF32: of A, rows group and group + 8 of column within, then both rows of column
// within + 4; of B, rows within and within + 4 of column group; of C, columns 2 within and 2 within + 1 of row group,
// then of group + 8.
//
// -DPRECISION: FP32 (no tensor cores), TF32, TF32X3 or BF16. Before compute capability 8.0 nothing is computed.
#define FP32 0
#define TF32 1
#define TF32X3 2
#define BF16 3
#ifndef PRECISION
#define PRECISION FP32
#endif

__device__ __forceinline__ unsigned tf32(float x) {
    unsigned bits = 0;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#endif
    return bits;
}

// A number as tensor cores take it. With TF32X3 it is split: part 0 is rounded to tf32, part 1 is what the rounding
// lost.
constexpr int PARTS = PRECISION == TF32X3 ? 2 : 1;

__device__ __forceinline__ unsigned lost_of(float x, unsigned rounded) { return tf32(x - __uint_as_float(rounded)); }
__device__ __forceinline__ unsigned part_of(float x, int part) { return part ? lost_of(x, tf32(x)) : tf32(x); }

__device__ __forceinline__ unsigned bf16_pair(float low, float high) {
    unsigned bits = 0;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
#endif
    return bits;
}

__device__ __forceinline__ void mma(float* c, const unsigned* a, const unsigned* b) {
#if __CUDA_ARCH__ >= 800
#if PRECISION == BF16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// c += a b: with TF32X3 all of (ah + al)(bh + bl) except al bl, the small terms first.
__device__ __forceinline__ void products(float* c, const unsigned (&a)[PARTS][4], const unsigned (&b)[PARTS][2]) {
    if (PARTS == 2) {
        mma(c, a[PARTS - 1], b[0]);
        mma(c, a[0], b[PARTS - 1]);
    }
    mma(c, a[0], b[0]);
}
