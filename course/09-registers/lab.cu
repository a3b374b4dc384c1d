// Lab 9: the matrix product with tiles in shared memory and in registers.
#define TILE 32    // rows and columns of c of a block; also the columns of a that it loads at a time
#define SIDE 8     // a block has SIDE x SIDE threads
#define EACH 4     // a thread computes EACH x EACH elements of c: TILE = SIDE * EACH

// c = a b, of a (rows, inner) and b (inner, columns).
extern "C" __global__ void product(const float* a, const float* b, float* c, int rows, int inner, int columns) {
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE];
    const int tx = threadIdx.x, ty = threadIdx.y, thread = ty * SIDE + tx;
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's part of c begins
    float sums[EACH][EACH] = {};
    for (int first = 0; first < inner; first += TILE) {
        // TODO 1: load both tiles. They have TILE * TILE elements, the block SIDE * SIDE threads: a thread loads those of
        // number thread, thread + SIDE * SIDE, ... Then wait.
        for (int k = 0; k < TILE; k++) {
            float from_a[EACH], from_b[EACH];
            // TODO 2: from_a, column k of this thread's EACH rows; from_b, row k of its EACH columns; then all sums.
            // Its rows are ty, ty + SIDE, ..., its columns tx, tx + SIDE, ...
        }
        // wait
    }
    // TODO 3: c, the elements that are there
}
