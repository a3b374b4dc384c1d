"""Launchers of tensor_core_image.cu, and the choice of its tiles from the shape."""

from __future__ import annotations

import functools

import numpy as np

from .....common.geometry import ConvGeometry
from .... import launch
from ...cost import round_up
from .. import tensor_cores
from ..planned import Gradients, Outputs

FILE = "conv/resident/tensor_cores/tensor_core_image.cu"
ROWS, SETS = 4, (1, 2, 4)                  # output rows of a warp at a time; of y tiles of 16 filters, to choose from
THREADS = 256                              # a block: a thread needs up to 240 registers
MAX_TAPS = 24                              # rows of taps that a warp of dw sums for


# ---------------------------------------------------------------- y
@functools.lru_cache(maxsize=1024)
def _plan(g: ConvGeometry, mode: str) -> launch.Plan | None:
    """The launch, or None if image and filters do not fit shared memory."""
    sets = next((sets for sets in SETS if g.m <= 16 * sets), SETS[-1])
    ph, pw = round_up(g.oh, ROWS) + g.kh - 1, round_up(g.ow, 16) + 8
    shared = tensor_cores.PARTS[mode] * (g.c * g.kh * round_up(g.m, 16 * sets) * 8 + g.c * ph * pw) * 4
    if shared > launch.most_shared():
        return None
    blocks = max(1, min(g.n, 2 * launch.multiprocessors()))
    constants = tensor_cores.constants_of(g.kh, g.kw, mode, ROWS, THREADS, g.ow % 4 == 0,
                                          tensor_cores.pixels_per_copy(g), SETS=sets)
    return launch.Plan(FILE, "conv2d_tensor_core_image", constants, (blocks, 1, 1), THREADS, shared,
                       launch.by_value("PaddedImages", g, ph=ph, pw=pw, images=1))


OUTPUTS = Outputs(lambda g, dtype, window: _plan(g, tensor_cores.mode()))


# ---------------------------------------------------------------- dw
@functools.lru_cache(maxsize=1024)
def _gradient_plan(g: ConvGeometry, mode: str) -> launch.Plan | None:
    """The launch, or None if image and sums do not fit shared memory."""
    tiles = -(-g.m // 16)
    tiles = -(-tiles // -(-tiles // 4))                # at most 4 side by side, and the same in each block
    shares = THREADS // 32 // tiles
    groups = -(-g.c // (MAX_TAPS // g.kh))
    channels = -(-g.c // groups)
    ph, pw, threads = round_up(g.oh, ROWS) + g.kh - 1, round_up(g.ow, 8) + 8, 32 * tiles * shares
    sums = (4 * channels * g.kh + 2) * 32 * tiles if shares > 1 else 0
    shared = max(tensor_cores.PARTS[mode] * groups * channels * ph * pw, sums) * 4
    if shared > launch.most_shared():
        return None
    packs = launch.blocks(g.m, 16 * tiles)
    blocks = max(1, min(g.n, launch.multiprocessors() // (groups * packs)))
    constants = tensor_cores.constants_of(g.kh, g.kw, mode, ROWS, threads, g.ow % 2 == 0,
                                          tensor_cores.pixels_per_copy(g), GRADIENT=1, CHANNELS=channels, PH=ph, PW=pw,
                                          TILES=tiles, SHARES=shares)
    return launch.Plan(FILE, "conv2d_tensor_core_image_dw", constants, (blocks, groups, packs), threads, shared,
                       launch.by_value("PaddedImages", g, ph=ph, pw=pw, images=1))


GRADIENTS = Gradients(lambda g, dtype, window: _gradient_plan(g, tensor_cores.mode()))


# ---------------------------------------------------------------- what it cannot do
def refuses(direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
    reason = tensor_cores.refuses_on_tensor_cores(g, dtype) or tensor_cores.refuses_width(g)
    if reason:
        return reason
    if direction == "dw" and g.kh > MAX_TAPS:
        return f"{g.kh} rows of taps do not fit the sums of a warp ({MAX_TAPS} do)"
    return tensor_cores.refuses_size((_gradient_plan if direction == "dw" else _plan)(g, tensor_cores.mode()))


CONFIGURATIONS = [
    (FILE, (*tensor_cores.constants_of(kh, kw, mode, ROWS, THREADS, aligned, wide, SETS=sets), *fused))
    for mode in tensor_cores.PARTS for kh, kw, aligned, wide, sets, fused in (
        (8, 8, True, 4, 4, (("FUSED", 1), ("ACT", "sigmoid"), ("POOL", 4))),
        (5, 5, True, 4, 1, (("FUSED", 1), ("ACT", "tanh"))),
        (5, 5, False, 1, 2, (("FUSED", 1), ("ACT", "tanh"), ("POOL", 2))), (11, 3, False, 1, 4, ()))
] + [
    (FILE, (*tensor_cores.constants_of(kh, kw, mode, ROWS, 32 * tiles * shares, aligned, wide, GRADIENT=1, PH=ph, PW=pw,
                                  CHANNELS=channels, TILES=tiles, SHARES=shares), *fused))
    for mode in tensor_cores.PARTS for kh, kw, aligned, wide, channels, ph, pw, tiles, shares, fused in (
        (8, 8, True, 4, 3, 39, 40, 4, 2, (("FUSED", 1), ("ACT", "sigmoid"), ("POOL", 4))),
        (8, 8, True, 4, 3, 39, 40, 4, 2, ()),
        (5, 5, True, 4, 1, 32, 36, 1, 8, (("FUSED", 1), ("ACT", "tanh"), ("POOL", 2))),
        (5, 5, True, 4, 3, 20, 24, 1, 8, ()),
        (11, 3, False, 1, 2, 18, 16, 3, 2, ()))]
