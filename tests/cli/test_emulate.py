"""`minidl emulate`: results of a user's kernels, and what is said of their faults. Needs Linux and g++."""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.compiler import needs_compiler

from minidl.lab import emulator
from minidl.lab.emulator import built, watcher
from minidl.lab.emulator.watch import Kernel, Parameter
from minidl.ops.common.sources import struct
from minidl.tools import cli
from minidl.tools.cli.emulate import filled, sizes, value

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("elsewhere"), needs_compiler]

HEAD = """\
#include <cuda_runtime.h>
#include <cstdio>
#include "helper.cuh"
#define WIDTH 32
"""
HELPER = "__device__ __forceinline__ float twice(float x) { return 2 * x; }  // 1\n"
X = np.arange(64, dtype=np.float32)
UNSET = (64,)

# What -> (source, grid, block, arguments, what y is, and bytes of dynamic shared memory)
RIGHT: dict[str, tuple[str, Any, Any, dict[str, Any], Any, int]] = {
    "an element per thread": ("""
        __global__ void k(const float *x, float *y, float a, int n) {   // a comment, with a comma
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) y[i] = twice(a * x[i]) + __expf(0.0f);
        }""", 3, 32, {"x": X, "y": UNSET, "a": 0.5, "n": 64}, X + 1, 0),
    "a sum in shared memory, and atomics": ("""
        extern "C" __global__ void k(const float* x, float* y) {
            __shared__ float part[WIDTH];
            part[threadIdx.x] = x[blockIdx.x * WIDTH + threadIdx.x];
            for (int step = WIDTH / 2; step > 0; step /= 2) {
                __syncthreads();
                if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
            }
            if (threadIdx.x == 0) atomicAdd(y, part[0]);
        }""", 2, 32, {"x": X, "y": np.zeros(1, np.float32)}, [2016], 0),
    "a sum by shuffles": ("""
        __global__ void __launch_bounds__(64) k(const float* x, float* y) {
            float sum = x[threadIdx.x];
            for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
            if (threadIdx.x % warpSize == 0) y[threadIdx.x / warpSize] = sum;
        }""", 1, 64, {"x": X, "y": (2,)}, [496, 1520], 0),
    "dynamic shared memory, in two dimensions": ("""
        __global__ void k(const float* x, float* y) {
            extern __shared__ float tile[];
            tile[threadIdx.y * 8 + threadIdx.x] = x[threadIdx.y * 8 + threadIdx.x];
            __syncthreads();
            y[threadIdx.y * 8 + threadIdx.x] = tile[threadIdx.x * 8 + threadIdx.y];
        }""", 1, (8, 8), {"x": X, "y": UNSET}, X.reshape(8, 8).T.ravel(), 256),
    "votes, vectors and constants": ("""
        __constant__ float TABLE[2] = {1.0f, 3.0f};
        __global__ void k(const float* x, float* y) {
            unsigned odd = __ballot_sync(~0u, threadIdx.x % 2);
            float4 v = make_float4(TABLE[0], TABLE[1], __popc(odd), __syncthreads_count(threadIdx.x < 5));
            y[threadIdx.x] = min(v.x, 9.0f) + max(v.y, -1.0f) + v.z + v.w + abs(-0.5f) - 0.5f;
        }""", 1, 20, {"x": X, "y": (20,)}, np.full(20, 1 + 3 + 10 + 5), 0),
    "the last block sums what the others wrote": ("""
        __device__ unsigned arrived = 0;
        __global__ void k(const float* x, float* part, float* y) {
            part[blockIdx.x] = x[blockIdx.x];
            __threadfence();
            if (atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1) {
                float sum = 0;
                for (int i = 0; i < gridDim.x; ++i) sum += part[i];
                y[0] = sum;
            }
        }""", 8, 1, {"x": X, "part": (8,), "y": (1,)}, [28], 0),
    "an atomic of one's own, as in CUDA's guide": ("""
        __device__ double add(double* at, double value) {
            unsigned long long int* bits = (unsigned long long int*)at;
            unsigned long long int old = *bits, assumed;
            do {
                assumed = old;
                old = atomicCAS(bits, assumed, __double_as_longlong(value + __longlong_as_double(assumed)));
            } while (assumed != old);
            return __longlong_as_double(old);
        }
        __global__ void k(const float* x, double* y) { add(y, x[blockIdx.x * 32 + threadIdx.x]); }""", 2, 32,
        {"x": X, "y": np.zeros(1)}, [2016], 0),
    "a lock that is opened by an exchange": ("""
        __global__ void k(const float* x, float* y) {
            __shared__ int lock;
            if (threadIdx.x == 0) atomicExch(&lock, 0);
            __syncthreads();
            if (atomicAdd(&lock, 1) == 31) y[0] = x[2];
        }""", 1, 32, {"x": X, "y": (1,)}, [2], 0),
    "half of a warp by shuffles, some of which give nothing that is used": ("""
        __global__ void k(const float* x, float* y) {
            float sum = x[threadIdx.x];
            if (threadIdx.x < 16) {
                for (int step = 8; step > 0; step /= 2) sum += __shfl_down_sync(0xffff, sum, step);
                if (threadIdx.x == 0) y[0] = sum;
            }
        }""", 1, 20, {"x": X, "y": (1,)}, [120], 0),
    "vectors at multiples of their size, and structs that need less": ("""
        struct Two { double a; int b; };
        __global__ void k(const float* x, float* y) {
            __shared__ double room[33 * 2];
            Two* twos = (Two*)(room + 1);
            Two two = {x[threadIdx.x], 1};
            twos[threadIdx.x] = two;
            float4 four = ((const float4*)(x + 4))[threadIdx.x];
            int4 whole = make_int4(1, 2, 3, 4);
            ((int4*)y)[threadIdx.x] = whole;
            Two back = twos[threadIdx.x];
            y[4 * threadIdx.x] = four.x + back.a + back.b;
            y[4 * threadIdx.x + 1] = y[4 * threadIdx.x + 2] = y[4 * threadIdx.x + 3] = 0;
        }""", 1, 15, {"x": X, "y": (60,)}, np.repeat(4 * X[:15] + 4 + X[:15] + 1, 4) * ([1, 0, 0, 0] * 15), 0),
    "names of CUDA's guide": ("""
        #include <math_constants.h>
        __device__ __noinline__ int bits(unsigned long long x) { return __popcll(x) + __ffsll(x) + __clzll(x); }
        __global__ void k(const float* x, float* y, int n = 3);
        __global__ void k(const float* x, float* y, int n) {
            uint3 at = threadIdx;
            long long start = clock64();
            y[0] = bits(12) + __mul24(3, -4) + __float_as_int(1.0f) / 65536 + __mulhi(1 << 20, 1 << 20);
            y[1] = __float2int_rn(2.5f) + __float2int_rd(-0.5f) + __fdiv_rn(1, 4) + (clock64() >= start) + at.x;
            y[2] = __float2int_rz(3e10f) == 2147483647 && __float2int_rn(CUDART_NAN_F) == 0 && CUDART_INF_F > 3e38f;
            y[3] = __reduce_max_sync(1, n) + __brev(1u << 31) + __ldcs(x + 2);
        }""", 1, 1, {"x": X, "y": (4,), "n": 4}, [2 + 3 + 60 - 12 + 16256 + 256, 2 - 1 + 0.25 + 1, 1, 4 + 1 + 2], 0),
    "local arrays of as many bytes as CUDA gives": ("""
        __global__ void k(const float* x, float* y) {
            volatile float all[125000];
            all[0] = x[threadIdx.x], all[124999] = 1;
            y[threadIdx.x] = all[0] + all[124999];
        }""", 1, 64, {"x": X, "y": UNSET}, X + 1, 0),
    "a warp in step": ("""
        __global__ void k(const float* x, float* y) {
            __shared__ float s[WIDTH];
            s[threadIdx.x] = x[threadIdx.x];
            __syncwarp();
            y[threadIdx.x] = s[31 - threadIdx.x];
        }""", 1, 32, {"x": X[:32].copy(), "y": (32,)}, X[31::-1], 0),
}

