"""Means over a grid of windows that differ in size, and sums of windows that do not, on NumPy arrays."""

from __future__ import annotations

import numpy as np

from ...common.primitives import Array
from ..reduce import mean, sum

__all__ = ["adaptive_avg_pool2d", "adaptive_avg_pool2d_grad_x", "interpolate_grad_x"]


def _windows(axis: int, n: int, count: int) -> list[tuple[slice, ...]]:
    """Indices of so many parts of an axis of n elements: from i n / count, rounded down, to (i + 1) n / count, rounded
    up."""
    return [(*(slice(None),) * axis, slice(i * n // count, -(-(i + 1) * n // count))) for i in range(count)]


def adaptive_avg_pool2d(x: Array, size: tuple[int, int]) -> Array:
    """x (n,c,h,w) -> (n,c,*size)"""
    y = x
    for axis, count in zip((2, 3), size, strict=True):
        windows = _windows(axis, x.shape[axis], count)
        y = np.concatenate([mean(y[window], (axis,), True) for window in windows], axis=axis)
    return y


def adaptive_avg_pool2d_grad_x(gy: Array, size: tuple[int, int]) -> Array:
    """gx (n,c,*size)"""
    gx = gy
    axes = sorted(zip((2, 3), size, strict=True), key=lambda each: each[1] / gy.shape[each[0]])
    for axis, n in axes:                   # first the one that grows less
        of_windows, gx = gx, np.zeros_like(gx, shape=(*gx.shape[:axis], n, *gx.shape[axis + 1:]))
        for i, window in enumerate(_windows(axis, n, of_windows.shape[axis])):
            place = (*window[:-1], slice(i, i + 1))
            gx[window] += of_windows[place] / (window[-1].stop - window[-1].start)
    return gx


def interpolate_grad_x(gy: Array, factors: tuple[int, int]) -> Array:
    """The sums of gy over the places of each pixel."""
    (n, c, oh, ow), (fh, fw) = gy.shape, factors
    apart = gy.reshape(n, c, oh // fh, fh, ow // fw, fw)
    return sum(apart, (3, 5))
