"""Convolution in thin groups, whose filters read few channels, and with dilation: launches grouped.cu and
grouped_grad_w.cu, on images in NCHW, or as the compiler has them, in NHWC of float32 or of bfloat16.

Filters are float32 (float64 for images of float64), and products exact whatever the precision: bytes take the time."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ....common.geometry import TALL, ConvGeometry
from ....common.geometry.nhwc import C_TYPES, ordered
from ....common.primitives import Array
from ... import launch
from ...reduce import sum_first

FILE, GRAD_W = "conv/grouped/grouped.cu", "conv/grouped/grouped_grad_w.cu"
STRIP = 4                                  # rows of a thread, where registers and the stride allow
MAX_LANES = 32
MAX_FILTERS = 48 << 8                      # numbers of filters in a block's shared memory
SUMS = 48                                  # registers of a thread for a filter's gradient
BLOCKS = 4                                 # of a multiprocessor, that leave partial sums
NCHW, NHWC = "NCHW", "NHWC"


def refuses(direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
    """Why this algorithm cannot do a case, or None."""
    return f"filters have more than {TALL} rows" if g.kh > TALL else None


# ---------------------------------------------------------------- constants
def _wide(g: ConvGeometry, dtype: np.dtype, layout: str, most: int) -> int:
    """Channels of a run, as many as divide them, and at most so many; one where groups have several."""
    if layout == NCHW or not g.c == g.m == g.groups:
        return 1
    fits = [wide for wide in (16 // dtype.itemsize, 4) if g.c % wide == 0 and wide <= most]
    return max((wide for wide in fits if g.kh * g.kw * wide <= MAX_FILTERS), default=1)


def _constants(g: ConvGeometry, dtype: np.dtype, layout: str, wide: int, strip: int,
               *more: launch.Constant) -> tuple[launch.Constant, ...]:
    stored: tuple[launch.Constant, ...] = (
        (launch.real(dtype), ("STORE", launch.C_NAME[dtype])) if layout == NCHW else
        (launch.real(np.dtype(np.float32)), ("LAYOUT", NHWC), ("STORE", C_TYPES[dtype]), ("WIDE", wide)))
    window = ("KH", g.kh), ("KW", g.kw), ("SH", g.sh), ("SW", g.sw), ("DOWN", g.dh), ("ACROSS", g.dw)
    return (*stored, *window, ("PHASE", g.top % g.sh), ("STRIP", strip), *more)


def _outputs(g: ConvGeometry, dtype: np.dtype, layout: str, back: bool,
             act: str | None) -> tuple[int, int, tuple[launch.Constant, ...]]:
    """(channels of a run, rows of a strip, constants) of grouped.cu"""
    wide = _wide(g, dtype, layout, 8 if g.kh <= 3 else 4)
    strip = launch.blocks(STRIP, g.sh) * g.sh if back else STRIP     # as many for each row of the gradient
    more: tuple[launch.Constant, ...] = (("GRADIENT", 1),) if back else (("ACT", act), ("AFTER", 1)) if act else ()
    return wide, strip, _constants(g, dtype, layout, wide, strip, *more)


def _gradients(g: ConvGeometry, dtype: np.dtype, layout: str) -> tuple[int, int, int, tuple[launch.Constant, ...]]:
    """(channels of a run, rows of a strip, columns of taps of a block, constants) of grouped_grad_w.cu"""
    wide = _wide(g, dtype, layout, 4)
    strip = STRIP if wide == 1 else 2 if g.dh == 1 else 1
    at_once = min(g.kw, max(1, SUMS // (g.kh * wide * max(1, dtype.itemsize // 4))))
    return wide, strip, at_once, _constants(g, dtype, layout, wide, strip, ("TAP_COLUMNS", at_once))


# ---------------------------------------------------------------- launches
def _lanes(channels: int, wide: int, layout: str, most: int = MAX_LANES) -> tuple[int, int]:
    """(runs of channels side by side in a block, blocks for all of them)"""
    if layout == NCHW:
        return 1, channels
    runs = channels // wide
    beside = launch.blocks(runs, min(MAX_LANES, most))
    return launch.blocks(runs, beside), beside


def _struct(g: ConvGeometry, lanes: int, places: int) -> bytes:
    return launch.by_value("Groups", g, channels=g.c // g.groups, maps=g.m // g.groups, lanes=lanes, places=places)


@functools.lru_cache(maxsize=4096)
def _plan(g: ConvGeometry, dtype: np.dtype, layout: str, back: bool,
          act: str | None) -> tuple[Callable[..., None], tuple[int, ...], bytes]:
    """The launch for y, or back for dx; its result's shape, and the struct."""
    wide, strip, constants = _outputs(g, dtype, layout, back, act)
    shape = (g.n, g.c, g.h, g.w) if back else (g.n, g.m, g.oh, g.ow)
    n, channels, high, across = shape
    places = n * launch.blocks(high, strip) * across
    lanes, blocks = _lanes(channels, wide, layout, MAX_FILTERS // (g.kh * g.kw * wide))
    if layout == NCHW:
        places *= channels
        grid: tuple[int, ...] = (launch.blocks(places, launch.THREADS),)
    else:
        grid = (min(launch.blocks(places, launch.THREADS // lanes),
                    launch.blocks(16 * launch.multiprocessors(), blocks)), blocks)
    start = launch.kernel(FILE, "conv2d_grouped", *constants).sized(
        grid, (launch.THREADS,), g.kh * g.kw * lanes * wide * 4 if wide > 1 else 0)
    return start, shape if layout == NCHW else ordered(shape), _struct(g, lanes, places)


@functools.lru_cache(maxsize=4096)
def _grad_w_plan(g: ConvGeometry, dtype: np.dtype, layout: str) -> tuple[Callable[..., None], int, bytes]:
    """The launch, how many shares leave sums, and the struct."""
    wide, strip, at_once, constants = _gradients(g, dtype, layout)
    lanes, blocks = _lanes(g.m * g.c // g.groups, wide, layout)
    beside, columns = launch.THREADS // lanes, launch.blocks(g.kw, at_once)
    places = g.n * launch.blocks(g.oh, strip) * g.ow
    wanted = launch.blocks(BLOCKS * launch.multiprocessors(), blocks * columns)
    each = beside * launch.blocks(places, beside * wanted)
    shares = launch.blocks(places, each)
    start = launch.kernel(GRAD_W, "conv2d_grouped_grad_w", *constants).sized(
        (blocks, shares, columns), (launch.THREADS,))
    return start, shares, _struct(g, lanes, each)


def _result(source: Array, w: Array, b: Array | None, g: ConvGeometry, layout: str, back: bool,
            act: str | None) -> Array:
    start, shape, struct = _plan(g, source.dtype, layout, back, act)
    out = launch.empty(shape, source.dtype)
    if out.size:
        start(source, w, b, out, struct)
    return out


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry, layout: str = NCHW, act: str | None = None) -> Array:
    """act(conv2d(x)), or conv2d(x) where act is None"""
    return _result(x, w, b, g, layout, False, act)


def y_act(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str) -> Array:
    return y(x, w, b, g, act=act)


def dx(gy: Array, w: Array, g: ConvGeometry, layout: str = NCHW) -> Array:
    return _result(gy, w, None, g, layout, True, None)


def dw(gy: Array, x: Array, g: ConvGeometry, layout: str = NCHW) -> Array:
    """(m,c/groups,kh,kw) of float32, or of float64"""
    start, shares, struct = _grad_w_plan(g, gy.dtype, layout)
    made = np.dtype(np.float32) if layout == NHWC else gy.dtype
    parts = launch.empty((shares, g.m, g.c // g.groups, g.kh, g.kw), made)
    start(gy, x, parts, struct)
    return sum_first(parts) if shares > 1 else parts[0]


# ---------------------------------------------------------------- for the tests
def _geometry(c: int, m: int, groups: int, window: tuple[int, int], stride: int = 1, dilation: int = 1) -> ConvGeometry:
    return ConvGeometry(1, c, 32, 32, m, *window, 1, 1, stride, stride, 1, 1, 1, 1, groups, dilation, dilation, "auto")


_KINDS: list[tuple[np.dtype, str]] = [*((np.dtype(each), NCHW) for each in launch.C_NAME),
                                      *((dtype, NHWC) for dtype in C_TYPES)]
_SHAPES = [_geometry(32, 32, 32, (3, 3)), _geometry(32, 32, 32, (3, 3), stride=2), _geometry(32, 32, 32, (7, 7)),
           _geometry(12, 24, 3, (3, 3)), _geometry(32, 32, 32, (3, 3), dilation=2)]
CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *((FILE, _outputs(g, dtype, layout, back, None)[-1]) for dtype, layout in _KINDS for g in _SHAPES
      for back in (False, True)),
    *((FILE, _outputs(_SHAPES[0], dtype, layout, False, "relu")[-1]) for dtype, layout in _KINDS),
    *((GRAD_W, _gradients(g, dtype, layout)[-1]) for dtype, layout in _KINDS for g in _SHAPES)]
