"""Launcher of rows_grad_w.cu: the gradient of 1x1 filters of images in NHWC that the hardware copies (TMA)."""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import cupy

from ....common.geometry import ConvGeometry
from ... import launch
from ...launch.tensor_maps import tensor_map
from ..conv.conv_tma import ROW, THREADS_PER_BLOCK
from . import conv_grad_w_tma
from .conv_few_grad_w import Product

FILE = "nhwc/grad_w/rows_grad_w.cu"
MAX_STAGES, MAX_SPLITS = 8, 264
# What is assumed of an H200, to choose tiles: bytes per microsecond that the L2 cache gives, and that one
# multiprocessor takes; products per microsecond of one, by PRECISION; microseconds before a block's first product, and
# for each split that is added
CACHE, OWN, PRODUCTS, START, SPLIT = 5e6, 8e4, {"BF16": 2.4e6, "TF32": 0.9e6}, 1.5, 0.02


class Tile(NamedTuple):
    """What a block owns."""

    channels: int
    filters: int

    @property
    def stage(self) -> int:
        """Bytes of a chunk: as many rows as a slab of 128 bytes has numbers."""
        return (self.channels + self.filters) * ROW


TILES = Tile(128, 64), Tile(128, 128), Tile(128, 192), Tile(128, 256), Tile(256, 128)


def constants(tile: Tile, mode: str, stages: int) -> tuple[launch.Constant, ...]:
    return (launch.HOPPER, ("IMAGE", "unsigned short" if mode == "BF16" else "float"), ("PRECISION", mode),
            ("CHANNELS", tile.channels), ("FILTERS", tile.filters), ("STAGES", stages))


def can(g: ConvGeometry, dy: cupy.ndarray, x: cupy.ndarray, mode: str) -> bool:
    """Whether the hardware can copy, and a row of dy meets one of x."""
    return (conv_grad_w_tma.copied(g, dy, x, mode) and (g.kh, g.kw) == (1, 1) and (g.oh, g.ow) == (g.h, g.w)
            and g.top == g.left == 0)


def _chunks(g: ConvGeometry, mode: str) -> int:
    return launch.blocks(g.n * g.h * g.w, ROW // conv_grad_w_tma.SIZES[mode])


def _blocks(g: ConvGeometry, tile: Tile) -> int:
    return launch.blocks(g.m, tile.filters) * launch.blocks(g.c, tile.channels)


def _time(g: ConvGeometry, mode: str, tile: Tile, splits: int) -> float:
    """Microseconds: of the blocks' turns, in which they copy and multiply; and to write and add their sums."""
    size = conv_grad_w_tma.SIZES[mode]
    turns = launch.blocks(_blocks(g, tile) * splits, launch.multiprocessors())
    rows = launch.blocks(_chunks(g, mode), splits) * (ROW // size)                       # of a block
    of_block = rows * max(size * (min(g.c, tile.channels) + min(g.m, tile.filters)) / OWN,
                          tile.channels * tile.filters / PRODUCTS[mode])
    across, down = launch.blocks(g.m, tile.filters), launch.blocks(g.c, tile.channels)
    of_all = size * g.n * g.h * g.w * (g.c * across + g.m * down) / CACHE
    return turns * START + max(of_all, turns * of_block) + 8 * splits * g.c * g.m / CACHE + SPLIT * splits


@functools.lru_cache(maxsize=1024)
def product(g: ConvGeometry, mode: str, splits: int | None = None) -> Product | None:
    """In the tile and the splits that take the least time."""
    chunks = _chunks(g, mode)
    numbers = (splits,) if splits else range(1, min(chunks, MAX_SPLITS) + 1)
    found = launch.best(itertools.product(TILES, numbers), lambda of: _time(g, mode, *of))
    if found is None:
        return None
    tile, splits = found
    stages = min(MAX_STAGES, launch.most_shared() // (tile.stage + 16))
    plan = launch.Plan(FILE, "conv2d_nhwc_dw_rows", constants(tile, mode, stages), (_blocks(g, tile), splits),
                       THREADS_PER_BLOCK, stages * (tile.stage + 16),
                       launch.by_value("RowsGradW", g, each=chunks // splits, more=chunks % splits), splits=splits)

    def run(dy: cupy.ndarray, x: cupy.ndarray, out: cupy.ndarray) -> None:
        maps = (tensor_map(image.reshape(-1, image.shape[-1]), (ROW // image.itemsize, ROW // image.itemsize))
                for image in (dy, x))
        plan.start(*maps, out, plan.struct)
    return plan, run


CONFIGURATIONS = [(FILE, constants(tile, mode, min(MAX_STAGES, (227 << 10) // (tile.stage + 16))))
                  for mode in conv_grad_w_tma.SIZES for tile in TILES]
