"""Activations, softmax and dropout on NumPy arrays."""

from __future__ import annotations

import numpy as np

from .parallel import elementwise
from .reduce import sum

Array = np.ndarray


def sigmoid(x: Array) -> Array:
    def work(y: Array, x: Array) -> None:
        np.negative(x, out=y)
        if np.max(y, initial=0) < np.log(np.finfo(x.dtype).max):
            np.exp(y, out=y)
        else:                              # inf, or NaN
            with np.errstate(over="ignore"):
                np.exp(y, out=y)           # inf for very negative x: 1 / inf = 0 is the right answer
        y += 1
        np.divide(1, y, out=y)             # np.reciprocal takes longer
    return elementwise(work, x)


def sigmoid_grad_x(gy: Array, y: Array) -> Array:
    """gy * y * (1 - y)"""
    def work(gx: Array, gy: Array, y: Array) -> None:
        np.subtract(1, y, out=gx)
        gx *= y
        gx *= gy
    return elementwise(work, gy, y)


def tanh(x: Array) -> Array:
    return elementwise(lambda y, x: np.tanh(x, out=y), x)


def tanh_grad_x(gy: Array, y: Array) -> Array:
    """gy * (1 - y^2)"""
    def work(gx: Array, gy: Array, y: Array) -> None:
        np.multiply(y, y, out=gx)
        np.subtract(1, gx, out=gx)
        gx *= gy
    return elementwise(work, gy, y)


def relu(x: Array) -> Array:
    return elementwise(lambda y, x: np.maximum(x, 0, out=y), x)


def relu_grad_x(gy: Array, y: Array) -> Array:
    """0 where y <= 0, else gy, where y is NaN too"""
    def work(gx: Array, gy: Array, y: Array) -> None:
        gx[...] = gy
        np.copyto(gx, 0, where=y <= 0)     # stored, not multiplied: an infinite gy times 0 would be NaN
    return elementwise(work, gy, y)


# What the `act` of fused primitives names: an activation, and its gradient
VALUES = {"tanh": tanh, "sigmoid": sigmoid, "relu": relu}
GRADIENTS = {"tanh": tanh_grad_x, "sigmoid": sigmoid_grad_x, "relu": relu_grad_x}


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
