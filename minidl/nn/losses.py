"""Losses as layers: the options are set on the layer, which is called with (output, target)."""

from __future__ import annotations

import inspect

import numpy as np

from .. import ops
from ..core.tensor import Tensor
from .module import Module

__all__ = ["BCEWithLogitsLoss", "CrossEntropyLoss", "HuberLoss", "L1Loss", "MSELoss", "NLLLoss"]


class _Loss(Module):
    """A loss with its reduction."""

    def __init__(self, *, reduction: str = "mean"):
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"{type(self).__name__}: reduction {reduction!r} is not one of mean, sum, none")
        self.reduction = reduction

    def extra_repr(self) -> str:
        """The reduction, and the other options that are set: files of a sweep tell losses apart by them."""
        facts = [f"reduction={self.reduction!r}"]
        for name, option in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, option.default)
            if name != "reduction" and repr(value) != repr(option.default):
                facts.append(f"{name}={value.tolist() if isinstance(value, Tensor) else value!r}")
        return ", ".join(facts)


class CrossEntropyLoss(_Loss):
    """`ops.cross_entropy` as a layer, of (logits, labels). Its weight, (classes,), is a buffer."""

    def __init__(self, weight: Tensor | None = None, *, ignore_index: int | None = None, reduction: str = "mean",
                 label_smoothing: float = 0.0):
        super().__init__(reduction=reduction)
        self.weight, self.ignore_index, self.label_smoothing = weight, ignore_index, label_smoothing

    def forward(self, logits: Tensor, labels: Tensor | np.ndarray | list[int]) -> Tensor:
        return ops.cross_entropy(logits, labels, self.weight, reduction=self.reduction,
                                 label_smoothing=self.label_smoothing, ignore_index=self.ignore_index)


class NLLLoss(_Loss):
    """`ops.nll_loss` as a layer, of (log probabilities, labels). Its weight, (classes,), is a buffer."""

    def __init__(self, weight: Tensor | None = None, *, ignore_index: int | None = None, reduction: str = "mean"):
        super().__init__(reduction=reduction)
        self.weight, self.ignore_index = weight, ignore_index

    def forward(self, log_p: Tensor, labels: Tensor | np.ndarray | list[int]) -> Tensor:
        return ops.nll_loss(log_p, labels, self.weight, reduction=self.reduction, ignore_index=self.ignore_index)


class BCEWithLogitsLoss(_Loss):
    """`ops.binary_cross_entropy_with_logits` as a layer, of (logits, target). Its pos_weight is a buffer."""

    def __init__(self, *, pos_weight: Tensor | None = None, reduction: str = "mean"):
        super().__init__(reduction=reduction)
        self.pos_weight = pos_weight

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.binary_cross_entropy_with_logits(x, target, reduction=self.reduction, pos_weight=self.pos_weight)


class MSELoss(_Loss):
    """`ops.mse_loss` as a layer, of (x, target)."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.mse_loss(x, target, reduction=self.reduction)


class L1Loss(_Loss):
    """`ops.l1_loss` as a layer, of (x, target)."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.l1_loss(x, target, reduction=self.reduction)


class HuberLoss(_Loss):
    """`ops.huber_loss` as a layer, of (x, target). Raises ValueError for a delta that is not above 0."""

    def __init__(self, *, reduction: str = "mean", delta: float = 1.0):
        super().__init__(reduction=reduction)
        if not delta > 0:
            raise ValueError(f"HuberLoss: delta is {delta!r} but must be above 0")
        self.delta = delta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.huber_loss(x, target, reduction=self.reduction, delta=self.delta)
