"""A sweep: each net is what it is alone, whatever its neighbours do, and a sweep that was killed goes on."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
import random_sweeps
from tiers import marks

import minidl
from minidl import data, nn, optim, training
from minidl.core import device
from minidl.data import once
from minidl.ops.cpu import parallel
from minidl.tools import cli, workers
from minidl.tools import sweep as sweeps
from minidl.tools.cli.sweep import values_of

ROOT = Path(minidl.__file__).parents[1]
QUICK = ["perceptron", "--data", "synthetic-digits", "--limit-train", "400", "--limit-test", "100", "--no-progress",
         "--device", "cpu"]
NET = """
import os
from minidl import nn
def build(width=8, classes=10, in_channels=1, image_size=28):
    if width == 13:
        os._exit(3)
    if width == 14:
        raise RuntimeError("fourteen")
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size ** 2, width), nn.ReLU(),
                         nn.Linear(width, classes))
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep_net.py").write_text(NET)


def build(width: int = 8, classes: int = 10) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, classes))


@functools.cache
def digits(split: str = "train", count: int = 200) -> data.Dataset:
    return data.load("synthetic-digits", split, count=count)


def rows(folder: str) -> dict[str, dict[str, Any]]:
    return {row["net"]: row for row in training.read_metrics(folder, "sweep.jsonl")}


def same(one: str | Path, other: str | Path) -> bool:
    """Whether two run folders have the same weights and the same losses, to the bit."""
    losses = [[{name: value for name, value in line.items() if name.startswith(("train_", "test_")) or name == "lr"}
               for line in training.read_metrics(folder)] for folder in (one, other)]
    weights = [(Path(folder) / "weights.h5").read_bytes() for folder in (one, other)]
    return losses[0] == losses[1] and weights[0] == weights[1]


# ---------------------------------------------------------------- the specification
@pytest.mark.parametrize(("spec", "values"), [
    ("lr=0.01:0.3:3", {"lr": [0.01, 0.155, 0.3]}), ("lr=1e-4:1:5:log", {"lr": [0.0001, 0.001, 0.01, 0.1, 1]}),
    ("batch-size=32:128:4,seed=2:5", {"batch-size": [32, 64, 96, 128], "seed": [2, 3, 4]}),
    ("augment=crop=4,flip|none,seed=0:1", {"augment": ["crop=4,flip", "none"], "seed": [0]}),
    ("option.act=relu|tanh,option.original=true|false", {"option.act": ["relu", "tanh"],
                                                        "option.original": ["true", "false"]})])
def test_values(spec: str, values: dict[str, list[Any]]) -> None:
    assert values_of(spec) == values


@pytest.mark.parametrize(("spec", "said"), [
    ("sed=0:8", r"'sed' is not one of epochs, batch-size, .*, nor option\.NAME of the model"),
    ("lr=0.1,sed=0:8", r"'sed' in 'lr=0.1,sed=0:8' is not one of .*; several values are V\|V"),
    ("lr", r"'lr' has no values; write lr=A:B:N or A:B:N:log .*, A:B .*, or V\|V\|V"),
    ("lr=0.1:0.3", r"lr=0.1:0.3 cannot be read; write lr=A:B:N"), ("lr=0:1:4:log", "A and B above 0 for log"),
    ("lr=0.1:0.3:1", "N of at least 2"), ("seed=3:3", "seed=3:3 cannot be read"), ("lr=1:2:3:4", "cannot be read"),
    ("lr=0.1,lr=0.2", "lr has values twice, at last 0.2; give all in one: lr=V|V")])
