"""Pooling by windows of any size, stride and padding: max pooling, and the averages of windows that overlap."""

from __future__ import annotations

import functools
from collections.abc import Callable

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
            *constants: launch.Constant) -> tuple[Callable[..., None], bytes]:
    """The launch of a kernel of pool.cu with the first result's elements spread over the grid, and the Window it takes
    last."""
    kernel = launch.kernel("layers/pool/pool.cu", name, launch.real(dtype), *constants)
    return kernel.sized((launch.spread(size),), (launch.THREADS,)), launch.by_value("Window", g)


def max_pool2d(x: Array, g: PoolGeometry) -> tuple[Array, Array]:
    """(y, index): index p*kw + q says which element of the window won."""
    y, index = launch.empty((g.n, g.c, g.oh, g.ow), x.dtype), launch.empty((g.n, g.c, g.oh, g.ow), np.int32)
    start, window = spread("max_pool2d", g, x.dtype, y.size)
    start(x, y, index, window)
    return y, index


def max_pool2d_grad_x(gy: Array, index: Array, g: PoolGeometry) -> Array:
    dx = launch.empty((g.n, g.c, g.h, g.w), gy.dtype)
    start, window = spread("max_pool2d_grad_x", g, gy.dtype, dx.size)
    start(gy, index, dx, window)
    return dx
