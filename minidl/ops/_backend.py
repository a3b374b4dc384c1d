"""Array type -> the module of primitives that computes on it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from . import cpu

CONV_ALGORITHMS: tuple[str, ...] = tuple(cpu.CONV_ALGORITHMS)
BACKENDS: dict[type, ModuleType] = {np.ndarray: cpu}


def backend_of(array: Any) -> ModuleType:
    """The primitives for an array. A subclass of a known array type is served as that type."""
    try:
        return BACKENDS[type(array)]
    except KeyError:
        for known, backend in BACKENDS.items():
            if isinstance(array, known):
                return backend
        raise TypeError(f"ops: no backend computes on a {type(array).__name__}; "
                        "pass a Tensor made from numbers or a numpy.ndarray") from None
