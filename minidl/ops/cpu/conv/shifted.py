"""Convolution at stride 1 whose maps are as wide as its images: gemm.py's product, by shifts of whole maps.

Shifting each row by q is then shifting the whole map, as one vector, by q: one long copy, and values that wrapped
around from the neighbouring line are set to zero. So the buffer holds c*kw shifted maps of each image, between the rows
of zeros above and below. What filter row p needs of them starts p lines later. There is one product for each p. Their
results are added up, and y is in its final order at once, image by image.
"""

from __future__ import annotations

import numpy as np

from ...common.geometry import ConvGeometry
from ...common.primitives import Array
from ..parallel import empty, parallel_for, scratch
from . import gemm

MAX_IMAGES = 32                            # in a chunk, so that a batch of 128 keeps four cores busy
BUFFER_BYTES = 1 << 21                     # of an unrolled buffer: less means calls so short that threads wait
MAX_SIDE = 5                               # of a filter whose rows are worth products of their own
MIN_MAP = 64                               # outputs of a filter that are worth them, too
MIN_COLUMNS = 32                           # of a product that is small enough for OpenBLAS to take it without packing
MIN_ROWS = 8                               # of a product: fewer take as long


def pays(g: ConvGeometry) -> bool:
    """Whether it takes less time than gemm.py."""
    return (g.sh, g.sw, g.ow) == (1, 1, g.w) and max(g.kh, g.kw) <= MAX_SIDE and g.kw <= g.w and g.oh * g.ow >= MIN_MAP


def _chunk(g: ConvGeometry, beside: int, itemsize: int) -> int:
    """How many images go through one buffer, and through the `beside` numbers that are made of it for each.

    A power of two, so that cores get equal shares of usual batches.
    """
    most = BUFFER_BYTES // (max(g.c * g.kw * (g.h + g.top + g.bottom) * g.w, beside) * itemsize)
    return 1 << max(1, min(MAX_IMAGES, most)).bit_length() - 1


def _windows(x: Array, g: ConvGeometry) -> Array:
    """(nb,kh,c*kw,oh*ow): what each filter row meets of images (nb,c,h,w), views of one buffer."""
    nb, hp = len(x), g.h + g.top + g.bottom
    rows = scratch("rows", (nb, g.c, g.kw, hp * g.w), x.dtype)
    lines, images = rows.reshape(nb, g.c, g.kw, hp, g.w), x.reshape(nb, g.c, g.h * g.w)
    lines[:, :, :, :g.top] = lines[:, :, :, g.top + g.h:] = 0
    for q in range(g.kw):
        shift, map_ = q - g.left, rows[:, :, q, g.top * g.w:(g.top + g.h) * g.w]
        if shift < 0:
            map_[..., -shift:] = images[..., :shift]
            lines[:, :, q, :, :-shift] = 0
        else:
            map_[..., :g.h * g.w - shift] = images[..., shift:]
            lines[:, :, q, :, g.w - shift:] = 0
    image, _, k, item = rows.strides
    return np.ndarray((nb, g.kh, g.c * g.kw, g.oh * g.ow), x.dtype, rows, 0, (image, item * g.w, k, item))


def _small(columns: int, products: int) -> int:
    """The columns of a small product, each `products` multiplications: a divisor of all columns, or all of them."""
    small = gemm._part(columns, gemm.MAX_SMALL_PRODUCT // products)
    return small if small >= MIN_COLUMNS else columns


def _pieces(x: Array, columns: int) -> Array:
    """A view (..., pieces, rows, columns) of (..., rows, all columns)"""
    return x.reshape(*x.shape[:-1], -1, columns).swapaxes(-2, -3)


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    """The sum over p of (m, c*kw) @ (c*kw, oh*ow), + b; one product for all p if copying c*kw rows costs less than
    adding up m."""
    y, k, length = empty((g.n, g.m, g.oh, g.ow), x.dtype), g.c * g.kw, g.oh * g.ow
    filters, maps = w.transpose(2, 0, 1, 3).reshape(g.kh, g.m, k), y.reshape(g.n, 1, g.m, length)
    joined = g.kh > 1 and k < g.m
    if joined:
        filters = filters.swapaxes(0, 1).reshape(1, g.m, g.kh * k)
    columns = _small(length, filters[0].size)

    def work(i: int, j: int) -> None:
        windows, results = _windows(x[i:j], g), maps[i:j]
        if joined:                         # one more line between rows: caches hold few rows that are 4 KiB apart
            copied = scratch("copied", (j - i, 1, g.kh * k, length + g.w), x.dtype)[..., :length]
            copied.reshape(windows.shape)[...] = windows
            windows = copied
        parts = results if len(filters) == 1 else scratch("parts", (j - i, g.kh, g.m, length), x.dtype)
        np.matmul(filters[:, None], _pieces(windows, columns), out=_pieces(parts, columns))
        total = parts[:, :1]
        for p in range(1, len(filters)):
            total = np.add(total, parts[:, p:p + 1], out=results)
        if b is not None:
            results += b[:, None]

    parallel_for(g.n, _chunk(g, g.kh * min(k, g.m) * length, x.itemsize), work)
    return y


def dx(gy: Array, w: Array, g: ConvGeometry) -> Array:
    """The convolution of gy by the filters turned around; not if that takes longer than adding up what gy adds."""
    ends = g.kh - 1 - g.top, g.kh - 1 - g.bottom, g.kw - 1 - g.left, g.kw - 1 - g.right
    if g.c < MIN_ROWS or min(ends) < 0:
        return gemm.dx(gy, w, g)
    back = ConvGeometry(g.n, g.m, g.oh, g.ow, g.c, g.kh, g.kw, g.h, g.w, 1, 1, *ends, 1, 1, 1, g.algorithm)
    return y(gy, w[:, :, ::-1, ::-1].swapaxes(0, 1), None, back)


def dw(gy: Array, x: Array, g: ConvGeometry) -> Array:
    """For each p the sum over images of (c*kw, oh*ow) @ (oh*ow, m)"""
    maps = gy.reshape(g.n, 1, g.m, g.oh * g.ow).swapaxes(-1, -2)

    def work(i: int, j: int) -> Array:
        parts = scratch("parts", (j - i, g.kh, g.c * g.kw, g.m), x.dtype)
        np.matmul(_windows(x[i:j], g), maps[i:j], out=parts)
        return parts.sum(axis=0)

    dw = np.zeros((g.kh, g.c * g.kw, g.m), gy.dtype)
    for part in parallel_for(g.n, _chunk(g, 0, x.itemsize), work):
        dw += part                         # in the order of the images, whichever was done first
    return np.ascontiguousarray(dw.reshape(g.kh, g.c, g.kw, g.m).transpose(3, 1, 0, 2))