# What -> (source, grid, block, arguments, dynamic shared memory, what is said)
WRONG: dict[str, tuple[str, Any, Any, dict[str, Any], int, str]] = {
    "a write behind an array": ("""
        __global__ void k(float* y) { y[blockIdx.x * blockDim.x + threadIdx.x] = 1; }""", 3, 32, {"y": UNSET}, 0,
        r"kernel.cu:6: thread \(\d+, 0, 0\) of block \(2, 0, 0\) writes y\[\d+\] of 64 elements, outside of all"),
    "a read before an array": ("""
        __global__ void k(const float* x, float* y) { y[threadIdx.x] = x[(int)threadIdx.x - 1]; }""", 1, 32,
        {"x": X, "y": UNSET}, 0, r"kernel.cu:6: thread \(0, 0, 0\) of .* reads x\[-1\] of 64 elements, outside"),
    "a wild pointer": ("""
        __global__ void k(float* y, int n) { *(y + n * 10000000ll) = 1; y[0] = 1; }""", 1, 1, {"y": (1,), "n": 7}, 0,
        "kernel.cu:6: .* outside of all arrays"),
    "more threads than a block takes": ("""
        __global__ void k(float* y) { y[0] = 1; }""", 1, 2048, {"y": (1,)}, 0, "larger than a GPU takes"),
    "a write behind a shared array": ("""
        __global__ void k(float* y) {
            __shared__ float s[32];
            s[threadIdx.x + 1] = 1;
            y[threadIdx.x] = s[threadIdx.x + 1];
        }""", 1, 32, {"y": UNSET}, 0, r"kernel.cu:8: thread \(31, 0, 0\) .* outside of all arrays"),
    "a write behind dynamic shared memory": ("""
        __global__ void k(float* y) {
            extern __shared__ float s[];
            s[threadIdx.x] = 1;
            y[threadIdx.x] = s[threadIdx.x];
        }""", 1, 32, {"y": UNSET}, 64, r"kernel.cu:8: .* outside of all arrays"),
    "a pointer far from all arrays": ("""
        __global__ void k(float* y) { y[threadIdx.x + 100000] = 1; }""", 1, 1, {"y": UNSET}, 0,
        "kernel.cu:6: .* writes 4 bytes of global memory, outside of all arrays"),
    "a block that is deeper than a GPU's": ("""
        __global__ void k(float* y) { y[threadIdx.z] = 1; }""", 1, (1, 1, 65), {"y": (65,)}, 0,
        r"the block \(1, 1, 65\) or its shared memory, 0 bytes, is larger than a GPU takes"),
    "a grid that is higher than a GPU's": ("""
        __global__ void k(float* y) { y[0] = 1; }""", (1, 65536), 1, {"y": (65,)}, 0,
        r"the grid \(1, 65536, 1\), the block .* is larger than a GPU takes"),
    "a shared counter that nobody set": ("""
        __global__ void k(int* y) {
            __shared__ int s[4];
            atomicAdd(&s[threadIdx.x % 4], 1);
            __syncthreads();
            if (threadIdx.x < 4) y[threadIdx.x] = s[threadIdx.x];
        }""", 1, 32, {"y": (4,)}, 0, r"kernel.cu:8: .* reads s\[\d\] before anything wrote it"),
    "a histogram that nobody set": ("""
        __global__ void k(int* y) { atomicAdd(&y[threadIdx.x % 4], 1); }""", 1, 32, {"y": (4,)}, 0,
        r"kernel.cu:6: .* reads y\[\d\] before anything wrote it"),
    "a maximum, and a compared value, that nobody set": ("""
        __global__ void k(int* y) {
            __shared__ int most, lock;
            atomicMax(&most, (int)threadIdx.x);
            if (atomicCAS(&lock, 0, 1) == 0) y[0] = 1;
        }""", 1, 32, {"y": (4,)}, 0, r"kernel.cu:9: .* reads lock\[0\] before anything wrote it"),
    **{f"{vector} at an address of its {what}": (f"""
        __global__ void k(const {of}* x, float* y) {{
            __shared__ {of} s[64];
            s[threadIdx.x] = x[threadIdx.x];
            __syncthreads();
            {vector} v = *(const {vector}*)({place});
            y[threadIdx.x] = v{first};
        }}""", 1, 8, {"x": X.astype(kind), "y": UNSET}, 0,
        rf"kernel.cu:10: .* reads {place[0]}\[\d\] by an access of {size} bytes, whose address must be a multiple of "
        f"{size}") for vector, of, kind, size, first, what, place in (
            ("float2", "float", "float32", 8, ".x", "second float", "x + 1"),
            ("double", "float", "float32", 8, "", "second float", "x + 1"),
            ("int4", "int", "int32", 16, ".x", "third shared int", "s + 2"))},
    "more local memory than a thread has": ("""
        __global__ void k(float* y, int n) {
            volatile float all[300000];
            for (int i = 0; i < n; ++i) all[i] = i;
            y[0] = all[n - 1];
        }""", 1, 2, {"y": UNSET, "n": 300000}, 0,
        r"kernel.cu:\d+: thread .* takes more than 524,288 bytes for its local arrays and nested calls"),
    "a recursion that is too deep": ("""
        __device__ int deep(int n) { return n < 1 ? 0 : 1 + deep(n - 1) * (n & 1); }
        __global__ void k(float* y, int n) { y[0] = deep(n); }""", 1, 2, {"y": UNSET, "n": 1000000}, 0,
        "kernel.cu:6: thread .* takes more than 524,288 bytes for its local arrays and nested calls"),
    **{f"a sum of {threads} threads by shuffles from {threads // 32 * 32 + 32}": ("""
        __global__ void k(const float* x, float* y) {
            float sum = x[threadIdx.x];
            for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
            if (threadIdx.x % warpSize == 0) y[threadIdx.x / warpSize] = sum;
        }""", 1, threads, {"x": X, "y": (2,)}, 0, r"kernel.cu:8: thread .* takes by a shuffle what lane \d+ of its "
        "warp has, which is not in the mask or beyond the block: an undefined number, and y depends on it: 1 of 2 ")
        for threads in (20, 48)},
    "a shuffle from a lane that is not in the mask": ("""
        __global__ void k(const int* x, int* y) {
            if (threadIdx.x < 16) y[threadIdx.x] = __shfl_sync(0xffff, x[threadIdx.x], 20);
        }""", 1, 32, {"x": X.astype(np.int32), "y": (16,)}, 0, "kernel.cu:7: thread .* lane 20 of its warp has, .*"
        "and y depends on it: 16 of 16 elements"),
    "a first block that sets what all add to": ("""
        __global__ void k(int* y) {
            if (blockIdx.x == 0 && threadIdx.x == 0) *y = 0;
            __syncthreads();
            atomicAdd(y, 1);
        }""", 4, 32, {"y": np.zeros(1, np.int32)}, 0, r"kernel.cu:9: .* of block \(1, 0, 0\) writes y\[0\], which .* "
        r"of block \(0, 0, 0\) writes in kernel.cu:7: a race, with no order between blocks"),
    "a plain read of what others add to": ("""
        __global__ void k(int* y, int* z) {
            atomicAdd(y, 1);
            z[threadIdx.x] = *y;
        }""", 1, 32, {"y": np.zeros(1, np.int32), "z": (32,)}, 0,
        r"y\[0\], which .* a race, with no barrier between them"),
    "a value that nobody set": ("""
        __global__ void k(float* y) { y[threadIdx.x] += 1; }""", 1, 32, {"y": UNSET}, 0,
        r"kernel.cu:6: .* reads y\[\d+\] before anything wrote it"),
    "a shared value that nobody set": ("""
        __global__ void k(float* y) {
            __shared__ float s[64];
            s[threadIdx.x] = 1;
            y[threadIdx.x] = s[threadIdx.x + 1];
        }""", 1, 32, {"y": UNSET}, 0, r"kernel.cu:9: .* reads s\[\d+\] before anything wrote it"),
    "no barrier": ("""
        __global__ void k(const float* x, float* y) {
            __shared__ float s[64];
            s[threadIdx.x] = x[threadIdx.x];
            y[threadIdx.x] = s[63 - threadIdx.x];
        }""", 1, 64, {"x": X, "y": UNSET}, 0,
        r"kernel.cu:\d: .* s\[\d+\], which thread .* of the same block .* in kernel.cu:\d: a race, with no barrier"),
    "no barrier before shared memory is used again": ("""
        __global__ void k(const float* x, float* y) {
            __shared__ float s[64];
            for (int i = 0; i < 2; ++i) {
                s[threadIdx.x] = x[threadIdx.x] + i;
                __syncthreads();
                y[threadIdx.x] = s[63 - threadIdx.x];
            }
        }""", 1, 64, {"x": X, "y": UNSET}, 0, r"kernel.cu:\d+: .* s\[\d+\], which .* a race, with no barrier"),
    "a sum without an atomic": ("""
        __global__ void k(const float* x, float* y) { y[0] += x[threadIdx.x]; }""", 1, 64,
        {"x": X, "y": np.zeros(1, np.float32)}, 0,
        r"kernel.cu:6: .* y\[0\], which thread .* in kernel.cu:6: a race, with no barrier"),
    "a sum of blocks without an atomic": ("""
        __global__ void k(const float* x, float* y) { y[0] += x[blockIdx.x]; }""", 64, 1,
        {"x": X, "y": np.zeros(1, np.float32)}, 0, r"kernel.cu:6: .* of block .* a race, with no order between blocks"),
    "the last block without a fence": ("""
        __device__ unsigned arrived = 0;
        __global__ void k(float* part, float* y) {
            part[blockIdx.x] = 1;
            if (atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1) y[0] = part[0];
        }""", 8, 1, {"part": (8,), "y": (1,)}, 0, r"reads part\[0\], which .* a race, with no order between blocks"),
    "a barrier that some pass by": ("""
        __global__ void k(float* y) {
            if (threadIdx.x < 16) __syncthreads();
            y[threadIdx.x] = 1;
        }""", 1, 64, {"y": UNSET}, 0,
        r"kernel.cu:7: thread \(\d+, 0, 0\) of block \(0, 0, 0\) waits at a barrier, but thread \(\d+, 0, 0\) of the "
        "same block has ended"),
    "an integer divided by 0": ("""
        __global__ void k(float* y, int n) {
            y[threadIdx.x] = threadIdx.x;
            if (threadIdx.x == 3) y[0] = 7 % n;
        }""", 1, 32, {"y": UNSET, "n": 0}, 0,
        r"kernel.cu:8: thread \(3, 0, 0\) of block \(0, 0, 0\) divides an integer by 0"),
    "an exchange without half of a warp": ("""
        __global__ void k(float* y) {
            float v = threadIdx.x;
            if (threadIdx.x < 16) v = __shfl_xor_sync(~0u, v, 1);
            else __syncthreads();
            y[threadIdx.x] = v;
        }""", 1, 32, {"y": UNSET}, 0, "kernel.cu: threads wait for each other for ever"),
    "a result by the order of atomics": ("""
        __global__ void k(int* at, float* y) { y[atomicAdd(at, 1)] = threadIdx.x; }""", 1, 64,
        {"at": np.zeros(1, np.int32), "y": UNSET}, 0, r"y depends on the order of the threads: \d+ of 64 elements"),
}


