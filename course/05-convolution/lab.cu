// Lab 5: the forward pass of a convolution by its formula, after PMPP's figure of the basic kernel (Fig. 16.12).
#define TILE_WIDTH 16

// y[n][m][h][w] = sum over c, p, q of x[n][c][h + p][w + q] * filters[m][c][p][q]
//
// x (N,C,H,W), filters (M,C,K,K), y (N,M,H_out,W_out). Grid: (N, M, tiles of a map), tiles counted row by row; blocks of
// TILE_WIDTH x TILE_WIDTH threads. One thread per element of y.
extern "C" __global__ void conv(const float* x, const float* filters, float* y, int C, int H, int W, int M, int K) {
    const int H_out = H - K + 1, W_out = W - K + 1;
    const int n = blockIdx.x, m = blockIdx.y;
    // TODO 1: W_grid, how many tiles there are from left to right, and h and w, which element this thread computes
    // TODO 2: the sum, of linear indices
    // TODO 3: y, if there is such an element
}
