// Lab 7: the convolution of lab 5 through tiles in shared memory, after PMPP's figure of the tiled kernel (Fig. 16.13).
#define TILE_WIDTH 16

// As conv of lab 5, with the same grid and blocks. For each channel a block loads the pixels that its outputs need, a
// square of TILE_WIDTH + K - 1, and the filter, into shared memory: sizeof(float) * (square + K * K) bytes.
extern "C" __global__ void conv_tiled(const float* x, const float* filters, float* y, int C, int H, int W, int M, int K) {
    extern __shared__ float shared[];
    const int H_out = H - K + 1, W_out = W - K + 1;
    const int W_grid = (W_out + TILE_WIDTH - 1) / TILE_WIDTH;
    const int n = blockIdx.x, m = blockIdx.y, h0 = threadIdx.y, w0 = threadIdx.x;
    const int h_base = blockIdx.z / W_grid * TILE_WIDTH, w_base = blockIdx.z % W_grid * TILE_WIDTH;
    const int side = TILE_WIDTH + K - 1;
    float* tile = shared;
    float* filter = shared + side * side;
    float sum = 0;
    for (int c = 0; c < C; c++) {
        for (int i = h0; i < side; i += TILE_WIDTH) {
            for (int j = w0; j < side; j += TILE_WIDTH) {
                const bool there = h_base + i < H && w_base + j < W;
                tile[i * side + j] = there ? x[((n * C + c) * H + h_base + i) * W + w_base + j] : 0;
            }
        }
        for (int k = h0 * TILE_WIDTH + w0; k < K * K; k += TILE_WIDTH * TILE_WIDTH) {
            filter[k] = filters[(m * C + c) * K * K + k];
        }
        __syncthreads();
        for (int p = 0; p < K; p++) {
            for (int q = 0; q < K; q++) {
                sum += tile[(h0 + p) * side + w0 + q] * filter[p * K + q];
            }
        }
        __syncthreads();
    }
    if (h_base + h0 < H_out && w_base + w0 < W_out) {
        y[((n * M + m) * H_out + h_base + h0) * W_out + w_base + w0] = sum;
    }
}