@pytest.fixture(autouse=True)
def helper(tmp_path: Path) -> None:
    (tmp_path / "helper.cuh").write_text(HELPER)


def kernel(source: str) -> Kernel:
    Path("kernel.cu").write_text(HEAD + source.strip("\n").replace("\n        ", "\n") + "\n")
    return Kernel("kernel.cu")


@pytest.mark.parametrize("what", RIGHT)
def test_a_right_kernel_has_its_results_and_no_fault(what: str) -> None:
    source, grid, block, arguments, expected, shared = RIGHT[what]
    done = kernel(source).run(grid, block, arguments, shared=shared)
    assert done.faults == []
    np.testing.assert_allclose(done.arrays["y"], expected, rtol=1e-6)
    assert (arguments["x"] == X[:arguments["x"].size]).all()


@pytest.mark.parametrize("what", WRONG)
def test_a_fault_is_reported_with_its_line(what: str) -> None:
    if "divided" in what and platform.machine() != "x86_64":
        pytest.skip("this processor tells of no division by 0")
    source, grid, block, arguments, shared, message = WRONG[what]
    Path("kernel.cu").write_text(f"{HEAD}{source}\n")       # the source starts with an empty line, so in line 6
    done = Kernel("kernel.cu").run(grid, block, arguments, shared=shared)
    assert any(re.search(message, fault) for fault in done.faults), done.faults


