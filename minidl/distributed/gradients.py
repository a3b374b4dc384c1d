"""Gradients of all ranks become their mean: in one flat array, by one call of a primitive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from types import ModuleType
from typing import Any

import numpy as np

from ..core.device import Array
from ..core.mode import mode
from ..core.tensor import Tensor, wrap
from ..ops.common.backend import backend_of
from .world import World, current

Sent = tuple[int, tuple[int, ...], str]    # a gradient: its parameter's number, shape and dtype
SHOWN = 3                                  # a message names at most this many


def average(params: Iterable[Tensor], share: float | Tensor | None = None, world: World | None = None) -> None:
    """Replace each p.grad by its mean over all ranks, between backward() and step(); a compiled step may do it.

    share: the weight of this rank, its images divided by those of the whole step; None: the same on all ranks. It may
    be 0. A Tensor of one number, on all ranks, says how much this rank's loss counts, such as its images or labels; the
    sum over the ranks need not be known beforehand. If all of them are 0, so are the gradients. world: by default that
    of `start`. Parameters without a gradient are left out: on each rank they must be the same, which is compared on the
    CPU. The new gradients are one behind the other in one array. In a world of one nothing happens.

    Raises ValueError for a share that is not from 0 to 1, for a Tensor after batch normalisation over all ranks, which
    counts by images, and on the CPU if ranks have gradients of different parameters.

    >>> w = Tensor([1.0, 2.0], requires_grad=True)
    >>> (w * w).sum().backward(); average([w]); w.grad.tolist()
    [2.0, 4.0]
    """
    world = current() if world is None else world
    share = 1 / world.size if share is None else share
    if not isinstance(share, Tensor) and (not isinstance(share, (int, float)) or not 0 <= share <= 1):
        raise ValueError(f"average: share is {share!r} but must be a number from 0 to 1, this rank's images by those "
                         "of all ranks")
    if world.size == 1:
        return
    by_images, world.by_images = world.by_images, False
    if isinstance(share, Tensor) and by_images:
        raise ValueError("average: share is a Tensor but batch normalisation over all ranks has weighted gradients by "
                         "images; use training.fit, or across_ranks=False in these layers, or, if the loss counts by "
                         "images, give their share as a number")
    if isinstance(params, list):
        mode.recorder.reads(params, what="the list that average is given")
    params = list(params)
    live = {i: p for i, p in enumerate(params) if p.grad is not None}
    on_cpu = bool(params) and params[0].device == "cpu"
    if not live and not on_cpu:
        return
    k = backend_of(*live.values(), *params[:1])
    gradients = [p._grad._data for p in live.values()]  # type: ignore[union-attr]  # live: there is one
    if on_cpu:
        sent = frozenset((i, g.shape, str(g.dtype)) for i, g in zip(live, gradients, strict=True))
        world = _agreed(world, sent)       # type: ignore[assignment]  # it has all that a world has
        gradients = gradients or [k.getitem(k.reshape(params[0]._data, (-1,)), slice(0, 0))]   # to agree all the same
    means = (_weighted(k, gradients, share._data, world) if isinstance(share, Tensor) else
             k.rank_mean(gradients, float(share), world))
    for p, g in zip(live.values(), means, strict=False):
        p.grad = wrap(g)


def _weighted(k: ModuleType, gradients: list[Array], weight: Array, world: World) -> list[Array]:
    """The sum of weight * gradient over the ranks, divided by that of the weights."""
    own = gradients if world.of_parts else [k.mul(g, k.cast(weight, str(g.dtype))) for g in gradients]
    # Of a loss that does not count, some gradients may be 0 * NaN. Others are 0, or what other ranks' losses make them:
    # batch normalisation is by the images of all.
    own = [k.where(k.eq(weight, 0), k.where(k.eq(g, g), g, 0), g) for g in own]
    *sums, total = k.rank_mean([*own, k.reshape(weight, (1,))], None, world)
    total = k.reshape(k.where(k.eq(total, 0), 1, total), ())
    return [k.div(g, k.cast(total, str(g.dtype))) for g in sums]


@dataclass(frozen=True)
class Agreed:
    """A world whose ranks compare what they are about to send: gradients of which parameters, by number, of which
    shapes and dtypes. Different ones would be added without notice, or waited for without end.

    A sum shows it: each rank knows the sum that equal numbers give. `sum` raises ValueError, on all ranks, if they are
    not equal.
    """

    world: World
    sent: frozenset[Sent]

    def __getattr__(self, name: str) -> Any:
        """All else is the world's."""
        return getattr(self.world, name)

    @property
    def number(self) -> float:
        """The number that is to be the same: exact in float64, also if multiplied by the number of ranks."""
        return float(int.from_bytes(blake2b(repr(sorted(self.sent)).encode(), digest_size=5).digest(), "little"))

    def sum(self, flat: Array) -> None:
        """As World.sum."""
        sums = np.array([self.number])
        self.world.sum(sums)
        if sums[0] != self.number * self.size:
            _tell_apart(self.world.gather(self.sent))
        self.world.sum(flat)


_agreed = lru_cache(256)(Agreed)           # a compiled step finds the same object in each run


def _tell_apart(sent: list[frozenset[Sent]]) -> None:
    first = sent[0]
    rank, other = next((rank, each) for rank, each in enumerate(sent) if each != first)
    alone = [f"rank {who} alone has that of {', '.join(f'parameter {i} {shape} {dtype}' for i, shape, dtype in few)}"
             for who, mine, theirs in ((0, first, other), (rank, other, first))
             if (few := sorted(mine - theirs)[:SHOWN])]
    raise ValueError(f"average: the ranks have gradients of other parameters: {'; '.join(alone)}; take the same way "
                     "through the net on all ranks, and freeze the same parameters")
