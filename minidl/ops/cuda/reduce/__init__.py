"""Sums over the first axis in a fixed order: the second pass of every kernel that leaves partial results."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import cupy
import numpy as np

from .. import launch

COLUMNS, ROWS = 32, 8                      # as in reduce.cu
MANY_ROWS, MIN_ROWS = 1024, 64             # from how many on rows are shared out among blocks; of a share
BLOCKS = 1024                              # as many are wanted

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    ("reduce/reduce.cu", (launch.real(dtype),)) for dtype in launch.C_NAME]


class Plan(NamedTuple):
    """The launch for parts of a shape; how many columns it sums, rows a share has, and shares there are."""

    start: Callable[..., None]
    columns: int
    each: int
    shares: int


@functools.lru_cache(maxsize=4096)
def _plan(shape: tuple[int, ...], dtype: np.dtype) -> Plan:
    """Sizes alone decide, so that every GPU adds up in one order."""
    rows, columns = shape[0], math.prod(shape[1:])
    across = launch.blocks(columns, COLUMNS)
    wanted = min(launch.blocks(rows, MIN_ROWS), launch.blocks(BLOCKS, across)) if rows >= MANY_ROWS else 1
    each = launch.blocks(rows, wanted)
    shares = launch.blocks(rows, each)
    kernel = launch.kernel("reduce/reduce.cu", "sum_first", launch.real(dtype))
    return Plan(kernel.sized((across, shares), (COLUMNS, ROWS)), columns, each, shares)


def sum_first(parts: cupy.ndarray, out: cupy.ndarray | None = None) -> cupy.ndarray:
    """(s, ...) -> (...), the sum over the first axis; zeros where s is 0. Written to `out` where one is given."""
    shape, dtype = parts.shape, parts.dtype
    if out is None:
        out = launch.empty(shape[1:], dtype)
    plan = _plan(shape, dtype)
    if plan.shares == 1:
        plan.start(parts, out, shape[0], plan.columns, plan.each)
        return out
    sums = launch.empty((plan.shares, *shape[1:]), dtype)
    plan.start(parts, sums, shape[0], plan.columns, plan.each)
    return sum_first(sums, out)
