"""The fully connected layer on NumPy arrays: x (n,in), w (out,in), b (out,), y (n,out)."""

from __future__ import annotations

import numpy as np

from ...common.primitives import Array
from ..parallel import empty, parallel_for
from ..reduce import sum

__all__ = ["linear", "linear_grad_b", "linear_grad_w", "linear_grad_x"]

ROWS = 64                                  # of the result in a chunk; more of them for narrow matrices
MIN_CHUNK = 1 << 18                        # multiplications of a chunk: fewer take less time than a call
MIN_SHARED = 1 << 22                       # multiplications: fewer take less time than waking a second thread
LINE = 1 << 13                             # values that NumPy copies at a time if shorter rows repeat


def by_rows(a: Array, b: Array, most: int = ROWS) -> Array:
    """a @ b, at most `most` rows of the result at a time, but more for narrow matrices, and all for small products."""
    (m, depth), n = a.shape, b.shape[1]
    y = empty((m, n), a.dtype)
    if depth == 1:
        if n == 1 or n >= LINE or m * n <= LINE:
            return np.multiply(a, b, out=y)
        a, b = np.concatenate((a, np.zeros_like(a)), 1), np.concatenate((b, np.zeros_like(b)))
        most = 1                           # with a second term, of zeros, NumPy calls BLAS, in an eighth of the time
    rows = max(most, MIN_CHUNK // max(1, b.size)) if depth == 1 or a.size * n > MIN_SHARED else max(1, m)
    parallel_for(m, rows, lambda i, j: np.matmul(a[i:j], b, out=y[i:j]))
    return y


def add_row(y: Array, b: Array) -> None:
    """y += b, for a contiguous y: some rows are joined to a long one, and b is repeated as many times."""
    times = -(-LINE // max(1, len(b)))
    whole = len(y) // times * times if len(b) < LINE else 0
    if whole:
        lines = y[:whole].reshape(-1, times * len(b))
        lines += np.tile(b, times)
    y[whole:] += b


def linear(x: Array, w: Array, b: Array | None) -> Array:
    y = by_rows(x, w.T)
    if b is not None:
        add_row(y, b)
    return y


def linear_grad_x(gy: Array, w: Array) -> Array:
    return by_rows(gy, w)


def linear_grad_w(gy: Array, x: Array) -> Array:
    return by_rows(gy.T, x)


def linear_grad_b(gy: Array) -> Array:
    return sum(gy, (0,))
