"""A search for a learning rate: a few steps at rates that grow, and what the loss says of each."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from .. import data, nn, ops, optim
from ..core import rng
from ..core.tensor import mark_changed
from ..data.loader import drawn_apart
from ..habits import told
from ..ops.common.geometry import whole
from ..optim.state import unnamed
from . import ranks
from .loop import Diverged, require_parameters, require_trainer, training, update
from .metrics import Batch, Function, require_functions
from .resume import modules_of, outside

SMOOTHING = 0.9                            # of the losses; its start is corrected as in Adam's averages
WORSE = 4.0                                # times the lowest smoothed loss: the search is over


class RateSearch(NamedTuple):
    """What `find_rate` found: the rate that it advises, the rates that it tried, and the loss at each, smoothed."""

    rate: float
    rates: list[float]
    losses: list[float]


@told
def find_rate(model: nn.Module, optimizer: optim.Optimizer, train: data.DataLoader, *, low: float = 1e-6,
              high: float = 10.0, steps: int = 100, loss: Function = ops.cross_entropy,
              clip: float | None = None) -> RateSearch:
    """Train for some steps at learning rates that grow from low to high, each by the same factor, and tell the losses
    (Smith 2017, section 3.3). It advises a tenth of the rate at which the smoothed loss was lowest. It ends early if
    the loss is more than four times the lowest, or not finite.

    Model, gradients, the optimizer and its parameters, loader and random stream are afterwards as they were. The rates
    are those of the first group; the others keep their ratio to it. loss, clip: as for `fit`. Raises ValueError for
    rates that are not 0 < low < high, for less than 10 steps, for an optimizer that holds none of the model's
    parameters, for a first group whose rate is 0, and if no loss was finite; TypeError for an optimizer, a loader or a
    loss of another kind.
    """
    require_trainer("find_rate", optimizer, train=train)
    require_functions(loss, None, "find_rate")
    require_parameters("find_rate", model, optimizer, loss)
    if clip is not None:
        optim.clip.check_limit("find_rate", "clip", clip)
    if not 0 < low < high < math.inf:
        raise ValueError(f"find_rate: low is {low!r} and high {high!r} but must be numbers with 0 < low < high")
    whole("find_rate", "steps", steps, 10)
    if not optimizer.groups[0]["lr"]:
        raise ValueError("find_rate: the rate of the first group is 0 but must be above, since the others keep their "
                         "ratio to it; set any")
    batches, rates, losses, average = _endless(copy.copy(train)), [], [], 0.0
    modules = modules_of(model, loss)
    with unnamed(optimizer), _restored(optimizer, modules), training(model):
        ranks.send(modules.values(), optimizer)        # as fit will
        shares = [group["lr"] / optimizer.groups[0]["lr"] for group in optimizer.groups]
        for step, rate in enumerate(np.geomspace(low, high, steps).tolist(), 1):
            for group, share in zip(optimizer.groups, shares, strict=True):
                group["lr"] = rate * share
            try:
                mean, *_ = update(model, optimizer, [Batch.of(next(batches))], None, loss, None, clip=clip)
            except Diverged:
                break
            average = SMOOTHING * average + (1 - SMOOTHING) * mean
            rates.append(rate)
            losses.append(average / (1 - SMOOTHING**step))
            if losses[-1] > WORSE * min(losses) > 0:
                break
    if not rates:
        raise ValueError(f"find_rate: the loss at the first rate, {low:g}, is not finite; look at the model, or begin "
                         "lower")
    return RateSearch(rates[int(np.argmin(losses))] / 10, rates, losses)


def _endless(train: data.DataLoader) -> Iterator[object]:
    """The batches of one epoch after the other."""
    epoch = 0
    while True:
        train.set_epoch(epoch)
        yield from drawn_apart(train, epoch)
        epoch += 1


@contextmanager
def _restored(optimizer: optim.Optimizer, modules: dict[str, nn.Module]) -> Iterator[None]:
    """Within this, parameters, buffers, the optimizer and the random stream may change, and gradients begin anew; all
    of it is put back."""
    owners: list[Any] = [optimizer, *modules.values()]
    states, drawn = [each.state_dict() for each in owners], rng.get_state()
    others = [(p, p.data.copy()) for p in outside(optimizer, modules)]
    # The optimizer may hold only some of the parameters, and a backward pass adds to the gradients of all, in place.
    tensors = [t for module in modules.values() for _, t in module.named_tensors()]
    tensors += [p for group in optimizer.groups for p in group["params"]]
    gradients = [(t, t.grad) for t in tensors]
    for t, _ in gradients:
        t.grad = None
    try:
        yield
    finally:
        for each, state in zip(owners, states, strict=True):
            each.load_state_dict(state)
        mark_changed([p for p, _ in others])
        for p, array in others:
            p.data[...] = array
        for t, gradient in gradients:
            t.grad = gradient
        rng.set_state(drawn)
