"""What accesses to memory cost, counted by the emulator: kernels whose answers are known. Needs Linux and g++."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.compiler import needs_compiler
from tiers import tiered

from minidl.lab.emulator import watcher
from minidl.lab.emulator.counts import Counts, Global, Shared, Table
from minidl.lab.emulator.watch import Kernel
from minidl.tools import cli

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("elsewhere"), needs_compiler]

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


def loads(requests: int, sectors: int, asked: int = 128, stores: Global = ONE_STORE, **more: int) -> Counts:
    return Counts(Global(requests, sectors, asked), stores, **more)


def shared(stores: Shared, loads: Shared, asked: int = 128, **more: Any) -> Counts:
    """Of a warp that writes its y at once."""
    return Counts(stores=Global(1, asked // 32, asked), shared_stores=stores, shared_loads=loads, **more)


# What -> (source, block, arguments, counts); `lane` is that of 32 threads
KNOWN: dict[str, tuple[str, Any, dict[str, Any], Counts]] = {
    # ------------------------------------------------------------ global memory
    "neighbours": (HEAD + "y[i] = x[i]; }", 32, {"x": X, "y": Y}, loads(1, 4)),
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
    # ------------------------------------------------------------ arithmetic
    "conversions and roundings": ("""__global__ void k(const float* x, float* y, size_t n, unsigned long long* u) {
        float v = x[threadIdx.x];
        y[threadIdx.x] = v; y[threadIdx.x + 32] = (float)(n + threadIdx.x); y[threadIdx.x + 64] = floorf(v);
        y[threadIdx.x + 96] = rintf(v); u[threadIdx.x] = (unsigned long long)v; }""", 32,
                                  {"x": X, "y": Y, "n": 3, "u": (32,)}, loads(1, 4, 128, Global(5, 24, 768))),
    "sums and products of half": ("""#include <cuda_fp16.h>
        __global__ void k(const half* x, half* y) {
        half v = x[threadIdx.x];
        y[threadIdx.x] = __hfma(v + v, v, __float2half(__half2float(v))); }""", 32,
                                  {"x": X[:32].astype(np.float16), "y": (32,)},
                                  loads(1, 2, 64, Global(1, 2, 64), flop=3 * 32)),
    # ------------------------------------------------------------ branches and loops
    "half a warp": (HEAD + "if (i < 16) y[i] = x[i]; }", 32, {"x": X, "y": Y}, loads(1, 2, 64, Global(1, 2, 64),
                                                                                             divergent=1)),
    "two halves": (HEAD + "if (i % 2) y[i] = x[i]; else y[i] = x[i] + 1; }", 32, {"x": X, "y": Y},
                   loads(2, 8, 128, Global(2, 8, 128), divergent=1, flop=16)),
    "lanes that load more": (HEAD + "float s = 0; for (int k = 0; k <= i; ++k) s += x[k * 32 + i]; y[i] = s; }", 32,
                             {"x": X, "y": Y}, loads(32, sum(4 - k // 8 for k in range(32)), 4 * 33 * 16,
                                                   divergent=31, flop=33 * 16)),
    "lanes whose inner loops differ": (HEAD + """
        float s = 0;
        for (int j = 0; j < 4; ++j)
            for (int k = 0; k < (i + j) % 4; ++k) s += x[i];
        y[i] = s; }""".replace("x[i]", "((const volatile float*)x)[i]"), 32, {"x": X, "y": Y},
                                       loads(4 * 3, 4 * 3 * 4, 4 * 4 * 8 * (0 + 1 + 2 + 3),
                                             divergent=4 * 3, flop=4 * 8 * (0 + 1 + 2 + 3))),
    "a loop that some leave": (HEAD + """
        float s = 0;
        for (int k = 0; k < 8; ++k) {
            if (k == i % 8) break;
            s += ((const volatile float*)x)[i];
        }
        y[i] = s + x[i + 32]; }""", 32, {"x": X, "y": Y}, loads(7 + 1, 7 * 4 + 4, 4 * 4 * 28 + 128, divergent=7,
                                     flop=4 * 28 + 32)),
    "lanes that leave first": (HEAD + "if (i < 8) return; y[i] = x[i]; }", 32, {"x": X, "y": Y},
                               loads(1, 3, 96, Global(1, 3, 96), divergent=1)),
    # ------------------------------------------------------------ shared memory
    "a transposition": (TRANSPOSE.replace("WIDTH", "32"), (32, 8), {"x": X, "y": Y},
                        COPIED + Counts(shared_loads=Shared(32, 1024, 992))),
    "a transposition with padding": (TRANSPOSE.replace("WIDTH", "33"), (32, 8), {"x": X, "y": Y},
                                     COPIED + Counts(shared_loads=Shared(32, 32, 0))),
    "two words of a bank": ("""__global__ void k(float* y) {
        __shared__ float s[64];
        s[2 * threadIdx.x] = 1; __syncthreads(); y[threadIdx.x] = s[2 * threadIdx.x]; }""", 32, {"y": Y},
                            shared(Shared(1, 2, 1), Shared(1, 2, 1), barriers=1)),
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
    "four at once in pairs": ("""__global__ void k(float* y) {
        extern __shared__ float4 v[];
        v[threadIdx.x] = make_float4(1, 2, 3, 4); __syncthreads(); ((float4*)y)[threadIdx.x] = v[threadIdx.x / 2]; }""",
                              32, {"y": Y}, shared(Shared(1, 4, 0), Shared(1, 2, 0), 512, barriers=1)),
    "four at once, the same for all": ("""__global__ void k(float* y) {
        extern __shared__ float4 v[];
        v[threadIdx.x] = make_float4(1, 2, 3, 4); __syncthreads(); ((float4*)y)[threadIdx.x] = v[3]; }""",
                                       32, {"y": Y}, shared(Shared(1, 4, 0), Shared(1, 2, 0), 512, barriers=1)),
    "doubles in pairs of lanes two apart": ("""__global__ void k(double* y) {
        __shared__ double s[32];
        s[threadIdx.x] = 1; __syncthreads(); y[threadIdx.x] = s[threadIdx.x / 4 * 2 + threadIdx.x % 2]; }""", 32,
                                            {"y": YD},
                                            shared(Shared(1, 2, 0), Shared(1, 1, 0), 256, barriers=1)),
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


SHARED = """__global__ void k(REAL* y) {
    __shared__ REAL s[128];
    s[threadIdx.x] = 1; s[threadIdx.x + 32] = 1; s[threadIdx.x + 64] = 1; s[threadIdx.x + 96] = 1; __syncthreads();
    y[threadIdx.x] = s[AT];
}
"""
# What the lanes read -> sectors, in halves of a warp, as compute capability 1.3 moves them; and how many all together
HALVES = {"x[i]": (4, 4), "x[i + 1]": (4 + 2 + 1, 5), "x[2 * i]": (8, 8), "x[7]": (2, 1), "x[32 * i]": (32, 32),
          "x[31 - i]": (4, 4), "((const char*)x)[i]": (2, 1)}
# Type and place -> steps of shared memory, and those that had to be: by halves, then by the whole warp
STEPS = {("float", "threadIdx.x"): (2, 2, 1, 1), ("float", "2 * threadIdx.x"): (4, 2, 2, 1),
         ("float", "5"): (2, 2, 1, 1), ("float", "threadIdx.x / 4"): (8, 2, 1, 1),
         ("float", "threadIdx.x / 2 * 2"): (4, 2, 1, 1), ("double", "threadIdx.x"): (8, 4, 2, 2)}


def test_halves_of_warps_are_counted_by_the_rules_of_2009() -> None:
    """By hand, from the rules of compute capability 1.x: two addresses of a bank, one word for all that want it."""
    lines = "".join(f"    y[i] = {each};\n" for each in HALVES)
    done = kernel(f"{HEAD}{lines}}}\n")
    then, now = (done.run(1, 32, {"x": X, "y": Y}, orders=1, arch=arch).counts.lines for arch in (13, 90))
    assert [(then[3 + i].loads.sectors, now[3 + i].loads.sectors) for i in range(len(HALVES))] == [*HALVES.values()]


@pytest.mark.parametrize("what", STEPS, ids=lambda what: " ".join(what))
def test_halves_of_warps_read_shared_memory_by_the_rules_of_2009(what: tuple[str, str]) -> None:
    Path("k.cu").write_text(SHARED)
    done = Kernel("k.cu", constants={"REAL": what[0], "AT": what[1]})
    found = (done.run(1, 32, {"y": Y if what[0] == "float" else YD}, orders=1, arch=arch).counts.lines[4].shared_loads
             for arch in (13, 90))
    assert [n for each in found for n in (each.wavefronts, each.wavefronts - each.conflicts)] == [*STEPS[what]]


def test_the_costliest_request_of_a_line_is_kept() -> None:
    """And the addresses of its lanes."""
    source = HEAD + "if (i % 2) y[i] = x[threadIdx.x / 32 ? 8 * i : i];\n}\n"
    done = kernel(source).run(1, 64, {"x": X, "y": Y}, orders=1)
    request = done.counts.requests[3, "loads"]
    assert (request.warp, request.size, request.parts) == (1, 4, 16)
    lanes = [at for at in request.at if at]
    assert [at - lanes[0] for at in lanes] == [64 * lane for lane in range(16)]
    assert request.places[1:4] == ("x[264]", "", "x[280]")


# ---------------------------------------------------------------- by line
def test_counts_are_of_lines() -> None:
    """What a function does counts where it stands, or, if that is another file, where it is called."""
    Path("half.cuh").write_text("__device__ float half_of(const float* x) { return *x / 2; }\n")
    done = kernel("""#include "half.cuh"
