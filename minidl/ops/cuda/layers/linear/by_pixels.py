"""The fully connected layer: with many rows as a convolution of 1x1, whose products the hardware feeds (wgmma); with
few rows, in fp32, and if the hardware has no wgmma, by the kernels of layers/linear."""

from __future__ import annotations

import numpy as np

from .....core.device import precision
from ....common.geometry import ConvGeometry, conv_geometry
from ....common.primitives import Array
from ...layers import linear as by_tiles
from ...nhwc.conv import conv
from ...pixels import has_wgmma
from . import fused

__all__ = ["linear", "linear_act", "linear_grad_x"]

MIN_ROWS, MIN_WIDTH = 1024, 32             # from which it pays


def _pixels(rows: int, w: Array, dtype: np.dtype) -> ConvGeometry | None:
    """Rows as pixels, if that pays: copies of 16 bytes need widths that fill them."""
    if rows < MIN_ROWS:
        return None
    out, width = w.shape
    if (min(out, width) < MIN_WIDTH or out % 4 or width % 4 or dtype != np.float32
            or precision() not in ("tf32", "bf16") or not has_wgmma()):
        return None
    return conv_geometry((rows, width, 1, 1), (out, width, 1, 1), None, 1, 0, "auto")


def _product(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str | None = None) -> Array:
    image = x.reshape(g.n, 1, 1, g.c)
    return conv.y(image, w.reshape(g.m, g.c, 1, 1), b, g, act, precision=precision()).reshape(g.n, g.m)


def linear(x: Array, w: Array, b: Array | None) -> Array:
    g = _pixels(len(x), w, x.dtype)
    return _product(x, w, b, g) if g else by_tiles.linear(x, w, b)


def linear_act(x: Array, w: Array, b: Array | None, act: str) -> Array:
    """act(linear(x))"""
    g = _pixels(len(x), w, x.dtype)
    return _product(x, w, b, g, act) if g else fused.linear_act(x, w, b, act)


def linear_grad_x(gy: Array, w: Array) -> Array:
    g = _pixels(len(gy), w, gy.dtype)
    if not g:
        return by_tiles.linear_grad_x(gy, w)
    image = gy.reshape(g.n, 1, 1, g.m)
    return conv.grad_x(image, w.reshape(g.m, g.c, 1, 1), g, precision=precision()).reshape(g.n, g.c)
