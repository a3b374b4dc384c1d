"""Convolution as a matrix product (PMPP Figs. 16.15 and 16.18): images unrolled into columns, then our own gemm.

Two algorithms, which differ in how many images go through the buffer of unrolled columns at a time: `unroll` takes one,
`gemm` as many as the workspace limit allows.
"""

from __future__ import annotations

import numpy as np

from ..... import device
from ....geometry import ConvGeometry
from ....primitives import Array
from ... import launch
from ...linear import gemm, linear, linear_grad_x
from ...reduce import sum_first

BLOCK = 256                                # threads
MAX_IMAGES = 65535                        # matrices of one product: they lie along the grid's third axis

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    ("conv/papers/unroll.cu", (launch.real(dtype),)) for dtype in launch.C_NAME]


def refuses(direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
    """Why neither algorithm can do a case, or None."""
    size = g.c * g.kh * g.kw * g.oh * g.ow
    if size > launch.MAX_ELEMENTS:
        return f"one unrolled image has {size} elements but kernels count to {launch.MAX_ELEMENTS}"
    return None


def _images(g: ConvGeometry, dtype: np.dtype) -> int:
    """How many unrolled images fit the workspace; at least one."""
    size = g.c * g.kh * g.kw * g.oh * g.ow
    fit = min(device.workspace_limit() // (size * dtype.itemsize), launch.MAX_ELEMENTS // size)
    return max(1, min(g.n, MAX_IMAGES, fit))


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
def _y(x: Array, w: Array, b: Array | None, g: ConvGeometry, nb: int) -> Array:
    """(m, c*kh*kw) @ (c*kh*kw, oh*ow) + b, for each image"""
    out = launch.empty((g.n, g.m, g.oh, g.ow), x.dtype)
    filters, maps, buffer = w.reshape(1, g.m, -1), out.reshape(g.n, g.m, g.oh * g.ow), _buffer(g, nb, x.dtype)
    for i in range(0, g.n, nb):
        gemm(filters, _unroll(x[i:i + nb], buffer, g), maps[i:i + nb], bias=b)
    return out


def _dx(gy: Array, w: Array, g: ConvGeometry, nb: int) -> Array:
    """(c*kh*kw, m) @ (m, oh*ow) for each image, each element added back to where it was unrolled from"""
    out = launch.empty((g.n, g.c, g.h, g.w), gy.dtype)
    filters, maps, buffer = w.reshape(1, g.m, -1), gy.reshape(g.n, g.m, g.oh * g.ow), _buffer(g, nb, gy.dtype)
    for i in range(0, g.n, nb):
        dx = out[i:i + nb]
        du = buffer[:len(dx)]
        gemm(filters, maps[i:i + nb], du, transpose_a=True)
        _col2im(du, dx, g)
    return out


def _dw(gy: Array, x: Array, g: ConvGeometry, nb: int) -> Array:
    """(m, oh*ow) @ (oh*ow, c*kh*kw), summed over the images"""
    if g.n == 0:
        return sum_first(launch.empty((0, g.m, g.c, g.kh, g.kw), gy.dtype))
    out = launch.empty((g.m, g.c, g.kh, g.kw), gy.dtype)
    filters, maps, buffer = out.reshape(1, g.m, -1), gy.reshape(g.n, g.m, g.oh * g.ow), _buffer(g, nb, gy.dtype)
    for i in range(0, g.n, nb):
        gemm(maps[i:i + nb], _unroll(x[i:i + nb], buffer, g), filters, transpose_b=True, accumulate=i > 0)
    return out


# ---------------------------------------------------------------- the two algorithms
def unroll_y(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    return _y(x, w, b, g, 1)


def unroll_dx(gy: Array, w: Array, g: ConvGeometry) -> Array:
    return _dx(gy, w, g, 1)


def unroll_dw(gy: Array, x: Array, g: ConvGeometry) -> Array:
    return _dw(gy, x, g, 1)


def _is_linear(g: ConvGeometry) -> bool:
    """The window is the whole image: each output is one product with it, a linear layer's, and nothing is unrolled."""
    return (g.kh, g.kw, g.oh, g.ow) == (g.h, g.w, 1, 1) and not (g.top or g.left)


def gemm_y(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    if _is_linear(g):
        return linear(x.reshape(g.n, g.c * g.h * g.w), w.reshape(g.m, -1), b).reshape(g.n, g.m, 1, 1)
    return _y(x, w, b, g, _images(g, x.dtype))


def gemm_dx(gy: Array, w: Array, g: ConvGeometry) -> Array:
    if _is_linear(g):
        return linear_grad_x(gy.reshape(g.n, g.m), w.reshape(g.m, -1)).reshape(g.n, g.c, g.h, g.w)
    return _dx(gy, w, g, _images(g, gy.dtype))


def gemm_dw(gy: Array, x: Array, g: ConvGeometry) -> Array:
    if _is_linear(g):
        out = launch.empty((g.m, g.c, g.kh, g.kw), gy.dtype)
        gemm(gy.reshape(1, g.n, g.m), x.reshape(1, g.n, g.c * g.h * g.w), out.reshape(1, g.m, -1), transpose_a=True)
        return out
    return _dw(gy, x, g, _images(g, x.dtype))
