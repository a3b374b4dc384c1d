"""Launcher of wgmma.cu."""

from __future__ import annotations

import functools

import numpy as np

from .....common.geometry import ConvGeometry
from .... import launch
from ...cost import round_up
from .. import tensor_cores
from ..planned import Outputs

FILE = "conv/resident/tensor_cores/wgmma.cu"
ROWS, THREADS, FILTERS = 4, 256, 64        # output rows of a warp at a time; a block; filters of one product
MIN_COMPILER = 12, 9                       # NVRTC: older ones refuse the architecture that has the instruction, sm_90a


@functools.lru_cache(maxsize=1024)
def _plan(g: ConvGeometry, mode: str) -> launch.Plan | None:
    """The launch, or None if image and filters do not fit shared memory."""
    ph, pw = round_up(g.oh, ROWS) + g.kh - 1, round_up(g.ow, 16) + 8
    filters = round_up(g.m, FILTERS)
    shared = (tensor_cores.PARTS[mode] * g.c * (g.kh * filters * 8 + ph * pw) + filters) * 4
    if shared > launch.most_shared():
        return None
    constants = tensor_cores.constants_of(g.kh, g.kw, mode, ROWS, THREADS, g.ow % 4 == 0,
                                          tensor_cores.pixels_per_copy(g))
    return launch.Plan(FILE, "conv2d_wgmma", (launch.HOPPER, *constants),
                       (max(1, min(g.n, launch.multiprocessors())), 1, 1), THREADS, shared,
                       launch.by_value("PaddedImages", g, ph=ph, pw=pw, images=1))


OUTPUTS = Outputs(lambda g, dtype, window: _plan(g, tensor_cores.mode()))


def refuses(direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
    return (refuses_device() or tensor_cores.refuses_on_tensor_cores(g, dtype) or tensor_cores.refuses_width(g)
            or tensor_cores.refuses_size(_plan(g, tensor_cores.mode())))


def refuses_device() -> str | None:
    """Why the instruction cannot be had, or None."""
    if launch.compute_capability() != 90:
        return f"it needs compute capability 9.0 but the device has {launch.compute_capability() / 10}"
    if launch.compiler_version() < MIN_COMPILER:
        return f"it needs NVRTC 12.9 but the installed one is {'.'.join(map(str, launch.compiler_version()))}"
    return None


CONFIGURATIONS = [
    (FILE, (launch.HOPPER, *tensor_cores.constants_of(kh, kw, mode, ROWS, THREADS, aligned, wide), *fused))
    for mode in tensor_cores.PARTS for kh, kw, aligned, wide, fused in (
        (8, 8, True, 4, (("FUSED", 1), ("ACT", "sigmoid"), ("POOL", 4))),
        (5, 5, False, 1, (("FUSED", 1), ("ACT", "tanh"))), (11, 3, False, 1, ()), (1, 1, True, 4, ()))]
