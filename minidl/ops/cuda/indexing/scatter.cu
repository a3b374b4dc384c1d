// Gradients of rows that were taken by index, added up in the order in which they were taken. gx is zeros before.
//
// add_runs: the keys (lines, m) of a line rise. A key is the row of gx (before, n, inner, d) that a row of gradients
// belongs to: gx[b,key,c] = the sum of the rows with that key, in their order. The rows are those of `gradients` in
// order, or those that `places` names if it is given. They are added in shares of `each` of a line, so that a long run
// of equal keys has many threads. A run within one share is written to gx. If a run goes on into a share from the one
// before, that share has its key in `next_keys` (lines, shares); all other shares have NONE there. Such a share has two
// rows in `next` (lines, shares, 2, d): the sum of the share before if the run begins there, else 0; and its own sum.
// These entries are lines of rising keys again, with two rows each (`parts`), and the next launch adds them up. With
// one share, nothing is left over.
//
// A thread owns WIDTH neighbouring columns of the elements THREAD, THREAD + THREADS, ... of (lines, m, d). If such an
// element is the first of its run or of its share, the thread makes the sum from there on.
//
// add_firsts: ids (n,), below 0 counted from the end; gx (rows, d). For the first occurrence of an id, its row gets the
// sum of all gradients (n, d) with that id. It compares n times n ids, so it is for a small n.
// Requires: d a multiple of WIDTH, and rows that start at multiples of WIDTH elements.
#include "include/common.cuh"
#include "include/wrapped.cuh"

#ifndef WIDTH
#define WIDTH 1
#endif

constexpr unsigned NONE = ~0u;
constexpr int AHEAD = 4;                   // rows that are under way to a thread at the same time

struct SortedRuns {
    int lines, m, n, inner, d, each, shares, parts;
};

typedef Pack<WIDTH> Columns;

__device__ __forceinline__ void add(Columns& sum, const Columns& row) {
#pragma unroll
    for (int v = 0; v < WIDTH; v++) sum.v[v] += row.v[v];
}

extern "C" __global__ void add_runs(const unsigned* keys, const unsigned* places, const REAL* gradients, REAL* gx,
                                    unsigned* next_keys, REAL* next, SortedRuns p) {
    const unsigned d = p.d / WIDTH, size = p.lines * p.m * d;
    const Columns* rows = (const Columns*)gradients;
    for (unsigned e = THREAD; e < size; e += THREADS) {
        const unsigned at = e / d, c = e - at * d, line = at / p.m, i = at - line * p.m, share = i / p.each;
        const unsigned key = keys[at], cell = line * p.shares + share;
        const bool opens = i == share * p.each, goes_on = i && keys[at - 1] == key;
        if (opens && c == 0 && next_keys) next_keys[cell] = goes_on ? key : NONE;
        if ((goes_on && !opens) || key == NONE) continue;
        const int end = imin(p.m, (share + 1) * p.each) - i;
        Columns sum = {};
        bool same = true;
        for (int j = 0; same && j < end; j += AHEAD) {
            Columns found[AHEAD] = {};
            unsigned theirs[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++) theirs[k] = j + k < end ? keys[at + j + k] : NONE;
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                same = same && theirs[k] == key;
                if (!same) continue;
                const unsigned row = places ? places[at + j + k] : (at + j + k) * p.parts;
                found[k] = rows[row * d + c];
                if (p.parts > 1) add(found[k], rows[(row + 1) * d + c]);
            }
#pragma unroll
            for (int k = 0; k < AHEAD; k++) add(sum, found[k]);
        }
        const bool leaves = i + end < (unsigned)p.m && keys[at + end] == key;
        Columns* left = (Columns*)next;
        if (!goes_on && !leaves)
            ((Columns*)gx)[((line / p.inner * p.n + key) * p.inner + line % p.inner) * d + c] = sum;
        if (goes_on) left[(cell * 2 + 1) * d + c] = sum;
        if (leaves) left[(cell * 2 + 2) * d + c] = goes_on ? Columns{} : sum;
    }
}

extern "C" __global__ void add_firsts(const REAL* gradients, const long long* ids, REAL* gx, int n, int d, int rows) {
    const unsigned columns = d / WIDTH;
    for (unsigned e = THREAD; e < n * columns; e += THREADS) {
        const unsigned i = e / columns, c = e - i * columns;
        const int row = wrapped(ids[i], rows);
        bool first = true;
        for (unsigned j = 0; j < i; j++) first = first && wrapped(ids[j], rows) != row;
        if (!first) continue;
        Columns sum = ((const Columns*)gradients)[e];
        for (unsigned j = i + 1; j < n; j++)
            if (wrapped(ids[j], rows) == row) add(sum, ((const Columns*)gradients)[j * columns + c]);
        ((Columns*)gx)[row * columns + c] = sum;
    }
}
