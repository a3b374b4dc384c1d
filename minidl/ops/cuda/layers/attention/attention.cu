// Attention: o = softmax(q k^T * scale + mask) v of each head, and the logarithm of each query's sum of e^score.
//
// A block owns 64 queries of a head, a warp 16 of them. The block walks over the keys and values in tiles, in shared
// memory. A warp keeps a product with a tile's keys in registers; each query's weights are relative to the largest
// score so far, and what was added up before is made smaller as a larger one comes (Milakov and Gimelshein 2018, Dao et
// al. 2022). So no scores are stored, and weights are the first factor of the next product as they are in registers.
// Scores are to the base 2. A query without any key has the sum infinity, and its results are zeros.
// Requires: blocks of 128 threads, one for each head and each 64 queries; rows that begin at multiples of 16 bytes.
#include "layers/attention/attention.cuh"

constexpr int FORWARD_BLOCKS = FMA && MASKED ? 2 : BLOCKS;  // a mask takes registers too: with 168, 24 bytes are spilled

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, FORWARD_BLOCKS)
    attention(const STORE* __restrict__ q, const STORE* __restrict__ k, const STORE* __restrict__ v,
              const float* __restrict__ mask, STORE* __restrict__ o, float* __restrict__ sums, Heads p) {
    extern __shared__ __align__(16) unsigned memory[];
    unsigned *queries = memory, *keys = queries + OWN * PITCH, *values = keys + TILE * PITCH;
    unsigned* scratch = values + TILE * PITCH;
    const int blocks = ceil_div(p.queries, OWN), head = blockIdx.x / blocks, n = head / p.heads, h = head % p.heads;
    const int first = (blocks - 1 - blockIdx.x % blocks) * OWN;         // those with the most keys begin first
    const int own = threadIdx.x / 32 * 16;
    q += n * p.q[0] + h * p.q[1];
    k += n * p.k[0] + h * p.k[1];
    v += n * p.v[0] + h * p.v[1];
    if (MASKED) mask += n * p.mask[0] + h * p.mask[1];

    int rows[HELD_ROWS], last[HELD_ROWS];                               // how many keys a query may attend to
    float top[HELD_ROWS], total[HELD_ROWS] = {};
#pragma unroll
    for (int half = 0; half < HELD_ROWS; ++half) {
        rows[half] = first + own + held_row(half);
        last[half] = p.causal ? imin(p.keys, rows[half] + 1) : p.keys;
        top[half] = -infinity();
    }
    const int end = p.causal ? imin(p.keys, first + OWN) : p.keys;
    const float scale = p.scale * LOG2_E;
    float out[PADDED / 8][4] = {};
    load_rows<OWN, 1>({{queries, q, p.q[2]}}, first, p.queries);
    for (int begin = 0; begin < end; begin += TILE) {
        if (begin) __syncthreads();                                     // the tile before has been read
        load_rows<TILE, 2>({{keys, k, p.k[2]}, {values, v, p.v[2]}}, begin, p.keys);
        await_rows();
        float s[TILE / 8][4] = {};
        add_by_rows<TILE>(s, queries + own * PITCH, keys);

        float largest[HELD_ROWS];
#pragma unroll
        for (int half = 0; half < HELD_ROWS; ++half) largest[half] = top[half];
#pragma unroll
        for (int j = 0; j < TILE / 8; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int key = begin + column_of(j, e), half = held(e), query = rows[half];
                float score = s[j][e] * scale;
                if (MASKED && query < p.queries && key < p.keys)
                    score += mask[query * p.mask[2] + key * p.mask[3]] * LOG2_E;
                s[j][e] = key < last[half] ? score : -infinity();
                largest[half] = fmaxf(largest[half], s[j][e]);
            }
#pragma unroll
        for (int half = 0; half < HELD_ROWS; ++half) {
            float& most = largest[half];
            most = over_row(most, true);
            const float less = exp2f(top[half] - (most == -infinity() ? 0 : most));
            top[half] = most;
            total[half] *= less;
#pragma unroll
            for (int j = 0; j < PADDED / 8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    if (held(e) == half) out[j][e] *= less;
            most = most == -infinity() ? 0 : most;
        }
#pragma unroll
        for (int j = 0; j < TILE / 8; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                s[j][e] = exp2f(s[j][e] - largest[held(e)]);
                total[held(e)] += s[j][e];
            }
        add_by_columns<TILE>(out, s, values, scratch);
    }

    float factor[HELD_ROWS];
#pragma unroll
    for (int half = 0; half < HELD_ROWS; ++half) {
        total[half] = over_row(total[half], false);
        factor[half] = total[half] == 0 ? 0 : 1 / total[half];
        if (rows[half] < p.queries && threadIdx.x % LANES_PER_ROW == 0)
            sums[head * p.queries + rows[half]] = total[half] == 0 ? infinity() : (top[half] + log2f(total[half])) * LN_2;
    }
    store_rows(o + (n * p.queries * p.heads + h) * D, p.heads * D, first + own, p.queries, out, factor);
}
