"""Sums and largest values on NumPy arrays; the rounding errors of sums do not grow with their length."""

from __future__ import annotations

import math

import numpy as np

from ...common.primitives import Array, Flag
from ...common.shared import _grown
from .along import reduced

__all__ = ["max", "mean", "min", "prod", "sum", "sum_to"]


def sum(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return reduced(np.add, x, axis, keepdims)


def max(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return reduced(np.maximum, x, axis, keepdims)


def min(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return reduced(np.minimum, x, axis, keepdims)


def prod(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return reduced(np.multiply, x, axis, keepdims)


def mean(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    if x.size == 0 or x.dtype.kind != "f":
        return np.mean(x, axis=axis, keepdims=keepdims)
    return np.true_divide(sum(x, axis, keepdims), math.prod([x.shape[a] for a in axis]), dtype=x.dtype)


def sum_to(gy: Array, shape: tuple[int, ...]) -> Array:
    """Sum a gradient back to the shape that broadcasting grew from."""
    return gy if gy.shape == shape else np.reshape(sum(gy, _grown(gy.shape, shape)), shape)
