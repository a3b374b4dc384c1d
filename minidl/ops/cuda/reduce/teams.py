"""How threads share sets of values that they reduce: one thread per set, some of a warp, a block, or several blocks."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import cupy
import numpy as np

from ...common.primitives import Array
from .. import launch

ELEMENTS_PER_THREAD = 16                   # a set with over twice as many is split among teams, down to this,
MAX_THREADS = 1 << 18                      # but to at most this many threads in all: a large GPU runs them at once
MAX_SPLITS = 1 << 12
WARP = NEIGHBOURS = 32                     # sets next to each other in memory, which threads of a warp read;
SECTOR = 8                                 # if the array has at most CACHED numbers, which a cache holds, more
CACHED = 1 << 18                           # blocks of SECTOR sets, each with more threads
MAX_ALONE = 8                              # elements that a thread reads alone if there are enough threads


def teams_of(rows: int, size: int, neighbours: int, most: int = MAX_SPLITS,
             tiled: bool = False) -> tuple[int, int, int, int]:
    """(lanes, across, splits, chunk): a row of `size` elements has `splits` teams, at most `most`. A team has `lanes`
    threads and `chunk` elements. neighbours: how many rows have their elements next to each other in memory. If
    `tiled`, a group of threads is the lanes of `across` such rows. Sizes alone decide."""
    most_across = SECTOR if size > MAX_ALONE * launch.THREADS // NEIGHBOURS and rows * size <= CACHED else NEIGHBOURS
    across = min(most_across, 1 << (neighbours - 1).bit_length()) if tiled and neighbours > 1 else 1
    if across > 1:
        group = launch.THREADS if size > ELEMENTS_PER_THREAD * (WARP // across) else WARP
        lanes = 1 if size <= MAX_ALONE or (across == NEIGHBOURS and rows >= MAX_THREADS) else group // across
    elif neighbours >= NEIGHBOURS:
        lanes = 1
    elif size >= launch.THREADS and rows * launch.THREADS <= MAX_THREADS:
        lanes = launch.THREADS
    else:
        lanes = launch.lanes_per_row(size)
        while lanes > 1 and size * 2 <= MAX_ALONE * lanes and rows * lanes > MAX_THREADS:
            lanes = min(WARP, lanes // 2)
    wanted = min(most, launch.blocks(size, ELEMENTS_PER_THREAD * lanes), MAX_THREADS // (max(1, rows) * lanes) or 1)
    alone = wanted <= 2 or lanes * across not in (1, launch.THREADS)
    chunk = size if alone else launch.blocks(size, wanted)
    return lanes, across, launch.blocks(size, max(1, chunk)), max(1, chunk)


class Teams(NamedTuple):
    """How the sets of an array are shared out among teams (teams.cuh)."""

    grid: int                              # blocks of launch.THREADS
    struct: bytes                          # the struct Sets
    sets: int
    size: int                              # elements of a set
    splits: int                            # teams of a set
    chunk: int                             # elements of a team
    whole: tuple[int, bytes]               # grid and struct with one team per set, which reads `splits` values


def runs(axes: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Axes, from the last, each (size, steps from an element to the next in some arrays). Those that form one axis in
    all of the arrays are joined."""
    found: list[tuple[int, ...]] = []
    for size, *steps in axes:
        if found and steps == [found[-1][0] * step for step in found[-1][1:]]:
            found[-1] = found[-1][0] * size, *found[-1][1:]
        elif size != 1:
            found.append((size, *steps))
    return found


@functools.lru_cache(maxsize=4096)
def shared_out(shape: tuple[int, ...], steps: tuple[int, ...] | None, axis: tuple[int, ...]) -> Teams | None:
    """How sets of an array are shared out; None if there are more than two axes of a kind. steps: strides, in elements;
    None for those of C order."""
    if steps is None:
        steps = tuple(math.prod(shape[a + 1:]) for a in range(len(shape)))
    if 0 in shape:                         # nothing is read: steps do not matter
        steps = (0,) * len(shape)
    sets = runs((shape[a], steps[a]) for a in reversed(range(len(shape))) if a not in axis)
    elements = runs((shape[a], steps[a]) for a in sorted(axis, key=lambda a: -steps[a])[::-1])
    if max(len(elements), len(sets)) > 2:
        return None
    (low, low_step), (high, high_step) = (*elements, (1, 0), (1, 0))[:2]
    (near, near_step), (far, far_step) = (*sets, (1, 0), (1, 0))[:2]
    count, size = near * far, low * high

    def laid_out(lanes: int, across: int, splits: int, chunk: int) -> tuple[int, bytes]:
        near_tiles = -(-near // across)
        return launch.blocks(far * near_tiles * across * splits * lanes, launch.THREADS), launch.by_value(
            "Sets", sets=count, near=max(1, near), far_step=far_step, near_step=near_step, size=size, low=max(1, low),
            high_step=high_step, low_step=low_step, splits=splits, chunk=chunk, lanes=lanes, across=across,
            tiles=far * near_tiles, near_tiles=max(1, near_tiles))
    lanes, across, splits, chunk = teams_of(count, size, near if 0 < near_step < low_step else 1, tiled=True)
    return Teams(*laid_out(lanes, across, splits, chunk), count, size, splits, chunk,
                 laid_out(launch.lanes_per_row(splits, rows=count), 1, 1, max(1, size)))


def in_memory(x: Array) -> tuple[int, ...]:
    """The order of x's axes in memory."""
    return tuple(sorted(range(x.ndim), key=lambda a: -x.strides[a]))


def _goes_by_steps(x: Array) -> bool:
    """Whether x has gaps or repeats, but no more than `flat` takes."""
    span = sum((n - 1) * stride for n, stride in zip(x.shape, x.strides)) // max(1, x.itemsize)
    return bool(x.size) and min(x.strides) >= 0 and span < launch.MAX_ELEMENTS and not any(
        stride % x.itemsize for stride in x.strides)


def planned(x: cupy.ndarray, axis: tuple[int, ...], dense: bool = False) -> tuple[Array, Teams]:
    """x, or a copy, whose sets are walked in two steps, and how these are shared out. dense: without gaps in memory."""
    if not x._c_contiguous and (not _goes_by_steps(x) or (dense and not x.transpose(in_memory(x))._c_contiguous)):
        x = launch.dense(x)
    steps = None if x._c_contiguous else tuple(step // x.itemsize for step in x.strides)
    found = shared_out(x.shape, steps, axis)
    if found is not None:
        return x, found
    order = *(a for a in range(x.ndim) if a not in axis), *axis
    return planned(launch.dense(x.transpose(order)).transpose(np.argsort(order).tolist()), axis)
