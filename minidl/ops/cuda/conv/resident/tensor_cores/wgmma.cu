// Convolution of stride 1 for few input channels on the tensor cores of compute capability 9.0, whose instruction for
// them, wgmma, multiplies 64 rows by 64 columns and reads the columns' operand from shared memory by itself. Rows are
// pixels, columns are filters, and a row (c,p) of up to 8 taps is one step; shorter ones are filled up with zeros (so
// that a pixel which is not finite also spoils outputs up to 8 - KW columns further left).
//
// conv2d_wgmma: y. A block holds a whole padded image and all filters, rounded to tf32 once. A warp owns ROWS x 16
//   neighbouring outputs of 64 filters; four warps, a group, multiply together, each with pixels of its own. What a
//   warp holds of an image row serves all its output rows, each with another row of taps. While one of the two groups
//   has the tensor cores, the other one computes activations and stores. A block walks over images.
//
// Requires: compute capability 9.0 (-DSM_90A, else nothing is multiplied), and that all of it fits shared memory (the
// launcher checks this). -DPRECISION: TF32, or TF32X3: numbers are split in two, and three of the four products are
// made. -DKH -DKW -DROWS and those of conv/resident/resident.cuh.
#include "conv/resident/resident.cuh"
#include "include/tensor_cores/wgmma.cuh"

constexpr int FILTERS = COLUMNS, STEP = FILTERS * 8;  // STEP: numbers of a row of taps of 64 filters
constexpr int STEPS = KH + ROWS - 1;                  // image rows under a warp's outputs
constexpr int PERIOD = (STEPS + 3) / 4 * 4;           // of the four places that they take in turn
static_assert(KW <= 8, "a row of taps must fit one step of a product, 8");
static_assert(THREADS_PER_BLOCK == 2 * GROUP, "two groups take turns");

// [set of 64 filters][c][p][tap / 4][filter][tap % 4], zeros beyond the last filter and tap; neighbouring lanes copy
// neighbours in memory.
__device__ __forceinline__ void load_filters(REAL* to, const REAL* w, int sets, const PaddedImages& p) {
    constexpr int V = KW % 4 ? 1 : 4, LANES = 8 / V;  // taps that a copy takes; copies in a row of taps
    int rows = p.c * KH, q = threadIdx.x % LANES * V;
    for (int f = threadIdx.x / LANES; f < sets * FILTERS; f += THREADS_PER_BLOCK / LANES) {
        bool valid = f < p.m && q < KW;
        REAL* tap = to + f / FILTERS * rows * STEP + q / 4 * FILTERS * 4 + f % FILTERS * 4 + q % 4;
        const REAL* from = w + (valid ? f * rows * KW + q : 0);
#pragma unroll 4
        for (int row = 0; row < rows; ++row)
            start_copy((Pack<V>*)(tap + row * STEP), (const Pack<V>*)(valid ? from + row * KW : w), valid);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK, 1)
    conv2d_wgmma(const REAL* x, const REAL* w, const REAL* b, REAL* y, REAL* pooled, PaddedImages p) {
    extern __shared__ __align__(128) unsigned char memory[];
    int sets = ceil_div(p.m, FILTERS), filter_size = sets * p.c * KH * STEP, padded_size = p.c * p.ph * p.pw;
    REAL* filters = (REAL*)memory;                 // [part] as load_filters says
    REAL* padded = filters + PARTS * filter_size;  // [part][c][ph][pw]
    REAL* bias = padded + PARTS * padded_size;     // [filter]
    load_filters(filters, w, sets, p);
    for (int m = threadIdx.x; m < sets * FILTERS; m += THREADS_PER_BLOCK) bias[m] = b && m < p.m ? b[m] : (REAL)0;

    int lane = threadIdx.x % 32, row8 = lane / 4, within = lane % 4, group = threadIdx.x / GROUP;
    int across = ceil_div(p.ow, 16), places = ceil_div(p.oh, ROWS) * across, fours = ceil_div(places, 4);
    if (group == 1) give_turn(0);
    for (int image = blockIdx.x; image < p.n; image += gridDim.x) {
        load_parts(padded, padded_size, x, image, filters, filter_size, p);
        publish();
        __syncthreads();
        for (int item = group; item < ceil_div(sets * fours, 2) * 2; item += 2) {
            int set = item / fours, place = item % fours * 4 + threadIdx.x / 32 % 4;
            bool there = set < sets && place < places;
            if (!there) place = set = 0;
            int i0 = place / across * ROWS, j0 = place % across * 16;
            // Row r < 8 of a warp is pixel 2*r, row r + 8 is pixel 2*r + 1
            float sum[ROWS][FILTERS / 2] = {};
            const REAL* row = padded + i0 * p.pw + j0 + 2 * row8 + within;
            unsigned long long weights = matrix(filters + set * p.c * KH * STEP);
            unsigned pixel[4][PARTS][4];  // of the image row at work, the one before, and the next two
            auto take = [&](int r) {
#pragma unroll
                for (int e = 0; e < 4 * PARTS; ++e)
                    pixel[r % 4][e / 4][e % 4] =
                        __float_as_uint(row[e / 4 * padded_size + r * p.pw + e % 2 + e / 2 % 2 * 4]);
            };
            take(0);
            take(1);
            await_turn(group);
            for (int c = 0; c < p.c; ++c, weights += KH * STEP / 4) {
#pragma unroll
                for (int r = 0; r < PERIOD; ++r) {
                    if (r > STEPS) await_products<0>();  // the last row, whose place comes next
                    if (r == PERIOD - 2) row += p.ph * p.pw;
                    if (r < PERIOD - 2 ? r + 2 < STEPS : c + 1 < p.c) take((r + 2) % PERIOD);
                    if (r < STEPS) {
                        begin_products();
#pragma unroll
                        for (int i = 0; i < ROWS; ++i)
                            if (r >= i && r - i < KH) {
                                unsigned long long weight = weights + (r - i) * (STEP / 4);
                                if (PARTS == 2) {
                                    wgmma(sum[i], pixel[r % 4][PARTS - 1], weight);
                                    wgmma(sum[i], pixel[r % 4][0], weight + filter_size / 4);
                                }
                                wgmma(sum[i], pixel[r % 4][0], weight);
                            }
                        end_products();
                        await_products<1>();  // the row before is done with
                    }
                }
            }
            give_turn(1 - group);
            await_products<0>();
            // Of two lanes with the same filters, the one gets four pixels of one filter, the other one of the other
            int odd = row8 % 2, j = j0 + row8 / 2 * 4;
#pragma unroll
            for (int f = 0; f < FILTERS / 8; ++f) {
                REAL out[ROWS][4];
#pragma unroll
                for (int i = 0; i < ROWS; ++i)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        float first = sum[i][f * 4 + e * 2], second = sum[i][f * 4 + e * 2 + 1];
                        float other = __shfl_xor_sync(~0u, odd ? first : second, 4);
                        out[i][e] = odd ? other : first;
                        out[i][2 + e] = odd ? second : other;
                    }
                int m = set * FILTERS + f * 8 + within * 2 + odd;
                if (there && m < p.m && j < p.ow)
                    store_outputs<ROWS>(out, bias[m], y, pooled, image * p.m + m, i0, j, p);
            }
        }
    }
    if (group == 0) await_turn(0);  // the last one that was given
}
