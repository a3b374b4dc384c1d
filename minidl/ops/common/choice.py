"""Primitives that choose, order and convert, as NumPy's own functions express them for every array type.

Both backends re-export this module, as they do `shared`, which holds those that a plain training step runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .primitives import Array, Flag

__all__ = [
    "abs", "argmin", "argsort", "cast", "ceil", "clip", "cos", "cumsum", "expm1", "floor", "floor_divide",
    "interpolate", "log1p", "maximum", "min", "minimum", "one_hot", "pad", "prod", "prod_grad_x", "remainder", "round",
    "sign", "sin", "tril", "triu", "unique", "where",
]

abs: Callable[..., Array] = np.abs
sign: Callable[..., Array] = np.sign
maximum: Callable[..., Array] = np.maximum              # NaN where either is NaN
minimum: Callable[..., Array] = np.minimum
sin: Callable[..., Array] = np.sin
cos: Callable[..., Array] = np.cos
log1p: Callable[..., Array] = np.log1p
expm1: Callable[..., Array] = np.expm1
floor: Callable[..., Array] = np.floor
ceil: Callable[..., Array] = np.ceil
round: Callable[..., Array] = np.rint                   # of two equally near ones the even one
tril: Callable[..., Array] = np.tril
triu: Callable[..., Array] = np.triu


def floor_divide(x: Array | float, y: Array | float) -> Array:
    return np.floor_divide(x, y)


def remainder(x: Array | float, y: Array | float) -> Array:
    """With the sign of the second."""
    return np.remainder(x, y)


def where(condition: Array, x: Array | float, y: Array | float) -> Array:
    """x where the condition holds, y elsewhere; float32 if both are plain numbers and one is floating."""
    plain = not hasattr(x, "dtype") and not hasattr(y, "dtype")
    if plain and (isinstance(x, float) or isinstance(y, float)):
        return np.where(condition, np.float32(x), y)
    return np.where(condition, x, y)


def clip(x: Array, low: float | None, high: float | None, out: Array | None = None) -> Array:
    """x, but at least low and at most high; None is not a bound."""
    y = x if low is None else np.maximum(x, low, out=out)
    return y if high is None else np.minimum(y, high, out=out)


def min(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return np.min(x, axis=axis, keepdims=keepdims)


def argmin(x: Array, axis: int | None) -> Array | np.integer:
    return np.argmin(x, axis=axis)


def argsort(x: Array, axis: int, descending: Flag = False, first: int | None = None) -> Array:
    """The order of rising values along an axis; equal ones keep their order, NaN comes last. descending: of falling
    ones, NaN first. first: only this many, from the start."""
    if descending:
        order = np.argsort(np.flip(x, axis), axis=axis, kind="stable")   # rising, and equal ones last to first
        order = x.shape[axis] - 1 - np.flip(order, axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    return order if first is None else np.take(order, range(first), axis)


def unique(x: Array, inverse: Flag, counts: Flag) -> tuple[Array, ...]:
    """The values in rising order, each once, except NaN; each element's place among them; how often each is there."""
    found = np.unique(x, return_inverse=inverse, return_counts=counts, equal_nan=False)
    parts: list[Array] = [*found] if isinstance(found, tuple) else [found]
    if inverse:
        parts[1] = parts[1].reshape(x.shape)
    return tuple(parts)


def one_hot(labels: Array, classes: int) -> Array:
    """1 at each label along a new last axis of `classes`, and 0 elsewhere, as int64."""
    return np.equal(labels[..., None], np.arange(classes, like=labels)).astype(np.int64)


def prod(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return np.prod(x, axis=axis, keepdims=keepdims)


def prod_grad_x(gy: Array, x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """gy times the product of the others: that of those before times that of those after."""
    order = *(a for a in range(x.ndim) if a not in axis), *axis
    turned, count = np.transpose(x, order), math.prod(x.shape[a] for a in axis)
    values = turned.reshape(math.prod(turned.shape[:x.ndim - len(axis)]), count)
    before, behind = np.ones_like(values), np.ones_like(values)
    np.cumprod(values[:, :-1], axis=1, out=before[:, 1:])
    np.cumprod(values[:, :0:-1], axis=1, out=behind[:, 1:])
    others = np.reshape(before * behind[:, ::-1], turned.shape)
    return (gy if keepdims else np.expand_dims(gy, axis)) * np.transpose(others, np.argsort(order).tolist())


def cumsum(x: Array, axis: int, reverse: bool = False) -> Array:
    """Sums up to each value; of floating numbers in float64, since in float32 they stop growing at 2^24. reverse: sums
    from each value on."""
    if reverse:
        return np.flip(cumsum(np.flip(x, axis), axis), axis)
    if x.dtype.kind != "f":
        return np.cumsum(x, axis=axis)
    return np.cumsum(x, axis=axis, dtype=np.float64).astype(x.dtype, copy=False)


def cast(x: Array, dtype: str) -> Array:
    return x.astype(dtype)


def interpolate(x: Array, factors: tuple[int, int]) -> Array:
    """x (n,c,h,w) -> (n,c,h fh,w fw), each pixel fh by fw times."""
    (n, c, h, w), (fh, fw) = x.shape, factors
    y = np.empty_like(x, shape=(n, c, h, fh, w, fw), order="C")
    y[...] = x[:, :, :, None, :, None]
    return y.reshape(n, c, h * fh, w * fw)


def pad(x: Array, widths: tuple[tuple[int, int], ...], value: float) -> Array:
    """x within a frame of one value: (before, after) of each axis."""
    y = np.full_like(x, value, shape=tuple(n + before + after for n, (before, after) in zip(x.shape, widths)))
    y[tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, widths))] = x
    return y
