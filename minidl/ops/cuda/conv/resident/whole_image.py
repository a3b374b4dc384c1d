"""Launchers of whole_image.cu, and the choice of its tiles from the shape."""

from __future__ import annotations

import functools
from itertools import product
from typing import NamedTuple

import numpy as np

from ....common.geometry import ConvGeometry
from ....common.primitives import Array
from ... import launch
from .. import cost
from ..cost import round_up
from .planned import Gradients, Outputs

FILE = "conv/resident/whole_image.cu"
TW = 4                                     # outputs of a row that a thread owns
ROWS, FILTERS = (1, 2, 4, 5), (1, 2, 3, 4, 6, 8)       # TH and TM to choose from
THREADS, IMAGES = (64, 128, 256, 384, 512), (1, 2, 4, 8)       # of a block
CHUNKS = (1, 2, 3, 4, 6, 8, 16)            # parts of an image's output rows that a block of dw works through
GRADIENT_THREADS = (96, 160, 256, 384)     # of dw at most: they need up to 168 registers
MAX_SUMS = 128                             # floats that a thread may keep as sums in y; half of that in dw
MAX_KW = 16                                # taps that fit a thread's registers


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


class Filter(NamedTuple):
    """The fields of a Sum that the compiler needs."""

    kh: int
    kw: int
    sh: int
    sw: int


def _constants(dtype: np.dtype, g: Sum | Filter | ConvGeometry, th: int, tm: int, threads: int, aligned: bool,
               **more: int) -> tuple[launch.Constant, ...]:
    return (launch.real(dtype), ("KH", g.kh), ("KW", g.kw), ("SH", g.sh), ("SW", g.sw), ("TH", th), ("TM", tm),
            ("THREADS_PER_BLOCK", threads), ("ALIGNED", int(aligned)), *more.items())


def _as_sum(direction: str, g: ConvGeometry) -> Sum:
    taps = g.kh * g.kw
    if direction == "y":
        return Sum(g.n, g.c, g.h, g.w, g.m, g.kh, g.kw, g.oh, g.ow, g.sh, g.sw, g.top, g.left, g.c * taps, taps, 0)
    return Sum(g.n, g.m, g.oh, g.ow, g.c, g.kh, g.kw, g.h, g.w, 1, 1, g.kh - 1 - g.top, g.kw - 1 - g.left, taps,
               g.c * taps, 1)


def _pixels_wide(kw: int, sw: int) -> int:
    """XW in the source: image pixels under TW outputs, in whole fours."""
    return round_up((TW - 1) * sw + kw, 4)


# ---------------------------------------------------------------- y and dx
def _numbers(f: Sum | Filter, dtype: np.dtype, th: int, tm: int) -> int:
    """Registers that hold a thread's sums, pixels and weights; a double takes two."""
    return (4 * th * tm + th * _pixels_wide(f.kw, f.sw) + tm) * dtype.itemsize // 4


def _fits_registers(f: Sum | Filter, dtype: np.dtype, th: int, tm: int, threads: int) -> bool:
    return (4 * th * tm * dtype.itemsize // 4 <= MAX_SUMS
            and cost.fits_registers(_numbers(f, dtype, th, tm), threads))


