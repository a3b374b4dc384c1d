"""Convolution as a matrix product of as many unrolled images at a time as the workspace limit allows."""

from __future__ import annotations

import numpy as np

from .....core import device
from ....common.geometry import ConvGeometry
from ....common.primitives import Array
from ... import launch
from ...layers.linear import gemm, linear, linear_grad_x
from . import unroll

MAX_IMAGES = 65535                         # matrices of one product: they are the grid's third axis


def images(g: ConvGeometry, dtype: np.dtype) -> int:
    """How many unrolled images fit the workspace; at least one."""
    size = g.c * g.kh * g.kw * g.oh * g.ow
    fit = min(device.workspace_limit() // (size * dtype.itemsize), launch.MAX_ELEMENTS // size)
    return max(1, min(g.n, MAX_IMAGES, fit))


def _is_linear(g: ConvGeometry) -> bool:
    """The window is the whole image: each output is one product with it, a linear layer's, and nothing is unrolled."""
    return (g.kh, g.kw, g.oh, g.ow) == (g.h, g.w, 1, 1) and not (g.top or g.left)


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    if _is_linear(g):
        return linear(x.reshape(g.n, g.c * g.h * g.w), w.reshape(g.m, -1), b).reshape(g.n, g.m, 1, 1)
    return unroll.y(x, w, b, g, images(g, x.dtype))


def dx(gy: Array, w: Array, g: ConvGeometry) -> Array:
    if _is_linear(g):
        return linear_grad_x(gy.reshape(g.n, g.m), w.reshape(g.m, -1)).reshape(g.n, g.c, g.h, g.w)
    return unroll.dx(gy, w, g, images(g, gy.dtype))


def dw(gy: Array, x: Array, g: ConvGeometry) -> Array:
    if _is_linear(g):
        out = launch.empty((g.m, g.c, g.kh, g.kw), gy.dtype)
        gemm(gy.reshape(1, g.n, g.m), x.reshape(1, g.n, g.c * g.h * g.w), out.reshape(1, g.m, -1), transpose_a=True)
        return out
    return unroll.dw(gy, x, g, images(g, x.dtype))


def refuses(direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
    return None if _is_linear(g) else unroll.refuses(direction, g, dtype)
