"""Pooling by windows of any size, stride and padding: max pooling, and the averages of windows that overlap."""

from __future__ import annotations

import functools

import numpy as np

from ....common.geometry import PoolGeometry
from ....common.primitives import ACTIVATIONS, Array
from ... import launch

__all__ = ["max_pool2d", "max_pool2d_grad_x"]

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    ("layers/pool/pool.cu", (launch.real(dtype), *act))
    for dtype in launch.C_NAME for act in ((), *((("ACT", act),) for act in ACTIVATIONS))]


@functools.lru_cache(maxsize=4096)
def spread(name: str, g: PoolGeometry, dtype: np.dtype, size: int,
            *constants: launch.Constant) -> launch.Plan:
    """Of a kernel of pool.cu with the first result's elements spread over the grid."""
    return launch.Plan("layers/pool/pool.cu", name, (launch.real(dtype), *constants), (launch.spread(size),),
                       launch.THREADS, 0, launch.by_value("Window", g))


def max_pool2d(x: Array, g: PoolGeometry) -> tuple[Array, Array]:
    """(y, index): index p*kw + q says which element of the window won."""
    y, index = launch.empty((g.n, g.c, g.oh, g.ow), x.dtype), launch.empty((g.n, g.c, g.oh, g.ow), np.int32)
    plan = spread("max_pool2d", g, x.dtype, y.size)
    plan.start(x, y, index, plan.struct)
    return y, index


def max_pool2d_grad_x(gy: Array, index: Array, g: PoolGeometry) -> Array:
    dx = launch.empty((g.n, g.c, g.h, g.w), gy.dtype)
    plan = spread("max_pool2d_grad_x", g, gy.dtype, dx.size)
    plan.start(gy, index, dx, plan.struct)
    return dx
