"""The loop behind train.py, usable from Python: fit, evaluate, and the folder that a run leaves behind."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from . import data, nn, ops, optim
from .compile import CompileError, compile
from .device import to_device
from .ops._backend import backend_of
from .tensor import Tensor, mode, no_grad

Metrics = dict[str, Any]


def train_step(model: nn.Module, optimizer: optim.SGD, images: Tensor, labels: Any) -> tuple[float, int]:
    """One update of all parameters on one batch: images (n,c,h,w), labels (n,) -> (mean loss, count right).

    Raises FloatingPointError where the loss is not finite; the parameters are then as they were.
    """
    optimizer.zero_grad()
    logits = model(images)
    loss = ops.cross_entropy(logits, labels)
    value = float(loss)
    if not math.isfinite(value):
        raise FloatingPointError(f"training: the loss is {value} (learning rate {optimizer.lr:g}); use a smaller "
                                 "learning rate")
    loss.backward()
    optimizer.step()
    return value, _right(logits, labels)


class RunningMetrics:
    """The loss and the right answers of many steps, summed where they are computed: no step makes the host wait.

    Call `update` in a step, compiled or not, and `read` when the numbers are wanted. device: "cpu" or "cuda".
    """

    def __init__(self, device: str):
        self.sums = Tensor(np.zeros(2), device=device)

    def update(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Count a batch in: its mean loss (one number), logits (n,classes), labels (n,).

        In a compiled step call it after `loss.backward()`: it keeps calls before it from being fused with later ones.
        Raises ValueError for shapes that do not fit.
        """
        if loss.size != 1 or logits.ndim != 2 or labels.shape != logits.shape[:1]:
            raise ValueError(f"RunningMetrics: loss, logits and labels have shapes {loss.shape}, {logits.shape} and "
                             f"{labels.shape} but must be (), (n, classes) and (n,); pass a batch's mean loss")
        if mode.recorder is not None:
            mode.recorder.seen((self.sums, loss, logits, labels))
        backend_of(logits._data).update_metrics(self.sums._data, loss._data, logits._data, labels._data)

    def read(self) -> tuple[float, int]:
        """(loss summed over images, count right) since the last look."""
        loss, right = self.sums.tolist()
        self.sums.data[...] = 0
        return loss, int(right)


def _right(logits: Tensor, labels: Any) -> int:
    return int(np.sum(logits.argmax(axis=1).numpy() == Tensor(labels).numpy()))


def evaluate(model: nn.Module, batches: Iterable[tuple[Any, Any]]) -> tuple[float, float]:
    """(mean loss, share right in [0, 1]) over batches of (images, labels), in evaluation mode, off the tape.

    Raises ValueError where there is no image; FloatingPointError where the loss is not finite.
    """
    metrics, count = None, 0
    with _evaluating(model):
        for images, labels in batches:
            logits, labels = model(Tensor(images)), Tensor(labels)
            metrics = metrics or RunningMetrics(logits.device)
            metrics.update(ops.cross_entropy(logits, labels), logits, labels)
            count += len(labels)
    return _means(metrics, count)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        with no_grad():
            yield
    finally:
        model.train(was_training)


def _means(metrics: RunningMetrics | None, count: int) -> tuple[float, float]:
    """(mean loss, share right) of so many images."""
    if metrics is None or not count:
        raise ValueError("evaluate: got 0 images but needs at least 1")
    total, right = metrics.read()
    if not math.isfinite(total):
        raise FloatingPointError(f"evaluate: the test loss is {total / count}; the parameters are no use, train with a "
                                 "smaller learning rate")
    return total / count, right / count


