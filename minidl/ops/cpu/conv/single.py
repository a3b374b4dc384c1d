"""Convolution at stride 1 of one channel to one map, as each group of a depthwise convolution is: sums of shifts.

The padded images lie one behind the other, so that what a filter element reads of them is all of them, that much
further on: one run. What comes round from the next line, or the next image, is computed too, and left out.
"""

from __future__ import annotations

import numpy as np

from ...common.geometry import ConvGeometry
from ...common.primitives import Array
from ..parallel import empty, images_per_chunk, parallel_for, scratch
from ..reduce import dots
from . import gemm


def pays(g: ConvGeometry) -> bool:
    """Whether it takes less time than gemm.py."""
    return (g.c, g.m, g.sh, g.sw) == (1, 1, 1, 1) and g.kh * g.kw > 1


def _padded(g: ConvGeometry) -> tuple[int, int]:
    return g.h + g.top + g.bottom, g.w + g.left + g.right


def _chunk(g: ConvGeometry, bytes_per_pixel: int) -> int:
    hp, wp = _padded(g)
    return images_per_chunk(hp * wp * bytes_per_pixel)


def _framed(name: str, x: Array, g: ConvGeometry, top: int, left: int) -> Array:
    """Images (nb,1,h,w), or maps, within the zeros of padded images, one behind the other, and zeros for the shifts."""
    (hp, wp), nb = _padded(g), len(x)
    flat = scratch(name, (nb * hp * wp + (g.kh - 1) * wp + g.kw - 1,), x.dtype)
    flat[...] = 0
    flat[:nb * hp * wp].reshape(nb, hp, wp)[:, top:top + x.shape[2], left:left + x.shape[3]] = x[:, 0]
    return flat


def _shifts(x: Array, g: ConvGeometry) -> Array:
    """A view (kh,kw,nb*hp*wp): the padded images as each filter element reads them."""
    (hp, wp), flat = _padded(g), _framed("padded", x, g, g.top, g.left)
    item = x.itemsize
    return np.ndarray((g.kh, g.kw, len(x) * hp * wp), x.dtype, flat, 0, (wp * item, item, item))


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    y, (hp, wp) = empty((g.n, 1, g.oh, g.ow), x.dtype), _padded(g)

    def work(i: int, j: int) -> None:
        shifts = _shifts(x[i:j], g)
        rows, sums = scratch("rows", shifts.shape, x.dtype), scratch("maps", shifts.shape[2:], x.dtype)
        rows[...] = shifts                 # which BLAS would not take as they lie, one within the other
        np.matmul(w.reshape(-1), rows.reshape(w.size, -1), out=sums)
        maps = sums.reshape(j - i, 1, hp, wp)[:, :, :g.oh, :g.ow]
        np.add(maps, 0 if b is None else b, out=y[i:j])

    parallel_for(g.n, _chunk(g, w.size * x.itemsize), work)
    return y


def dx(gy: Array, w: Array, g: ConvGeometry) -> Array:
    """The convolution of gy by the filter turned around; not of more padding than such a convolution has."""
    ends = g.kh - 1 - g.top, g.kh - 1 - g.bottom, g.kw - 1 - g.left, g.kw - 1 - g.right
    if min(ends) < 0:
        return gemm.dx(gy, w, g)
    back = ConvGeometry(g.n, 1, g.oh, g.ow, 1, g.kh, g.kw, g.h, g.w, 1, 1, *ends, g.algorithm)
    return y(gy, np.ascontiguousarray(w[:, :, ::-1, ::-1]), None, back)        # BLAS takes no vector from its end


def dw(gy: Array, x: Array, g: ConvGeometry) -> Array:
    """For each filter element the product of gy, between zeros, and what the element reads."""
    hp, wp = _padded(g)

    def work(i: int, j: int) -> Array:
        maps = _framed("maps", gy[i:j], g, 0, 0)[:(j - i) * hp * wp]
        return dots(_shifts(x[i:j], g), maps)

    dw = np.zeros((g.kh, g.kw), gy.dtype)
    for part in parallel_for(g.n, _chunk(g, x.itemsize), work):
        dw += part                         # in the order of the images, whoever was first
    return dw[None, None]
