// The 2009 report, section 6.3, Fig. 7: the averages of the 4x4 windows of 32x32 outputs of a filter, a "plate".
// Grid: one block per plate, F * N. Block: (y, x) = (8, 32).
extern "C" __global__ void subsample(const float* plates, float* targets) {
    __shared__ float sums[4][64 + 8];                          // a column per window; 8 columns of padding
    const int t = threadIdx.y * 32 + threadIdx.x;
    const float* plate = plates + blockIdx.x * 1024 + threadIdx.y * 4 * 32 + threadIdx.x;
    float sum = 0.f;
    for (int row = 0; row < 4; row++) sum += plate[row * 32];  // a thread adds up 4 pixels of one column
    sums[t % 4][t / 4] = sum;
    __syncthreads();
    if (t < 128) sums[t % 2][t / 2] += sums[t % 2 + 2][t / 2];  // 2 threads per window, in the first 4 warps
    __syncthreads();
    if (t < 128 && t % 2 == 0) sums[0][t / 2] += sums[1][t / 2];
    __syncthreads();
    if (t < 64) targets[blockIdx.x * 64 + t] = sums[0][t] / 16.f;
}
