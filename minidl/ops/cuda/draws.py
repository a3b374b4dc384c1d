"""Random numbers on CuPy arrays: drawn by the host."""

from __future__ import annotations

import cupy
import numpy as np

from ..common import draws
from ..common.draws import Key
from ..common.primitives import Array

__all__ = ["integers", "normal", "uniform"]


def uniform(shape: tuple[int, ...], dtype: str, key: Key) -> Array:
    y = np.empty(shape, dtype)
    draws.fill_uniform(y.reshape(-1), draws.philox(key))
    return cupy.asarray(y)


def normal(shape: tuple[int, ...], dtype: str, key: Key) -> Array:
    y = np.empty(shape, dtype)
    draws.fill_normal(y.reshape(-1), draws.philox(key))
    return cupy.asarray(y)


def integers(shape: tuple[int, ...], low: int, high: int, key: Key) -> Array:
    y = np.empty(shape, np.int64)
    draws.fill_integers(y.reshape(-1), draws.philox(key), low, high)
    return cupy.asarray(y)