def test_each_fault_is_said_once() -> None:
    source, grid, block, arguments, _, _ = WRONG["a sum without an atomic"]
    assert len(kernel(source).run(grid, block, arguments).faults) == 1


# ---------------------------------------------------------------- what cannot be run
ADD = "__global__ void add(const float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] += x[threadIdx.x]; }"


@pytest.mark.parametrize(("source", "name", "error", "message"), [
    ("int f() { return 1; }", None, ValueError, "kernel.cu has 0 kernels; name one"),
    (ADD + ADD.replace("add", "add2"), None, ValueError, r"has 2 kernels \(add, add2\); name one"),
    (ADD, "sub", ValueError, r"has no kernel 'sub' \(it has add\)"),
    ("struct P { int n; }; __global__ void k(P p) {}", None, ValueError, "k takes p of type 'P', which is not one of"),
    ("__constant__ float F[65536]; __global__ void k(float* y) { y[0] = F[0]; }", None, ValueError,
     r"kernel.cu declares F of 262,144 bytes in constant memory, but a GPU has 65,536 bytes of it; declare less"),
    ("__global__ void k(float* y) { __shared__ float s[16384]; s[threadIdx.x] = 1; y[0] = s[0]; }", None, ValueError,
     r"kernel.cu declares 65,536 bytes of __shared__ arrays, but a GPU takes 49,152; declare less, or one as extern"),
    ("__global__ void k(float* y) { y[0] = undefined; }", None, RuntimeError,
     "does not compile: kernel.cu:1:.*undefined"),
])
def test_a_source_that_cannot_be_run_is_refused(source: str, name: str | None, error: type[Exception],
                                                message: str) -> None:
    Path("kernel.cu").write_text(source)
    with pytest.raises(error, match=message):
        Kernel("kernel.cu", name)


