"""Launchers of tensor_core_image.cu, and the choice of its tiles from the shape."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .....device import precision
from ... import launch
from ...linear import MODES
from ..product.implicit_gemm import tensor_core_refuses
from .planned import Gradients, Outputs, Plan
from .whole_image import round_up

Array = Any

launch.struct("Picture", "n", "c", "h", "w", "m", "oh", "ow", "top", "left", "ph", "pw", "images")

FILE = "conv/resident/tensor_core_image.cu"
PARTS = {"TF32": 1, "TF32X3": 2}           # numbers that an operand is split into, by PRECISION
ROWS, SETS = 4, (1, 2, 4)                  # output rows of a warp at a time; of y tiles of 16 filters, to choose from
THREADS = 256                              # a block: a thread needs up to 240 registers
TAPS = 24                                  # rows of taps that a warp of dw sums for


def constants_of(kh: int, kw: int, mode: str, rows: int, threads: int, aligned: bool, wide: int,
                 **more: int) -> tuple[launch.Constant, ...]:
    return (launch.real(np.dtype(np.float32)), ("KH", kh), ("KW", kw), ("PRECISION", mode), ("ROWS", rows),
            ("THREADS_A_BLOCK", threads), ("ALIGNED", int(aligned)), ("WIDE", wide), *more.items())


def wide(g: Any) -> int:
    """How many pixels one copy takes: 4 where each four of a padded row lie all inside the image or all outside."""
    return 1 if g.w % 4 or g.left % 4 else 4


def picture(g: Any, ph: int, pw: int) -> bytes:
    return launch.by_value("Picture", (g.n, g.c, g.h, g.w, g.m, g.oh, g.ow, g.top, g.left, ph, pw, 1))


# ---------------------------------------------------------------- y
@functools.lru_cache(maxsize=1024)
def _plan(g: Any, mode: str) -> Plan | None:
    """The launch, or None where image and filters do not fit shared memory."""
    return _tiled(g, mode, next((sets for sets in SETS if g.m <= 16 * sets), SETS[-1]), ROWS, THREADS)


def _tiled(g: Any, mode: str, sets: int, rows: int, threads: int) -> Plan | None:
    ph, pw = round_up(g.oh, rows) + g.kh - 1, round_up(g.ow, 16) + 8
    shared = PARTS[mode] * (g.c * g.kh * round_up(g.m, 16 * sets) * 8 + g.c * ph * pw) * 4
    if shared > launch.most_shared():
        return None
    blocks = max(1, min(g.n, 2 * launch.multiprocessors()))
    constants = constants_of(g.kh, g.kw, mode, rows, threads, g.ow % 4 == 0, wide(g), SETS=sets)
    return Plan((blocks, 1, 1), threads, shared, constants, picture(g, ph, pw))


OUTPUTS = Outputs(FILE, "conv2d_tensor_core_image", lambda g, dtype, window: _plan(g, MODES[precision()]))


# ---------------------------------------------------------------- dw
@functools.lru_cache(maxsize=1024)
def _gradient_plan(g: Any, mode: str) -> Plan | None:
    """The launch, or None where image and sums do not fit shared memory."""
    tiles = -(-g.m // 16)
    tiles = -(-tiles // -(-tiles // 4))                # at most 4 side by side, and the same in each block
    return _gradient_tiled(g, mode, tiles, THREADS // 32 // tiles, ROWS)


def _gradient_tiled(g: Any, mode: str, tiles: int, shares: int, rows: int) -> Plan | None:
    groups = -(-g.c // (TAPS // g.kh))
    channels = -(-g.c // groups)
    ph, pw, threads = round_up(g.oh, rows) + g.kh - 1, round_up(g.ow, 8) + 8, 32 * tiles * shares
    sums = (4 * channels * g.kh + 2) * 32 * tiles if shares > 1 else 0
    shared = max(PARTS[mode] * groups * channels * ph * pw, sums) * 4
    if shared > launch.most_shared():
        return None
    packs = launch.blocks(g.m, 16 * tiles)
    blocks = max(1, min(g.n, launch.multiprocessors() // (groups * packs)))
    constants = constants_of(g.kh, g.kw, mode, rows, threads, g.ow % 2 == 0, wide(g), GRADIENT=1,
                             CHANNELS=channels, PH=ph, PW=pw, TILES=tiles, SHARES=shares)
    return Plan((blocks, groups, packs), threads, shared, constants, picture(g, ph, pw))


GRADIENTS = Gradients(FILE, "conv2d_tensor_core_image_dw",
                      lambda g, dtype, window: _gradient_plan(g, MODES[precision()]))


# ---------------------------------------------------------------- what it cannot do
def refuses_picture(direction: str, g: Any, dtype: np.dtype) -> str | None:
    """What no kernel can do that takes rows of taps from whole images in shared memory."""
    reason = tensor_core_refuses(direction, g, dtype)
    if reason:
        return reason
    if MODES[precision()] not in PARTS:
        return f"the precision is {precision()} but it computes in tf32 or 3xtf32 (minidl.set_precision)"
    if (g.sh, g.sw) != (1, 1):
        return f"it needs stride 1 but it is {g.sh}x{g.sw}"
    if g.kw > 8:
        return f"a filter row of {g.kw} taps does not fit one step of a product, 8"
    return None


def refuses_size(plan: Plan | None) -> str | None:
    if plan is None:
        return f"an image and the filters do not fit a block's {launch.most_shared() // 1024} KB of shared memory"
    return None


def refuses(direction: str, g: Any, dtype: np.dtype) -> str | None:
    reason = refuses_picture(direction, g, dtype)
    if reason:
        return reason
    if direction == "dw" and g.kh > TAPS:
        return f"{g.kh} rows of taps do not fit the sums of a warp ({TAPS} do)"
    return refuses_size((_gradient_plan if direction == "dw" else _plan)(g, MODES[precision()]))


CONFIGURATIONS = [
    (FILE, (*constants_of(kh, kw, mode, ROWS, THREADS, aligned, wide, SETS=sets), *fused))
    for mode in PARTS for kh, kw, aligned, wide, sets, fused in (
        (8, 8, True, 4, 4, (("FUSED", 1), ("ACT", "sigmoid"), ("POOL", 4))),
        (5, 5, True, 4, 1, (("FUSED", 1), ("ACT", "tanh"))),
        (5, 5, False, 1, 2, (("FUSED", 1), ("ACT", "tanh"), ("POOL", 2))), (11, 3, False, 1, 4, ()))
] + [
    (FILE, (*constants_of(kh, kw, mode, ROWS, 32 * tiles * shares, aligned, wide, GRADIENT=1, CHANNELS=channels,
                          PH=ph, PW=pw, TILES=tiles, SHARES=shares), *fused))
    for mode in PARTS for kh, kw, aligned, wide, channels, ph, pw, tiles, shares, fused in (
        (8, 8, True, 4, 3, 39, 40, 4, 2, (("FUSED", 1), ("ACT", "sigmoid"), ("POOL", 4))),
        (8, 8, True, 4, 3, 39, 40, 4, 2, ()),
        (5, 5, True, 4, 1, 32, 36, 1, 8, (("FUSED", 1), ("ACT", "tanh"), ("POOL", 2))),
        (5, 5, True, 4, 3, 20, 24, 1, 8, ()),
        (11, 3, False, 1, 2, 18, 16, 3, 2, ()))]
