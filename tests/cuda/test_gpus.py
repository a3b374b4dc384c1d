"""What a kernel takes of a GPU's multiprocessors, by NVRTC, which needs no GPU."""

from __future__ import annotations

import sys

import pytest

from minidl.core.host import install
from minidl.lab import gpus
from minidl.lab.emulator.counts import Counts, Global, LaunchConfiguration, Table
from minidl.ops.common.sources import HOPPER

SOURCE = """
extern "C" __global__ void plain(float* y) { y[threadIdx.x] = N; }
__global__ void __launch_bounds__(1024) full(const float* x, float* y) {
    __shared__ float s[256];
    float sums[128];
    for (int i = 0; i < 128; i++) sums[i] = x[i * 32 + threadIdx.x];
    s[threadIdx.x % 256] = x[0];
    __syncthreads();
    for (int i = 0; i < 128; i++) y[i * 32 + threadIdx.x] = sums[127 - i] * s[i];
}
"""


@pytest.mark.slow
def test_what_a_kernel_takes() -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed: there is no NVRTC")
    plain, full = (gpus.taken(SOURCE, name, (("N", 3),), 90) for name in ("plain", "full"))
    assert (plain.spills, plain.shared, full.shared) == (0, 0, 1024)
    assert 0 < plain.registers < 16
    assert full.registers == 64            # of 65,536 for 1,024 threads: the rest is spilled
    assert full.spills >= 2 * 4 * 64       # stores and loads


@pytest.mark.parametrize(("kernel", "constants", "arch", "message"), [
    ("plain", (), 90, r"registers: NVRTC does not compile plain: plain.cu\(2\): error: identifier \"N\" is undefined"),
    ("plain", (("N", 3),), 13, r"registers: NVRTC [\d.]+ compiles for compute capability \d.\d and newer, not for 1.3"),
    ("plain", (("N", 3), HOPPER), 80, "registers: plain is for compute capability 9.0 alone, not for 8.0")])
def test_what_cannot_be_compiled_is_said(kernel: str, constants: tuple[tuple[str, int], ...], arch: int,
                                         message: str) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed: there is no NVRTC")
    with pytest.raises(RuntimeError, match=message):
        gpus.taken(SOURCE, kernel, constants, arch)


def test_without_nvrtc_the_rest_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a kernel whose arithmetic takes longer than its memory, and of another."""
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    for flop, most in (2560, 66.9), (64, 1.68):
        table = Table("k", "k.cu", SOURCE, 1, {1: Counts(Global(1, 4, 128), flop=flop)},
                      launch=LaunchConfiguration(256, 60000, 4000))
        assert gpus.report(table, 90) == [
            "H100 SXM, compute capability 9.0",
            f"  registers: there is no NVRTC, CUDA's compiler, which comes with CuPy; {install('cuda13')}",
            "  64,000 bytes of shared memory per block of 256 threads: 3 blocks per multiprocessor, limited by shared "
            "memory, occupancy 38%",
            f"  {flop / 128:.2f} FLOP per byte; memory limits below 20.0: at most {most} of 66.9 TFLOP/s in fp32, if "
            "no cache helps"]


def test_a_block_that_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB of shared memory are all that a multiprocessor of 7.5 has."""
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    for dynamic, told in (65536, "1 block per multiprocessor, limited by shared memory, occupancy 3%"), (
            65537, "no block fits a multiprocessor, limited by shared memory, occupancy 0%"):
        table = Table("k", "k.cu", SOURCE, 1, {}, launch=LaunchConfiguration(32, dynamic))
        assert gpus.report(table, 75)[2].endswith(told)
