"""Choices, bounds and powers of elements, on NumPy arrays."""

from __future__ import annotations

import numpy as np

from ..common import choice
from ..common.curves import choose
from ..common.primitives import Array
from .parallel import TEMPORARY_BYTES, elementwise, empty, parallel_for

__all__ = ["clip", "clip_grad_x", "dropout", "dropout_grad_x", "maximum", "minimum", "pow", "rsqrt", "rsqrt_grad_x",
           "where"]

MIN_SIZE = 4096                            # smaller ones are in a cache, and one call of NumPy is the least


def _number_beside(x: object, y: object, size: int = MIN_SIZE) -> bool:
    """Whether y is a plain number and x has so many floating ones."""
    return type(y) in (int, float) and isinstance(x, np.ndarray) and x.size >= size and x.dtype.char in "fd"


def maximum(x: Array | float, y: Array | float, out: Array | None = None) -> Array:
    """The larger; clip takes half as long beside a plain number."""
    return np.clip(x, y, np.inf, out=out) if _number_beside(x, y) else np.maximum(x, y, out=out)


def minimum(x: Array | float, y: Array | float, out: Array | None = None) -> Array:
    return np.clip(x, -np.inf, y, out=out) if _number_beside(x, y) else np.minimum(x, y, out=out)


def pow(x: Array, p: Array | float, out: Array | None = None) -> Array:
    """x ** p; squares and cubes are products, as PyTorch has them, and take a tenth of the time."""
    if not (_number_beside(x, p, 1) and p in (2, 3)):
        return np.power(x, p, out=out)

    def work(y: Array, x: Array) -> None:
        np.square(x, out=y)
        if p == 3:
            np.multiply(y, x, out=y)
    if out is None:
        return elementwise(work, x)
    return np.multiply(x, x if p == 2 else np.square(x), out=out)


def clip(x: Array, low: float | None, high: float | None, out: Array | None = None) -> Array:
    return np.clip(x, low, high, out=out) if x.size >= MIN_SIZE else choice.clip(x, low, high, out)


def clip_grad_x(gy: Array, x: Array, low: float | None, high: float | None) -> Array:
    gx = gy if low is None else where(np.greater_equal(x, low), gy, 0)
    return gx if high is None else where(np.less_equal(x, high), gx, 0)


def rsqrt(x: Array) -> Array:
    """1 / sqrt(x) of floating numbers."""
    def work(y: Array, x: Array) -> None:
        np.sqrt(x, out=y)
        np.divide(1, y, out=y)
    return elementwise(work, x)


def rsqrt_grad_x(gy: Array, y: Array) -> Array:
    """-y^3 gy / 2"""
    def work(gx: Array, gy: Array, y: Array) -> None:
        np.multiply(y, y, out=gx)
        gx *= y
        gx *= gy
        gx *= -0.5
    return elementwise(work, gy, y)


def where(condition: Array, x: Array | float, y: Array | float) -> Array:
    """As ops.common.choice.where."""
    arrays = [each for each in (x, y) if isinstance(each, np.ndarray) and each.ndim]
    dtypes = {each.dtype for each in (x, y) if isinstance(each, (np.ndarray, np.generic))}
    alike = (condition.size >= MIN_SIZE and condition.dtype == np.bool_ and len(arrays) > 0
             and all(each.shape == condition.shape for each in arrays)
             and dtypes == {np.result_type(x, y)} and arrays[0].itemsize <= 8)
    if not alike:
        return choice.where(condition, x, y)

    def work(out: Array, *parts: Array) -> None:
        *given, mask = parts
        first, second = given if len(given) == 2 else (given[0], y) if arrays[0] is x else (x, given[0])
        choose(mask, first, second, out)
    return elementwise(work, *arrays, condition)


def dropout(x: Array, p: float, key: tuple[int, int]) -> Array:
    """x / (1 - p) where the i-th float32 of Philox(key), in C order, is at least p; else 0."""
    y = empty(x.shape, x.dtype)
    values, results = x.reshape(-1), y.reshape(-1)

    def work(i: int, j: int) -> None:      # Philox counts in blocks of eight numbers
        philox = np.random.Philox(key=np.array(key, np.uint64), counter=i // 8)
        kept = np.random.Generator(philox).random(j - i, dtype=np.float32) >= p
        choose(kept, values[i:j] / x.dtype.type(1 - p), 0, results[i:j])

    parallel_for(x.size, TEMPORARY_BYTES // 4, work)
    return y


def dropout_grad_x(gy: Array, p: float, key: tuple[int, int]) -> Array:
    return dropout(gy, p, key)             # the same mask again: drawing it costs less than keeping it
