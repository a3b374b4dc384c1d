"""Sorting of lines, on CuPy arrays. Short lines are sorted in shared memory, long ones by the digits of their keys. For
the first few values of a long line, only those that may be among them are sorted."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ....common import choice
from ....common.primitives import Array, Flag
from ... import launch

__all__ = ["argsort"]

FILE, SELECT, RADIX = (f"indexing/order/{name}.cu" for name in ("sort", "select", "radix"))
MAX_SORTED = 4096                          # elements of a line in shared memory, in at most 40 KiB
MAX_THREADS = 512                          # for such a line
PLACE_BYTES = 2
SHARE, MAX_FIRSTS = 7168, 1024             # elements that a block selects from, and the most that it selects
DIGIT_BITS, DIGITS, ROWS, TILE_BYTES = 8, 256, 512, 48 * 512     # as in radix.cu
READY, RISING, FALLING, PLACES = range(4)             # what keys are made of: Kind in radix.cu
WORDS: dict[int, tuple[str, type]] = {4: ("unsigned", np.uint32), 8: ("unsigned long long", np.uint64)}      # by bytes


def _words(key: int, item: int) -> tuple[launch.Constant, ...]:
    return ("KEY", WORDS[key][0]), ("ITEM", WORDS[item][0])


CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *((file, (launch.real(dtype),)) for file in (FILE, SELECT) for dtype in launch.C_NAME),
    *((RADIX, _words(*sizes)) for sizes in ((4, 4), (8, 4), (4, 8)))]


@functools.lru_cache(maxsize=4096)
def _start(dtype: np.dtype, lines: int, m: int) -> tuple[Callable[..., None], int, int]:
    """The launch for lines of m elements, the threads of a line, and the power of two that a line is padded to."""
    size = max(2, 1 << (m - 1).bit_length())
    threads = min(size // 2, MAX_THREADS)
    slots = max(1, launch.THREADS // threads)
    kernel = launch.kernel(FILE, "argsort", launch.real(dtype))
    shared = slots * size * (dtype.itemsize + PLACE_BYTES)
    return kernel.sized((launch.blocks(lines, slots),), (slots * threads,), shared), threads, size


def argsort(x: Array, axis: int, descending: Flag = False, first: int | None = None) -> Array:
    """As ops.common.choice.argsort."""
    n, inner, count = x.shape[axis], math.prod(x.shape[axis + 1:]), x.shape[axis] if first is None else first
    if x.dtype not in launch.C_NAME or not x.size or not count:
        return choice.argsort(x, axis, descending, first)
    lines, m, chosen, falling = x.size // n, n, None, int(descending)
    x = launch.dense(x)
    while m > MAX_SORTED and count <= MAX_FIRSTS:
        shares = launch.blocks(m, SHARE)
        places = launch.empty((lines, shares, count), np.dtype(np.int32))
        launch.kernel(SELECT, "first_of", launch.real(x.dtype))(
            (lines * shares,), (launch.THREADS,), x, chosen, places, lines, m, n, inner, count, shares, falling)
        m, chosen = shares * count, places
    if m > MAX_SORTED:
        order = launch.empty(x.shape, np.dtype(np.int64))
        by_digits(x, FALLING if falling else RISING, lines, n, inner, order=order)
        return order if count == n else order[(slice(None),) * axis + (slice(count),)].copy()
    order = launch.empty((*x.shape[:axis], count, *x.shape[axis + 1:]), np.dtype(np.int64))
    start, threads, size = _start(x.dtype, lines, m)
    start(x, chosen, order, lines, m, n, inner, count, threads, size, falling)
    return order


def by_digits(x: Array, kind: int, lines: int, n: int, inner: int, limit: int = 0, items: Array | None = None,
              order: Array | None = None) -> tuple[Any, Any]:
    """The keys of x (before,n,inner), sorted along its middle axis, and what is sorted along with them: both (lines,n)
    of unsigned numbers. The latter are the items, shaped like x, or the places along the line if there are none. If
    `order` is given, only the places are written, to it.

    x: floating-point numbers (RISING or FALLING), or indices along an axis of `limit` (PLACES, int64), from either end.
    """
    numbers = kind == PLACES
    sizes = 4 if numbers else x.itemsize, 4 if items is None else items.itemsize
    (_, key), (_, item) = (WORDS[size] for size in sizes)
    tiles = launch.blocks(n, TILE_BYTES // max(sizes))
    counts = launch.empty((lines, DIGITS, tiles), np.dtype(np.int32))
    totals = launch.empty((lines, DIGITS), np.dtype(np.int32))
    count, number, move = (launch.kernel(RADIX, name, *_words(*sizes)) for name in (
        "count_digits", "number_tiles", "move_items"))
    keys = launch.dense(x).reshape(-1).view(key)
    moved = None if items is None else launch.dense(items).reshape(-1).view(item)
    bits = max(1, (limit - 1).bit_length() if numbers else 8 * x.itemsize)
    for shift in range(0, bits, DIGIT_BITS):
        last = order is not None and shift + DIGIT_BITS >= bits
        digits = launch.by_value("DigitPass", lines=lines, n=n, inner=inner if shift == 0 else 1,
                                 order_inner=inner if last else 1, tiles=tiles, kind=kind if shift == 0 else READY,
                                 range=limit, shift=shift)
        count((lines * tiles,), (ROWS,), keys, counts, digits)
        number((launch.blocks(lines * DIGITS * 32, launch.THREADS),), (launch.THREADS,), counts, totals, lines * DIGITS,
               tiles)
        to_keys, to_items = (None if last else launch.empty((lines, n), np.dtype(of)) for of in (key, item))
        move((lines * tiles,), (ROWS,), keys, moved, counts, totals, to_keys, to_items, order if last else None, digits)
        keys, moved = to_keys, to_items
    return keys, moved
