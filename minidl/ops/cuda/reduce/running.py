"""Sums up to each value on CuPy arrays: one launch, or two if a row has several teams of threads."""

from __future__ import annotations

import functools
import math

import numpy as np

from ...common import choice
from ...common.primitives import Array
from .. import launch
from .teams import teams_of

__all__ = ["cumsum"]

FILE, THREADS = "reduce/running.cu", launch.THREADS
MAX_SPLITS = 1 << 9                        # each team adds up the parts before its own

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (("REAL", "double"), ("VALUE", name))) for name in launch.C_NAME.values()]


@functools.lru_cache(maxsize=4096)
def _plan(shape: tuple[int, ...], axis: int, reverse: bool) -> tuple[int, bytes, int, int]:
    """(blocks, the struct Running, rows, teams of a row)"""
    size, inner = shape[axis], math.prod(shape[axis + 1:])
    rows = math.prod(shape) // max(1, size)
    lanes, _, splits, chunk = teams_of(rows, size, inner, MAX_SPLITS)
    return launch.blocks(rows * splits * lanes, THREADS), launch.by_value(
        "Running", rows=rows, size=size, inner=max(1, inner), reverse=int(reverse), splits=splits, chunk=chunk,
        lanes=lanes), rows, splits


def cumsum(x: Array, axis: int, reverse: bool = False) -> Array:
    """As ops.common.choice.cumsum, which adds up integers."""
    if x.dtype not in launch.C_NAME:
        return choice.cumsum(x, axis, reverse)
    constants = ("REAL", "double"), ("VALUE", launch.C_NAME[x.dtype])
    grid, struct, rows, splits = _plan(x.shape, axis, reverse)
    y, parts = launch.empty(x.shape, x.dtype), None
    if splits > 1:
        parts = launch.empty((splits, rows), np.dtype(np.float64))
        launch.kernel(FILE, "running_parts", *constants)((grid,), (THREADS,), x, parts, struct)
    launch.kernel(FILE, "running_sums", *constants)((grid,), (THREADS,), x, parts, y, struct)
    return y
