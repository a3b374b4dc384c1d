// Lab 9: the matrix product with tiles in shared memory and in registers.
#define TILE 32    // rows and columns of c of a block; also the columns of a that it loads at a time
#define SIDE 8     // a block has SIDE x SIDE threads
#define EACH 4     // a thread computes EACH x EACH elements of c: TILE = SIDE * EACH

// c = a b, of a (rows, inner) and b (inner, columns).
extern "C" __global__ void product(const float* a, const float* b, float* c, int rows, int inner, int columns) {
    __shared__ float tile_a[TILE][TILE + 1];  // a column more: the rows of a column lie in different banks
    __shared__ float tile_b[TILE][TILE];
    const int tx = threadIdx.x, ty = threadIdx.y, thread = ty * SIDE + tx;
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's part of c begins
    float sums[EACH][EACH] = {};
    for (int first = 0; first < inner; first += TILE) {
        for (int at = thread; at < TILE * TILE; at += SIDE * SIDE) {
            const int i = at / TILE, j = at % TILE;
            tile_a[i][j] = row + i < rows && first + j < inner ? a[(row + i) * inner + first + j] : 0;
            tile_b[i][j] = first + i < inner && column + j < columns ? b[(first + i) * columns + column + j] : 0;
        }
        __syncthreads();
        for (int k = 0; k < TILE; k++) {
            float from_a[EACH], from_b[EACH];
            for (int e = 0; e < EACH; e++) {
                from_a[e] = tile_a[ty + e * SIDE][k];
                from_b[e] = tile_b[k][tx + e * SIDE];
            }
            for (int i = 0; i < EACH; i++) {
                for (int j = 0; j < EACH; j++) {
                    sums[i][j] += from_a[i] * from_b[j];
                }
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < EACH; i++) {
        for (int j = 0; j < EACH; j++) {
            const int r = row + ty + i * SIDE, s = column + tx + j * SIDE;
            if (r < rows && s < columns) {
                c[r * columns + s] = sums[i][j];
            }
        }
    }
}
