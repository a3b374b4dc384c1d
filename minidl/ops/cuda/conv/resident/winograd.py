"""Launchers of winograd.cu, and the choice of their tiles from the shape.

Rounding of y. Filters and pixels become sums and differences of up to four before they are multiplied, so for operands
of random signs a product is about twice as large as in the plain sum, and there are as many: an output is the sum of
four kinds. Its roundings are less than twice as large, those of the sums before the products add an eps or two of each
product at random, and both are within the eight-fold margin of `product_bound` in the tests of CUDA ops.

But that error is one of the filter times the pixels, not of the very products that an output sums: in one dimension
y0 = H0*(X0-X1) + (H0+H1)*X1 also meets H0*X1, which cancels. Over many products both are alike. Over few, or at a
border where most of the window is padding, an output may happen to be small compared with what cancels. So outputs of
fewer than MIN_PRODUCTS products are refused, and so are windows that hold less than half a filter, or two rows or
columns, of the image. In 10^8 outputs of normal numbers, emulated, the largest error was 0.89 of that bound. For the
same reason an infinite pixel or weight makes outputs NaN that would be infinite.

Rounding of dw. A tap is the sum of four kinds' sums, each of a quarter as many products of sums and differences: for
operands of random signs these are twice as large, and together their roundings as large as those of the plain sum. If a
tap has fewer than MIN_TAP_PRODUCTS they may happen to be small compared with what cancels: such cases are refused.
"""

from __future__ import annotations

import functools
from itertools import product
from typing import NamedTuple

import numpy as np

from ....common.geometry import ConvGeometry
from ... import launch
from .. import cost
from ..cost import round_up
from .planned import Gradients, Outputs

FILE = "conv/resident/winograd.cu"
POSITIONS, FILTERS = ((1, 2), (1, 4), (2, 2), (2, 4)), (1, 2, 4, 8)       # (TH, TW) and TM of y to choose from
THREADS, IMAGES = (64, 128, 256), (1, 2, 4, 8)         # of a block of y
GRADIENT_FILTERS, ROWS, SLICES = range(1, 9), (1, 2), (1, 2, 3, 4, 6, 8, 16)     # TM, ROWS and blocks per image of dw
MAX_GRADIENT_THREADS = 384                 # more have too few registers
MIN_PRODUCTS, MIN_TAP_PRODUCTS = 192, 64   # of an output; of a tap's gradient
FLOAT = np.dtype(np.float32)


