// PMPP, 4th edition, Fig. 16.18: unroll one image, with a column per output element. A thread copies the K x K elements
// that one output reads of one channel: a part of a column. X_unroll is (C * K * K) x (H_out * W_out).
// Grid: as many blocks as cover C * H_out * W_out threads.
#define X(c, h, w) X[((c) * H + (h)) * W + (w)]
#define X_unroll(h, w) X_unroll[(h) * W_unroll + (w)]

extern "C" __global__ void unroll_Kernel(int C, int H, int W, int K, const float* X, float* X_unroll) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    int H_out = H - K + 1;
    int W_out = W - K + 1;
    int W_unroll = H_out * W_out;        // width of the unrolled matrix
    if (t < C * W_unroll) {
        int c = t / W_unroll;            // channel that the thread reads
        int w_unroll = t % W_unroll;     // column that it writes: the number of the output element
        int h_out = w_unroll / W_out;
        int w_out = w_unroll % W_out;
        int w_base = c * K * K;          // first row of the channel's part
        for (int p = 0; p < K; p++)
            for (int q = 0; q < K; q++) {
                int h_unroll = w_base + p * K + q;
                X_unroll(h_unroll, w_unroll) = X(c, h_out + p, w_out + q);
            }
    }
}
