"""Random numbers and dropout on NumPy arrays.

A number depends on its place alone: it is made of words of Philox(key), by one formula. So threads draw numbers in any
order, in chunks of whole blocks, and all devices draw the same ones. NumPy's own normal numbers and integers reject
some words: there a number depends on those before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..common.curves import choose
from ..common.primitives import Array
from .parallel import CHUNK_BYTES, TEMPORARY_BYTES, empty, parallel_for

__all__ = ["dropout", "dropout_grad_x", "integers", "normal", "uniform"]

Key = tuple[int, int]
MAX_MASKS, MAX_MASK_SIZE = 64, 1 << 22     # of elements: 32 MiB of bits, which take a tenth of the time of drawing them
_masks: dict[tuple[Key, float, int], Array] = {}       # of dropouts, the oldest first


def _philox(key: Key, block: int) -> np.random.Generator:
    """NumPy's generator for a key, from a block of four 64-bit words on."""
    return np.random.Generator(np.random.Philox(key=np.array(key, np.uint64), counter=block))


def _filled(shape: tuple[int, ...], dtype: str, key: Key, fill: Callable[[Array, np.random.Generator], object],
            per_block: int = 4, chunk: int = TEMPORARY_BYTES // 32) -> Array:
    """A new array. per_block: how many numbers a block of Philox gives. chunk: how many are filled at once."""
    y = empty(shape, np.dtype(dtype))
    numbers = y.reshape(-1)
    parallel_for(y.size, chunk, lambda i, j: fill(numbers[i:j], _philox(key, i // per_block)))
    return y


def uniform(shape: tuple[int, ...], dtype: str, key: Key) -> Array:
    """In [0, 1): number i, in C order, is the upper 53 bits of word i, or for float32 the upper 24 of half a word, its
    lower half first."""
    return _filled(shape, dtype, key, lambda y, draw: draw.random(dtype=y.dtype, out=y),
                   8 if dtype == "float32" else 4, TEMPORARY_BYTES // 4)


def normal(shape: tuple[int, ...], dtype: str, key: Key) -> Array:
    """Of mean 0 and variance 1. Each pair u, v of float64 in [0, 1) gives two: r cos(2 pi v) and r sin(2 pi v) with r =
    sqrt(-2 log(1 - u)) (Box and Muller 1958). They are computed in float64 for float32 too: machines differ there, but
    the rounded numbers are nearly always equal."""
    def fill(y: Array, draw: np.random.Generator) -> None:
        u, v = draw.random((-(-y.size // 2), 2)).T
        r, angle = np.sqrt(-2 * np.log(1 - u)), 2 * math.pi * v
        y[::2], y[1::2] = r * np.cos(angle), (r * np.sin(angle))[:y.size // 2]
    return _filled(shape, dtype, key, fill)


def integers(shape: tuple[int, ...], low: int, high: int, key: Key) -> Array:
    """int64 from low up to, and without, high: number i, in C order, is low + word i % (high - low)."""
    def fill(y: Array, draw: np.random.Generator) -> None:
        words = draw.bit_generator.random_raw(y.size) % np.uint64(high - low)
        np.add(words.view(np.int64), low, out=y)
    return _filled(shape, "int64", key, fill)


def dropout(x: Array, p: float, key: Key) -> Array:
    """x / (1 - p) where the i-th float32 of Philox(key), in C order, is at least p; else 0."""
    bits = np.empty(-(-x.size // 8), np.uint8)

    def draw(i: int, j: int) -> Array:     # of whole blocks, of eight numbers each
        kept = _philox(key, i // 8).random(j - i, dtype=np.float32) >= p
        bits[i // 8:-(-j // 8)] = np.packbits(kept)
        return kept

    y = _masked(x, p, draw)
    if x.size <= MAX_MASK_SIZE:
        _masks[key, p, x.size] = bits
        for oldest in list(_masks)[:-MAX_MASKS]:
            _masks.pop(oldest, None)
    return y


def dropout_grad_x(gy: Array, p: float, key: Key) -> Array:
    """By the mask of the forward pass, or the same one drawn again."""
    bits = _masks.get((key, p, gy.size))
    if bits is None:
        return dropout(gy, p, key)
    return _masked(gy, p, lambda i, j: np.unpackbits(bits[i // 8:-(-j // 8)], count=j - i).view(np.bool_))


def _masked(x: Array, p: float, mask: Callable[[int, int], Array]) -> Array:
    y = empty(x.shape, x.dtype)
    values, results = x.reshape(-1), y.reshape(-1)

    def work(i: int, j: int) -> None:
        np.divide(values[i:j], x.dtype.type(1 - p), out=results[i:j])
        choose(mask(i, j), results[i:j], 0, results[i:j])
    parallel_for(x.size, CHUNK_BYTES // 4, work)
    return y
