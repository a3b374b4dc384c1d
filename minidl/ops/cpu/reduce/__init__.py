"""Sums and largest values on NumPy arrays; the rounding errors of sums do not grow with their length."""

from __future__ import annotations

import math

import numpy as np

from ...common import choice, shared
from ...common.primitives import Array, Flag
from ...common.shared import _grown
from .along import reduced

__all__ = ["max", "max_grad_x", "mean", "min", "prod", "prod_grad_x", "sum", "sum_to"]


def sum(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return reduced(np.add, x, axis, keepdims)


def max(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return reduced(np.maximum, x, axis, keepdims)


def max_grad_x(gy: Array, x: Array, y: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """As ops.common.shared.max_grad_x; if no two are equal, by one store."""
    winners = x == shared.spread(y, x.shape, axis, keepdims)
    if np.count_nonzero(winners) != np.size(y) or np.isnan(y).any():
        return shared.max_grad_x(gy, x, y, axis, keepdims)
    gx = np.zeros_like(x)
    np.copyto(gx, shared.spread(gy, x.shape, axis, keepdims), where=winners)
    return gx


def min(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return reduced(np.minimum, x, axis, keepdims)


def prod(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return reduced(np.multiply, x, axis, keepdims)


def prod_grad_x(gy: Array, x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """gy times the product of the others: y / x, unless a y is 0, has lost digits or is infinite."""
    y = prod(x, axis, True)
    size, digits = np.abs(y), np.finfo(x.dtype)
    if not np.all((size >= digits.smallest_normal) & (size <= digits.max)):
        return choice.prod_grad_x(gy, x, axis, keepdims)
    gx = y / x
    gx *= np.reshape(gy, y.shape)
    return gx


def mean(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    if x.size == 0 or x.dtype.kind != "f":
        return np.mean(x, axis=axis, keepdims=keepdims)
    return np.true_divide(sum(x, axis, keepdims), math.prod([x.shape[a] for a in axis]), dtype=x.dtype)


def sum_to(gy: Array, shape: tuple[int, ...]) -> Array:
    """Sum a gradient back to the shape that broadcasting grew from."""
    return gy if gy.shape == shape else np.reshape(sum(gy, _grown(gy.shape, shape)), shape)
