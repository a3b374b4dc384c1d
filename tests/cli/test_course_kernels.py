"""Kernels as courses hand them out, host code and all, on the emulator: right as they are, and a fault in each found by
its line. Needs Linux and g++."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from checks.compiler import needs_compiler
from tiers import tiered

from minidl.lab import source
from minidl.lab.emulator.watch import Kernel
from minidl.ops.common.sources import FOLDER, parameters
from minidl.tools import cli

pytestmark = [pytest.mark.usefixtures("elsewhere"), needs_compiler]

X = np.arange(64, dtype=np.float32)
A, B = X[:30].reshape(5, 6), X[:42].reshape(6, 7)
CUBE = X.reshape(4, 4, 4) ** 2


class Lab(NamedTuple):
    """A file, how its kernel is launched, what an array of it must hold, and a fault: a change, and what is said of it,
    where LINE is the line that is changed."""

    text: str
    grid: Any
    block: Any
    arguments: dict[str, Any]
    result: str
    expected: Any
    change: tuple[str, str]
    said: str
    shared: int = 0


LABS: dict[str, Lab] = {
    "a tiled product, with main": Lab(r"""
#include <wb.h>
#include <iostream>
#define TILE_WIDTH 4
#define wbCheck(stmt) do { cudaError_t err = stmt; if (err != cudaSuccess) { return -1; } } while (0)
// Compute C = A * B   { not a brace
__global__ void multiply(float *A, float *B, float *C, int rows, int inner, int columns) {
    __shared__ float tileA[TILE_WIDTH][TILE_WIDTH];
    __shared__ float tileB[TILE_WIDTH][TILE_WIDTH];
    int row = blockIdx.y * TILE_WIDTH + threadIdx.y, column = blockIdx.x * TILE_WIDTH + threadIdx.x;
    float sum = 0;
    for (int m = 0; m < (inner - 1) / TILE_WIDTH + 1; ++m) {
        int i = m * TILE_WIDTH + threadIdx.x, j = m * TILE_WIDTH + threadIdx.y;
        tileA[threadIdx.y][threadIdx.x] = row < rows && i < inner ? A[row * inner + i] : 0;
        tileB[threadIdx.y][threadIdx.x] = column < columns && j < inner ? B[j * columns + column] : 0;
        __syncthreads();
        for (int k = 0; k < TILE_WIDTH; ++k) sum += tileA[threadIdx.y][k] * tileB[k][threadIdx.x];
        __syncthreads();  // end of a tile
    }
    if (row < rows && column < columns) C[row * columns + column] = sum;
}
static int blocks_for(int n) { return (n + TILE_WIDTH - 1) / TILE_WIDTH; }
struct Timer { cudaEvent_t start, end; };
int main(int argc, char **argv) {
    float *deviceA;
    wbCheck(cudaMalloc((void **)&deviceA, 4));
    dim3 grid(blocks_for(1), 1, 1), block(TILE_WIDTH, TILE_WIDTH, 1);
    multiply<<<grid, block>>>(deviceA, deviceA, deviceA, 1, 1, 1);
    std::cout << "done" << std::endl;
    return 0;
}""", (2, 2), (4, 4), {"A": A, "B": B, "C": (5, 7), "rows": 5, "inner": 6, "columns": 7}, "C", A @ B,
        ("__syncthreads();  // end of a tile", ""), r"lab.cu:\d+: .* tile[AB]\[\d+\], .* a race, with no barrier"),
    "a histogram with atomics": Lab("""
__global__ void histogram(unsigned char *buffer, long size, unsigned int *bins) {
    __shared__ unsigned int mine[16];
    if (threadIdx.x < 16) mine[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x + blockIdx.x * blockDim.x; i < size; i += blockDim.x * gridDim.x)
        atomicAdd(&(mine[buffer[i] % 16]), 1);
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&(bins[threadIdx.x]), mine[threadIdx.x]);
}""", 2, 32, {"buffer": np.arange(100, dtype=np.uint8), "size": 100, "bins": np.zeros(16, np.uint32)}, "bins",
        np.bincount(np.arange(100) % 16), ("atomicAdd(&(mine[buffer[i] % 16]), 1)", "mine[buffer[i] % 16]++"),
        r"lab.cu:LINE: .* mine\[\d+\], which thread .* in lab.cu:LINE: a race, with no barrier"),
    "a scan in dynamic shared memory": Lab("""
