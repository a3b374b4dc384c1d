"""Launcher of conv_few.cu: convolution of images of few channels in NHWC, where the hardware copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from .. import launch
from .conv_tma import MAX_BOX, OWN, ROW, Patch, patches
from .pixels import C_TYPES
from .tensor_maps import tensor_map

FILE = "nhwc/conv_few.cu"
FILTERS, SQUARES, STAGES, BLOCKS = 64, 2, 4, 2
PIXEL, THREADS_PER_BLOCK = 16, 288         # bytes; two groups that multiply, a warp that copies


def _shared(patch: Patch, slabs: int) -> int:
    return slabs * FILTERS * ROW + STAGES * (patch.shared(PIXEL) + 16) + 16


def patch_of(n: int, h: int, w: int, kh: int, kw: int, slabs: int, each: int) -> Patch | None:
    """The patch, `each` channels deep, of which the fewest cover all pixels; None where filters do not fit."""
    fit = [patch for patch in patches(SQUARES, kh, kw) if max(patch.lines, patch.line * each) <= MAX_BOX and
           _shared(patch, slabs) <= launch.most_shared() // BLOCKS - OWN]
    return min(fit, key=lambda patch: (patch.number(n, h, w), patch.shared(PIXEL)), default=None)


def constants(dtype: np.dtype, mode: str, wide_y: bool, act: str | None) -> tuple[launch.Constant, ...]:
    return (launch.HOPPER, ("IMAGE", C_TYPES[dtype]), ("PRECISION", mode), ("FILTERS", FILTERS), ("TALL", 1),
            ("STAGES", STAGES), ("WIDE_Y", int(wide_y)), *((("ACT", act), ("AFTER", 1)) if act else ()))


def product(patch: Patch, dtype: np.dtype, mode: str, n: int, h: int, w: int, m: int, slabs: int, wide_y: bool,
            act: str | None) -> Callable[..., None]:
    """What launches the kernel on images, packed filters, biases, y and the struct of sizes. m, h, w: of y."""
    beside = launch.blocks(m, FILTERS)
    at_once = max(1, launch.multiprocessors() * BLOCKS // beside)
    launched = launch.kernel(FILE, "conv_nhwc_few", *constants(dtype, mode, wide_y, act)).sized(
        (min(patch.number(n, h, w), at_once), beside), (THREADS_PER_BLOCK,), _shared(patch, slabs))
    taken = patch.struct(h, w, patch.shared(PIXEL))

    def run(x: cupy.ndarray, packed: cupy.ndarray, b: Any, y: cupy.ndarray, struct: bytes) -> None:
        lines = x.reshape(*x.shape[:2], 1, -1)           # a box copies 16 bytes at a time where these are an axis
        launched(tensor_map(lines, (patch.n, patch.lines, 1, patch.line * PIXEL // dtype.itemsize), swizzled=False),
                 tensor_map(packed[0], (FILTERS, ROW // dtype.itemsize)), b, y, struct, taken)
    return run


CONFIGURATIONS = [(FILE, constants(dtype, mode, wide_y, act))
                  for dtype, mode in ((np.dtype(np.uint16), "BF16"), (np.dtype(np.float32), "TF32"))
                  for wide_y, act in ((True, "relu"), (True, None), (False, None))]
