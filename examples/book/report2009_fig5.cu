// The 2009 report, section 6.2, Fig. 5: 8x8 colour filters over 32x32 colour images with 4 pixels of zeros at left and
// the top, 3 at the right and the bottom. A block convolves one filter with one image, a thread computes 4 outputs.
// Grid: (F, N). Block: (y, x) = (8, 32).
extern "C" __global__ void convolve(const float* images, const float* filters, float* targets) {
    __shared__ float filter[3][8][8], window[16][39];
    const int f = blockIdx.x, n = blockIdx.y, y = threadIdx.y, x = threadIdx.x, t = y * 32 + x;
    const float* image = images + n * 3 * 32 * 32;
    if (t < 192) filter[t / 64][t / 8 % 8][t % 8] = filters[f * 192 + t];        // 3/4 of the threads
    for (int i = t; i < 16 * 39; i += 256) window[i / 39][i % 39] = 0.f;         // the border remains zero
    float sums[4] = {0.f, 0.f, 0.f, 0.f};
    for (int colour = 0; colour < 3; colour++, image += 32 * 32) {
        for (int step = 0; step < 4; step++) {                                   // the window moves down by 8 pixels
            __syncthreads();
            for (int r = y; r < 16; r += 8) {                                    // 16x32 pixels, outside zero
                const int row = step * 8 - 4 + r;
                window[r][4 + x] = 0 <= row && row < 32 ? image[row * 32 + x] : 0.f;
            }
            __syncthreads();
            for (int p = 0; p < 8; p++)
                for (int q = 0; q < 8; q++)
                    sums[step] += window[y + p][x + q] * filter[colour][p][q];
        }
    }
    for (int step = 0; step < 4; step++)
        targets[((n * gridDim.x + f) * 32 + step * 8 + y) * 32 + x] = sums[step];
}