#define BLOCK_SIZE 32
__global__ void scan(float *input, float *output, int length) {
    extern __shared__ float T[];
    int i = 2 * blockIdx.x * blockDim.x + threadIdx.x;
    T[threadIdx.x] = i < length ? input[i] : 0;
    T[threadIdx.x + blockDim.x] = i + blockDim.x < length ? input[i + blockDim.x] : 0;
    for (int stride = 1; stride < 2 * BLOCK_SIZE; stride *= 2) {
        __syncthreads();
        int index = (threadIdx.x + 1) * stride * 2 - 1;
        if (index < 2 * BLOCK_SIZE && (index - stride) >= 0) T[index] += T[index - stride];
    }
    for (int stride = BLOCK_SIZE / 2; stride > 0; stride /= 2) {
        __syncthreads();
        int index = (threadIdx.x + 1) * stride * 2 - 1;
        if ((index + stride) < 2 * BLOCK_SIZE) T[index + stride] += T[index];
    }
    __syncthreads();
    if (i < length) output[i] = T[threadIdx.x];
    if (i + blockDim.x < length) output[i + blockDim.x] = T[threadIdx.x + blockDim.x];
}""", 1, 32, {"input": X, "output": (64,), "length": 64}, "output", np.cumsum(X),
        ("(index + stride) < 2 * BLOCK_SIZE", "index < 2 * BLOCK_SIZE"),
        r"lab.cu:LINE: .* of block .* bytes of shared memory, outside of all arrays", 256),
    "filters in constant memory": Lab("""
#include <cuda_runtime.h>
#define MASK_WIDTH 3
__constant__ float Mc[MASK_WIDTH][MASK_WIDTH];
__global__ void blur(const float* x, float* y, int width) {
    float sum = 0;
    for (int i = 0; i < MASK_WIDTH; i++)
        for (int j = 0; j < MASK_WIDTH; j++) sum += Mc[i][j] * x[(threadIdx.y + i) * width + threadIdx.x + j];
    y[threadIdx.y * blockDim.x + threadIdx.x] = sum;
}
void host() { cudaMemcpyToSymbol(Mc, 0, 36); }""", 1, (6, 6),
        {"x": X, "y": (6, 6), "width": 8, "Mc": np.eye(3, dtype=np.float32)}, "y",
        sum(X.reshape(8, 8)[i:i + 6, i:i + 6] for i in range(3)), ("x + j]", "x + j + 64]"),
        r"lab.cu:LINE: .* reads x\[\d+\] of 64 elements, outside of all arrays"),
    "prints": Lab("""
#include <stdio.h>
__device__ int said;
__global__ void hello() {
    if (threadIdx.x == 0) printf("Hello from block %d\\n", blockIdx.x);
    atomicAdd(&said, 1);
}
int main() { hello<<<2, 1>>>(); cudaDeviceSynchronize(); }""", 2, 1, {}, "said", [2],
        ("atomicAdd(&said, 1)", "said += 1"), r"lab.cu:LINE: .* said\[0\], which .* a race, with no order between"),
    "a sum by shuffles": Lab("""