def _candidate(s: Sum, dtype: np.dtype, th: int, tm: int, threads: int, images: int) -> launch.Plan | None:
    """The launch for a tile of th x 4 outputs of tm filters, or None if it does not fit."""
    wide, numbers = _pixels_wide(s.kw, s.sw), _numbers(s, dtype, th, tm)
    if not _fits_registers(s, dtype, th, tm, threads):
        return None
    ph, pw = (round_up(s.oh, th) - 1) * s.sh + s.kh, (round_up(s.ow, TW) - TW) * s.sw + wide
    ms = round_up(-(-s.m // tm) * tm, 4)
    ms += 4 if ms % 32 == 0 else 0                     # rows of filters start in different banks
    shared = (s.c * s.kh * s.kw * ms + images * s.c * ph * pw) * dtype.itemsize
    if shared > launch.most_shared():
        return None
    resident = cost.resident_blocks(threads, 46 + numbers, shared)
    blocks = max(1, min(launch.blocks(s.n, images), resident * launch.multiprocessors()))
    whole = launch.by_value("Whole", s, ph=ph, pw=pw, ms=ms, images=images, rows=0, shares=0)
    constants = _constants(dtype, s, th, tm, threads, s.ow % 4 == 0, MIRROR=s.mirror)
    items = images * -(-s.oh // th) * -(-s.ow // TW) * -(-s.m // tm)
    passes = -(-items // threads)
    row = s.kw * cost.FOUR_PRODUCTS * th * tm + cost.PIXEL * th * wide + cost.FILTER_ROW
    time = cost.work_time(passes * s.c * s.kh * row * dtype.itemsize / 4, cost.used(items, passes * threads),
                          images * s.c * ph * pw * cost.COPY / threads, threads, resident, launch.blocks(s.n, images))
    return launch.Plan(FILE, "conv2d_whole_image", constants, (blocks,), threads, shared, whole,
                       time + s.c * s.kh * s.kw * ms * cost.COPY / threads)


@functools.lru_cache(maxsize=1024)
def _plan(direction: str, g: ConvGeometry, dtype: np.dtype, pool: int = 1) -> launch.Plan | None:
    """The best launch, or None if none fits; its rows are a multiple of `pool`."""
    s = _as_sum(direction, g)
    return launch.best(_candidate(s, dtype, *tile) for tile in product(ROWS, FILTERS, THREADS, IMAGES)
                       if tile[0] <= s.oh and tile[0] % pool == 0 and tile[1] <= round_up(s.m, 2))


OUTPUTS = Outputs(functools.partial(_plan, "y"))
INPUTS = Outputs(functools.partial(_plan, "dx"))       # dx, as what _as_sum makes of it


def dx(gy: Array, w: Array, g: ConvGeometry) -> Array:
    return INPUTS.run(gy, w, None, launch.empty((g.n, g.c, g.h, g.w), gy.dtype), g)


# ---------------------------------------------------------------- dw
@functools.lru_cache(maxsize=1024)
def _gradient_plan(g: ConvGeometry, dtype: np.dtype) -> launch.Plan | None:
    """The best launch, or None if not even one output row fits shared memory."""
    return launch.best(_gradient_candidate(g, dtype, tm, -(-g.oh // chunks), threads, images)
                       for tm, chunks, threads, images in product(FILTERS, CHUNKS, GRADIENT_THREADS, IMAGES[:3])
                       if tm <= round_up(g.m, 2) and chunks <= g.oh)


def _gradient_candidate(g: ConvGeometry, dtype: np.dtype, tm: int, rows: int, max_threads: int,
                        images: int) -> launch.Plan | None:
    """The launch for rows of taps of tm filters, over `rows` output rows at a time, or None if it does not fit."""
    wide, size = _pixels_wide(g.kw, g.sw), dtype.itemsize
    team = g.c * g.kh * -(-g.m // tm)
    if tm * g.kw * size > MAX_SUMS // 2 * 4 or team > max_threads or (images > 1 and rows < g.oh):
        return None
    gw, ms = round_up(g.ow, 4), round_up(g.m, tm)
    ph, pw = (g.oh - 1) * g.sh + g.kh, (gw - TW) * g.sw + wide
    pw += 0 if pw // 4 % 2 else 4                      # lanes read neighbouring rows: these start in different banks
    shares = 1
    while 2 * shares * team <= max_threads and 2 * shares <= images * rows:
        shares *= 2
    shared = max(2 * images * (g.c * ph * pw + ms * rows * gw), shares // 2 * tm * (g.kw + 1) * team) * size
    if shared > launch.most_shared():
        return None
    threads = round_up(team * shares, 32)
    resident = cost.resident_blocks(threads, (tm * g.kw + 100) * size // 4, shared)
    packs = launch.blocks(g.n, images)
    blocks = min(packs, resident * launch.multiprocessors())
    whole = launch.by_value("Whole", g, ph=ph, pw=pw, ms=ms, images=images, rows=rows, shares=shares, w_out=0, w_in=0)
    constants = _constants(dtype, g, 1, tm, threads, g.ow % 4 == 0, GRADIENT=1)
    chunks = -(-g.oh // rows)
    lines = -(-images * rows // shares) * chunks       # output rows of a thread
    multiply = lines * (gw // TW * (tm * (TW * g.kw + 1) + wide // 2 + cost.FOUR_PIXELS) + cost.LINE) * size / 4
    vector = 16 // size if g.ow % 4 == 0 else 1
    copies = images * (ms * g.oh * gw / vector + g.c * ph * pw) * cost.COPY / threads
    time = cost.work_time(multiply + cost.CHUNK * chunks, team * shares / threads, copies, threads, resident, packs)
    return launch.Plan(FILE, "conv2d_whole_image_dw", constants, (blocks,), threads, shared, whole,
                       time + shares.bit_length() * tm * g.kw * cost.TAP_SUM + blocks * cost.BLOCK_SUM)


GRADIENTS = Gradients(lambda g, dtype, window: _gradient_plan(g, dtype))


def refuses(direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
    if g.kw > MAX_KW:
        return f"a filter row of {g.kw} taps does not fit a thread's registers ({MAX_KW} do)"
    if direction == "dx" and (g.sh, g.sw) != (1, 1):
        return f"dx needs stride 1 but it is {g.sh}x{g.sw}"
    if (_gradient_plan(g, dtype) if direction == "dw" else _plan(direction, g, dtype)) is None:
        return (f"the images and filters do not fit a block's {launch.most_shared() // 1024} KB of shared memory, or "
                f"their {g.c} channels its threads")
    return None


# The zoo's layers and a large stride, by the largest and the smallest tiles
CONFIGURATIONS = [
    (FILE, _constants(np.dtype(dtype), f, th, tm, threads, aligned, MIRROR=mirror))
    for dtype in ("float32", "float64") for f in (Filter(8, 8, 1, 1), Filter(5, 5, 1, 1), Filter(7, 7, 2, 2))
    for th, tm, threads, aligned, mirror in ((4, 8, 256, True, 0), (4, 4, 384, True, 0), (2, 8, 512, True, 0),
                                             (2, 3, 128, False, 1), (1, 1, 64, False, 0))
    if _fits_registers(f, np.dtype(dtype), th, tm, threads)
] + [
    (FILE, (*_constants(np.dtype(dtype), Filter(k, k, 1, 1), th, tm, threads, True, MIRROR=0), ("FUSED", 1),
            ("ACT", act), ("POOL", pool)))
    for dtype, k, th, tm, threads, act, pool in (("float32", 8, 4, 4, 384, "sigmoid", 4),
                                                 ("float32", 5, 2, 6, 128, "tanh", 2),
                                                 ("float32", 5, 1, 4, 256, "relu", 0),
                                                 ("float64", 5, 2, 2, 128, "tanh", 2))
] + [
    (FILE, _constants(np.dtype(dtype), f, 1, tm, threads, aligned, GRADIENT=1))
    for dtype, tm, threads, aligned in (("float32", 8, GRADIENT_THREADS[-1], True), ("float32", 3, 160, False),
                                        ("float64", 4, GRADIENT_THREADS[-1], True), ("float64", 1, 96, False))
    for f in (Filter(8, 8, 1, 1), Filter(5, 5, 1, 1), Filter(7, 7, 2, 2))
] + [
    (FILE, (*_constants(np.dtype(dtype), Filter(k, k, 1, 1), 1, tm, threads, aligned, GRADIENT=1), ("FUSED", 1),
            ("ACT", act), ("POOL", pool)))
    for dtype, k, tm, threads, aligned, act, pool in (
        ("float32", 8, 8, GRADIENT_THREADS[-1], True, "sigmoid", 4), ("float32", 5, 2, 256, True, "tanh", 2),
        ("float32", 5, 3, 160, False, "relu", 2), ("float64", 5, 4, GRADIENT_THREADS[-1], True, "tanh", 2))]
