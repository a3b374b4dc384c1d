// Lab 8: what a convolution as a matrix product needs: the unrolled matrix of an image, and the product.
#define TILE 16

// x (C,H,W), one image -> u (C*K*K, H_out*W_out): row (c,p,q), column (h,w) holds x[c][h + p][w + q].
// A thread owns one channel and one output, and writes K*K elements. Blocks in one dimension.
extern "C" __global__ void unroll(const float* x, float* u, int C, int H, int W, int K) {
    const int H_out = H - K + 1, W_out = W - K + 1, outputs = H_out * W_out;
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    // TODO 1: c and column of this thread, from t; then for each p and q the row, and u
}

// c = a b, of a (rows, inner) and b (inner, columns): your kernel of lab 4, in blocks of TILE x TILE threads.
extern "C" __global__ void tiled_product(const float* a, const float* b, float* c, int rows, int inner, int columns) {
    // TODO 2: paste it in
}
