"""Random numbers, each by its place alone: of words of Philox(key), by one formula. So threads draw them in any order,
and all devices the same ones.

NumPy's own normal numbers and integers reject some words, so that what a number is made of depends on those before it.
"""

from __future__ import annotations

import math

import numpy as np

from .primitives import Array

Key = tuple[int, int]


def philox(key: Key, block: int = 0) -> np.random.Generator:
    """NumPy's generator on a key, from a block of four 64-bit words on."""
    return np.random.Generator(np.random.Philox(key=np.array(key, np.uint64), counter=block))


def fill_uniform(y: Array, draw: np.random.Generator) -> None:
    """In [0, 1): the upper 53 bits of a word, or for float32 the upper 24 of half a word, its lower half first."""
    draw.random(dtype=y.dtype, out=y)


def fill_normal(y: Array, draw: np.random.Generator) -> None:
    """Two of each pair u, v of float64 in [0, 1): r cos(2 pi v) and r sin(2 pi v), r = sqrt(-2 log(1 - u)) (Box and
    Muller 1958). In float64 for float32 too: what machines compute differently there is, rounded, nearly always equal.
    """
    u, v = draw.random((-(-y.size // 2), 2)).T
    r, angle = np.sqrt(-2 * np.log(1 - u)), 2 * math.pi * v
    y[::2], y[1::2] = r * np.cos(angle), (r * np.sin(angle))[:y.size // 2]


def fill_integers(y: Array, draw: np.random.Generator, low: int, high: int) -> None:
    """low + word % (high - low)."""
    words = draw.bit_generator.random_raw(y.size) % np.uint64(high - low)
    np.add(words.view(np.int64), low, out=y)
