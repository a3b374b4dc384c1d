"""Convolution in thin groups, where a filter reads few channels: an element of all filters at a time, as in direct.py."""

from __future__ import annotations

import numpy as np

from ...common.geometry import ConvGeometry
from ...common.primitives import Array
from ..parallel import empty, images_per_chunk, parallel_for
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


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    y, filters = empty((g.n, g.m, g.oh, g.ow), x.dtype), w.reshape(g.groups, -1, *w.shape[1:])

    def work(i: int, j: int) -> None:
        xp, out = pad(x[i:j], g), _apart(y[i:j], g)
        out[...] = 0 if b is None else b.reshape(g.groups, -1, 1, 1)
        for p in range(g.kh):
            for q in range(g.kw):
                out += _product(filters[..., p, q], _apart(under(xp, p, q, g), g))

    parallel_for(g.n, _chunk(g, x.itemsize), work)
    return y


def dx(gy: Array, w: Array, g: ConvGeometry) -> Array:
    dx, filters = empty((g.n, g.c, g.h, g.w), gy.dtype), w.reshape(g.groups, -1, *w.shape[1:]).swapaxes(1, 2)

    def work(i: int, j: int) -> None:
        dxp, maps = padded_zeros(j - i, gy.dtype, g), _apart(gy[i:j], g)
        for p in range(g.kh):
            for q in range(g.kw):
                part = under(dxp, p, q, g)
                part += _product(filters[..., p, q], maps).reshape(part.shape)
        dx[i:j] = crop(dxp, g)

    parallel_for(g.n, _chunk(g, gy.itemsize), work)
    return dx


def dw(gy: Array, x: Array, g: ConvGeometry) -> Array:
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
    for part in parallel_for(g.n, _chunk(g, gy.itemsize), work):
        dw += part                         # in the order of the images, whoever was first
    return dw.reshape(g.m, -1, g.kh, g.kw)