def test_what_a_library_sets_as_it_is_loaded_is_no_access_of_a_kernel() -> None:
    """Twice: the second is loaded after a launch of the first."""
    Path("table.cu").write_text("""
        struct Table { int n; Table(int k) { volatile int v = k; n = v; } };
        static Table table(5);
        extern "C" __global__ void fill(float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = table.n; }
    """)
    for _ in range(2):
        run = Kernel("table.cu").run(1, 4, {"y": np.zeros(3, np.float32), "n": 3})
        assert (run.arrays["y"].tolist(), run.faults) == ([5.0, 5.0, 5.0], [])


@pytest.fixture
def add() -> Kernel:
    Path("add.cu").write_text(ADD)
    return Kernel("add.cu")


@pytest.mark.parametrize(("changed", "error", "message"), [
    ({"n": None}, ValueError, r"add has the parameters x \(float32\[\]\), y .*, but n is missing"),
    ({"m": 1}, ValueError, "but m is not one of them"),
    ({"n": 1.5}, ValueError, "add takes n as int32, which 1.5 is not"),
    ({"n": X}, TypeError, "add takes n as a number"),
    ({"x": 1.0}, TypeError, "add takes x as an array of float32, but it is given as 1.0"),
    ({"x": X.astype(float)}, TypeError, r"add takes x as an array of float32, but it is given one of float64; convert"),
    ({"grid": 0}, ValueError, "grid is 0 but must be 1 to 3 ints"),
    ({"grid": 1 << 32}, ValueError, r"grid is 4294967296 but must be 1 to 3 ints of at least 1 and below 2\^31"),
])
def test_arguments_that_do_not_fit_are_refused(changed: dict[str, Any], error: type[Exception], message: str,
                                               add: Kernel) -> None:
    given = {"x": X, "y": X, "n": 64, **changed}
    sizes = given.pop("grid", 1), given.pop("block", 64)
    given = {name: each for name, each in given.items() if each is not None}
    with pytest.raises(error, match=message):
        add.run(*sizes, given)


