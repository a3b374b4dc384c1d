"""Poison on a GPU: what nobody wrote is NaN, in shared memory and in results (minidl/ops/cuda/launch/poison.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from minidl.ops.cuda import launch  # noqa: E402
from minidl.ops.cuda.launch import poison  # noqa: E402

pytestmark = pytest.mark.gpu
ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
READS = """
extern "C" __global__ void reads(unsigned* others, int words) {
    extern __shared__ unsigned memory[];
    unsigned found = 0;
    for (int i = threadIdx.x; i < words; i += blockDim.x) found += memory[i] != 0xffffffffu;
    atomicAdd(&others[blockIdx.x], found);
}
"""


def test_tests_on_a_gpu_run_under_poison() -> None:
    assert poison.ON


@pytest.mark.parametrize("size", [4096, 48 << 10, 160 << 10])
def test_shared_memory_is_full_of_nan_before_a_launch(size: int) -> None:
    """On every multiprocessor. More tries, since another process's kernel can come between the two launches."""
    reads = cupy.RawKernel(READS, "reads")
    reads.max_dynamic_shared_size_bytes = size

    def others() -> int:
        found = cupy.zeros(4 * launch.multiprocessors(), np.uint32)
        poison.fill_shared()
        reads((found.size,), (256,), (found, np.int32(size // 4)), shared_mem=size)
        return int(found.sum())

    assert 0 in (others() for _ in range(5))


def test_results_are_full_of_nan_also_where_they_lay_before() -> None:
    for _ in range(2):
        result = launch.empty((5, 7), np.dtype("float32"))
        assert cupy.isnan(result).all()
        result.fill(1)


def test_without_the_variable_nothing_is_filled() -> None:
    script = ("from minidl.ops.cuda.launch import kernels, memory, poison; import inspect\n"
              "assert not poison.ON and not poison.CONSTANTS and inspect.unwrap(memory.empty) is memory.empty\n"
              "assert inspect.unwrap(kernels.Kernel._start) is kernels.Kernel._start")
    environment = {name: value for name, value in os.environ.items() if name != "MINIDL_POISON"}
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, check=True)
