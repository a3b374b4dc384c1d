"""Launcher of conv_few_grad_w.cu: the gradient of the filters of images of few channels, in tf32 and bf16."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import cupy
import numpy as np

from ....common.geometry import ConvGeometry
from ... import launch
from ..conv.conv_few import PIXEL, fold

FILE = "nhwc/grad_w/conv_few_grad_w.cu"
FILTERS, PIXELS, THREADS_PER_BLOCK = 64, 128, 256
MAX_STAGES, MAX_PRODUCTS = 4, 32           # products whose sums a warp keeps, each of 16 filters by 8 numbers
WIDTHS = (8, 16, 32, 64)                   # of a tile
IMAGES: dict[str, np.dtype] = {"TF32": np.dtype(np.float32), "BF16": np.dtype(np.uint16)}       # by PRECISION
# A launch that splits the pixels, and what starts it on dy, x and an array for its sums: (splits, taps * c, m)
Product = tuple[launch.Plan, Callable[[cupy.ndarray, cupy.ndarray, cupy.ndarray], None]]


class Spread(NamedTuple):
    """How taps are spread over warps: a warp takes 1 / halves of each row, with 16 * tall filters. Also: how many
    neighbours of a row are one pixel of 16 bytes, the taps of a row in such pixels, and in pairs of all warps."""

    folded: int
    taps: int
    pairs: int
    tall: int
    halves: int


def spread(g: ConvGeometry, mode: str) -> Spread | None:
    """The one with the most filters; None if the sums are too many for a warp."""
    folded = fold(g.c, g.kw, g.sw, IMAGES[mode]) if mode == "BF16" else 1
    taps, columns = launch.blocks(g.kw, folded), 2 if mode == "BF16" else 1
    for tall in (4, 2, 1):
        for halves in (1, 2):
            own = launch.blocks(taps, 2 * halves)
            if g.kh * own * columns * tall <= MAX_PRODUCTS:
                return Spread(folded, taps, own * halves, tall, halves)
    return None


def constants(mode: str, kernel: tuple[int, int], steps: tuple[int, int], width: int, stages: int,
              of: Spread) -> tuple[launch.Constant, ...]:
    return (("IMAGE", "float" if mode == "TF32" else "unsigned short"), ("PRECISION", mode), ("KH", kernel[0]),
            ("KW", kernel[1]), ("SH", steps[0]), ("SW", steps[1]), ("FOLD", of.folded), ("HEIGHT", PIXELS // width),
            ("WIDTH", width), ("STAGES", stages), ("TALL", of.tall), ("HALVES", of.halves))


def can(g: ConvGeometry, dy: cupy.ndarray, x: cupy.ndarray, mode: str) -> bool:
    """bf16 only if a stride is not 1: otherwise the hardware copies, or whole lines are copied."""
    each = PIXEL // dy.dtype.itemsize
    return (IMAGES.get(mode) == dy.dtype and g.c <= each and g.m % each == 0
            and (mode == "TF32" or (g.sh, g.sw) != (1, 1)) and spread(g, mode) is not None
            and dy.data.ptr % 16 == 0 and dy.size > 0)


@functools.lru_cache(maxsize=1024)
def product(g: ConvGeometry, mode: str, splits: int | None = None) -> Product | None:
    """None if no tile fits shared memory."""
    of, size = spread(g, mode), IMAGES[mode].itemsize
    assert of
    step = g.sw // of.folded

    def tiles(width: int) -> tuple[int, int]:
        return launch.blocks(g.oh, PIXELS // width), launch.blocks(g.ow, width)

    def stage(width: int) -> int:
        """Bytes."""
        line = (width + launch.blocks(2 * of.pairs, step)) * step
        return PIXELS * FILTERS * size + ((PIXELS // width - 1) * g.sh + g.kh) * line * PIXEL

    width = min(WIDTHS, key=lambda width: (tiles(width)[0] * tiles(width)[1], stage(width) if step * g.sh > 1 else 0))
    stages = min(MAX_STAGES, launch.most_shared() // stage(width))
    sums = g.kh * of.pairs * (8 if mode == "TF32" else 16) * FILTERS * 4
    if stages < 2 or sums > launch.most_shared():
        return None
    down, across = tiles(width)
    blocks = launch.blocks(g.m, FILTERS)
    splits = splits or max(1, min(launch.multiprocessors() // blocks, g.n * down * across))
    plan = launch.Plan(FILE, "conv2d_nhwc_dw_few", constants(mode, (g.kh, g.kw), (g.sh, g.sw), width, stages, of),
                       (blocks, splits), THREADS_PER_BLOCK, max(stages * stage(width), sums),
                       launch.by_value("FewGradW", g, down=down, across=across, splits=splits), splits=splits)
    return plan, lambda dy, x, out: plan.start(dy, x, out, plan.struct)


CONFIGURATIONS = [(FILE, constants(*of)) for of in (
    ("TF32", (3, 3), (1, 1), 32, 4, Spread(1, 3, 2, 4, 1)), ("TF32", (5, 5), (1, 1), 16, 3, Spread(1, 5, 3, 2, 1)),
    ("TF32", (8, 8), (1, 1), 8, 2, Spread(1, 8, 4, 2, 2)), ("TF32", (1, 1), (1, 1), 64, 4, Spread(1, 1, 1, 4, 1)),
    ("TF32", (7, 7), (2, 2), 16, 4, Spread(1, 7, 4, 2, 2)), ("BF16", (7, 7), (2, 2), 16, 4, Spread(2, 4, 2, 2, 2)),
    ("BF16", (3, 3), (2, 2), 8, 4, Spread(2, 2, 1, 4, 1)), ("BF16", (8, 8), (4, 4), 8, 3, Spread(2, 4, 2, 1, 1)))]
