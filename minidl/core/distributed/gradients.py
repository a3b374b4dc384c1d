"""Gradients of all ranks become their mean: in one flat array, by one call of a primitive."""

from __future__ import annotations

from collections.abc import Iterable

from ...ops.common.backend import backend_of
from ..mode import mode
from ..tensor import Tensor, wrap
from .world import World, current


def average(params: Iterable[Tensor], share: float | Tensor | None = None, world: World | None = None) -> None:
    """Replace each p.grad by its mean over all ranks, between backward() and step(); a compiled step may do it.

    share: the weight of this rank, its images by those of the whole step; None: as all others. It may be 0. A Tensor of
    one number, on all ranks, says how much this rank's loss counts, as its images or labels; it need not be known
    beforehand how much all do. Where they add up to 0, so do the gradients. world:
    that of `start`, unless told. Parameters without a gradient are left out: on each rank they must be the same. The
    new gradients lie one behind the other in one array. In a world of one nothing happens.

    Raises ValueError for a share that is not from 0 to 1.

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
    if isinstance(params, list):
        mode.recorder.holds_items("the list that average is given", params)
    live = [p for p in params if p.grad is not None]
    if not live:
        return
    k = backend_of(*live)
    gradients = [p._grad._data for p in live]  # type: ignore[union-attr]  # live: there is one
    if isinstance(share, Tensor):          # the sum of weight * gradient, by that of the weights
        weight = share._data
        own = [k.where(k.eq(weight, 0), 0, k.mul(g, k.cast(weight, str(g.dtype)))) for g in gradients]
        *sums, total = k.rank_mean([*own, k.reshape(weight, (1,))], None, world)
        total = k.reshape(k.where(k.eq(total, 0), 1, total), ())
        means = [k.div(g, k.cast(total, str(g.dtype))) for g in sums]
    else:
        means = k.rank_mean(gradients, float(share), world)
    for p, g in zip(live, means, strict=True):
        p.grad = mean = wrap(g)
        mode.recorder.made(mean)
