"""Launcher of wgmma.cu."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .....device import precision
from ... import launch
from ...linear import MODES
from .planned import Outputs, Plan
from .tensor_core_image import PARTS, constants_of, picture, refuses_picture, refuses_size, wide
from .whole_image import round_up

FILE = "conv/resident/wgmma.cu"
ROWS, THREADS, FILTERS = 4, 256, 64        # output rows of a warp at a time; a block; filters of one product


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


def refuses(direction: str, g: Any, dtype: np.dtype) -> str | None:
    if launch.compute_capability() != 90:
        return f"it needs compute capability 9.0 but the device has {launch.compute_capability() / 10}"
    return refuses_picture(direction, g, dtype) or refuses_size(_plan(g, MODES[precision()]))


CONFIGURATIONS = [
    (FILE, (launch.HOPPER, *constants_of(kh, kw, mode, ROWS, THREADS, aligned, wide), *fused))
    for mode in PARTS for kh, kw, aligned, wide, fused in (
        (8, 8, True, 4, (("FUSED", 1), ("ACT", "sigmoid"), ("POOL", 4))),
        (5, 5, False, 1, (("FUSED", 1), ("ACT", "tanh"))), (11, 3, False, 1, ()), (1, 1, True, 4, ()))]
