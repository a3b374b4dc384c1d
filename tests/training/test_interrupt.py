"""Interrupts at random instants of training steps, and minidl called again in the middle of its own ops.

The steps run in a child process, with a limit on the time of each; another child, which nobody interrupts, says what is
right. `MINIDL_INTERRUPTS=1000 python -m pytest tests/training/test_interrupt.py` interrupts a thousand steps instead
of 200.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import gc
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tiers import tiered

import minidl
from minidl import Tensor, nn, ops, optim
from minidl.core.device import to_device
from minidl.core.mode import mode
from minidl.ops import cpu
from minidl.ops.common.backend import primitives_of
from minidl.ops.cpu import parallel

INTERRUPTS = int(os.environ.get("MINIDL_INTERRUPTS", "200"))
LIMIT = 300                                # seconds for a step that takes 10 ms: more is a deadlock, on any machine
THREADS = "3"                              # also where there is one core
AIMED = 0.4                                # share of the interrupts that come within the update

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer signals")


# ---------------------------------------------------------------- what is interrupted
class Training:
    """A net that takes every path of the CPU's primitives, its optimizer and a batch."""

    def __init__(self, kind: str, device: str = "cpu", batch: int = 64):
        minidl.manual_seed(1)
        rng = np.random.default_rng(1)
        self.model = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 120, 5, algorithm="unroll" if device == "cpu" else "auto"), nn.Flatten(),
            nn.Linear(120, 84), nn.Sigmoid(), nn.Linear(84, 10)).to(device)
        self.sgd = optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.x = Tensor(rng.standard_normal((batch, 1, 28, 28), dtype=np.float32), device=device)
        self.labels = Tensor(rng.integers(0, 10, batch), device=device)
        self.step = minidl.compile(self.eager) if kind == "compiled" else self.eager
        for _ in range(4):                 # from then on a compiled step is replayed, on CUDA as a graph
            self.step()

    def loss(self) -> Tensor:
        return ops.cross_entropy(self.model(self.x), self.labels)

    def eager(self) -> None:
        self.sgd.zero_grad()
        self.loss().backward()
        self.sgd.step()

    def arrays(self) -> list[Any]:
        """The parameters' arrays, then the velocities'."""
        parameters = list(self.model.parameters())
        return [*(p.data for p in parameters), *(self.sgd._kept["velocities"].get(p) for p in parameters)]

    def state(self) -> list[np.ndarray]:
        return [np.array(a.get() if hasattr(a, "get") else a) for a in self.arrays()]

    def restore(self, state: list[np.ndarray]) -> None:
        for array, value in zip(self.arrays(), state, strict=True):
            array[...] = to_device(value, self.x.device)


AGAIN = 0.05                               # seconds to the next: an interrupt in a finalizer or a callback is lost