#define FULL_MASK 0xffffffff
__inline__ __device__ float warpReduceSum(float val) {
    for (int offset = warpSize / 2; offset > 0; offset /= 2) val += __shfl_down_sync(FULL_MASK, val, offset);
    return val;
}
__global__ void reduce(const float* __restrict__ x, float *y) {
    static __shared__ float shared[32];
    int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
    float val = warpReduceSum(x[threadIdx.x]);
    if (lane == 0) shared[warp] = val;
    __syncthreads();
    val = threadIdx.x < blockDim.x / warpSize ? shared[lane] : 0;
    if (warp == 0) val = warpReduceSum(val);
    if (threadIdx.x == 0) y[0] = val;
}""", 1, 64, {"x": X, "y": (1,)}, "y", [2016], ("if (lane == 0) shared[warp] = val;", "if (warp) shared[warp] = val;"),
        r"lab.cu:12: .* reads shared\[0\] before anything wrote it"),
    "cooperative groups": Lab("""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__device__ int sum_of(cg::thread_group group, int *parts, int val) {
    int rank = group.thread_rank();
    for (int i = group.size() / 2; i > 0; i /= 2) {
        parts[rank] = val;
        group.sync();
        if (rank < i) val += parts[rank + i];
        group.sync();  // before the next round
    }
    return val;
}
__global__ void sums(const float *x, float *y) {
    __shared__ int parts[64];
    auto block = cg::this_thread_block();
    cg::thread_block_tile<16> tile = cg::tiled_partition<16>(block);
    float v = x[block.thread_rank()];
    for (int i = tile.size() / 2; i > 0; i /= 2) v += tile.shfl_down(v, i);
    if (tile.meta_group_rank() == 2) v += cg::reduce(tile, x[block.thread_rank()], cg::plus<float>());
    int threads = sum_of(block, parts, 1);
    if (tile.thread_rank() == 0) y[tile.meta_group_rank()] = v;
    if (block.thread_rank() == 0) y[4] = threads;
}""", 1, 64, {"x": X, "y": (5,)}, "y", [120, 376, 2 * 632, 888, 64], ("group.sync();  // before the next round", ""),
        r"lab.cu:\d+: .* parts\[\d+\], which .* a race, with no barrier"),
    "float4": Lab("""
__global__ void saxpy4(const float *x, float4 *y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n / 4) {
        float4 v = reinterpret_cast<const float4*>(x)[i];
        y[i] = make_float4(a * v.x, a * v.y, a * v.z, a * v.w);
    }
}""", 1, 32, {"x": X, "y": (64,), "a": 2.0, "n": 64}, "y", 2 * X, ("i < n / 4", "i < n / 3"),
        r"lab.cu:[45]: .* (reads x|writes y)\[\d+\] of 64 elements, outside of all arrays"),
    "half": Lab("""
#include <cuda_fp16.h>
__global__ void k(const half *x, const float *z, __half *y, int n) {
    int i = threadIdx.x;
    half a = x[i], b = __float2half(z[i]);
    half2 sums = __hadd2(__floats2half2_rn(1.0f, 2.0f), __half2half2(a));
    y[i] = __hfma(a, b, a) + __low2half(sums) * (half)0.5f;
    if (__hgt(a, b)) y[i] = y[(i + 1) % n] - b;
}""", 1, 32, {"x": X[:32].astype(np.float16), "z": X[:32], "y": (32,), "n": 32}, "y",
        X[:32] * X[:32] + X[:32] + (X[:32] + 1) / 2, ("__hgt(a, b)", "__hge(a, b)"),
        r"lab.cu:[67]: .* y\[\d+\], which thread .* a race, with no barrier"),
    "a reduction over volatile memory": Lab("""
