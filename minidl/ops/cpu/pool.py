"""Pooling on NumPy arrays: x (n,c,h,w), y (n,c,oh,ow); g is an ops.common.geometry.PoolGeometry.

A window is walked offset by offset, each offset a strided slice of all windows at once; averages do their
rows first and their columns then, so that the first and larger half of the additions runs over whole rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from ..common.geometry import PoolGeometry
from ..common.primitives import Array
from .activation import GRADIENTS
from .parallel import empty, images_per_chunk, parallel_for, scratch

__all__ = ["avg_pool2d", "avg_pool2d_grad_act", "avg_pool2d_grad_x", "max_pool2d", "max_pool2d_grad_x"]


def _padded(x: Array, g: PoolGeometry, fill: float) -> Array:
    """Images with their border; x itself where there is none."""
    if not _has_border(g):
        return x
    return np.pad(x, ((0, 0), (0, 0), (g.top, g.bottom), (g.left, g.right)), constant_values=fill)


def _has_border(g: PoolGeometry) -> bool:
    return any((g.top, g.bottom, g.left, g.right))


def _rows(p: int, g: PoolGeometry) -> slice:
    """The rows of padded images that row p of the windows lies on."""
    return slice(p, p + g.sh * g.oh, g.sh)


def _columns(q: int, g: PoolGeometry) -> slice:
    return slice(q, q + g.sw * g.ow, g.sw)


def _spread(dx: Array, g: PoolGeometry, walk: Callable[[Array, Callable[[Array, Array], None]], None]) -> None:
    """Let `walk` put the windows' gradients onto the padded images, and keep what lies inside.

    Windows that tile the image meet each element once, so that putting is storing; else it is adding to zeros.
    """
    tiled = (g.sh * g.oh, g.sw * g.ow) == (g.h, g.w) and (g.sh, g.sw) == (g.kh, g.kw) and not _has_border(g)
    if tiled:
        walk(dx, np.copyto)
        return
    xp = scratch("padded", (len(dx), g.c, g.h + g.top + g.bottom, g.w + g.left + g.right), dx.dtype)
    xp[...] = 0
    walk(xp, lambda place, values: np.add(place, values, out=place))
    dx[...] = xp[:, :, g.top:g.top + g.h, g.left:g.left + g.w]


def _by_images(g: PoolGeometry, work: Callable[[int, int], None], itemsize: int) -> None:
    parallel_for(g.n, images_per_chunk(g.c * g.h * g.w * itemsize), work)


def _add_up(parts: list[Array], out: Array) -> Array:
    """The sum of the parts, in `out`; a single part is its own sum."""
    return reduce(lambda total, part: np.add(total, part, out=out), parts)


def avg_pool2d(x: Array, g: PoolGeometry) -> Array:
    y = empty((g.n, g.c, g.oh, g.ow), x.dtype)

    def work(i: int, j: int) -> None:
        xp, out = _padded(x[i:j], g, 0), y[i:j]
        rows = scratch("rows", (j - i, g.c, g.oh, xp.shape[3]), x.dtype)
        rows = _add_up([xp[:, :, _rows(p, g)] for p in range(g.kh)], rows)
        total = _add_up([rows[..., _columns(q, g)] for q in range(g.kw)], out)
        np.multiply(total, 1 / (g.kh * g.kw), out=out)

    _by_images(g, work, x.itemsize)
    return y


def avg_pool2d_grad_x(gy: Array, g: PoolGeometry) -> Array:
    dx = empty((g.n, g.c, g.h, g.w), gy.dtype)

    def work(i: int, j: int) -> None:
        share = scratch("share", (j - i, g.c, g.oh, g.ow), gy.dtype)
        np.multiply(gy[i:j], 1 / (g.kh * g.kw), out=share)

        def walk(xp: Array, put: Callable[[Array, Array], None]) -> None:
            rows = scratch("rows", (j - i, g.c, g.oh, xp.shape[3]), gy.dtype)
            rows[...] = 0
            for q in range(g.kw):
                put(rows[..., _columns(q, g)], share)
            for p in range(g.kh):
                put(xp[:, :, _rows(p, g)], rows)
        _spread(dx[i:j], g, walk)

    _by_images(g, work, gy.itemsize)
    return dx


def avg_pool2d_grad_act(gy: Array, y: Array, g: PoolGeometry, act: str) -> Array:
    """The gradient of avg_pool2d(act(x)) by x, from y = act(x)."""
    return GRADIENTS[act](avg_pool2d_grad_x(gy, g), y)


def max_pool2d(x: Array, g: PoolGeometry) -> tuple[Array, Array]:
    """(y, index): index p*kw + q says which element of the window won."""
    y = np.full((g.n, g.c, g.oh, g.ow), -np.inf, x.dtype)
    index = np.full(y.shape, -1, np.int32)
    image = _padded(np.ones((1, 1, g.h, g.w), bool), g, False)

    def work(i: int, j: int) -> None:
        xp = _padded(x[i:j], g, 0)
        best, where = y[i:j], index[i:j]
        for p in range(g.kh):
            for q in range(g.kw):
                value = xp[:, :, _rows(p, g), _columns(q, g)]
                # the first element in the image stands until a larger one, or a NaN, the last of which wins
                better = ((where < 0) | (value > best) | (value != value)) & image[:, :, _rows(p, g), _columns(q, g)]
                np.copyto(best, value, where=better)
                np.copyto(where, p * g.kw + q, where=better)

    _by_images(g, work, x.itemsize)
    return y, index


def max_pool2d_grad_x(gy: Array, index: Array, g: PoolGeometry) -> Array:
    dx = empty((g.n, g.c, g.h, g.w), gy.dtype)

    def work(i: int, j: int) -> None:
        def walk(xp: Array, put: Callable[[Array, Array], None]) -> None:
            for p in range(g.kh):
                for q in range(g.kw):
                    won = np.where(index[i:j] == p * g.kw + q, gy[i:j], 0)
                    put(xp[:, :, _rows(p, g), _columns(q, g)], won)
        _spread(dx[i:j], g, walk)

    _by_images(g, work, gy.itemsize)
    return dx
