// Lab 4: the sum of two vectors, and the product of two matrices in two ways.
#define TILE 16

// z[i] = x[i] + y[i]. One thread per element; blocks of any number of threads.
extern "C" __global__ void add(const float* x, const float* y, float* z, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        z[i] = x[i] + y[i];
    }
}

// c = a b, of a (rows, inner) and b (inner, columns). One thread per element of c; blocks of TILE x TILE threads.
extern "C" __global__ void product(const float* a, const float* b, float* c, int rows, int inner, int columns) {
    const int row = blockIdx.y * TILE + threadIdx.y;
    const int column = blockIdx.x * TILE + threadIdx.x;
    if (row < rows && column < columns) {
        float sum = 0;
        for (int k = 0; k < inner; k++) {
            sum += a[row * inner + k] * b[k * columns + column];
        }
        c[row * columns + column] = sum;
    }
}

// The same; all threads of a block load a tile of a and one of b into shared memory, and use both from there.
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