GEOMETRY = """
    #include "include/common.cuh"
    __global__ void width(const REAL* b, REAL* y, Geometry g) { y[0] = b ? b[0] : g.ow; }
"""


def test_structs_of_minidl_null_pointers_and_types_that_are_constants() -> None:
    """As launchers of minidl.register_conv give them."""
    Path("width.cu").write_text(GEOMETRY)
    kernel = Kernel("width.cu", constants={"REAL": "double"})
    g = np.zeros((), struct("Geometry"))
    g["ow"] = 7
    for b, y in ((None, 7.0), (np.full(1, 2.5), 2.5)):
        run = kernel.run(1, 1, {"b": b, "y": (1,), "g": g})
        assert (run.arrays["y"].tolist(), run.arrays["y"].dtype, run.faults) == ([y], np.float64, [])


def test_what_is_read_through_a_null_pointer() -> None:
    Path("width.cu").write_text(GEOMETRY.replace("b ? b[0] : g.ow", "b[3]"))
    run = Kernel("width.cu", constants={"REAL": "float"}).run(
        1, 1, {"b": None, "y": (1,), "g": np.zeros((), struct("Geometry"))})
    assert run.faults == ["width.cu:3: thread (0, 0, 0) of block (0, 0, 0) reads through a null pointer, outside of "
                          "all arrays"]


