"""Random numbers and dropout on NumPy arrays, in chunks of whole blocks of Philox."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ..common.curves import choose
from ..common.draws import Key, fill_integers, fill_normal, fill_uniform, philox
from ..common.primitives import Array
from .parallel import TEMPORARY_BYTES, empty, parallel_for

__all__ = ["dropout", "dropout_grad_x", "integers", "normal", "uniform"]


def uniform(shape: tuple[int, ...], dtype: str, key: Key) -> Array:
    """Number i, in C order, is the i-th number of its dtype in [0, 1) of Philox(key)."""
    return _filled(fill_uniform, shape, dtype, key, 8 if dtype == "float32" else 4, TEMPORARY_BYTES // 4)


def normal(shape: tuple[int, ...], dtype: str, key: Key) -> Array:
    """Of mean 0 and variance 1: number i, in C order, is made of the pair i // 2 of float64 of Philox(key)."""
    return _filled(fill_normal, shape, dtype, key)


def integers(shape: tuple[int, ...], low: int, high: int, key: Key) -> Array:
    """int64 from low up to, and without, high: number i, in C order, is made of the i-th word of Philox(key)."""
    return _filled(functools.partial(fill_integers, low=low, high=high), shape, "int64", key)


def _filled(fill: Callable[..., None], shape: tuple[int, ...], dtype: str, key: Key, per_block: int = 4,
            chunk: int = TEMPORARY_BYTES // 32) -> Array:
    """A new array of so many numbers per block of Philox. chunk: how many are filled at once."""
    y = empty(shape, np.dtype(dtype))
    numbers = y.reshape(-1)
    parallel_for(y.size, chunk, lambda i, j: fill(numbers[i:j], philox(key, i // per_block)))
    return y


def dropout(x: Array, p: float, key: Key) -> Array:
    """x / (1 - p) where the i-th float32 of Philox(key), in C order, is at least p; else 0."""
    y = empty(x.shape, x.dtype)
    values, results = x.reshape(-1), y.reshape(-1)

    def work(i: int, j: int) -> None:      # of whole blocks, of eight numbers each
        kept = philox(key, i // 8).random(j - i, dtype=np.float32) >= p
        choose(kept, values[i:j] / x.dtype.type(1 - p), 0, results[i:j])

    parallel_for(x.size, TEMPORARY_BYTES // 4, work)
    return y


def dropout_grad_x(gy: Array, p: float, key: Key) -> Array:
    return dropout(gy, p, key)             # the same mask again: drawing it costs less than keeping it
