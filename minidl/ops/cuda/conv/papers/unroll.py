"""Convolution as a matrix product (PMPP Figs. 16.15 and 16.18): images unrolled into columns, then our own gemm.

One image goes through the buffer of unrolled columns at a time; gemm.py and gemm_tiled.py take several. tiled: how the
product is computed, as `gemm` in ../../linear says.
"""

from __future__ import annotations

import numpy as np

from ....common.geometry import ConvGeometry
from ....common.primitives import Array
from ... import launch
from ...layers.linear import gemm
from ...reduce import sum_first

BLOCK = 256                                # threads

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    ("conv/papers/unroll.cu", (launch.real(dtype),)) for dtype in launch.C_NAME]


def refuses(direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
    size = g.c * g.kh * g.kw * g.oh * g.ow
    if size > launch.MAX_ELEMENTS:
        return f"one unrolled image has {size} elements but kernels count to {launch.MAX_ELEMENTS}"
    return None


def _buffer(g: ConvGeometry, nb: int, dtype: np.dtype) -> Array:
    return launch.empty((min(nb, g.n), g.c * g.kh * g.kw, g.oh * g.ow), dtype)


def _unroll(x: Array, buffer: Array, g: ConvGeometry) -> Array:
    """The images x, unrolled into the first of the buffer's matrices."""
    nb = len(x)
    launch.kernel("conv/papers/unroll.cu", "unroll", launch.real(x.dtype))(
        (launch.blocks(nb * g.c * g.oh * g.ow, BLOCK),), (BLOCK,), x, buffer, launch.by_value("Geometry", g), nb)
    return buffer[:nb]


def _col2im(du: Array, dx: Array, g: ConvGeometry) -> None:
    launch.kernel("conv/papers/unroll.cu", "col2im", launch.real(dx.dtype))(
        (launch.blocks(dx.size, BLOCK),), (BLOCK,), du, dx, launch.by_value("Geometry", g), len(dx))


# ---------------------------------------------------------------- nb images at a time
def y(x: Array, w: Array, b: Array | None, g: ConvGeometry, nb: int = 1, tiled: bool | None = None) -> Array:
    """(m, c*kh*kw) @ (c*kh*kw, oh*ow) + b, for each image"""
    out = launch.empty((g.n, g.m, g.oh, g.ow), x.dtype)
    filters, maps, buffer = w.reshape(1, g.m, -1), out.reshape(g.n, g.m, g.oh * g.ow), _buffer(g, nb, x.dtype)
    for i in range(0, g.n, nb):
        gemm(filters, _unroll(x[i:i + nb], buffer, g), maps[i:i + nb], bias=b, tiled=tiled)
    return out


def dx(gy: Array, w: Array, g: ConvGeometry, nb: int = 1, tiled: bool | None = None) -> Array:
    """(c*kh*kw, m) @ (m, oh*ow) for each image, each element added back to where it was unrolled from"""
    out = launch.empty((g.n, g.c, g.h, g.w), gy.dtype)
    filters, maps, buffer = w.reshape(1, g.m, -1), gy.reshape(g.n, g.m, g.oh * g.ow), _buffer(g, nb, gy.dtype)
    for i in range(0, g.n, nb):
        dx = out[i:i + nb]
        du = buffer[:len(dx)]
        gemm(filters, maps[i:i + nb], du, transpose_a=True, tiled=tiled)
        _col2im(du, dx, g)
    return out


def dw(gy: Array, x: Array, g: ConvGeometry, nb: int = 1, tiled: bool | None = None) -> Array:
    """(m, oh*ow) @ (oh*ow, c*kh*kw), summed over the images"""
    if g.n == 0:
        return sum_first(launch.empty((0, g.m, g.c, g.kh, g.kw), gy.dtype))
    out = launch.empty((g.m, g.c, g.kh, g.kw), gy.dtype)
    filters, maps, buffer = out.reshape(1, g.m, -1), gy.reshape(g.n, g.m, g.oh * g.ow), _buffer(g, nb, gy.dtype)
    for i in range(0, g.n, nb):
        gemm(maps[i:i + nb], _unroll(x[i:i + nb], buffer, g), filters, transpose_b=True, accumulate=i > 0, tiled=tiled)
    return out
