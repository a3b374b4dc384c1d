"""What a training of several ranks does more than that of one: each has its part of the images, all know the sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import data, nn, optim
from ..core import rng
from ..core.tensor import Tensor, mark_changed
from ..distributed import World, by_first, current, start
from ..distributed.world import ask
from .resume import layers_of, set_layers

if TYPE_CHECKING:
    from .callbacks import Callbacks

__all__ = ["added_up", "ask", "by_first", "called", "current", "gathered", "joined", "of_parts", "send", "whole_loss"]

CHOSEN = "batch_size", "drop_last", "seed", "shuffle", "padding", "augment"    # what a callback may set in a loader


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


@contextmanager
def of_parts() -> Iterator[int]:
    """Within this, each rank's loss is its part of a sum, whatever its images are. Gives the number of ranks."""
    world = current()
    world.of_parts = True
    try:
        yield world.size
    finally:
        world.of_parts = False


def send(modules: Iterable[nn.Module]) -> None:
    """Send rank 0's parameters and buffers to all ranks, and which layers are frozen, and which in training."""
    world = current()
    if world.size == 1:
        return
    tensors = []
    for module in modules:
        tensors += [t for _, t in module.named_tensors()]
        if (layers := world.tell(layers_of(module))) != layers_of(module):
            set_layers(module, layers)
    mark_changed(tensors)
    for t in tensors:
        flat = t.data.reshape(-1)          # a copy if it is not contiguous
        world.broadcast(flat)
        t.data[...] = flat.reshape(t.shape)


def called(callbacks: Callbacks, name: str, given: object, optimizer: optim.Optimizer,
           loaders: Sequence[data.DataLoader], means: Callable[[], object] | None = None) -> bool:
    """Call callbacks on rank 0, for which loaders give whole batches, and return whether they want to stop. All ranks
    then have the numbers that these set in the optimizer's groups and in the loaders, and the same random stream.
    means: what the other ranks do when a callback requests a step's means."""
    def settings() -> tuple[list[dict[str, Any]], list[dict[str, Any]], tuple[int, int]]:
        return ([{entry: value for entry, value in dict.items(group) if entry != "params"}
                 for group in optimizer.groups],
                [{entry: value for entry, value in vars(loader).items() if entry in CHOSEN} for loader in loaders],
                rng.get_state())

    def work() -> tuple[bool, Any]:
        before = settings()
        for loader in loaders:
            loader.part = 0, 1
        try:
            stop = getattr(callbacks, name)(given)
        finally:
            for loader in loaders:
                loader.part = world.rank, world.size
        after = settings()
        return bool(stop), None if after == before else after

    if (world := current()).size == 1:
        return bool(getattr(callbacks, name)(given))
    stop, changed = by_first(work, help_=means)
    if changed is not None:
        groups, chosen, state = changed
        rng.set_state(state)
        for group, numbers in zip(optimizer.groups, groups, strict=True):
            for number, value in numbers.items():
                if dict.get(group, number) != value:
                    group[number] = value
        for loader, own in zip(loaders, chosen, strict=True):
            for entry, value in own.items():
                if getattr(loader, entry) != value:
                    setattr(loader, entry, value)
    return stop
