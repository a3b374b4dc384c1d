// Lab 4: the sum of two vectors, and the product of two matrices in two ways.
#define TILE 16

// z[i] = x[i] + y[i]. One thread per element; blocks of any number of threads.
extern "C" __global__ void add(const float* x, const float* y, float* z, int n) {
    // TODO 1: i, the number of this thread in the whole grid; then z[i], if there is such an element
}

// c = a b, of a (rows, inner) and b (inner, columns). One thread per element of c; blocks of TILE x TILE threads.
extern "C" __global__ void product(const float* a, const float* b, float* c, int rows, int inner, int columns) {
    const int row = 0;     // TODO 2: of blockIdx.y and threadIdx.y
    const int column = 0;  // of blockIdx.x and threadIdx.x
    // then: the sum over k of a[row][k] * b[k][column], and c[row][column], if there is such an element
}

// The same; all threads of a block load a tile of a and one of b into shared memory, and use both from there.
extern "C" __global__ void tiled_product(const float* a, const float* b, float* c, int rows, int inner, int columns) {
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE];
    const int ty = threadIdx.y, tx = threadIdx.x;
    float sum = 0;
    for (int first = 0; first < inner; first += TILE) {
        // TODO 3: this thread's element of tile_a, columns first ... first + TILE - 1 of a; 0 where a has none.
        // The same of tile_b, rows first ... of b. Then add TILE products to sum. Where do all threads have to wait?
    }
    // then: c, as above
}
