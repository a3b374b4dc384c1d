// Layer normalisation of rows of channels, and its gradients; statistics and sums are in float32.
//
// A team is LANES neighbouring threads, a power of two up to 32, and takes one row at a time. Each thread holds RUNS
// runs of WIDE channels, LANES runs apart. A block's teams walk `chunk` rows. Requires: WIDE divides the channels,
// which are at most LANES * RUNS * WIDE; blocks of THREADS_PER_BLOCK threads.
#include "include/image.cuh"

#ifndef LANES
#define LANES 32
#endif
#ifndef RUNS
#define RUNS 1
#endif
#define THREADS_PER_BLOCK 256

// The sum of a team's values: the same bits in each of its threads.
__device__ __forceinline__ float team_sum(float value) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    return value;
}

// This thread's team, and the rows that it walks. All teams of a block take the same number of turns, since their
// threads exchange values: a team without a row of its own has `row` >= `end`.
struct Team {
    int lane, row, end, turns;

    __device__ __forceinline__ Team(int rows, int chunk) {
        const int teams = THREADS_PER_BLOCK / LANES, first = blockIdx.x * chunk;
        lane = threadIdx.x % LANES;
        row = first + threadIdx.x / LANES;
        end = imin(rows, first + chunk);
        turns = ceil_div(imax(end - first, 0), teams);
    }

    __device__ __forceinline__ int channel(int run) const { return (run * LANES + lane) * WIDE; }
};

__device__ __forceinline__ void load_row(Run (&row)[RUNS], const STORE* at, const Team& team, int channels, bool any) {
#pragma unroll
    for (int r = 0; r < RUNS; ++r) {
        row[r] = {};
        if (any && team.channel(r) < channels) row[r] = load(at + team.channel(r));
    }
}

__device__ __forceinline__ float known(const float* values, int channel, float otherwise) {
    return values ? values[channel] : otherwise;
}

extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK)
    layer_norm_nhwc(const STORE* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b,
                    STORE* __restrict__ y, float* __restrict__ mean, float* __restrict__ rstd, float eps, int rows,
                    int channels, int chunk) {
    Team team(rows, chunk);
    for (int turn = 0; turn < team.turns; ++turn, team.row += THREADS_PER_BLOCK / LANES) {
        const bool any = team.row < team.end;
        const int at = any ? team.row * channels : 0;
        Run own[RUNS];
        load_row(own, x + at, team, channels, any);
        float sum = 0, squares = 0;
#pragma unroll
        for (int r = 0; r < RUNS; ++r)
#pragma unroll
            for (int i = 0; i < WIDE; ++i) sum += own[r].v[i];
        const float center = team_sum(sum) / channels;
#pragma unroll
        for (int r = 0; r < RUNS; ++r)
#pragma unroll
            for (int i = 0; i < WIDE; ++i) {
                own[r].v[i] -= center;
                if (team.channel(r) < channels) squares += own[r].v[i] * own[r].v[i];
            }
        const float scale = 1.0f / sqrt(team_sum(squares) / channels + eps);
        if (!any) continue;
#pragma unroll
        for (int r = 0; r < RUNS; ++r) {
            const int channel = team.channel(r);
            if (channel >= channels) break;
#pragma unroll
            for (int i = 0; i < WIDE; ++i)
                own[r].v[i] = own[r].v[i] * scale * known(w, channel + i, 1.0f) + known(b, channel + i, 0.0f);
            store(y + at + channel, own[r]);
        }
        if (team.lane == 0) {
            mean[team.row] = center;
            rstd[team.row] = scale;
        }
    }
}

// gx = rstd * (gz - mean of gz - z * mean of (gz * z)) + other, with gz = gy * w and z = (x - mean) * rstd.
// parts[block]: (2, channels), the block's sums of gy and of gy * z.
extern "C" __global__ void __launch_bounds__(THREADS_PER_BLOCK)
    layer_norm_grad_nhwc(const STORE* __restrict__ gy, const STORE* __restrict__ x, const float* __restrict__ w,
                         const float* __restrict__ mean, const float* __restrict__ rstd,
                         const STORE* __restrict__ other, STORE* __restrict__ gx, float* __restrict__ parts, int rows,
                         int channels, int chunk) {
    __shared__ float shared[THREADS_PER_BLOCK * RUNS * WIDE];
    Team team(rows, chunk);
    float sum[2][RUNS][WIDE] = {};
    for (int turn = 0; turn < team.turns; ++turn, team.row += THREADS_PER_BLOCK / LANES) {
        const bool any = team.row < team.end;
        const int at = any ? team.row * channels : 0;
        const float center = any ? mean[team.row] : 0, scale = any ? rstd[team.row] : 0;
        Run g[RUNS], z[RUNS];
        load_row(g, gy + at, team, channels, any);
        load_row(z, x + at, team, channels, any);
        float sum_g = 0, sum_gz = 0;
#pragma unroll
        for (int r = 0; r < RUNS; ++r) {
            const int channel = team.channel(r);
            if (channel >= channels) break;
#pragma unroll
            for (int i = 0; i < WIDE; ++i) {
                z[r].v[i] = (z[r].v[i] - center) * scale;
                sum[0][r][i] += g[r].v[i];
                sum[1][r][i] += g[r].v[i] * z[r].v[i];
                g[r].v[i] *= known(w, channel + i, 1.0f);
                sum_g += g[r].v[i];
                sum_gz += g[r].v[i] * z[r].v[i];
            }
        }
        sum_g = team_sum(sum_g) / channels;
        sum_gz = team_sum(sum_gz) / channels;
        if (!any) continue;
#pragma unroll
        for (int r = 0; r < RUNS; ++r) {
            const int channel = team.channel(r);
            if (channel >= channels) break;
            Run more = {};
            if (other) more = load(other + at + channel);
#pragma unroll
            for (int i = 0; i < WIDE; ++i) more.v[i] += scale * (g[r].v[i] - sum_g - z[r].v[i] * sum_gz);
            store(gx + at + channel, more);
        }
    }
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        __syncthreads();
#pragma unroll
        for (int r = 0; r < RUNS; ++r)
#pragma unroll
            for (int i = 0; i < WIDE; ++i)
                shared[threadIdx.x / LANES * (LANES * RUNS * WIDE) + team.channel(r) + i] = sum[s][r][i];
        __syncthreads();
        for (int channel = threadIdx.x; channel < channels; channel += THREADS_PER_BLOCK) {
            float total = 0;
#pragma unroll 1
            for (int own = channel; own < THREADS_PER_BLOCK * RUNS * WIDE; own += LANES * RUNS * WIDE)
                total += shared[own];
            parts[(blockIdx.x * 2 + s) * channels + channel] = total;
        }
    }
}