def test_a_struct_is_not_given_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    Path("width.cu").write_text(GEOMETRY)
    assert cli.main(["emulate", "width.cu", "--define", "REAL=float", "--args", "b=1:ones", "y=1", "g=3"]) == 2
    assert re.search(r"width takes g as a struct of n, c, .*, but it is given as 3.0; launch it by "
                     "minidl.register_conv and minidl check-conv", capsys.readouterr().err)


# ---------------------------------------------------------------- the command
def test_the_command_prints_results_and_faults(add: Kernel, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["emulate", "add.cu", "--block", "4", "--args", "x=4:arange", "y=4:ones", "n=4"]) == 0
    assert capfd.readouterr() == ("y float32 (4,)\n[1. 2. 3. 4.]\nadd: no fault was found\n", "")
    assert cli.main(["emulate", "add.cu", "--block", "5", "--args", "x=4:arange", "y=[1,1,1,1]", "n=5"]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert re.fullmatch(r"minidl emulate: add.cu:1: thread \(4, 0, 0\) of block \(0, 0, 0\) reads [xy]\[4\] of 4 "
                        "elements, outside of all arrays", line)


def test_what_a_kernel_prints_comes_first(capfd: pytest.CaptureFixture[str]) -> None:
    Path("hello.cu").write_text('#include <stdio.h>\n__global__ void hello(int* y) { printf("%d\\n", N); y[0] = N; }')
    assert cli.main(["emulate", "hello.cu", "--block", "1", "--args", "y=1", "--define", "N=7"]) == 0
    assert capfd.readouterr().out == "7\ny int32 (1,)\n[7]\nhello: no fault was found\n"


@pytest.mark.parametrize(("flags", "message"), [
    (["no.cu"], "no.cu is not a file; name a .cu file"),
    (["add.cu", "--args", "x"], "'x' is not NAME=VALUE, such as n=64"),
    (["add.cu", "--args", "x=four"], r"x=four is not an array (float32): sizes and a filling, 64:arange, numbers,"),
    (["add.cu", "--args", "n=4.5"], "n=4.5 is not a number (int32): such as n=64"),
    (["add.cu", "--args", "z=1"], "z is not one of them"),
    (["add.cu", "--args", "n=1", "n=2"], "--args gives n twice, the second time as 2; leave one out"),
])
def test_a_wrong_argument_is_one_line(flags: list[str], message: str, add: Kernel,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["emulate", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("minidl emulate: error: ")
    assert message in line


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("add.cu").write_text(ADD)
    watcher.cache_clear()
    monkeypatch.setattr("minidl.emulator.COMPILER", None)
    assert cli.main(["emulate", "add.cu"]) == 2
    assert "there is no C++ compiler, which it needs, and it needs Linux; install g++" in capsys.readouterr().err


def test_what_an_argument_means() -> None:
    x = Parameter("x", np.dtype(np.float32), True, False)
    np.save("x.npy", np.ones(3, np.float32))
    assert value(x, "x.npy", 1).tolist() == [1, 1, 1]
    assert value(x, "2x3", 1) == (2, 3)
    assert value(x, "2:0.5", 1).tolist() == [0.5, 0.5]
    assert filled((4,), "random", np.dtype(np.float32), 1).tolist() == filled(
        (4,), "random", np.dtype(np.float32), 1).tolist()
    assert value(Parameter("n", np.dtype(np.int64), False, False), "0x10", 1) == 16
    assert sizes("4x2") == (4, 2)


@pytest.mark.parametrize(("dtype", "text", "said"), [
    ("int32", "[1.5]", "'1.5' is not a whole number"), ("int32", "4:2.5", "'2.5' is not a whole number"),
    ("uint8", "[1,300]", "300 is not a number of uint8"), ("uint8", "4:300", "300 is not a number of uint8"),
    ("uint8", "257:arange", "256 is not a number of uint8"), ("int64", "[9223372036854775808]", "number of int64"),
    ("float32", "[1e39]", r"1e\+39 is not a number of float32"), ("float16", "2:70000", "not a number of float16"),
    ("bool", "[2]", "2 is not a number of bool"), ("float32", "0x4", "sizes are ints of at least 1")])
def test_an_array_that_its_type_does_not_have_is_refused(dtype: str, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=rf"x={re.escape(text)} is not an array \({dtype}\): .*{said}"):
        value(Parameter("x", np.dtype(dtype), True, False), text, 1)


@pytest.mark.parametrize(("dtype", "text", "numbers"), [
    ("int64", "[9007199254740993,-9223372036854775808]", [9007199254740993, -9223372036854775808]),
    ("int64", "1:9007199254740993", [9007199254740993]), ("uint64", "[18446744073709551615,1]", [(1 << 64) - 1, 1]),
    ("uint8", "[255,0x10]", [255, 16]), ("float32", "[inf,0.5]", [np.inf, 0.5])])
def test_numbers_of_an_array_are_not_rounded(dtype: str, text: str, numbers: list[float]) -> None:
    assert value(Parameter("x", np.dtype(dtype), True, False), text, 1).tolist() == numbers


def test_a_source_with_a_mark_in_front_and_one_of_another_encoding() -> None:
    Path("mark.cu").write_bytes(b"\xef\xbb\xbf" + HEAD.encode() + ADD.encode())
    Path("helper.cuh").write_bytes(b"\xef\xbb\xbf" + HELPER.encode())
    assert Kernel("mark.cu").run(1, 64, {"x": X, "y": X, "n": 64}).faults == []
    Path("latin.cu").write_bytes(b"// 1\r\n// gr\xf6\xdfe\r\n" + ADD.encode())
    with pytest.raises(ValueError, match=r"latin.cu is not a text in UTF-8: line 2 has the byte 0xf6; save it"):
        Kernel("latin.cu")


# ---------------------------------------------------------------- what is compiled
TO_LIBRARY = ["-shared", "-o", "kernel.so", "kernel.cpp"]


def test_what_is_compiled_is_kept_for_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In $MINIDL_EMULATED, not in the folder of one user, by all that it depends on."""
    kept, text = tmp_path / "kept", 'extern "C" int f() { return 3; }'
    monkeypatch.setenv("MINIDL_EMULATED", str(kept))
    library = built(tmp_path / "of its own", text, TO_LIBRARY)
    assert [*kept.iterdir()] == [library]
    assert not (tmp_path / "of its own").exists()
    changed = [built(tmp_path, text.replace("3", "4"), TO_LIBRARY), built(tmp_path, text, [*TO_LIBRARY, "-O1"])]
    with monkeypatch.context() as patch:       # another compiler, or a header of the emulator
        patch.setattr(emulator, "_compiled_by", lambda: "another")
        changed.append(built(tmp_path, text, TO_LIBRARY))
    assert len({library, *changed}) == 4
    assert [ctypes.CDLL(str(each)).f() for each in (library, *changed)] == [3, 4, 3, 3]
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it is compiled again"))
    assert built(tmp_path, text, TO_LIBRARY) == library


def test_what_a_library_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler, and each of the emulator's own sources."""
    compiled_by = emulator._compiled_by.__wrapped__        # which keeps nothing
    (tmp_path / "emulator.h").write_text("1")
    monkeypatch.setattr(emulator, "HERE", tmp_path)
    found = [compiled_by()]
    (tmp_path / "emulator.h").write_text("2")
    found.append(compiled_by())
    monkeypatch.setattr(emulator, "COMPILER", "/bin/echo")
    assert len({*found, compiled_by()}) == 3


def test_several_compile_the_same_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets the whole library, and what they wrote on the way is gone."""
    monkeypatch.setenv("MINIDL_EMULATED", str(tmp_path / "kept"))
    with ThreadPoolExecutor(4) as pool:
        found = {*pool.map(lambda _: built(tmp_path, 'extern "C" int f() { return 5; }', TO_LIBRARY), range(4))}
    assert [*(tmp_path / "kept").iterdir()] == [*found]
    assert ctypes.CDLL(str(found.pop())).f() == 5


def test_what_does_not_compile_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDL_EMULATED", str(tmp_path / "kept"))
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError) as caught:
            built(tmp_path, "int f() { return g(); }", TO_LIBRARY)
        assert "was not declared" in caught.value.stderr
    assert not [*(tmp_path / "kept").iterdir()]
