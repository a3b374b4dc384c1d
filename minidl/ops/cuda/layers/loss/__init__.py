"""Cross-entropy on CuPy arrays: x (n,classes), labels (n,) integers; one out of range makes NaN of its image."""

from __future__ import annotations

import functools

import numpy as np

from ....common.primitives import Array
from ... import launch
from ...reduce.folds import log_softmax, mean
from ...reduce.teams import shared_out

__all__ = ["check_labels", "cross_entropy", "cross_entropy_grad_x", "cross_entropy_with_grad", "update_metrics"]

MOST_THREADS = 1024                        # of the one block that sums losses
ONE_BLOCK = 16384                          # elements of x up to which one block does everything, in one launch

LARGE = 1 << 22                            # elements from which three passes over rows cost more than a launch

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (f"layers/loss/{name}.cu", (launch.real(dtype),))
    for name in ("cross_entropy", "metrics") for dtype in launch.C_NAME]


@functools.lru_cache(maxsize=4096)
def _one_block(n: int, classes: int) -> tuple[int, int] | None:
    """(threads, lanes a row) for one block to do all rows, at once if it can; None if they are too many."""
    if n > MOST_THREADS or n * classes > ONE_BLOCK:
        return None
    lanes = min(32, launch.lanes_per_row(classes))
    while lanes > 1 and n * lanes > MOST_THREADS:
        lanes //= 2
    return min(MOST_THREADS, 32 * launch.blocks(n * lanes, 32)), lanes


def _is_split(n: int, classes: int) -> bool:
    """Whether several blocks share a row."""
    plan = shared_out((n, classes), (classes, 1), (1,))
    return plan is not None and plan.splits > 1


def check_labels(labels: Array, classes: int, what: str = "cross_entropy: label", of: str = "classes") -> None:
    """Nothing: to look would make the host wait. The kernels make NaN of a label that is not a class."""


def cross_entropy(x: Array, labels: Array, reduction: str, smoothing: float) -> tuple[Array, Array]:
    """(loss, log_p): -(1 - s) log_p[label] - s * mean of log_p, reduced; log_p (n,classes) for the gradient."""
    n, classes = x.shape
    real = launch.real(x.dtype)
    labels = _wide(labels)
    divisor = n if reduction == "mean" else 1
    block = None if reduction == "none" else _one_block(n, classes)
    if block is not None:
        total, log_p, (threads, lanes) = launch.empty((), x.dtype), launch.empty(x.shape, x.dtype), block
        launch.kernel("layers/loss/cross_entropy.cu", "cross_entropy_all", real)(
            (1,), (threads,), x, labels, log_p, total, n, classes, lanes, smoothing, 1 - smoothing, divisor)
        return total, log_p
    losses = launch.empty((n,), x.dtype)
    if x.size >= LARGE or _is_split(n, classes):
        log_p = log_softmax(x, 1)
        launch.kernel("layers/loss/cross_entropy.cu", "cross_entropy_of_log_p", real)(
            (launch.blocks(n, launch.THREADS),), (launch.THREADS,), log_p, labels,
            mean(log_p, (1,)) if smoothing else None, losses, n, classes, smoothing, 1 - smoothing)
    else:
        log_p, lanes = launch.empty(x.shape, x.dtype), launch.lanes_per_row(classes, rows=n)
        launch.kernel("layers/loss/cross_entropy.cu", "cross_entropy_rows", real)(
            (launch.blocks(n * lanes, launch.THREADS),), (launch.THREADS,), x, labels, log_p, losses, n, classes, lanes,
            smoothing, 1 - smoothing)
    if reduction == "none":
        return losses, log_p
    total = launch.empty((), x.dtype)
    launch.kernel("layers/loss/cross_entropy.cu", "cross_entropy_sum", real)(
        (1,), (MOST_THREADS,), losses, total, n, divisor)
    return total, log_p


def cross_entropy_grad_x(gy: Array, log_p: Array, labels: Array, reduction: str, smoothing: float) -> Array:
    """(softmax - target) * gy, with gy a number an image or one for all."""
    n, classes = log_p.shape
    gx = launch.empty(log_p.shape, log_p.dtype)
    launch.kernel("layers/loss/cross_entropy.cu", "cross_entropy_grad_x", launch.real(log_p.dtype))(
        (launch.spread(gx.size),), (launch.THREADS,), gy, log_p, _wide(labels), gx, gx.size, classes,
        1 if reduction == "none" else 0, n if reduction == "mean" else 1, smoothing / max(1, classes), 1 - smoothing)
    return gx


def cross_entropy_with_grad(x: Array, labels: Array, reduction: str, smoothing: float) -> tuple[Array, Array]:
    """(loss, gx): the loss, and the gradient by x of its values' sum."""
    n, classes = x.shape
    block = None if reduction == "none" else _one_block(n, classes)
    if block is None:
        loss, log_p = cross_entropy(x, labels, reduction, smoothing)
        return loss, cross_entropy_grad_x(launch.ones_like(loss), log_p, labels, reduction, smoothing)
    total, gx, (threads, lanes) = launch.empty((), x.dtype), launch.empty(x.shape, x.dtype), block
    launch.kernel("layers/loss/cross_entropy.cu", "cross_entropy_with_grad", launch.real(x.dtype))(
        (1,), (threads,), x, _wide(labels), gx, total, n, classes, lanes, smoothing, 1 - smoothing,
        n if reduction == "mean" else 1, smoothing / max(1, classes))
    return total, gx


def update_metrics(sums: Array, loss: Array, x: Array, labels: Array) -> None:
    """sums[0] += the mean loss * n, sums[1] += how many rows of x (n,classes) are largest at their label, sums[2] += 1
    while sums[0] is finite; float64."""
    n, classes = x.shape
    launch.kernel("layers/loss/metrics.cu", "update_metrics", launch.real(x.dtype))(
        (1,), (min(MOST_THREADS, 32 * launch.blocks(n, 32)),), sums, loss, x, _wide(labels), n, classes)


def _wide(labels: Array) -> Array:
    """Labels as the 64-bit integers that the kernels read."""
    return labels if labels.dtype == np.int64 else labels.astype(np.int64)
