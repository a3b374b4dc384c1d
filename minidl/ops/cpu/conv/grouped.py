"""Convolution in thin groups, where a filter reads few channels: an element of all filters at a time, as in direct.py.

Where a group has one channel and one filter, and the stride is 1, a product of matrices adds up the elements: what one
of them reads of an image within zeros is the image, that much further on. What comes round from the next line is
computed too, and left out.
"""

from __future__ import annotations

import numpy as np

from ...common.geometry import ConvGeometry
from ...common.primitives import Array
from ..parallel import empty, images_per_chunk, parallel_for, scratch
from .direct import crop, pad, padded_zeros, under


def _apart(a: Array, g: ConvGeometry) -> Array:
    """A view (..., groups, channels or filters of a group, ...) of images (n,c,...)"""
    return a.reshape(len(a), g.groups, -1, *a.shape[2:])


def _chunk(g: ConvGeometry, itemsize: int) -> int:
    """Images whose pixels and outputs stay in a cache from one element of the filters to the next."""
    return images_per_chunk((g.c * (g.h + g.top + g.bottom) * (g.w + g.left + g.right) + 2 * g.m * g.oh * g.ow)
                            * itemsize)


def _product(w: Array, x: Array) -> Array:
    """(n,groups,a,h,w) from w (groups,a,b) and x (n,groups,b,h,w)"""
    if w.shape[2] == 1:
        return x * w[..., None]
    return np.matmul(w, np.ascontiguousarray(x).reshape(*x.shape[:3], -1)).reshape(*x.shape[:2], -1, *x.shape[3:])


# ---------------------------------------------------------------- shifts
def _shifted(g: ConvGeometry) -> bool:
    return g.c == g.m == g.groups and (g.sh, g.sw) == (1, 1)


def _rows(x: Array, g: ConvGeometry, top: int, left: int, high: int, wide: int) -> Array:
    """(c,taps,high * wide): an image (c,h,w) within zeros, as each filter element reads it. Copied: BLAS takes no rows
    that lie one within the other."""
    c, h, w = x.shape
    size, item = high * wide, x.itemsize
    framed = scratch("framed", (c, size + (g.kh - 1) * g.dh * wide + (g.kw - 1) * g.dw), x.dtype)
    framed[...] = 0
    framed[:, :size].reshape(c, high, wide)[:, top:top + h, left:left + w] = x
    rows = scratch("rows", (c, g.kh, g.kw, size), x.dtype)
    rows[...] = np.ndarray(rows.shape, x.dtype, framed, 0, (framed.strides[0], g.dh * wide * item, g.dw * item, item))
    return rows.reshape(c, -1, size)


def _blocks(g: ConvGeometry, size: int, itemsize: int) -> list[slice]:
    """Of channels whose rows stay in a cache."""
    each = images_per_chunk(g.kh * g.kw * size * itemsize)
    return [slice(first, first + each) for first in range(0, g.c, each)]


def _sums_of_shifts(x: Array, w: Array, out: Array, g: ConvGeometry, top: int, left: int, high: int,
                    wide: int) -> None:
    """out (n,c,oh,ow): at each place the products of w (c,1,kh,kw) and what its elements read."""
    oh, ow = out.shape[2:]
    filters = np.ascontiguousarray(w).reshape(g.c, 1, -1)
    for block in _blocks(g, high * wide, x.itemsize):
        for image, made in zip(x[:, block], out[:, block], strict=True):
            sums = np.matmul(filters[block], _rows(image, g, top, left, high, wide))
            made[...] = sums.reshape(-1, high, wide)[:, :oh, :ow]


# ---------------------------------------------------------------- the directions
def y(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    y, filters = empty((g.n, g.m, g.oh, g.ow), x.dtype), w.reshape(g.groups, -1, *w.shape[1:])
    high, wide = g.h + g.top + g.bottom, g.w + g.left + g.right

    def shifted(i: int, j: int) -> None:
        _sums_of_shifts(x[i:j], w, y[i:j], g, g.top, g.left, high, wide)
        if b is not None:
            y[i:j] += b[:, None, None]

    def work(i: int, j: int) -> None:
        xp, out = pad(x[i:j], g), _apart(y[i:j], g)
        out[...] = 0 if b is None else b.reshape(g.groups, -1, 1, 1)
        for p in range(g.kh):
            for q in range(g.kw):
                out += _product(filters[..., p, q], _apart(under(xp, p, q, g), g))

    parallel_for(g.n, _chunk(g, x.itemsize), shifted if _shifted(g) else work)
    return y


def dx(gy: Array, w: Array, g: ConvGeometry) -> Array:
    dx, filters = empty((g.n, g.c, g.h, g.w), gy.dtype), w.reshape(g.groups, -1, *w.shape[1:]).swapaxes(1, 2)
    top, left = (g.kh - 1) * g.dh - g.top, (g.kw - 1) * g.dw - g.left
    high, wide = g.h + (g.kh - 1) * g.dh, g.w + (g.kw - 1) * g.dw

    def shifted(i: int, j: int) -> None:
        _sums_of_shifts(gy[i:j], w[:, :, ::-1, ::-1], dx[i:j], g, top, left, high, wide)

    def work(i: int, j: int) -> None:
        dxp, maps = padded_zeros(j - i, gy.dtype, g), _apart(gy[i:j], g)
        for p in range(g.kh):
            for q in range(g.kw):
                part = under(dxp, p, q, g)
                part += _product(filters[..., p, q], maps).reshape(part.shape)
        dx[i:j] = crop(dxp, g)

    # with more padding than filters reach there are gradients that no pixel has
    parallel_for(g.n, _chunk(g, gy.itemsize), shifted if _shifted(g) and min(
        top, left, (g.kh - 1) * g.dh - g.bottom, (g.kw - 1) * g.dw - g.right) >= 0 else work)
    return dx


def dw(gy: Array, x: Array, g: ConvGeometry) -> Array:
    high, wide = g.h + g.top + g.bottom, g.w + g.left + g.right

    def shifted(i: int, j: int) -> Array:
        part = np.zeros((g.m, g.kh * g.kw, 1), gy.dtype)
        for block in _blocks(g, high * wide, gy.itemsize):
            for image, gradients in zip(x[i:j, block], gy[i:j, block], strict=True):
                maps = scratch("maps", (len(gradients), high, wide), gy.dtype)
                maps[...] = 0
                maps[:, :g.oh, :g.ow] = gradients
                part[block] += np.matmul(_rows(image, g, g.top, g.left, high, wide),
                                         maps.reshape(len(gradients), -1, 1))
        return part.reshape(g.groups, 1, 1, g.kh, g.kw)

    def work(i: int, j: int) -> Array:
        xp, maps = pad(x[i:j], g), _apart(gy[i:j], g)
        part = np.empty((g.groups, g.m // g.groups, g.c // g.groups, g.kh, g.kw), gy.dtype)
        maps = maps.reshape(*maps.shape[:3], -1)
        for p in range(g.kh):
            for q in range(g.kw):
                pixels = np.ascontiguousarray(_apart(under(xp, p, q, g), g)).reshape(j - i, g.groups, -1, g.oh * g.ow)
                part[..., p, q] = np.matmul(maps, pixels.swapaxes(-1, -2)).sum(0)
        return part

    dw = np.zeros((g.groups, g.m // g.groups, g.c // g.groups, g.kh, g.kw), gy.dtype)
    for part in parallel_for(g.n, _chunk(g, gy.itemsize), shifted if _shifted(g) else work):
        dw += part                         # in the order of the images, whoever was first
    return dw.reshape(g.m, -1, g.kh, g.kw)
