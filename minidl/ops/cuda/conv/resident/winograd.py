"""Launchers of winograd.cu, and the choice of its tiles from the shape.

Its rounding. Filters and pixels become sums and differences of up to four before they are multiplied, so for operands
of random signs a product is about twice as large as in the plain sum, and there are as many: an output is the sum of
four kinds. Its roundings are less than twice as large, those of the sums before the products add an eps or two of each
product at random, and both lie within the eight-fold margin of `product_bound` in tests/cuda/test_cuda_ops.py.

But that error is one of the filter times the pixels, not of the very products that an output sums: in one dimension
y0 = H0*(X0-X1) + (H0+H1)*X1 also meets H0*X1, which cancels. Over many products both are alike. Over few, or at a
border where most of the window is padding, an output may happen to be small beside what cancels: so outputs of fewer
than LEAST_PRODUCTS products are refused, and windows that hold less than half a filter, or two rows or columns, of the
image. In 10^8 outputs of normal numbers, emulated, the largest error was 0.89 of that bound. For the same reason an
infinite pixel or weight makes outputs NaN that would be infinite.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import numpy as np

from ... import launch
from . import winograd_dw
from .planned import Outputs, Plan
from .whole_image import COPY, resident_blocks, round_up, work_time
from .winograd_dw import least_met

Array = Any

FILE = "conv/resident/winograd.cu"
POSITIONS, FILTERS = ((1, 2), (1, 4), (2, 2), (2, 4)), (1, 2, 4, 8)       # (TH, TW) and TM to choose from
THREADS = (64, 128, 256)
NUMBERS = 190                              # floats that a thread may keep
LEAST_PRODUCTS = 192                       # of an output
KINDS = 1                                  # kinds of columns that are unrolled


class Tile(NamedTuple):
    """What a thread owns: th x tw positions, each of 2x2 outputs, of tm filters."""

    th: int
    tw: int
    tm: int

    def wide(self, kw: int) -> int:
        """XW in the source: positions under a row of outputs of one kind, in whole packs."""
        return round_up(self.tw + kw // 2 - 1, self.tw)

    def fits_registers(self, kw: int, dtype: np.dtype, threads: int) -> bool:
        return self.numbers(kw, dtype) <= min(NUMBERS, 65536 // threads - 40)

    def numbers(self, kw: int, dtype: np.dtype) -> int:
        """Registers that hold a thread's sums, pixels and weights; a double takes two."""
        return (5 * self.th * self.tw * self.tm + self.th * self.wide(kw) + self.tm) * dtype.itemsize // 4


def _constants(dtype: np.dtype, kh: int, kw: int, tile: Tile, threads: int,
               aligned: bool) -> tuple[launch.Constant, ...]:
    return (launch.real(dtype), ("KH", kh), ("KW", kw), ("TH", tile.th), ("TW", tile.tw), ("TM", tile.tm),
            ("THREADS_A_BLOCK", threads), ("ALIGNED", int(aligned)), ("KINDS", KINDS))


@functools.lru_cache(maxsize=1024)
def _plan(g: Any, dtype: np.dtype, pool: int = 1) -> Plan | None:
    """The candidate with the least estimated time, or None where none fits; its rows are a multiple of `pool`."""
    return min(_candidates(g, dtype, pool), key=lambda plan: plan.time, default=None)


def _candidates(g: Any, dtype: np.dtype, pool: int = 1) -> list[Plan]:
    tiles = [Tile(*positions, tm) for positions, tm in itertools.product(POSITIONS, FILTERS)
             if 2 * positions[0] % pool == 0 and tm <= round_up(g.m, 2)]
    return [plan for tile, threads, images in itertools.product(tiles, THREADS, (1, 2, 4, 8))
            if (plan := _candidate(g, dtype, tile, threads, images))]