def interrupted(run: Callable[[], Any], seconds: float) -> None:
    """Run, and raise KeyboardInterrupt so many seconds after its start, or behind its end."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
        run()
        while True:
            time.sleep(1e-4)
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)


def raise_interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def same(xs: list[np.ndarray], ys: list[np.ndarray], device: str) -> bool:
    """On CUDA another process may measure that another algorithm is faster."""
    close = np.array_equal if device == "cpu" else functools.partial(np.allclose, rtol=1e-3, atol=1e-5)
    return all(close(x, y) for x, y in zip(xs, ys, strict=True))


def interrupts(kind: str, count: int, device: str) -> dict[str, int]:
    """How often what was found after so many interrupts."""
    sure = subprocess.Popen([sys.executable, __file__, "sure", kind, "0", device],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert sure.stdin is not None
    assert sure.stdout is not None
    rng = random.Random(kind)
    primitives: Any = primitives_of(Tensor(0.0, device=device).data)
    update, aim = primitives.sgd, 0.0

    def aimed_update(*arguments: Any) -> None:
        if aim:
            signal.setitimer(signal.ITIMER_REAL, aim, AGAIN)
        update(*arguments)

    primitives.sgd = aimed_update
    training = Training(kind, device)
    blas = parallel._openblas()
    threads = blas[1]() if blas else 0
    took = []
    for _ in range(9):
        begin = time.perf_counter()
        training.step()
        took.append(time.perf_counter() - begin)
    duration = min(took)
    begin = time.perf_counter()
    update(training.arrays(), training.arrays(), None, 0.0, 0.0, 0.0, False)
    update_share = (time.perf_counter() - begin) / duration
    signal.signal(signal.SIGALRM, raise_interrupt)
    found = {"interrupts": count, "within": 0, "torn": 0, "unmarked": 0, "bits": 0, "counter": 0, "blas": 0, "mode": 0}
    for _ in range(count):
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        recorded, before = training.loss(), training.state()
        if rng.random() < AIMED and (kind, device) != ("compiled", "cuda"):      # a graph calls no update
            aim = rng.uniform(1e-6, update_share * duration)
            interrupted(training.step, LIMIT)
        else:
            interrupted(training.step, rng.uniform(1e-6, 1.1 * duration))
        aim = 0.0
        after = training.state()
        found["counter"] += parallel._inside != 0
        found["blas"] += blas is not None and blas[1]() != threads
        found["mode"] += mode.recorder.recording or not mode.grad
        changed = [not np.array_equal(a, b) for a, b in zip(before, after, strict=True)]
        found["within"] += not all(changed)
        if any(changed) and not all(changed):
            found["torn"] += 1
            try:
                recorded.backward()
                found["unmarked"] += any(changed[:len(changed) // 2])
            except ValueError:
                pass
        begin = time.perf_counter()
        training.step()
        duration = min(duration, time.perf_counter() - begin)          # shorter once other processes have ended
        pickle.dump(after, sure.stdin)
        sure.stdin.flush()
        found["bits"] += not same(training.state(), pickle.load(sure.stdout), device)
    sure.stdin.close()
    sure.wait()
    return found


def say_what_is_right(kind: str, device: str) -> None:
    """For each state that comes in, the one after a step from there."""
    training = Training(kind, device)
    while True:
        try:
            state = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        training.restore(state)
        training.step()
        pickle.dump(training.state(), sys.stdout.buffer)
        sys.stdout.buffer.flush()


# ---------------------------------------------------------------- called again in the middle
class Again:
    """Runs a model of its own, forward and backward, and sees whether the gradients are right."""

    def __init__(self) -> None:
        self.training = Training("eager", batch=3)
        self.entries = self.wrong = 0
        self.free = threading.Lock()       # not again within itself, nor on two threads
        self.expected = self.gradients()

    def gradients(self) -> list[np.ndarray]:
        self.training.sgd.zero_grad()
        self.training.loss().backward()
        return [p.grad.numpy().copy() for p in self.training.model.parameters() if p.grad is not None]

    def __call__(self, *_: Any) -> None:
        if self.free.acquire(blocking=False):
            self.entries += 1
            self.wrong += not all(map(np.array_equal, self.gradients(), self.expected))
            self.free.release()


class Finalized:
    """Calls something when it is no longer referred to."""

    def __init__(self, call: Callable[[], None]):
        self.call = call

    def __del__(self) -> None:
        self.call()


def re_entries(way: str, count: int) -> dict[str, int]:
    """A step, with another model run in the middle of its ops by a signal handler, a finalizer or the collector."""
    again, training = Again(), Training("eager")
    start = training.state()
    begin = time.perf_counter()
    training.step()
    first = min(2e-3, (time.perf_counter() - begin) / 4)       # within the step on a fast machine too
    expected = training.state()
    found = {"steps": count, "wrong": 0, "entries": 0, "wrong entries": 0, "counter": 0}
    gc.set_threshold(20)
    if way == "signal":
        signal.signal(signal.SIGALRM, again)
    elif way == "gc":
        gc.callbacks.append(lambda phase, _: again() if phase == "start" else None)
    elif way == "del":
        def finalized(primitive: Any) -> Any:
            def wrapped(begin: int, end: int) -> Any:
                if not again.free.locked():
                    cycle: list[Any] = [Finalized(again)]
                    cycle.append(cycle)    # for the collector to find, within the primitive or here
                    del cycle
                result = primitive(begin, end)
                gc.collect(0)
                return result
            return wrapped
        plain = parallel.parallel_for
        for name in ("conv", "layers.linear", "layers.pool"):
            module = sys.modules[f"minidl.ops.cpu.{name}"]
            module.parallel_for = lambda count, chunk, work: plain(count, chunk, finalized(work))   # type: ignore
    for _ in range(count):
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        training.restore(start)
        if way == "signal":
            signal.setitimer(signal.ITIMER_REAL, first, 2 * first)
        training.step()
        signal.setitimer(signal.ITIMER_REAL, 0)
        found["wrong"] += not all(map(np.array_equal, training.state(), expected))
        with again.free:                   # a thread that has done its part of the step may be within it
            found["counter"] += parallel._inside != 0
    gc.callbacks.clear()
    return {**found, "entries": again.entries, "wrong entries": again.wrong}


# ---------------------------------------------------------------- tests
def child(*arguments: Any) -> dict[str, int]:
    """What a child process finds."""
    environment = {**os.environ, "MINIDL_NUM_THREADS": THREADS, "OPENBLAS_NUM_THREADS": "2",
                   "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, __file__, *map(str, arguments)], env=environment, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr[-8000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("kind", "count"), tiered([
    ("compiled", 15), ("eager", 25), ("compiled", INTERRUPTS // 2), ("eager", INTERRUPTS // 2)], slow=1, several=True))
def test_training_goes_on_after_an_interrupt(kind: str, count: int) -> None:
    found = child("interrupts", kind, count)
    assert found["within"] > found["interrupts"] // 3, found
    assert [found[what] for what in ("bits", "counter", "blas", "mode")] == [0] * 4, found


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["eager", "compiled"])
def test_training_goes_on_after_an_interrupt_on_cuda(kind: str) -> None:
    found = child("interrupts", kind, max(100, INTERRUPTS // 2), "cuda")
    assert [found[what] for what in ("bits", "counter", "blas", "mode")] == [0] * 4, found


@pytest.mark.parametrize(("way", "count"), tiered([
    ("gc", 10), ("gc", 32), ("signal", 32), ("del", 32)], slow=1, several=True))
def test_minidl_in_the_middle_of_its_own_ops(way: str, count: int) -> None:
    found = child("re_entries", way, count)
    assert found["entries"] >= found["steps"], found
    assert [found[what] for what in ("wrong", "wrong entries", "counter")] == [0] * 3, found


@pytest.mark.parametrize("kind", ["eager", "compiled"])
def test_an_update_that_is_interrupted_counts_as_a_change(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    update, half = cpu.sgd, False

    def torn(params: Any, grads: Any, velocities: Any, *numbers: Any) -> None:
        n = len(params) // 2 if half else len(params)
        update(params[:n], grads[:n], velocities[:n], *numbers)
        if half:
            raise KeyboardInterrupt

    monkeypatch.setattr(cpu, "sgd", torn)
    training = Training(kind)
    recorded, half = training.loss(), True
    with pytest.raises(KeyboardInterrupt):
        training.step()
    with pytest.raises(ValueError, match="changed"):
        recorded.backward()


class Driver:
    """In place of CuPy's: notes what int its kernel is launched with, and does before what a test asks for."""

    def __init__(self, patch: pytest.MonkeyPatch):
        launch = pytest.importorskip("minidl.ops.cuda.launch.kernels", reason="CuPy is not installed")
        self.before: Callable[[], None] = lambda: None
        self.launched: list[int] = []
        function = types.SimpleNamespace(kernel=types.SimpleNamespace(ptr=1))
        for name, value in {"_launch": self.launch, "_current_device": lambda: 0, "_make_ready": lambda device: None,
                            "_current_stream": lambda: types.SimpleNamespace(ptr=0)}.items():
            patch.setattr(launch, name, value)
        module = types.SimpleNamespace(get_function=lambda name: function)
        self.kernel = launch.Kernel(lambda: module, "k", [("n", "int", "value")], {})

    def launch(self, *numbers: int) -> None:
        before, self.before = self.before, lambda: None
        before()
        self.launched.append(ctypes.cast(ctypes.cast(numbers[-2], ctypes.POINTER(ctypes.c_void_p))[0],
                                         ctypes.POINTER(ctypes.c_int))[0])


