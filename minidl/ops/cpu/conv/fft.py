"""Convolution by numpy.fft: ops/common/conv/fft.py on NumPy arrays, chunks of images on all cores."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...common.conv import fft
from ...common.primitives import Array
from ..parallel import empty, parallel_for

FILTER_BYTES = 1 << 28
IMAGE_BYTES = 1 << 26                      # of a chunk
SHARES = 8                                 # chunks, at least, for as many cores; results of at most this many are kept


def _forward(x: Array, size: tuple[int, int]) -> Array:
    """By norm="forward", which divides: without it NumPy transforms float32 in float64 and takes four times as long."""
    return np.fft.rfft2(x, size, norm="forward")


def _inverse(x: Array, size: tuple[int, int]) -> Array:
    return np.fft.irfft2(x, size)


def _correlation(a: Array, b: Array) -> Array:
    return np.matmul(a.conj(), b.swapaxes(1, 2))


def _each(count: int, chunk: int, work: fft.Work) -> Iterator[Any]:
    """Some chunks at a time: what each gives is summed before the next ones begin."""
    chunk = min(chunk, -(-count // SHARES))
    for i in range(0, count, SHARES * chunk or 1):
        yield from parallel_for(min(SHARES * chunk, count - i), chunk, functools.partial(_from, i, work))


def _from(first: int, work: fft.Work, i: int, j: int) -> Any:
    return work(first + i, first + j)


BACKEND = fft.Backend(np, empty, _forward, _inverse, lambda points: float(points) ** 2, np.matmul, _correlation, _each,
                      lambda: FILTER_BYTES, lambda: IMAGE_BYTES)

y = functools.partial(fft.y, BACKEND)
dx = functools.partial(fft.dx, BACKEND)
dw = functools.partial(fft.dw, BACKEND)
