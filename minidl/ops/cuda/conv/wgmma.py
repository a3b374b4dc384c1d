"""Launchers of wgmma.cu and wgmma_dw.cu, and the choice of tiles from the shape."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ....device import precision
from .. import launch
from ..linear import MODES
from .planned import Gradients, Outputs, Plan
from .tensor_core_image import PARTS, constants_of, picture, refuses_picture, refuses_size, wide
from .whole_image import round_up

FILE, GRADIENT_FILE = "conv/wgmma.cu", "conv/wgmma_dw.cu"
ROWS, THREADS, FILTERS = 4, 256, 64        # output rows of a warp at a time; a block; filters of one product
GRADIENT_THREADS, TILES, RING = 384, 3, 4 * 64 * 32     # of dw: 8 x 8 taps that a block sums for, at most; its ring


@functools.lru_cache(maxsize=1024)
def _plan(g: Any, mode: str) -> Plan | None:
    """The launch, or None where image and filters do not fit shared memory."""
    ph, pw = round_up(g.oh, ROWS) + g.kh - 1, round_up(g.ow, 16) + 8
    filters = round_up(g.m, FILTERS)
    shared = (PARTS[mode] * g.c * (g.kh * filters * 8 + ph * pw) + filters) * 4
    if shared > launch.most_shared():
        return None
    blocks = max(1, min(g.n, launch.multiprocessors()))
    return Plan((blocks, 1, 1), THREADS, shared,
                (launch.HOPPER, *constants_of(g.kh, g.kw, mode, ROWS, THREADS, g.ow % 4 == 0, wide(g))),
                picture(g, ph, pw))


OUTPUTS = Outputs(FILE, "conv2d_wgmma", lambda g, dtype, window: _plan(g, MODES[precision()]))


@functools.lru_cache(maxsize=1024)
def _gradient_plan(g: Any, mode: str) -> Plan | None:
    """The launch, or None where an image does not fit shared memory."""
    tiles_a_channel = -(-g.kh // 8)
    groups = -(-g.c * tiles_a_channel // TILES)
    ph, pw = g.oh + 8 * tiles_a_channel - 1, round_up(g.ow, 8) + 8
    tiles = -(-g.c * tiles_a_channel // groups)
    shared = max(PARTS[mode] * RING + g.c * ph * pw, tiles * FILTERS * 64) * 4
    if shared > launch.most_shared():
        return None
    packs = launch.blocks(g.m, FILTERS)
    blocks = max(1, min(g.n, launch.multiprocessors() // (groups * packs)))
    constants = constants_of(g.kh, g.kw, mode, ROWS, GRADIENT_THREADS, g.ow % 4 == 0, wide(g), PH=ph, PW=pw,
                             TILES=tiles)
    return Plan((blocks, groups, packs), GRADIENT_THREADS, shared, (launch.HOPPER, *constants), picture(g, ph, pw))


GRADIENTS = Gradients(GRADIENT_FILE, "conv2d_wgmma_dw", lambda g, dtype, window: _gradient_plan(g, MODES[precision()]))


def refuses(direction: str, g: Any, dtype: np.dtype) -> str | None:
    if launch.compute_capability() != 90:
        return f"it needs compute capability 9.0 but the device has {launch.compute_capability() / 10}"
    return refuses_picture(direction, g, dtype) or refuses_size(
        (_gradient_plan if direction == "dw" else _plan)(g, MODES[precision()]))


CONFIGURATIONS = [
    (FILE, (launch.HOPPER, *constants_of(kh, kw, mode, ROWS, THREADS, aligned, wide), *fused))
    for mode in PARTS for kh, kw, aligned, wide, fused in (
        (8, 8, True, 4, (("FUSED", 1), ("ACT", "sigmoid"), ("POOL", 4))),
        (5, 5, False, 1, (("FUSED", 1), ("ACT", "tanh"))), (11, 3, False, 1, ()), (1, 1, True, 4, ()))] + [
    (GRADIENT_FILE, (launch.HOPPER, *constants_of(kh, kw, mode, ROWS, GRADIENT_THREADS, aligned, wide, PH=ph,
                                                  PW=pw, TILES=tiles), *fused))
    for mode in PARTS for kh, kw, aligned, wide, ph, pw, tiles, fused in (
        (8, 8, True, 4, 39, 40, 3, (("FUSED", 1), ("ACT", "sigmoid"), ("POOL", 4))), (8, 8, True, 4, 39, 40, 3, ()),
        (5, 5, False, 1, 17, 24, 3, (("FUSED", 1), ("ACT", "tanh"), ("POOL", 2))), (11, 3, False, 1, 30, 16, 2, ()))]
