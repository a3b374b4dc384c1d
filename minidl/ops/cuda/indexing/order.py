"""Lines in order, on CuPy arrays: one launch where they fit into shared memory, else CuPy's sort."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from ...common import choice
from ...common.primitives import Array, Flag
from .. import launch

__all__ = ["argsort"]

FILE, MAX_SORTED = "indexing/sort.cu", 4096            # of a line, in at most 40 KiB
MAX_THREADS = 512                          # of a line
PLACE_BYTES, KEY_BYTES = 2, 4              # of sum_along's keys; argsort's are as large as its elements
CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (launch.real(dtype),)) for dtype in launch.C_NAME]


@functools.lru_cache(maxsize=4096)
def _start(name: str, dtype: np.dtype, lines: int, n: int, key_bytes: int) -> tuple[Callable[..., None], int, int]:
    """The launch for lines of n elements, a line's threads, and the power of two that it is filled up to."""
    size = max(2, 1 << (n - 1).bit_length())
    threads = min(size // 2, MAX_THREADS)
    slots = max(1, launch.THREADS // threads)
    kernel = launch.kernel(FILE, name, launch.real(dtype))
    shared = slots * size * (key_bytes + PLACE_BYTES)
    return kernel.sized((launch.blocks(lines, slots),), (slots * threads,), shared), threads, size


def argsort(x: Array, axis: int, descending: Flag = False) -> Array:
    n = x.shape[axis]
    if x.dtype not in launch.C_NAME or not x.size or n > MAX_SORTED:
        return choice.argsort(x, axis, descending)
    order = launch.empty(x.shape, np.dtype(np.int64))
    start, threads, size = _start("argsort", x.dtype, x.size // n, n, x.itemsize)
    start(x, order, x.size // n, n, math.prod(x.shape[axis + 1:]), threads, size, int(descending))
    return order


def sum_along(gy: Array, index: Array, gx: Array, lines: int, m: int, n: int, inner: int) -> None:
    """gx[b,i,c] = the sum of gy[b,j,c] over all j with index[b,j,c] = i, in their order: gx (before,n,inner), which is
    zeros; gy and index (before,m,inner); lines: before times inner."""
    if gy.size:
        start, threads, size = _start("sum_along", gy.dtype, lines, m, KEY_BYTES)
        start(gy, index, gx, lines, m, n, inner, threads, size)
