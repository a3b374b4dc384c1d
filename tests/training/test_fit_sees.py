"""What changes while a training runs, and what its code reads, counts in a compiled training as in a plain one, and in
one that goes on from a checkpoint as in one that was never stopped: the same bits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, data, nn, ops, optim
from minidl.training import fit

X, Y = np.random.default_rng(0).standard_normal((24, 5)).astype("f4"), np.arange(24) % 3
PICTURES = data.Dataset("drawn", "train", np.random.default_rng(0).integers(0, 256, (24, 1, 8, 8), np.uint8), Y)
numbers = {"factor": 1.0}                  # that code below reads


class Scaled(optim.SGD):
    def step(self, rates: optim.Rates | None = None) -> None:
        for group in self.groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad = p.grad * numbers["factor"]
        super().step(rates)


class Cleared(optim.SGD):
    def zero_grad(self) -> None:
        for group in self.groups:
            for p in group["params"]:
                p.grad = None if p.grad is None or numbers["factor"] == 1 else p.grad * 0.5


class Called(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 3)

    def __call__(self, x: Tensor) -> Any:
        return self.inner(x) * numbers["factor"]


class Shifted(data.DataLoader[Any]):
    shift = 0

    def order(self, epoch: int) -> np.ndarray:
        return (np.arange(self.count) + self.shift) % self.count


class Parts:
    """Of a training. change(parts) is called after each epoch, or after step 2."""

    def __init__(self, net: Callable[[], nn.Module] = lambda: nn.Linear(5, 3), kind: Any = optim.SGD,
                 loader: Callable[[], Any] = lambda: data.DataLoader((X, Y), 6)):
        minidl.manual_seed(0)
        numbers["factor"] = 1.0
        self.net, self.train = net(), loader()
        self.optimizer = kind(self.net.parameters(), lr=0.1)
        self.ema, self.other = optim.EMA(self.net, decay=0.9), data.DataLoader((X, Y), 4)

    def run(self, change: Callable[[Parts], object], read: Callable[[Parts], float] | None, within: bool,
            compiled: bool) -> list[bytes]:
        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            return ops.cross_entropy(outputs, targets) * (1 + read(self) if read else 1)

        class Changes:
            def on_step_end(_, step: Any) -> None:
                if within and step.step == 2:
                    change(self)

            def on_epoch_end(_, metrics: Any) -> None:
                if not within:
                    change(self)
        history = fit(self.net, self.optimizer, self.train, self.train if "shift" in vars(type(self.train)) else
                      data.DataLoader(self.train.dataset, 6, shuffle=False), epochs=3, loss=loss, compiled=compiled,
                      callbacks=Changes(), say=None, progress=False)
        lines = [str({name: value for name, value in line.items() if "seconds" not in name and "per" not in name})
                 for line in history]
        return [*(t.numpy().tobytes() for _, t in self.net.named_tensors()), *map(str.encode, lines)]


def half(parts: Parts) -> None:
    numbers["factor"] = 0.5


def pictures(**how: Any) -> dict[str, Any]:
    return {"net": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
            "loader": lambda: data.DataLoader(PICTURES, 6, seed=1, **how)}


def another_group(parts: Parts) -> None:
    if len(parts.optimizer.groups) == 1:
        held = [nn.Parameter(np.ones(3, np.float32))]
        parts.net.extra = held[0]
        parts.optimizer.groups.append(optim.Group({**parts.optimizer.groups[0], "params": held, "lr": 0.01}, optim.SGD))


FLIP = data.Augment(flip=True)
# What Parts are given, what a callback changes, what the loss reads, whether within an epoch.
CASES: dict[str, tuple[dict[str, Any], Callable[[Parts], object], Callable[[Parts], float] | None, bool]] = {
    "an optimizer's step": ({"kind": Scaled}, half, None, False),
    "an optimizer's zero_grad": ({"kind": Cleared}, half, None, False),
    "a net's __call__": ({"net": Called}, half, None, False),
    "an EMA's decay": ({}, lambda parts: setattr(parts.ema, "decay", 0.5), lambda parts: parts.ema.decay, False),
    "a loader's seed": ({}, lambda parts: setattr(parts.train, "seed", 1), lambda parts: parts.train.seed, False),
    "another loader's batch_size": ({}, lambda parts: setattr(parts.other, "batch_size", 2),
                                    lambda parts: parts.other.batch_size, False),
    "a loader's own order": ({"loader": lambda: Shifted((X, Y), 5)},
                             lambda parts: setattr(parts.train, "shift", parts.train.shift + 7), None, False),
    "augment, from now on": (pictures(prefetch=0), lambda parts: setattr(parts.train, "augment", FLIP), None, True),
    "augment, made ahead": (pictures(), lambda parts: setattr(parts.train, "augment", FLIP), None, True),
    "no augment any more": (pictures(augment=FLIP), lambda parts: setattr(parts.train, "augment", None), None, True),
    "one more group": ({}, another_group, None, False), "one more group, within": ({}, another_group, None, True)}


@pytest.mark.parametrize("name", CASES)
def test_a_compiled_training_is_the_plain_one(name: str) -> None:
    given, change, read, within = CASES[name]
    plain, compiled, without = (Parts(**given).run(each, read, within, how) for each, how in (
        (change, False), (change, True), (lambda parts: None, False)))
    assert plain == compiled
    assert plain != without or "group" in name         # the change counts; a new group's rows are not computed with


def test_what_a_step_reads_of_an_ema_counts() -> None:
    ema = optim.EMA(nn.Linear(5, 3), decay=0.5)
    step = minidl.compile(lambda x: x * ema.decay)
    assert [step(Tensor([1.0])).tolist() for _ in range(3)] == [[0.5]] * 3
    ema.decay = 0.25
    assert step(Tensor([1.0])).tolist() == [0.25]


def test_groups_that_come_need_schedules() -> None:
    parts = Parts()
    with pytest.raises(ValueError, match=r"^fit: schedule has 1 schedules but the optimizer has 2 groups now; add or "):
        fit(parts.net, parts.optimizer, parts.train, parts.train, epochs=3, schedule=[optim.constant()], say=None,
            progress=False, callbacks=lambda metrics: another_group(parts))


class Centred(nn.Module):
    """A loss with a mode, and a state that it changes in training."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = minidl.zeros(3)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.training:
            with minidl.no_grad():
                self.centre[...] = self.centre * 0.9 + outputs.mean(axis=0) * 0.1
        return ops.cross_entropy(outputs - self.centre, targets)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("what", ["the loss", "the net", "a layer"])
def test_evaluation_that_a_callback_began_goes_on(what: str, compiled: bool, tmp_path: Path) -> None:
    """Within an epoch, after a stop; the net and the loss were in training again."""
    def run(folder: Path, *stops: int) -> list[bytes]:
        for stop in stops:
            minidl.manual_seed(0)
            net, loss = nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5)), Centred()
            modules: dict[str, nn.Module] = {"the loss": loss, "the net": net, "a layer": net[1]}

            class Stops:
                def on_step_end(self, step: Any, stop: int = stop, modules: dict[str, nn.Module] = modules) -> None:
                    if step.step == 5:
                        modules[what].eval()
                    if step.step == stop:
                        raise RuntimeError("stop")
            with suppress(RuntimeError):
                fit(net, optim.SGD(net.parameters(), lr=0.1), *[data.DataLoader((X, Y), 6)] * 2, epochs=3, loss=loss,
                    compiled=compiled, callbacks=Stops(), checkpoints=folder, save_every=2, resume=True, say=None,
                    progress=False)
        return [t.numpy().tobytes() for module in (net, loss) for _, t in module.named_tensors()]
    assert run(tmp_path / "once", 0) == run(tmp_path / "again", 7, 0)
