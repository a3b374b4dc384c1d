"""Activations, softmax and dropout on NumPy arrays."""

from __future__ import annotations

import numpy as np

from ..common.primitives import ALL, Array, of_activations
from .parallel import elementwise
from .reduce import sum

VALUES, GRADIENTS = of_activations(lambda act, x: elementwise(ALL[act].value, x),
                                   lambda act, gy, y: elementwise(ALL[act].grad, gy, y))
_OWN = {primitive.__name__: primitive for primitive in (*VALUES.values(), *GRADIENTS.values())}
globals().update(_OWN)

__all__ = ["dropout", "dropout_grad_x", "log_softmax", "log_softmax_grad_x", "softmax", "softmax_grad_x", *_OWN]


def _shifted(x: Array, axis: int) -> Array:
    """x less its largest value along the axis, which leaves softmax as it is and keeps e^x finite."""
    return x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)


def softmax(x: Array, axis: int) -> Array:
    y = np.exp(_shifted(x, axis))
    y /= sum(y, (axis,), True)
    return y


def softmax_grad_x(gy: Array, y: Array, axis: int) -> Array:
    """y * (gy - sum of gy * y)"""
    return y * (gy - sum(gy * y, (axis,), True))


def log_softmax(x: Array, axis: int) -> Array:
    y = _shifted(x, axis)
    if y.size:
        y -= np.log(sum(np.exp(y), (axis,), True))
    return y


def log_softmax_grad_x(gy: Array, y: Array, axis: int) -> Array:
    """gy - softmax * sum of gy"""
    return gy - np.exp(y) * sum(gy, (axis,), True)


def dropout(x: Array, p: float, key: tuple[int, int]) -> Array:
    """x / (1 - p) where the i-th float32 of Philox(key), in C order, is at least p; else 0."""
    philox = np.random.Philox(key=np.array(key, np.uint64))
    kept = np.random.Generator(philox).random(x.shape, dtype=np.float32) >= p
    return np.where(kept, x / x.dtype.type(1 - p), x.dtype.type(0))


def dropout_grad_x(gy: Array, p: float, key: tuple[int, int]) -> Array:
    return dropout(gy, p, key)             # the same mask again: drawing it costs less than keeping it
