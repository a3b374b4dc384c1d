"""Activations on CuPy arrays: two kernels for all, compiled with the C++ of their rows in common/primitives.py."""

from __future__ import annotations

import functools
from collections.abc import Callable

import cupy
import numpy as np

from ....common.curves import CUDA_FUNCTIONS
from ....common.primitives import ALL, OF_X, Array, of_activations
from ... import launch

FILE = "layers/activation/activation.cu"

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (launch.real(dtype), ("ACT", act))) for act in ALL for dtype in launch.C_NAME]

# What act.cuh includes: the activations as C++
STRUCT = """struct act_{} {{
    static __device__ __forceinline__ REAL value(REAL x) {{ return {}; }}
    static __device__ __forceinline__ REAL grad(REAL gy, REAL {}) {{ return {}; }}
}};
"""
launch.GENERATED["include/activations.cuh"] = CUDA_FUNCTIONS + "".join(
    STRUCT.format(act, row.cuda_value, "x" if act in OF_X else "y", row.cuda_grad) for act, row in ALL.items())


@functools.lru_cache(maxsize=4096)
def _spread(file: str, name: str, act: str, size: int, dtype: np.dtype) -> Callable[..., None]:
    """The launch of an elementwise kernel."""
    return launch.kernel(file, name, launch.real(dtype), ("ACT", act)).sized((launch.spread(size),), (launch.THREADS,))


def _elementwise(name: str, act: str, *arrays: Array, file: str = FILE) -> Array:
    """A new array from arrays of one shape, by a kernel that takes them, the result and its size."""
    first: cupy.ndarray = arrays[0]
    order = None if first._c_contiguous else launch.one_order(arrays)
    if order:
        first, *_ = arrays = tuple(a.transpose(order) for a in arrays)
    size, dtype = first.size, first.dtype
    y = launch.empty(first.shape, dtype)
    _spread(file, name, act, size, dtype)(*arrays, y, size)
    return y.transpose(np.argsort(order).tolist()) if order else y


VALUES, GRADIENTS = of_activations(functools.partial(_elementwise, "activation"),
                                   functools.partial(_elementwise, "activation_grad_x"))
_OWN = {primitive.__name__: primitive for primitive in (*VALUES.values(), *GRADIENTS.values())}
globals().update(_OWN)

__all__ = [*_OWN]
