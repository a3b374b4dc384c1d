// Adds what the blocks of this folder's other kernels have found, [split][tap][channel][filter], in an order that sizes
// decide, and transposes it to (m, c, kh, kw).
constexpr int SIDE = 32, LINES = 16, EACH_LINE = SIDE / LINES;  // of a tile of sums; lines of it at a time

// A block adds SIDE / share numbers of SIDE filters: `share` lines take turns at the parts of one number.
extern "C" __global__ void __launch_bounds__(SIDE* LINES)
    conv2d_nhwc_dw_sum(const float* parts, float* dw, int splits, int share, int m, int c, int taps) {
    __shared__ float turned[SIDE][SIDE + 1];
    int lane = threadIdx.x % SIDE, line = threadIdx.x / SIDE, size = c * taps, numbers = SIDE / share;
    int filter = blockIdx.y * SIDE + lane;
    long long part = (long long)size * m;
#pragma unroll
    for (int i = 0; i < EACH_LINE; ++i) {
        int at = line + i * LINES, to = blockIdx.x * numbers + at / share, channel = to / taps;
        bool valid = to < size && filter < m;
        const float* from = valid ? parts + at % share * part + ((to - channel * taps) * c + channel) * m + filter : parts;
        float sum = 0;
        int own = valid ? splits - at % share : 0;
#pragma unroll 8
        for (int split = 0; split < own; split += share, from += share * part) sum += *from;
        turned[at][lane] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < numbers * SIDE; i += SIDE * LINES) {
        int number = i % numbers, of = i / numbers, to = blockIdx.x * numbers + number;
        float all = 0;
        for (int k = 0; k < share; ++k) all += turned[number * share + k][of];
        if (blockIdx.y * SIDE + of < m && to < size) dw[(blockIdx.y * SIDE + of) * size + to] = all;
    }
}