class Progress:
    """A tqdm bar an epoch on stderr with loss, accuracy, images/s and time left; silent off a terminal."""

    def __init__(self, title: str, images: int, enabled: bool):
        from tqdm import tqdm

        self.bar = tqdm(total=images, desc=title, unit="image", unit_scale=True, leave=False,
                        disable=None if enabled else True)

    def update(self, images: int, loss: float, accuracy: float) -> None:
        """Count images in, and show loss and accuracy so far, where the loss is known (no NaN)."""
        if not math.isnan(loss):
            self.bar.set_postfix(loss=f"{loss:.4f}", accuracy=f"{100 * accuracy:.2f} %", refresh=False)
        self.bar.update(images)

    def close(self) -> None:
        self.bar.close()


def fit(model: nn.Module, optimizer: optim.SGD, train: Any, test: Any, *, epochs: int,
        schedule: optim.Schedule | None = None, progress: bool = False, compiled: bool | None = None,
        on_epoch: Callable[[Metrics], None] | None = None) -> list[Metrics]:
    """Train for a number of epochs and evaluate on the test set after each.

    train, test: `data.DataLoader`s. schedule: step -> factor of the learning rate that each of the optimizer's
    groups has on entry. compiled: replay the step, and that of the evaluation, with `minidl.compile`, with batches,
    rates and metrics on the device, so that an epoch runs without waiting for the host; a loss that is not finite is
    then seen at the epoch's end. None: on a CUDA device alone, and with loaders that do not make their batches in a way
    of their own (another `__iter__`), which compiled=True refuses. on_epoch: called with each epoch's metrics: epoch,
    step, lr, train_loss, train_accuracy, test_loss, test_accuracy (shares in [0, 1]), seconds (training and evaluation)
    and images_per_second (training alone). Returns all of them.

    Raises ValueError for a negative number of epochs; FloatingPointError, naming epoch and step, where the
    loss is not finite; TypeError for loaders, an optimizer or a schedule of another kind; CompileError for a model that
    cannot be compiled: pass compiled=False.
    """
    _check_fit(optimizer, train, test, epochs, schedule)
    rates = [group["lr"] for group in optimizer.groups]
    if compiled is None:
        compiled = train.device == "cuda" and data.own_batches(train) is None
    kind = _Compiled if compiled else _Plain
    try:
        return _fit(model, kind(model, optimizer, rates, train, test), epochs, schedule or optim.constant(), progress,
                    on_epoch)
    finally:
        _set_rates(optimizer, rates, 1.0)


def _check_fit(optimizer: Any, train: Any, test: Any, epochs: Any, schedule: Any) -> None:
    """Refuse what fit cannot work with, and say what it can."""
    if not isinstance(epochs, int) or epochs < 0:
        raise ValueError(f"fit: epochs is {epochs!r} but must be an int of at least 0")
    if not hasattr(optimizer, "groups"):
        raise TypeError(f"fit: optimizer is a {type(optimizer).__name__} but must be an optim.SGD; with one of your "
                        "own, write the loop: loss.backward(), your update")
    for what, loader in (("train", train), ("test", test)):
        if not all(hasattr(loader, name) for name in ("device", "images_per_epoch", "set_epoch")):
            raise TypeError(f"fit: {what} is a {type(loader).__name__} but must be a data.DataLoader; with other "
                            "batches, write the loop with training.train_step and training.evaluate")
    if schedule is not None and not callable(schedule):
        raise TypeError(f"fit: schedule is {schedule!r} but must be a function of the step; pass "
                        "optim.schedule(name, total)")


class _Plain:
    """Steps that are looked at one by one: what they have summed up to is known at any time."""

    def __init__(self, model: nn.Module, optimizer: optim.SGD, rates: list[float], train: Any, test: Any):
        self.model, self.optimizer, self.rates, self.train, self.test = model, optimizer, rates, train, test

    def evaluate(self) -> tuple[float, float]:
        """As the function, on the test set."""
        return evaluate(self.model, self.test)

    def epoch(self, factors: list[float]) -> Iterator[tuple[int, float, int]]:
        """After each step: (images so far, their summed loss, how many of them were right)."""
        count, total, right = 0, 0.0, 0
        for (images, labels), factor in zip(self.train, factors, strict=True):
            _set_rates(self.optimizer, self.rates, factor)
            loss, hits = train_step(self.model, self.optimizer, Tensor(images), labels)
            count, total, right = count + len(labels), total + loss * len(labels), right + hits
            yield count, total, right


