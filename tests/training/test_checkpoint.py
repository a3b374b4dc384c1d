"""Checkpoints: a training that was stopped, killed or out of room ends in the bits of one that was not.

The runs that are killed are child processes. `MINIDL_RESUMES=20 python -m pytest -s -k killed
tests/training/test_checkpoint.py` kills each kind of run at 20 instants in each of the three ways, and prints how many
ended in the right bits.
"""

from __future__ import annotations

import errno
import faulthandler
import itertools
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiers import tiered

import minidl
from minidl import Tensor, data, nn, ops, optim, zoo
from minidl.compiler import step as compiled_steps
from minidl.compiler.record import record
from minidl.core import rng
from minidl.nn.weights.files import write
from minidl.training import EarlyStop, Interrupted, SaveBest, Step, checkpoint, fit
from minidl.training.checkpoint import read_newest, read_state, write_state
from minidl.training.resume import _digest

RESUMES = int(os.environ.get("MINIDL_RESUMES", "1"))
WAYS = ("SIGTERM", "kill -9", "inside a save")
TIMES = ("seconds", "images_per_second")


# ---------------------------------------------------------------- what is trained
class Average:
    """A callback that holds a running average of the weights."""

    def __init__(self, model: nn.Module):
        self.model, self.weights = model, model.state_dict()

    def on_step_end(self, step: Step) -> None:
        for name, array in self.model.state_dict().items():
            self.weights[name] += np.float32(0.1) * (array - self.weights[name])

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"]


class Centred(nn.Module):
    """Subtracts a running mean, a buffer that each training step changes in place."""

    def __init__(self, channels: int):
        super().__init__()
        self.mean = Tensor(np.zeros((1, channels, 1, 1), np.float32))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with minidl.no_grad():
                self.mean += (x.mean(axis=(0, 2, 3), keepdims=True) - self.mean) * 0.1
        return x - self.mean


