"""Losses of pairs and of log probabilities on NumPy arrays."""

from __future__ import annotations

import numpy as np

from ...common.curves import LOSSES
from ...common.primitives import Array
from ..parallel import elementwise
from ..reduce import mean, sum
from .loss import places

__all__ = ["nll", "nll_grad_x", "pair_loss", "pair_loss_grad_target", "pair_loss_grad_x"]


# ---------------------------------------------------------------- of pairs
def pair_loss(x: Array, target: Array, loss: str, number: float, reduction: str) -> Array:
    """A row of LOSSES of x and target, of one shape: reduced, or of that shape for "none"."""
    y = elementwise(lambda y, t, x: LOSSES[loss].value(y, x, t, number), target, x)
    axes = tuple(range(y.ndim))
    return y if reduction == "none" else sum(y, axes) if reduction == "sum" else mean(y, axes)


def _derivative(name: str, gy: Array, x: Array, target: Array, loss: str, number: float, reduction: str) -> Array:
    share = gy / max(1, x.size) if reduction == "mean" else gy
    fill = getattr(LOSSES[loss], name)

    def work(gx: Array, *given: Array) -> None:
        fill(gx, given[-1], given[-2], number)
        gx *= given[0] if len(given) == 3 else share
    return elementwise(work, *([gy] if reduction == "none" else []), target, x)


def pair_loss_grad_x(gy: Array, x: Array, target: Array, loss: str, number: float, reduction: str) -> Array:
    """gy of x's shape for "none", else one number."""
    return _derivative("derivative_x", gy, x, target, loss, number, reduction)


def pair_loss_grad_target(gy: Array, x: Array, target: Array, loss: str, number: float, reduction: str) -> Array:
    return _derivative("derivative_target", gy, x, target, loss, number, reduction)


# ---------------------------------------------------------------- of log probabilities
def _targets(labels: Array, weight: Array | None, ignored: int | None,
             dtype: np.dtype) -> tuple[Array, Array | float, Array | float]:
    """For each row: its label, or 0 if it is ignored; whether it counts; and its label's weight if it does. A plain 1.0
    means 1 for all rows."""
    counts: Array | float = 1.0 if ignored is None else (labels != ignored).astype(dtype)
    at = labels if ignored is None else np.where(labels != ignored, labels, 0)
    return at, counts, counts if weight is None else counts * weight[at]


def _times(target: Array | float, x: Array) -> Array:
    """target * x, and 0 where the target is 0, whatever x is there: log probabilities may be infinite."""
    if isinstance(target, float) and target != 0:
        return target * x
    return np.where(target == 0, 0, target * np.where(target == 0, 0, x))


def nll(log_p: Array, labels: Array, weight: Array | None, reduction: str, smoothing: float,
        ignored: int | None) -> tuple[Array, Array]:
    """(loss, total): -(sum over classes of target * log_p) of each row, reduced; log_p (n,classes), labels (n,), weight
    (classes,).

    A row's target is (1 - s) weight[label] on its label plus s / classes times each class's weight; 0 everywhere if
    the label is ignored. "mean" divides by total, the sum of weight[label]; if that is 0, it is NaN.
    """
    n, classes = log_p.shape
    at, counts, of_label = _targets(labels, weight, ignored, log_p.dtype)
    of_rows = log_p.reshape(-1)[places(at, classes)] if log_p.flags.c_contiguous else log_p[np.arange(n), at]
    losses = -_times(of_label * (1 - smoothing), of_rows)
    if smoothing:
        spread = np.reshape(counts * (smoothing / max(1, classes)), (-1, 1)) * (1 if weight is None else weight)
        losses -= np.sum(_times(spread, log_p), axis=1)
    total = log_p.dtype.type(n) if isinstance(of_label, float) else np.sum(of_label)
    loss = losses if reduction == "none" else losses.sum()
    if reduction == "mean":
        loss = loss / total if total != 0 else np.full_like(total, np.nan)
    return np.asarray(loss), np.asarray(total)


def nll_grad_x(gy: Array, classes: int, labels: Array, weight: Array | None, total: Array, reduction: str,
               smoothing: float, ignored: int | None) -> Array:
    """-target * gy; a mean of nothing has no gradient. gy (n,) for "none", else one number."""
    n = len(labels)
    at, counts, of_label = _targets(labels, weight, ignored, gy.dtype)
    each = gy
    if reduction == "mean":
        each = gy / total if total != 0 else np.zeros_like(gy)
    gx = np.zeros((n, classes), gy.dtype)
    if smoothing:
        spread = _times(counts * (smoothing / max(1, classes)), each)
        gx -= np.reshape(spread, (-1, 1)) * (1 if weight is None else weight)
    gx.reshape(-1)[places(at, classes)] -= _times(of_label * (1 - smoothing), each)
    return gx
