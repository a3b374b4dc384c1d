"""Activations, softmax and dropout on CuPy arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from .. import launch

Array = Any

THREADS = 256
LONG_ROW = 1024                            # elements of a row from which a whole block shares it

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (f"activation/{file}.cu", (launch.real(dtype),))
    for file in ("activation", "softmax", "dropout") for dtype in launch.C_NAME
]


# ---------------------------------------------------------------- elementwise
@functools.lru_cache(maxsize=4096)
def _spread(name: str, size: int, dtype: Any) -> Callable[..., None]:
    """The launch of an elementwise kernel."""
    grid = min(launch.blocks(size, THREADS), 16 * launch.multiprocessors())
    return launch.kernel("activation/activation.cu", name, launch.real(dtype)).sized((grid,), (THREADS,))


def _elementwise(name: str, *arrays: Array) -> Array:
    """A new array from arrays of one shape, by a kernel that takes them, the result and its size."""
    first = arrays[0]
    size, dtype = first.size, first.dtype
    y = launch.empty(first.shape, dtype)
    _spread(name, size, dtype)(*arrays, y, size)
    return y


def sigmoid(x: Array) -> Array:
    return _elementwise("sigmoid", x)


def sigmoid_grad_x(gy: Array, y: Array) -> Array:
    """gy * y * (1 - y)"""
    return _elementwise("sigmoid_grad_x", gy, y)


def tanh(x: Array) -> Array:
    return _elementwise("tanh_y", x)


def tanh_grad_x(gy: Array, y: Array) -> Array:
    """gy * (1 - y^2)"""
    return _elementwise("tanh_grad_x", gy, y)


def relu(x: Array) -> Array:
    return _elementwise("relu", x)


def relu_grad_x(gy: Array, y: Array) -> Array:
    """0 where y <= 0, else gy, where y is NaN too"""
    return _elementwise("relu_grad_x", gy, y)


VALUES = {"tanh": tanh, "sigmoid": sigmoid, "relu": relu}      # what the `act` of fused primitives names


# ---------------------------------------------------------------- along an axis
@functools.lru_cache(maxsize=4096)
def _rows(shape: tuple[int, ...], axis: int) -> tuple[int, int, int, int, int]:
    """(blocks, rows, size, inner, lanes) of softmax along an axis."""
    size, inner = shape[axis], math.prod(shape[axis + 1:])
    rows = math.prod(shape) // max(1, size)
    return launch.blocks(rows * (lanes := lanes_a_row(size, inner)), THREADS), rows, size, inner, lanes


def lanes_a_row(size: int, inner: int = 1) -> int:
    """How many threads share a row: one where elements are apart, so that neighbours read neighbours."""
    if inner > 1:
        return 1
    return THREADS if size >= LONG_ROW else min(32, 1 << max(0, size - 1).bit_length())


def _along(name: str, axis: int, *arrays: Array) -> Array:
    first = arrays[0]
    y = launch.empty(first.shape, first.dtype)
    grid, *layout = _rows(first.shape, axis)
    run = launch.kernel("activation/softmax.cu", name, launch.real(first.dtype))
    run((grid,), (THREADS,), *arrays, y, *layout)
    return y


def softmax(x: Array, axis: int) -> Array:
    return _along("softmax", axis, x)


def softmax_grad_x(gy: Array, y: Array, axis: int) -> Array:
    """y * (gy - sum of gy * y)"""
    return _along("softmax_grad_x", axis, gy, y)


def log_softmax(x: Array, axis: int) -> Array:
    return _along("log_softmax", axis, x)


def log_softmax_grad_x(gy: Array, y: Array, axis: int) -> Array:
    """gy - softmax * sum of gy"""
    return _along("log_softmax_grad_x", axis, gy, y)


# ---------------------------------------------------------------- dropout
def dropout(x: Array, p: float, key: tuple[int, int]) -> Array:
    """x / (1 - p) where the i-th float32 of Philox(key), in C order, is at least p; else 0."""
    y = launch.empty(x.shape, x.dtype)
    run = launch.kernel("activation/dropout.cu", "dropout", launch.real(x.dtype))
    run((launch.blocks(x.size, 8 * THREADS),), (THREADS,), x, y, x.size, p, 1 - p, *key)
    return y


def dropout_grad_x(gy: Array, p: float, key: tuple[int, int]) -> Array:
    return dropout(gy, p, key)             # the same mask again: drawing it costs less than keeping it
