"""Convolution as the product of unrolled images by PMPP's tiled kernel: a thread computes one output, no register tile.

Its two matrices pass through shared memory in tiles (gemm_tiled in layers/linear/gemm.cu), so each multiplication reads
two numbers from there. gemm.py is the same with register tiles; the difference of the two is what register tiles are
worth.
"""

from __future__ import annotations

from ....common.geometry import ConvGeometry
from ....common.primitives import Array
from . import unroll
from .gemm import images


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    return unroll.y(x, w, b, g, images(g, x.dtype), tiled=True)


def dx(gy: Array, w: Array, g: ConvGeometry) -> Array:
    return unroll.dx(gy, w, g, images(g, gy.dtype), tiled=True)


def dw(gy: Array, x: Array, g: ConvGeometry) -> Array:
    return unroll.dw(gy, x, g, images(g, x.dtype), tiled=True)
