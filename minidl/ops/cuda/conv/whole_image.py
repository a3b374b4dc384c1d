"""Launchers of whole_image.cu, and the choice of its tiles from the shape."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import cupy
import numpy as np

from .. import launch
from ..reduce import sum_first

Array = cupy.ndarray

launch.struct("Whole", "n", "c", "h", "w", "m", "oh", "ow", "top", "left", "ph", "pw", "ms", "images", "rows", "shares",
              "w_out", "w_in")

FILE = "conv/whole_image.cu"
TW = 4                                     # outputs of a row that a thread owns
ROWS, FILTERS = (1, 2, 4, 5), (1, 2, 3, 4, 6, 8)       # TH and TM to choose from
SUMS = 128                                 # floats that a thread may keep as sums in y; half of that in dw
NUMBERS = 190                              # floats that it may keep at all
MOST_THREADS = 384                         # of dw, whose threads need up to 168 registers
ROOMY = 72 * 1024                          # bytes: with fewer, three blocks share a multiprocessor
WIDEST = 16                                # KW: taps that fit a thread's registers


def _constants(dtype: np.dtype, g: Any, th: int, tm: int, threads: int, aligned: bool, **more: int) -> tuple[Any, ...]:
    return (launch.real(dtype), ("KH", g.kh), ("KW", g.kw), ("SH", g.sh), ("SW", g.sw), ("TH", th), ("TM", tm),
            ("THREADS_A_BLOCK", threads), ("ALIGNED", int(aligned)), *more.items())


class Plan(NamedTuple):
    """One launch."""

    blocks: int
    threads: int
    shared: int
    constants: tuple[Any, ...]
    whole: np.ndarray


class Sum(NamedTuple):
    """What `conv2d_whole_image` computes: y of a convolution, or its dx as a convolution of gy."""

    n: int
    c: int
    h: int
    w: int
    m: int
    kh: int
    kw: int
    oh: int
    ow: int
    sh: int
    sw: int
    top: int
    left: int
    w_out: int
    w_in: int
    mirror: int


def _as_sum(direction: str, g: Any) -> Sum:
    taps = g.kh * g.kw
    if direction == "y":
        return Sum(g.n, g.c, g.h, g.w, g.m, g.kh, g.kw, g.oh, g.ow, g.sh, g.sw, g.top, g.left, g.c * taps, taps, 0)
    return Sum(g.n, g.m, g.oh, g.ow, g.c, g.kh, g.kw, g.h, g.w, 1, 1, g.kh - 1 - g.top, g.kw - 1 - g.left, taps,
               g.c * taps, 1)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _pixels_wide(kw: int, sw: int) -> int:
    """XW in the source: image pixels under TW outputs, in whole fours."""
    return _up((TW - 1) * sw + kw, 4)


# ---------------------------------------------------------------- y and dx
@functools.lru_cache(maxsize=1024)
def _plan(direction: str, g: Any, dtype: np.dtype) -> Plan | None:
    """The tile with the least estimated time, or None where no tile fits shared memory."""
    s = _as_sum(direction, g)
    wide = _pixels_wide(s.kw, s.sw)
    scale = dtype.itemsize // 4                        # a double takes two registers
    best, plan = float("inf"), None
    for th, tm, threads in itertools.product(ROWS, FILTERS, (128, 256)):
        if 4 * th * tm * scale > SUMS or (4 * th * tm + th * wide + tm) * scale > NUMBERS:
            continue
        if tm > _up(s.m, 2) or th > s.oh:
            continue
        tiles = -(-s.oh // th) * -(-s.ow // TW)
        items = tiles * -(-s.m // tm)
        ph, pw = (_up(s.oh, th) - 1) * s.sh + s.kh, (_up(s.ow, TW) - TW) * s.sw + wide
        ms = _up(-(-s.m // tm) * tm, 4)
        ms += 4 if ms % 32 == 0 else 0                 # rows of filters start in different banks
        filters = s.c * s.kh * s.kw * ms
        images = max(1, min(threads // items, -(-s.n // launch.multiprocessors())))
        shared = (filters + images * s.c * ph * pw) * dtype.itemsize
        if shared > launch.most_shared():
            continue
        cycles = s.c * s.kh * (s.kw * (4 * th * tm + -(-tm // 4) * 2) + th * wide // 2 + 30) * scale
        turns = -(-s.n // (images * launch.multiprocessors()))
        time = turns * -(-images * items // threads) * (threads // 128) * cycles
        if time < best:
            resident = max(1, min(launch.most_shared() // (shared + 1024), 2048 // threads, 8))
            blocks = min(launch.blocks(s.n, images), resident * launch.multiprocessors())
            whole = launch.by_value("Whole", (s.n, s.c, s.h, s.w, s.m, s.oh, s.ow, s.top, s.left, ph, pw, ms, images,
                                              0, 0, s.w_out, s.w_in))
            constants = _constants(dtype, s, th, tm, threads, s.ow % 4 == 0, MIRROR=s.mirror)
            best, plan = time, Plan(blocks, threads, shared, constants, whole)
    return plan


def _sum(direction: str, source: Array, w: Array, b: Array | None, out: Array, g: Any) -> Array:
    if out.size:
        plan = _plan(direction, g, out.dtype)
        assert plan is not None, "refuses() was not asked"
        launch.kernel(FILE, "conv2d_whole_image", *plan.constants)(
            (plan.blocks,), (plan.threads,), source, w, b, out, plan.whole, shared=plan.shared)
    return out


def y(x: Array, w: Array, b: Array | None, g: Any) -> Array:
    return _sum("y", x, w, b, launch.empty((g.n, g.m, g.oh, g.ow), x.dtype), g)


def dx(gy: Array, w: Array, g: Any) -> Array:
    return _sum("dx", gy, w, None, launch.empty((g.n, g.c, g.h, g.w), gy.dtype), g)


# ---------------------------------------------------------------- dw
@functools.lru_cache(maxsize=1024)
def _gradient_plan(g: Any, dtype: np.dtype) -> Plan | None:
    """Rows, images and teams of a step; None where not even one output row fits shared memory."""
    wide, size = _pixels_wide(g.kw, g.sw), dtype.itemsize
    tm = min((tm for tm in FILTERS if tm * g.kw * size <= SUMS // 2 * 4 and tm <= _up(g.m, 2)),
             key=lambda tm: (-(-g.m // tm) * (tm * g.kw + 12), -tm), default=0)
    team = g.c * g.kh * -(-g.m // tm) if tm else MOST_THREADS + 1
    if team > MOST_THREADS:
        return None
    gw = _up(g.ow, 4)
    ph, pw = (g.oh - 1) * g.sh + g.kh, (gw - TW) * g.sw + wide
    pw += 0 if pw // 4 % 2 else 4                      # lanes read neighbouring rows: these start in different banks
    picture, map_row = 2 * g.c * ph * pw * size, 2 * g.m * gw * size         # two buffers of each
    room = ROOMY if picture + map_row * g.oh <= ROOMY else launch.most_shared()
    rows = min(g.oh, (room - picture) // map_row)
    if rows < 1:
        return None
    rows = -(-g.oh // -(-g.oh // rows))                # as even as can be
    images = 1
    if rows == g.oh:
        images = max(1, min(room // (picture + map_row * rows), -(-g.n // (2 * launch.multiprocessors())), 4))
    shares = 1
    while 2 * shares * team <= MOST_THREADS and 2 * shares <= images * rows:
        shares *= 2
    shared = max(images * (picture + map_row * rows), shares // 2 * tm * g.kw * team * size)
    if shared > launch.most_shared():
        return None
    threads = _up(team * shares, 32)
    resident = max(1, min(launch.most_shared() // (shared + 1024), 1024 // threads))
    blocks = min(launch.blocks(g.n, images), resident * launch.multiprocessors())
    whole = launch.by_value("Whole", (g.n, g.c, g.h, g.w, g.m, g.oh, g.ow, g.top, g.left, ph, pw, 0, images, rows,
                                      shares, 0, 0))
    constants = _constants(dtype, g, 1, tm, threads, g.ow % 4 == 0, GRADIENT=1)
    return Plan(blocks, threads, shared, constants, whole)


def dw(gy: Array, x: Array, g: Any) -> Array:
    plan = _gradient_plan(g, x.dtype)
    assert plan is not None, "refuses() was not asked"
    parts = launch.empty((plan.blocks, g.m, g.c, g.kh, g.kw), x.dtype)
    launch.kernel(FILE, "conv2d_whole_image_dw", *plan.constants)(
        (plan.blocks,), (plan.threads,), gy, x, parts, plan.whole, shared=plan.shared)
    return parts[0] if plan.blocks == 1 else sum_first(parts)


def refuses(direction: str, g: Any, dtype: np.dtype) -> str | None:
    if g.kw > WIDEST:
        return f"a filter row of {g.kw} taps does not fit a thread's registers ({WIDEST} do)"
    if direction == "dx" and (g.sh, g.sw) != (1, 1):
        return f"dx needs stride 1 but it is {g.sh}x{g.sw}"
    if (_gradient_plan(g, dtype) if direction == "dw" else _plan(direction, g, dtype)) is None:
        return (f"the images and filters do not fit a block's {launch.most_shared() // 1024} KB of shared memory, or "
                f"their {g.c} channels its threads")
    return None


class _Filter(NamedTuple):
    kh: int
    kw: int
    sh: int
    sw: int


# The zoo's layers and the tallest tiles, then sizes between
CONFIGURATIONS = [
    (FILE, _constants(np.dtype(dtype), _Filter(*f), th, tm, threads, aligned, **more))
    for dtype in ("float32", "float64") for f in ((8, 8, 1, 1), (5, 5, 1, 1), (3, 3, 1, 1), (7, 7, 2, 2), (1, 4, 3, 2))
    for th, tm, threads, aligned, more in (
        (4, 8 if dtype == "float32" else 4, 256, True, {"MIRROR": 0}), (2, 6, 128, False, {"MIRROR": 1}),
        (5, 2, 128, True, {"MIRROR": 0}), (1, 4, 128, False, {"MIRROR": 0}),
        (1, 8 if dtype == "float32" else 4, MOST_THREADS, True, {"GRADIENT": 1}), (1, 3, 160, False, {"GRADIENT": 1}))]
