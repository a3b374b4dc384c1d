// The 2009 report, section 6.5, Fig. 10: supersampling by 4x4. The input is the matrix of Fig. 9, 64F x N: a column per
// image, in it 8x8 derivatives per filter. The output has a plate of 32x32 per image and filter.
// Grid: (N / 16, 64F / 16), without remainders. Block: 16 x 16.
extern "C" __global__ void supersample(const float* derivatives, float* plates, int F, int N) {
    __shared__ float chunk[16][16 + 1];                  // one column of padding
    const int t = threadIdx.y * 16 + threadIdx.x;
    chunk[threadIdx.y][threadIdx.x] = derivatives[(blockIdx.y * 16 + threadIdx.y) * N + blockIdx.x * 16 + threadIdx.x];
    __syncthreads();
    const int unit = blockIdx.y * 16 + t / 4 % 16;       // 4 threads have one value
    for (int first = 0; first < 16; first += 4) {        // 4 of the 16 images at a time
        const int image = first + t / 64;
        float* plate = plates + ((blockIdx.x * 16 + image) * F + unit / 64) * 1024;
        for (int row = 0; row < 4; row++)
            plate[(unit % 64 / 8 * 4 + row) * 32 + unit % 8 * 4 + t % 4] = chunk[t / 4 % 16][image];
    }
}
