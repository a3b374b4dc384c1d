"""Each pixel several times."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ....common import choice
from ....common.primitives import Array
from ... import launch

__all__ = ["interpolate", "interpolate_grad_x"]

FILE = "layers/pool/nearest.cu"
CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (launch.real(dtype),)) for dtype in launch.C_NAME]


@functools.lru_cache(maxsize=4096)
def _start(name: str, dtype: np.dtype, size: int) -> Callable[..., Any]:
    """The launch of `size` threads."""
    return launch.kernel(FILE, name, launch.real(dtype)).sized(
        (launch.blocks(size, launch.THREADS),), (launch.THREADS,))


def interpolate(x: Array, factors: tuple[int, int]) -> Array:
    """x (n,c,h,w) -> (n,c,h fh,w fw)"""
    if x.dtype not in launch.C_NAME or not x.size:
        return choice.interpolate(x, factors)
    (n, c, h, w), (fh, fw) = x.shape, factors
    y = launch.empty((n, c, h * fh, w * fw), x.dtype)
    _start("interpolate", x.dtype, x.size * fw)(x, y, n * c * h, w, fh, fw)
    return y


def interpolate_grad_x(gy: Array, factors: tuple[int, int]) -> Array:
    """The sums of gy over the places of each pixel."""
    (n, c, oh, ow), (fh, fw) = gy.shape, factors
    gx = launch.empty((n, c, oh // fh, ow // fw), gy.dtype)
    if gx.size:
        _start("interpolate_grad_x", gy.dtype, gx.size)(gy, gx, math.prod(gx.shape[:3]), gx.shape[3], fh, fw)
    return gx