def compiled_step(model: nn.Module, optimizer: optim.SGD, batches: data.DeviceBatches, metrics: RunningMetrics,
                  rates: Tensor) -> Callable[[int], None]:
    """A compiled step(size): one update on the next of the batches, by the rate that `SGD.step` takes for it from the
    table `rates`, counted by the metrics. It needs nothing from the host but to be started."""
    @compile
    def step(size: int) -> None:
        images, labels = batches.next(size)
        optimizer.zero_grad()
        logits = model(images)
        loss = ops.cross_entropy(logits, labels)
        loss.backward()
        metrics.update(loss, logits, labels)
        optimizer.step(rates, batches.position)
    return step


class _Compiled(_Plain):
    """Compiled steps, which need nothing from the host but to be started, and are looked at together."""

    def __init__(self, model: nn.Module, optimizer: optim.SGD, rates: list[float], train: Any, test: Any):
        super().__init__(model, optimizer, rates, train, test)
        for what, loader in (("train", train), ("test", test)):
            if data.own_batches(loader) is not None:
                raise CompileError(f"fit: {what} is a {type(loader).__name__} with a {data.own_batches(loader)} of its "
                                   "own, which compiled steps would not run; pass compiled=False")
        self.batches, tests = data.DeviceBatches(train), data.DeviceBatches(test)
        metrics = self.metrics = RunningMetrics(train.device)
        self.table = Tensor(np.zeros((len(rates), 1 + len(train))), device=train.device)
        self.step = compiled_step(model, optimizer, self.batches, metrics, self.table)
        self.tests = tests

        @compile
        def look(size: int) -> None:
            images, labels = tests.next(size)
            logits = model(images)
            metrics.update(ops.cross_entropy(logits, labels), logits, labels)
        self.look = look

    def evaluate(self) -> tuple[float, float]:
        """As the function, on the test set."""
        with _evaluating(self.model):
            for size in self.tests:
                self.look(size)
        return _means(self.metrics, self.test.images_per_epoch)

    def epoch(self, factors: list[float]) -> Iterator[tuple[int, float, int]]:
        """As of _Plain, but sums are read after the last step alone: until then they are NaN and 0."""
        _set_rates(self.optimizer, self.rates, factors[-1])
        rates = np.outer(self.rates, [0.0, *factors])          # position is 1 in the first step
        self.table.data[...] = to_device(rates, self.train.device)
        count, images = 0, self.train.images_per_epoch
        for size in self.batches:
            self.step(size)
            count += size
            if count < images:
                yield count, math.nan, 0
        total, right = self.metrics.read()
        if not math.isfinite(total):
            raise FloatingPointError(f"training: a loss of this epoch is not finite (learning rate now "
                                     f"{self.optimizer.lr:g}); use a smaller learning rate")
        yield count, total, right


def _fit(model: nn.Module, run: _Plain, epochs: int, schedule: optim.Schedule, progress: bool,
         on_epoch: Callable[[Metrics], None] | None) -> list[Metrics]:
    train, step, history = run.train, 0, []
    for epoch in range(1, epochs + 1):
        model.train()
        train.set_epoch(epoch - 1)
        factors = [schedule(step + i) for i in range(len(train))]
        bar = Progress(f"epoch {epoch}/{epochs}", train.images_per_epoch, progress)
        count, start = 0, time.perf_counter()
        try:
            for so_far, total, right in run.epoch(factors):
                bar.update(so_far - count, total / so_far, right / so_far)
                step, count = step + 1, so_far
        except FloatingPointError as error:
            raise FloatingPointError(f"{error} (epoch {epoch}, step {step + 1})") from None
        finally:
            bar.close()
        trained = time.perf_counter() - start
        test_loss, test_accuracy = run.evaluate()
        metrics = {"epoch": epoch, "step": step, "lr": run.optimizer.lr,
                   "train_loss": total / count, "train_accuracy": right / count,
                   "test_loss": test_loss, "test_accuracy": test_accuracy,
                   "seconds": time.perf_counter() - start, "images_per_second": count / trained}
        history.append(metrics)
        if on_epoch:
            on_epoch(metrics)
    return history


