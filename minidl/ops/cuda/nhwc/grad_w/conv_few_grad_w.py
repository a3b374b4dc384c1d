"""Launcher of conv_few_grad_w.cu: the gradient of the filters of images of few channels, in tf32."""

from __future__ import annotations

import functools
from typing import NamedTuple

import cupy
import numpy as np

from ....common.geometry import ConvGeometry
from ... import launch

FILE = "nhwc/grad_w/conv_few_grad_w.cu"
CHANNELS, FILTERS, PIXELS, THREADS_PER_BLOCK = 4, 64, 128, 256
MAX_STAGES, MAX_PRODUCTS = 4, 32           # products whose sums a warp keeps: each 16 filters by two taps
WIDTHS = (8, 16, 32, 64)                   # of a tile


class Plan(NamedTuple):
    """A launch, also of rows_grad_w.py. blocks: tiles that hold all filters and channels; splits: of the pixels."""

    constants: tuple[launch.Constant, ...]
    blocks: int
    splits: int
    shared: int
    struct: bytes


def constants(kh: int, kw: int, width: int, stages: int, tall: int) -> tuple[launch.Constant, ...]:
    return (("PRECISION", "TF32"), ("KH", kh), ("KW", kw), ("HEIGHT", PIXELS // width),
            ("WIDTH", width), ("STAGES", stages), ("TALL", tall))


def can(g: ConvGeometry, dy: cupy.ndarray, x: cupy.ndarray, mode: str) -> bool:
    return (mode == "TF32" and dy.dtype == np.float32 and g.c <= CHANNELS and g.m % 4 == 0 and (g.sh, g.sw) == (1, 1)
            and g.kh * launch.blocks(g.kw, 2) <= MAX_PRODUCTS and dy.data.ptr % 16 == 0 and dy.size > 0)


@functools.lru_cache(maxsize=1024)
def plan(g: ConvGeometry, mode: str, splits: int | None = None) -> Plan | None:
    """None where no tile fits shared memory."""
    def tiles(width: int) -> tuple[int, int]:
        return launch.blocks(g.oh, PIXELS // width), launch.blocks(g.ow, width)

    pairs = launch.blocks(g.kw, 2)
    width = min(WIDTHS, key=lambda width: tiles(width)[0] * tiles(width)[1])
    stage = 4 * (PIXELS * FILTERS + (PIXELS // width + g.kh - 1) * (width + 2 * pairs) * 4)
    stages = min(MAX_STAGES, launch.most_shared() // stage)
    sums = g.kh * pairs * 8 * FILTERS * 4
    if stages < 2 or sums > launch.most_shared():
        return None
    down, across = tiles(width)
    blocks = launch.blocks(g.m, FILTERS)
    splits = splits or max(1, min(launch.multiprocessors() // blocks, g.n * down * across))
    tall = next(tall for tall in (4, 2, 1) if g.kh * pairs * tall <= MAX_PRODUCTS)
    return Plan(constants(g.kh, g.kw, width, stages, tall), blocks, splits, max(stages * stage, sums),
                launch.by_value("FewGradW", g, down=down, across=across, splits=splits))


def parts(dy: cupy.ndarray, x: cupy.ndarray, found: Plan, out: cupy.ndarray) -> None:
    """What the blocks find: out (splits, taps * c, m)."""
    launch.kernel(FILE, "conv2d_nhwc_dw_few", *found.constants)(
        (found.blocks, found.splits), (THREADS_PER_BLOCK,), dy, x, out, found.struct, shared=found.shared)


CONFIGURATIONS = [(FILE, constants(*of))
                  for of in ((3, 3, 32, 4, 4), (5, 5, 16, 3, 2), (8, 8, 8, 2, 1), (1, 1, 64, 4, 4))]
