"""Launcher of conv_grad_w_tma.cu: the gradient of filters of images in NHWC, where the hardware copies."""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import cupy
import numpy as np

from ....common.geometry import ConvGeometry
from ... import launch
from ...launch.tensor_maps import tensor_map
from ..conv.conv_tma import MAX_BOX, ROW, THREADS_PER_BLOCK, Patch

FILE = "nhwc/grad_w/conv_grad_w_tma.cu"
SIDE = 64                                  # filters, and channels, of a block
MAX_TAPS, MAX_STAGES = 9, 5
SLABS = {"BF16": 1, "TF32": 2}             # rows of 128 bytes of a pixel's channels, by PRECISION
MIN_PIXELS, MAX_PIXELS = 32, 256           # of a patch
TURN = {"BF16": 12, "TF32": 4}             # pixels that a patch takes longer than its own


class Plan(NamedTuple):
    """A launch."""

    patch: Patch
    constants: tuple[launch.Constant, ...]
    blocks: int
    splits: int
    shared: int
    structs: tuple[bytes, bytes]


def constants(mode: str, taps: int, row_taps: int, stages: int) -> tuple[launch.Constant, ...]:
    return (launch.HOPPER, ("IMAGE", "unsigned short" if mode == "BF16" else "float"), ("PRECISION", mode),
            ("TAPS", taps), ("ROW_TAPS", row_taps), ("STAGES", stages))


def _stage(patch: Patch, mode: str) -> int:
    return SLABS[mode] * (patch.n * patch.h * patch.w * ROW + patch.shared())


def can(g: ConvGeometry, dy: cupy.ndarray, x: cupy.ndarray, mode: str) -> bool:
    """Whether the hardware can copy, and there are taps for two groups."""
    each = 16 // x.dtype.itemsize
    return (mode in SLABS and (g.sh, g.sw) == (1, 1) and g.kh * g.kw > 1 and g.c % each == g.m % each == 0
            and (mode == "BF16") == (x.dtype == np.uint16)
            and x.data.ptr % 16 == dy.data.ptr % 16 == 0 and x.size > 0 and dy.size > 0)


def _patches(g: ConvGeometry, mode: str) -> list[tuple[int, Patch]]:
    """How many stages fit, and of which patches."""
    found = []
    for n, h, w in itertools.product((1, 2, 4, 8, 16), {1, 2, 4, 8, 16, min(g.oh, 16)}, (8, 16, 32)):
        line = w + g.kw - 1
        if mode == "TF32":
            line = launch.blocks(line, 8) * 8
        patch = Patch(n, h, w, h + g.kh - 1, line, h % 2 == 1)
        in_pairs = mode == "TF32" or h % 2 == 0 or n % 2 == 0
        if in_pairs and MIN_PIXELS <= n * h * w <= MAX_PIXELS and max(patch.lines, line) <= MAX_BOX:
            stages = min(MAX_STAGES, launch.most_shared() // (_stage(patch, mode) + 16))
            found += [(stages, patch)] * (stages > 1)
    return found


def _taps(g: ConvGeometry, mode: str) -> tuple[int, int, int]:
    """Taps of a block, of them side by side, and how many blocks take all. In tf32 they are whole rows of a filter, or
    equal parts of one."""
    across = launch.blocks(g.kw, MAX_TAPS)
    row_taps = launch.blocks(g.kw, across)
    if mode == "BF16" and across > 1:
        return MAX_TAPS, 1, launch.blocks(g.kh * g.kw, MAX_TAPS)
    lines = min(g.kh, MAX_TAPS // row_taps)
    return lines * row_taps, row_taps, launch.blocks(g.kh, lines) * across


@functools.lru_cache(maxsize=1024)
def plan(g: ConvGeometry, mode: str, splits: int | None = None) -> Plan | None:
    """None where no patch fits."""
    def cost(of: tuple[int, Patch]) -> tuple[int, int, int]:
        """The time, in pixels; bytes that are copied; and how often steps begin a column of eights."""
        number = of[1].number(g.n, g.oh, g.ow)
        return (number * (of[1].n * of[1].h * of[1].w + TURN[mode]), number * _stage(of[1], mode),
                number * of[1].n * of[1].w)

    stages, patch = min(_patches(g, mode), key=cost, default=(0, None))
    if patch is None:
        return None
    taps, row_taps, runs = _taps(g, mode)
    blocks = launch.blocks(g.m, SIDE) * runs * launch.blocks(g.c, SIDE)
    number = patch.number(g.n, g.oh, g.ow)
    most = max(1, launch.multiprocessors() // blocks)
    splits = splits or min(range(1, min(most, number) + 1), key=lambda k: launch.blocks(number, k))
    structs = (launch.by_value("GradWTma", g, runs=runs, each=number // splits, more=number % splits),
               patch.struct(g.oh, g.ow, patch.shared()))
    return Plan(patch, constants(mode, taps, row_taps, stages), blocks, splits, stages * (_stage(patch, mode) + 16),
                structs)


def parts(dy: cupy.ndarray, x: cupy.ndarray, found: Plan, out: cupy.ndarray) -> None:
    """What the blocks find: out (splits, taps * c, m)."""
    patch, depth = found.patch, ROW // x.dtype.itemsize
    launch.kernel(FILE, "conv2d_nhwc_dw_tma", *found.constants)(
        (found.blocks, found.splits), (THREADS_PER_BLOCK,), tensor_map(dy, (patch.n, patch.h, patch.w, depth)),
        tensor_map(x, (patch.n, patch.lines, patch.line, depth)), out, *found.structs, shared=found.shared)


CONFIGURATIONS = [(FILE, constants(mode, *of)) for mode in SLABS
                  for of in ((9, 3, 3), (9, 3, 5), (5, 5, 3), (2, 1, 2))]
