"""Random numbers on CuPy arrays, by the counter-based generator of rng.py: the CPU's."""

from __future__ import annotations

import numpy as np

from ...common.primitives import Array
from .. import launch

__all__ = ["integers", "normal", "uniform"]

FILE = "data/draws.cu"

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (launch.real(dtype),)) for dtype in launch.C_NAME]

Key = tuple[int, int] | Array              # an array holds the key of a captured graph, (2,) of uint64


def uniform(shape: tuple[int, ...], dtype: str, key: Key) -> Array:
    return _filled("uniform", shape, dtype, dtype, key)


def normal(shape: tuple[int, ...], dtype: str, key: Key) -> Array:
    return _filled("normal", shape, dtype, dtype, key)


def integers(shape: tuple[int, ...], low: int, high: int, key: Key) -> Array:
    return _filled("integers", shape, "int64", "float32", key, low, high - low)


def _filled(name: str, shape: tuple[int, ...], dtype: str, real: str, key: Key, *limits: int) -> Array:
    y = launch.empty(shape, np.dtype(dtype))
    numbers = 8 if (name, dtype) == ("uniform", "float32") else 4          # per block of Philox
    keys = (None, *key) if isinstance(key, tuple) else (key, 0, 0)
    launch.kernel(FILE, name, launch.real(np.dtype(real)))(
        (launch.blocks(y.size, numbers * launch.THREADS),), (launch.THREADS,), y, y.size, *limits, *keys)
    return y
