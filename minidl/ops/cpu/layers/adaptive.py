"""Means over a grid of windows that differ in size, and pixels several times, on NumPy arrays."""

from __future__ import annotations

import itertools

import numpy as np

from ...common.primitives import Array
from ..parallel import empty, images_per_chunk, parallel_for, scratch
from ..reduce import mean

__all__ = ["adaptive_avg_pool2d", "adaptive_avg_pool2d_grad_x", "interpolate", "interpolate_grad_x"]

MIN_LINE = 8                               # values of a line that are worth a loop of NumPy's


def _windows(axis: int, n: int, count: int) -> list[tuple[slice, ...]]:
    """Indices of `count` parts of an axis of n elements: from i n / count, rounded down, to (i + 1) n / count, rounded
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


def _lines(x: Array, width: int) -> tuple[Array, bool]:
    """Rows of images as (lines, width, values of a pixel), and whether x is in memory with channels last."""
    last = not x.flags.c_contiguous and x.transpose(0, 2, 3, 1).flags.c_contiguous
    values = x.shape[1] if last else 1
    return (x.transpose(0, 2, 3, 1) if last else x).reshape(x.size // max(1, width * values), width, values), last


def _images(lines: Array, n: int, c: int, h: int, w: int, last: bool) -> Array:
    return lines.reshape(n, h, w, c).transpose(0, 3, 1, 2) if last else lines.reshape(n, c, h, w)


def _add_up(y: Array, parts: list[Array]) -> Array:
    np.copyto(y, parts[0])
    for part in parts[1:]:
        y += part
    return y


def interpolate(x: Array, factors: tuple[int, int]) -> Array:
    """x (n,c,h,w) -> (n,c,h fh,w fw), each pixel fh by fw times, in x's memory order.

    By one store for each place within a line, and one for all lines: NumPy's loops over a few neighbours take longer.
    """
    (n, c, h, w), (fh, fw) = x.shape, factors
    lines, last = _lines(x, w)
    count, _, values = lines.shape
    y = empty((count, fh, w, fw, values), x.dtype)
    wide = y if w * fw * values < MIN_LINE else empty((count, 1, w, fw, values), x.dtype)
    for i, j in itertools.product(range(wide.shape[1]), range(fw)):
        wide[:, i, :, j] = lines
    if wide is not y:
        y.reshape(count, fh, w * fw * values)[...] = wide.reshape(count, 1, w * fw * values)
    return _images(y, n, c, h * fh, w * fw, last)


def interpolate_grad_x(gy: Array, factors: tuple[int, int]) -> Array:
    """The sums of gy over the places of each pixel."""
    (n, c, oh, ow), (fh, fw) = gy.shape, factors
    lines, last = _lines(gy, ow)
    count, w, values = len(lines) // fh, ow // fw, lines.shape[2]
    places = lines.reshape(count, fh, w, fw, values)
    gx = empty((count, w, values), gy.dtype)

    def work(begin: int, end: int) -> None:
        part = places[begin:end]
        if ow * values >= MIN_LINE:
            high = part.reshape(end - begin, fh, -1)
            rows = _add_up(scratch("rows", (end - begin, ow * values), gy.dtype), [high[:, i] for i in range(fh)])
            part = rows.reshape(end - begin, 1, w, fw, values)
        _add_up(gx[begin:end], [part[:, i, :, j] for i, j in itertools.product(range(part.shape[1]), range(fw))])

    parallel_for(count, images_per_chunk(fh * ow * values * gy.itemsize), work)
    return _images(gx, n, c, oh // fh, w, last)
