"""Launcher of conv_grad_w_tma.cu: the gradient of filters of images in NHWC that the hardware copies (TMA)."""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import cupy
import numpy as np

from ....common.geometry import ConvGeometry
from ... import launch
from ...launch.tensor_maps import tensor_map
from ...pixels import has_wgmma
from ..conv.conv_tma import MAX_BOX, ROW, THREADS_PER_BLOCK, Patch
from .conv_few_grad_w import Product

FILE = "nhwc/grad_w/conv_grad_w_tma.cu"
SIDES = 16, 32, 64                         # channels of a block, and filters
MAX_TAPS, MAX_STAGES = 9, 8
SIZES = {"BF16": 2, "TF32": 4}             # bytes of a number, by PRECISION
MIN_PIXELS, MAX_PIXELS = 32, 256           # of a patch
TURN = {"BF16": 12, "TF32": 4}             # extra time of a patch, in pixels
COPY = {"BF16": 0, "TF32": 4}              # pixels of one filter and one channel that take as long as a copied byte


class Tile(NamedTuple):
    """What a block owns, and the precision of its products."""

    mode: str
    channels: int
    filters: int

    @property
    def shares(self) -> int:
        """How many sets of a block's warps take patches of their own."""
        return SIDES[-1] // self.channels if self.mode == "TF32" else 1

    def stage(self, patch: Patch) -> int:
        """Bytes of a patch of dy, and of what it meets of x, in rows of 128 bytes."""
        of_dy, of_x = (launch.blocks(side * SIZES[self.mode], ROW) for side in (self.filters, self.channels))
        return of_dy * patch.n * patch.h * patch.w * ROW + of_x * patch.shared()

    def time(self, patch: Patch) -> float:
        """The time of a patch, in pixels of this tile."""
        copies = COPY[self.mode] * self.stage(patch) / (self.filters * self.channels)
        return patch.n * patch.h * patch.w + TURN[self.mode] + copies


def constants(tile: Tile, taps: int, row_taps: int, stages: int) -> tuple[launch.Constant, ...]:
    return (launch.HOPPER, ("IMAGE", "unsigned short" if tile.mode == "BF16" else "float"), ("PRECISION", tile.mode),
            ("CHANNELS", tile.channels), ("FILTERS", tile.filters), ("TAPS", taps), ("ROW_TAPS", row_taps),
            ("STAGES", stages))


def _tile(g: ConvGeometry, mode: str) -> Tile:
    channels, filters = (min((side for side in SIDES if side >= count), default=SIDES[-1]) for count in (g.c, g.m))
    return Tile(mode, channels, filters if mode == "TF32" else SIDES[-1])


def copied(g: ConvGeometry, dy: cupy.ndarray, x: cupy.ndarray, mode: str) -> bool:
    """Whether the hardware can copy both, for strides of 1 and products in their own type."""
    each = 16 // x.dtype.itemsize
    return (has_wgmma() and mode in SIZES and (g.sh, g.sw) == (1, 1) and g.c % each == g.m % each == 0
            and (mode == "BF16") == (x.dtype == np.uint16)
            and x.data.ptr % 16 == dy.data.ptr % 16 == 0 and x.size > 0 and dy.size > 0)


def can(g: ConvGeometry, dy: cupy.ndarray, x: cupy.ndarray, mode: str) -> bool:
    """Whether the hardware can copy, and there are taps for two groups."""
    return copied(g, dy, x, mode) and g.kh * g.kw > 1


def _patches(g: ConvGeometry, tile: Tile) -> list[tuple[int, Patch]]:
    """How many stages fit, and of which patches."""
    found = []
    for n, h, w in itertools.product((1, 2, 4, 8, 16), {1, 2, 4, 8, 16, min(g.oh, 16)}, (8, 16, 32)):
        line = w + g.kw - 1
        if tile.mode == "TF32":
            line = launch.blocks(line, 8) * 8
        patch = Patch(n, h, w, h + g.kh - 1, line, h % 2 == 1)
        in_pairs = tile.mode == "TF32" or h % 2 == 0 or n % 2 == 0
        if in_pairs and MIN_PIXELS <= n * h * w <= MAX_PIXELS and max(patch.lines, line) <= MAX_BOX:
            stages = min(MAX_STAGES, launch.most_shared() // (tile.stage(patch) + 16))
            found += [(stages, patch)] * (stages > tile.shares)
    return found


def _taps(g: ConvGeometry, mode: str) -> tuple[int, int, int]:
    """Taps of a block, how many of them are side by side, and how many blocks take all. In tf32 they are whole rows of
    a filter, or equal parts of one."""
    across = launch.blocks(g.kw, MAX_TAPS)
    row_taps = launch.blocks(g.kw, across)
    if mode == "BF16" and across > 1:
        return MAX_TAPS, 1, launch.blocks(g.kh * g.kw, MAX_TAPS)
    lines = min(g.kh, MAX_TAPS // row_taps)
    return lines * row_taps, row_taps, launch.blocks(g.kh, lines) * across


@functools.lru_cache(maxsize=1024)
def product(g: ConvGeometry, mode: str, splits: int | None = None) -> Product | None:
    """None if no patch fits. Patches are split among blocks. Each share of a block's warps leaves its own sums."""
    tile = _tile(g, mode)

    def cost(of: tuple[int, Patch]) -> tuple[float, int, int]:
        """The time; bytes that are copied; and how often steps begin a column of eights."""
        number = of[1].number(g.n, g.oh, g.ow)
        return (number * tile.time(of[1]), number * tile.stage(of[1]),
                number * of[1].n * of[1].w)

    found = launch.best(_patches(g, tile), cost)
    if found is None:
        return None
    stages, patch = found
    taps, row_taps, runs = _taps(g, mode)
    blocks = launch.blocks(g.m, tile.filters) * runs * launch.blocks(g.c, tile.channels)
    number = patch.number(g.n, g.oh, g.ow)
    most = max(1, launch.multiprocessors() // blocks)
    splits = splits or min(range(1, min(most, number) + 1), key=lambda k: launch.blocks(number, k))
    struct = launch.by_value("GradWTma", g, runs=runs, each=number // splits, more=number % splits)
    plan = launch.Plan(FILE, "conv2d_nhwc_dw_tma", constants(tile, taps, row_taps, stages), (blocks, splits),
                       THREADS_PER_BLOCK, stages * (tile.stage(patch) + 16),
                       patch.struct(g.oh, g.ow, patch.shared()), splits=splits * tile.shares)

    def run(dy: cupy.ndarray, x: cupy.ndarray, out: cupy.ndarray) -> None:
        depth = ROW // x.dtype.itemsize
        plan.start(tensor_map(dy, (patch.n, patch.h, patch.w, depth)),
                   tensor_map(x, (patch.n, patch.lines, patch.line, depth)), out, struct, plan.struct)
    return plan, run


CONFIGURATIONS = [
    *[(FILE, constants(Tile(mode, 64, 64), *of)) for mode in SIZES
      for of in ((9, 3, 3), (9, 3, 5), (5, 5, 3), (2, 1, 2))],
    *[(FILE, constants(Tile("TF32", channels, filters), 9, 3, MAX_STAGES)) for channels in SIDES for filters in SIDES],
    *[(FILE, constants(Tile("BF16", channels, 64), 9, 3, MAX_STAGES)) for channels in SIDES]]