def _set_rates(optimizer: optim.SGD, rates: list[float], factor: float) -> None:
    """Give each parameter group its own rate times a factor."""
    for group, rate in zip(optimizer.groups, rates, strict=True):
        group["lr"] = rate * factor


class RunFolder:
    """The folder of one run: config.json at its start, a line of metrics.jsonl per epoch, weights.h5.

    Two runs never share one: it belongs to whoever makes its metrics.jsonl. Raises OSError where the folder cannot be
    made or written, and ValueError where it holds a run already.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self._mine = False
        with self._undone_if_refused():
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                if any((self.path / name).exists() for name in ("config.json", "weights.h5")):
                    raise FileExistsError
                open(self.path / "metrics.jsonl", "x").close()
                self._mine = True
            except FileExistsError:
                raise ValueError(f"run folder: {self.path} holds an earlier run already; name another folder or "
                                 "remove that one") from None

    @classmethod
    def beside(cls, path: str | os.PathLike[str]) -> RunFolder:
        """A new one, named after `path` and the time."""
        stem = f"{os.fspath(path)}-{time.strftime('%Y%m%d-%H%M%S')}"
        names = (f"{stem}-{i}" if i else stem for i in itertools.count())
        while True:
            with suppress(ValueError):     # another run, begun in the same second, has that name
                return cls(next(names))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(f"run folder: {self.path} cannot be written ({error.strerror}); name another with "
                          "--output-dir") from None

    @contextmanager
    def _undone_if_refused(self) -> Iterator[None]:
        """As `_writing`, for a run that has not begun: nothing is left of a folder that was made for it."""
        try:
            with self._writing():
                yield
        except OSError:
            for name in (".config.json.part", "metrics.jsonl") if self._mine else ():
                with suppress(OSError):
                    (self.path / name).unlink()
            for folder in self._made:
                with suppress(OSError):
                    folder.rmdir()
            raise

    @property
    def weights(self) -> Path:
        return self.path / "weights.h5"

    def write_config(self, config: dict[str, Any]) -> None:
        """Write config.json, whole or not at all."""
        part = self.path / ".config.json.part"
        with self._undone_if_refused():
            part.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            os.replace(part, self.path / "config.json")

    def append_metrics(self, metrics: Metrics) -> None:
        """Add one line to metrics.jsonl, whole or not at all; half a line that a full disk left at its end goes."""
        line = (json.dumps(metrics, allow_nan=False) + "\n").encode()
        with self._writing(), open(self.path / "metrics.jsonl", "a+b", buffering=0) as file:
            file.seek(0)
            end = file.read().rfind(b"\n") + 1
            file.truncate(end)
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise


def read_metrics(folder: str | os.PathLike[str]) -> list[Metrics]:
    """The lines of a run folder's metrics.jsonl. Half a line at its end, of an epoch that was cut short, is left out.

    Raises OSError for a file that cannot be read, ValueError, with its line, for one that holds other things.
    """
    path, found = Path(folder) / "metrics.jsonl", []
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            metrics = json.loads(line)
        except (ValueError, RecursionError):
            metrics = None
        if not isinstance(metrics, dict):
            raise ValueError(f"metrics: line {number} of {path} is {line[:40]!r} but must be an object of JSON; remove "
                             "that line")
        found.append(metrics)
    return found