__device__ float other(const float* x, int i) {
    return x[31 - i];
}
__global__ void k(const float* x, float* y) {
    float a = half_of(x + threadIdx.x);

    y[threadIdx.x] = a + other(x, threadIdx.x);
}
""").run(1, 32, {"x": X, "y": Y})
    load = Counts(Global(1, 4, 128))
    assert done.counts.lines == {3: load, 6: load + Counts(flop=32), 8: Counts(stores=ONE_STORE, flop=32)}
    assert [" ".join(line.split()) for line in str(done.counts).splitlines()] == [
        "k.cu: k, 1 block", "global loads global stores FLOP", "reqs sectors each reqs sectors each",
        "1 4 4.0 3 return x[31 - i];", "...", "5 __global__ void k(const float* x, float* y) {",
        "1 4 4.0 32 6 float a = half_of(x + threadIdx.x);", "7",
        "1 4 4.0 32 8 y[threadIdx.x] = a + other(x, threadIdx.x);", "9 }", "2 8 4.0 1 4 4.0 64 total",
        "global loads: 256 bytes asked for by the lanes, 256 moved",
        "global stores: 128 bytes asked for by the lanes, 128 moved", "64 FLOP, 0.17 per byte of global memory"]


def test_a_warp_that_does_too_much_is_not_counted() -> None:
    """What its lanes do until they stand still must be kept."""
    done = kernel("__global__ void k(const float* x, float* y, int n) {\n"
                  "    float s = 0;\n    for (int i = 0; i < n; ++i) s += x[i % 32];\n    y[0] = s;\n}\n")
    for n, complete in (9_000_000, False), (1000, True):
        counts = done.run(1, 1, {"x": X, "y": Y, "n": n}, orders=1).counts
        assert (counts.complete, counts.total.loads.requests) == (complete, n if complete else 0)
        assert ("not all is counted: a warp does too much between two barriers" in str(counts)) is not complete


def test_without_binutils_the_total_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    source, block, arguments, expected = KNOWN["neighbours"]
    compiled = kernel(source)
    monkeypatch.setattr("shutil.which", lambda name: None)
    counts = compiled.run(1, block, arguments).counts
    assert counts.lines == {0: expected}
    assert "4.0      in no line" in str(counts)


def test_counts_of_several_launches_add_up() -> None:
    one = Table("k", "k.cu", "", 2, {1: Counts(ONE_STORE), 3: Counts(barriers=1)})
    both = one + Table("k", "k.cu", "", 3, {3: Counts(barriers=2)})
    assert (both.blocks, both.lines) == (5, {1: Counts(ONE_STORE), 3: Counts(barriers=3)})
    assert both.total == Counts(ONE_STORE, barriers=3)


def test_counts_are_those_of_one_launch() -> None:
    """A kernel is run in several orders of its threads."""
    source, block, arguments, expected = KNOWN["neighbours"]
    compiled = kernel(source)
    assert [compiled.run(1, block, arguments).counts.total for _ in range(2)] == [expected] * 2


# ---------------------------------------------------------------- minidl's own kernels
def sectors(addresses: Iterable[int]) -> int:
    return len({address // 32 for address in addresses})


def wavefronts(addresses: Iterable[int]) -> int:
    words = {address // 4 for address in addresses}
    return max(sum(word % 32 == bank for word in words) for bank in range(32))


def tiled_y(n: int, c: int, m: int, k: int) -> Counts:
    """conv2d_tiled_y of images whose maps are one tile of 16 x 16, as its source and PMPP Fig. 16.13 say."""
    side = 15 + k
    lanes = [[(2 * warp + lane // 16, lane % 16) for lane in range(32)] for warp in range(8)]
    loads, stores, reads, writes, divergent = Global(), Global(), Shared(), Shared(), 0

    def shared(words: Iterable[int]) -> Shared:
        turns = wavefronts(4 * word for word in words)
        return Shared(1, turns, turns - 1)

    for image, out in np.ndindex(n, m):
        for channel in range(c):
            filters = [4 * ((out * c + channel) * k * k + tap) for tap in range(k * k)]        # by the first warp
            loads += Global(1, sectors(filters), 4 * k * k)
            writes += shared(range(k * k))
            divergent += 1                                 # some of its lanes have no tap
            for warp in lanes:
                for down, right in np.ndindex(2, 2):
                    places = [(i + 16 * down) * side + j + 16 * right for i, j in warp
                              if i + 16 * down < side and j + 16 * right < side]
                    if places:
                        plane = (image * c + channel) * side * side
                        loads += Global(1, sectors(4 * (plane + at) for at in places), 4 * len(places))
                        writes += shared(places)
                        divergent += len(places) < 32
                for p, q in np.ndindex(k, k):
                    reads += shared((i + p) * side + j + q for i, j in warp)
                    reads += Shared(1, 1, 0)               # a tap, the same for all
        for warp in lanes:
            stores += Global(1, sectors(4 * ((image * m + out) * 256 + 16 * i + j) for i, j in warp), 128)
    return Counts(loads, stores, shared_loads=reads, shared_stores=writes, barriers=2 * n * m * c, divergent=divergent,
                  flop=2 * n * m * c * k * k * 256)


@pytest.mark.parametrize("sizes", [(1, 2, 3, 3), (2, 1, 1, 5)])
def test_the_tiled_convolution_costs_what_its_source_says(sizes: tuple[int, int, int, int]) -> None:
    from minidl.lab.emulator.own import count

    n, c, m, k = sizes
    table = count("conv2d_tiled_y", [(n, c, 15 + k, 15 + k), (m, c, k, k)])
    assert table.total == tiled_y(n, c, m, k)
    assert (table.blocks, table.file) == (n * m, "conv/papers/tiled.cu")


# Kernels of the table, each with shapes that launch it: no row of LAUNCHES is without
OWN = {"conv2d_grad_b": "2x3x4x4", "conv2d_direct_dx": "1x1x6x6,1x1x3x3", "unroll": "1x1x6x6,1x1x3x3",
       "avg_pool2d_tiled": "1x1x4x4", "max_pool2d_grad_x_apart": "1x1x4x4", "activation_grad_x": "40",
       "map_sets": "2x8", "gemm_tiled": "8x40,9x40", "fold_sets": "3x8"}


@pytest.mark.parametrize("name", tiered(OWN, slow=4))
def test_own_kernels_are_counted_by_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["emulate", name, "--shape", OWN[name]]) == 0
    out = capsys.readouterr().out
    assert re.match(rf"\w+/.*\.cu: {name}, \d+ block", out)
    assert "  total\n" in out
    assert "__global__" in out


def test_each_launch_has_a_kernel_above() -> None:
    from minidl.lab.emulator.own import LAUNCHES

    found = {next(names for names in LAUNCHES if re.fullmatch(names, name)) for name in OWN}
    assert found == LAUNCHES.keys()


WITHOUT = """
import sys
sys.modules["cupy"] = None                 # as where it is not installed
from minidl.lab.emulator.own import count
print(count("max_pool2d", [(1, 1, 8, 8)]).total.stores)
assert "cupy" not in sys.modules, "launchers hold what stands in for it, and nobody else"
"""


@pytest.mark.deep
def test_own_kernels_are_counted_without_cupy() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False,
                          cwd=Path(cli.__file__).parents[3])
    assert (done.returncode, done.stdout) == (0, "Global(requests=2, sectors=4, asked=128)\n"), done.stderr


@pytest.mark.parametrize(("layout", "pixels", "weights"), [("NCHW", 4, 1), ("NHWC", 8, 1), ("CHWN", 4, 1)])
def test_a_layout_is_counted(layout: str, pixels: int, weights: int) -> None:
    """32 threads: in NHWC neighbours are every second number, since there are two channels and one map."""
    from minidl.lab.emulator.own import count

    total = count("conv2d_direct_y", [(32, 2, 4, 4), (1, 2, 1, 1)], layout=layout).total
    warps, channels = 32 * 16 // 32, 2
    assert total.loads.requests == 2 * warps * channels
    assert total.loads.sectors == (pixels + weights) * warps * channels
    assert total.stores.per_request == 4


# ---------------------------------------------------------------- the command
def test_the_command_prints_the_source_with_its_counts(capsys: pytest.CaptureFixture[str]) -> None:
    Path("k.cu").write_text(HEAD + "y[i] = x[2 * i]; }")
    given = ["emulate", "k.cu", "--args", "x=64:arange", "y=32"]
    assert cli.main(given) == 0
    assert "sectors" not in capsys.readouterr().out
    assert cli.main([*given, "--count"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\n +1 +8 +8.0 +1 +4 +4.0 +3  y\[i\] = x\[2 \* i\]; }\n", out), out
    assert "global loads: 128 bytes asked for by the lanes, 256 moved\n" in out
    assert cli.main([*given, "--arch", "80"]) == 0
    assert re.search(r"moved\nA100 SXM 40 GB, compute capability 8.0\n  .*\n  0 bytes of shared memory per block of 32 "
                     "threads: 32 blocks per multiprocessor, limited by blocks, occupancy 50%\n",
                     capsys.readouterr().out)


@pytest.mark.parametrize(("flags", "message"), [
    (["conv2d_tiled_z"], "conv2d_tiled_z is neither a file nor one of minidl's kernels that shapes alone launch: .*, "
                         "conv2d_tiled_y, .*; others are counted in Python, by minidl.lab.emulator.own.counting"),
    (["sgd", "--shape", "8"], "sgd is neither a file nor one of minidl's kernels that shapes alone launch"),
    (["conv2d_tiled_y"], r"conv2d_tiled_y takes x \(n,c,h,w\), w \(m,c,kh,kw\) but got the shapes \[\]; give one of"),
    (["avg_pool2d", "--shape", "1x1x4x4"], r"avg_pool2d is not launched for x \(n,c,h,w\) of the shapes .*, but "
                                           "avg_pool2d_tiled; give other shapes"),
    (["conv2d_winograd", "--shape", "1x1x6x6,1x1x1x1"], r"conv2d_winograd cannot take x .* and w .*: .*; use others"),
    (["avg_pool2d", "--shape", "1x1x4x4", "--layout", "NHWC"], "avg_pool2d takes NCHW alone but got the layout NHWC; "
                                                               "leave it out"),
    (["conv2d_tiled_dw", "--shape", "1x1x6x6,1x1x3x3", "--layout", "CHWN"], "algorithm 'tiled' cannot compute dw .* in "
                                                                          "CHWN: its kernel for dw takes NCHW alone"),
    (["conv2d_unroll", "--shape", "1x1x6x6,1x1x3x3", "--layout", "CHWN"], "conv2d_unroll is neither a file nor one of"),
    (["conv2d_tiled_y", "--args", "n=1"], "conv2d_tiled_y is not a file, and one of minidl's own kernels"),
    (["k.cu", "--shape", "8"], "--shape is for minidl's own kernels, but k.cu is a file; give --args and --grid"),
])
def test_what_cannot_be_counted_is_one_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["emulate", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line), line


def test_a_shape_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["emulate", "softmax", "--shape", "2xn"])
    assert "'2xn' is not a list of shapes, such as 4x6x28x28,16x6x5x5" in capsys.readouterr().err


def test_without_a_compiler_own_kernels_say_so(monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    watcher.cache_clear()
    monkeypatch.setattr("minidl.emulator.COMPILER", None)
    assert cli.main(["emulate", "softmax", "--shape", "2x8"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "there is no C++ compiler, which it needs, and it needs Linux; install g++" in line


# ---------------------------------------------------------------- the page
PAGE = Path(__file__).resolve().parents[2] / "docs" / "memory.md"


@pytest.mark.deep
@pytest.mark.parametrize("which", [0, 1])
def test_the_command_of_the_page_prints_what_it_says(which: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The transposition's counts, and what a kernel takes of a GPU."""
    if which:
        pytest.importorskip("cupy", reason="CuPy is not installed: there is no NVRTC")
    text = PAGE.read_text(encoding="utf-8")
    (source,) = re.findall(r"```cuda\n(.*?)```", text, re.DOTALL)
    Path("transpose.cu").write_text(source)
    commands = re.findall(r"^minidl (emulate .*?)$", text, re.MULTILINE)
    assert cli.main(shlex.split((commands[0], next(each for each in commands if "krizhevsky" in each))[which])) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = re.findall(r"```text\n(.*?)\n```", text, re.DOTALL)[which]
    assert [line for line in shown.splitlines() if line.split() not in printed] == []
