"""Convolution by unrolling: PMPP Figs. 16.15 and 16.18. One image at a time goes through one buffer, then a product."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...common.geometry import ConvGeometry
from ...common.primitives import Array
from ..parallel import on_one_blas_thread
from .direct import crop, pad, padded_zeros, under


def _unrolled(x: Array, g: ConvGeometry) -> Iterator[Array]:
    """Each image as a matrix (c*kh*kw, oh*ow), all in one buffer."""
    buffer = np.empty((g.c, g.kh, g.kw, g.oh, g.ow), x.dtype)
    for xp in pad(x, g):
        for p in range(g.kh):
            for q in range(g.kw):
                buffer[:, p, q] = under(xp[None], p, q, g)[0]
        yield buffer.reshape(g.c * g.kh * g.kw, -1)


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    """(m, c*kh*kw) @ (c*kh*kw, oh*ow) + b, for each image"""
    y = np.empty((g.n, g.m, g.oh * g.ow), x.dtype)

    def work() -> None:
        for image, u in zip(y, _unrolled(x, g), strict=True):
            np.matmul(w.reshape(g.m, -1), u, out=image)

    on_one_blas_thread(work)
    if b is not None:
        y += b[:, None]
    return y.reshape(g.n, g.m, g.oh, g.ow)


def dx(gy: Array, w: Array, g: ConvGeometry) -> Array:
    """(c*kh*kw, m) @ (m, oh*ow) for each image, each row added back to where it was unrolled from"""
    dxp = padded_zeros(g.n, gy.dtype, g)

    def work() -> None:
        for image, maps in zip(dxp, gy.reshape(g.n, g.m, g.oh * g.ow), strict=True):
            du = (w.reshape(g.m, -1).T @ maps).reshape(g.c, g.kh, g.kw, g.oh, g.ow)
            for p in range(g.kh):
                for q in range(g.kw):
                    under(image[None], p, q, g)[0] += du[:, p, q]

    on_one_blas_thread(work)
    return crop(dxp, g)


def dw(gy: Array, x: Array, g: ConvGeometry) -> Array:
    """(m, oh*ow) @ (oh*ow, c*kh*kw), summed over the images"""
    dw = np.zeros((g.m, g.c * g.kh * g.kw), gy.dtype)

    def work() -> None:
        for maps, u in zip(gy.reshape(g.n, g.m, g.oh * g.ow), _unrolled(x, g), strict=True):
            dw[...] += maps @ u.T

    on_one_blas_thread(work)
    return dw.reshape(g.m, g.c, g.kh, g.kw)