# ---------------------------------------------------------------- y
class Tile(NamedTuple):
    """What a thread owns: th x tw positions, each of 2x2 outputs, of tm filters."""

    th: int
    tw: int
    tm: int

    def wide(self, kw: int) -> int:
        """XW in the source: positions under a row of outputs of one kind, in whole packs."""
        return round_up(self.tw + kw // 2 - 1, self.tw)

    def fits_registers(self, kw: int, dtype: np.dtype, threads: int) -> bool:
        return cost.fits_registers(self.numbers(kw, dtype), threads)

    def numbers(self, kw: int, dtype: np.dtype) -> int:
        """Registers that hold a thread's sums, pixels and weights; a double takes two."""
        return (5 * self.th * self.tw * self.tm + self.th * self.wide(kw) + self.tm) * dtype.itemsize // 4


def _constants(dtype: np.dtype, kh: int, kw: int, tile: Tile, threads: int,
               aligned: bool) -> tuple[launch.Constant, ...]:
    return (launch.real(dtype), ("KH", kh), ("KW", kw), ("TH", tile.th), ("TW", tile.tw), ("TM", tile.tm),
            ("THREADS_PER_BLOCK", threads), ("ALIGNED", int(aligned)))


@functools.lru_cache(maxsize=1024)
def _plan(g: ConvGeometry, dtype: np.dtype, pool: int = 1) -> launch.Plan | None:
    """The best launch, or None if none fits; its rows are a multiple of `pool`."""
    tiles = [Tile(*positions, tm) for positions, tm in product(POSITIONS, FILTERS)
             if 2 * positions[0] % pool == 0 and tm <= round_up(g.m, 2)]
    return launch.best(_candidate(g, dtype, *choice) for choice in product(tiles, THREADS, IMAGES))


def _candidate(g: ConvGeometry, dtype: np.dtype, tile: Tile, threads: int, images: int) -> launch.Plan | None:
    """The launch for a tile, or None if it does not fit."""
    th, tw, tm = tile
    if not tile.fits_registers(g.kw, dtype, threads):
        return None
    down, across, groups = -(-g.oh // (2 * th)), -(-g.ow // (2 * tw)), -(-g.m // tm)
    ph, pw = down * th + g.kh // 2 - 1, _stride((across - 1) * tw + tile.wide(g.kw), th, tw, across)
    taps = g.c * (g.kh // 2) * (g.kw // 2)
    shared = (round_up(9 * groups * taps * tm, 4) + 9 * images * g.c * ph * pw) * dtype.itemsize
    if shared > launch.most_shared():
        return None
    resident = cost.resident_blocks(threads, 46 + tile.numbers(g.kw, dtype), shared)
    packs = launch.blocks(g.n, images)
    items = images * down * across * groups
    passes = -(-items // threads)
    row = g.kw // 2 * (cost.KIND_PRODUCT * th * tw + cost.KIND_WEIGHT) * tm + cost.PIXEL * tile.wide(g.kw)
    kinds = 9 * (g.c * (g.kh // 2 * (row + cost.KIND_ROW) + cost.KIND_CHANNEL) + cost.KIND_SUM * th * tw * tm)
    multiply = passes * (kinds + cost.FOUR_OUTPUTS * th * tw * tm) * dtype.itemsize / 4
    copies = images * g.c * ph * pw * 2 * cost.COPY / threads
    time = cost.work_time(multiply, cost.used(items, passes * threads), copies, threads, resident, packs)
    return launch.Plan(FILE, "conv2d_winograd", _constants(dtype, g.kh, g.kw, tile, threads, g.ow % 4 == 0),
                       (max(1, min(packs, resident * launch.multiprocessors())),), threads, shared,
                       launch.by_value("PaddedImages", g, ph=ph, pw=pw, images=images),
                       time + groups * tm * taps * 2 * cost.COPY / threads)


def _stride(least: int, th: int, tw: int, across: int) -> int:
    """Elements from a row of a plane to the next, chosen so that lanes which load packs together meet different
    banks."""
    lanes = np.arange(32 // tw)
    tile = lanes // across * th, lanes % across * tw

    def met(pw: int) -> int:
        return len(np.unique((tile[0] * pw + tile[1]) // tw % len(lanes)))

    first = round_up(least, 4)
    return max(range(first, first + 32, 4), key=met)


OUTPUTS = Outputs(_plan)


# ---------------------------------------------------------------- dw
def _slot(window: int) -> int:
    """SLOT in the source: floats of an item; window is 0 if nothing is fused."""
    fours = (16 + (8 // window + 1 if window else 0) + 3) // 4
    return 4 * (fours | 1)


def _gradient_constants(kh: int, kw: int, tm: int, groups: int, rows: int, fours: int, threads: int,
                        aligned: int) -> tuple[launch.Constant, ...]:
    return (launch.real(FLOAT), ("KH", kh), ("KW", kw), ("TM", tm), ("GROUPS", groups), ("ROWS", rows),
            ("FOURS", fours), ("THREADS_PER_BLOCK", threads), ("ALIGNED", aligned), ("GRADIENT", 1))


@functools.lru_cache(maxsize=1024)
def _gradient_plan(g: ConvGeometry, window: int) -> launch.Plan | None:
    """The best launch, or None if none fits."""
    return launch.best(_gradient_candidate(g, window, tm, rows, slices)
                       for tm, rows, slices in product(GRADIENT_FILTERS, ROWS, SLICES) if tm <= g.m and slices <= g.m)


def _gradient_candidate(g: ConvGeometry, window: int, tm: int, rows: int, slices: int) -> launch.Plan | None:
    """The launch for all taps of tm filters per thread, `rows` rows of positions at a time, or None."""
    a, b, groups, fours = g.kh // 2, g.kw // 2, -(-g.m // (slices * tm)), -(-g.ow // 8)
    chunks, wide = -(-g.oh // (2 * rows)), round_up(b + 3, 4)
    workers = round_up(9 * g.c * groups, 32)
    threads = round_up(workers + 32, 128)                   # the same number of warps on each scheduler
    numbers = a * b * tm + (a + rows - 1) * wide + 24
    if threads > MAX_GRADIENT_THREADS or numbers > min(cost.MAX_REGISTERS, cost.REGISTERS // threads):
        return None
    maps, items = tm * groups, rows * fours
    ph, pw = chunks * rows + a - 1, 4 * fours - 4 + wide
    kinds, sums = 9 * (2 * items * (maps | 1) * 4 + g.c * ph * pw), 9 * g.c * a * b * maps
    shared = (maps * items * _slot(window) + max(kinds, sums)) * FLOAT.itemsize
    if shared > launch.most_shared():
        return None
    resident = cost.resident_blocks(threads, numbers, shared)
    blocks = max(1, min(g.n, resident * launch.multiprocessors() // slices))
    four = rows * tm * (4 * a * b + 1) + (a + rows - 1) * wide // 4 + cost.FOUR_PIXELS
    multiply = -(-workers // cost.LANES) * fours * four
    prepare = maps * items * cost.ITEM / (threads - workers)
    time = -(-g.n // blocks) * (resident * chunks * (max(multiply, prepare) + cost.STEP) + cost.IMAGE)
    constants = _gradient_constants(g.kh, g.kw, tm, groups, rows, fours, threads, int(g.ow % 4 == 0))
    return launch.Plan(FILE, "conv2d_winograd_dw", constants, (blocks, slices), threads, shared,
                       launch.by_value("PaddedImages", g, ph=ph, pw=pw, images=1), time)


GRADIENTS = Gradients(lambda g, dtype, window: _gradient_plan(g, window))


# ---------------------------------------------------------------- what it cannot do
def _fewest_met(outputs: int, before: int, taps: int, pixels: int) -> int:
    """Pixels under the window that meets the fewest, the first one or the last. With outputs and taps swapped:
    positions at which a tap meets the image, for the tap that has the fewest."""
    return min(max(0, min(start + taps, pixels) - max(start, 0)) for start in (-before, outputs - 1 - before))


def _refuses_dw(g: ConvGeometry, dtype: np.dtype) -> str | None:
    if dtype != FLOAT:
        return f"it is for float32 arrays but these are {dtype}"
    if g.kh % 2 or g.kw % 2 or (g.sh, g.sw) != (1, 1):
        return (f"it needs filters of even height and width and stride 1, but they are {g.kh}x{g.kw} with stride "
                f"{g.sh}x{g.sw}")
    fewest = _fewest_met(g.kh, g.top, g.oh, g.h) * _fewest_met(g.kw, g.left, g.ow, g.w) * g.n
    if fewest < MIN_TAP_PRODUCTS:
        return (f"the sum of a tap may have only {fewest} products but needs {MIN_TAP_PRODUCTS} for its rounding to "
                "even out")
    if _gradient_plan(g, 2) is None:                            # the form that takes most
        return (f"the images and gradients do not fit a block's {launch.most_shared() // 1024} KB of shared memory, or "
                f"the {g.c} channels its threads")
    return None


def refuses(direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
    if direction == "dw":
        return _refuses_dw(g, dtype)
    if (g.sh, g.sw) != (1, 1):
        return f"it needs stride 1 but it is {g.sh}x{g.sw}"
    if g.kh % 2 or g.kw % 2:
        return f"it needs filters of even height and width but they are {g.kh}x{g.kw}"
    if g.c * g.kh * g.kw < MIN_PRODUCTS:
        return f"an output sums {g.c * g.kh * g.kw} products but it is exact enough from {MIN_PRODUCTS} on"
    rows, columns = _fewest_met(g.oh, g.top, g.kh, g.h), _fewest_met(g.ow, g.left, g.kw, g.w)
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
                                   ("float32", Tile(2, 2, 8), "relu", 0), ("float64", Tile(2, 2, 2), "tanh", 4))] + [
    (FILE, (*_gradient_constants(k, k, *tile), *fused))
    for k, *tile, act, pool in ((8, 5, 13, 2, 4, 384, 1, "sigmoid", 4), (8, 8, 8, 2, 4, 256, 1, "tanh", 4),
                                (8, 4, 8, 2, 4, 256, 0, "relu", 2), (4, 1, 3, 2, 2, 128, 0, "tanh", 2))
    for fused in ((), (("FUSED", 1), ("ACT", act), ("POOL", pool)))]
