"""Convolution by numpy.fft: ops/fft.py on NumPy arrays, chunks of images on all cores."""

from __future__ import annotations

import functools

import numpy as np

from ... import fft
from ...primitives import Array
from ..parallel import empty, parallel_for

FILTER_BYTES = 1 << 28
IMAGE_BYTES = 1 << 22                      # of a chunk: more leaves the cache


def _forward(x: Array, size: tuple[int, int]) -> Array:
    """By norm="forward", which divides: without, NumPy transforms float32 in float64, and takes four times as long."""
    return np.fft.rfft2(x, size, norm="forward")


def _inverse(x: Array, size: tuple[int, int]) -> Array:
    return np.fft.irfft2(x, size)


BACKEND = fft.Backend(
    np, empty, _forward, _inverse, lambda points: float(points) ** 2, np.matmul,
    lambda a, b: np.matmul(a.conj(), b.swapaxes(1, 2)), parallel_for, lambda: FILTER_BYTES, lambda: IMAGE_BYTES)

y = functools.partial(fft.y, BACKEND)
dx = functools.partial(fft.dx, BACKEND)
dw = functools.partial(fft.dw, BACKEND)
