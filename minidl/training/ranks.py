"""What a training of several ranks does more than that of one: each has its part of the images, all know the sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import data, nn, optim
from ..core.tensor import Tensor, mark_changed
from ..distributed import World, by_first, current, start
from ..distributed.world import ask

if TYPE_CHECKING:
    from .callbacks import Callbacks

__all__ = ["added_up", "ask", "by_first", "called", "current", "gathered", "joined", "send", "whole_loss"]


@contextmanager
def joined(*loaders: data.DataLoader) -> Iterator[World]:
    """The world that a launcher has started; within it, loaders give each rank its part of their batches."""
    world = start()
    if world.size == 1:
        yield world
        return
    world.prepare(loaders[0].device)
    for what, loader in zip(("train", "test"), loaders, strict=False):
        if data.own_batches(loader) == "__iter__":
            raise ValueError(f"fit: {what} is a {type(loader).__name__} with an __iter__ of its own, whose batches "
                             f"cannot be shared out among {world.size} ranks; use a data.DataLoader, with a transform")
    before = [loader.part for loader in loaders]
    try:
        for loader in loaders:
            loader.part = world.rank, world.size
        yield world
    finally:
        for loader, part in zip(loaders, before, strict=True):
            loader.part = part


def added_up(numbers: list[float]) -> list[float]:
    """Each number summed over the ranks."""
    world = current()
    if world.size == 1:
        return numbers
    sums = np.array(numbers, np.float64)
    world.sum(sums)
    return sums.tolist()


def gathered(parts: list[Any]) -> list[Any]:
    """For each batch the parts that the ranks have, in the order of ranks."""
    return [part for batch in zip(*current().gather(parts), strict=True) for part in batch]


def whole_loss(loss: Tensor, count: int, weight: Tensor | None) -> tuple[float, int]:
    """(the mean loss of a whole step, how many images it has), from the mean of this rank, which has `count` images.

    weight: how much this mean counts; None: as its images. A mean of nothing is 0.
    """
    counts = count if weight is None else float(weight)
    if current().size == 1:
        return float(loss) if counts or weight is None else 0.0, count
    total, all_, images = added_up([float(loss) * counts if counts else 0.0, counts, count])
    return total / all_ if all_ else 0.0, int(images)


def send(modules: Iterable[nn.Module]) -> None:
    """Send rank 0's parameters and buffers to all ranks."""
    world = current()
    if world.size == 1:
        return
    tensors = [t for module in modules for _, t in module.named_tensors()]
    mark_changed(tensors)
    for t in tensors:
        flat = t.data.reshape(-1)          # a copy if it is not contiguous
        world.broadcast(flat)
        t.data[...] = flat.reshape(t.shape)


def called(callbacks: Callbacks, name: str, given: object, optimizer: optim.Optimizer,
           means: Callable[[], object] | None) -> bool:
    """Call callbacks on rank 0, and return whether they want to stop. All ranks then have the numbers that these set in
    the optimizer's groups. means: what the other ranks do when a callback requests a step's means."""
    def work() -> tuple[bool, list[dict[str, Any]]]:
        return getattr(callbacks, name)(given), [
            {entry: value for entry, value in group.items() if isinstance(value, (bool, int, float, tuple))}
            for group in optimizer.groups]

    if current().size == 1:
        return bool(getattr(callbacks, name)(given))
    stop, groups = by_first(work, help_=means)
    for group, numbers in zip(optimizer.groups, groups, strict=True):
        for number, value in numbers.items():
            if dict.get(group, number) != value:
                group[number] = value
    return stop
