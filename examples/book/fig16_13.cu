// PMPP, 3rd edition, Fig. 16.13: the same by tiles in shared memory. A thread computes one output element.
// Grid: (N, M, tiles of a map). Block: TILE_WIDTH x TILE_WIDTH. Shared: the input tile and the filter of a channel,
// 4 * ((TILE_WIDTH + K - 1)^2 + K^2) bytes.
#define TILE_WIDTH 16
#define X(n, c, h, w) X[(((n) * C + (c)) * H + (h)) * W + (w)]
#define F(m, c, p, q) F[(((m) * C + (c)) * K + (p)) * K + (q)]
#define Y(n, m, h, w) Y[(((n) * M + (m)) * H_out + (h)) * W_out + (w)]
#define X_shared(i, j) X_shared[(i) * X_tile_width + (j)]
#define W_shared(p, q) W_shared[(p) * K + (q)]

extern "C" __global__ void ConvLayerForward_Kernel(int C, int M, int H, int W, int K, int W_grid,
                                                   const float* X, const float* F, float* Y) {
    int H_out = H - K + 1, W_out = W - K + 1, X_tile_width = TILE_WIDTH + K - 1;
    extern __shared__ float shmem[];
    float* X_shared = &shmem[0];
    float* W_shared = &shmem[X_tile_width * X_tile_width];
    int n = blockIdx.x;
    int m = blockIdx.y;
    int h0 = threadIdx.y;
    int w0 = threadIdx.x;
    int h_base = (blockIdx.z / W_grid) * TILE_WIDTH;  // first row and column of the block's outputs
    int w_base = (blockIdx.z % W_grid) * TILE_WIDTH;
    int h = h_base + h0;
    int w = w_base + w0;
    float acc = 0.f;
    for (int c = 0; c < C; c++) {  // sum over all input channels
        for (int p = h0; p < K; p += TILE_WIDTH)
            for (int q = w0; q < K; q += TILE_WIDTH)
                W_shared(p, q) = F(m, c, p, q);
        for (int i = h; i < h_base + X_tile_width; i += TILE_WIDTH)
            for (int j = w; j < w_base + X_tile_width; j += TILE_WIDTH)
                X_shared(i - h_base, j - w_base) = i < H && j < W ? X(n, c, i, j) : 0.f;
        __syncthreads();
        for (int p = 0; p < K; p++)
            for (int q = 0; q < K; q++)
                acc = acc + X_shared(h0 + p, w0 + q) * W_shared(p, q);
        __syncthreads();
    }
    if (h < H_out && w < W_out) Y(n, m, h, w) = acc;
}
