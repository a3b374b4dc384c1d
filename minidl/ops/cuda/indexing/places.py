"""Values that depend on their place in a row: triangles of matrices, and the 1 of each label, on CuPy arrays."""

from __future__ import annotations

import cupy
import numpy as np

from ...common import choice
from ...common.primitives import Array
from .. import launch
from .take import ITEMS

__all__ = ["one_hot", "tril", "triu"]

FILE = "indexing/places.cu"
CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [(FILE, (constant,)) for constant, _ in ITEMS.values()]


def tril(m: cupy.ndarray, k: int = 0) -> Array:
    return _triangle(m, k, upper=False) if _goes(m.size, m.dtype) else choice.tril(m, k)


def triu(m: cupy.ndarray, k: int = 0) -> Array:
    return _triangle(m, k, upper=True) if _goes(m.size, m.dtype) else choice.triu(m, k)


def one_hot(labels: cupy.ndarray, classes: int) -> Array:
    """As ops.common.choice.one_hot."""
    size, dtype = labels.size * classes, np.dtype(np.int64)
    if not _goes(size, dtype):
        return choice.one_hot(labels, classes)
    y = launch.empty((*labels.shape, classes), dtype)
    constant, item = ITEMS[dtype.itemsize]
    launch.kernel(FILE, "one_hot", constant)(
        (launch.spread(size),), (launch.THREADS,), labels.astype(np.int64, copy=False), y.view(item), size, classes)
    return y


def _goes(size: int, dtype: np.dtype) -> bool:
    """Whether the kernels do this."""
    return 0 < size <= launch.MAX_ELEMENTS and dtype.itemsize in ITEMS


def _triangle(m: cupy.ndarray, k: int, upper: bool) -> Array:
    y = launch.empty(m.shape, m.dtype)
    constant, item = ITEMS[m.itemsize]
    k = max(-launch.MAX_ELEMENTS, min(launch.MAX_ELEMENTS, k))         # beyond any matrix
    launch.kernel(FILE, "triangle", constant)(
        (launch.spread(m.size),), (launch.THREADS,), launch.dense(m).view(item), y.view(item), m.size, *m.shape[-2:],
        k, int(upper))
    return y
