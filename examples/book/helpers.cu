// What the sources leave to other chapters and libraries: products of matrices, the bias, and the sum over a batch.

// Image n of C (I x J) = A (I x L) * B (L x J), for Fig. 16.15. Grid: (J / 16, I / 16), rounded up. Block: 16 x 16.
extern "C" __global__ void gemm(int I, int J, int L, const float* A, const float* B, float* C, int n) {
    int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= I || j >= J) return;
    float sum = 0.f;
    for (int l = 0; l < L; l++) sum += A[i * L + l] * B[l * J + j];
    C[(n * I + i) * J + j] = sum;
}

// The same with B transposed (J x L): the 3rd edition's unrolled matrix has a row per output element
extern "C" __global__ void gemm_transposed(int I, int J, int L, const float* A, const float* B, float* C, int n) {
    int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= I || j >= J) return;
    float sum = 0.f;
    for (int l = 0; l < L; l++) sum += A[i * L + l] * B[j * L + l];
    C[(n * I + i) * J + j] = sum;
}

extern "C" __global__ void add_bias(const float* b, float* y, int M, int pixels, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] += b[i / pixels % M];
}

// The report's section 6.7
extern "C" __global__ void sum_images(const float* parts, float* sums, int N, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float sum = 0.f;
    for (int n = 0; n < N; n++) sum += parts[n * count + i];
    sums[i] = sum;
}
