"""Launcher of conv_few.cu: convolution of images of few channels in NHWC, in one launch."""

from __future__ import annotations

from collections.abc import Callable

import cupy
import numpy as np

from ....common.geometry.nhwc import C_TYPES
from ... import launch
from ...launch.tensor_maps import BYTES, tensor_map
from .conv_tma import ROW, Patch, patches

FILE = "nhwc/conv/conv_few.cu"
FILTERS, SQUARES, THREADS_PER_BLOCK = 64, 2, 256
PIXEL, TAPS = 16, ROW // 16                # bytes; taps of a slab
MAX_PIXELS = 4                             # of a thread, which keeps them in registers
ROWS = {4: 2, 2: 8}                        # of a square in one copy of y, by the bytes of its numbers
MIN_BLOCKS = 2                             # one multiplies while another stores


def _shared(patch: Patch, taps: int, copied: int) -> int:
    """copied: bytes of a number of y that the hardware copies, or 0."""
    return (launch.blocks(taps, TAPS) * FILTERS * ROW + SQUARES * 64 * FILTERS * copied + patch.shared(PIXEL) +
            FILTERS * 4 + launch.blocks(taps, 4) * 8 + taps * 8)


def _pixels(patch: Patch) -> int:
    return launch.blocks(patch.n * patch.lines * patch.line, THREADS_PER_BLOCK)


def _fit(patch: Patch, taps: int, copied: int = 0) -> int:
    """Blocks in a multiprocessor's shared memory."""
    return launch.most_shared() // (_shared(patch, taps, copied) + launch.RESERVED)


def _blocks(dtype: np.dtype, pixels: int, wide: bool, folded: int) -> int:
    """How many blocks a multiprocessor has registers for: a number that is read one by one takes a register until it is
    stored, and with neighbours in one pixel another one for where it is."""
    return 3 if pixels * PIXEL // (4 if wide else dtype.itemsize) <= 8 and folded == 1 else MIN_BLOCKS


def fold(c: int, kw: int, sw: int, dtype: np.dtype) -> int:
    """How many neighbours of a row of c channels are one pixel of a patch."""
    return max(by for by in range(1, kw + 1) if sw % by == 0 and (by == 1 or by * c * dtype.itemsize <= PIXEL))


def patch_of(n: int, h: int, w: int, kh: int, kw: int, sh: int = 1, sw: int = 1) -> Patch | None:
    """The patch that covers all pixels with the fewest patches, and of such the smallest; None if filters do not fit.
    kw, sw: in pixels of the patch."""
    fit = (patch for patch in (each._replace(lines=(each.h - 1) * sh + kh,
                                             line=launch.blocks((each.w - 1) * sw + kw, sw) * sw)
                               for each in patches(SQUARES, kh, kw))
           if _pixels(patch) <= MAX_PIXELS and _fit(patch, kh * kw) >= MIN_BLOCKS)
    return launch.best(fit, lambda patch: (patch.number(n, h, w), patch.shared(PIXEL)))


def constants(dtype: np.dtype, mode: str, pixels: int, wide: tuple[bool, bool], copied: bool,
              act: str | None, folded: int = 1) -> tuple[launch.Constant, ...]:
    return (launch.HOPPER, ("IMAGE", C_TYPES[dtype]), ("PRECISION", mode), ("FILTERS", FILTERS), ("TALL", 1),
            ("BLOCKS", _blocks(dtype, pixels, wide[0], folded)), ("PIXELS", pixels), ("FOLD", folded),
            ("WIDE", int(wide[0])), ("WIDE_Y", int(wide[1])), ("COPIED", int(copied)), ("ROWS", ROWS[dtype.itemsize]),
            *((("ACT", act), ("AFTER", 1)) if act else ()))


def product(patch: Patch, dtype: np.dtype, mode: str, n: int, h: int, w: int, m: int, taps: int,
            wide: tuple[bool, bool], act: str | None,
            folded: int) -> tuple[launch.Plan, Callable[..., None]]:
    """The launch, and what starts it on images, filters, biases, y, the struct of sizes, and `back`: whether it is for
    the gradient. m, h, w: of y; taps: in pixels of the patch; wide: whether pixels of x, and of y, are copied by 16
    bytes."""
    beside, pixels = launch.blocks(m, FILTERS), _pixels(patch)
    copied = dtype.itemsize if wide[1] and _fit(patch, taps, dtype.itemsize) >= MIN_BLOCKS else 0
    blocks = min(_blocks(dtype, pixels, wide[0], folded), _fit(patch, taps, copied))
    at_once = max(1, launch.multiprocessors() * blocks // beside)
    plan = launch.Plan(FILE, "conv_nhwc_few", constants(dtype, mode, pixels, wide, bool(copied), act, folded),
                       (min(patch.number(n, h, w), at_once), beside), THREADS_PER_BLOCK,
                       _shared(patch, taps, copied), patch.struct(h, w, patch.shared(PIXEL)))
    rows = ROWS[dtype.itemsize]
    square = (*((rows, 1) if patch.images else (1, rows)), 8, ROW // dtype.itemsize)

    def run(x: cupy.ndarray, filters: cupy.ndarray, b: cupy.ndarray | None, y: cupy.ndarray, struct: bytes,
            back: bool) -> None:
        squares = tensor_map(y, square, rounded=False) if copied else bytes(BYTES)
        plan.start(squares, x, filters, b, y, struct, plan.struct, int(back), int(y.nbytes > launch.cache_bytes()))
    return plan, run


CONFIGURATIONS = [(FILE, constants(dtype, mode, pixels, wide, copied, act, folded))
                  for dtype, mode in ((np.dtype(np.uint16), "BF16"), (np.dtype(np.float32), "TF32"))
                  for pixels, wide, copied, act, folded in (
                      (1, (False, True), True, "relu", 1), (1, (False, True), True, None, 1),
                      (2, (True, True), True, None, 1), (2, (False, True), True, None, 1),
                      (3, (False, True), False, None, 1), (3, (False, False), False, None, 1),
                      (4, (False, True), True, None, 1), (2, (False, True), True, None, 2),
                      (2, (False, True), True, "relu", 2))]
