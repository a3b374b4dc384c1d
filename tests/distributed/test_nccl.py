"""Several ranks on GPUs, of which each has its own: `pytest -m gpu tests/distributed/test_nccl.py`, on two or more.

RANKS_EXITS=20 ends a run 20 times. Needs mpi4py, an mpiexec of the same MPI, and NCCL: pip install 'minidl[nccl13]'.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from test_ranks import HERE, ROOT, needs_mpi, result_of, started, surroundings

EXITS = int(os.environ.get("RANKS_EXITS", "3"))
NEAR = 1e-9                                # of float64 after 50 steps: the kernels of a part add up in another order


def gpus() -> int:
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount())
    except Exception:                      # no CuPy, no driver, no GPU
        return 0


pytestmark = [pytest.mark.gpu, needs_mpi]
needs_two = pytest.mark.skipif(gpus() < 2, reason=f"{gpus()} GPUs are here, and two ranks need two")


@pytest.fixture(autouse=True)
def _on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKS_DEVICE", "cuda")


@needs_two
@pytest.mark.parametrize("what", ["all_kinds", "called"])
def test_the_losses_and_weights_of_one_gpu(what: str, tmp_path: Path) -> None:
    alone = tmp_path / "alone.npz"
    subprocess.run([sys.executable, str(HERE / "trainings.py"), what, str(alone)], check=True, cwd=ROOT,
                   env=surroundings(), timeout=600)
    got = result_of(2, what, tmp_path)
    with np.load(alone) as want:
        for name in want.files:
            if name != "calls":
                np.testing.assert_allclose(got[name], want[name], rtol=NEAR, atol=NEAR, err_msg=name)


@needs_two
def test_a_thousand_replays_twice_the_same_bits(tmp_path: Path) -> None:
    first, second = (result_of(2, "replays", tmp_path, 1000) for _ in range(2))
    for name, array in first.items():
        np.testing.assert_array_equal(second[name], array, err_msg=name)


@needs_two
def test_a_run_ends(tmp_path: Path) -> None:
    """With a captured graph that holds sums of NCCL."""
    for _ in range(EXITS):
        result_of(2, "replays", tmp_path, 30)


@needs_two
def test_an_error_on_a_gpu_ends_all(tmp_path: Path) -> None:
    begin = time.monotonic()
    done = started(2, HERE / "trainings.py", "broken", tmp_path / "none.npz", tmp_path / "run")
    assert done.returncode != 0
    assert time.monotonic() - begin < 60   # with the start
    assert done.stderr.count("Traceback") == done.stderr.count("ValueError: image 3 is no image") == 1
    assert done.stderr.startswith("rank 1: Traceback")


@pytest.mark.skipif(gpus() < 1, reason="no GPU is here")
def test_two_ranks_on_one_gpu_are_refused(tmp_path: Path) -> None:
    done = started(2, HERE / "trainings.py", "replays", tmp_path / "none.npz", 10, CUDA_VISIBLE_DEVICES="0")
    assert done.returncode != 0
    assert "ValueError: distributed: ranks 0 and 1 are both on GPU " in done.stderr
    assert "start no more ranks than a machine has GPUs" in done.stderr
