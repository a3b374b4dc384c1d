"""What accesses to memory cost, counted by the emulator: kernels whose answers are known. Needs Linux and g++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidl.emulator import COMPILER
from minidl.emulator.counts import Counts, Global, Shared
from minidl.emulator.watch import Kernel

pytestmark = pytest.mark.usefixtures("elsewhere")

if COMPILER is None:
    pytest.skip("the emulator needs Linux and a C++ compiler, g++ or c++", allow_module_level=True)

X = np.arange(4096, dtype=np.float32)
D = np.arange(256, dtype=np.float64)
INTEGERS = np.arange(32, dtype=np.int32)
Y, YD = (4096,), (256,)
ONE_STORE = Global(1, 4, 128)
HEAD = "__global__ void k(const float* x, float* y) {\n    int i = threadIdx.x;\n"
HEAD_D = HEAD.replace("float", "double")
TRANSPOSE = """
__global__ void k(const float* x, float* y) {
    __shared__ float s[32][WIDTH];
    for (int i = 0; i < 32; i += 8) s[threadIdx.y + i][threadIdx.x] = x[(threadIdx.y + i) * 32 + threadIdx.x];
    __syncthreads();
    for (int i = 0; i < 32; i += 8) y[(threadIdx.y + i) * 32 + threadIdx.x] = s[threadIdx.x][threadIdx.y + i];
}
"""
COPIED = Counts(Global(32, 128, 4096), Global(32, 128, 4096), shared_stores=Shared(32, 32, 0), barriers=1)


def loads(requests: int, sectors: int, asked: int = 128, stores: Global = ONE_STORE) -> Counts:
    return Counts(Global(requests, sectors, asked), stores)


def shared(stores: Shared, loads: Shared, asked: int = 128, **more: Any) -> Counts:
    """Of a warp that writes its y at once."""
    return Counts(stores=Global(1, asked // 32, asked), shared_stores=stores, shared_loads=loads, **more)


# What -> (source, block, arguments, counts); `lane` is that of 32 threads
KNOWN: dict[str, tuple[str, Any, dict[str, Any], Counts]] = {
    # ------------------------------------------------------------ global memory
    "neighbours": (HEAD + "y[i] = x[i]; }", 32, {"x": X, "y": Y}, loads(1, 4)),
    "every second": (HEAD + "y[i] = x[2 * i]; }", 32, {"x": X, "y": Y}, loads(1, 8)),
    "a column": (HEAD + "y[i] = x[32 * i]; }", 32, {"x": X, "y": Y}, loads(1, 32)),
    "off by one": (HEAD + "y[i] = x[i + 1]; }", 32, {"x": X, "y": Y}, loads(1, 5)),
    "all the same": (HEAD + "y[i] = x[7]; }", 32, {"x": X, "y": Y}, loads(1, 1)),
    "backwards": (HEAD + "y[i] = x[31 - i]; }", 32, {"x": X, "y": Y}, loads(1, 4)),
    "double": (HEAD_D + "y[i] = x[i]; }", 32, {"x": D, "y": YD}, loads(1, 8, 256, Global(1, 8, 256))),
    "bytes": ("__global__ void k(const unsigned char* x, unsigned char* y) { y[threadIdx.x] = x[threadIdx.x]; }", 32,
              {"x": INTEGERS.astype(np.uint8), "y": (32,)}, loads(1, 1, 32, Global(1, 1, 32))),
    "four at once": (HEAD + "float4 v = ((const float4*)x)[i]; v.x = v.w; ((float4*)y)[i] = v; }", 32,
                     {"x": X, "y": Y}, loads(1, 16, 512, Global(1, 16, 512))),
    "a struct of three": (HEAD + "float3 v = ((const float3*)x)[i]; v.x = v.z; ((float3*)y)[i] = v; }", 32,
                          {"x": X, "y": Y}, loads(3, 36, 384, Global(3, 36, 384))),
    "a warp that is not full": (HEAD + "y[i] = x[i]; }", 40, {"x": X, "y": Y}, loads(2, 5, 160, Global(2, 5, 160))),
    "two warps in two rows": ("""__global__ void k(const float* x, float* y) {
        y[threadIdx.y * 64 + threadIdx.x] = x[threadIdx.y * 64 + threadIdx.x]; }""", (16, 4), {"x": X, "y": Y},
                              loads(2, 8, 256, Global(2, 8, 256))),
    "a sum by atomics": ("__global__ void k(const int* x, int* y) { atomicAdd(y + threadIdx.x % 16, x[threadIdx.x]); }",
                         32, {"x": INTEGERS, "y": np.zeros(16, np.int32)},
                         Counts(Global(1, 4, 128), atomics=Global(1, 2, 128))),
    # ------------------------------------------------------------ branches and loops
    "half a warp": (HEAD + "if (i < 16) y[i] = x[i]; }", 32, {"x": X, "y": Y}, loads(1, 2, 64, Global(1, 2, 64))),
    "two halves": (HEAD + "if (i % 2) y[i] = x[i]; else y[i] = x[i] + 1; }", 32, {"x": X, "y": Y},
                   loads(2, 8, 128, Global(2, 8, 128))),
    "lanes that load more": (HEAD + "float s = 0; for (int k = 0; k <= i; ++k) s += x[k * 32 + i]; y[i] = s; }", 32,
                             {"x": X, "y": Y}, loads(32, sum(4 - k // 8 for k in range(32)), 4 * 33 * 16)),
    "lanes whose inner loops differ": (HEAD + """
        float s = 0;
        for (int j = 0; j < 4; ++j)
            for (int k = 0; k < (i + j) % 4; ++k) s += x[i];
        y[i] = s; }""".replace("x[i]", "((const volatile float*)x)[i]"), 32, {"x": X, "y": Y},
                                       loads(4 * 3, 4 * 3 * 4, 4 * 4 * 8 * (0 + 1 + 2 + 3))),
    "a loop that some leave": (HEAD + """
        float s = 0;
        for (int k = 0; k < 8; ++k) {
            if (k == i % 8) break;
            s += ((const volatile float*)x)[i];
        }
        y[i] = s + x[i + 32]; }""", 32, {"x": X, "y": Y}, loads(7 + 1, 7 * 4 + 4, 4 * 4 * 28 + 128)),
    "lanes that leave first": (HEAD + "if (i < 8) return; y[i] = x[i]; }", 32, {"x": X, "y": Y},
                               loads(1, 3, 96, Global(1, 3, 96))),
    # ------------------------------------------------------------ shared memory
    "a transposition": (TRANSPOSE.replace("WIDTH", "32"), (32, 8), {"x": X, "y": Y},
                        COPIED + Counts(shared_loads=Shared(32, 1024, 992))),
    "a transposition with padding": (TRANSPOSE.replace("WIDTH", "33"), (32, 8), {"x": X, "y": Y},
                                     COPIED + Counts(shared_loads=Shared(32, 32, 0))),
    "the same word for all": ("""__global__ void k(float* y) {
        __shared__ float s[32];
        s[threadIdx.x] = 1; __syncthreads(); y[threadIdx.x] = s[3]; }""", 32, {"y": Y},
                              shared(Shared(1, 1, 0), Shared(1, 1, 0), barriers=1)),
    "two words of a bank": ("""__global__ void k(float* y) {
        __shared__ float s[64];
        s[2 * threadIdx.x] = 1; __syncthreads(); y[threadIdx.x] = s[2 * threadIdx.x]; }""", 32, {"y": Y},
                            shared(Shared(1, 2, 1), Shared(1, 2, 1), barriers=1)),
    "doubles by halves": ("""__global__ void k(double* y) {
        __shared__ double s[32];
        s[threadIdx.x] = 1; __syncthreads(); y[threadIdx.x] = s[threadIdx.x]; }""", 32, {"y": YD},
                          shared(Shared(1, 2, 0), Shared(1, 2, 0), 256, barriers=1)),
    "doubles two apart": ("""__global__ void k(double* y) {
        __shared__ double s[64];
        s[2 * threadIdx.x] = 1; __syncthreads(); y[threadIdx.x] = s[2 * threadIdx.x]; }""", 32, {"y": YD},
                          shared(Shared(1, 4, 2), Shared(1, 4, 2), 256, barriers=1)),
    "four at once by quarters": ("""__global__ void k(float* y) {
        extern __shared__ float4 v[];
        v[threadIdx.x] = make_float4(1, 2, 3, 4); __syncthreads(); ((float4*)y)[threadIdx.x] = v[threadIdx.x]; }""",
                                 32, {"y": Y}, shared(Shared(1, 4, 0), Shared(1, 4, 0), 512, barriers=1)),
    "four at once, every second": ("""__global__ void k(float* y) {
        extern __shared__ float4 v[];
        v[2 * threadIdx.x] = make_float4(1, 2, 3, 4); __syncthreads();
        ((float4*)y)[threadIdx.x] = v[2 * threadIdx.x]; }""", 32, {"y": Y},
                                   shared(Shared(1, 8, 4), Shared(1, 8, 4), 512, barriers=1)),
    # ------------------------------------------------------------ barriers
    "barriers in a loop": ("""__global__ void k(float* y) {
        for (int i = 0; i < 5; ++i) __syncthreads();
        if (__syncthreads_or(threadIdx.x == 70)) y[threadIdx.x] = 1; }""", 96, {"y": Y},
                           Counts(stores=Global(3, 12, 384), barriers=6)),
}


def kernel(source: str) -> Kernel:
    Path("k.cu").write_text(source)
    return Kernel("k.cu")


@pytest.mark.parametrize("what", KNOWN)
def test_counts_are_those_that_are_known(what: str) -> None:
    source, block, arguments, expected = KNOWN[what]
    done = kernel(source).run(1, block, arguments, shared=1024, orders=1)
    assert done.faults == []
    assert done.counts.total == expected


@pytest.mark.parametrize("what", ["lanes whose inner loops differ", "a transposition", "a loop that some leave"])
def test_counts_do_not_depend_on_the_order_of_threads(what: str) -> None:
    source, block, arguments, expected = KNOWN[what]
    done = kernel(source)
    for seed in range(5):
        assert done.run(1, block, arguments, shared=1024, orders=1, seed=seed).counts.total == expected
