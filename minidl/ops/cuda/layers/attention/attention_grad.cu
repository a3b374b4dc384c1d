// The gradients of attention by q, k and v of each head, from go, the gradient by its result o.
//
// Of the scores s only each query's sum was kept: a weight is w = e^(s - sum), and the gradient by its score is
// gs = w (go v^T - dot), with a query's dot = sum of go * o. Then gv = w^T go, gk = gs^T q * scale, gq = gs k * scale.
// attention_dots computes the dots, 8 threads for each query.
//
// attention_grad has two kinds of blocks. Some own 64 keys of a head, walk over the queries in tiles, and compute gk
// and gv; others own 64 queries, walk over the keys, and compute gq. Both compute the weights anew from their own rows
// and a tile, rows of their own by columns of the tile, so that the registers of one product are the first factor of
// the next. All that is added up has one owner and one order.
// Requires: blocks of 128 threads, for each head one for each 64 keys and one for each 64 queries; rows that begin at
// multiples of 16 bytes.
#include "layers/attention/attention.cuh"

extern "C" __global__ void attention_dots(const STORE* __restrict__ go, const STORE* __restrict__ o,
                                          float* __restrict__ dots, int rows, Heads p) {
    constexpr int PER_PIECE = 16 / (int)sizeof(STORE), LANES = 8;
    const int row = THREAD / LANES, head = row / p.queries, query = row % p.queries, n = head / p.heads;
    const int h = head % p.heads;
    float sum = 0;
    if (row < rows) {
        go += n * p.go[0] + h * p.go[1] + query * p.go[2];
        o += ((n * p.queries + query) * p.heads + h) * D;
        for (int at = threadIdx.x % LANES * PER_PIECE; at < D; at += LANES * PER_PIECE) {
            const Pack<4> left = *(const Pack<4>*)(go + at), right = *(const Pack<4>*)(o + at);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if constexpr (sizeof(STORE) == 2) {
                    const unsigned x = __float_as_uint(left.v[i]), y = __float_as_uint(right.v[i]);
                    sum += __uint_as_float(x << 16) * __uint_as_float(y << 16);
                    sum += __uint_as_float(x & 0xffff0000u) * __uint_as_float(y & 0xffff0000u);
                } else {
                    sum += left.v[i] * right.v[i];
                }
            }
        }
    }
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (row < rows && threadIdx.x % LANES == 0) dots[row] = sum;
}

constexpr int GRAD_BLOCKS = PRECISION == BF16 ? BLOCKS : 2;  // tf32 has twice as many operands

// What a head is given, and its gradients.
struct Head {
    const STORE *q, *k, *v, *go;
    const float *mask, *sums, *dots;
    STORE *gq, *gk, *gv;
};

