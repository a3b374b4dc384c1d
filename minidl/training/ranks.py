"""What a training of several ranks does more than that of one: each has its part of the images, all know the sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import data, nn, optim
from ..compiler.reads.facts import is_plain, same
from ..core import rng
from ..core.tensor import Tensor, mark_changed
from ..distributed import World, by_first, current, start
from ..distributed.world import alone, ask, joined_as
from .resume import layers_of, set_layers

if TYPE_CHECKING:
    from .callbacks import Callbacks
    from .loop import _Plain

__all__ = ["added_up", "ask", "by_first", "called", "current", "gathered", "joined", "joined_as", "of_parts", "send",
           "whole_loss"]

CHOSEN = "batch_size", "drop_last", "seed", "shuffle", "padding", "augment"    # what decides a loader's batches


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


def require_same(run: _Plain, epochs: int) -> None:
    """Refuse data, numbers of the loaders and of the optimizer, and epochs that are not the same on all ranks."""
    if current().size == 1:
        return
    loaders = [(len(loader), *(getattr(loader, name) for name in CHOSEN)) for loader in (run.train, run.test)]
    first, *others = current().gather((run.contents, epochs, run.accumulate, loaders,
                                       _numbers(run.optimizer.groups)))
    if wrong := [rank for rank, each in enumerate(others, 1) if each != first]:
        raise ValueError(f"fit: rank {wrong[0]} has other data, or other numbers of its loaders, its optimizer or "
                         "epochs, than rank 0; give all ranks the same: fit gives each its part of every batch")


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
def of_parts(images: int = 0) -> Iterator[int]:
    """Within this, each rank's loss is its part of a sum, whatever its images are. images: how many all ranks have, if
    that is known. Gives the number of ranks."""
    world = current()
    world.of_parts, world.images = True, images
    try:
        yield world.size
    finally:
        world.of_parts, world.images = False, 0


def send(modules: Iterable[nn.Module], optimizer: optim.Optimizer) -> None:
    """Send rank 0's parameters and buffers to all ranks, what its optimizer keeps, and which layers are frozen, and
    which in training."""
    world = current()
    if world.size == 1:
        return
    tensors = [p for group in optimizer.groups for p in group["params"]]
    for module in modules:
        tensors += [t for _, t in module.named_tensors()]
        if (layers := world.tell(mine := layers_of(module))) != mine:
            set_layers(module, layers)
    tensors = [*dict.fromkeys(tensors)]
    mark_changed(tensors)
    kept = [(each, name, p) for each in getattr(optimizer, "optimizers", (optimizer,))
            for name in getattr(each, "_kept", ()) for p in each._parameters()]
    arrays = [t.data for t in tensors]
    for (each, name, p), there in zip(kept, world.tell([each._kept[name].get(p) is not None for each, name, p in kept]),
                                      strict=True):
        if there:
            arrays.append(each._array(name, p))
        else:
            each._kept[name].pop(p)
    for kind in dict.fromkeys((type(array), array.dtype) for array in arrays):
        alike, begin = [array for array in arrays if (type(array), array.dtype) == kind], 0
        flat = np.concatenate([array.reshape(-1) for array in alike])
        world.broadcast(flat)
        for array in alike if world.rank else ():
            array[...] = flat[begin:begin + array.size].reshape(array.shape)
            begin += array.size


def _things(run: _Plain) -> list[Any]:
    """What callbacks may set numbers of."""
    loaders = run.train, run.test
    return [*run.optimizer.groups, *loaders, *(module for each in run.modules.values()
                                               for _, module in each.named_modules()),
            *(each for each in (run.loss, *(loader.transform for loader in loaders)) if hasattr(each, "__dict__"))]


def _numbers(things: list[Any]) -> list[dict[str, Any]]:
    """The numbers, texts and flags of these, and tuples of them."""
    def is_number(value: object) -> bool:
        return all(map(is_plain, value)) if isinstance(value, tuple) else is_plain(value)
    return [{name: value for name, value in dict.items(thing if isinstance(thing, dict) else vars(thing))
             if name != "part" and name[0] != "_" and is_number(value)} for thing in things]


def called(callbacks: Callbacks, name: str, given: object, run: _Plain, means: Callable[[], object] | None = None,
           free: bool = True) -> bool:
    """Call callbacks on rank 0, which is a process of its own meanwhile, with whole batches. Returns whether they want
    to stop. free: they may change something. All ranks then have what `send` sends, the same random stream, and the
    numbers that were set in the optimizer's groups, loaders, layers, the loss and transforms. means: what the other
    ranks do when a callback requests a step's means."""
    def work() -> tuple[bool, Any]:
        things, loaders = _things(run) if free else [], (run.train, run.test)
        before = _numbers(things)
        for loader in loaders:
            loader.part = 0, 1
        try:
            with alone() if free else nullcontext():
                stop = getattr(callbacks, name)(given)
        finally:
            for loader in loaders:
                loader.part = world.rank, world.size
        changed = [{entry: value for entry, value in now.items() if entry not in then or not same(then[entry], value)}
                   for then, now in zip(before, _numbers(things), strict=True)]
        return bool(stop), (changed, rng.get_state()) if free else None

    if (world := current()).size == 1:
        return bool(getattr(callbacks, name)(given))
    stop, found = by_first(work, help_=means)
    if found is not None:
        numbers, state = found
        rng.set_state(state)
        for thing, own in zip(_things(run), numbers, strict=True):
            for entry, value in own.items():
                if isinstance(thing, dict):
                    thing[entry] = value
                else:
                    setattr(thing, entry, value)
        send(run.modules.values(), run.optimizer)
    return stop
