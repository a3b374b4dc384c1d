"""Elementwise functions in one launch, for which CuPy would take several; formulas.cu has them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import cupy
import numpy as np

from ....common import choice
from ....common.primitives import Array
from ... import launch

__all__ = ["clip", "clip_grad_x", "pow", "rsqrt", "rsqrt_grad_x"]

FILE = "layers/activation/formulas.cu"
POWERS: dict[float, str] = {2: "squared", 3: "cubed"}      # exponents whose powers are products, as PyTorch has them

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (launch.real(dtype), ("FORMULA", name))) for dtype in launch.C_NAME
    for name in (*POWERS.values(), "bounded", "bounded_grad", "over_root", "over_root_grad")]


@functools.lru_cache(maxsize=4096)
def _start(name: str, size: int, dtype: np.dtype) -> Callable[..., None]:
    kernel = launch.kernel(FILE, "formula", launch.real(dtype), ("FORMULA", name))
    return kernel.sized((launch.spread(size),), (launch.THREADS,))


def _formula(name: str, x: Array, z: Array | None = None, p: float = 0.0, q: float = 0.0,
             out: cupy.ndarray | None = None) -> Array:
    """A new array from one or two of one shape and two numbers, or `out`, which may be x."""
    y = launch.empty(x.shape, x.dtype) if out is None or not out._c_contiguous else out
    _start(name, x.size, x.dtype)(x, z, p, q, y, x.size)
    if out is None or out is y:
        return y
    out[...] = y
    return out


def pow(x: Array, p: Array | float, out: Array | None = None) -> Array:
    """x ** p, of which CuPy computes even a square by logarithms."""
    if isinstance(p, (int, float)) and p in POWERS and x.dtype in launch.C_NAME:
        return _formula(POWERS[p], x, out=out)
    return np.power(x, p, out=out)


def clip(x: Array, low: float | None, high: float | None, out: Array | None = None) -> Array:
    if x.dtype not in launch.C_NAME:
        return choice.clip(x, low, high, out)
    return _formula("bounded", x, None, -math.inf if low is None else low, math.inf if high is None else high, out)


def clip_grad_x(gy: Array, x: Array, low: float | None, high: float | None) -> Array:
    return _formula("bounded_grad", gy, x, -math.inf if low is None else low, math.inf if high is None else high)


def rsqrt(x: Array) -> Array:
    return _formula("over_root", x)


def rsqrt_grad_x(gy: Array, y: Array) -> Array:
    return _formula("over_root_grad", gy, y)
