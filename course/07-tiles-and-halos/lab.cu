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
        // TODO 1: load the tile of channel c, tile[i * side + j]. It has more pixels than the block has threads: a thread
        // loads i = h0, h0 + TILE_WIDTH, ... and j = w0, w0 + TILE_WIDTH, ...; 0 where the image has no such pixel
        // TODO 2: load the filter; the threads of the block share its K * K elements
        // TODO 3: the sum over p and q, from tile and filter. Where do all threads have to wait?
    }
    // TODO 4: y, if there is such an element
}