class Noisy(nn.Module):
    """Adds normal noise while it trains."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * minidl.randn_like(x) if self.training else x


class Training:
    """A training of one of three nets, with all that it depends on."""

    def __init__(self, net: str, compiled: bool, device: str = "cpu"):
        minidl.manual_seed(3)
        random_ = np.random.default_rng(3)
        c, side, batch = {"lenet5": (1, 32, 16), "krizhevsky2009": (3, 32, 4), "mixed": (2, 8, 8)}[net]
        augment = data.Augment(crop=1, flip=True, cutout=2) if net == "mixed" else None
        if net == "mixed":                 # frozen, running mean, noise, dropout, two groups, augmented, averaged
            self.model: nn.Module = nn.Sequential(
                nn.Conv2d(2, 4, 3), Centred(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(144, 16), nn.Tanh(),
                nn.Dropout(0.1), nn.Linear(16, 10), Noisy())
            layers: Any = self.model
            layers[0].requires_grad_(False)
            groups: Any = [{"params": list(layers[5].parameters()), "lr": 0.2, "nesterov": True},
                           {"params": list(layers[8].parameters()), "momentum": 0.0}]
        else:
            self.model = zoo.build(net)
            groups = self.model.parameters()
        self.model.to(device)
        self.average = Average(self.model)
        self.optimizer = optim.SGD(groups, 0.05, momentum=0.9, weight_decay=1e-3)

        def loader(split: str, count: int, shuffle: bool) -> data.DataLoader:
            images = random_.integers(0, 256, (count, c, side, side), np.uint8)
            return data.DataLoader(data.Dataset("mine", split, images, random_.integers(0, 10, count)), batch,
                                   shuffle=shuffle, seed=5, mean=[0.5] * c, std=[0.25] * c, device=device,
                                   augment=augment if shuffle else None)
        self.train, self.test = loader("train", 11 * batch - 2, True), loader("test", 3 * batch - 1, False)
        self.compiled = compiled

    def fit(self, callbacks: Any = (), epochs: int = 3, **options: Any) -> list[Any]:
        return fit(self.model, self.optimizer, self.train, self.test, epochs=epochs, schedule=optim.cosine(40),
                   metrics={"largest": lambda outputs, targets: outputs.max(axis=1).mean()}, compiled=self.compiled,
                   callbacks=[self.average, *callbacks], **{"progress": False, "say": None, **options})

    def result(self, history: list[Any]) -> dict[str, Any]:
        """All that must be the same bits."""
        lines = [{name: value for name, value in metrics.items() if name not in TIMES} for metrics in history]
        velocities = [v for group in self.optimizer.state_dict()["groups"] for v in group["velocities"]]
        return {"history": json.dumps(lines), "random": rng.get_state(), "weights": self.model.state_dict(),
                "average": self.average.weights, "velocities": dict(enumerate(velocities))}


def assert_same(result: dict[str, Any], expected: dict[str, Any]) -> None:
    assert result["history"] == expected["history"]
    assert result["random"] == expected["random"]
    for what in ("weights", "average", "velocities"):
        assert result[what].keys() == expected[what].keys()
        for name, array in expected[what].items():
            other = result[what][name]
            assert (array is None) == (other is None), (what, name)
            assert array is None or array.tobytes() == other.tobytes(), (what, name)


def stopping(at: int, signum: int = signal.SIGTERM) -> Any:
    """A callback that sends this process a signal after a step."""
    class Stop:
        def on_step_end(self, step: Step) -> None:
            if step.step == at:
                os.kill(os.getpid(), signum)
    return Stop()


# ---------------------------------------------------------------- killed in a child process
def child(net: str, compiled: str, folder: str, save_fault: str) -> None:
    """Train, or go on; leave a result. save_fault: in which call of os.fsync and os.replace it dies, and how."""
    number, how = save_fault.split(",")
    calls, begun = itertools.count(1), False
    sync, replace = os.fsync, os.replace

    def dying(call: Callable[..., Any], *arguments: Any) -> None:
        if begun and next(calls) == int(number):
            if how == "half" and call is sync:
                os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
            elif how == "after":
                call(*arguments)
            os._exit(9)
        call(*arguments)

    training, here = Training(net, compiled == "compiled"), Path(folder)
    os.fsync, os.replace = lambda *a: dying(sync, *a), lambda *a: dying(replace, *a)  # type: ignore[assignment]
    begun = True
    print("begins", flush=True)
    try:
        history = training.fit(checkpoints=folder, save_every=3, resume=True)
    except Interrupted as stop:
        sys.exit(128 + stop.signum)
    begun = False
    part = here / "result.part"
    part.write_bytes(pickle.dumps(training.result(history)))
    os.replace(part, here / "result")


def run_child(net: str, compiled: str, folder: Path, way: str, instant: float) -> bool:
    """Whether it was killed, by this way at this instant, in [0, 1); way "": let it finish."""
    fault = f"{1 + int(instant * 60)},{['half', 'before', 'after'][int(instant * 1e6) % 3]}"
    command = [sys.executable, __file__, net, compiled, str(folder), fault if way == WAYS[2] else "0,no"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MINIDL_NUM_THREADS": "2"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said, begin = process.stdout.readline(), time.perf_counter()
        if way in WAYS[:2]:
            time.sleep(instant * SECONDS[net])
            process.send_signal(signal.SIGTERM if way == "SIGTERM" else signal.SIGKILL)
        error, status = process.stderr.read(), process.wait(100)
    SECONDS.setdefault(net, time.perf_counter() - begin)
    assert said == "begins\n", error
    assert status in {"": [0], WAYS[0]: [0, 143, -15], WAYS[1]: [0, -9], WAYS[2]: [0, 9]}[way], error
    return status != 0


SECONDS: dict[str, float] = {}             # that the first child takes from "begins" to its end


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize(("net", "compiled"), tiered(
    itertools.product(["mixed", "lenet5", "krizhevsky2009"], ["plain", "compiled"]), slow=1, several=True))
def test_a_killed_run_ends_in_the_same_bits(net: str, compiled: str, tmp_path: Path) -> None:
    SECONDS.pop(net, None)
    assert not run_child(net, compiled, tmp_path / "whole", "", 0)
    expected = pickle.loads((tmp_path / "whole" / "result").read_bytes())
    random_, runs, killed = random.Random(f"{net} {compiled}"), 0, dict.fromkeys(WAYS, 0)
    folder = tmp_path / "0"

    def compare() -> None:
        nonlocal runs, folder
        assert_same(pickle.loads((folder / "result").read_bytes()), expected)
        runs += 1
        folder = tmp_path / str(runs)

    for attempt in range(40 * RESUMES):
        way = WAYS[attempt % 3]
        if killed[way] < RESUMES:
            if run_child(net, compiled, folder, way, random_.random()):
                killed[way] += 1
            else:
                compare()
    if folder.exists():
        assert not run_child(net, compiled, folder, "", 0)
        compare()
    print(f"\n{net:15} {compiled:9} killed: {killed}; {runs} runs ended in the same bits")
    assert min(killed.values()) >= RESUMES


# ---------------------------------------------------------------- stopped at each kind of instant
@pytest.fixture(scope="module", params=[False, True], ids=["plain", "compiled"])
def whole(request: pytest.FixtureRequest) -> tuple[bool, dict[str, Any]]:
    """(compiled, the result of a training that nobody stops)."""
    training = Training("mixed", request.param)
    return request.param, training.result(training.fit())


@pytest.mark.parametrize("step", [1, 10, 11, 12, 21, 22, 33])
def test_a_stopped_run_ends_in_the_same_bits(step: int, whole: tuple[bool, Any], tmp_path: Path) -> None:
    compiled, expected = whole
    stop_and_go_on("mixed", compiled, "cpu", step, expected, tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("net", ["lenet5", "krizhevsky2009", "mixed"])
def test_a_stopped_run_ends_in_the_same_bits_on_cuda(net: str, compiled: bool, tmp_path: Path) -> None:
    """Also where the first steps after it would be recorded if the ones before it had not been."""
    training = Training(net, compiled, "cuda")
    expected = training.result(training.fit())
    for step in (1, 2, 3, 10, 11, 12, 13, 21, 22, 30, 33):
        stop_and_go_on(net, compiled, "cuda", step, expected, tmp_path / str(step))


def stop_and_go_on(net: str, compiled: bool, device: str, step: int, expected: dict[str, Any], tmp_path: Path) -> None:
    training = Training(net, compiled, device)
    with pytest.raises(Interrupted, match=rf"^training: SIGTERM stopped it after step {step}; fit\(..., checkpoints="
                                          rf"'{tmp_path}', resume=True\) goes on$") as stop:
        training.fit([stopping(step)], checkpoints=tmp_path)
    assert stop.value.signum == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    again = Training(net, compiled, device)
    history = again.fit([stopping(-1)], checkpoints=tmp_path, resume=True)
    assert_same(again.result(history), expected)


@pytest.mark.slow
def test_a_compiled_run_that_goes_on_records_what_it_had_recorded(tmp_path: Path) -> None:
    """The steps after a checkpoint are recorded where they would have been, and replayed where they would have been:
    on a GPU the two do not give the same bits."""
    recorded: list[int] = []

    def counted(*arguments: Any) -> Any:
        recorded[-1] += 1
        return record(*arguments)

    for stop, during in ((-1, 8), (1, 8), (2, 8), (11, 8), (12, 8), (22, 8), (23, 8)):
        recorded.append(0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled_steps, "record", counted)
            training = Training("mixed", True)
            if stop < 0:
                training.fit()
            else:
                with pytest.raises(Interrupted):
                    training.fit([stopping(stop)], checkpoints=tmp_path / str(stop))
                recorded[-1] = 0
                Training("mixed", True).fit([stopping(-1)], checkpoints=tmp_path / str(stop), resume=True)
        assert recorded[-1] == during, stop


def test_plain_and_compiled_runs_continue_each_other(whole: tuple[bool, Any], tmp_path: Path) -> None:
    """On the CPU."""
    compiled, expected = whole
    with pytest.raises(Interrupted):
        Training("mixed", not compiled).fit([stopping(15)], checkpoints=tmp_path)
    again = Training("mixed", compiled)
    assert_same(again.result(again.fit([stopping(-1)], checkpoints=tmp_path, resume=True)), expected)


def test_a_signal_during_the_evaluation_is_obeyed_there(tmp_path: Path) -> None:
    seen, sending = [], False

    class Evaluated(nn.Module):
        def __init__(self, inner: nn.Module):
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                return self.inner(x)
            if sending and not seen:
                seen.append(1)
                os.kill(os.getpid(), signal.SIGINT)
            return self.inner(ops.dropout(x, 0.1))     # draws in evaluation, too

    whole = Training("mixed", False)
    whole.model = Evaluated(whole.model)
    lines, sending = whole.result(whole.fit()), True
    training = Training("mixed", False)
    inner, training.model = training.model, Evaluated(training.model)
    with pytest.raises(Interrupted, match="SIGINT stopped it after step 11"):
        training.fit(checkpoints=tmp_path)
    assert seen == [1]
    assert inner.training
    state = read_newest(tmp_path, like_of(tmp_path / "checkpoint.h5"), "-")
    assert (state["place"]["ended"], state["place"]["epoch"], state["place"]["batch"]) == (True, 0, 11)
    again = Training("mixed", False)
    again.model = Evaluated(again.model)
    found = again.result(again.fit(checkpoints=tmp_path, resume=True))
    assert found["history"] == lines["history"]
    assert found["random"] == lines["random"]


def like_of(path: Path) -> dict[str, Any]:
    """The arrays that a checkpoint holds, as a state."""
    import h5py

    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file["checkpoint"].visititems(lambda name, item: found.update({name.replace("/", "."): item[()]})
                                      if isinstance(item, h5py.Dataset) and name != "state" else None)
    return found


def test_the_second_signal_stops_at_once_and_saves_nothing(tmp_path: Path) -> None:
    training = Training("mixed", False)

    class Twice:
        def on_step_end(self, step: Step) -> None:
            if step.step == 15:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
                raise AssertionError("unreachable")

    with pytest.raises(KeyboardInterrupt) as stop:
        training.fit([Twice()], checkpoints=tmp_path)
    assert stop.type is KeyboardInterrupt
    state = read_state(tmp_path / "checkpoint.h5", like_of(tmp_path / "checkpoint.h5"))
    assert (state["place"]["epoch"], state["place"]["step"]) == (1, 11)


def test_signals_that_somebody_handles_are_theirs(tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        assert len(Training("mixed", False).fit([stopping(5)], checkpoints=tmp_path, epochs=1)) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]


def test_a_run_that_is_finished_does_nothing_and_may_get_more_epochs(whole: tuple[bool, Any], tmp_path: Path) -> None:
    compiled, expected = whole
    for epochs in (2, 2, 3):
        training = Training("mixed", compiled)
        history = training.fit(checkpoints=tmp_path, resume=True, epochs=epochs)
        assert len(history) == epochs
    assert_same(training.result(history), expected)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_buffers_array_that_is_somebody_elses_stays(compiled: bool, tmp_path: Path) -> None:
    Training("mixed", compiled).fit(checkpoints=tmp_path, epochs=1)
    training = Training("mixed", compiled)
    mine: np.ndarray = training.model.state_dict()["1.mean"]
    model: Any = training.model
    model[1].mean.data = mine
    training.fit(checkpoints=tmp_path, resume=True, epochs=2)
    assert not mine.any()
    assert model[1].mean.numpy().any()


def test_resume_names_a_file_or_a_folder(tmp_path: Path) -> None:
    training = Training("mixed", False)
    first = training.fit(checkpoints=tmp_path / "a", epochs=1)
    for source in (tmp_path / "a", tmp_path / "a" / "checkpoint.h5"):
        assert Training("mixed", False).fit(resume=source, epochs=1) == first
    assert Training("mixed", False).fit(resume=tmp_path / "a", checkpoints=tmp_path / "a", epochs=1) == first
    Training("mixed", False).fit(resume=tmp_path / "a", checkpoints=tmp_path / "b", epochs=2)
    with pytest.raises(ValueError, match=r"^fit: '.*b' holds a checkpoint already; pass resume=True to go on from it"):
        Training("mixed", False).fit(resume=tmp_path / "a", checkpoints=tmp_path / "b", epochs=2)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"^checkpoints: '.*' cannot be made \(Not a directory\); name a folder that can"):
        Training("mixed", False).fit(checkpoints=tmp_path / "file" / "folder")
    with pytest.raises(FileNotFoundError, match=r"^resume: '.*nowhere' does not exist; check the path, or write it "
                                                r"with training.fit"):
        Training("mixed", False).fit(resume=tmp_path / "nowhere")


# ---------------------------------------------------------------- what goes wrong
def full_disk(monkeypatch: pytest.MonkeyPatch, number: int, times: int = 1) -> None:
    """The disk is full when the checkpoint with this number is written."""
    sync, calls = os.fsync, itertools.count(1)

    def fsync(descriptor: int) -> None:
        if number <= (next(calls) + 1) // 2 < number + times:          # one for the file, one for its folder
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)
    monkeypatch.setattr(os, "fsync", fsync)


def test_a_full_disk_is_a_warning_and_the_older_checkpoints_stay(tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    full_disk(monkeypatch, 2, times=99)
    training = Training("mixed", False)
    with pytest.warns(UserWarning, match=rf"^no checkpoint could be written to '{tmp_path}' after step 22 \(.*No space "
                                         r"left on device.*\); the training goes on, and the older ones stay$"):
        assert len(training.fit(checkpoints=tmp_path)) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.h5"]
    state = read_state(tmp_path / "checkpoint.h5", like_of(tmp_path / "checkpoint.h5"))
    assert state["place"]["step"] == 11


@pytest.mark.slow
def test_a_file_that_may_not_grow_is_a_warning(tmp_path: Path) -> None:
    """As on a full disk, by the system's own limit, in a process of its own."""
    resource = pytest.importorskip("resource", reason="this system has no limits of resources")
    code = (f"import sys, resource, signal; sys.path[:0] = {[str(Path(__file__).parent)]!r}\n"
            "from test_checkpoint import Training\n"
            "training = Training('mixed', False)\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
            f"print(len(training.fit(checkpoints={str(tmp_path)!r})))")
    assert resource
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert (done.stdout, list(tmp_path.iterdir())) == ("3\n", []), done.stderr
    assert "UserWarning: no checkpoint could be written to" in done.stderr
    assert "File too large" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped"])
