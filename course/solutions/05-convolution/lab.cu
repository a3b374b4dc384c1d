// Lab 5: the forward pass of a convolution by its formula, after PMPP's figure of the basic kernel (Fig. 16.12).
#define TILE_WIDTH 16

// y[n][m][h][w] = sum over c, p, q of x[n][c][h + p][w + q] * filters[m][c][p][q]
//
// x (N,C,H,W), filters (M,C,K,K), y (N,M,H_out,W_out). Grid: (N, M, tiles of a map), tiles counted row by row; blocks of
// TILE_WIDTH x TILE_WIDTH threads. One thread per element of y.
extern "C" __global__ void conv(const float* x, const float* filters, float* y, int C, int H, int W, int M, int K) {
    const int H_out = H - K + 1, W_out = W - K + 1;
    const int W_grid = (W_out + TILE_WIDTH - 1) / TILE_WIDTH;
    const int n = blockIdx.x, m = blockIdx.y;
    const int h = blockIdx.z / W_grid * TILE_WIDTH + threadIdx.y;
    const int w = blockIdx.z % W_grid * TILE_WIDTH + threadIdx.x;
    if (h < H_out && w < W_out) {
        float sum = 0;
        for (int c = 0; c < C; c++) {
            for (int p = 0; p < K; p++) {
                for (int q = 0; q < K; q++) {
                    sum += x[((n * C + c) * H + h + p) * W + w + q] * filters[((m * C + c) * K + p) * K + q];
                }
            }
        }
        y[((n * M + m) * H_out + h) * W_out + w] = sum;
    }
}
