"""Learning rates: schedules, which give a factor of the rate for each step; the rates of a whole schedule, where the
update itself reads them; and rates that fall when a measured number stops getting better."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core.tensor import Tensor
from ..ops.common.geometry import whole
from .checks import Patient, check_number

if TYPE_CHECKING:
    from .optimizer import Optimizer

Schedule = Callable[[int], float]


def constant() -> Schedule:
    """1 at every step.

    >>> constant()(17)
    1.0
    """
    return lambda step: 1.0


def step(every: int, gamma: float = 0.1) -> Schedule:
    """gamma to the power floor(step / every).

    >>> [step(2, 0.5)(i) for i in range(4)]
    [1.0, 1.0, 0.5, 0.5]
    """
    every = whole("step", "every", every, 1)
    check_number("step", "gamma", gamma)
    return lambda i: float(gamma ** (i // every))


def linear(total: int, end: float = 0.0) -> Schedule:
    """A straight line from 1 at step 0 to `end` at step `total`, constant afterwards.

    >>> [linear(4)(i) for i in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    total = whole("linear", "total", total, 1)
    check_number("linear", "end", end)
    return lambda i: 1.0 + (end - 1.0) * min(i / total, 1.0)


def cosine(total: int, end: float = 0.0) -> Schedule:
    """Half a cosine wave from 1 at step 0 to `end` at step `total` (Loshchilov and Hutter 2017, eq. 5).

    >>> round(cosine(4)(2), 3)
    0.5
    """
    total = whole("cosine", "total", total, 1)
    check_number("cosine", "end", end)
    return lambda i: end + (1.0 - end) * (1.0 + math.cos(math.pi * min(i / total, 1.0))) / 2.0


def warmup(steps: int, after: Schedule) -> Schedule:
    """Rise from 1/steps to 1 over the first `steps` steps, then follow `after`, counted from there.

    >>> [warmup(2, constant())(i) for i in range(3)]
    [0.5, 1.0, 1.0]
    """
    steps = whole("warmup", "steps", steps, 1)
    return lambda i: (i + 1) / steps if i < steps else after(i - steps)


def one_cycle(total: int, rise: float = 0.3, start: float = 1 / 25, end: float = 1 / 25e4) -> Schedule:
    """Rise from `start` to 1, the highest rate, over the share `rise` of `total` steps, then fall to `end`, both as
    half a cosine wave (Smith and Topin 2018). As PyTorch's OneCycleLR without a cycle of momentum: start = 1 /
    div_factor, end = start / final_div_factor. The peak is at step rise * total - 1; if that is not whole, no step has
    the highest rate.

    >>> [round(one_cycle(10)(i), 2) for i in range(11)]
    [0.04, 0.52, 1.0, 0.95, 0.81, 0.61, 0.39, 0.19, 0.05, 0.0, 0.0]
    """
    total = whole("one_cycle", "total", total, 1)
    check_number("one_cycle", "start", start)
    check_number("one_cycle", "end", end)
    if not 0 <= rise <= 1:
        raise ValueError(f"one_cycle: rise is {rise!r} but must be a share from 0 to 1")
    peak, last = float(rise * total) - 1, total - 1        # the peak may be between two steps

    def factor(i: int) -> float:
        first, second, begin, finish = (start, 1.0, 0.0, peak) if i <= peak else (1.0, end, peak, last)
        part = min((i - begin) / (finish - begin), 1.0) if finish > begin else 1.0
        return second + (first - second) * (1.0 + math.cos(math.pi * part)) / 2.0
    return factor


def factor_at(schedule: Schedule, step: int) -> float:
    """The factor that a schedule, maybe a user's own, gives for a step. Raises ValueError for what cannot be one."""
    factor = schedule(step)
    check_number(f"schedule, step {step}", "factor of the rate", factor)
    return float(factor)


def _warmup_cosine(total: int) -> Schedule:
    steps = max(1, total // 20)
    return warmup(steps, cosine(max(1, total - steps)))


# What train.py offers: name -> the schedule of a training of `total` steps.
SCHEDULES: dict[str, Callable[[int], Schedule]] = {
    "constant": lambda total: constant(),
    "step": lambda total: step(max(1, math.ceil(total / 3))),
    "linear": linear,
    "cosine": cosine,
    "warmup-cosine": _warmup_cosine,
    "one-cycle": one_cycle,
}


def schedule(name: str, total: int) -> Schedule:
    """The named schedule over `total` steps. Raises ValueError for an unknown name.

    "step" divides the rate by 10 after each third; "warmup-cosine" rises over the first twentieth.

    >>> schedule("linear", 10)(5)
    0.5
    """
    if name not in tuple(SCHEDULES):
        raise ValueError(f"schedule: {name!r} is not one of {', '.join(SCHEDULES)}")
    return SCHEDULES[name](max(1, total))


# ---------------------------------------------------------------- of a whole schedule
class Rates(NamedTuple):
    """The learning rates of a whole schedule, on the parameters' device, where the update itself reads them.

    table: float64 (groups, steps). position: int64 (1 or more,); the rates of a step are table[:, position[0]]. It
    counts from 0, as `data.DeviceBatches.position` does.
    """

    table: Tensor
    position: Tensor


def check_rates(name: str, rates: object, groups: int) -> None:
    """Refuse what is not the rates of `groups` groups, for the optimizer of this name."""
    if not isinstance(rates, Rates):
        raise TypeError(f"{name}.step: rates is a {type(rates).__name__} but must be an optim.Rates(table, position); "
                        "for a number, set lr")
    for what, t, dtype, axes in (("table", rates.table, np.float64, 2), ("position", rates.position, np.int64, 1)):
        if not isinstance(t, Tensor) or t.dtype != dtype or t.ndim != axes or t.size == 0:
            given = f"a {type(t).__name__}" if not isinstance(t, Tensor) else f"{t.dtype} of shape {t.shape}"
            raise ValueError(f"{name}.step: the rates' {what} is {given} but must be a Tensor of {np.dtype(dtype)}: "
                             "table (groups, steps), position (1 or more,)")
    if rates.table.shape[0] != groups:
        raise ValueError(f"{name}.step: the rates' table has shape {rates.table.shape} but there are {groups} "
                         "parameter groups; give a row to each")


# ---------------------------------------------------------------- by a measured number
MIN_CHANGE = 1e-8                          # of a rate, as in PyTorch: a smaller change is not made


class Plateau(Patient):
    """Multiply an optimizer's rates by a factor when a metric has not become better for more than `patience` epochs.

    metric: which of an epoch's metrics counts. mode: "min" if lower is better, below best * (1 - threshold);
    "max" if higher is better, above best * (1 + threshold); the names of a loss and an accuracy say which. No rate is
    made smaller than min_lr, and none is raised to it. As a callback of `training.fit` it observes each epoch, and
    goes on from a checkpoint; by hand, call `observe`. PyTorch's ReduceLROnPlateau does the same, with these defaults.

    Raises ValueError for a factor that is not from 0 to below 1, patience that is not an int of at least 0, and
    thresholds or rates below 0, also if they are set later; and for a metric of another name without a mode.

    >>> from minidl import Tensor, optim
    >>> sgd = optim.SGD([Tensor([1.0], requires_grad=True)], lr=0.1)
    >>> plateau = Plateau(sgd, factor=0.5, patience=1)
    >>> for loss in (3.0, 2.0, 2.0, 2.5, 1.0):
    ...     plateau.observe(loss), sgd.lr
    (False, 0.1)
    (False, 0.1)
    (False, 0.1)
    (True, 0.05)
    (False, 0.05)
    """

    def __init__(self, optimizer: Optimizer, factor: float = 0.1, patience: int = 10, threshold: float = 1e-4,
                 min_lr: float = 0.0, metric: str = "test_loss", mode: str | None = None):
        if not hasattr(optimizer, "groups"):
            raise TypeError(f"Plateau: optimizer is a {type(optimizer).__name__} but must be one of minidl.optim; call "
                            "Plateau(optimizer, ...)")
        self.optimizer, self.factor, self.patience, self.threshold = optimizer, factor, patience, threshold
        self.min_lr = min_lr
        super().__init__(metric, mode)

    def observe(self, value: float) -> bool:
        """Note a value of the metric. Returns whether a rate was made smaller."""
        limit = self.best * (1 - self.sign * self.threshold) if math.isfinite(self.best) else self.best
        self.note(value, limit)
        if self.waited <= self.patience:
            return False
        self.waited, smaller = 0, False
        for group in self.optimizer.groups:
            lr = max(group["lr"] * self.factor, self.min_lr)
            if group["lr"] - lr > MIN_CHANGE:
                group["lr"], smaller = lr, True
        return smaller

    def on_epoch_end(self, metrics: Mapping[str, Any]) -> None:
        """As a callback of `training.fit`: observe. Raises ValueError for a metric that an epoch does not have."""
        self.observe(self.judged(metrics))
