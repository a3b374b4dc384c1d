"""Cross-entropy on NumPy arrays: x (n,classes), labels (n,) integers in range."""

from __future__ import annotations

import math

import numpy as np

from ...common.primitives import Array
from .activation import log_softmax

__all__ = ["check_labels", "cross_entropy", "cross_entropy_grad_x", "update_metrics"]


def check_labels(labels: Array, classes: int, what: str = "cross_entropy: label", of: str = "classes") -> None:
    """Refuse a label that is not a class."""
    # read as unsigned, a negative label is larger than any class: one check instead of two
    if labels.size and labels.view(f"u{labels.itemsize}").max() >= classes:
        at = int(np.argmax((labels < 0) | (labels >= classes)))
        raise ValueError(f"{what} {labels[at]} at position {at} is out of range for {classes} {of}; "
                         f"{what.split()[-1]}s must be 0 to {classes - 1}")


def places(labels: Array, classes: int) -> Array:
    """The place of each row's label among all values in C order. One index takes NumPy less time than two."""
    return np.arange(0, len(labels) * classes, classes or 1) + labels.astype(np.int64, copy=False)


def cross_entropy(x: Array, labels: Array, reduction: str, smoothing: float) -> tuple[Array, Array]:
    """(loss, log_p): -(1 - s) log_p[label] - s * mean of log_p, reduced; log_p (n,classes) for the gradient."""
    log_p = log_softmax(x, 1)
    loss = -log_p.reshape(-1)[places(labels, x.shape[1])]
    if smoothing:
        loss = (1 - smoothing) * loss - smoothing * log_p.mean(axis=1)
    if reduction == "none":
        return loss, log_p
    total = loss.sum()
    if reduction == "mean":                # with no labels it is NaN, without a warning
        total = total.dtype.type(total / len(labels) if len(labels) else np.nan)
    return np.asarray(total), log_p


def cross_entropy_grad_x(gy: Array, log_p: Array, labels: Array, reduction: str, smoothing: float) -> Array:
    """(softmax - target) * gy; gy is one number per image, or one for all."""
    n, classes = log_p.shape
    gx = np.exp(log_p, order="C")
    if smoothing:
        gx -= smoothing / max(1, classes)
    gx.reshape(-1)[places(labels, classes)] -= 1 - smoothing
    gx *= gy[:, None] if reduction == "none" else gy / n if reduction == "mean" and n else gy
    return gx


def update_metrics(sums: Array, loss: Array, x: Array, labels: Array) -> None:
    """sums[0] += the mean loss * n, sums[1] += how many rows of x (n,classes) are largest at their label, sums[2] += 1
    while sums[0] is finite; float64."""
    sums[0] += float(loss) * len(labels)
    sums[1] += np.count_nonzero(np.argmax(x, axis=1) == labels)
    sums[2] += math.isfinite(sums[0])
