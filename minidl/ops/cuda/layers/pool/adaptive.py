"""Means over a grid of windows that differ in size."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from ....common.primitives import Array
from ... import launch

__all__ = ["adaptive_avg_pool2d", "adaptive_avg_pool2d_grad_x"]

FILE = "layers/pool/adaptive.cu"
CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (launch.real(dtype),)) for dtype in launch.C_NAME]


@functools.lru_cache(maxsize=4096)
def _start(name: str, dtype: np.dtype, size: int, lanes: int) -> Callable[..., None]:
    """The launch for so many results, each of which some threads share."""
    return launch.kernel(FILE, name, launch.real(dtype)).sized(
        (launch.blocks(size * lanes, launch.THREADS),), (launch.THREADS,))


def adaptive_avg_pool2d(x: Array, size: tuple[int, int]) -> Array:
    y = launch.empty((*x.shape[:2], *size), x.dtype)
    lanes = launch.lanes_per_row(math.prod(-(-n // count) for n, count in zip(x.shape[2:], size, strict=True)))
    _start("adaptive_avg_pool2d", x.dtype, y.size, lanes)(x, y, y.size, *x.shape[2:], *size, lanes)
    return y


def adaptive_avg_pool2d_grad_x(gy: Array, size: tuple[int, int]) -> Array:
    gx = launch.empty((*gy.shape[:2], *size), gy.dtype)
    _start("adaptive_avg_pool2d_grad_x", gy.dtype, gx.size, 1)(gy, gx, gx.size, *size, *gy.shape[2:])
    return gx