def _candidate(g: Any, dtype: np.dtype, tile: Tile, threads: int, images: int) -> Plan | None:
    """The launch for a tile, or None where it does not fit."""
    th, tw, tm = tile
    if not tile.fits_registers(g.kw, dtype, threads):
        return None
    down, across, groups = -(-g.oh // (2 * th)), -(-g.ow // (2 * tw)), -(-g.m // tm)
    ph, pw = down * th + g.kh // 2 - 1, _stride((across - 1) * tw + tile.wide(g.kw), th, tw, across)
    taps = g.c * (g.kh // 2) * (g.kw // 2)
    shared = (round_up(9 * groups * taps * tm, 4) + 9 * images * g.c * ph * pw) * dtype.itemsize
    if shared > launch.most_shared():
        return None
    resident = resident_blocks(threads, 46 + tile.numbers(g.kw, dtype), shared)
    packs = launch.blocks(g.n, images)
    planes = launch.by_value("Planes", (g.n, g.c, g.h, g.w, g.m, g.oh, g.ow, g.top, g.left, ph, pw, images))
    items = images * down * across * groups
    passes = -(-items // threads)
    row = g.kw // 2 * (0.93 * th * tw + 0.4) * tm + 0.8 * tile.wide(g.kw) + 6       # of a filter of one kind
    multiply = passes * (9 * (g.c * (g.kh // 2 * row + 30) + 4 * th * tw * tm) + 60 * th * tw * tm) * dtype.itemsize / 4
    used = 0.25 + 0.75 * items / (passes * threads)
    time = work_time(multiply, used, images * g.c * ph * pw * 2 * COPY / threads, threads, resident, packs)
    return Plan((max(1, min(packs, resident * launch.multiprocessors())),), threads, shared,
                _constants(dtype, g.kh, g.kw, tile, threads, g.ow % 4 == 0), planes,
                time + groups * tm * taps * 2 * COPY / threads)


def _stride(least: int, th: int, tw: int, across: int) -> int:
    """Elements from a row of a plane to the next: so many that lanes which load packs together meet different banks."""
    lanes = np.arange(32 // tw)
    tile = lanes // across * th, lanes % across * tw

    def met(pw: int) -> int:
        return len(np.unique((tile[0] * pw + tile[1]) // tw % len(lanes)))

    first = round_up(least, 4)
    return max(range(first, first + 32, 4), key=met)


OUTPUTS = Outputs(FILE, "conv2d_winograd", _plan)


def refuses(direction: str, g: Any, dtype: np.dtype) -> str | None:
    if direction == "dw":
        return winograd_dw.refuses(direction, g, dtype)
    if (g.sh, g.sw) != (1, 1):
        return f"it needs stride 1 but it is {g.sh}x{g.sw}"
    if g.kh % 2 or g.kw % 2:
        return f"it needs filters of even height and width but they are {g.kh}x{g.kw}"
    if g.c * g.kh * g.kw < LEAST_PRODUCTS:
        return f"an output sums {g.c * g.kh * g.kw} products but it is exact enough from {LEAST_PRODUCTS} on"
    rows, columns = least_met(g.oh, g.top, g.kh, g.h), least_met(g.ow, g.left, g.kw, g.w)
    if rows < max(g.kh // 2, 2) or columns < max(g.kw // 2, 2):
        return (f"an output meets {rows} of a filter's {g.kh} rows and {columns} of its {g.kw} columns, the rest is "
                "padding, but it is exact enough from half of them, and two, on")
    if _plan(g, dtype) is None:
        return (f"nine kinds of the images and filters do not fit a block's {launch.most_shared() // 1024} KB of "
                "shared memory, or a thread's tile its registers")
    return None


# The report's layer and small filters, by the largest and the smallest tiles
CONFIGURATIONS = [
    (FILE, _constants(np.dtype(dtype), k, k, tile, threads, aligned))
    for dtype in ("float32", "float64") for k in (8, 2)
    for tile, threads, aligned in ((Tile(2, 4, 4), 256, True), (Tile(2, 2, 8), 256, True), (Tile(1, 4, 8), 256, False),
                                   (Tile(2, 2, 4), 256, True), (Tile(1, 2, 1), 64, False))
    if tile.fits_registers(k, np.dtype(dtype), threads)
] + [
    (FILE, (*_constants(np.dtype(dtype), 8, 8, tile, 256, True), ("FUSED", 1), ("ACT", act), ("POOL", pool)))
    for dtype, tile, act, pool in (("float32", Tile(2, 4, 4), "sigmoid", 4), ("float32", Tile(1, 4, 8), "tanh", 2),
                                   ("float32", Tile(2, 2, 8), "relu", 0), ("float64", Tile(2, 2, 2), "tanh", 4))]
