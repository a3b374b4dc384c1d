"""Max pooling on NumPy arrays: x (n,c,h,w), y (n,c,oh,ow); index says which element of a window is the largest.

First each row's largest of kw neighbours, then the largest of kh such rows: the windows of a column share them.
"""

from __future__ import annotations

import numpy as np

from ...common.geometry import PoolGeometry
from ...common.primitives import Array
from ..parallel import empty, scratch
from .pool import by_images, columns_of, padded, rows_of

__all__ = ["max_pool2d", "max_pool2d_grad_x"]


def _place_type(g: PoolGeometry) -> np.dtype:
    """The dtype for p*kw + q."""
    return np.dtype(np.int8 if g.kh * g.kw <= 128 else np.int32)


def _larger(best: Array, where: Array, value: Array, place: Array, has_nan: bool) -> None:
    """Let `value` take over where it is larger, or NaN; its places are larger than all before."""
    better = np.greater(value, best, out=scratch("better", best.shape, np.bool_))
    if has_nan:
        better |= np.isnan(value)
    np.maximum(best, value, out=best)
    taken = np.multiply(better.view(np.int8), place, out=scratch("taken", where.shape, where.dtype))
    np.maximum(where, taken, out=where)


def max_pool2d(x: Array, g: PoolGeometry) -> tuple[Array, Array]:
    """(y, index): index p*kw + q says which element of the window won: of equal ones the first, of NaNs the last."""
    y = empty((g.n, g.c, g.oh, g.ow), x.dtype)
    index = empty(y.shape, np.dtype(np.int32))
    number = _place_type(g).type
    # the first row and column of each window that are in the image
    top, left = (np.maximum(0, before - step * np.arange(count)).astype(number)
                 for before, step, count in ((g.top, g.sh, g.oh), (g.left, g.sw, g.ow)))

    def work(i: int, j: int) -> None:
        xp = padded(x[i:j], g, -np.inf)
        has_nan = bool(np.isnan(np.max(x[i:j], initial=-np.inf)))
        row = scratch("row", (*xp.shape[:3], g.ow), x.dtype)
        column = scratch("column", row.shape, left.dtype)
        np.copyto(row, xp[..., columns_of(0, g)])
        np.copyto(column, left)
        for q in range(1, g.kw):
            _larger(row, column, xp[..., columns_of(q, g)], number(q), has_nan)
        best, where = y[i:j], scratch("where", (j - i, *y.shape[1:]), left.dtype)
        np.copyto(best, row[:, :, rows_of(0, g)])
        np.add(column[:, :, rows_of(0, g)], top[:, None] * number(g.kw), out=where)
        for p in range(1, g.kh):
            rows = rows_of(p, g)
            _larger(best, where, row[:, :, rows], column[:, :, rows] + number(p * g.kw), has_nan)
        np.copyto(index[i:j], where)

    by_images(g, work, x.itemsize)
    return y, index


def max_pool2d_grad_x(gy: Array, index: Array, g: PoolGeometry) -> Array:
    """Each window's gradient goes to the place of its largest element; several at one place are added up in float64, in
    the order of the windows."""
    dx = empty((g.n, g.c, g.h, g.w), gy.dtype)
    within = (np.arange(g.kh)[:, None] * g.w + np.arange(g.kw)).reshape(-1)          # of a window's first element
    firsts = (np.arange(g.oh) * g.sh - g.top)[:, None] * g.w + np.arange(g.ow) * g.sw - g.left
    apart = g.sh >= g.kh and g.sw >= g.kw

    def work(i: int, j: int) -> None:
        places = scratch("places", (j - i, *index.shape[1:]), within.dtype)
        np.take(within, index[i:j], out=places, mode="clip")
        places += firsts
        places += np.arange((j - i) * g.c).reshape(j - i, g.c, 1, 1) * (g.h * g.w)
        flat = dx[i:j].reshape(-1)
        if apart:
            flat[...] = 0
            flat[places.reshape(-1)] = gy[i:j].reshape(-1)
        else:
            flat[...] = np.bincount(places.reshape(-1), gy[i:j].reshape(-1), flat.size)

    by_images(g, work, gy.itemsize)
    return dx
