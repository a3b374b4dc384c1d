// Gradients of values taken by their indices along an axis: gx (before, n, inner), index and gy (before, m, inner).
//
// add_along: gx[b,i,c] = the sum of gy[b,j,c] over all j with index[b,j,c] = i, in their order. It reads all m of them
// for each i, so it is for a small m. put_along: gx[b, index[b,j,c], c] = gy[b,j,c]. No place may be named twice, and
// the other places keep their values. A thread owns the elements THREAD, THREAD + THREADS, ... of `size`: those of gx
// in add_along, those of gy in put_along. Any grid and block will do.
//
// add_in_turn: as add_along, to a gx of zeros. A warp owns a line (b, c) and takes 32 of its indices at a time. If
// several lanes have values for one place, the lowest of these lanes adds them up in the order of the lanes. Requires:
// warps that cover the lines.
#include "include/common.cuh"
#include "include/wrapped.cuh"

extern "C" __global__ void add_along(const REAL* gy, const long long* index, REAL* gx, unsigned size, int n, int inner,
                                     int m) {
    for (unsigned e = THREAD; e < size; e += THREADS) {
        const unsigned c = e % inner, i = e / inner % n, line = e / inner / n * m * inner + c;
        REAL sum = 0;
        for (int j = 0; j < m; j++)
            if (wrapped(index[line + j * inner], n) == (int)i) sum += gy[line + j * inner];
        gx[e] = sum;
    }
}

extern "C" __global__ void put_along(const REAL* gy, const long long* index, REAL* gx, unsigned size, int n, int inner,
                                     int m) {
    for (unsigned e = THREAD; e < size; e += THREADS)
        gx[(e / inner / m * n + wrapped(index[e], n)) * inner + e % inner] = gy[e];
}

extern "C" __global__ void add_in_turn(const REAL* gy, const long long* index, REAL* gx, int lines, int n, int inner,
                                       int m) {
    constexpr int AHEAD = 4;               // turns whose values are under way at the same time
    const int line = THREAD / 32, lane = threadIdx.x % 32;
    if (line >= lines) return;             // a whole warp
    const unsigned from = line / inner * m * inner + line % inner, to = line / inner * n * inner + line % inner;
    for (int first = lane; first - lane < m; first += 32 * AHEAD) {
        int place[AHEAD];
        REAL value[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int j = first + 32 * k;
            place[k] = j < m ? wrapped(index[from + j * inner], n) : -1;
            value[k] = j < m ? gy[from + j * inner] : (REAL)0;
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const unsigned peers = __match_any_sync(~0u, place[k]);
            const bool leads = place[k] >= 0 && !(peers & ((1u << lane) - 1));
            unsigned others = leads ? peers & ~(1u << lane) : 0;
            REAL sum = value[k];
            while (__any_sync(~0u, others != 0)) {
                const REAL other = __shfl_sync(~0u, value[k], others ? __ffs(others) - 1 : lane);
                if (others) sum += other;
                others &= others - 1;
            }
            if (leads) gx[to + place[k] * inner] += sum;
            __syncwarp();                  // the next turn reads what this one wrote
        }
    }
}
