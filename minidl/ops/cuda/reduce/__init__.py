"""Sums over the first axis in a fixed order: the second pass of every kernel that leaves partial results."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import cupy
import numpy as np

from .. import launch

COLUMNS, ROWS = 32, 8                      # as in reduce.cu

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    ("reduce/reduce.cu", (launch.real(dtype),)) for dtype in launch.C_NAME]


@functools.lru_cache(maxsize=4096)
def _plan(shape: tuple[int, ...], dtype: np.dtype) -> tuple[Callable[..., None], int]:
    """The launch for parts of a shape, and how many columns it sums."""
    columns = math.prod(shape[1:])
    kernel = launch.kernel("reduce/reduce.cu", "sum_first", launch.real(dtype))
    return kernel.sized((launch.blocks(columns, COLUMNS),), (COLUMNS, ROWS)), columns


def sum_first(parts: cupy.ndarray, out: cupy.ndarray | None = None) -> cupy.ndarray:
    """(s, ...) -> (...), the sum over the first axis; zeros where s is 0. Written to `out` where one is given."""
    shape, dtype = parts.shape, parts.dtype
    if out is None:
        out = launch.empty(shape[1:], dtype)
    start, columns = _plan(shape, dtype)
    start(parts, out, shape[0], columns)
    return out
