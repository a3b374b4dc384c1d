"""Means over a grid of windows that differ in size, or are large, or of an array that is read in place."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from ....common.primitives import Array
from ... import launch
from ...reduce import sum_first

__all__ = ["adaptive_avg_pool2d", "adaptive_avg_pool2d_grad_x"]

FILE = "layers/pool/adaptive.cu"
ELEMENTS_PER_THREAD, ELEMENTS_PER_TEAM = 8, 16 * launch.THREADS        # of a window, from which it has more of them
MAX_BLOCKS = 1024                          # up to which windows have several teams
CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (launch.real(dtype),)) for dtype in launch.C_NAME]


@functools.lru_cache(maxsize=4096)
def _averages(shape: tuple[int, ...], steps: tuple[int, ...], size: tuple[int, int],
              dtype: np.dtype) -> tuple[Callable[..., None], int, bytes]:
    """The launch, how many teams a window has, and the struct Windows. Sizes alone decide."""
    count = math.prod((*shape[:2], *size))
    area = math.prod(-(-n // windows) for n, windows in zip(shape[2:], size, strict=True))
    lanes, splits = launch.lanes_per_row(launch.blocks(area, ELEMENTS_PER_THREAD), rows=count), 1
    if lanes == launch.THREADS:
        splits = min(launch.blocks(area, ELEMENTS_PER_TEAM), max(1, MAX_BLOCKS // max(1, count)))
    start = launch.kernel(FILE, "adaptive_avg_pool2d", launch.real(dtype)).sized(
        (launch.blocks(count * lanes * splits, launch.THREADS),), (launch.THREADS,))
    _, c, h, w = shape
    return start, splits, launch.by_value("Windows", size=count, c=c, h=h, w=w, oh=size[0], ow=size[1], lanes=lanes,
                                          splits=splits, step=steps)


def adaptive_avg_pool2d(x: Array, size: tuple[int, int]) -> Array:
    memory, steps = launch.flat(x)
    start, splits, windows = _averages(x.shape, steps, size, x.dtype)
    parts = launch.empty((splits, *x.shape[:2], *size), x.dtype)
    start(memory, parts, windows)
    return parts[0] if splits == 1 else sum_first(parts)


@functools.lru_cache(maxsize=4096)
def _gradient(size: int, dtype: np.dtype) -> Callable[..., None]:
    return launch.kernel(FILE, "adaptive_avg_pool2d_grad_x", launch.real(dtype)).sized(
        (launch.blocks(size, launch.THREADS),), (launch.THREADS,))


def adaptive_avg_pool2d_grad_x(gy: Array, size: tuple[int, int]) -> Array:
    gx = launch.empty((*gy.shape[:2], *size), gy.dtype)
    _gradient(gx.size, gy.dtype)(gy, gx, gx.size, *size, *gy.shape[2:])
    return gx
