"""Products of stacked matrices on NumPy arrays: x (..., i, j), y (..., j, k), z (..., i, k)."""

from __future__ import annotations

import math

import numpy as np

from ...common.primitives import Array
from ..parallel import empty, parallel_for
from .linear import MIN_SHARED, ROWS, by_rows

__all__ = ["matmul", "matmul_grad_x", "matmul_grad_y"]

MAX_UNSHARED = 1 << 12                     # multiplications that OpenBLAS never shares


def _share(rows: int) -> int:
    """An eighth of the rows of a product of any size: each chunk packs all of the other matrix anew."""
    return max(ROWS, -(-rows // 8))


def matmul(x: Array, y: Array) -> Array:
    if x.dtype != y.dtype or x.dtype.kind != "f" or x.size * y.shape[-1] <= MAX_UNSHARED:
        return np.matmul(x, y)                         # on one thread whatever is set
    lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    count, (i, j), k = math.prod(lead), x.shape[-2:], y.shape[-1]
    if y.size == j * k:
        return by_rows(x.reshape(count * i, j), y.reshape(j, k), _share(count * i)).reshape(*lead, i, k)
    z = empty((count, i, k), x.dtype)
    if j == 1:
        return np.multiply(x, y, out=z.reshape(*lead, i, k))
    xs, ys = (np.broadcast_to(a, (*lead, *a.shape[-2:])).reshape(count, *a.shape[-2:]) for a in (x, y))
    at_once = max(1, MIN_SHARED // max(1, i * j * k))           # matrices in a chunk
    rows_at_once = _share(i) if i * j * k > MIN_SHARED else max(1, i)
    parts = -(-i // rows_at_once)                                  # of a matrix

    def work(begin: int, end: int) -> None:
        if parts > 1:
            at, first = begin // parts, begin % parts * rows_at_once
            part = slice(first, first + rows_at_once)
            np.matmul(xs[at, part], ys[at], out=z[at, part])
        else:
            np.matmul(xs[begin:end], ys[begin:end], out=z[begin:end])

    parallel_for(count * parts, 1 if parts > 1 else at_once, work)
    return z.reshape(*lead, i, k)


def matmul_grad_x(gy: Array, y: Array) -> Array:
    return matmul(gy, np.swapaxes(y, -1, -2))


def matmul_grad_y(gy: Array, x: Array) -> Array:
    return matmul(np.swapaxes(x, -1, -2), gy)
