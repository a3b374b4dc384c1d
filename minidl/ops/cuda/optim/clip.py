"""Many CuPy arrays as one vector: as in ops.cpu.updates, in a launch for up to 64 of them."""

from __future__ import annotations

import functools

import cupy
import numpy as np

from .. import launch
from ..reduce import sum_first
from .tables import THREADS, launches

FILE = "optim/clip.cu"


def square_sum(arrays: list[cupy.ndarray]) -> cupy.ndarray:
    arrays, sums = [launch.dense(x) for x in arrays], []
    for constant, blocks, table in launches("square_sum", arrays, arrays):
        parts = launch.empty((blocks,), np.dtype(np.float64))
        launch.kernel(FILE, "square_sums", constant)((blocks,), (THREADS,), table, parts)
        sums.append(sum_first(parts))
    return functools.reduce(np.add, sums)


def scaled(arrays: list[cupy.ndarray], factor: cupy.ndarray) -> tuple[cupy.ndarray, ...]:
    results = [launch.empty(x.shape, x.dtype) for x in arrays]
    multiply(results, arrays, factor, 1.0)
    return tuple(results)


def multiply(results: list[cupy.ndarray], arrays: list[cupy.ndarray], factor: cupy.ndarray | None, by: float) -> None:
    """Each result becomes an array times `by`, and times the number in `factor`, if given."""
    for constant, blocks, table in launches("scaled", results, arrays):
        launch.kernel(FILE, "scaled", constant)((blocks,), (THREADS,), table, factor, by)
