"""Average pooling on NumPy arrays: x (n,c,h,w), y (n,c,oh,ow); g is an ops.common.geometry.PoolGeometry.

Large windows that tile an image are axes of it. Any other window is walked offset by offset, each offset a strided
slice of all windows at once; averages do their rows first and then their columns, so that the first and larger half of
the additions runs over whole rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from ...common.geometry import PoolGeometry
from ...common.primitives import Array
from ..parallel import empty, images_per_chunk, parallel_for, scratch
from ..reduce import mean

__all__ = ["avg_pool2d", "avg_pool2d_grad_x"]

LARGE = 64                                 # elements of a window, from which on its offsets are too many


def padded(x: Array, g: PoolGeometry, fill: float) -> Array:
    """Images with their border, in this thread's scratch; x itself if there is none."""
    if not has_border(g):
        return x
    xp = scratch("padded", (len(x), g.c, g.h + g.top + g.bottom, g.w + g.left + g.right), x.dtype)
    xp[...] = fill
    inside(xp, g)[...] = x
    return xp


def inside(xp: Array, g: PoolGeometry) -> Array:
    """Padded images without their border."""
    return xp[:, :, g.top:g.top + g.h, g.left:g.left + g.w]


def has_border(g: PoolGeometry) -> bool:
    return any((g.top, g.bottom, g.left, g.right))


def rows_of(p: int, g: PoolGeometry) -> slice:
    """The rows of padded images that row p of the windows covers."""
    return slice(p, p + g.sh * g.oh, g.sh)


def columns_of(q: int, g: PoolGeometry) -> slice:
    return slice(q, q + g.sw * g.ow, g.sw)


def spread(dx: Array, g: PoolGeometry, walk: Callable[[Array, Callable[[Array, Array], None]], None]) -> None:
    """Let `walk` put the windows' gradients onto the padded images, and keep what is inside the border.

    If windows do not overlap, putting is storing; else it is adding to zeros.
    """
    apart, border = g.sh >= g.kh and g.sw >= g.kw, has_border(g)
    xp = scratch("padded", (len(dx), g.c, g.h + g.top + g.bottom, g.w + g.left + g.right), dx.dtype) if border else dx
    if not apart or xp.shape[2:] != (g.kh * g.oh, g.kw * g.ow):
        xp[...] = 0
    walk(xp, np.copyto if apart else lambda place, values: np.add(place, values, out=place))
    if border:
        dx[...] = inside(xp, g)


def by_images(g: PoolGeometry, work: Callable[[int, int], None], itemsize: int) -> None:
    parallel_for(g.n, images_per_chunk(g.c * g.h * g.w * itemsize), work)


def _add_up(parts: list[Array], out: Array) -> Array:
    """The sum of the parts, in `out`; a single part is its own sum."""
    return reduce(lambda total, part: np.add(total, part, out=out), parts)


def _tiles(g: PoolGeometry) -> bool:
    """Whether the windows are large and tile the image."""
    return g.kh * g.kw >= LARGE and (g.sh, g.sw) == (g.kh, g.kw) and not has_border(g) and (
        g.h, g.w) == (g.oh * g.kh, g.ow * g.kw)


def avg_pool2d(x: Array, g: PoolGeometry) -> Array:
    y = empty((g.n, g.c, g.oh, g.ow), x.dtype)

    def work(i: int, j: int) -> None:
        if _tiles(g) and (g.ow == 1 or g.kw >= LARGE):         # neighbours in memory are added up as long rows
            y[i:j] = mean(x[i:j].reshape(j - i, g.c, g.oh, g.kh, g.ow, g.kw), (3, 5))
            return
        xp, out = padded(x[i:j], g, 0), y[i:j]
        rows = scratch("rows", (j - i, g.c, g.oh, xp.shape[3]), x.dtype)
        rows = _add_up([xp[:, :, rows_of(p, g)] for p in range(g.kh)], rows)
        total = _add_up([rows[..., columns_of(q, g)] for q in range(g.kw)], out)
        np.multiply(total, 1 / (g.kh * g.kw), out=out)

    by_images(g, work, x.itemsize)
    return y


def avg_pool2d_grad_x(gy: Array, g: PoolGeometry) -> Array:
    dx = empty((g.n, g.c, g.h, g.w), gy.dtype)

    def work(i: int, j: int) -> None:
        share = scratch("share", (j - i, g.c, g.oh, g.ow), gy.dtype)
        np.multiply(gy[i:j], 1 / (g.kh * g.kw), out=share)
        if _tiles(g):
            dx[i:j].reshape(j - i, g.c, g.oh, g.kh, g.ow, g.kw)[...] = share[:, :, :, None, :, None]
            return

        def walk(xp: Array, put: Callable[[Array, Array], None]) -> None:
            rows = scratch("rows", (j - i, g.c, g.oh, xp.shape[3]), gy.dtype)
            rows[...] = 0
            for q in range(g.kw):
                put(rows[..., columns_of(q, g)], share)
            for p in range(g.kh):
                put(xp[:, :, rows_of(p, g)], rows)
        spread(dx[i:j], g, walk)

    by_images(g, work, gy.itemsize)
    return dx
