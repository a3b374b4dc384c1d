"""Convolution in thin groups, whose filters read few channels, and with dilation: launches grouped.cu and
grouped_grad_w.cu, on images in NCHW, or as the compiler has them, in NHWC of float32 or of bfloat16.

A thread computes a tile of the result. If filters are small, reading bytes takes the time: a tile is a column of few
rows, and a run of channels is as long as possible. If filters have many taps, products take the time: a tile is square,
all taps are unrolled, and in NHWC the number of channels is a constant of the compilation, so that addresses cost no
registers.

Filters are float32 (float64 for images of float64), and products exact whatever the precision."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from ....common.geometry import TALL, ConvGeometry
from ....common.geometry.nhwc import C_TYPES, ordered
from ....common.primitives import Array
from ... import launch
from ...reduce import sum_first

FILE, GRAD_W = "conv/grouped/grouped.cu", "conv/grouped/grouped_grad_w.cu"
STRIP = 4                                  # rows of a tile, if registers and the stride allow
SQUARE = 4                                 # rows and columns of a tile for filters of many taps
SMALL = 9                                  # taps up to which reading bytes takes the time of y and dx
MAX_SQUARE_TAPS, MAX_SQUARE_STRIDE, MAX_SQUARE_SPAN = 7, 2, 11   # of an axis; more take registers, and long to compile
MAX_LANES, SQUARE_LANES = 32, 16           # runs of channels side by side in a block
MAX_FILTERS = 48 << 8                      # numbers of filters in a block's shared memory
SUMS = 40                                  # registers of a thread for a filter's gradient
NCHW, NHWC = "NCHW", "NHWC"


def refuses(direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
    """Why this algorithm cannot do a case, or None."""
    return f"filters have more than {TALL} rows" if g.kh > TALL else None


# ---------------------------------------------------------------- constants
class Work(NamedTuple):
    """What a thread has: channels of a run, rows and columns of a tile, columns of taps at once; threads of a block,
    how many blocks a multiprocessor is to hold, and how many runs of channels a block has next to each other, at
    most."""

    wide: int
    strip: int
    columns: int
    at_once: int
    threads: int = 256
    resident: int = 2
    max_lanes: int = MAX_LANES

    def constants(self, g: ConvGeometry, dtype: np.dtype, layout: str,
                  *more: launch.Constant) -> tuple[launch.Constant, ...]:
        stored: tuple[launch.Constant, ...] = (
            (launch.real(dtype), ("STORE", launch.C_NAME[dtype])) if layout == NCHW else
            (launch.real(np.dtype(np.float32)), ("LAYOUT", NHWC), ("STORE", C_TYPES[dtype]), ("WIDE", self.wide)))
        step: tuple[launch.Constant, ...] = (("STEP", g.c),) if layout == NHWC and self.columns > 1 else ()
        window = ("KH", g.kh), ("KW", g.kw), ("SH", g.sh), ("SW", g.sw), ("DOWN", g.dh), ("ACROSS", g.dw)
        phases = ("PHASE", g.top % g.sh), ("PHASE_ACROSS", g.left % g.sw if self.columns > 1 else 0)
        tile = ("STRIP", self.strip), ("COLUMNS", self.columns), ("TAP_COLUMNS", self.at_once)
        return (*stored, *step, *window, *phases, *tile, ("MAX_LANES", self.max_lanes), ("BLOCK", self.threads),
                ("RESIDENT", self.resident), *more)


def _runs(g: ConvGeometry, dtype: np.dtype, layout: str, widths: tuple[int, ...]) -> int:
    """Channels of a run, the first of `widths` that fits; one if groups have several, or if no width fits."""
    if layout == NCHW or not g.c == g.m == g.groups:
        return 1
    return next((wide for wide in widths if g.c % wide == 0 and wide * dtype.itemsize <= 16
                 and g.kh * g.kw * (MAX_LANES + 1) * wide <= MAX_FILTERS), 1)


def _square(g: ConvGeometry, dtype: np.dtype, layout: str, resident: int) -> Work | None:
    """Work in square tiles, or None if a convolution does not fit these."""
    axes = ((g.kh, g.sh, g.dh), (g.kw, g.sw, g.dw))
    fits = all(
        taps <= MAX_SQUARE_TAPS and stride <= MAX_SQUARE_STRIDE
        and (SQUARE - 1) * stride + (taps - 1) * apart + 1 <= MAX_SQUARE_SPAN for taps, stride, apart in axes)
    wide = _runs(g, dtype, layout, (2,))
    if not fits or (layout == NHWC and wide == 1):
        return None
    return Work(wide, SQUARE, SQUARE, g.kw, 128, resident, SQUARE_LANES)


def _outputs(g: ConvGeometry, dtype: np.dtype, layout: str, back: bool) -> Work:
    """Of grouped.cu"""
    if g.kh * g.kw > SMALL and (square := _square(g, dtype, layout, 3)):
        long = square.wide * dtype.itemsize > 4                      # runs that take more registers until they are used
        return square._replace(resident=2) if long else square
    strip = launch.blocks(STRIP, g.sh) * g.sh if back else STRIP     # as many for each row of the gradient
    return Work(_runs(g, dtype, layout, (8, 4) if g.kh <= 3 else (4,)), strip, 1, 1)


def _sums(g: ConvGeometry, dtype: np.dtype, layout: str) -> Work:
    """Of grouped_grad_w.cu"""
    small = g.kh * g.kw <= SMALL
    if (layout == NHWC or not small) and (square := _square(g, dtype, layout, 4 if small else 2)):
        return square
    wide = _runs(g, dtype, layout, (4,) if 4 * g.kh <= SUMS else ())
    column = g.kh * wide * max(1, dtype.itemsize // 4)               # registers for the sums of a column of taps
    at_once = min(g.kw, max(1, SUMS // column), 31 // g.dw + 1)      # a bit for each column of the image
    threads = 256 if column <= SUMS else 128                         # whose sums fit into any device's shared memory
    return Work(wide, STRIP if wide == 1 else 2 if g.dh == 1 else 1, 1, at_once, threads)


def _more(back: bool, act: str | None) -> tuple[launch.Constant, ...]:
    return (("GRADIENT", 1),) if back else (("ACT", act), ("AFTER", 1)) if act else ()


# ---------------------------------------------------------------- launches
def _lanes(channels: int, work: Work, layout: str) -> tuple[int, int]:
    """(runs of channels side by side in a block, blocks for all of them), so that few threads have none"""
    if layout == NCHW:
        return 1, channels
    runs = channels // work.wide
    lanes = max(range(min(runs, work.max_lanes // 2), min(runs, work.max_lanes) + 1), key=lambda lanes: (
        work.threads // lanes * runs / launch.blocks(runs, lanes), lanes))
    return lanes, launch.blocks(runs, lanes)


def _places(n: int, high: int, across: int, work: Work) -> int:
    return n * launch.blocks(high, work.strip) * launch.blocks(across, work.columns)


def _struct(g: ConvGeometry, lanes: int, places: int) -> bytes:
    return launch.by_value("Groups", g, channels=g.c // g.groups, maps=g.m // g.groups, lanes=lanes, places=places)


@functools.lru_cache(maxsize=4096)
def _plan(g: ConvGeometry, dtype: np.dtype, layout: str, back: bool,
          act: str | None) -> tuple[launch.Plan, tuple[int, ...]]:
    """The launch for y, or back for dx, and its result's shape."""
    work = _outputs(g, dtype, layout, back)
    shape = (g.n, g.c, g.h, g.w) if back else (g.n, g.m, g.oh, g.ow)
    n, channels, high, across = shape
    places, shared = _places(n, high, across, work), 0
    lanes, blocks = _lanes(channels, work, layout)
    if layout == NCHW:
        places *= channels
        grid: tuple[int, ...] = (launch.blocks(places, work.threads),)
    else:
        grid = (min(launch.blocks(places, work.threads // lanes),
                    launch.blocks(16 * launch.multiprocessors(), blocks)), blocks)
        shared = g.kh * g.kw * (work.max_lanes + 1) * work.wide * 4 if work.wide > 1 else 0
    plan = launch.Plan(FILE, "conv2d_grouped", work.constants(g, dtype, layout, *_more(back, act)), grid, work.threads,
                       shared, _struct(g, lanes, places))
    return plan, shape if layout == NCHW else ordered(shape)


@functools.lru_cache(maxsize=4096)
def _grad_w_plan(g: ConvGeometry, dtype: np.dtype, layout: str) -> launch.Plan:
    work = _sums(g, dtype, layout)
    lanes, blocks = _lanes(g.m * g.c // g.groups, work, layout)
    beside, columns = work.threads // lanes, launch.blocks(g.kw, work.at_once)
    places = _places(g.n, g.oh, g.ow, work)
    wanted = launch.blocks(work.resident * launch.multiprocessors(), blocks * columns)
    each = beside * launch.blocks(places, beside * wanted)
    shares = launch.blocks(places, each)
    size = dtype.itemsize if layout == NCHW else 4
    return launch.Plan(
        GRAD_W, "conv2d_grouped_grad_w", work.constants(g, dtype, layout), (blocks, shares, columns), work.threads,
        g.kh * work.at_once * (work.threads + 1) * work.wide * size, _struct(g, lanes, each), splits=shares)


def _result(source: Array, w: Array, b: Array | None, g: ConvGeometry, layout: str, back: bool,
            act: str | None) -> Array:
    plan, shape = _plan(g, source.dtype, layout, back, act)
    out = launch.empty(shape, source.dtype)
    if out.size:
        plan.start(source, w, b, out, plan.struct)
    return out


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry, layout: str = NCHW, act: str | None = None) -> Array:
    """act(conv2d(x)), or conv2d(x) if act is None"""
    return _result(x, w, b, g, layout, False, act)


def y_act(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str) -> Array:
    return y(x, w, b, g, act=act)


def dx(gy: Array, w: Array, g: ConvGeometry, layout: str = NCHW) -> Array:
    return _result(gy, w, None, g, layout, True, None)


def dw(gy: Array, x: Array, g: ConvGeometry, layout: str = NCHW) -> Array:
    """(m,c/groups,kh,kw) of float32, or of float64"""
    plan = _grad_w_plan(g, gy.dtype, layout)
    made = np.dtype(np.float32) if layout == NHWC else gy.dtype
    shape = g.m, g.c // g.groups, g.kh, g.kw
    parts = launch.empty((plan.splits, *shape) if plan.splits > 1 else shape, made)
    plan.start(gy, x, parts, plan.struct)
    return sum_first(parts) if plan.splits > 1 else parts


# ---------------------------------------------------------------- for the tests
def _geometry(c: int, m: int, groups: int, window: tuple[int, int], stride: int = 1, dilation: int = 1) -> ConvGeometry:
    return ConvGeometry(1, c, 32, 32, m, *window, 1, 1, stride, stride, 1, 1, 1, 1, groups, dilation, dilation, "auto")


_KINDS: list[tuple[np.dtype, str]] = [*((np.dtype(each), NCHW) for each in launch.C_NAME),
                                      *((dtype, NHWC) for dtype in C_TYPES)]
_SHAPES = [_geometry(32, 32, 32, (3, 3)), _geometry(32, 32, 32, (3, 3), stride=2), _geometry(32, 32, 32, (7, 7)),
           _geometry(12, 24, 3, (3, 3)), _geometry(32, 32, 32, (3, 3), dilation=2),
           _geometry(32, 32, 32, (5, 5), stride=2), _geometry(32, 32, 32, (4, 4), dilation=2),
           _geometry(33, 33, 33, (7, 7)), _geometry(12, 24, 3, (7, 7))]
CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *((FILE, _outputs(g, dtype, layout, back).constants(g, dtype, layout, *_more(back, None)))
      for dtype, layout in _KINDS for g in _SHAPES for back in (False, True)),
    *((FILE, _outputs(g, dtype, layout, False).constants(g, dtype, layout, *_more(False, "relu")))
      for dtype, layout in _KINDS for g in (_SHAPES[0], _SHAPES[2])),
    *((GRAD_W, _sums(g, dtype, layout).constants(g, dtype, layout)) for dtype, layout in _KINDS for g in _SHAPES)]
