"""The loop behind train.py, usable from Python: fit, and evaluate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import data, nn, ops, optim
from ..compiler import CompileError, compile
from ..device import to_device
from ..mode import no_grad
from ..tensor import Tensor
from .metrics import Metrics, Progress, RunningMetrics, right_answers


def train_step(model: nn.Module, optimizer: optim.SGD, images: Tensor, labels: Tensor | np.ndarray | list[int],
               rates: optim.Rates | None = None) -> tuple[float, int]:
    """One update of all parameters on one batch: images (n,c,h,w), labels (n,) -> (mean loss, count right).

    rates: as `optim.SGD.step` takes them. Raises FloatingPointError where the loss is not finite; the parameters are
    then as they were.
    """
    optimizer.zero_grad()
    logits = model(images)
    loss = ops.cross_entropy(logits, labels)
    value = float(loss)
    if not math.isfinite(value):
        lr = optimizer.lr if rates is None else rates.table.numpy()[0, int(rates.position.numpy()[0])]
        raise FloatingPointError(f"training: the loss is {value} (learning rate {lr:g}); use a smaller learning rate")
    loss.backward()
    optimizer.step(rates)
    return value, right_answers(logits, labels)


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
        raise FloatingPointError(f"evaluate: the test loss is {total / count}; the parameters are unusable, train with "
                                 "a smaller learning rate")
    return total / count, right / count


def fit(model: nn.Module, optimizer: optim.SGD, train: data.DataLoader, test: data.DataLoader, *, epochs: int,
        schedule: optim.Schedule | None = None, progress: bool = False, compiled: bool | None = None,
        on_epoch: Callable[[Metrics], None] | None = None) -> list[Metrics]:
    """Train for a number of epochs and evaluate on the test set after each.

    train, test: `data.DataLoader`s. schedule: step -> factor of the learning rate that each of the optimizer's
    groups has at the start of the step's epoch; fit does not set it. compiled: replay the step, and that of the
    evaluation, with `minidl.compile`, with batches, rates and metrics on the device, so that an epoch runs without
    waiting for the host; a loss that is not finite is then seen at the epoch's end. None: on a CUDA device alone, and
    with loaders that do not make their batches in a way of their own (another `__iter__`), which compiled=True refuses.
    on_epoch: called with each epoch's metrics: epoch, step, lr, train_loss, train_accuracy, test_loss, test_accuracy
    (shares in [0, 1]), seconds (training and evaluation) and images_per_second (training alone). Returns all of them.

    Raises ValueError for a negative number of epochs; FloatingPointError, naming epoch and step, where the
    loss is not finite; TypeError for loaders, an optimizer or a schedule of another kind; CompileError for a model that
    cannot be compiled: pass compiled=False.
    """
    _check_fit(optimizer, train, test, epochs, schedule)
    if compiled is None:
        compiled = train.device == "cuda" and data.own_batches(train) is None
    kind = _Compiled if compiled else _Plain
    return _fit(model, kind(model, optimizer, train, test), epochs, schedule or optim.constant(), progress, on_epoch)


def _check_fit(optimizer: object, train: object, test: object, epochs: object, schedule: object) -> None:
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

    def __init__(self, model: nn.Module, optimizer: optim.SGD, train: data.DataLoader, test: data.DataLoader):
        self.model, self.optimizer, self.train, self.test = model, optimizer, train, test
        self.rates = optim.Rates(Tensor(np.zeros((len(optimizer.groups), len(train))), device=train.device),
                                 self.position())

    def position(self) -> Tensor:
        """The number of the step in its epoch, from 0."""
        return Tensor(np.zeros(1, np.int64), device=self.train.device)

    def begin(self, factors: list[float]) -> float:
        """Make an epoch's rates known; returns the last of the first group."""
        rates = np.outer([group["lr"] for group in self.optimizer.groups], factors)
        self.rates.table.data[...] = to_device(rates, self.train.device)
        return float(rates[0, -1])

    def evaluate(self) -> tuple[float, float]:
        """As the function, on the test set."""
        return evaluate(self.model, self.test)

    def epoch(self) -> Iterator[tuple[int, float, int]]:
        """After each step: (images so far, their summed loss, how many of them were right)."""
        count, total, right = 0, 0.0, 0
        for step, (images, labels) in enumerate(self.train):
            self.rates.position.data[...] = step
            loss, hits = train_step(self.model, self.optimizer, Tensor(images), labels, self.rates)
            count, total, right = count + len(labels), total + loss * len(labels), right + hits
            yield count, total, right


