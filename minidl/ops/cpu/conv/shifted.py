"""Convolution at stride 1 whose maps are as wide as its images: gemm.py's product, by shifts of whole maps.

Shifting a row by q is then shifting the whole map, lines one behind the other, by q: one long copy, and what came round
from the neighbouring line is set to zero. So the buffer holds c*kw shifted maps of each image, between the rows of
zeros above and below. What filter row p wants of them starts p lines later: one product for each p, their results
added up, and y lies as it is wanted, image by image.
"""

from __future__ import annotations

import numpy as np

from ...common.geometry import ConvGeometry
from ...common.primitives import Array
from ..parallel import empty, parallel_for, scratch
from . import gemm

MAX_IMAGES = 32                            # in a chunk, so that a batch of 128 keeps four cores busy
BUFFER_BYTES = 1 << 21                     # of an unrolled buffer
MIN_ROWS = 8                               # of a product: fewer take as long


def _chunk(g: ConvGeometry, itemsize: int) -> int:
    """How many images go through one buffer: a power of two, so that cores get equal shares of usual batches."""
    most = BUFFER_BYTES // (g.c * g.kw * (g.h + g.top + g.bottom) * g.w * itemsize)
    return 1 << max(1, min(MAX_IMAGES, most)).bit_length() - 1


def _windows(x: Array, g: ConvGeometry) -> Array:
    """(nb,kh,c*kw,oh*ow): what each filter row meets of images (nb,c,h,w), views of one buffer."""
    nb, hp = len(x), g.h + g.top + g.bottom
    rows = scratch("rows", (nb, g.c, g.kw, hp * g.w), x.dtype)
    lines, images = rows.reshape(nb, g.c, g.kw, hp, g.w), x.reshape(nb, g.c, g.h * g.w)
    lines[:, :, :, :g.top] = lines[:, :, :, g.top + g.h:] = 0
    for q in range(g.kw):
        shift, first = q - g.left, g.top * g.w
        if shift < 0:
            rows[:, :, q, first - shift:first + g.h * g.w] = images[..., :shift]
            lines[:, :, q, :, :-shift] = 0
        else:
            rows[:, :, q, first:first + g.h * g.w - shift] = images[..., shift:]
            lines[:, :, q, :, g.w - shift:] = 0
    image, _, k, item = rows.strides
    return np.ndarray((nb, g.kh, g.c * g.kw, g.oh * g.ow), x.dtype, rows, 0, (image, item * g.w, k, item))


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    """The sum over p of (m, c*kw) @ (c*kw, oh*ow), + b: as one product of copies, where there are fewer of those."""
    y, k, joined = empty((g.n, g.m, g.oh, g.ow), x.dtype), g.c * g.kw, g.c * g.kw < g.m
    filters, maps = w.transpose(2, 0, 1, 3).reshape(g.kh, g.m, k), y.reshape(g.n, 1, g.m, g.oh * g.ow)
    if joined:
        filters = filters.swapaxes(0, 1).reshape(1, g.m, g.kh * k)

    def work(i: int, j: int) -> None:
        windows, results = _windows(x[i:j], g), maps[i:j]
        if joined:
            copied = scratch("copied", windows.shape, x.dtype)
            copied[...] = windows
            windows = copied.reshape(j - i, 1, g.kh * k, -1)
        parts = results if windows.shape[1] == 1 else scratch("parts", (j - i, g.kh, *maps.shape[2:]), x.dtype)
        np.matmul(filters, windows, out=parts)
        total = parts[:, :1]
        for p in range(1, parts.shape[1]):
            total = np.add(total, parts[:, p:p + 1], out=results)
        if b is not None:
            results += b[:, None]

    parallel_for(g.n, _chunk(g, x.itemsize), work)
    return y


def dx(gy: Array, w: Array, g: ConvGeometry) -> Array:
    """The convolution of gy by the filters turned around."""
    ends = g.kh - 1 - g.top, g.kh - 1 - g.bottom, g.kw - 1 - g.left, g.kw - 1 - g.right
    if g.c < MIN_ROWS or min(ends) < 0:
        return gemm.dx(gy, w, g)
    back = ConvGeometry(g.n, g.m, g.oh, g.ow, g.c, g.kh, g.kw, g.h, g.w, 1, 1, *ends, g.algorithm)
    return y(gy, w[:, :, ::-1, ::-1].swapaxes(0, 1), None, back)


def dw(gy: Array, x: Array, g: ConvGeometry) -> Array:
    """For each p the sum over images of (c*kw, oh*ow) @ (oh*ow, m)"""
    maps = gy.reshape(g.n, 1, g.m, -1).swapaxes(-1, -2)

    def work(i: int, j: int) -> Array:
        parts = scratch("parts", (j - i, g.kh, g.c * g.kw, g.m), x.dtype)
        np.matmul(_windows(x[i:j], g), maps[i:j], out=parts)
        return parts.sum(axis=0)

    dw = np.zeros((g.kh, g.c * g.kw, g.m), gy.dtype)
    for part in parallel_for(g.n, _chunk(g, x.itemsize), work):
        dw += part                         # in the order of the images, whoever was first
    return np.ascontiguousarray(dw.reshape(g.kh, g.c, g.kw, g.m).transpose(3, 1, 0, 2))
