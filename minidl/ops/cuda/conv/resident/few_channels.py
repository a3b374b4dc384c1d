"""Launchers of few_channels.cu."""

from __future__ import annotations

import functools

import numpy as np

from .....core.device import precision
from ....common.geometry import ConvGeometry
from ... import launch
from ..cost import round_up
from . import tensor_cores
from .planned import Gradients, Outputs
from .tensor_cores import wgmma

FILE = "conv/resident/few_channels.cu"
CHANNELS, FILTERS, UNIT = 4, 64, 16        # of a pixel; rows of a product; bytes of two pixels
ROWS, THREADS = 8, 512                     # of y: output rows of a product; a block
STAGES, GRADIENT_THREADS = 4, 256          # of dw: steps whose gradients are copied ahead, and the one at work; a block
AT_ONCE = 4                                # rows of a step, at most
FLOAT, HALF = "float", "unsigned short"    # what y is stored as
MEANS = 2                                  # windows, at most, in four neighbours
MOST_TAPS = 8                              # of a filter, each way, whose sums a group keeps


def _line(g: ConvGeometry) -> tuple[int, int]:
    """Units of a row of an image, and the pixels that it needs for them."""
    units = round_up(g.ow, 16) // 2 + (g.kw + 1) // 2 - 1
    return units, round_up(2 * units + 1, 4)


def _planned(kernel: str, g: ConvGeometry, grid: tuple[int, int], threads: int, height: int, shared: int, store: str,
             **more: int) -> launch.Plan | None:
    """shared: bytes in addition to those of an image."""
    line, pw = _line(g)
    shared += height * (2 * line * UNIT + g.c * pw * 4)
    if shared > launch.most_shared():
        return None
    constants = tensor_cores.constants_of(g.kh, g.kw, "BF16", ROWS, threads, g.ow % 4 == 0,
                                          tensor_cores.pixels_per_copy(g), **more)
    return launch.Plan(FILE, kernel, (launch.HOPPER, *constants, ("STORE", store)), (*grid, 1), threads, shared,
                       launch.by_value("FewChannels", g, ph=height, pw=pw, images=1, line=line))


# ---------------------------------------------------------------- y
@functools.lru_cache(maxsize=1024)
def _plan(g: ConvGeometry, store: str = FLOAT) -> launch.Plan | None:
    """The launch, or None if image and filters do not fit shared memory."""
    units, filters = round_up(g.kh * ((g.kw + 1) // 2), 2), round_up(g.m, FILTERS)
    return _planned("conv2d_few_channels", g, (max(1, min(g.n, launch.multiprocessors())), 1), THREADS,
                    round_up(g.oh, ROWS) + g.kh - 1, filters // FILTERS * units * (FILTERS + 1) * UNIT + filters * 4,
                    store)


OUTPUTS = Outputs(lambda g, dtype, window: _plan(g))
OUTPUTS_IN_HALF = Outputs(lambda g, dtype, window: _plan(g, HALF), np.dtype(np.uint16))


# ---------------------------------------------------------------- dw
@functools.lru_cache(maxsize=1024)
def _gradient_plan(g: ConvGeometry, store: str = FLOAT) -> launch.Plan | None:
    """The launch, or None if image and sums do not fit shared memory."""
    packs = launch.blocks(g.m, FILTERS)
    copied = STAGES * 2 * GRADIENT_THREADS * (4 * AT_ONCE + MEANS) * 4
    sums = FILTERS * (g.c * g.kh * g.kw // 8 * 8 + 12) * 4
    return _planned("conv2d_few_channels_dw", g, (max(1, min(g.n, launch.multiprocessors() // packs)), packs),
                    GRADIENT_THREADS, g.oh + MOST_TAPS - 1, max(copied, sums), store, GRADIENT=1, STAGES=STAGES)


GRADIENTS = Gradients(lambda g, dtype, window: _gradient_plan(g))
GRADIENTS_IN_HALF = Gradients(lambda g, dtype, window: _gradient_plan(g, HALF))


# ---------------------------------------------------------------- what it cannot do
def refuses(direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
    reason = wgmma.refuses_device() or tensor_cores.refuses_on_tensor_cores(g, dtype)
    if reason:
        return reason
    if precision() != "bf16":
        return f"the precision is {precision()} but it computes in bf16 (minidl.set_precision)"
    if g.c > CHANNELS:
        return f"images have {g.c} channels but it takes {CHANNELS} at most"
    if direction == "dw" and max(g.kh, g.kw) > MOST_TAPS:
        return f"a filter of {g.kh}x{g.kw} taps does not fit the sums of a group, {MOST_TAPS}x{MOST_TAPS}"
    return tensor_cores.refuses_size(_gradient_plan(g) if direction == "dw" else _plan(g))


_FUSED = (("FUSED", 1), ("ACT", "sigmoid"), ("POOL", 4)), (("FUSED", 1), ("ACT", "tanh"), ("POOL", 2)), ()
CONFIGURATIONS = [
    (FILE, (launch.HOPPER, *tensor_cores.constants_of(kh, kw, "BF16", ROWS, threads, aligned, wide, **more),
            ("STORE", store), *fused))
    for threads, more in ((THREADS, {}), (GRADIENT_THREADS, {"GRADIENT": 1, "STAGES": STAGES}))
    for kh, kw, aligned, wide in ((8, 8, True, 4), (5, 5, True, 1), (3, 1, False, 1)) for fused in _FUSED
    for store in ((FLOAT, HALF) if aligned and fused else (FLOAT,))]
