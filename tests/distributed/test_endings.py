"""A rank that is killed, or meets an error, ends all, with one message that names it, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_ranks import HERE, MPIEXEC, ROOT, needs_mpi, surroundings
from tiers import tiered

from minidl.distributed import witness
from minidl.nn.weights.files import opened
from minidl.training import read_config, read_metrics
from minidl.training.checkpoint import KIND, NAMES

pytestmark = [needs_mpi, pytest.mark.slow]  # real processes, which start and train before they come to their end
HANG = 300.0                               # seconds: more is a deadlock, also where other processes have the cores
RUNS: list[Run] = []


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    """The ranks of a test that fails train no further."""
    yield
    while RUNS:
        RUNS.pop().kill()


class Run:
    """`train.py` on several ranks, as it goes: it has no end of its own in sight."""

    def __init__(self, how: str, folder: Path, *flags: str, ranks: int = 3):
        self.folder = folder / "run"
        command = [str(MPIEXEC), "-n", str(ranks), sys.executable, str(HERE / "endings.py"), how, "--model=perceptron",
                   "--data=synthetic-digits", "--limit-train=600", "--limit-test=50", "--epochs=999999", "--device=cpu",
                   "--lr-schedule=constant", f"--output-dir={self.folder}", *flags]
        # A process group of its own, whose members are known later by the run's folder in their commands.
        self.process = subprocess.Popen(command, cwd=ROOT, env=surroundings(), text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)
        RUNS.append(self)

    def kill(self) -> None:
        self.process.kill()
        for number in self.processes().values():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def begun(self) -> None:
        """Wait until two checkpoints have been written."""
        until = time.monotonic() + HANG
        while not (self.folder / "checkpoint-previous.h5").exists():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < until
            time.sleep(0.05)

    def processes(self) -> dict[int, int]:
        """The ranks that live, and the processes that they are."""
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                words = (place / "cmdline").read_bytes().split(b"\0")
                if f"--output-dir={self.folder}".encode() in words and b"endings.py" in words[1]:
                    variables = (place / "environ").read_bytes().split(b"\0")
                    found.update({int(each[len("PMI_RANK="):]): int(place.name) for each in variables
                                  if each.startswith(b"PMI_RANK=")})
            except (OSError, IndexError):  # it has ended
                pass
        return found

    def end(self, status: int | None = None) -> list[str]:
        """Wait for the end; returns the lines of stderr that minidl has written."""
        _, errors = self.process.communicate(timeout=HANG)
        assert self.process.returncode != 0
        assert status is None or self.process.returncode == status, errors
        until = time.monotonic() + HANG
        while self.processes():
            assert time.monotonic() < until, self.processes()
            time.sleep(0.1)
        return [line for line in errors.splitlines() if line.startswith("endings.py: ")]

    def intact(self) -> None:
        """The last checkpoint can be read, and the metrics of the epochs before. A rank that was killed while it put
        the newest in its place leaves the one before it."""
        newest = next(path for name in NAMES if (path := self.folder / name).exists())
        with opened(KIND, newest, 1000) as file:
            assert file.attribute("format") == KIND.format
        assert read_metrics(self.folder)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are looked up in /proc")
class TestLost:
    def test_a_rank_that_is_killed(self, tmp_path: Path) -> None:
        run = Run("killed", tmp_path)
        run.begun()
        processes = run.processes()
        assert sorted(processes) == [0, 1, 2]
        os.kill(processes[1], signal.SIGKILL)
        line, = run.end()
        assert line.startswith("endings.py: error: rank ")     # on a busy machine, or one that the launcher killed then
        assert f" rank 1 of 3 (process {processes[1]} on " in line
        assert line.endswith(") was lost: it was killed, or has crashed; all ranks end")
        run.intact()

    def test_a_launcher_that_is_killed(self, tmp_path: Path) -> None:
        run = Run("launcher killed", tmp_path, ranks=2)
        run.begun()
        run.process.kill()
        run.end(-signal.SIGKILL)
        run.intact()

    def test_a_signal_to_one_rank_stops_all_at_one_step(self, tmp_path: Path) -> None:
        run = Run("signal", tmp_path, ranks=2)
        run.begun()
        os.kill(run.processes()[1], signal.SIGTERM)
        line, = run.end(128 + signal.SIGTERM)
        assert line.startswith(f"endings.py: interrupted by SIGTERM; the run is in {run.folder}, go on with: mpiexec "
                               "-n 2 ")
        run.intact()


@pytest.mark.deep
def test_a_signal_to_the_launcher(tmp_path: Path) -> None:
    run = Run("signal", tmp_path)
    run.begun()
    run.process.send_signal(signal.SIGINT)
    line, = run.end(128 + signal.SIGINT)
    assert line.startswith(f"endings.py: interrupted by SIGINT; the run is in {run.folder}, go on with: mpiexec -n 3 ")
    run.intact()


def test_a_rank_that_another_one_ends_was_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    """Where the machine is busy, the witness finds both at once: the connection that ended, and the word of who ended
    it."""
    both, select = threading.Event(), witness.select.select

    def late(reads: list[socket.socket], *others: Any) -> Any:
        assert listener in reads or both.wait(HANG)
        return select(reads, *others)

    monkeypatch.setattr(witness.select, "select", late)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "witness"))
        listener.listen(2)
        watching = threading.Thread(target=witness.watch, args=(listener, 2, "train.py"))
        watching.start()
        ended, other = (witness.connect(str(tmp_path / "witness"), rank, 2) for rank in range(2))
        other.sendall(witness.END)
        ended.close()
        both.set()
        watching.join(HANG)
        other.close()
    assert not watching.is_alive()
    assert capsys.readouterr().err == ""


@pytest.mark.deep
def test_an_error_that_nobody_expects(tmp_path: Path) -> None:
    run = Run("error", tmp_path, ranks=2)
    _, errors = run.process.communicate(timeout=HANG)
    assert run.process.returncode != 0     # MPICH's choice: the rank's 1, or the 9 of those that it killed
    assert errors.count("Traceback") == errors.count("ZeroDivisionError") == 1
    assert errors.startswith("rank 1: Traceback")
    assert not run.folder.exists()


def test_a_full_disk_on_rank_0(tmp_path: Path) -> None:
    run = Run("full disk", tmp_path, ranks=2)
    line, = run.end(2)
    assert line.startswith(f"endings.py: error: rank 0: run folder: {run.folder} cannot be written (File too large); ")
    assert [metrics["epoch"] for metrics in read_metrics(run.folder)] == [1]
    run.intact()


@pytest.mark.parametrize(("how", "ranks", "message"), tiered([
    ("no data", 3, "rank 1: data: not-there is not a folder; name one that holds data sets"),
    ("other data", 2, "--data synthetic-digits is synthetic-digits (generated), 600 and 50 images for rank 0 but "
                      "synthetic-digits (generated), 100 and 50 images for rank 1; put the same data where each rank "
                      "finds it, and name its place with --data-dir"),
    ("no mpi4py", 2, "rank 1: distributed: mpiexec of MPICH has started 2 processes but mpi4py cannot be imported ("),
], slow=0, several=True))
def test_an_error_before_the_first_step(how: str, ranks: int, message: str, tmp_path: Path) -> None:
    run = Run(how, tmp_path, ranks=ranks)
    line, = run.end(2 if how == "other data" else None)
    assert line.startswith(f"endings.py: error: {message}")
    assert not run.folder.exists()


def test_an_error_of_all_ranks_is_told_once(tmp_path: Path) -> None:
    run = Run("loss", tmp_path, "--lr=1e38", ranks=2)
    line, = run.end(2)
    assert line.startswith("endings.py: error: training: diverged in step ")


@pytest.mark.deep
def test_a_wrong_flag_is_told_once(tmp_path: Path) -> None:
    run = Run("flag", tmp_path, "--nonsense")
    _, errors = run.process.communicate(timeout=HANG)
    assert (run.process.returncode, errors) == (
        2, "endings.py: error: unrecognized arguments: --nonsense; see endings.py --help\n")


@pytest.mark.deep
def test_images_of_a_rank(tmp_path: Path) -> None:
    run = Run("ends well", tmp_path, "--epochs=1", "--batch-size-per-rank=10")
    output, errors = run.process.communicate(timeout=HANG)
    assert (run.process.returncode, errors) == (0, "")
    assert len([line for line in output.splitlines() if line.startswith("epoch")]) == 1
    config = read_config(run.folder / "config.json")
    assert (config["batch_size"], config["ranks"]) == (30, 3)
    assert [line["step"] for line in read_metrics(run.folder)] == [20]
