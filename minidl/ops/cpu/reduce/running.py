"""Sums up to each value, on NumPy arrays."""

from __future__ import annotations

import math

import numpy as np

from ...common import choice
from ...common.primitives import Array
from ..parallel import TEMPORARY_BYTES, empty, parallel_for, scratch

__all__ = ["cumsum"]


def cumsum(x: Array, axis: int, reverse: bool = False) -> Array:
    """As ops.common.choice.cumsum: in float64, by blocks that stay in the cache."""
    if x.dtype.kind != "f" or x.size == 0:
        return choice.cumsum(x, axis, reverse)
    length, inner, numbers = x.shape[axis], math.prod(x.shape[axis + 1:]), TEMPORARY_BYTES // 8
    y = empty(x.shape, x.dtype)
    values, sums = (each.reshape(-1, length, inner)[:, ::-1 if reverse else 1] for each in (x, y))
    lines = max(1, min(length, numbers // inner))

    def work(i: int, j: int) -> None:
        before: Array | float = 0.0
        for first in range(0, length, lines):
            part = values[i:j, first:first + lines]
            block = scratch("cumsum", part.shape, np.float64)
            block[...] = part
            block[:, 0] += before
            np.add.accumulate(block, axis=1, out=block)
            before = block[:, -1].copy()
            sums[i:j, first:first + lines] = block

    parallel_for(len(values), max(1, numbers // (lines * inner)), work)
    return y