def compiled_step(model: nn.Module, optimizer: optim.SGD, batches: data.DeviceBatches, metrics: RunningMetrics,
                  rates: optim.Rates) -> Callable[[int], None]:
    """A compiled step(size): one update on the next of the batches, by its rate, counted by the metrics. It needs
    nothing from the host but to be started."""
    @compile
    def step(size: int) -> None:
        images, labels = batches.next(size)
        optimizer.zero_grad()
        logits = model(images)
        loss = ops.cross_entropy(logits, labels)
        loss.backward()
        metrics.update(loss, logits, labels)
        optimizer.step(rates)
    return step


class _Compiled(_Plain):
    """Compiled steps, which need nothing from the host but to be started, and are looked at together."""

    def __init__(self, model: nn.Module, optimizer: optim.SGD, train: data.DataLoader, test: data.DataLoader):
        for what, loader in (("train", train), ("test", test)):
            if data.own_batches(loader) is not None:
                raise CompileError(f"fit: {what} is a {type(loader).__name__} with a {data.own_batches(loader)} of its "
                                   "own, which compiled steps would not run; pass compiled=False")
        self.batches, tests = data.DeviceBatches(train), data.DeviceBatches(test)
        super().__init__(model, optimizer, train, test)
        metrics = self.metrics = RunningMetrics(train.device)
        self.step = compiled_step(model, optimizer, self.batches, metrics, self.rates)
        self.tests = tests

        @compile
        def look(size: int) -> None:
            images, labels = tests.next(size)
            logits = model(images)
            metrics.update(ops.cross_entropy(logits, labels), logits, labels)
        self.look = look

    def position(self) -> Tensor:
        return self.batches.position

    def evaluate(self) -> tuple[float, float]:
        """As the function, on the test set."""
        with _evaluating(self.model):
            for size in self.tests:
                self.look(size)
        return _means(self.metrics, self.test.images_per_epoch)

    def epoch(self) -> Iterator[tuple[int, float, int]]:
        """As of _Plain, but sums are read after the last step alone: until then they are NaN and 0."""
        count, images = 0, self.train.images_per_epoch
        for size in self.batches:
            self.step(size)
            count += size
            if count < images:
                yield count, math.nan, 0
        total, right = self.metrics.read()
        if not math.isfinite(total):
            lr = self.rates.table.numpy()[0, -1]
            raise FloatingPointError(f"training: a loss of this epoch is not finite (learning rate now {lr:g}); use a "
                                     "smaller learning rate")
        yield count, total, right


def _fit(model: nn.Module, run: _Plain, epochs: int, schedule: optim.Schedule, progress: bool,
         on_epoch: Callable[[Metrics], None] | None) -> list[Metrics]:
    train, step, history = run.train, 0, []
    for epoch in range(1, epochs + 1):
        model.train()
        train.set_epoch(epoch - 1)
        lr = run.begin([schedule(step + i) for i in range(len(train))])
        bar = Progress(f"epoch {epoch}/{epochs}", train.images_per_epoch, progress)
        count, start = 0, time.perf_counter()
        try:
            for so_far, total, right in run.epoch():
                bar.update(so_far - count, total / so_far, right / so_far)
                step, count = step + 1, so_far
        except FloatingPointError as error:
            raise FloatingPointError(f"{error} (epoch {epoch}, step {step + 1})") from None
        finally:
            bar.close()
        trained = time.perf_counter() - start
        test_loss, test_accuracy = run.evaluate()
        metrics = {"epoch": epoch, "step": step, "lr": lr,
                   "train_loss": total / count, "train_accuracy": right / count,
                   "test_loss": test_loss, "test_accuracy": test_accuracy,
                   "seconds": time.perf_counter() - start, "images_per_second": count / trained}
        history.append(metrics)
        if on_epoch:
            on_epoch(metrics)
    return history
