"""The fully connected layer on NumPy arrays: x (n,in), w (out,in), b (out,), y (n,out)."""

from __future__ import annotations

import numpy as np

from ...common.primitives import Array
from ..parallel import parallel_for
from ..reduce import sum

__all__ = ["linear", "linear_grad_b", "linear_grad_w", "linear_grad_x"]

ROWS = 64                                  # of the result that make a chunk
MIN_SHARED = 1 << 22                       # multiplications: fewer take less time than waking a second thread


def by_rows(a: Array, b: Array, most: int = ROWS) -> Array:
    """a @ b, at most so many rows of the result at a time."""
    y = np.empty((len(a), b.shape[1]), a.dtype)
    rows = most if a.size * b.shape[1] > MIN_SHARED else max(1, len(a))
    parallel_for(len(a), rows, lambda i, j: np.matmul(a[i:j], b, out=y[i:j]))
    return y


def linear(x: Array, w: Array, b: Array | None) -> Array:
    y = by_rows(x, w.T)
    if b is not None:
        y += b
    return y


def linear_grad_x(gy: Array, w: Array) -> Array:
    return by_rows(gy, w)


def linear_grad_w(gy: Array, x: Array) -> Array:
    return by_rows(gy.T, x)


def linear_grad_b(gy: Array) -> Array:
    return sum(gy, (0,))
