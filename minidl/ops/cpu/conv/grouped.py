"""Convolution in thin groups, where a filter reads few channels: an element of all filters at a time, as in direct.py.

At stride 1 a product of matrices adds up the elements of a filter's row, for all rows of all filters of a group. What
an element reads of an image within zeros is the image, shifted by the element's place. The results of the rows are
added up, each shifted by some lines. Values that wrap around from the next line are computed too, and left out.
"""

from __future__ import annotations

import numpy as np

from ...common.geometry import ConvGeometry
from ...common.primitives import Array
from ..parallel import empty, images_per_chunk, parallel_for, scratch
from .direct import crop, pad, padded_zeros, under

BUFFER_BYTES = 1 << 21                     # of what is read and made of some groups at a time


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
def _rows(x: Array, g: ConvGeometry, top: int, left: int, high: int, wide: int) -> Array:
    """(c,kw,n * high * wide and what filters reach beyond): images (n,c,h,w) within zeros, as each column of the
    filters reads them. They are copied: BLAS takes no rows that overlap in memory."""
    n, c, h, w = x.shape
    size, item = n * high * wide, x.itemsize
    reached = size + (g.kh - 1) * g.dh * wide
    framed = scratch("framed", (c, reached + (g.kw - 1) * g.dw), x.dtype)
    framed[...] = 0
    framed[:, :size].reshape(c, n, high, wide)[:, :, top:top + h, left:left + w] = x.swapaxes(0, 1)
    rows = scratch("rows", (c, g.kw, reached), x.dtype)
    rows[...] = np.ndarray(rows.shape, x.dtype, framed, 0, (framed.strides[0], g.dw * item, item))
    return rows


def _chunks(g: ConvGeometry, high: int, wide: int, itemsize: int) -> tuple[int, list[slice]]:
    """(number of groups, slices of images) whose rows stay in a cache: small images together, since a call for each
    takes longer. high, wide: of an image with its zeros."""
    each = (g.c // g.groups * g.kw + g.m // g.groups * g.kh) * high * wide * itemsize
    images = min(max(1, g.n), images_per_chunk(each, BUFFER_BYTES))
    return images_per_chunk(images * each, BUFFER_BYTES), [slice(i, i + images) for i in range(0, g.n, images)]


def _sums_of_shifts(x: Array, w: Array, b: Array | None, out: Array, g: ConvGeometry, top: int, left: int, high: int,
                    wide: int) -> None:
    """out (n,m,oh,ow): at each place the sum of the products of w (groups,m / groups,c / groups,kh,kw) and what
    its elements read."""
    groups, m, c = w.shape[:3]
    (oh, ow), down = out.shape[2:], g.dh * wide
    filters = np.ascontiguousarray(w.transpose(0, 3, 1, 2, 4)).reshape(groups, g.kh * m, c * g.kw)
    chunk, images = _chunks(g, high, wide, x.itemsize)

    def work(i: int, j: int) -> None:
        for some in images:
            rows = _rows(x[some, i * c:j * c], g, top, left, high, wide).reshape(j - i, c * g.kw, -1)
            # the sums that filter rows begin are in long lines: in short ones NumPy adds a quarter as fast
            parts = scratch("parts", (g.kh, j - i, rows.shape[2]) if m == 1 else (j - i, g.kh, m * rows.shape[2]),
                            x.dtype)
            turned = parts.swapaxes(0, 1)
            np.matmul(filters[i:j], rows, out=turned if m == 1 else parts.reshape(j - i, g.kh * m, -1))
            first, *others = parts.reshape(g.kh, 1, -1) if m == 1 else turned
            for p, other in enumerate(others, 1):
                first[:, :-p * down] += other[:, p * down:]
            sums = first.reshape((j - i) * m, -1)[:, :rows.shape[2] - (g.kh - 1) * down]
            if b is not None:
                sums += b[i * m:j * m, None]
            out[some, i * m:j * m] = sums.reshape(len(sums), -1, high, wide)[:, :, :oh, :ow].swapaxes(0, 1)

    parallel_for(groups, chunk, work)


def _by_group(w: Array, g: ConvGeometry) -> Array:
    return w.reshape(g.groups, -1, *w.shape[1:])


# ---------------------------------------------------------------- the directions
def y(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    y, filters = empty((g.n, g.m, g.oh, g.ow), x.dtype), _by_group(w, g)
    if (g.sh, g.sw) == (1, 1):
        _sums_of_shifts(x, filters, b, y, g, g.top, g.left, g.h + g.top + g.bottom, g.w + g.left + g.right)
        return y

    def work(i: int, j: int) -> None:
        xp, out = pad(x[i:j], g), _apart(y[i:j], g)
        out[...] = 0 if b is None else b.reshape(g.groups, -1, 1, 1)
        for p in range(g.kh):
            for q in range(g.kw):
                out += _product(filters[..., p, q], _apart(under(xp, p, q, g), g))

    parallel_for(g.n, _chunk(g, x.itemsize), work)
    return y


def dx(gy: Array, w: Array, g: ConvGeometry) -> Array:
    dx, filters = empty((g.n, g.c, g.h, g.w), gy.dtype), _by_group(w, g).swapaxes(1, 2)
    high, wide = (g.kh - 1) * g.dh, (g.kw - 1) * g.dw
    # with more padding than filters reach, some gradients belong to no pixel
    if (g.sh, g.sw) == (1, 1) and min(high - g.top, wide - g.left, high - g.bottom, wide - g.right) >= 0:
        _sums_of_shifts(gy, filters[..., ::-1, ::-1], None, dx, g, high - g.top, wide - g.left, g.h + high, g.w + wide)
        return dx

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
    if (g.sh, g.sw) == (1, 1):
        return _products_of_shifts(gy, x, g)

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
        dw += part                         # in the order of the images, whichever was done first
    return dw.reshape(g.m, -1, g.kh, g.kw)


def _products_of_shifts(gy: Array, x: Array, g: ConvGeometry) -> Array:
    """dw (m,c / groups,kh,kw) at stride 1: products of x as the filters' columns read it and gy as their rows do."""
    m, c, high, wide = g.m // g.groups, g.c // g.groups, g.h + g.top + g.bottom, g.w + g.left + g.right
    dw, beyond = np.zeros((g.groups, m * g.kh, c * g.kw), gy.dtype), (g.kh - 1) * g.dh * wide
    chunk, images = _chunks(g, high, wide, gy.itemsize)

    def work(i: int, j: int) -> None:
        for some in images:
            rows = _rows(x[some, i * c:j * c], g, g.top, g.left, high, wide).reshape(j - i, c * g.kw, -1)
            gradients = gy[some, i * m:j * m].swapaxes(0, 1)
            framed = scratch("framed", (len(gradients), rows.shape[2] + beyond), gy.dtype)
            framed[...] = 0
            framed[:, beyond:-beyond or None].reshape(len(gradients), -1, high, wide)[:, :, :g.oh, :g.ow] = gradients
            maps, item = scratch("parts", (len(gradients), g.kh, rows.shape[2]), gy.dtype), gy.itemsize
            maps[...] = np.ndarray(maps.shape, gy.dtype, framed, beyond * item,
                                   (framed.strides[0], -g.dh * wide * item, item))
            dw[i:j] += np.matmul(maps.reshape(j - i, m * g.kh, -1), rows.swapaxes(1, 2))

    parallel_for(g.groups, chunk, work)
    return dw.reshape(g.groups, m, g.kh, c, g.kw).transpose(0, 1, 3, 2, 4).reshape(g.m, c, g.kh, g.kw)
