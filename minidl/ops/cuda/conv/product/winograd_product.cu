// The products of winograd_tiles.cu: sums (e,rows,cols) = a (e,depth,rows)^T @ b (e,depth,cols), in runs of slabs.
//
// -DBM: rows of a tile. -DWIDE=1: copies of 16 bytes: arrays start on a multiple of them, and rows and cols are
// multiples of LINE, the numbers in 16 bytes. A block copies its next slab while it multiplies one, also if the next
// one is another tile's. Parts are whole tiles, with zeros where the matrices end.
#include "include/tile.cuh"
#include "include/runs.cuh"

#ifndef WIDE
#define WIDE 0
#endif
constexpr int LINE = 16 / sizeof(REAL);
// Blocks of a multiprocessor, by its registers; before 8.0 copies take some, and shared memory holds few.
#if __CUDA_ARCH__ >= 800
constexpr int RESIDENT = sizeof(REAL) == 8 ? 1 : BM >= 64 ? 2 : 4;
#else
constexpr int RESIDENT = 1;
#endif

// Loads the slabs of a run, one after the other.
struct Loader {
    const REAL *a, *b;  // of the present product
    const Runs& p;
    int down, across, k0;  // the next slab's tile, and its first depth

    __device__ __forceinline__ Loader(const REAL* a0, const REAL* b0, const Runs& p, int begin) : p(p) {
        const int tile = begin / p.slabs, product = tile / (p.down * p.across);
        a = a0 + (size_t)product * p.depth * p.rows;
        b = b0 + (size_t)product * p.depth * p.cols;
        k0 = (begin - tile * p.slabs) * BK;
        across = tile / p.down - product * p.across;
        down = tile % p.down;
    }

    template <int SIZE, int STRIDE>
    __device__ __forceinline__ void copy(REAL (&to)[BK][STRIDE], const REAL* from, int size, int first) const {
        constexpr int V = WIDE ? LINE : 1, ALL = BK * SIZE / V;
#pragma unroll
        for (int i = 0; i * BLOCK < ALL; ++i) {
            const int e = threadIdx.x + i * BLOCK, k = e / (SIZE / V), at = first + e % (SIZE / V) * V;
            if (ALL < BLOCK && e >= ALL) break;
            const bool valid = at < size && k0 + k < p.depth;
            start_copy((Pack<V>*)&to[k][at - first], (const Pack<V>*)(from + (valid ? (k0 + k) * size + at : 0)), valid);
        }
    }

    __device__ __forceinline__ void fetch(Slab& slab) {
        copy<BM>(slab.a, a, p.rows, down * BM);
        copy<BN>(slab.b, b, p.cols, across * BN);
        k0 += BK;
        if (k0 < p.slabs * BK) return;
        k0 = 0;
        if (++down < p.down) return;
        down = 0;
        if (++across < p.across) return;
        across = 0;
        a += (size_t)p.depth * p.rows;
        b += (size_t)p.depth * p.cols;
    }
};

extern "C" __global__ void __launch_bounds__(256, RESIDENT)
    winograd_product(const REAL* a, const REAL* b, REAL* parts, Runs p) {
    __shared__ Slab slabs[2];
    const int begin = blockIdx.x * p.each, end = imin(p.all, begin + p.each);
    Loader loader(a, b, p, begin);
    REAL* part = parts + (size_t)(blockIdx.x + begin / p.slabs) * (BM * BN);
    int left = p.slabs - begin % p.slabs;  // of the tile
    Product product;
    loader.fetch(slabs[0]);
    end_copies();
    for (int at = begin; at < end; ++at) {
        const int now = (at - begin) & 1;
        await_copies<0>();
        __syncthreads();  // this slab is whole, and everybody is done with the other
        if (at + 1 < end) loader.fetch(slabs[now ^ 1]);
        end_copies();
        product.multiply(slabs[now]);
        if (--left && at + 1 < end) continue;
        product.each([&](int row, int column, REAL* sums) {
#pragma unroll
            for (int j = 0; j < Product::WIDTH; j += LINE) {
                Pack<LINE> *to = (Pack<LINE>*)(part + row * BN + column + j), some = {};
                if (p.accumulate) some = *to;
#pragma unroll
                for (int k = 0; k < LINE; ++k) {
                    some.v[k] += sums[j + k];
                    sums[j + k] = 0;  // of the next tile
                }
                *to = some;
            }
        });
        part += BM * BN;
        left = p.slabs;
    }
}
