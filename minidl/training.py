"""The loop behind train.py, usable from Python: fit, evaluate, and the folder that a run leaves behind."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from . import nn, ops, optim
from .compile import compile
from .tensor import Tensor, no_grad

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


def compiled_step(model: nn.Module, optimizer: optim.SGD) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """`train_step` as a compiled step: (images, labels) -> (mean loss, count right), Tensors on the model's device.

    The update is made whatever the loss is: look at it afterwards.
    """
    @compile
    def step(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        logits = model(images)
        loss = ops.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        return loss, ops.eq(ops.argmax(logits, axis=1), labels).sum()
    return step


def _right(logits: Tensor, labels: Any) -> int:
    return int(np.sum(logits.argmax(axis=1).numpy() == Tensor(labels).numpy()))


def evaluate(model: nn.Module, batches: Iterable[tuple[Any, Any]]) -> tuple[float, float]:
    """(mean loss, share right in [0, 1]) over batches of (images, labels), in evaluation mode, off the tape.

    Raises ValueError where there is no image; FloatingPointError where the loss is not finite.
    """
    was_training = model.training
    model.eval()
    total, right, count = 0.0, 0, 0
    try:
        with no_grad():
            for images, labels in batches:
                logits = model(Tensor(images))
                total += float(ops.cross_entropy(logits, labels, reduction="sum"))
                right += _right(logits, labels)
                count += len(labels)
    finally:
        model.train(was_training)
    if not count:
        raise ValueError("evaluate: got 0 images but needs at least 1")
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

    def update(self, images: int, loss: float | None = None, accuracy: float = 0.0) -> None:
        if loss is not None:
            self.bar.set_postfix(loss=f"{loss:.4f}", accuracy=f"{100 * accuracy:.2f} %", refresh=False)
        self.bar.update(images)

    def close(self) -> None:
        self.bar.close()


def fit(model: nn.Module, optimizer: optim.SGD, train: Any, test: Any, *, epochs: int,
        schedule: optim.Schedule | None = None, progress: bool = False, compiled: bool = False,
        on_epoch: Callable[[Metrics], None] | None = None) -> list[Metrics]:
    """Train for a number of epochs and evaluate on the test set after each.

    train, test: `data.DataLoader`s. schedule: step -> factor of the learning rate that each of the optimizer's
    groups has on entry. compiled: replay the step with `minidl.compile`, and read losses once an epoch, so that the
    host does not wait for the device; a loss that is not finite is then seen at the epoch's end. on_epoch: called with
    each epoch's metrics: epoch, step, lr, train_loss, train_accuracy, test_loss, test_accuracy (shares in [0, 1]),
    seconds (training and evaluation) and images_per_second (training alone). Returns all of them.

    Raises ValueError for a negative number of epochs; FloatingPointError, naming epoch and step, where the
    loss is not finite.
    """
    if not isinstance(epochs, int) or epochs < 0:
        raise ValueError(f"fit: epochs is {epochs!r} but must be an int of at least 0")
    rates = [group["lr"] for group in optimizer.groups]
    try:
        step = _Replayed(model, optimizer) if compiled else _Plain(model, optimizer)
        return _fit(model, step, train, test, epochs, schedule or optim.constant(), rates, progress, on_epoch)
    finally:
        _set_rates(optimizer, rates, 1.0)


class _Plain:
    """Steps that are looked at one by one: what they have summed up to is known at any time."""

    def __init__(self, model: nn.Module, optimizer: optim.SGD):
        self.model, self.optimizer = model, optimizer
        self.loss, self.right = 0.0, 0

    def __call__(self, images: Any, labels: Any) -> None:
        loss, hits = train_step(self.model, self.optimizer, Tensor(images), labels)
        self.loss, self.right = self.loss + loss * len(labels), self.right + hits

    def sums(self) -> tuple[float, int]:
        """(loss summed over images, count right) since the last look."""
        sums, self.loss, self.right = (self.loss, self.right), 0.0, 0
        return sums


class _Replayed:
    """Compiled steps, which are looked at together."""

    def __init__(self, model: nn.Module, optimizer: optim.SGD):
        self.step, self.optimizer = compiled_step(model, optimizer), optimizer
        self.queued: list[tuple[Tensor, Tensor, int]] = []

    def __call__(self, images: Any, labels: Any) -> None:
        self.queued.append((*self.step(Tensor(images), Tensor(labels)), len(labels)))

    def sums(self) -> tuple[float, int]:
        losses, rights, counts = zip(*self.queued, strict=True)
        self.queued = []
        loss = float(np.dot(_values(losses), counts))
        if not math.isfinite(loss):
            raise FloatingPointError(f"training: a loss of this epoch is not finite (learning rate now "
                                     f"{self.optimizer.lr:g}); use a smaller learning rate")
        return loss, int(_values(rights).sum())


def _values(numbers: Iterable[Tensor]) -> np.ndarray:
    """Single numbers, brought to the host together."""
    return ops.concatenate([number.reshape(1) for number in numbers]).numpy()


def _fit(model: nn.Module, run: _Plain | _Replayed, train: Any, test: Any, epochs: int, schedule: optim.Schedule,
         rates: list[float], progress: bool, on_epoch: Callable[[Metrics], None] | None) -> list[Metrics]:
    step, history, optimizer = 0, [], run.optimizer
    for epoch in range(1, epochs + 1):
        model.train()
        train.set_epoch(epoch - 1)
        bar = Progress(f"epoch {epoch}/{epochs}", train.images_per_epoch, progress)
        count, start = 0, time.perf_counter()
        try:
            for images, labels in train:
                _set_rates(optimizer, rates, schedule(step))
                run(images, labels)
                step, count = step + 1, count + len(labels)
                if isinstance(run, _Plain):
                    bar.update(len(labels), run.loss / count, run.right / count)
                else:
                    bar.update(len(labels))
            total, right = run.sums()
        except FloatingPointError as error:
            raise FloatingPointError(f"{error} (epoch {epoch}, step {step + 1})") from None
        finally:
            bar.close()
        trained = time.perf_counter() - start
        test_loss, test_accuracy = evaluate(model, test)
        metrics = {"epoch": epoch, "step": step, "lr": optimizer.lr,
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
    """The folder of one run: config.json at its start, a line of metrics.jsonl an epoch, weights.h5.

    Raises OSError where the folder cannot be made or written, and ValueError where it holds a run already.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        if any((self.path / name).exists() for name in ("config.json", "metrics.jsonl", "weights.h5")):
            raise ValueError(f"run folder: {self.path} holds an earlier run already; name another folder or "
                             "remove that one")
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "metrics.jsonl").touch()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(f"run folder: {self.path} cannot be written ({error.strerror}); name another with "
                          "--output-dir") from None

    @property
    def weights(self) -> Path:
        return self.path / "weights.h5"

    def write_config(self, config: dict[str, Any]) -> None:
        """Write config.json, whole or not at all."""
        part = self.path / ".config.json.part"
        with self._writing():
            part.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            os.replace(part, self.path / "config.json")

    def append_metrics(self, metrics: Metrics) -> None:
        """Add one line to metrics.jsonl."""
        with self._writing(), open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(metrics, allow_nan=False) + "\n")
