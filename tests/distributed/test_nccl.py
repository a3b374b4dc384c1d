"""Several ranks on GPUs, one each: the numbers of one process to rounding, graphs that hold NCCL, and the end.

Needs two GPUs, NCCL, mpi4py and mpiexec. RANKS_EXITS says how many ends are tried, 3 unless told.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import trainings
from test_ranks import HERE, needs_mpi, result_of, started

from minidl.core import device


def too_few() -> str:
    """Why these tests cannot run here; empty where they can."""
    if device.resolve("auto") == "cpu":
        return "there is no GPU"
    import cupy
    from cupy.cuda import nccl

    count = cupy.cuda.runtime.getDeviceCount()
    return f"there is {count} GPU" if count < 2 else "" if nccl.available else "CuPy finds no NCCL"


@pytest.fixture(autouse=True)
def on_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    if why := too_few():
        pytest.skip(why)
    monkeypatch.setenv("RANKS_DEVICE", "cuda")


pytestmark = [pytest.mark.gpu, needs_mpi]


def near(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    """float64 sums in another order, for 50 steps."""
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("what", ["all_kinds", "alike", "by_hand"])
def test_two_gpus_give_the_losses_and_weights_of_one(what: str, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainings, "DEVICE", "cuda")
    one: Callable[[], dict[str, np.ndarray]] = getattr(trainings, what)
    near(result_of(2, what, tmp_path), one())


def test_two_runs_give_the_same_bits_and_a_thousand_replays_end(tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        runs.append(result_of(2, "replays", tmp_path / name, 1000))
    assert np.isfinite(runs[0]["loss"])
    for name, array in runs[0].items():
        np.testing.assert_array_equal(runs[1][name], array, err_msg=name)


@pytest.mark.parametrize("name", ["lenet5", "krizhevsky2009"])
def test_gradients_are_made_where_nccl_reads_them(name: str, tmp_path: Path) -> None:
    """A launch less in each graph, and the same bits as with it."""
    runs = result_of(2, "in_place", tmp_path, name)
    assert runs.pop("copies").tolist() == [0, 1, 1]
    for key in [key[2:] for key in runs if key.startswith("0 ")]:
        np.testing.assert_array_equal(runs[f"0 {key}"], runs[f"1 {key}"], err_msg=key)
        np.testing.assert_array_equal(runs[f"0 {key}"], runs[f"2 {key}"], err_msg=key)


def test_a_checkpoint_of_two_gpus_goes_on_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainings, "DEVICE", "cuda")
    result_of(2, "first_part", tmp_path, tmp_path / "checkpoints")
    near(result_of(1, "second_part", tmp_path, tmp_path / "checkpoints" / "checkpoint-previous.h5"),
         trainings.trained("normalised", True))


def test_every_run_ends(tmp_path: Path) -> None:
    """After captured steps, with status 0 and no word on stderr."""
    for _ in range(int(os.environ.get("RANKS_EXITS", "3"))):
        done = started(2, HERE / "trainings.py", "replays", tmp_path / "out.npz", 10)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_status_of_a_script_is_its_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nfrom minidl import distributed\ndistributed.start().prepare('cuda')\nsys.exit(3)\n")
    assert started(2, script).returncode == 3


def test_an_error_on_one_rank_ends_all(tmp_path: Path) -> None:
    done = started(2, HERE / "trainings.py", "broken", tmp_path / "none.npz", tmp_path / "run")
    assert (tmp_path / "run" / "failed").exists()
    assert done.returncode != 0
    assert "ValueError: image 3 is no image" in done.stderr
    assert (tmp_path / "run" / "checkpoint.h5").exists()


def test_an_error_while_another_rank_ends(tmp_path: Path) -> None:
    """Which has begun a sum that this rank never joins."""
    done = started(2, HERE / "trainings.py", "leaves", tmp_path / "none.npz", tmp_path / "failed")
    assert (tmp_path / "failed").exists()
    assert done.returncode != 0
    assert "ValueError: a step that cannot be" in done.stderr


def test_three_ranks_on_two_gpus_are_refused() -> None:
    import cupy

    done = started(cupy.cuda.runtime.getDeviceCount() + 1, "-c",
                   "from minidl import distributed; distributed.start().prepare('cuda')")
    assert done.returncode != 0
    assert "distributed: " in done.stderr
