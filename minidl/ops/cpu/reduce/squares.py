"""Variances and norms on NumPy arrays."""

from __future__ import annotations

import math

import numpy as np

from ...common.primitives import Array, Flag
from . import max, mean, sum
from .along import dots

__all__ = ["norm", "norm_grad_x", "variance", "variance_grad_x"]

# Between these a sum of squares has lost no term that matters, by dtype
SAFE = {"f": (1e-20, 1e38), "d": (1e-280, 1e307)}


def _squares(x: Array, axis: tuple[int, ...]) -> Array:
    """The sum of squares over the axes, which stay with size 1."""
    rows = x.ndim - len(axis)
    with np.errstate(over="ignore"):       # callers look for sums that are too large
        if not (x.flags.c_contiguous and axis == tuple(range(rows, x.ndim))):
            return sum(x * x, axis, True)
        flat = x.reshape((*x.shape[:rows], math.prod(x.shape[rows:])))
        return np.reshape(dots(flat, flat), x.shape[:rows] + (1,) * len(axis))


def _root_of_squares(x: Array, axis: tuple[int, ...]) -> Array:
    """The root of the sum of squares over the axes, which stay with size 1.

    If a sum is very large or small, all values are taken in units of the largest: otherwise squares overflow, or
    vanish, long before their root does.
    """
    squares = _squares(x, axis)
    small, large = SAFE[x.dtype.char]
    if np.all((squares > small) & (squares < large)):
        return np.sqrt(squares)
    count = math.prod([x.shape[a] for a in axis])
    largest = max(np.abs(x), axis, True) if count else sum(x, axis, True)              # of no values it is 0
    unit = np.where(largest == 0, 1, np.where(largest < math.inf, largest, 1))
    part = x / unit
    return np.sqrt(sum(part * part, axis, True)) * unit


def _reduced(y: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    return y if keepdims else np.reshape(y, [n for a, n in enumerate(np.shape(y)) if a not in axis])


def variance(x: Array, axis: tuple[int, ...], keepdims: Flag, root: bool, divisor: float) -> tuple[Array, Array]:
    """(y, center): squared differences from the mean over the axes, summed, over divisor; or the root of that. center:
    (2, ...) with axes of size 1, the first value of each set, and its mean less that.

    Differences from the first are 0 if all are equal, and a large mean takes none of their digits.
    """
    center = np.zeros((2, *(1 if a in axis else n for a, n in enumerate(x.shape))), x.dtype)
    d = x
    if 0 not in x.shape:
        center[0] = x[tuple(slice(1) if a in axis else slice(None) for a in range(x.ndim))]
        d = x - center[0]
        center[1] = mean(d, axis, True)
        d = np.subtract(d, center[1], out=d if d.ndim else None)
    y = _root_of_squares(d, axis) / math.sqrt(divisor) if root else sum(d * d, axis, True) / divisor
    return _reduced(y, axis, keepdims), center


def variance_grad_x(gy: Array, x: Array, y: Array, center: Array, axis: tuple[int, ...], root: bool,
                    divisor: float) -> Array:
    """The gradient of a root y is 0 where y is 0."""
    d = x - center[0]
    d = np.subtract(d, center[1], out=d if d.ndim else None)
    gys, ys = np.reshape(gy, center.shape[1:]), np.reshape(y, center.shape[1:])
    if root:
        return _over_root(gys / divisor, d, ys, d if d.ndim else None)
    return np.multiply(d, gys * (2 / divisor), out=d if d.ndim else None)


def _over_root(gy: Array, d: Array, y: Array, out: Array | None = None) -> Array:
    gx = np.divide(d, np.where(y == 0, 1, y), out=out)
    gx *= np.where(y == 0, 0, gy)
    return gx


def norm(x: Array, axis: tuple[int, ...], keepdims: Flag) -> Array:
    """The root of the sum of squares over the axes."""
    return _reduced(_root_of_squares(x, axis), axis, keepdims)


def norm_grad_x(gy: Array, x: Array, y: Array, axis: tuple[int, ...]) -> Array:
    """gy x / y, and 0 where y is 0."""
    kept = [1 if a in axis else n for a, n in enumerate(x.shape)]
    return _over_root(np.reshape(gy, kept), x, np.reshape(y, kept))
