// Lab 8: what a convolution as a matrix product needs: the unrolled matrix of an image, and the product.
#define TILE 16

// x (C,H,W), one image -> u (C*K*K, H_out*W_out): row (c,p,q), column (h,w) holds x[c][h + p][w + q].
// A thread owns one channel and one output, and writes K*K elements. Blocks in one dimension.
extern "C" __global__ void unroll(const float* x, float* u, int C, int H, int W, int K) {
    const int H_out = H - K + 1, W_out = W - K + 1, outputs = H_out * W_out;
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < C * outputs) {
        const int c = t / outputs, column = t % outputs;
        const int h = column / W_out, w = column % W_out;
        for (int p = 0; p < K; p++) {
            for (int q = 0; q < K; q++) {
                const int row = (c * K + p) * K + q;
                u[row * outputs + column] = x[(c * H + h + p) * W + w + q];
            }
        }
    }
}

// c = a b, of a (rows, inner) and b (inner, columns): your kernel of lab 4, in blocks of TILE x TILE threads.
extern "C" __global__ void tiled_product(const float* a, const float* b, float* c, int rows, int inner, int columns) {
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE];
    const int ty = threadIdx.y, tx = threadIdx.x;
    const int row = blockIdx.y * TILE + ty;
    const int column = blockIdx.x * TILE + tx;
    float sum = 0;
    for (int first = 0; first < inner; first += TILE) {
        tile_a[ty][tx] = row < rows && first + tx < inner ? a[row * inner + first + tx] : 0;
        tile_b[ty][tx] = first + ty < inner && column < columns ? b[(first + ty) * columns + column] : 0;
        __syncthreads();
        for (int k = 0; k < TILE; k++) {
            sum += tile_a[ty][k] * tile_b[k][tx];
        }
        __syncthreads();
    }
    if (row < rows && column < columns) {
        c[row * columns + column] = sum;
    }
}