def test_the_checkpoint_before_is_taken_where_the_newest_cannot_be_read(damage: str, whole: tuple[bool, Any],
                                                                        tmp_path: Path) -> None:
    compiled, expected = whole
    Training("mixed", compiled).fit(checkpoints=tmp_path, epochs=2)
    newest = tmp_path / "checkpoint.h5"
    content = bytearray(newest.read_bytes())
    content[content.index(b'{"place"')] ^= 1
    if damage == "missing":
        newest.unlink()
    else:
        newest.write_bytes({"empty": b"", "cut": content[:5000], "flipped": content}[damage])
    again = Training("mixed", compiled)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        history = again.fit(checkpoints=tmp_path, resume=True)
    assert_same(again.result(history), expected)
    if damage != "missing":
        assert f"goes on from '{tmp_path / 'checkpoint-previous.h5'}'" in str(said[0].message)


def test_what_a_checkpoint_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    Training("mixed", False).fit(checkpoints=tmp_path, epochs=1)

    def refused(message: str, kind: type[Exception] = ValueError, net: str = "mixed",
                change: Callable[[Training], Any] = lambda training: None, **options: Any) -> None:
        training = Training(net, False)
        change(training)
        before = training.result([])
        with pytest.raises(kind, match=message):
            training.fit(**{"checkpoints": tmp_path, "resume": True, **options})
        assert_same(training.result([]), before)

    refused(r"^resume: '.*checkpoint.h5' does not fit this training: .*is .* here but missing in the file; .*build the "
            "model", net="lenet5")
    refused(r"from other batches: seed is 6 here but 5 there; make the loader as it was$",
            change=lambda t: setattr(t.train, "seed", 6))
    refused(r"^fit: the checkpoint has states of callbacks \['(.*)'\] but here are \['\1', 'EarlyStop'\]; pass the cal",
            callbacks=[EarlyStop(patience=9)])
    refused(r"^SGD.load_state_dict: the groups have \[4\] parameters but the state's have \[2, 2\]; build the opt",
            change=lambda t: setattr(t, "optimizer", optim.SGD(t.model.parameters(), 0.1)))
    refused(rf"^fit: '{tmp_path}' holds a checkpoint already; pass resume=True to go on from it, or name another",
            resume=False)
    refused(r"^fit: resume is True but no folder is named; pass checkpoints=folder, or resume=file$", checkpoints=None)
    Training("mixed", False).fit(checkpoints=tmp_path, resume=True, epochs=2)
    refused(r"^fit: epochs is 1 but the checkpoint in '.*' is of epoch 3; ask for more epochs$", epochs=1)


