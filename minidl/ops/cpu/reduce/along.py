"""Reductions by a ufunc, in the order of memory, by loops of NumPy that are long.

NumPy adds up pairwise along the axis with the smallest stride, and one after the other along any other: in float32 the
mean of 20 million rows of ones came out as 0.84. Here those are summed in blocks, and blocks of blocks. NumPy's loops
run along the axis with the smallest stride: if that has few elements, a loop costs more than its elements.
"""

from __future__ import annotations

import math

import numpy as np

from ...common.primitives import Array

MAX_PLAIN_TERMS = 128                      # of a sum, for which NumPy's way is good enough, if there
MAX_PLAIN_SUMS = 1 << 8                    # are at most this many results
BLOCK = 32                                 # terms that are reduced one after the other
WIDE = 1 << 9                              # elements of a loop
LONG = 1 << 13                             # of a row whose product is taken in float64: half of the products of
                                           # numbers near 1 are halfway between two, and are rounded to the same side
MAX_SHORT = 16                             # elements of a row that is reduced by columns, and
MAX_HALVED = 1 << 7                        # of one whose halves are reduced first: a loop costs as much as 100 elements
MAX_DOT_TERMS = 1 << 9                     # that BLAS adds up: with many it loses a digit. NumPy keeps the interpreter
                                           # locked below 500 results


def reduced(ufunc: np.ufunc, x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """ufunc.reduce over sorted axes. Axes that are neighbours in memory are joined; in the best case all are."""
    count = math.prod([x.shape[a] for a in axis])
    few = x.size == 0 or (count <= MAX_PLAIN_TERMS and x.size <= MAX_PLAIN_SUMS * count)
    if few or (x.dtype.kind != "f" and ufunc in (np.add, np.multiply)):                # those of masks are integers
        return ufunc.reduce(x, axis=axis, keepdims=keepdims)
    if count == 1:                         # NumPy would run a loop for each
        return x.copy() if keepdims else x.reshape([n for a, n in enumerate(x.shape) if a not in axis]).copy()
    order, turned = [*range(x.ndim)], not x.flags.c_contiguous
    if turned:
        order.sort(key=lambda a: -abs(x.strides[a]))
    kept = [a for a in order if a not in axis and x.shape[a] != 1]
    y = x.transpose(order) if turned else x
    runs = _runs([i for i, a in enumerate(order) if a in axis or x.shape[a] == 1])
    for first, last in runs if ufunc is np.add else runs[::-1]:            # rows last: only their sums are fast
        before, behind = y.shape[:first], y.shape[last + 1:]
        part = y.reshape(math.prod(before), math.prod(y.shape[first:last + 1]), math.prod(behind))
        if part.shape[1] > 1:
            part = _rows(ufunc, part[..., 0]) if part.shape[2] == 1 else _columns(ufunc, part)
        y = part.reshape(before + (1,) * (last - first + 1) + behind)
    if turned:
        y = y.reshape([x.shape[a] for a in kept]).transpose(np.argsort(kept))
    return y.reshape([1 if a in axis else n for a, n in enumerate(x.shape) if keepdims or a not in axis])


def dots(x: Array, y: Array | None = None) -> Array:
    """The sum of x * y over the last axis; y of x's shape, or None for ones. It takes half the time of np.sum(x * y),
    or less. The result is not a view: the caller may change x."""
    length = x.shape[-1]
    if length == 1:
        return x[..., 0].copy() if y is None else (x * y)[..., 0]
    count = -(-length // MAX_DOT_TERMS) or 1
    terms = MAX_DOT_TERMS if length % count else length // count
    whole = length // terms * terms if terms else 0
    ones = np.ones(terms, x.dtype)

    def blocks(a: Array) -> Array:
        return a if whole == terms == length else a[..., :whole].reshape(*a.shape[:-1], -1, terms)
    sums = np.vecdot(blocks(x), ones if y is None else blocks(y))
    if count > 1:
        sums = np.sum(sums, axis=-1)
    if whole == length:
        return sums
    return sums + np.vecdot(x[..., whole:], ones[:length - whole] if y is None else y[..., whole:])


def _runs(axis: list[int]) -> list[tuple[int, int]]:
    """Sorted axes as (first, last) of those that are neighbours, from the back."""
    runs: list[tuple[int, int]] = []
    for a in reversed(axis):
        if runs and runs[-1][0] == a + 1:
            runs[-1] = a, runs[-1][1]
        else:
            runs.append((a, a))
    return runs


def _rows(ufunc: np.ufunc, x: Array) -> Array:
    """(rows, n) -> (rows,)"""
    plainly = ufunc is np.add or (x.shape[1] > MAX_HALVED and ufunc is not np.multiply)
    if plainly and (x.shape[1] > MAX_SHORT or len(x) < MAX_SHORT):
        by_blas = ufunc is np.add and x.dtype.char in "fd" and x.strides[1] == x.itemsize
        return dots(x) if by_blas else ufunc.reduce(x, axis=1)
    if x.shape[1] > LONG:
        whole = x.shape[1] // WIDE * WIDE
        y = ufunc.reduce(x[:, :whole].reshape(len(x), -1, WIDE), axis=1, dtype=np.float64)
        return _rows(ufunc, np.concatenate([y, x[:, whole:]], 1)).astype(x.dtype)
    while x.shape[1] > MAX_SHORT:
        half = x.shape[1] // 2
        y = ufunc(x[:, :half], x[:, half:2 * half])
        if x.shape[1] % 2:
            ufunc(y[:, 0], x[:, -1], out=y[:, 0])
        x = y
    y = x[:, 0].copy()
    for column in x.T[1:]:
        ufunc(y, column, out=y)
    return y


def _columns(ufunc: np.ufunc, x: Array) -> Array:
    """(m, n, width) -> (m, width)"""
    m, n, width = x.shape
    together = min(WIDE // width, n // 4)  # rows that are taken as one
    if together > 1:
        whole = n // together * together
        y = _columns(ufunc, x[:, :whole].reshape(m, whole // together, together * width)).reshape(m, together, width)
        return _columns(ufunc, y if whole == n else np.concatenate([y, x[:, whole:]], 1))
    if n <= BLOCK or ufunc is not np.add:
        return ufunc.reduce(x, axis=1)
    whole = n // BLOCK * BLOCK
    sums = ufunc.reduce(x[:, :whole].reshape(m, whole // BLOCK, BLOCK, width), axis=2)
    return _columns(ufunc, sums if whole == n else np.concatenate([sums, x[:, whole:]], 1))