template <bool OF_KEYS> __device__ __forceinline__ void add_up(const Head& x, const Heads& p, int first) {
    extern __shared__ __align__(16) unsigned memory[];
    unsigned *own = memory, *own_other = own + OWN * PITCH, *tile = own_other + OWN * PITCH;
    unsigned* tile_other = tile + TILE * PITCH;
    float *tile_sums = (float*)(tile_other + TILE * PITCH), *tile_dots = tile_sums + TILE;     // of its queries
    unsigned* scratch = (unsigned*)(tile_dots + TILE);
    const int mine = threadIdx.x / 32 * 16;
    const int rows = OF_KEYS ? p.keys : p.queries, others = OF_KEYS ? p.queries : p.keys;
    const int start = OF_KEYS && p.causal ? first / TILE * TILE : 0;
    const int end = !OF_KEYS && p.causal ? imin(others, first + OWN) : others;
    const float scale = p.scale * LOG2_E;

    float own_sum[HELD_ROWS], own_dot[HELD_ROWS];
    if (!OF_KEYS) {
#pragma unroll
        for (int half = 0; half < HELD_ROWS; ++half) {
            const int query = first + mine + held_row(half);
            own_sum[half] = query < p.queries ? x.sums[query] * LOG2_E : infinity();
            own_dot[half] = query < p.queries ? x.dots[query] : 0;
        }
    }
    float gradient[PADDED / 8][4] = {}, gradient_v[PADDED / 8][4] = {};
    if (OF_KEYS)
        load_rows<OWN, 2>({{own, x.k, p.k[2]}, {own_other, x.v, p.v[2]}}, first, rows);
    else
        load_rows<OWN, 2>({{own, x.q, p.q[2]}, {own_other, x.go, p.go[2]}}, first, rows);
    for (int begin = start; begin < end; begin += TILE) {
        if (begin > start) __syncthreads();                             // the tile before has been read
        if (OF_KEYS) {
            load_rows<TILE, 2>({{tile, x.q, p.q[2]}, {tile_other, x.go, p.go[2]}}, begin, others);
            if (threadIdx.x < TILE) {
                const int query = begin + threadIdx.x;
                tile_sums[threadIdx.x] = query < others ? x.sums[query] * LOG2_E : infinity();
                tile_dots[threadIdx.x] = query < others ? x.dots[query] : 0;
            }
        } else {
            load_rows<TILE, 2>({{tile, x.k, p.k[2]}, {tile_other, x.v, p.v[2]}}, begin, others);
        }
        await_rows();
        float w[TILE / 8][4] = {}, gs[TILE / 8][4] = {};
        add_by_rows<TILE>(w, own + mine * PITCH, tile);
        add_by_rows<TILE>(gs, own_other + mine * PITCH, tile_other);
#pragma unroll
        for (int j = 0; j < TILE / 8; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int half = held(e), row = first + mine + held_row(half), column = column_of(j, e);
                const int other = begin + column, query = OF_KEYS ? other : row, key = OF_KEYS ? row : other;
                float score = w[j][e] * scale;
                if (MASKED && query < p.queries && key < p.keys)
                    score += x.mask[query * p.mask[2] + key * p.mask[3]] * LOG2_E;
                const float sum = OF_KEYS ? tile_sums[column] : own_sum[half];
                const float dot = OF_KEYS ? tile_dots[column] : own_dot[half];
                const bool attends = key < p.keys && (!p.causal || key <= query);
                w[j][e] = attends ? exp2f(score - sum) : 0;
                gs[j][e] = w[j][e] * (gs[j][e] - dot);
            }
        if (OF_KEYS) add_by_columns<TILE>(gradient_v, w, tile_other, scratch);
        add_by_columns<TILE>(gradient, gs, tile, scratch);
    }
    const int stride = p.heads * D;
    store_rows(OF_KEYS ? x.gk : x.gq, stride, first + mine, rows, gradient, p.scale);
    if (OF_KEYS) store_rows(x.gv, stride, first + mine, rows, gradient_v, 1.f);
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, GRAD_BLOCKS)
    attention_grad(const STORE* __restrict__ q, const STORE* __restrict__ k, const STORE* __restrict__ v,
                   const STORE* __restrict__ go, const float* __restrict__ mask, const float* __restrict__ sums,
                   const float* __restrict__ dots, STORE* __restrict__ gq, STORE* __restrict__ gk,
                   STORE* __restrict__ gv, Heads p) {
    const int of_keys = ceil_div(p.keys, OWN), blocks = of_keys + ceil_div(p.queries, OWN);
    const int head = blockIdx.x / blocks, block = blockIdx.x % blocks, n = head / p.heads, h = head % p.heads;
    const int of_queries = (n * p.queries * p.heads + h) * D, of_key = (n * p.keys * p.heads + h) * D;
    const Head x = {q + n * p.q[0] + h * p.q[1], k + n * p.k[0] + h * p.k[1], v + n * p.v[0] + h * p.v[1],
                    go + n * p.go[0] + h * p.go[1], MASKED ? mask + n * p.mask[0] + h * p.mask[1] : nullptr,
                    sums + head * p.queries, dots + head * p.queries, gq + of_queries, gk + of_key, gv + of_key};
    if (block < of_keys)                          // those with the most to do begin first
        add_up<true>(x, p, block * OWN);
    else
        add_up<false>(x, p, (blocks - 1 - block) * OWN);
}