def test_values_that_cannot_be_read(spec: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^--sweep: .*{said}"):
        values_of(spec)


@pytest.mark.parametrize(("flags", "said"), [
    (["--sweep", "lr=0.1|fast"], "argument --lr: 'fast' is not a number of at least 0"),
    (["--sweep", "lr=0.1|0.1"], "sweep: two nets would have the folder lr=0.1; give each value once, and "),
    (["--sweep", "lr=0.1|0.2", "--lr", "0.3"], "--lr contradicts --sweep lr=..., which gives its values; leave one "
     "out"),
    (["--sweep", "option.width=1|2"], "--sweep: model 'perceptron' has no option 'width'; it has in_channels, "),
    (["--sweep", "lr=0.1|0.2", "--eval", "run"], "not allowed with argument"),
    (["--sweep", "lr=0.1|0.2", "--check-grads"], "--check-grads does not train, and --sweep trains nets; leave one"),
    (["--workers", "2"], "--workers=2 is for a sweep; add --sweep, or leave it out"),
    (["--resume", "a sweep", "--lr", "3"], "--lr=3.0 contradicts the sweep in a sweep, which goes on by its own "
     "settings; leave it out"),
    (["--resume", "of a program"], "of a program is the sweep of a program, which alone can go on with it: "
     "minidl.sweep(..., resume=True)"),
    (["--resume", "of code"], "names code, which is run only if the command line names it; if you trust it, add "
     "my_net.py"),
    (["--resume", "damaged"], "does not say what was swept; begin anew in another folder"),
    (["--sweep", "lr=0.1|0.2", "--output-dir", "a sweep"], "sweep: a sweep holds a sweep already; go on with it by "
     "--resume a sweep, in Python by resume=True, or name another folder")])
def test_flags_that_contradict_a_sweep(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, known in (("a sweep", {"spec": "lr=1|2", "flags": []}), ("of a program", {"program": True}),
                          ("of code", {"spec": "lr=1|2", "flags": ["--model=my_net.py"]}), ("damaged", {})):
        Path(folder).mkdir()
        Path(folder, "sweep.json").write_text(json.dumps(known))
    try:
        status: object = cli.main(["train", *(QUICK if "--sweep" in flags else []), *flags])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert said in capsys.readouterr().err
    assert not Path("runs").exists()


# ---------------------------------------------------------------- nets by the command line
@pytest.mark.slow
def test_each_net_has_the_bits_that_it_has_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside one that diverges."""
    spec = "lr=0.01|1e38,seed=0:2"
    assert cli.main(["train", *QUICK, "--epochs", "2", "--sweep", spec, "--output-dir", "all", "--workers", "2"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert cli.main(["train", *QUICK, "--epochs", "2", "--lr", "0.01", "--seed", "1", "--output-dir", "alone"]) == 0
    assert same("all/lr=0.01,seed=1", "alone")
    before, after = (training.read_config(f"{folder}/config.json") for folder in ("alone", "all/lr=0.01,seed=1"))
    assert {**before, "output_dir": "all/lr=0.01,seed=1"} == after
    found = rows("all")
    assert [row["state"] for row in found.values()] == ["finished", "finished", "diverged", "diverged"]
    assert "use a smaller learning rate" in found["lr=1e+38,seed=0"]["why"]
    assert (found["lr=0.01,seed=1"]["epochs"], found["lr=0.01,seed=1"]["settings"]) == (2, {"lr": 0.01, "seed": 1})
    assert told[0].endswith("4 nets, 2 at once, sweep folder all")
    assert told[-1] == (f"best: {told[-1].split()[1][:-1]}; look at it with: minidl report "
                        f"{told[-1].split()[1][:-1]}; settings beside results: {Path('all/sweep.html')}")
    page = Path("all/sweep.html").read_text()
    assert "diverged: training: diverged in step " in page
    assert "<h2>seed</h2>" in page             # one value of lr alone finished, so it has no curve
    assert "<h2>lr</h2>" not in page
    run = told[-1].split()[1][:-1]
    capsys.readouterr()
    for command in (["report", run], ["runs", "all"], ["train", "--eval", run]):
        assert cli.main(command) == 0, command
    assert "all/lr=0.01,seed=0" in capsys.readouterr().out


@pytest.mark.slow
def test_a_net_that_fails_is_said_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    """One raises, and one takes its process with it; they are tried again when the sweep goes on."""
    flags = ["train", "sweep_net.py:build", *QUICK[1:], "--epochs", "1", "--sweep", "option.width=13|14|8"]
    assert cli.main([*flags, "--output-dir", "all", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "failed: its process ended with status 3" in out
    assert "failed: fourteen" in out
    assert "2 of 3 nets failed; their lines are in all/NAME.log; when it is mended, go on with: " in out
    assert "RuntimeError: fourteen" in Path("all/option.width=14.log").read_text()
    written = Path("all/option.width=8/weights.h5").stat().st_mtime_ns
    Path("sweep_net.py").write_text(NET.replace("os._exit(3)", "pass"))
    assert cli.main(["train", "sweep_net.py:build", "--resume", "all", "--no-progress", "--workers", "1"]) == 0
    assert [row["state"] for row in rows("all").values()] == ["finished", "failed", "finished"]
    assert Path("all/option.width=8/weights.h5").stat().st_mtime_ns == written


def epochs_of(folder: Path) -> int:
    return len(training.read_metrics(folder)) if (folder / "metrics.jsonl").exists() else 0


def test_seeds_that_split_data_are_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Not where the test set is one for all."""
    def stop(*_: object, **__: object) -> None:
        raise ValueError("stop")
    monkeypatch.setattr(sweeps, "trained", stop)
    rows = "p,q,kind\n" + "".join(f"{i},{i * i % 7},{'yes' if i % 2 else 'no'}\n" for i in range(20))
    Path("both").mkdir()
    for name in "t.csv", "both/train.csv", "both/test.csv":
        Path(name).write_text(rows)
    for source, spec, said in (("t.csv", "seed=0:2", True), ("t.csv", "lr=0.1|0.2", False), ("both", "seed=0:2", False),
                               ("synthetic-table", "seed=0:2", False)):
        assert cli.main(["train", "table-mlp", "--device", "cpu", "--data", source, "--sweep", spec]) == 2
        warning = ("minidl train: warning: the seed also decides which rows of t are for the test, so nets of other "
                   "seeds have other test sets; for one test set, give it a file or folder of its own (docs/data.md)\n")
        assert capsys.readouterr().err == f"{warning * said}minidl train: error: stop\n"


def test_the_command_that_goes_on_names_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are imported first, and no folder may name them."""
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt
    monkeypatch.setattr(sweeps, "trained", stop)
    Path("plug.py").write_text("")
    with pytest.raises(KeyboardInterrupt, match=r"^the sweep is in all, go on with: minidl train --resume all "
                                                r"--plugin plug\.py$"):
        cli.main(["train", *QUICK, "--sweep", "seed=0:2", "--output-dir", "all", "--plugin", "plug.py"])


def test_a_process_ends_quietly_if_the_first_one_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it sends a net's state: there is no traceback."""
    said = list[object]()

    class Gone:
        def send(self, what: object) -> None:
            said.append(what)
            if what == ("finished", ""):
                raise BrokenPipeError(32, "Broken pipe")

        def recv_bytes(self) -> bytes:
            return pickle.dumps(workers.Job(Path(), len, None))

        def recv(self) -> None:
            return None

    for name, stand_in in (("signal.signal", lambda *_: None), ("_end_with_parent", lambda: None),
                           ("_train", lambda *_: ("finished", ""))):
        monkeypatch.setattr(f"minidl.tools.workers.{name}", stand_in)
    monkeypatch.setattr(sys, "orig_argv", [])
    monkeypatch.setenv("MINIDL_NUM_THREADS", "1")
    workers._serve(Gone(), 1, [], None, False, (device.precision(), device.workspace_limit()))
    parallel.threads.cache_clear()
    assert said == ["ready", ("has the job", ""), ("finished", "")]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("signum", [pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
                                    pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
                                    pytest.param(signal.SIGINT, marks=pytest.mark.deep)])
def test_a_sweep_that_was_ended_goes_on_to_the_bit(signum: int) -> None:
    """Its processes end with it. What was finished stays, what had begun goes on."""
    flags = [sys.executable, "-m", "minidl", "train"]
    options: dict[str, Any] = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "stderr": subprocess.PIPE, "text": True}
    begin = [*flags, *QUICK, "--sweep", "epochs=2|40", "--output-dir", "all", "--workers", "2"]
    short, long = Path("all/epochs=2"), Path("all/epochs=40")
    with subprocess.Popen(begin, **options) as run:
        while run.poll() is None and (epochs_of(long) < 2 or not (short / "weights.h5").exists()):
            time.sleep(0.05)
        os.kill(run.pid, signum)
        _, said = run.communicate(timeout=120)
    begun = epochs_of(long)
    assert 2 <= begun < 40
    assert (run.returncode, said) == ((-signal.SIGKILL, "") if signum == signal.SIGKILL else (
        128 + signum, f"minidl train: interrupted{' by SIGTERM' * (signum == signal.SIGTERM)}; the sweep is in all, go "
        f"on with: {sys.executable} -m minidl train --resume all\n"))
    finished = (short / "weights.h5").stat().st_mtime_ns
    assert cli.main(["train", "--resume", "all", "--no-progress", "--workers", "1"]) == 0
    assert finished == (short / "weights.h5").stat().st_mtime_ns
    assert "goes on in epoch" in Path("all/epochs=40.log").read_text()
    assert cli.main(["train", *QUICK, "--epochs", "40", "--output-dir", "alone"]) == 0
    assert same(long, "alone")


# ---------------------------------------------------------------- random sweeps
# Interrupted four times; with nets that fail; that diverge; and in processes of which one is killed.
QUICK_SWEEPS = (10, 22, 27, 37)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("number", [pytest.param(number, marks=marks("slow" if number in QUICK_SWEEPS else "deep"))
                                    for number in range(40)])
def test_random_sweeps(number: int) -> None:
    """Interrupted at random, with neighbours that diverge and fail. More: python tests/random_sweeps.py --sweeps 500"""
    _, wrong, counts = random_sweeps.check(number)
    assert not wrong, f"{random_sweeps.drawn(number)}: {wrong}"
    assert counts["nets"] >= 2


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(12))
def test_gpu_random_sweeps(number: int) -> None:
    """Also in processes."""
    _, wrong, counts = random_sweeps.check(number, "cuda")
    assert not wrong, f"{random_sweeps.drawn(number)}: {wrong}"
    assert counts["nets"] >= 2


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.slow
def test_random_sweeps_find_a_net_that_knows_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minidl, "manual_seed", lambda seed: None)
    assert random_sweeps.check(27)[1]


