"""Pooling of images in NHWC."""

from __future__ import annotations

import functools
import math

import numpy as np

from ...common.geometry import PoolGeometry
from ...common.primitives import Array
from .. import launch
from .pixels import configurations, constants, sum_first, sums, walk

__all__ = [
    "avg_pool2d_grad_act_nhwc", "avg_pool2d_grad_x_nhwc", "avg_pool2d_nhwc", "max_pool2d_grad_relu_b_nhwc",
    "max_pool2d_grad_relu_nhwc", "max_pool2d_grad_x_nhwc", "max_pool2d_nhwc",
]

FILE = "nhwc/pool.cu"
CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *configurations(FILE, None), *configurations(FILE, "relu", after=True)]


@functools.lru_cache(maxsize=4096)
def _spread(name: str, g: PoolGeometry, pixels: int, dtype: np.dtype,
            act: str | None = None) -> launch.Plan:
    """For results of `pixels` pixels per image."""
    given = constants(dtype, g.c, act, True)
    runs = g.n * pixels * g.c // dict(given)["WIDE"]
    return launch.Plan(FILE, name, given, (launch.spread(runs),), launch.THREADS, 0, launch.by_value("Window", g))


def max_pool2d_nhwc(x: Array, g: PoolGeometry) -> tuple[Array, Array]:
    """(y, index) as max_pool2d, the index as bytes."""
    shape = g.n, g.oh, g.ow, g.c
    y, index = launch.empty(shape, x.dtype), launch.empty(shape, np.dtype(np.uint8))
    plan = _spread("max_pool2d_nhwc", g, g.oh * g.ow, x.dtype)
    plan.start(x, y, index, plan.struct)
    return y, index


def max_pool2d_grad_x_nhwc(gy: Array, index: Array, g: PoolGeometry) -> Array:
    return _maxima(gy, index, None, g)


def max_pool2d_grad_relu_nhwc(gy: Array, index: Array, y: Array, g: PoolGeometry) -> Array:
    """The gradient of y = max_pool2d(relu(x)) by x: relu passes the winner's gradient if the winner is above 0."""
    return _maxima(gy, index, y, g)


def side_by_side(g: PoolGeometry) -> bool:
    """Whether windows are side by side, from the first row and column on."""
    return (g.sh, g.sw, g.top, g.bottom, g.left, g.right) == (g.kh, g.kw, 0, 0, 0, 0)


def _own(g: PoolGeometry) -> tuple[str, tuple[int, int]]:
    """The end of the kernel's name; and how many things for a thread to own an image has, down and across: windows that
    are side by side, with those that edges cut off, or squares of 2x2 pixels."""
    if side_by_side(g):
        return "_apart_nhwc", (launch.blocks(g.h, g.kh), launch.blocks(g.w, g.kw))
    return "_nhwc", (launch.blocks(g.h, 2), launch.blocks(g.w, 2))


def _maxima(gy: Array, index: Array, y: Array | None, g: PoolGeometry) -> Array:
    dx, (end, own) = launch.empty((g.n, g.h, g.w, g.c), gy.dtype), _own(g)
    plan = _spread("max_pool2d_grad_x" + end, g, math.prod(own), gy.dtype)
    plan.start(gy, index, y, dx, plan.struct, *own)
    return dx


def max_pool2d_grad_relu_b_nhwc(gy: Array, index: Array, y: Array, g: PoolGeometry) -> tuple[Array, Array]:
    """(max_pool2d_grad_relu_nhwc, its sum over each channel)"""
    end, own = _own(g)
    plan = walk(FILE, "max_pool2d_grad_relu_b" + end, g.n * math.prod(own), g.c, gy.dtype)
    dx, parts = launch.empty((g.n, g.h, g.w, g.c), gy.dtype), sums(1, plan.splits, g.c)
    plan.start(gy, index, y, dx, parts, launch.by_value("Window", g), plan.struct, *own)
    return dx, sum_first(parts)


def avg_pool2d_nhwc(x: Array, g: PoolGeometry) -> Array:
    y = launch.empty((g.n, g.oh, g.ow, g.c), x.dtype)
    plan = _spread("avg_pool2d_nhwc", g, g.oh * g.ow, x.dtype)
    plan.start(x, y, plan.struct)
    return y


def avg_pool2d_grad_x_nhwc(gy: Array, g: PoolGeometry) -> Array:
    return _averages(gy, None, g, None)


def avg_pool2d_grad_act_nhwc(gy: Array, y: Array, g: PoolGeometry, act: str) -> Array:
    return _averages(gy, y, g, act)


def _averages(gy: Array, y: Array | None, g: PoolGeometry, act: str | None) -> Array:
    dx = launch.empty((g.n, g.h, g.w, g.c), gy.dtype)
    plan = _spread("avg_pool2d_grad_x_nhwc", g, g.h * g.w, gy.dtype, act)
    plan.start(gy, y, dx, plan.struct)
    return dx
