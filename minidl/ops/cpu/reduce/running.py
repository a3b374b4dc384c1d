"""Sums up to each value, on NumPy arrays."""

from __future__ import annotations

import math

import numpy as np

from ...common import choice
from ...common.primitives import Array
from ..parallel import CHUNK_BYTES, empty, parallel_for, scratch

__all__ = ["cumsum"]

LANES = 1 << 9                             # sums next to each other, from which on lines are added one by one
TERMS = 16                                 # that a product of matrices adds up: it is four times as fast
UP_TO_EACH = np.triu(np.ones((TERMS, TERMS)))


def cumsum(x: Array, axis: int, reverse: bool = False) -> Array:
    """As ops.common.choice.cumsum: in float64, by blocks that stay in the cache."""
    if x.dtype.kind != "f" or x.size == 0:
        return choice.cumsum(x, axis, reverse)
    length, inner, numbers = x.shape[axis], math.prod(x.shape[axis + 1:]), CHUNK_BYTES // 8
    y = empty(x.shape, x.dtype)
    values, sums = (each.reshape(-1, length, inner)[:, ::-1 if reverse else 1] for each in (x, y))
    together = max(1, numbers // length if inner == 1 else 2 * LANES // inner)
    lines = max(1, min(length, numbers // (min(together, len(values)) * inner)))
    by_products = inner == 1 and lines >= 4 * TERMS and x.itemsize < 8     # doubles in their order

    def work(i: int, j: int) -> None:
        before: Array | float = 0.0
        for first in range(0, length, lines):
            part = values[i:j, first:first + lines]
            count = part.shape[1]
            width = -(-count // TERMS) * TERMS if by_products else count
            padded = scratch("cumsum", (j - i, width, inner), np.float64)
            block = padded[:, :count]
            block[...] = part
            block[:, 0] += before
            if by_products:
                padded[:, count:] = 0
                block = _products(padded)[:, :count]
            else:
                _accumulate(block)
            before = block[:, -1].copy()
            sums[i:j, first:first + lines] = block

    parallel_for(len(values), together, work)
    return y


def _accumulate(x: Array) -> None:
    """Sums along the second of three axes, in place. NumPy's own takes 3 ns for each number."""
    if len(x) * x.shape[2] < LANES:
        np.add.accumulate(x, axis=1, out=x)
    else:
        for i in range(1, x.shape[1]):
            np.add(x[:, i - 1], x[:, i], out=x[:, i])


def _products(x: Array) -> Array:
    """Sums along rows: blocks of a row, each with the sum of those before, times a matrix of ones and zeros."""
    blocks = x.reshape(-1, TERMS)
    before = (blocks @ np.ones(TERMS)).reshape(len(x), -1)
    np.add.accumulate(before, axis=1, out=before)
    if not np.isfinite(before[:, -1]).all():           # times 0 it would be NaN
        return np.add.accumulate(x, axis=1)
    x[:, TERMS::TERMS, 0] += before[:, :-1]
    return np.matmul(blocks, UP_TO_EACH, out=scratch("sums", blocks.shape, x.dtype)).reshape(x.shape)
