"""Launcher of conv_few.cu: convolution of images of few channels in NHWC, in one launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from .. import launch
from .conv_tma import OWN, ROW, Patch, patches
from .pixels import C_TYPES

FILE = "nhwc/conv_few.cu"
FILTERS, SQUARES, PATCHES, THREADS_PER_BLOCK = 64, 2, 2, 256
PIXEL, TAPS = 16, ROW // 16                # bytes; taps of a slab
# Pixels of a thread, which keeps them in registers -> blocks whose registers a multiprocessor has
BLOCKS = {1: 3, 2: 3, 3: 2}
MIN_BLOCKS = 2                             # one multiplies while another stores


def _shared(patch: Patch, taps: int) -> int:
    return launch.blocks(taps, TAPS) * FILTERS * ROW + PATCHES * patch.shared(PIXEL) + launch.blocks(taps, 2) * 4


def _pixels(patch: Patch) -> int:
    return launch.blocks(patch.n * patch.lines * patch.line, THREADS_PER_BLOCK)


def _blocks(patch: Patch, taps: int) -> int:
    """Of a multiprocessor, whose registers and shared memory they share."""
    return min(BLOCKS.get(_pixels(patch), 0), launch.most_shared() // (_shared(patch, taps) + OWN))


def patch_of(n: int, h: int, w: int, kh: int, kw: int) -> Patch | None:
    """The patch of which the fewest cover all pixels, the smallest of these; None where filters do not fit."""
    fit = [patch for patch in patches(SQUARES, kh, kw) if _blocks(patch, kh * kw) >= MIN_BLOCKS]
    return min(fit, key=lambda patch: (patch.number(n, h, w), patch.shared(PIXEL)), default=None)


def constants(dtype: np.dtype, mode: str, pixels: int, wide: tuple[bool, bool],
              act: str | None) -> tuple[launch.Constant, ...]:
    return (launch.HOPPER, ("IMAGE", C_TYPES[dtype]), ("PRECISION", mode), ("FILTERS", FILTERS), ("TALL", 1),
            ("BLOCKS", BLOCKS[pixels]), ("PIXELS", pixels), ("WIDE", int(wide[0])), ("WIDE_Y", int(wide[1])),
            *((("ACT", act), ("AFTER", 1)) if act else ()))


def product(patch: Patch, dtype: np.dtype, mode: str, n: int, h: int, w: int, m: int, taps: int,
            wide: tuple[bool, bool], act: str | None) -> Callable[..., None]:
    """What launches the kernel on images, filters, biases, y, the struct of sizes, and whether it goes back. m, h, w:
    of y; wide: whether pixels of x, and of y, are copied by 16 bytes."""
    beside = launch.blocks(m, FILTERS)
    at_once = max(1, launch.multiprocessors() * _blocks(patch, taps) // beside)
    launched = launch.kernel(FILE, "conv_nhwc_few", *constants(dtype, mode, _pixels(patch), wide, act)).sized(
        (min(patch.number(n, h, w), at_once), beside), (THREADS_PER_BLOCK,), _shared(patch, taps))
    taken = patch.struct(h, w, patch.shared(PIXEL))

    def run(x: cupy.ndarray, filters: cupy.ndarray, b: Any, y: cupy.ndarray, struct: bytes, back: bool) -> None:
        launched(x, filters, b, y, struct, taken, int(back))
    return run


CONFIGURATIONS = [(FILE, constants(dtype, mode, pixels, wide, act))
                  for dtype, mode in ((np.dtype(np.uint16), "BF16"), (np.dtype(np.float32), "TF32"))
                  for pixels, wide, act in ((1, (False, True), "relu"), (2, (True, True), None),
                                            (3, (False, False), None))]
