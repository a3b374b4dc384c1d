"""Array type -> the module of primitives that computes on it."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from ...core import tensor
from ...core.device import is_cuda
from ...core.mode import mode
from ...core.tensor import Array, Tensor
from .. import cpu

CONV_ALGORITHMS = cpu.CONV_ALGORITHMS
BACKENDS: dict[type, ModuleType] = {np.ndarray: cpu}       # and cupy.ndarray, once there is one


def backend_of(first: Tensor, *others: object) -> ModuleType:
    """The primitives for Tensors and arrays; the first one decides. A recorder is told that they are used."""
    mode.recorder.given(first, *others)
    return primitives_of(first._data)


def primitives_of(array: object) -> ModuleType:
    """The primitives for an array; while a step is recorded, in a form that notes each call.

    A subclass of a known array type is served as that type.
    """
    return mode.recorder.through(_of(array))


def owns(array: Array) -> bool:
    """Whether no other array shares an array's memory, so that a leaf can take it over as its gradient."""
    if array.base is None:
        return True
    if is_cuda(array):
        from ..cuda import launch

        return launch.owns(array)
    # A thread that has done its part of a large array may refer to it a moment longer: then a recording would have one
    # more copy. So a recording always has that copy, and a pass leaves it out.
    return not mode.recorder.recording and cpu.parallel.owns(array)


tensor.backend_of = backend_of             # for a leaf's own backward: nothing told it a backend before
tensor.owns = owns


def in_order_of(x: Array, y: Array) -> Array:
    """x, maybe copied, so that writing into y what is computed from both goes through memory once: NumPy follows y's
    memory order. The CUDA kernels handle this themselves."""
    return x if is_cuda(x) else cpu.parallel.in_order_of(x, y)


def _of(array: object) -> ModuleType:
    try:
        return BACKENDS[type(array)]
    except KeyError:
        for known, backend in BACKENDS.items():
            if isinstance(array, known):
                return backend
        if is_cuda(array):
            return _cuda(type(array))
        raise TypeError(f"ops: no backend computes on a {type(array).__name__}; "
                        "pass a Tensor made from numbers or a numpy.ndarray") from None


def _cuda(array_type: type) -> ModuleType:
    """The CUDA primitives, imported with the first CUDA array."""
    from .. import cuda

    BACKENDS[array_type] = cuda
    return cuda
