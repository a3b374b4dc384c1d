"""Softmax and its logarithm on CuPy arrays: the threads of a row share its largest element and its sum."""

from __future__ import annotations

import functools
import math

from ....common.primitives import Array
from ... import launch

__all__ = ["log_softmax", "log_softmax_grad_x", "softmax", "softmax_grad_x"]

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    ("layers/activation/softmax.cu", (launch.real(dtype),)) for dtype in launch.C_NAME]


@functools.lru_cache(maxsize=4096)
def _rows(shape: tuple[int, ...], axis: int) -> tuple[int, int, int, int, int]:
    """(blocks, rows, size, inner, lanes) of softmax along an axis."""
    size, inner = shape[axis], math.prod(shape[axis + 1:])
    rows = math.prod(shape) // max(1, size)
    lanes = launch.lanes_per_row(size, inner, rows)
    return launch.blocks(rows * lanes, launch.THREADS), rows, size, inner, lanes


def _along(name: str, axis: int, *arrays: Array) -> Array:
    first = arrays[0]
    y = launch.empty(first.shape, first.dtype)
    grid, *layout = _rows(first.shape, axis)
    run = launch.kernel("layers/activation/softmax.cu", name, launch.real(first.dtype))
    run((grid,), (launch.THREADS,), *arrays, y, *layout)
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
