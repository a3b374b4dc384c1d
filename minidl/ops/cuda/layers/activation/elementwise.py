"""Activations on CuPy arrays, and of sums: three kernels for all, compiled with the C++ of their rows in
common/primitives.py."""

from __future__ import annotations

import functools
from collections.abc import Callable

import cupy
import numpy as np

from ....common.curves import CUDA_FUNCTIONS
from ....common.primitives import ALL, OF_X, Array, of_activations
from ....common.shared import add
from ... import launch
from ...pixels import configurations

FILE = "layers/activation/activation.cu"


def _constants(dtype: np.dtype, act: str) -> tuple[launch.Constant, ...]:
    return launch.real(dtype), ("STORE", launch.C_NAME[dtype]), ("ACT", act), ("AFTER", 1)


CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *((FILE, _constants(dtype, act)) for act in ALL for dtype in launch.C_NAME),
    *configurations(FILE, "relu", "gelu", after=True), *configurations(FILE, None)]

# What act.cuh includes: the activations as C++
STRUCT = """struct act_{} {{
    static __device__ __forceinline__ REAL value(REAL x) {{ return {}; }}
    static __device__ __forceinline__ REAL grad(REAL gy, REAL {}) {{ return {}; }}
}};
"""
launch.GENERATED["include/activations.cuh"] = CUDA_FUNCTIONS + "".join(
    STRUCT.format(act, row.cuda_value, "x" if act in OF_X else "y", row.cuda_grad) for act, row in ALL.items())


@functools.lru_cache(maxsize=4096)
def _spread(name: str, act: str, size: int, dtype: np.dtype) -> Callable[..., None]:
    """The launch of an elementwise kernel."""
    return launch.kernel(FILE, name, *_constants(dtype, act)).sized((launch.spread(size),), (launch.THREADS,))


def _elementwise(name: str, act: str, *arrays: Array | None) -> Array:
    """A new array from arrays of one shape, by a kernel that takes them, the result and its size."""
    first: cupy.ndarray = arrays[0]
    order = None if first._c_contiguous else launch.one_order([a for a in arrays if a is not None])
    if order:
        first, *_ = arrays = tuple(a if a is None else a.transpose(order) for a in arrays)
    size, dtype = first.size, first.dtype
    y = launch.empty(first.shape, dtype)
    _spread(name, act, size, dtype)(*arrays, y, size)
    return y.transpose(np.argsort(order).tolist()) if order else y


def value(act: str, x: Array) -> Array:
    return _elementwise("activation", act, x)


def gradient(act: str, gy: Array, y: Array) -> Array:
    return _elementwise("activation_grad_x", act, gy, None, y)


VALUES, GRADIENTS = of_activations(value, gradient)
_OWN = {primitive.__name__: primitive for primitive in (*VALUES.values(), *GRADIENTS.values())}
globals().update(_OWN)

__all__ = ["add_act", "add_grad_act", *_OWN]


# ---------------------------------------------------------------- of sums
def alike(x: object, y: object) -> bool:
    """Whether both are arrays of one shape and dtype, which kernels add as they are."""
    return (getattr(x, "shape", None), getattr(x, "dtype", 0)) == (getattr(y, "shape", 0), getattr(y, "dtype", None))


def add_act(x: Array, other: Array, act: str) -> Array:
    """act(x + other)"""
    return _elementwise("add_act", act, x, other) if alike(x, other) else VALUES[act](add(x, other))


def add_grad_act(gy: Array, other: Array, y: Array, act: str) -> Array:
    """The gradient by z of y = act(z), which two have read: gy + other is its gradient. y is z for those of OF_X."""
    if alike(gy, other):
        return _elementwise("activation_grad_x", act, gy, other, y)
    return GRADIENTS[act](add(gy, other), y)
