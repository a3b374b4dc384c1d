// PMPP, 3rd edition, Fig. 16.18: unroll one image, with a row per output element. A thread copies the K x K elements
// that one output reads of one channel: a part of a row. X_unroll is (H_out * W_out) x (C * K * K).
// Grid: as many blocks as cover C * H_out * W_out threads.
#define X(c, h, w) X[((c) * H + (h)) * W + (w)]
#define X_unroll(h, w) X_unroll[(h) * (C * K * K) + (w)]

extern "C" __global__ void unroll_Kernel(int C, int H, int W, int K, const float* X, float* X_unroll) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    int H_out = H - K + 1;
    int W_out = W - K + 1;
    int W_unroll = H_out * W_out;
    if (t < C * W_unroll) {
        int c = t / W_unroll;
        int s = t % W_unroll;
        int h_out = s / W_out;
        int w_out = s % W_out;
        int h_unroll = h_out * W_out + w_out;
        int w_base = c * K * K;
        for (int p = 0; p < K; p++)
            for (int q = 0; q < K; q++) {
                int w_unroll = w_base + p * K + q;
                X_unroll(h_unroll, w_unroll) = X(c, h_out + p, w_out + q);
            }
    }
}
