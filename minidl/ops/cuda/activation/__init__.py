"""Activations, softmax and dropout on CuPy arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from ...primitives import ACTIVATIONS, Array, of_activations
from .. import launch

THREADS = 256
LONG_ROW = 1024                            # elements of a row from which a whole block shares it

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *[(f"activation/{file}.cu", (launch.real(dtype),)) for file in ("softmax", "dropout") for dtype in launch.C_NAME],
    *[("activation/activation.cu", (launch.real(dtype), ("ACT", act)))
      for act in ACTIVATIONS for dtype in launch.C_NAME],
]

# What act.cuh includes: the activations as C++
STRUCT = """struct act_{} {{
    static __device__ __forceinline__ REAL value(REAL x) {{ return {}; }}
    static __device__ __forceinline__ REAL grad(REAL gy, REAL y) {{ return {}; }}
}};
"""
launch.GENERATED["include/activations.cuh"] = "".join(STRUCT.format(act, row.cuda_value, row.cuda_grad)
                                                      for act, row in ACTIVATIONS.items())


# ---------------------------------------------------------------- elementwise
@functools.lru_cache(maxsize=4096)
def _spread(name: str, act: str, size: int, dtype: np.dtype) -> Callable[..., None]:
    """The launch of an elementwise kernel."""
    grid = min(launch.blocks(size, THREADS), 16 * launch.multiprocessors())
    return launch.kernel("activation/activation.cu", name, launch.real(dtype), ("ACT", act)).sized((grid,), (THREADS,))


def _elementwise(name: str, act: str, *arrays: Array) -> Array:
    """A new array from arrays of one shape, by a kernel that takes them, the result and its size."""
    first = arrays[0]
    size, dtype = first.size, first.dtype
    y = launch.empty(first.shape, dtype)
    _spread(name, act, size, dtype)(*arrays, y, size)
    return y


VALUES, GRADIENTS = of_activations(functools.partial(_elementwise, "activation"),
                                   functools.partial(_elementwise, "activation_grad_x"))
_OWN = {primitive.__name__: primitive for primitive in (*VALUES.values(), *GRADIENTS.values())}
globals().update(_OWN)

__all__ = ["dropout", "dropout_grad_x", "log_softmax", "log_softmax_grad_x", "softmax", "softmax_grad_x", *_OWN]


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