__device__ void warpReduce(volatile float* sums, int tid) {
    for (int s = 16; s > 0; s >>= 1) {
        float other = tid < s ? sums[tid + s] : 0.0f;
        __syncwarp();
        if (tid < s) sums[tid] += other;
        __syncwarp();  // before the next step
    }
}
__global__ void reduce(float *g_idata, float *g_odata) {
    extern volatile __shared__ float sdata[];
    unsigned int tid = threadIdx.x;
    sdata[tid] = g_idata[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    if (tid < 32) warpReduce(sdata, tid);
    if (tid == 0) g_odata[blockIdx.x] = sdata[0];
}""", 2, 32, {"g_idata": X, "g_odata": (2,)}, "g_odata", X.reshape(2, 32).sum(1),
        ("__syncwarp();  // before the next step", ""),
        r"lab.cu:[35]: .* bytes of shared memory, which thread .* a race, with no barrier", 128),
    "a stencil in a grid of three axes": Lab("""
#define at(z, y, x) (((z) * ny + (y)) * nx + (x))
__global__ void stencil(const float *A, float *B, int nx, int ny, int nz) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    int k = blockIdx.z * blockDim.z + threadIdx.z;
    if (i >= nx || j >= ny || k >= nz) return;
    bool inner = i > 0 && i < nx - 1 && j > 0 && j < ny - 1 && k > 0 && k < nz - 1;
    B[at(k, j, i)] = !inner ? 0 : A[at(k - 1, j, i)] + A[at(k + 1, j, i)] + A[at(k, j - 1, i)] + A[at(k, j + 1, i)] +
                                  A[at(k, j, i - 1)] + A[at(k, j, i + 1)] - 6 * A[at(k, j, i)];
}""", (2, 2, 2), (2, 2, 2), {"A": CUBE, "B": (4, 4, 4), "nx": 4, "ny": 4, "nz": 4}, "B",
        np.pad(sum(np.roll(CUBE, step, axis) for step in (1, -1) for axis in range(3))[1:3, 1:3, 1:3] -
               6 * CUBE[1:3, 1:3, 1:3], 1), ("k < nz - 1", "k < nz"),
        r"lab.cu:\d+: .* reads A\[\d+\] of 64 elements, outside of all arrays"),
}


def ran(lab: Lab, text: str = "") -> Any:
    Path("lab.cu").write_text((text or lab.text).lstrip("\n"))
    return Kernel("lab.cu").run(lab.grid, lab.block, lab.arguments, shared=lab.shared)


@pytest.mark.slow
@pytest.mark.parametrize("name", LABS)
def test_a_lab_is_right_as_it_is_handed_out(name: str) -> None:
    done = ran(LABS[name])
    assert done.faults == done.notes == []
    np.testing.assert_allclose(done.arrays[LABS[name].result], LABS[name].expected)


@pytest.mark.parametrize("name", tiered(LABS, slow=4))
def test_its_fault_is_found_by_line(name: str) -> None:
    lab = LABS[name]
    assert lab.text.count(lab.change[0]) == 1
    done = ran(lab, lab.text.replace(*lab.change))
    said = lab.said.replace("LINE", str(lab.text.lstrip("\n").partition(lab.change[0])[0].count("\n") + 1))
    assert any(re.search(said, fault) for fault in done.faults), done.faults


# ---------------------------------------------------------------- several kernels, one launch after the other
SCANS = r"""
#define SIZE 16
__global__ void scan_blocks(const float* x, float* y, float* sums) {
    __shared__ float s[SIZE];
    const int t = threadIdx.x, i = blockIdx.x * SIZE + t;
    s[t] = x[i];
    for (int step = 1; step < SIZE; step *= 2) {
        __syncthreads();
        float before = t >= step ? s[t - step] : 0;
        __syncthreads();
        s[t] += before;
    }
    y[i] = s[t];
    if (t == SIZE - 1) sums[blockIdx.x] = s[t];
}
void __global__ add_sums(float* y, const float* sums) {
    for (int block = 0; block < blockIdx.x; block++) y[blockIdx.x * SIZE + threadIdx.x] += sums[block];
}
int main() { scan_blocks<<<4, SIZE>>>(0, 0, 0); add_sums<<<4, SIZE>>>(0, 0); }"""


@pytest.mark.slow
def test_several_kernels_in_turn() -> None:
    Path("scans.cu").write_text(SCANS)
    first = Kernel("scans.cu", "scan_blocks").run(4, 16, {"x": X, "y": (64,), "sums": (4,)})
    second = Kernel("scans.cu", "add_sums").run(4, 16, {name: first.arrays[name] for name in ("y", "sums")})
    assert first.faults == second.faults == []
    np.testing.assert_array_equal(second.arrays["y"], np.cumsum(X))


# ---------------------------------------------------------------- memory that the file declares
DECLARED = """__constant__ float F[4];
__constant__ float G[2] = {1.0f, 2.0f};
__device__ float d[4];
__global__ void k(float* y) {
    y[threadIdx.x] = F[threadIdx.x] + G[1] + d[threadIdx.x];
    d[threadIdx.x] = 5;
}
"""


@pytest.mark.slow
def test_constant_memory_is_filled_and_the_rest_starts_anew(capsys: pytest.CaptureFixture[str]) -> None:
    Path("k.cu").write_text(DECLARED)
    kernel = Kernel("k.cu")
    for _ in range(2):                     # __device__ memory starts with zeros at each launch
        done = kernel.run(1, 4, {"y": (4,), "F": np.ones(4, np.float32)})
        assert (done.faults, done.arrays["y"].tolist(), done.arrays["d"].tolist()) == ([], [3.0] * 4, [5.0] * 4)
    done = kernel.run(1, 4, {"y": (4,), "F": np.ones(4, np.float32), "G": np.zeros(2, np.float32),
                             "d": X[:4].copy()})
    assert done.arrays["y"].tolist() == [1, 2, 3, 4]
    (fault,) = kernel.run(1, 4, {"y": (4,)}).faults
    assert re.fullmatch(r"k.cu:5: thread .* reads F\[\d\], constant memory that nothing filled; "
                        r"fill it: --args F=..., or in a launcher launch.copy_to_symbol\('F', array\)", fault)
    with pytest.raises(ValueError, match="F holds 4 numbers of float32, but it is given 5 of float32; give as"):
        kernel.run(1, 4, {"y": (4,), "F": X[:5]})
    with pytest.raises(ValueError, match=r"y \(float32\[\]\), F \(constant memory\), .* d \(device memory\), but H"):
        kernel.run(1, 4, {"y": (4,), "H": X})
    assert cli.main(["emulate", "k.cu", "--block", "4", "--args", "y=4", "F=4:ones"]) == 0
    assert capsys.readouterr().out == ("y float32 (4,)\n[3. 3. 3. 3.]\nd float32 (4,)\n[5. 5. 5. 5.]\n"
                                       "k: no fault was found\n")


@pytest.mark.slow
def test_sums_by_atomics_are_noted_and_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    Path("k.cu").write_text("__global__ void k(const float* x, float* y) { atomicAdd(y, x[threadIdx.x] * 0.1f); }")
    assert cli.main(["emulate", "k.cu", "--block", "256", "--args", "x=256:random", "y=1:zeros"]) == 0
    said = capsys.readouterr()
    assert "no fault was found" in said.out
    assert "1 of 1 elements differ in their last digits, as sums by floating-point atomics do: two runs may" in said.err


# ---------------------------------------------------------------- what does not end
@pytest.mark.slow
@pytest.mark.parametrize(("text", "line"), [
    ("__global__ void k(int* y) {\n    while (y[0] == 0) {}\n}", 2),
    ("__device__ int lock = 1;\n__global__ void k(int* y) {\n    while (atomicCAS(&lock, 0, 1)) ;\n    y[0]++;\n}", 3),
    ("__global__ void k(int* y) {\n    for (;;)\n        __syncthreads();\n}", 3),
    ("__global__ void k(int* y) {\n    if (threadIdx.x == 3) while (1) {}\n}", 2)])
def test_an_endless_loop_ends_with_its_line(text: str, line: int) -> None:
    Path("k.cu").write_text(text)
    (fault,) = Kernel("k.cu").run(1, 32, {"y": np.zeros(2, np.int32)}, steps=1000).faults
    assert re.fullmatch(rf"k.cu:{line}: thread \(\d+, 0, 0\) of block \(0, 0, 0\) does not end: it has taken more "
                        r"steps than a thread may \(--steps\): an endless loop, or one that waits for", fault[:-15])


@pytest.mark.deep
def test_ctrl_c_ends_an_endless_loop() -> None:
    Path("k.cu").write_text("__global__ void k(int* y) { while (y[0] == 0) {} }")
    started = subprocess.Popen([sys.executable, "-m", "minidl", "emulate", "k.cu", "--args", "y=1:zeros", "--steps",
                                str(10**15)], stderr=subprocess.PIPE, text=True)
    time.sleep(8)                          # until it runs: it has to be compiled
    started.send_signal(signal.SIGINT)
    assert started.wait(20) == 130
    assert started.stderr is not None
    assert "interrupted" in started.stderr.read()


# ---------------------------------------------------------------- what of a file is a kernel
def test_minidls_own_files_have_no_host_code() -> None:
    for file in sorted(FOLDER.rglob("*.cu*")):
        text, left_out = source._uncommented(file.read_text(encoding="utf-8")), dict[str, None]()
        assert source._kernels_only(text, left_out) == text, file


ODD = """\
typedef unsigned int u32;
using Real = float;
#define DTYPE float
__device__ int unused;
template <typename T> __device__ T square(T x) { return x * x; }
template <int K> __global__ void power(float* y) {}
void __global__
k(DTYPE *x, Real y[], u32 n,
  const bool twice) { if (threadIdx.x < n) y[threadIdx.x] = square(x[threadIdx.x]) * (twice ? 2 : 1); }