def test_a_kernel_is_launched_again_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """At any instant: a timer fires somewhere in a loop that does nothing else."""
    driver = Driver(monkeypatch)
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    handler = signal.signal(signal.SIGALRM, raise_interrupt)
    try:
        for i in range(300):
            def launches() -> None:
                while True:
                    driver.kernel((1,), (1,), 1)
            interrupted(launches, 1e-4 + i * 1e-6)
        driver.kernel((1,), (1,), 7)
    finally:
        signal.signal(signal.SIGALRM, handler)
        faulthandler.cancel_dump_traceback_later()
    assert set(driver.launched[:-1]) == {1}
    assert driver.launched[-1] == 7


def test_a_kernel_is_launched_in_the_middle_of_its_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a signal handler, or on another thread: the arguments that wait stay as they are."""
    driver = Driver(monkeypatch)
    driver.before = functools.partial(driver.kernel, (1,), (1,), 2)
    driver.kernel((1,), (1,), 1)
    assert driver.launched == [2, 1]


def main(what: str, kind: str, count: str, device: str = "cpu") -> None:
    faulthandler.enable()
    if what == "sure":
        say_what_is_right(kind, device)
    else:
        found = interrupts(kind, int(count), device) if what == "interrupts" else re_entries(kind, int(count))
        print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
