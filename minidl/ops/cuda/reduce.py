"""Sums over the first axis in a fixed order: the second pass of every kernel that leaves partial results."""

from __future__ import annotations

import math

import cupy

from . import launch

COLUMNS, ROWS = 32, 8                      # as in reduce.cu

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    ("reduce.cu", (launch.real(dtype),)) for dtype in launch.C_NAME]


def sum_first(parts: cupy.ndarray, out: cupy.ndarray | None = None) -> cupy.ndarray:
    """(s, ...) -> (...), the sum over the first axis; zeros where s is 0. Written to `out` where one is given."""
    shape = parts.shape[1:]
    if out is None:
        out = launch.empty(shape, parts.dtype)
    columns = math.prod(shape)
    launch.kernel("reduce.cu", "sum_first", launch.real(parts.dtype))(
        (launch.blocks(columns, COLUMNS),), (COLUMNS, ROWS), parts, out, parts.shape[0], columns)
    return out
