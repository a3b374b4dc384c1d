// PMPP, 3rd edition, Fig. 16.12: forward path of a convolutional layer. A thread computes one output element.
// Grid: (N, M, tiles of a map). Block: TILE_WIDTH x TILE_WIDTH. W is the width, so the filters are F.
#define TILE_WIDTH 16
#define X(n, c, h, w) X[(((n) * C + (c)) * H + (h)) * W + (w)]
#define F(m, c, p, q) F[(((m) * C + (c)) * K + (p)) * K + (q)]
#define Y(n, m, h, w) Y[(((n) * M + (m)) * H_out + (h)) * W_out + (w)]

extern "C" __global__ void ConvLayerForward_Kernel(int C, int M, int H, int W, int K, int W_grid,
                                                   const float* X, const float* F, float* Y) {
    int H_out = H - K + 1, W_out = W - K + 1;
    int n = blockIdx.x;
    int m = blockIdx.y;
    int h = blockIdx.z / W_grid * TILE_WIDTH + threadIdx.y;
    int w = blockIdx.z % W_grid * TILE_WIDTH + threadIdx.x;
    if (h >= H_out || w >= W_out) return;
    float acc = 0.f;
    for (int c = 0; c < C; c++)          // sum over all input channels
        for (int p = 0; p < K; p++)      // loop over the KxK filter
            for (int q = 0; q < K; q++)
                acc = acc + X(n, c, h + p, w + q) * F(m, c, p, q);
    Y(n, m, h, w) = acc;
}