"""


@pytest.mark.slow
def test_types_by_other_names_and_templates(capsys: pytest.CaptureFixture[str]) -> None:
    Path("k.cu").write_text(ODD)
    assert cli.main(["emulate", "k.cu", "--args", "x=3:arange", "y=3", "n=3", "twice=1"]) == 0
    assert capsys.readouterr().out == "x float32 (3,)\n[0. 1. 2.]\ny float32 (3,)\n[0. 2. 8.]\nk: no fault was found\n"
    Path("k.cu").write_text("template <int K> __global__ void k(float* y) {}")
    assert cli.main(["emulate", "k.cu"]) == 2
    assert "k.cu has 0 kernels; name one, that is __global__ void and not a template" in capsys.readouterr().err
    Path("k.cu").write_text("__global__ void k(float4 a) {}")
    assert cli.main(["emulate", "k.cu", "--args", "a=1"]) == 2
    assert "k takes a as one float4; take its numbers, or an array of them" in capsys.readouterr().err


HOST = """\
using namespace std;
#define DEVICE __device__ inline
__constant__ float M[3][3];
DEVICE float f(float x) { return x + '{' + "}"[0]; }
int twice(int a) { return 2 * a; }
cudaStream_t stream;
class Net { std::vector<int> sizes; };
struct P { int n; };
template <typename T> void go(T x) { k<<<1, 1>>>(x); }
__host__ void Net::prolog(const float *x) const { cudaMalloc(x); }
__host__ __device__ int both(int a) { return a; }
extern "C++" {
void __global__
k(float a[], unsigned int n) {
#define A(i) a[i]
    A(0) = both(n);
}
__global__ __launch_bounds__(64) void none(void) {}
}
"""


def test_what_is_left_out() -> None:
    read = source.written("mine.cu", HOST)
    assert read.text.count("\n") == HOST.count("\n")       # with its first line, #line 1
    assert read.left_out == ("twice", "go", "prolog")
    assert read.kernels == ["k", "none"]
    for word in ("stream", "Net", "<<<", "twice"):
        assert word not in read.text
    for word in ("DEVICE float f", "struct P", "both(int a) {", "M[3][3]"):
        assert word in read.text
    assert parameters(read.text, "k") == [("a", "float", "out"), ("n", "unsigned int", "value")]
    assert parameters(read.text, "none") == []


@pytest.mark.slow
@pytest.mark.parametrize(("text", "said"), [
    ("int twice(int a) { return 2 * a; }\n__global__ void k(int* y) { y[0] = twice(1); }",
     "lab.cu:2:.*twice.* not declared.*; twice is of the host: a kernel calls functions that are __device__"),
    ("#include <book.h>\n__global__ void k(int* y) { y[0] = PAGES; }",
     "'?.?PAGES.* not declared.*; not found, and left out: book.h; put them beside the file"),
    ('#include "mine.cuh"\n__global__ void k(int* y) {}', "lab.cu includes mine.cuh, which is not there; put it")])
def test_a_name_that_was_left_out_is_explained(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("lab.cu").write_text(text)
    assert cli.main(["emulate", "lab.cu", "--args", "y=1"]) == 2
    assert re.search(said, capsys.readouterr().err.replace("\n", " "))
