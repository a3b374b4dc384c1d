"""Pooling by windows of any size, stride and padding, of images in NCHW or NHWC: max pooling, and the averages of
windows that overlap."""

from __future__ import annotations

import functools
import math

import numpy as np

from ....common.geometry import PoolGeometry
from ....common.geometry.layouts import IMAGES, ordered
from ....common.geometry.nhwc import C_TYPES
from ....common.primitives import ACTIVATIONS, Array
from ... import launch, pixels
from ...reduce import sum_first

__all__ = ["max_pool2d", "max_pool2d_grad_relu", "max_pool2d_grad_relu_b", "max_pool2d_grad_x"]

FILE = "layers/pool/pool.cu"
WINNERS = {"NCHW": np.dtype(np.int32), "NHWC": np.dtype(np.uint8)}
MAX_APART = 3                              # columns of a window in NCHW: neighbouring threads write this far apart
IN_NHWC: tuple[launch.Constant, ...] = ("LAYOUT", "NHWC"), ("WINNER", "unsigned char")


def shape_x(g: PoolGeometry) -> tuple[int, ...]:
    """Of x and dx."""
    return ordered(IMAGES[g.layout], (g.n, g.c, g.h, g.w))


def shape_y(g: PoolGeometry) -> tuple[int, ...]:
    """Of y, gy and index."""
    return ordered(IMAGES[g.layout], (g.n, g.c, g.oh, g.ow))


def _constants(layout: str, dtype: np.dtype, channels: int, act: str | None = None) -> tuple[launch.Constant, ...]:
    if layout == "NHWC":
        return (*IN_NHWC, *pixels.constants(dtype, channels, act, True))
    return (launch.real(dtype), ("STORE", launch.C_NAME[dtype]), ("WINNER", "int"),
            *((("ACT", act), ("AFTER", 1)) if act else ()))


CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *((FILE, _constants("NCHW", dtype, 1, act)) for dtype in launch.C_NAME for act in (None, *ACTIVATIONS)),
    *((FILE, _constants("NHWC", dtype, channels, act)) for dtype in C_TYPES for channels in (8, 1)
      for act in (None, "relu"))]


@functools.lru_cache(maxsize=4096)
def spread(name: str, g: PoolGeometry, dtype: np.dtype, places: int, act: str | None = None) -> launch.Plan:
    """Of a kernel of pool.cu whose threads share a number of places in each plane."""
    given = _constants(g.layout, dtype, g.c, act)
    planes = {"n": g.n * g.c, "c": 1} if g.layout == "NCHW" else {}        # images of one channel
    runs = g.n * g.c * places // dict(given).get("WIDE", 1)
    return launch.Plan(FILE, name, given, (launch.spread(runs),), launch.THREADS, 0,
                       launch.by_value("Window", g, **planes))


def max_pool2d(x: Array, g: PoolGeometry) -> tuple[Array, Array]:
    """(y, index): index p*kw+q says which element of the window won; in NHWC it is a byte."""
    y, index = launch.empty(shape_y(g), x.dtype), launch.empty(shape_y(g), WINNERS[g.layout])
    plan = spread("max_pool2d", g, x.dtype, g.oh * g.ow)
    plan.start(x, y, index, plan.struct)
    return y, index


# ---------------------------------------------------------------- gradients of maxima
def side_by_side(g: PoolGeometry) -> bool:
    """Whether windows are side by side, from the first row and column on."""
    return (g.sh, g.sw, g.top, g.bottom, g.left, g.right) == (g.kh, g.kw, 0, 0, 0, 0)


def _own(g: PoolGeometry) -> tuple[str, tuple[int, int]]:
    """The end of the kernel's name; and how many things for a thread to own a plane has, down and across: windows that
    are side by side, with those that edges cut off, or squares of 2x2 pixels."""
    if side_by_side(g) and (g.layout == "NHWC" or g.kw <= MAX_APART):
        return "_apart", (launch.blocks(g.h, g.kh), launch.blocks(g.w, g.kw))
    return "", (launch.blocks(g.h, 2), launch.blocks(g.w, 2))


def max_pool2d_grad_x(gy: Array, index: Array, g: PoolGeometry) -> Array:
    return max_pool2d_grad_relu(gy, index, None, g)


def max_pool2d_grad_relu(gy: Array, index: Array, y: Array | None, g: PoolGeometry) -> Array:
    """The gradient of y = max_pool2d(relu(x)) by x: relu passes the winner's gradient if the winner is above 0. Without
    y, that of max_pool2d(x)."""
    dx, (end, own) = launch.empty(shape_x(g), gy.dtype), _own(g)
    plan = spread("max_pool2d_grad_x" + end, g, gy.dtype, math.prod(own))
    plan.start(gy, index, y, dx, plan.struct, *own)
    return dx


def max_pool2d_grad_relu_b(gy: Array, index: Array, y: Array, g: PoolGeometry) -> tuple[Array, Array]:
    """(max_pool2d_grad_relu, its sum over each channel), in NHWC"""
    end, own = _own(g)
    plan = pixels.walk(FILE, "max_pool2d_grad_relu_b" + end, g.n * math.prod(own), g.c, gy.dtype, more=IN_NHWC)
    dx, parts = launch.empty(shape_x(g), gy.dtype), pixels.sums(1, plan.splits, g.c)
    plan.start(gy, index, y, dx, parts, launch.by_value("Window", g), plan.struct, *own)
    return dx, sum_first(parts)
