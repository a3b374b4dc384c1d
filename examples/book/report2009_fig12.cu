// The 2009 report, section 6.6, Fig. 12: derivatives of the 8x8 colour filters, those of each image for itself. A block
// convolves one image with the derivatives of 16 filters' outputs, and a thread computes one element for two of these.
// Grid: (F / 16, N), without a remainder. Block: 8 x 8 x 8.
extern "C" __global__ void weight_derivatives(const float* images, const float* hidden, float* targets) {
    __shared__ float window[11][39 + 1], filters[16][4][16];
    const int x = threadIdx.x, y = threadIdx.y, z = threadIdx.z, t = (z * 8 + y) * 8 + x, F = gridDim.x * 16;
    const float* image = images + blockIdx.y * 3 * 32 * 32;
    const int first = blockIdx.y * F + blockIdx.x * 16;                       // of the 16 filters of this image
    for (int i = t; i < 11 * 40; i += 512) window[i / 40][i % 40] = 0.f;      // the border remains zero
    for (int colour = 0; colour < 3; colour++, image += 32 * 32) {
        float sums[2] = {0.f, 0.f};
        for (int row = 0; row < 32; row += 4) {                               // the windows move down by 4 pixels
            __syncthreads();
            if (t < 11 * 32) {
                const int at = row - 4 + t / 32;
                window[t / 32][4 + t % 32] = 0 <= at && at < 32 ? image[at * 32 + t % 32] : 0.f;
            }
            for (int column = 0; column < 32; column += 16) {                 // and that on the filters to the right
                for (int i = t; i < 16 * 64; i += 512)
                    filters[i / 64][i / 16 % 4][i % 16] =
                        hidden[((first + i / 64) * 32 + row + i / 16 % 4) * 32 + column + i % 16];
                __syncthreads();
                for (int p = 0; p < 4; p++)
                    for (int q = 0; q < 16; q++)
                        for (int k = 0; k < 2; k++)
                            sums[k] += window[y + p][column + x + q] * filters[z + 8 * k][p][q];
                __syncthreads();
            }
        }
        for (int k = 0; k < 2; k++)
            targets[((first + z + 8 * k) * 3 + colour) * 64 + y * 8 + x] = sums[k];
    }
}
