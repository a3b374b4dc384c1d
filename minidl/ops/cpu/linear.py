"""The fully connected layer on NumPy arrays: x (n,in), w (out,in), b (out,), y (n,out)."""

from __future__ import annotations

import numpy as np

from .activation import GRADIENTS, VALUES
from .parallel import parallel_for

Array = np.ndarray

ROWS = 64                                  # of the result that make a chunk
WORTH_SHARING = 1 << 22                    # multiplications: fewer take less time than waking a second thread


def _by_rows(a: Array, b: Array) -> Array:
    """a @ b, some rows of the result at a time."""
    y = np.empty((len(a), b.shape[1]), a.dtype)
    rows = ROWS if a.size * b.shape[1] > WORTH_SHARING else max(1, len(a))
    parallel_for(len(a), rows, lambda i, j: np.matmul(a[i:j], b, out=y[i:j]))
    return y


def linear(x: Array, w: Array, b: Array | None) -> Array:
    y = _by_rows(x, w.T)
    if b is not None:
        y += b
    return y


def linear_grad_x(gy: Array, w: Array) -> Array:
    return _by_rows(gy, w)


def linear_act(x: Array, w: Array, b: Array | None, act: str) -> Array:
    """act(linear(x))"""
    return VALUES[act](linear(x, w, b))


def linear_grad_act(gy: Array, w: Array, y: Array, act: str) -> Array:
    """The gradient of linear(act(z)) by z, from y = act(z)."""
    return GRADIENTS[act](linear_grad_x(gy, w), y)


def linear_grad_w(gy: Array, x: Array) -> Array:
    return _by_rows(gy.T, x)


def linear_grad_b(gy: Array) -> Array:
    return gy.sum(axis=0)
