"""Which of two values an element becomes, on NumPy arrays: by a condition, or by chance."""

from __future__ import annotations

import numpy as np

from ..common import choice
from ..common.curves import choose
from ..common.primitives import Array
from .parallel import TEMPORARY_BYTES, elementwise, empty, parallel_for

__all__ = ["dropout", "dropout_grad_x", "where"]

MIN_SIZE = 4096                            # smaller ones are in a cache, and one call of NumPy is the least


def where(condition: Array, x: Array | float, y: Array | float) -> Array:
    """As ops.common.choice.where."""
    arrays = [each for each in (x, y) if isinstance(each, np.ndarray) and each.ndim]
    dtypes = {each.dtype for each in (x, y) if isinstance(each, (np.ndarray, np.generic))}
    alike = (condition.size >= MIN_SIZE and condition.dtype == np.bool_ and len(arrays) > 0
             and all(each.shape == condition.shape for each in arrays)
             and dtypes == {np.result_type(x, y)} and arrays[0].itemsize <= 8)
    if not alike:
        return choice.where(condition, x, y)

    def work(out: Array, *parts: Array) -> None:
        *given, mask = parts
        first, second = given if len(given) == 2 else (given[0], y) if arrays[0] is x else (x, given[0])
        choose(mask, first, second, out)
    return elementwise(work, *arrays, condition)


def dropout(x: Array, p: float, key: tuple[int, int]) -> Array:
    """x / (1 - p) where the i-th float32 of Philox(key), in C order, is at least p; else 0."""
    y = empty(x.shape, x.dtype)
    values, results = x.reshape(-1), y.reshape(-1)

    def work(i: int, j: int) -> None:      # Philox counts in blocks of eight numbers
        philox = np.random.Philox(key=np.array(key, np.uint64), counter=i // 8)
        kept = np.random.Generator(philox).random(j - i, dtype=np.float32) >= p
        choose(kept, values[i:j] / x.dtype.type(1 - p), 0, results[i:j])

    parallel_for(x.size, TEMPORARY_BYTES // 4, work)
    return y


def dropout_grad_x(gy: Array, p: float, key: tuple[int, int]) -> Array:
    return dropout(gy, p, key)             # the same mask again: drawing it costs less than keeping it