# ---------------------------------------------------------------- processes, as on a GPU
def as_on_a_gpu(count: int, work: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What becomes of so many nets, by name, in the folder, with three processes."""
    monkeypatch.setattr(workers, "_current_gpu", lambda: None)
    done, nets = list[tuple[str, ...]](), [workers.Net(str(i), {}, 1) for i in range(count)]
    workers.train_all(nets, workers.Job(Path.cwd(), work, None), 3, "cuda",
                      lambda net, *outcome: done.append((net.name, *outcome)), lambda nets: None, None)
    return sorted(done)


def an_epoch(path: Path) -> None:
    path.mkdir(exist_ok=True)
    with open(path / "metrics.jsonl", "a") as file:
        file.write("{}\n")


def begins(path: Path) -> list[str]:
    """A net begins. Returns the names of those that have begun."""
    path.with_suffix(".begun").touch()
    return sorted(each.stem for each in path.parent.glob("*.begun"))


def by_itself_at_first(shared: object, net: workers.Net, path: Path, told: object) -> None:
    """Net 0 fails, 1 has an epoch later; then three go on when all of them have begun."""
    there = begins(path)
    if net.name == "0":
        raise RuntimeError("fails")
    if net.name == "1":
        time.sleep(0.3)
        assert begins(path) == there == ["0", "1"]
        an_epoch(path)
    deadline = time.monotonic() + 20
    while net.name < "4" and len(begins(path)) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True])
def test_the_others_begin_after_the_first_epoch(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a net that goes on."""
    if before:
        an_epoch(Path("1"))
    assert as_on_a_gpu(6, by_itself_at_first, monkeypatch) == [
        ("0", "failed", "fails"), *((str(i), "finished", "") for i in range(1, 6))]


def of_ten(shared: object, net: workers.Net, path: Path, told: object) -> None:
    """Of 10 each first net takes 2, the others 5, and the last one 11, which has failed even alone."""
    import fcntl

    held = path.with_suffix(f".{ {'0': 2, '5': 11}.get(net.name, 5)}")
    with open(path.with_suffix(".tries"), "a") as tries:
        tries.write("again\n")
    with contextlib.suppress(FileNotFoundError):           # of a try before
        held.unlink()
    with open("lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        free = 10 - sum(int(each.suffix[1:]) for each in path.parent.glob("*.[0-9]*"))
        if int(held.suffix[1:]) > free:
            message = f"{held.suffix[1:]} of {free}"
            raise MemoryError(message) if int(net.name) % 2 else RuntimeError(f"cudaErrorMemoryAllocation: {message}")
        held.touch()
    an_epoch(path)
    time.sleep(0.2)
    held.unlink()


@pytest.mark.skipif(sys.platform == "win32", reason="files are locked by flock")
@pytest.mark.slow
def test_nets_that_get_no_memory_are_trained_by_fewer_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_on_a_gpu(6, of_ten, monkeypatch) == [
        *((str(i), "finished", "") for i in range(5)), ("5", "failed", "11 of 10")]
    tries = sum(len(path.read_text().splitlines()) for path in Path().glob("*.tries"))
    assert 6 < tries <= 6 * 2 + 1          # the last one is also tried by itself


def settings(shared: object, net: workers.Net, path: Path, told: object) -> None:
    path.with_suffix(".txt").write_text(f"{device.precision()} {device.workspace_limit()}")


@pytest.mark.slow
def test_processes_compute_as_the_program_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program's precision was that of nets in its own process alone."""
    monkeypatch.setattr(device, "_precision", "tf32")
    monkeypatch.setattr(device, "_workspace_limit", 1 << 30)
    as_on_a_gpu(2, settings, monkeypatch)
    assert {Path(f"{i}.txt").read_text() for i in range(2)} == {f"tf32 {1 << 30}"}


class Pretended(workers.Processes):
    """Processes that say what `starts` has, in turn, and of each net what `says` gives; None: nothing, until one of the
    `events` makes it speak, which come one after the other when all are silent."""

    def __init__(self, count: int, nets: int, starts: list[list[Any]], says: Callable[[int, str], Any],
                 events: list[Callable[[Pretended], object]]):
        self.all, self.starts, self.says, self.events = list[Said](), iter(starts), says, events
        self.told, self.given = list[tuple[str, ...]](), list[tuple[int, str]]()
        super().__init__([workers.Net(str(i), {}, 1) for i in range(nets)], Path(), b"", count, "cuda",
                         lambda net, *outcome: self.told.append((net.name, *outcome)), lambda nets: None)

    def begin(self) -> None:
        self.all.append(Said(self, len(self.all), deque(next(self.starts, START))))
        self.running[self.all[-1]] = mock.Mock(exitcode=-9), None              # type: ignore[index]

    def wait(self, here: list[Said], pause: float) -> list[Said]:
        while not any(each.answers for each in here):
            self.events.pop(0)(self)       # IndexError: it would hang
        return [each for each in here if each.answers]


class Said:
    """A connection to a process."""

    def __init__(self, to: Pretended, number: int, answers: deque[Any]):
        self.to, self.number, self.answers = to, number, answers

    def recv(self) -> Any:
        if self.answers[0] is EOFError:
            raise EOFError
        return self.answers.popleft()

    def send(self, net: workers.Net) -> None:
        self.to.given.append((self.number, net.name))
        if (answer := self.to.says(self.number, net.name)) is not None:
            self.answers.append(answer)

    def send_bytes(self, sent: bytes) -> None:
        if self.answers and self.answers[0] is EOFError:
            raise BrokenPipeError

    def close(self) -> None:
        pass


START, FINISHED, NO_MEMORY = ["ready", ("has the job", "")], ("finished", ""), (workers.AGAIN, "no memory")


def pretended(monkeypatch: pytest.MonkeyPatch, count: int, nets: int, starts: list[list[Any]],
              says: Callable[[int, str], Any], *events: Callable[[Pretended], object]) -> Pretended:
    monkeypatch.setattr(workers, "_current_gpu", lambda: 0)
    found = Pretended(count, nets, starts, says, list(events))
    monkeypatch.setattr(workers.connection, "wait", found.wait)
    return found


def of(number: int, answer: Any) -> Callable[[Pretended], object]:
    return lambda processes: processes.all[number].answers.append(answer)


def finished(processes: Pretended, *others: tuple[str, ...]) -> bool:
    """Whether all nets are done, once each, but for others that came to another end."""
    left = [(str(i), *FINISHED) for i in range(len(processes.told)) if str(i) not in {name for name, *_ in others}]
    return sorted(processes.told) == sorted([*left, *others])


def test_an_idle_process_that_ends_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first net has its first epoch the others wait: the sweep ended, with the message of a start."""
    found = pretended(monkeypatch, 2, 4, [], lambda number, net: FINISHED if net != "0" else None,
                      lambda processes: processes.idle[0].answers.append(EOFError),       # type: ignore[attr-defined]
                      lambda processes: [of(number, FINISHED)(processes) for number, net in processes.given])
    found.run()
    assert finished(found)
    assert len(found.all) == 3


@pytest.mark.parametrize("start", [["ready", NO_MEMORY], ["ready", EOFError], [EOFError]])
@pytest.mark.parametrize("work_is_left", [False, True])
def test_a_process_that_cannot_begin_is_not_missed(start: list[Any], work_is_left: bool,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """Others do its nets, and an outcome that came at the same time is told. It ended the sweep, finished or not."""
    late = [lambda processes: processes.all[1].answers.extend(start)]
    found = pretended(monkeypatch, 2, 2, [START, []], lambda number, net: FINISHED if work_is_left else None,
                      *([] if work_is_left else [of(0, FINISHED), *late, of(0, FINISHED)]), *late)
    found.run()
    assert finished(found)


@pytest.mark.parametrize(("start", "said"), [
    (["ready", NO_MEMORY], "^sweep: no process can begin on the GPU: no memory; end what else uses its memory, or "),
    ([EOFError], "^sweep: a process ended at its start, with status -9; in a script, call minidl.sweep below ")])
def test_no_process_begins(start: list[Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=said):
        pretended(monkeypatch, 2, 3, [start] * 9, lambda number, net: FINISHED).run()


def test_an_outcome_is_told_even_if_the_sweep_ends_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last process leaves a net undone, and no other one begins."""
    found = pretended(monkeypatch, 2, 3, [START, START, [EOFError], [EOFError]], lambda number, net: EOFError)
    with pytest.raises(ValueError, match=r"^sweep: a process ended at its start"):
        found.run()
    assert found.told == [(net, "failed", "its process ended with status -9") for net in ("0", "1")]


def test_a_net_that_is_too_large_costs_no_more_than_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was tried until one was left, for all nets behind it. By itself it is tried at the end."""
    found = pretended(monkeypatch, 4, 20, [], lambda number, net: NO_MEMORY if net == "3" else FINISHED)
    found.run()
    assert finished(found, ("3", "failed", "no memory"))
    tries = [i for i, (_, net) in enumerate(found.given) if net == "3"]
    assert (len(tries), tries[-1]) == (3, len(found.given) - 1)
    assert len(found.all) <= 6


def test_crashed_processes_hold_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kept two, so that a sweep of many nets that crash ended itself."""
    found = pretended(monkeypatch, 3, 30, [], lambda number, net: EOFError)
    found.run()
    assert len(found.told) == 30
    assert not found.ended


@pytest.mark.slow
def test_processes_that_no_gpu_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, here, where there is no such GPU: it is said why."""
    monkeypatch.setattr(workers, "_current_gpu", lambda: 99)
    nets = [workers.Net(str(i), {}, 1) for i in range(3)]
    with pytest.raises(ValueError, match=r"^sweep: no process can begin on the GPU: .+; end what else uses its memory, "
                                         r"or train in this process: workers=0, on the command line --workers 0$"):
        workers.train_all(nets, workers.Job(Path.cwd(), of_ten, None), 2, "cuda", len, len, None)


@pytest.mark.parametrize(("cores", "gibibytes", "count"), [
    (16, 139, 8), (32, 15, 7), (8, 24, 4), (2, 24, 0), (8, 3.9, 0)])
def test_nets_at_once_on_a_gpu(cores: int, gibibytes: float, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for two cores, with 2 GiB each; 0: in this process."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    monkeypatch.setattr(parallel, "threads", lambda: cores)
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: 0)
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceProperties", lambda i: {"totalGlobalMem": int(gibibytes * 2**30)})
    assert workers.most_at_once("cuda") == count
    assert workers.most_at_once("cpu") == cores


class Items:
    """Data whose items print."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        print(f"item {i}")
        return np.zeros((1, 28, 28), np.float32), i % 3


def test_what_makes_batches_prints_to_the_nets_log(capsys: pytest.CaptureFixture[str]) -> None:
    minidl.sweep(build, (Items(), Items()), epochs=1, lr=[0.1, 0.2], folder="one", say=None, progress=False,
                 device="cpu", workers=0)
    assert "item" not in capsys.readouterr().out
    assert {Path(f"one/lr={rate}.log").read_text().count("item ") for rate in (0.1, 0.2)} == {40}


# ---------------------------------------------------------------- in Python
def test_a_sweep_in_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    found = minidl.sweep(build, (digits(), digits("test", 100)), epochs=2, lr=[0.01, 0.1], width=np.array([4, 8]),
                         momentum=0.9, folder="all", workers=0)
    assert capsys.readouterr().out == ""       # the nets' lines are in their files
    assert "epoch  2/2: loss" in Path("all/lr=0.1,width=4.log").read_text()
    assert [row["settings"] for row in found.rows if row["net"] == "lr=0.1,width=8"] == [{"lr": 0.1, "width": 8}]
    assert found.best == found.rows[0] == max(found.rows, key=lambda row: row["best"])
    assert str(found) == found.table()
    assert found.table().splitlines()[0].split() == ["lr", "width", "best", "of", "epoch", "epochs", "seconds", "state"]
    assert found._repr_html_().count("<tr>") == 5
    config = training.read_config("all/lr=0.1,width=8/config.json")
    assert (config["lr"], config["momentum"], config["batch_size"], config["option"]) == (0.1, 0.9, 128, {"width": 8})
    alone = minidl.sweep(build, (digits(), digits("test", 100)), epochs=2, lr=0.1, width=8, momentum=0.9, folder="one",
                         workers=0)
    assert alone.rows[0]["net"] == "net"
    assert (Path("one/net/weights.h5").read_bytes()) == Path("all/lr=0.1,width=8/weights.h5").read_bytes()


def test_the_commit_is_asked_once_per_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook that commits between two sweeps has both commits."""
    asked = []

    def run(command: tuple[str, ...], **how: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command[0])
        return subprocess.CompletedProcess(command, 0, f"commit {len(asked)}\n")
    monkeypatch.setattr(subprocess, "run", run)
    for name, commit in (("first", "commit 1"), ("second", "commit 2")):
        minidl.sweep(build, (digits(), digits("test", 100)), epochs=1, lr=[0.01, 0.1], folder=name, workers=0)
        for lr in (0.01, 0.1):
            begin = training.read_metrics(f"{name}/lr={lr}", "statistics.jsonl")[0]
            assert begin["origin"]["commit"] == commit
    assert [training.origin()["commit"] for _ in range(2)] == ["commit 3", "commit 4"]
    assert asked == ["git"] * 4


def test_data_are_on_the_device_once_for_all_nets_and_not_longer_than_they_are_there() -> None:
    """A fold is there for its own net alone, so its copy goes with it."""
    with once.unchanging():
        part, copies = digits()[:50], once._found[-1].of_objects
        labels, again = (data.DataLoader(part, 10).stored.labels for _ in range(2))
        assert labels is again
        assert copies
        del part, again
        gc.collect()
        assert not copies
        part = digits()[:50]
        data.DataLoader(part, 10)
        assert copies
    assert not copies                      # though the data are there
    assert data.DataLoader(part, 10).stored.labels is not data.DataLoader(part, 10).stored.labels


@pytest.mark.parametrize("fold", [None, 2])
def test_a_subset_of_a_data_set_is_swept_as_one(fold: int | None) -> None:
    """Normalised, with its classes, and told apart by its contents."""
    part, own = data.Subset(digits(), range(60)), digits()[:60]
    rows = [minidl.sweep(build, given if fold else (given, given), fold=fold, epochs=1, lr=0.1, folder=f"{i}",
                         workers=0, say=None).rows for i, given in enumerate((part, own))]
    assert [row["best"] for row in rows[0]] == [row["best"] for row in rows[1]]
    assert training.read_config("0/sweep.json")["data"] == training.read_config("1/sweep.json")["data"] != {}


def test_folds_and_the_ensemble_of_their_nets() -> None:
    whole = digits(count=150)
    found = minidl.sweep(build, whole, epochs=1, lr=0.1, fold=3, seed=[0, 1], folder="all", workers=0)
    parts = [list(sweeps._parts(whole, 3, part)) for part in range(3)]
    assert [(len(kept), len(out)) for kept, out in parts] == [(100, 50)] * 3
    every = np.concatenate([out.images for _, out in parts])
    assert sorted(each.tobytes() for each in every) == sorted(each.tobytes() for each in whole.images)
    (spread,) = found.spread()
    values = [row["best"] for row in found.rows]
    assert (spread["nets"], spread["lowest"], spread["highest"]) == (6, min(values), max(values))
    assert spread["mean"] == pytest.approx(np.mean(values))
    assert found.table().splitlines()[-2].split() == ["nets", "mean", "lowest", "highest", "of"]
    x = minidl.Tensor(np.random.default_rng(0).normal(size=(5, 1, 28, 28)).astype("f"))
    nets = [minidl.load(Path(row["folder"]) / "weights.h5", code=build).eval() for row in found.rows[:2]]
    mean = np.mean([net(x).softmax(-1).numpy() for net in nets], axis=0)
    np.testing.assert_allclose(found.ensemble(2)(x).softmax(-1).numpy(), mean, rtol=1e-5)
    for k in (0, 7):
        with pytest.raises(ValueError, match=rf"^ensemble: k is {k} but must be an int from 1 to 6, the nets that"):
            found.ensemble(k)


@pytest.mark.parametrize("named", [False, True])
def test_folds_of_several_inputs(named: bool) -> None:
    """It counted the inputs, and trained on one item."""
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.ids = nn.Linear(4, 3), nn.Embedding(5, 3)

        def forward(self, rows: minidl.Tensor, ids: minidl.Tensor) -> minidl.Tensor:
            return self.rows(rows) + self.ids(ids)

    rows, ids = np.random.default_rng(0).normal(size=(30, 4)).astype("f"), np.arange(30) % 5
    inputs = {"ids": ids, "rows": rows} if named else (rows, ids)
    (kept, out), = [list(sweeps._parts((inputs, ids % 3), 5, 0))]
    assert (len(kept[1]), len(out[1])) == (24, 6)
    found = minidl.sweep(Two, (inputs, ids % 3), fold=2, epochs=1, lr=0.1, folder="all", workers=0)
    config = training.read_config(f"{found.best['folder']}/config.json")
    assert (config["train_images"], config["test_images"]) == (15, 15)
    given = {name: minidl.Tensor(array) for name, array in (("rows", rows), ("ids", ids))}
    assert found.ensemble()(**given).shape == found.ensemble()(*given.values()).shape == (30, 3)


@pytest.mark.parametrize("name", ["shuffle", "seed", "batch_sizes"])
def test_what_a_sweeps_loaders_cannot_be_given(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^sweep: loader has '{name}' but may have drop_last, .*; the sweep itself "):
        minidl.sweep(build, (digits(), digits("test", 100)), epochs=1, lr=0.1, loader={name: 1}, workers=0)


def test_a_regression_of_arrays_that_goes_on() -> None:
    """Its ensemble is the mean of the outputs; callbacks, metrics and a schedule are as fit takes them."""
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("f")
    given: dict[str, Any] = {
        "loss": nn.MSELoss(), "metrics": {"error": lambda y, t: (y - t).abs().mean()}, "loader": {"drop_last": True},
        "callbacks": lambda net, optimizer, folder: training.SaveBest(net, folder / "best.h5", "test_loss"),
        "schedule": ["cosine", lambda step: 0.5], "optimizer": "adam", "batch_size": 16, "fold": 2, "folder": "all",
        "workers": 0}
    found = minidl.sweep(lambda width=4: nn.Sequential(nn.Linear(3, width), nn.Linear(width, 1)), (x, x[:, :1]),
                         epochs=2, **given)
    assert {row["of"] for row in found.rows} == {"test_loss"}
    assert Path(found.best["folder"], "best.h5").exists()
    assert "test_error" in training.read_metrics(found.best["folder"])[0]
    assert found.ensemble()(minidl.Tensor(x)).shape == (64, 1)
    with pytest.raises(ValueError, match=r"^sweep: all holds a sweep already"):
        minidl.sweep(build, (x, x[:, :1]), epochs=2, **given)
    for change, said in (({"schedule": "step"}, r"nets \[.*\] there but \[.*\] here"),
                         ({"batch_size": 8}, "batch_size 16 there but 8 here"),
                         ({"loss": nn.L1Loss()}, "loss MSELoss.* there but L1Loss.* here"),
                         ({"loss": nn.MSELoss(reduction="sum")}, "loss .*'mean'.* there but .*'sum'.* here"),
                         ({"loss": nn.HuberLoss(delta=2.0)}, "loss .* there but HuberLoss.*delta=2.0.* here"),
                         ({"metrics": {}}, "metric error <lambda> there but None here"),
                         ({"callbacks": None}, "callbacks <lambda> there but None here"),
                         ({"loader": {"drop_last": False}}, "loader drop_last True there but False here"),
                         ({"data": (x, 2 * x[:, :1])}, "training values of array 2 of 2 are '")):
        with pytest.raises(ValueError, match=rf"^sweep: all has other nets, or other data: .*{said}"):
            minidl.sweep(build, **{"data": (x, x[:, :1]), "epochs": 2, **given, **change}, resume=True)


@pytest.mark.parametrize(("name", "given"), [
    ("momentum", {"momentum": 0.9}), ("eps", {"eps": [1e-2], "optimizer": "adam"}), ("seed", {"seed": [0, 1]})])
def test_an_option_by_the_name_of_a_setting_is_refused(name: str, given: dict[str, Any]) -> None:
    """The net would not get it, while the table has it; a seed that is not swept is the sweep's own."""
    made: Any = {"momentum": lambda momentum=0.1: build(), "eps": lambda eps=1e-5: build(),
                 "seed": lambda seed=7: build()}
    with pytest.raises(ValueError, match=rf"^sweep: {name} is a setting of the sweep or of its optimizer and an opti"):
        minidl.sweep(made[name], (digits(), digits()), epochs=1, lr=0.1, workers=0, **given)
    if name == "seed":
        minidl.sweep(made[name], (digits(), digits()), epochs=1, lr=0.1, workers=0, say=None)


def test_a_schedule_of_other_numbers_is_another_sweep() -> None:
    """And a loss of other options: functions of one name, and layers of one kind."""
    given: dict[str, Any] = {"epochs": 1, "lr": 0.1, "folder": "all", "workers": 0}
    losses = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1)
    minidl.sweep(build, (digits(), digits()), schedule=optim.step(1, 0.5), loss=losses[0], **given)
    minidl.sweep(build, (digits(), digits()), schedule=optim.step(1, 0.5), loss=losses[0], resume=True, **given)
    for schedule, loss, said in ((optim.step(2, 0.5), losses[0], "schedule .*every=1, .* there but .*every=2, .* here"),
                                 (optim.step(1, 0.5), losses[1], "loss .* there but .*label_smoothing=0.1.* here")):
        with pytest.raises(ValueError, match=f"^sweep: all has other nets, or other data: {said}"):
            minidl.sweep(build, (digits(), digits()), schedule=schedule, loss=loss, resume=True, **given)
    given["folder"] = "swept"
    minidl.sweep(build, (digits(), digits()), schedule=[optim.step(1, 0.5)], **given)
    with pytest.raises(ValueError, match=r"^sweep: swept has other nets, .*every=1.* there but .*every=2.* here"):
        minidl.sweep(build, (digits(), digits()), schedule=[optim.step(2, 0.5)], resume=True, **given)


class Counted(nn.Module):
    """A loss with a state, on which its value depends."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = minidl.Tensor(np.zeros(1, "f"))

    def forward(self, y: minidl.Tensor, t: minidl.Tensor) -> minidl.Tensor:
        with minidl.no_grad():
            self.steps += 1
        return (y - t).square().mean() * self.steps.sum()


class Metric(Counted):
    """A metric with one."""


def test_a_loss_with_a_state_is_each_nets_own() -> None:
    """Those of one sweep had one: what a net learned depended on its neighbours."""
    x = np.random.default_rng(0).normal(size=(32, 3)).astype("f")
    loss, metric = Counted(), Metric()

    def ends(seeds: list[int], folder: str) -> Any:
        minidl.sweep(lambda: nn.Linear(3, 1), ((x, x[:, :1]),) * 2, epochs=1, lr=0.01, batch_size=8, seed=seeds,
                     loss=loss, metrics={"own": metric}, folder=folder, workers=0, say=None)
        (line,) = training.read_metrics(f"{folder}/seed=2")
        return Path(folder, "seed=2/weights.h5").read_bytes(), line["test_loss"], line["test_own"]
    assert ends([2, 0], "two") == ends([0, 1, 2], "three")
    assert (loss.steps.item(), metric.steps.item()) == (0, 0)
    loss.lock = metric.lock = threading.Lock()
    cases: dict[str, Any] = {"loss is a Counted": {"loss": loss},
                             "metric 'own' is a Metric": {"metrics": {"own": metric}}}
    for what, given in cases.items():
        with pytest.raises(TypeError, match=f"^sweep: the {what} but must be one that can be copied, since each net h"):
            minidl.sweep(lambda: nn.Linear(3, 1), ((x, x[:, :1]),) * 2, epochs=1, folder="no", say=None, **given)
    assert not Path("no").exists()


@pytest.mark.slow
def test_a_sweep_whose_code_or_data_changed(capsys: pytest.CaptureFixture[str]) -> None:
    """As a single run: of code it is said, of data refused."""
    net = "from minidl import nn\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    Path("my_net.py").write_text(net)
    sets = ["--data", "synthetic-digits", "--limit-train", "20", "--limit-test", "20", "--no-progress"]
    begin = ["train", "my_net.py:build", *sets, "--epochs", "1", "--sweep", "seed=0:2", "--output-dir", "all",
             "--workers", "1"]
    assert cli.main(begin) == 0
    shutil.rmtree("all/seed=1")
    Path("my_net.py").write_text(f"{net}# changed\n")
    capsys.readouterr()
    resume = ["train", "my_net.py:build", "--resume", "all", "--no-progress", "--workers", "1"]
    assert cli.main(resume) == 0
    assert re.search(r"'all/sweep.json' was saved from .*my_net.py.* has changed since", capsys.readouterr().err)
    known = json.loads(Path("all/sweep.json").read_text())
    known["data"]["training labels"] = "another"
    Path("all/sweep.json").write_text(json.dumps(known))
    assert cli.main(resume) == 2
    assert "sweep: all has other nets, or other data: training labels are " in capsys.readouterr().err


@pytest.mark.parametrize(("given", "said"), [
    ({"rate": 0.1}, "rate is not a setting of sgd, which has lr, momentum, weight_decay, nesterov, nor an option of .*"
     "build, which has width, classes"),
    ({"optimizer": "sdg"}, "optimizer is 'sdg' but must be one of sgd, adam"), ({"lr": []}, "lr has no values"),
    ({"fold": 1}, "fold is 1 but must be an int of at least 2, the parts of the data"),
    ({"fold": "5"}, "fold is '5' but"),
    ({"fold": None}, r"data is a Dataset but must be \(train, test\), or one data set with fold=k"),
    ({"lr": [0.1, 0.1]}, "two nets would have the folder lr=0.1,fold=0; give each value once"),
    ({"seed": np.zeros(0)}, "seed has no values")])
def test_settings_that_cannot_be(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^sweep: {said}"):
        minidl.sweep(build, digits(), **{"epochs": 1, "fold": 2, "lr": 0.1, "folder": "all", **given})
    assert not Path("all").exists()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")      # of overflow
def test_no_net_finishes() -> None:
    found = minidl.sweep(build, (digits(), digits()), epochs=1, lr=[1e37, 1e38], folder="all", workers=0)
    with pytest.raises(ValueError, match=r"^sweep: none of 2 nets has finished; the first diverged: .*learning rate"):
        _ = found.best
    assert "diverged" in Path("all/sweep.html").read_text()


def test_one_process_at_a_time() -> None:
    pytest.importorskip("fcntl")
    given: dict[str, Any] = {"epochs": 1, "lr": 0.1, "folder": "all", "workers": 0}
    minidl.sweep(build, (digits(), digits()), **given)
    with open("all/sweep.json", "rb") as held:
        sweeps.lock(held.fileno(), "free")
        with pytest.raises(ValueError, match=r"^sweep: another process is at the sweep in all; wait for its end, or"):
            minidl.sweep(build, (digits(), digits()), **given, resume=True)


@pytest.mark.parametrize(("net", "given"), [(lambda: build(), {}), (build, {"schedule": [lambda step: 1.0]})],
                         ids=["build", "a value"])
def test_what_a_process_cannot_be_sent_is_trained_here(net: Any, given: dict[str, Any]) -> None:
    said: list[str] = []
    found = minidl.sweep(net, (digits(), digits()), epochs=1, lr=0.1, seed=[0, 1], folder="all", say=said.append,
                         **given)
    assert [row["state"] for row in found.rows] == ["finished"] * 2
    (line,) = said
    assert line.startswith("sweep: trains one net after another in this process, since a process cannot be sent it (")


def test_what_was_typed_cannot_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    typed: Any = ModuleType("__main__")
    exec("def build(): ...", vars(typed))
    monkeypatch.setitem(sys.modules, "__main__", typed)
    said = "a process cannot import what was typed here; functions in a file can be"
    assert workers.packed(workers.Job(Path("all"), typed.build, None)) == (b"", said)


SCRIPT = """
import sys
import minidl
from minidl import data
from sweep_net import build
def go():
    sets = [data.load("synthetic-digits", split).first(400 if split == "train" else 100) for split in ("train", "test")]
    print(minidl.sweep("perceptron", tuple(sets), epochs=2, lr=[0.01, 0.1], folder="all", device="cpu",
                       workers=2).table())
if __name__ == "__main__" or "unguarded" in sys.argv:
    go()
"""


def run_script(*flags: str) -> subprocess.CompletedProcess[str]:
    Path("script.py").write_text(SCRIPT)
    return subprocess.run([sys.executable, "script.py", *flags], env={**os.environ, "PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, timeout=120, check=False)


ALONE = ["--epochs", "2", "--lr", "0.1", "--momentum", "0", "--weight-decay", "0", "--batch-size", "128",
         "--lr-schedule", "constant", "--output-dir", "alone"]


def test_a_program_trains_what_the_command_line_trains() -> None:
    minidl.sweep("perceptron", (digits("train", 400), digits("test", 100)), epochs=2, lr=[0.01, 0.1], folder="all",
                 device="cpu", workers=0)
    assert cli.main(["train", *QUICK, *ALONE]) == 0
    assert same("all/lr=0.1", "alone")


@pytest.mark.deep
def test_a_script_trains_it_in_processes() -> None:
    done = run_script()
    assert (done.returncode, done.stderr) == (0, "")
    assert cli.main(["train", *QUICK, *ALONE]) == 0
    assert same("all/lr=0.1", "alone")


@pytest.mark.deep
def test_a_script_without_a_guard_is_told_what_it_lacks() -> None:
    assert run_script("unguarded").stderr.splitlines()[-1] == (
        "ValueError: sweep: a process ended at its start, with status 1; in a script, call minidl.sweep below `if "
        '__name__ == "__main__":`, and define functions above it, or train in this process: workers=0')