@pytest.mark.parametrize(("there", "here", "message"), [
    (lambda t: SaveBest(t.model, "best.h5"), lambda t: SaveBest(t.model, "best.h5", "test_loss"),
     "^SaveBest: metric is 'test_loss' here but 'test_accuracy' in the state"),
    (lambda t: optim.Plateau(t.optimizer), lambda t: optim.Plateau(t.optimizer, mode="max"),
     "^Plateau: mode is 'max' here but 'min' in the state"),
    (lambda t: optim.EMA([("5.bias", t.model[5].bias), ("a", Tensor([1.0], requires_grad=True))]),
     lambda t: optim.EMA([("5.bias", t.model[5].bias), ("b", Tensor([1.0], requires_grad=True))]),
     "^EMA.load_state_dict: the parameters are")])
def test_a_callback_that_refuses_its_state_changes_nothing(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: Callable[[Training], Any],
        here: Callable[[Training], Any], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    first = Training("mixed", False)
    first.fit(checkpoints=tmp_path, epochs=1, callbacks=[there(first)])
    again = Training("mixed", False)
    before = again.result([])
    with pytest.raises(ValueError, match=message):
        again.fit(checkpoints=tmp_path, resume=True, callbacks=[here(again)])
    assert_same(again.result([]), before)


def test_the_newest_is_named_where_none_of_two_fits(tmp_path: Path) -> None:
    Training("mixed", False).fit(checkpoints=tmp_path, epochs=2)
    assert (tmp_path / "checkpoint-previous.h5").exists()
    with pytest.raises(ValueError, match=r"^resume: '.*checkpoint.h5' does not fit this training"):
        Training("lenet5", False).fit(checkpoints=tmp_path, resume=True)


def test_callbacks_without_a_state_may_differ(tmp_path: Path) -> None:
    Training("mixed", False).fit(checkpoints=tmp_path, epochs=1, callbacks=[lambda metrics: None])
    assert len(Training("mixed", False).fit(checkpoints=tmp_path, resume=True, epochs=2)) == 2


def flags(model: nn.Module) -> tuple[dict[str, bool], dict[str, bool]]:
    return ({name: t.requires_grad for name, t in model.named_tensors()},
            {path: module.training for path, module in model.named_modules()})


def _unfreeze(net: Any) -> None:
    net[0].requires_grad_(True)


def _unfreeze_one(net: Any) -> None:
    net[0].bias.requires_grad_(True)


def _freeze(net: Any) -> None:
    net[5].requires_grad_(False)


def _freeze_one(net: Any) -> None:
    net[8].weight.requires_grad_(False)


def _to_evaluation(net: Any) -> None:
    net[1].eval()


def _both(net: Any) -> None:
    _to_evaluation(net)
    _freeze(net)


def _exchange(net: Any) -> None:
    _unfreeze(net)
    _freeze(net)


@pytest.mark.parametrize("at", [3, 11, 14])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("change", [_unfreeze, _unfreeze_one, _freeze, _freeze_one, _to_evaluation, _both, _exchange])
def test_what_a_callback_froze_stays_so_after_resume(change: Any, compiled: bool, at: int, tmp_path: Path) -> None:
    """The change is after step 3; the stop is in the same step, between epochs, or later."""
    class Change:
        def __init__(self, training: Training):
            self.training = training

        def on_step_end(self, step: Step) -> None:
            if step.step == 3:
                change(self.training.model)

    def made() -> Training:
        training = Training("mixed", compiled)
        training.optimizer = optim.SGD(training.model.requires_grad_(True).parameters(), 0.05, momentum=0.9)
        training.model[0].requires_grad_(False)        # type: ignore[operator]
        return training
    stopped = made()
    with pytest.raises(Interrupted):
        stopped.fit(callbacks=[Change(stopped), stopping(at, signal.SIGTERM)], checkpoints=tmp_path / "a", epochs=2)
    whole, again = made(), made()
    whole.fit(callbacks=[Change(whole)], epochs=2)
    again.fit(callbacks=[Change(again)], checkpoints=tmp_path / "a", epochs=2, resume=True)
    assert flags(again.model) == flags(whole.model) == flags(stopped.model)
    assert_same(again.result([]), whole.result([]))


def test_a_stop_in_the_evaluation_leaves_modes_as_in_training(tmp_path: Path) -> None:
    """All layers are in evaluation then, and the dropout trains after it."""
    class Stopping(nn.Module):
        def __init__(self, net: nn.Module):
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                os.kill(os.getpid(), signal.SIGTERM)
            return self.net(x)
    training = Training("mixed", False)
    training.model = Stopping(training.model)
    _to_evaluation(training.model.net)
    before = flags(training.model)
    with pytest.raises(Interrupted):
        training.fit(checkpoints=tmp_path)
    again = Training("mixed", False)
    again.model = Stopping(again.model)
    with pytest.raises(Interrupted):       # by the evaluation, which comes first
        again.fit(checkpoints=tmp_path, resume=True)
    assert flags(again.model) == before


def test_a_checkpoint_of_an_earlier_version_leaves_layers_as_they_are(tmp_path: Path) -> None:
    Training("mixed", False).fit(checkpoints=tmp_path, epochs=1)
    path = tmp_path / "checkpoint.h5"
    state = read_state(path, like_of(path))
    del state["layers"]
    write_state(path, state)
    again = Training("mixed", False)
    _to_evaluation(again.model)
    before = flags(again.model)
    assert len(again.fit(checkpoints=tmp_path, epochs=2, resume=True)) == 2
    assert flags(again.model) == before


def test_a_checkpoint_of_an_earlier_version_has_means_over_images(tmp_path: Path) -> None:
    """Its totals do not say over how much more."""
    class Stop:
        def on_step_end(self, step: Step) -> bool:
            return step.step == 3
    whole = Training("mixed", False).fit(epochs=2)
    Training("mixed", False).fit(checkpoints=tmp_path, epochs=2, callbacks=[Stop()], save_every=2)
    path = tmp_path / "checkpoint-previous.h5"
    state = read_state(path, like_of(path))
    totals = state["place"]["totals"]
    assert not any(totals[len(totals) // 2:])
    del totals[len(totals) // 2:]
    write_state(path, state)
    again = Training("mixed", False).fit(epochs=2, resume=path)
    assert [line["train_loss"] for line in again] == [line["train_loss"] for line in whole]


@pytest.mark.parametrize("layers", [None, [], {}, {"trained": []}, {"trained": [3], "modes": {}},
                                    {"trained": ["no.such"], "modes": {}}, {"trained": [], "modes": {"": 1}},
                                    {"trained": {}, "modes": {}}, {"trained": [["0.weight"]], "modes": {}}])
def test_layers_that_cannot_be_are_refused(layers: Any, tmp_path: Path) -> None:
    Training("mixed", False).fit(checkpoints=tmp_path, epochs=1)
    path = tmp_path / "checkpoint.h5"
    state = read_state(path, like_of(path))
    write_state(path, {**state, "layers": layers})
    again = Training("mixed", False)
    before = again.result([]), flags(again.model)
    with pytest.raises(ValueError, match=r"^resume: '.*' has a state that is not what training\.fit writes here"):
        again.fit(checkpoints=tmp_path, epochs=2, resume=True)
    assert_same(again.result([]), before[0])
    assert flags(again.model) == before[1]


# ---------------------------------------------------------------- the data that it began with
IMAGES = np.random.default_rng(1).integers(0, 256, (8, 1, 2, 2), np.uint8)
ROWS = np.random.default_rng(2).standard_normal((8, 4))
LABELS = np.array([0, 1, 1, 0, 1, 0, 0, 1])
NUMBERS = ROWS.astype(np.float32)


def images(pixels: Any = IMAGES, labels: Any = LABELS, classes: tuple[str, ...] = ("no", "yes"), **other: Any) -> Any:
    return data.Dataset("mine", "train", pixels, labels, classes, **other)


def table(rows: Any = ROWS, labels: Any = LABELS, columns: tuple[str, ...] = ("p", "q", "r", "s"),
          classes: tuple[str, ...] = ("no", "yes")) -> Any:
    return data.Table("mine", "train", rows, labels, columns, classes)


def go_on_with(train: Any, test: Any, epochs: int, folder: Any, **options: Any) -> Any:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    return fit(net, optim.SGD(net.parameters(), 0.1), data.DataLoader(train, 4), data.DataLoader(test, 4),
               epochs=epochs, checkpoints=folder, progress=False, say=None, **{"resume": True, **options})


def exchanged(array: np.ndarray) -> np.ndarray:
    return array[[1, 0, *range(2, len(array))]]


OTHERS: dict[str, tuple[Any, Any, str]] = {
    "labels": (images(), images(labels=1 - LABELS), "labels are"),
    "one label": (images(), images(labels=np.array([1, *LABELS[1:]])), "labels are"),
    "class names": (images(), images(classes=("aye", "no")), "class names are 'aye, no' here but 'no, yes' there"),
    "many class names": (images(classes=tuple(map(str, range(40)))), images(classes=tuple(map(str, range(1, 41)))),
                         "class names are"),
    "order of items": (images(), images(exchanged(IMAGES), exchanged(LABELS)), "labels are"),
    "order of items of one class": (images(labels=0 * LABELS), images(exchanged(IMAGES), 0 * LABELS), "images are"),
    "a pixel": (images(), images(IMAGES ^ (np.arange(32).reshape(8, 1, 2, 2) == 31).astype("u1")), "images are"),
    "rows": (table(), table(ROWS + 1e-9), "rows are"),
    "labels of rows": (table(), table(labels=1 - LABELS), "labels are"),
    "columns": (table(), table(columns=("q", "p", "r", "s")), "column names are 'q, p, r, s' here but 'p, q, r, s' th"),
    "classes of rows": (table(), table(classes=("aye", "no")), "class names are 'aye, no' here but 'no, yes' there"),
    "arrays": ((NUMBERS, LABELS), (NUMBERS, 1 - LABELS), "values of array 2 of 2 are"),
    "arrays, inputs": ((NUMBERS, LABELS), (exchanged(NUMBERS), LABELS), "values of array 1 of 2 are"),
    "Tensors": ((Tensor(NUMBERS), LABELS), (Tensor(-NUMBERS), LABELS), "values of array 1 of 2 are")}


@pytest.mark.parametrize(("name", "where"), [
    (name, where) for name, (*_, said) in OTHERS.items() for where in ("train", "test")[:1 if "names" in said else 2]])
def test_a_run_does_not_go_on_with_other_data(name: str, where: str, tmp_path: Path) -> None:
    """Names are the same in training and test."""
    first, second, said = OTHERS[name]
    go_on_with(first, first, 1, tmp_path)
    before = (tmp_path / "checkpoint.h5").read_bytes()
    given = (second, second if "names" in said else first) if where == "train" else (first, second)
    with pytest.raises(ValueError, match=rf"^fit: the checkpoint in '.*' is from other data: {where} {said}.*; give "
                                         "the data that it began with, or begin anew in another folder$"):
        go_on_with(*given, 2, tmp_path)
    assert (tmp_path / "checkpoint.h5").read_bytes() == before
    assert len(go_on_with(first, first, 2, tmp_path)) == 2


@pytest.mark.parametrize(("array", "digest"), [
    (np.arange(6, dtype="i8").reshape(2, 3), "bd1cc726cfa83e5b"), (np.array([0.5, -1.0], "f4"), "e6e0d105a88c9652")])
def test_data_keep_their_digest(array: np.ndarray, digest: str) -> None:
    """Or a run could not go on from a checkpoint that was written before."""
    assert _digest(array) == digest


@pytest.mark.parametrize(("first", "second"), [
    (images(), images(labels=LABELS.astype(np.uint8))), (images(), images(source="elsewhere")),
    (images(), images(np.asfortranarray(IMAGES))), ((NUMBERS, LABELS), (Tensor(NUMBERS), LABELS)),
    ((NUMBERS, LABELS), (NUMBERS[::-1][::-1], LABELS)), (list(zip(NUMBERS, LABELS.tolist(), strict=True)),) * 2])
def test_the_same_data_in_another_form_are_the_same(first: Any, second: Any, tmp_path: Path) -> None:
    go_on_with(first, first, 1, tmp_path)
    assert len(go_on_with(second, second, 2, tmp_path)) == 2


def test_labels_that_a_callback_changes_are_not_other_data(tmp_path: Path) -> None:
    """What counts is what a training begins with."""
    def run(epochs: int) -> list[Any]:
        labels = LABELS.copy()

        def clean(metrics: Any) -> None:
            labels[0] = 1
        return go_on_with((NUMBERS, labels), (NUMBERS, labels), epochs, tmp_path, callbacks=clean)
    run(1)
    assert len(run(2)) == 2


@pytest.mark.parametrize("contents", ["missing", {}, {"train": {}}, {"train": 3}, [], None])
def test_a_checkpoint_that_does_not_know_its_data_goes_on(contents: Any, tmp_path: Path) -> None:
    go_on_with(images(), images(), 1, tmp_path)
    path = tmp_path / "checkpoint.h5"
    state = read_state(path, like_of(path))
    del state["data"]["contents"]
    if contents != "missing":
        state["data"]["contents"] = contents
    write_state(path, state)
    assert len(go_on_with(images(), images(labels=1 - LABELS), 2, tmp_path)) == 2


def test_of_a_large_array_not_every_byte_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from minidl.training import resume

    monkeypatch.setattr(resume, "MAX_BYTES", 16)
    found = []
    for changed in (8, 0, 1, 2):           # no item; of 32 bytes every other item is read
        pixels = np.array([image ^ (i == changed) for i, image in enumerate(IMAGES)])
        found.append(resume.contents_of(data.DataLoader(images(pixels), 4))["images"])
    assert [each == found[0] for each in found] == [True, False, True, False]


# ---------------------------------------------------------------- one folder, two trainings
@pytest.mark.skipif(sys.platform == "win32", reason="no locks of files")
@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("spelled", [lambda folder: folder, lambda folder: f"{folder}/../{folder.name}", str])
def test_two_trainings_never_share_a_folder(spelled: Any, resume: bool, tmp_path: Path) -> None:
    """The second begins within the first, and changes nothing; after the first it may."""
    folder, said = tmp_path / "run", []

    def begin(epochs: int = 1) -> Any:
        return go_on_with(images(), images(), epochs, spelled(folder), resume=resume, callbacks=[second] * (not said))

    def second(metrics: Any) -> None:
        said.append("")
        with pytest.raises(ValueError, match=r"^checkpoints: another training writes to '.*run'; wait for its end, or "
                                             "name another folder$"):
            begin()
        said.append("refused")
    assert len(begin()) == 1
    assert said == ["", "refused"]
    if resume:
        assert len(begin(2)) == 2


def test_a_training_that_ended_in_an_error_leaves_its_folder_free(tmp_path: Path) -> None:
    def failing(metrics: Any) -> None:
        raise OSError("full")
    for _ in range(2):
        with pytest.raises(OSError, match=r"^full$"):
            go_on_with(images(), images(), 1, tmp_path, resume=False, callbacks=failing)


@pytest.mark.skipif(sys.platform == "win32", reason="no locks of files")
def test_a_process_keeps_others_out_until_it_is_killed(tmp_path: Path) -> None:
    """By the kernel's lock, of which nothing is left in the folder."""
    holds = ("import sys, time; from minidl.training.checkpoint import Checkpoints; c = Checkpoints(sys.argv[1]); "
             "c.take(); print(1, flush=True); time.sleep(60)")
    child = subprocess.Popen([sys.executable, "-c", holds, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(ValueError, match=r"^checkpoints: another training writes to "):
            go_on_with(images(), images(), 1, tmp_path)
        assert list(tmp_path.iterdir()) == []
    finally:
        child.kill()
        child.wait()
    assert len(go_on_with(images(), images(), 1, tmp_path)) == 1


def test_an_optimizer_that_keeps_more_than_it_saves_is_refused() -> None:
    class Averaged(optim.SGD):
        def __init__(self, *arguments: Any, **options: Any):
            super().__init__(*arguments, **options)
            self.limit, self.means = 1.0, [np.zeros(2)]

    class Saved(Averaged):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "means": self.means}

    class Both(optim.Together):
        means = np.zeros(2)

    net = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"^Averaged.state_dict: holds what SGD keeps but not means; define state_dict"):
        Averaged(net.parameters(), 0.1).state_dict()
    both = Both(optim.SGD(net.parameters(), 0.1))
    assert both.state_dict().keys() == {"groups"}
    both.means = both.means + 1
    with pytest.raises(TypeError, match=r"^Both.state_dict: holds what Together keeps but not means; define stat"):
        both.state_dict()
    assert Saved(net.parameters(), 0.1).state_dict().keys() == {"groups", "means"}


def test_numbers_of_a_subclass_go_on() -> None:
    """A count of steps began anew. A step may make them; a file sets no method, no number of a group, no list."""
    class Counts(optim.SGD):
        every, done = 5, 0

        def step(self, rates: Any = None) -> None:
            super().step(rates)
            self.done += 1
            self.made = self.done

    class Both(optim.Together):
        done = 0

        def step(self, rates: Any = None) -> None:
            super().step(rates)
            self.done += 1

    def made(several: bool) -> tuple[Any, Any]:
        counts = Counts(nn.Linear(2, 2).parameters(), 0.1)
        counts.label = "a"
        return counts, Both(counts, optim.Adam(nn.Linear(2, 2).parameters())) if several else counts
    for several in (False, True):
        (counts, optimizer), (again, other) = made(several), made(several)
        optimizer.step()
        optimizer.step()
        counts.label = "b"
        other.load_state_dict(optimizer.state_dict())
        assert (again.done, again.made, again.label, again.every, other.done) == (2, 2, "b", 5, 2)
        for wrong in ({"step": 1}, {"lr": 1}, {"__module__": "os"}, {"label": []}, {"groups": 1}, {3: 1}, 3):
            state = optimizer.state_dict()
            for where, kind in ((state["groups"][0], "Counts"), *[(state, "Together")] * several):
                where["own"] = wrong
                with pytest.raises(ValueError, match=rf"^{kind}.load_state_dict: the state is a dict but must be what"):
                    other.load_state_dict(state)
                del where["own"]
    plain = optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
    state = plain.state_dict()
    assert "own" not in state["groups"][0]
    state["groups"][0]["own"] = {"other": 1}
    with pytest.raises(ValueError, match=r"^SGD.load_state_dict: the state is a dict but must be what state_dict gave"):
        plain.load_state_dict(state)


def test_a_checkpoint_of_broken_numbers_is_not_written(tmp_path: Path) -> None:
    training = Training("mixed", True)
    training.optimizer.lr = 1e38
    with np.errstate(all="ignore"), pytest.raises(FloatingPointError, match="diverged in step"):
        training.fit(checkpoints=tmp_path, save_every=1)
    for path in tmp_path.iterdir():
        state = read_state(path, like_of(path))
        assert np.isfinite(state["place"]["totals"][0])


# ---------------------------------------------------------------- the file
STATE = {"a": {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(5)},
         "list": [np.ones(3), None, 1.5, "x"], "numbers": {"i": np.int64(3), "f": float("inf"), "b": True},
         "empty": np.zeros((0, 2))}


def test_a_state_comes_back(tmp_path: Path) -> None:
    write_state(tmp_path / "c.h5", STATE)
    back = read_state(tmp_path / "c.h5", STATE)
    assert back["numbers"] == {"i": 3, "f": float("inf"), "b": True}
    assert back["list"][1:] == [None, 1.5, "x"]
    for mine, theirs in ((STATE["a"]["w"], back["a"]["w"]), (STATE["a"]["n"], back["a"]["n"]),  # type: ignore[index]
                         (STATE["list"][0], back["list"][0]), (STATE["empty"], back["empty"])):  # type: ignore[index]
        assert (mine.dtype, mine.shape, mine.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
    first = (tmp_path / "c.h5").read_bytes()
    write_state(tmp_path / "c.h5", STATE)
    assert (tmp_path / "c.h5").read_bytes() == first                   # equal states give equal bytes


def test_keys_and_tuples_of_a_state_come_back(tmp_path: Path) -> None:
    """JSON has texts as keys, and lists alone."""
    state = {"losses": {2: 0.5, -1: 1.5, "2": "x", 0.5: None, None: True, False: [1], (1, ("a", 2.0)): "y"},
             "more": {np.int64(3): np.float32(2.0)}, "texts": {"a": 1, "b": {}}, "empty": ({}, (), []),
             "pair": (1, (2, [3, (4,)])), "like the file's own": {"__array__": True, "a": {"__tuple__": [1]},
                                                                  "b": {"__dict__": [[1, 2]]},
                                                                  "c": {"__number__": ["float32", 1]}},
             "arrays": {1: np.ones(2), "b": (np.zeros(1), 3)}}
    write_state(tmp_path / "c.h5", state)
    back = read_state(tmp_path / "c.h5", state)
    for found, array in ((back["arrays"].pop(1), np.ones(2)), (back["arrays"]["b"][0], np.zeros(1))):
        np.testing.assert_array_equal(found, array, strict=True)
    assert repr(back.pop("arrays")) == "{'b': (array([0.]), 3)}"
    assert repr(back) == repr({**{name: state[name] for name in back}, "more": {3: np.float32(2.0)}})     # 1 == True


@pytest.mark.parametrize("number", [[], 5, ["float32"], ["V9", 10**12], ["int8", 1000], ["object", 1], [[], 1]])
def test_a_number_that_no_checkpoint_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: Any
                                                    ) -> None:
    """Whoever made the file: nothing is computed of it, and no memory taken."""
    monkeypatch.setattr(checkpoint, "_apart", lambda value, path, arrays: value)
    write_state(tmp_path / "c.h5", {"a": {"__number__": number}})
    with pytest.raises(ValueError, match=r"has a state that is not what .* writes; take the checkpoint before it"):
        read_state(tmp_path / "c.h5", {})


def test_what_a_callback_adds_to_the_metrics_goes_on(tmp_path: Path) -> None:
    """It made all checkpoints unreadable. The next callback, as a RunFolder, has it as what JSON knows, too."""
    added = {"norm": np.array(0.5), "rate": np.float32(0.25), "confusion": np.eye(2), "mean": Tensor([1.0, 2.0]),
             "each": {"a": np.ones(1), "b": (np.int64(3), "text", None)}}
    expected = {"norm": 0.5, "rate": 0.25, "confusion": [[1.0, 0.0], [0.0, 1.0]], "mean": [1.0, 2.0],
                "each": {"a": [1.0], "b": [3, "text", None]}}
    for epochs in (1, 2):
        history = go_on_with(images(), images(), epochs, tmp_path,
                             callbacks=[lambda metrics: metrics.update(added), json.dumps])
        assert [{name: metrics[name] for name in expected} for metrics in history] == [expected] * epochs


def test_a_callback_finds_its_epochs_again(tmp_path: Path) -> None:
    class Losses:
        def __init__(self) -> None:
            self.seen: dict[int, float] = {}

        def on_epoch_end(self, metrics: dict[str, Any]) -> None:
            if metrics["epoch"] > 1:
                assert self.seen[metrics["epoch"] - 1] > 0
            self.seen[metrics["epoch"]] = metrics["train_loss"]

        def state_dict(self) -> dict[str, Any]:
            return {"seen": self.seen}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.seen = dict(state["seen"])

    for epochs in (2, 3):
        losses = Losses()
        go_on_with(images(), images(), epochs, tmp_path, callbacks=losses)
    assert sorted(losses.seen) == [1, 2, 3]


def test_a_file_of_an_earlier_version_has_texts_and_lists(tmp_path: Path) -> None:
    """It holds what the state became in JSON."""
    text = json.dumps({"seen": {"2": 0.5}, "betas": [0.9, 0.99], "w": {"1": {"__array__": True}}}).encode()
    arrays = {"w.1": np.ones(2), "state": np.frombuffer(text, np.uint8)}
    write(checkpoint.KIND, "checkpoint", tmp_path / "c.h5", arrays, {
        "format": checkpoint.KIND.format, "format_version": 1, "minidl_version": "0.3", "state_bytes": len(text)})
    back = read_state(tmp_path / "c.h5", {"seen": {}, "betas": (0.9, 0.99), "w": {1: np.zeros(2)}})
    np.testing.assert_array_equal(back.pop("w")["1"], np.ones(2))
    assert back == {"seen": {"2": 0.5}, "betas": [0.9, 0.99]}


@pytest.mark.parametrize(("state", "kind", "message"), [
    ({"a": object()}, TypeError, "checkpoint: a state holds a object but may hold arrays, numbers, texts, lists, "),
    ({"a": {b"x": 1}}, TypeError, "checkpoint: a dict in a state has the key b'x', a bytes, but keys may be texts"),
    ({"a": {(1, frozenset()): 1}}, TypeError, r"checkpoint: a dict in a state has the key frozenset\(\), a frozenset"),
    ({"a": {1: np.ones(1), "1": np.ones(1)}}, ValueError, "checkpoint: 'a.1' names two arrays; rename a key"),
    ({"a": np.array([1j])}, TypeError, "checkpoint: a is complex128 but must be float32, float64, "),
    ({"a b": np.ones(1)}, ValueError, "checkpoint: parameter name 'a b' must be letters, digits"),
    ({"a": {"b": np.ones(1)}, "a.b": np.ones(1)}, ValueError, "checkpoint: 'a.b' names two arrays; rename a key"),
    ({"state": np.ones(1)}, ValueError, "checkpoint: "),
])
def test_a_state_that_no_file_can_hold(state: Any, kind: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=f"^{message}"):
        write_state(tmp_path / "c.h5", state)
    assert list(tmp_path.iterdir()) == []


def test_weights_are_not_a_checkpoint(tmp_path: Path) -> None:
    minidl.save(nn.Linear(2, 1), tmp_path / "w.h5")
    with pytest.raises(ValueError, match=r"^resume: '.*w.h5' has format 'minidl' but must have the fixed-length text "
                                         r"'minidl-checkpoint'; choose a file that training.fit wrote$"):
        read_state(tmp_path / "w.h5", {})
    write_state(tmp_path / "c.h5", STATE)
    with pytest.raises(ValueError, match=r"^load: '.*c.h5' has format 'minidl-checkpoint' but must have"):
        minidl.load(nn.Linear(2, 1), tmp_path / "c.h5")


@pytest.mark.deep
def test_hostile_checkpoints_are_refused_as_weights_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the recipes for weights, on a checkpoint of the same net."""
    from test_hostile_weights import RECIPES, net

    monkeypatch.setattr(checkpoint, "KIND", checkpoint.KIND._replace(group="model"))       # where they look
    good: dict[str, Any] = {name: np.array(array) for name, array in net().state_dict().items()}
    path = tmp_path / "hostile.h5"
    write_state(path, {**good, "place": 1})
    content, refused, tried = path.read_bytes(), 0, 0
    for name, recipe in RECIPES.items():
        path.write_bytes(content)
        try:
            recipe(path)
        except (KeyError, ValueError, AssertionError, TypeError, IndexError):
            continue                       # it looks for what weights alone have
        tried += 1
        faulthandler.dump_traceback_later(60, exit=True)               # of what never ends
        try:
            state = read_state(path, good)
            assert state["place"] == 1, name
            assert all(np.array_equal(state[n], array) for n, array in good.items()), name
        except ValueError as error:
            said = str(error)
            assert said.startswith(f"resume: '{path}' "), name
            assert said.isprintable(), name
            assert len(said.encode()) <= 4000, name
            refused += 1
        finally:
            faulthandler.cancel_dump_traceback_later()
    assert tried >= 0.8 * len(RECIPES)
    assert refused >= 0.7 * tried         # others change attributes that a checkpoint does not have


@pytest.mark.parametrize(("name", "value"), [
    ("place", None), ("rng", [1]), ("rng", [-1, 0]), ("rng", "x"), ("data", []), ("callbacks", None), ("optimizer", 3),
    ("optimizer", {"groups": []}), ("model", {}), ("more", 1), ("place.epoch", -1), ("place.epoch", 1.0),
    ("place.epoch", 2**70), ("place.batch", 99), ("place.totals", [1.0]), ("place.totals", ["x", "y", "z"]),
    ("place.history", [1]), ("place.more", 1), ("place.classes", 1), ("optimizer.groups.0.lr", "x"),
    ("optimizer.groups.0.nesterov", "x"), ("optimizer.groups.1.velocities", []), ("model.5.weight", 1),
])
def test_a_state_that_is_not_a_trainings_is_refused(name: str, value: Any, tmp_path: Path) -> None:
    Training("mixed", False).fit(checkpoints=tmp_path, epochs=1)
    path = tmp_path / "checkpoint.h5"
    state = read_state(path, like_of(path))
    owner, (*parts, last) = state, [name] if name == "model.5.weight" else name.split(".")
    if name == "model.5.weight":
        owner, last = state["model"], "5.weight"
    for part in parts:
        owner = owner[int(part)] if isinstance(owner, list) else owner[part]
    owner[last] = value
    write_state(path, state)
    training = Training("mixed", False)
    before = training.result([])
    with pytest.raises(ValueError, match=r"^(resume|set_state|fit|SGD|SGD.load_state_dict): "):
        training.fit(checkpoints=tmp_path, resume=True)
    assert_same(training.result([]), before)


# ---------------------------------------------------------------- the random stream and the optimizer
def test_the_random_stream_goes_on() -> None:
    rng.manual_seed(9)
    rng.next_key()
    state = rng.get_state()
    assert state == (9, 1)
    drawn = [rng.next_key() for _ in range(3)]
    rng.set_state(state)
    assert [rng.next_key() for _ in range(3)] == drawn
    for wrong in (None, (1,), (1, 2, 3), (-1, 0), (2**64, 0), (0, -1), (0, 2**63), (1.0, 0), ("1", 0)):
        with pytest.raises(ValueError, match=r"^set_state: state is .* but must be .*; pass what get_state gave$"):
            rng.set_state(wrong)  # type: ignore[arg-type]


def test_a_thread_has_its_own_stream() -> None:
    import threading

    rng.manual_seed(1)
    found: list[Any] = []

    def work() -> None:
        found.append(rng.get_state())
        rng.set_state((7, 3))
        found.append(rng.next_key())
        found.append(rng.get_state())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(1, 0), (7, 3), (7, 4)]
    assert rng.get_state() == (1, 0)


def test_an_optimizers_state_goes_on() -> None:
    def parts() -> tuple[list[Tensor], optim.SGD]:
        ps = [Tensor(np.full(n, 1.0, np.float32), requires_grad=True) for n in (2, 3)]
        return ps, optim.SGD([{"params": ps[:1], "lr": 0.5}, {"params": ps[1:], "momentum": 0.0}], 0.1, momentum=0.9)

    def step(ps: list[Tensor], sgd: optim.SGD) -> None:
        sgd.zero_grad()
        sum(((p * p).sum() for p in ps), Tensor(np.float32(0))).backward()
        sgd.step()

    ps, sgd = parts()
    assert [group["velocities"] for group in sgd.state_dict()["groups"]] == [[None], [None]]
    step(ps, sgd)
    state = sgd.state_dict()
    assert [v is None for group in state["groups"] for v in group["velocities"]] == [False, True]
    weights = [p.numpy().copy() for p in ps]
    sgd.groups[0]["lr"] = 0.25
    step(ps, sgd)
    expected = [p.tolist() for p in ps]

    fresh, other = parts()
    for p, w in zip(fresh, weights, strict=True):
        p.data[...] = w
    other.load_state_dict(state)
    other.groups[0]["lr"] = 0.25
    step(fresh, other)
    assert [p.tolist() for p in fresh] == expected
    velocity = other._kept["velocities"].get(fresh[0])
    other.load_state_dict(state)
    assert other._kept["velocities"].get(fresh[0]) is velocity                 # in place: compiled steps read it there
    assert other.groups[0]["lr"] == 0.5
    other.load_state_dict(parts()[1].state_dict())
    assert velocity.tolist() == [0, 0]


@pytest.mark.parametrize(("change", "message"), [
    (lambda s: None, "SGD.load_state_dict: the state is a NoneType but must be what state_dict gave"),
    (lambda s: {"groups": s["groups"] * 2}, r"SGD.load_state_dict: the groups have \[1\] parameters but the state's "
                                            r"have \[1, 1\]; build the optimizer that the state was saved from"),
    (lambda s: s["groups"][0].update(velocities=[np.ones((3,), np.float32)]) or s,
     r"SGD.load_state_dict: velocity 0 of group 0 is \(3,\) float32 but its parameter is \(2,\) float32; build"),
    (lambda s: s["groups"][0].update(velocities=[np.ones(2)]) or s,
     r"SGD.load_state_dict: velocity 0 of group 0 is \(2,\) float64 but its parameter is \(2,\) float32; build"),
    (lambda s: s["groups"][0].update(lr=float("nan")) or s, "SGD: lr is nan but must be a finite number of at least 0"),
    (lambda s: {"groups": [{"lr": 0.1}]}, "SGD.load_state_dict: the state is a dict but must be what state_dict gave"),
])
def test_an_optimizers_state_that_does_not_fit_changes_nothing(change: Any, message: str) -> None:
    w = Tensor(np.ones(2, np.float32), requires_grad=True)
    sgd = optim.SGD([w], 0.1, momentum=0.9)
    (w * w).sum().backward()
    sgd.step()
    before = sgd.state_dict()
    with pytest.raises(ValueError, match=f"^{message}"):
        sgd.load_state_dict(change({**sgd.state_dict(), }))
    after = sgd.state_dict()
    assert after["groups"][0].pop("velocities")[0].tolist() == before["groups"][0].pop("velocities")[0].tolist()
    assert after == before


if __name__ == "__main__":
    faulthandler.enable()
    child(*sys.argv[1:5])
