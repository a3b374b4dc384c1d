"""Launcher of winograd_dw.cu, and the choice of its tiles from the shape.

Its rounding. A tap is the sum of four kinds' sums, each of a quarter as many products of sums and differences: for
operands of random signs these are twice as large, and together their roundings as large as those of the plain sum. But
they are those of the image times the gradients, not of the very products that a tap sums, as some that cancel go into
the kinds. Where a tap has few products they may happen to be small beside those: such cases are refused. An infinite
pixel or gradient makes taps NaN that would be infinite.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

from ... import launch
from .planned import Gradients, Plan
from .whole_image import resident_blocks, round_up

Array = Any

launch.struct("Planes", "n", "c", "h", "w", "m", "oh", "ow", "top", "left", "ph", "pw", "images")

FILE = "conv/resident/winograd_dw.cu"
FILTERS, ROWS, SLICES = range(1, 9), (1, 2), (1, 2, 3, 4, 6, 8, 16)       # TM, ROWS and blocks an image to choose from
MOST_THREADS = 384                         # more have too few registers
FEWEST = 64                                # products of a tap
FLOAT = np.dtype(np.float32)


def _slot(window: int) -> int:
    """SLOT in the source: floats of an item; window is 0 where nothing is fused."""
    fours = (16 + (8 // window + 1 if window else 0) + 3) // 4
    return 4 * (fours | 1)


def _constants(kh: int, kw: int, tm: int, groups: int, rows: int, fours: int, threads: int,
               aligned: int) -> tuple[launch.Constant, ...]:
    return (launch.real(FLOAT), ("KH", kh), ("KW", kw), ("TM", tm), ("GROUPS", groups), ("ROWS", rows),
            ("FOURS", fours), ("THREADS_A_BLOCK", threads), ("ALIGNED", aligned))


@functools.lru_cache(maxsize=1024)
def _plan(g: Any, window: int) -> Plan | None:
    """The candidate with the least estimated time, or None where none fits."""
    return min(_candidates(g, window), key=lambda plan: plan.time, default=None)


def _candidates(g: Any, window: int) -> list[Plan]:
    return [plan for tm, rows, slices in itertools.product(FILTERS, ROWS, SLICES)
            if tm <= g.m and slices <= g.m and (plan := _candidate(g, window, tm, rows, slices))]


def _candidate(g: Any, window: int, tm: int, rows: int, slices: int) -> Plan | None:
    """The launch for all taps of tm filters a thread and rows of positions at a time, or None where it does not fit."""
    a, b, groups, fours = g.kh // 2, g.kw // 2, -(-g.m // (slices * tm)), -(-g.ow // 8)
    chunks, wide = -(-g.oh // (2 * rows)), round_up(b + 3, 4)
    workers = round_up(9 * g.c * groups, 32)
    threads = round_up(workers + 32, 128)                   # as many warps on each scheduler
    numbers = a * b * tm + (a + rows - 1) * wide + 24
    if threads > MOST_THREADS or numbers > min(255, 65536 // threads):
        return None
    maps, items = tm * groups, rows * fours
    ph, pw = chunks * rows + a - 1, 4 * fours - 4 + wide
    kinds, sums = 9 * (2 * items * (maps | 1) * 4 + g.c * ph * pw), 9 * g.c * a * b * maps
    shared = (maps * items * _slot(window) + max(kinds, sums)) * FLOAT.itemsize
    if shared > launch.most_shared():
        return None
    resident = resident_blocks(threads, numbers, shared)
    blocks = max(1, min(g.n, resident * launch.multiprocessors() // slices))
    multiply = -(-workers // 128) * fours * (rows * tm * (4 * a * b + 1) + (a + rows - 1) * wide // 4 + 8)
    prepare = maps * items * 250 / (threads - workers)
    time = -(-g.n // blocks) * (resident * chunks * (max(multiply, prepare) + 150) + 3000)
    constants = _constants(g.kh, g.kw, tm, groups, rows, fours, threads, int(g.ow % 4 == 0))
    planes = launch.by_value("Planes", (g.n, g.c, g.h, g.w, g.m, g.oh, g.ow, g.top, g.left, ph, pw, 1))
    return Plan((blocks, slices), threads, shared, constants, planes, time)


GRADIENTS = Gradients(FILE, "conv2d_winograd_dw", lambda g, dtype, window: _plan(g, window))


def least_met(outputs: int, before: int, taps: int, pixels: int) -> int:
    """Pixels under the window that meets the fewest, the first one or the last. With outputs and taps the other way
    round, positions where a tap meets the image, of the tap that has the fewest."""
    return min(max(0, min(start + taps, pixels) - max(start, 0)) for start in (-before, outputs - 1 - before))


def refuses(direction: str, g: Any, dtype: np.dtype) -> str | None:
    if dtype != FLOAT:
        return f"it is for float32 arrays but these are {dtype}"
    if g.kh % 2 or g.kw % 2 or (g.sh, g.sw) != (1, 1):
        return (f"it needs filters of even height and width and stride 1, but they are {g.kh}x{g.kw} with stride "
                f"{g.sh}x{g.sw}")
    fewest = least_met(g.kh, g.top, g.oh, g.h) * least_met(g.kw, g.left, g.ow, g.w) * g.n
    if fewest < FEWEST:
        return f"the sum of a tap may have only {fewest} products but needs {FEWEST} for its rounding to even out"
    if _plan(g, 2) is None:                            # the form that takes most
        return (f"the images and gradients do not fit a block's {launch.most_shared() // 1024} KB of shared memory, or "
                f"the {g.c} channels its threads")
    return None


# Tiles that are chosen for the report's layer and for small ones, each as it is and fused
CONFIGURATIONS = [
    (FILE, (*_constants(k, k, *tile), *fused))
    for k, *tile, act, pool in ((8, 5, 13, 2, 4, 384, 1, "sigmoid", 4), (8, 8, 8, 2, 4, 256, 1, "tanh", 4),
                                (8, 4, 8, 2, 4, 256, 0, "relu", 2), (4, 1, 3, 2, 2, 128, 0, "tanh", 2))
    for fused in ((), (("FUSED", 1), ("ACT", act), ("POOL", pool)))]
