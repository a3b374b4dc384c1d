"""A learning rate that falls when a measured number stops getting better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..checks import Judge
from ..optimizer import Optimizer

MIN_CHANGE = 1e-8                          # of a rate, as in PyTorch: a smaller change is not made


class Plateau(Judge):
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
        self.min_lr, self.waited = min_lr, 0
        super().__init__(metric, mode)

    def observe(self, value: float) -> bool:
        """Note a value of the metric. Returns whether a rate was made smaller."""
        limit = self.best * (1 - self.sign * self.threshold) if math.isfinite(self.best) else self.best
        if self.sign * value < self.sign * limit:
            self.best, self.waited = float(value), 0
        else:
            self.waited += 1
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

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint; the rates are in the optimizer's state."""
        return {**super().state_dict(), "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint. Raises ValueError for another metric or mode."""
        super().load_state_dict(state)
        self.waited = int(state["waited"])
