// The gradient of rows that were taken by index: gw[r] = the sum of gy[i] over all i with ids[i] = r, in their order.
//
// gy (n, d), ids (n,), gw (shares, rows, d). Ids below 0 count from the end. A share is `each` of the n ids. A warp
// owns a row of gw and 128 of its columns; each lane has every 32nd of these. The warp reads the ids 32 at a time, and
// a vote says which of them name its row. So nothing is sorted, no two warps write the same place, and nothing waits
// for the host. Requires: a grid of (warps that cover rows, blocks of 128 that cover d, shares).
#include "include/common.cuh"

constexpr int COLUMNS = 4;

extern "C" __global__ void embedding_grad_w(const REAL* gy, const long long* ids, REAL* gw, int n, int d, int rows,
                                            int each) {
    int lane = threadIdx.x % 32, row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int column = blockIdx.y * (32 * COLUMNS) + lane;
    if (row >= rows) return;               // a whole warp
    REAL sum[COLUMNS] = {};
    const int end = imin(n, (blockIdx.z + 1) * each);
    for (int i = blockIdx.z * each; i < end; i += 32) {
        const long long id = i + lane < end ? ids[i + lane] : rows;
        unsigned found = __ballot_sync(~0u, (id < 0 ? id + rows : id) == row);
        for (; found; found &= found - 1) {
            const REAL* from = gy + (long long)(i + __ffs(found) - 1) * d;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                if (column + 32 * c < d) sum[c] += from[column + 32 * c];
        }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
        if (column + 32 * c < d) gw[((long long)blockIdx.z * rows + row) * d + column + 32 * c] = sum[c];
}
