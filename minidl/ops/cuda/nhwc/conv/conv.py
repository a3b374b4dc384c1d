"""Convolution of images in NHWC, and the gradient of its image, on tensor cores: by conv_few.cu for images of few
channels, else by conv_pack.cu, which prepares, and the cheapest of conv_tma.cu, conv_images.cu and conv.cu."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import cupy
import numpy as np

from ....common.geometry import ConvGeometry, PoolGeometry
from ....common.geometry.nhwc import C_TYPES
from ... import launch
from ...layers.linear.tile import MODES
from ...layers.pool.windows import max_pool2d, side_by_side
from ...pixels import has_wgmma
from ...reduce import sum_first
from . import conv_few, conv_images, conv_tma
from .conv_tma import Tile

FILE, PACK_FILE = "nhwc/conv/conv.cu", "nhwc/conv/conv_pack.cu"
MAX_PADDED = 2                             # times as many slabs, at most, if channels are added
START = 4                                  # time of a tile in addition to its products, in slabs
STORED = 2.75                              # time to write y and to read it, in slabs, per byte of a number


_WHOLE = (Tile(FILE, 1, 256, 4, 1, 1.0), Tile(FILE, 1, 128, 3, 2, 1.12), Tile(FILE, 1, 64, 4, 2, 1.6),
          Tile(FILE, 1, 64, 2, 4, 1.8))
# By PRECISION
TILES = {"BF16": _WHOLE, "TF32": _WHOLE,
         "TF32X3": (Tile(FILE, 1, 128, 3, 1, 1.0), Tile(FILE, 1, 64, 4, 1, 1.2), Tile(FILE, 1, 64, 3, 1, 1.3))}


class Way(NamedTuple):
    """A way to compute it; nothing of it is compiled yet. Its time, in slabs of 128 pixels by one filter; the shape of
    what is stored; what the tile stores in place of y (conv_tma.THEN); the launches; and what starts them, given x, w,
    b, y and what else conv_tma.product takes."""

    cost: float
    y: tuple[int, ...]
    then: str
    plans: tuple[launch.Plan, ...]
    run: Callable[..., cupy.ndarray | None]


def _constants(tile: Tile, dtype: np.dtype, mode: str, wide: tuple[bool, bool], divided: bool, chunked: bool,
               act: str | None = None, hopper: bool = True) -> tuple[launch.Constant, ...]:
    blocks = 1 if not wide[0] and (divided or tile.filters > 64) else tile.blocks
    if not (wide[0] and hopper):
        blocks = min(blocks, 2)            # because of registers
    return (*[launch.HOPPER][:hopper], ("IMAGE", C_TYPES[dtype]), ("PRECISION", mode), ("FILTERS", tile.filters),
            ("TALL", tile.tall), ("STAGES", tile.stages), ("BLOCKS", blocks), ("WIDE", int(wide[0])),
            ("WIDE_Y", int(wide[1])), ("CHUNKED", int(chunked)), ("DIVIDED", int(divided)),
            *((("ACT", act), ("AFTER", 1)) if act else ()))


def _pack_constants(dtype: np.dtype, mode: str, chunked: bool, beside: int) -> tuple[launch.Constant, ...]:
    """beside: filters of a block's tile."""
    return (("IMAGE", C_TYPES[dtype]), ("PRECISION", mode), ("CHUNKED", int(chunked)),
            ("NEIGHBOURS", 2 if beside < 32 else 16 // dtype.itemsize))


def _packing(name: str, threads: int, dtype: np.dtype, mode: str, chunked: bool, beside: int) -> launch.Plan:
    return launch.Plan(PACK_FILE, name, _pack_constants(dtype, mode, chunked, beside), (launch.spread(threads),),
                       launch.THREADS)


def _shared(tile: Tile, mode: str, slabs: int) -> int:
    """Bytes, as the kernel lays them out."""
    return min(tile.stages, slabs) * (2 if mode == "TF32X3" else 1) * (128 * tile.tall + tile.filters) * 128


def _fitting(mode: str, wide: bool, slabs: int, room: int) -> list[Tile]:
    """The tiles whose slabs fit into `room` bytes of shared memory. If channels are read one by one, which takes
    registers, only those with fewer sums."""
    return [tile for tile in TILES[mode] if (wide or tile.filters <= 128) and _shared(tile, mode, slabs) <= room]


def _blocks(tile: Tile, pixels: int, m: int) -> int:
    return launch.blocks(pixels, 128 * tile.tall) * launch.blocks(m, tile.filters)


def _cost(tile: Tile, pixels: int, m: int, slabs: int) -> float:
    """The time that a multiprocessor's tiles take, relative to their sums. Products of other blocks hide a start."""
    turns = launch.blocks(_blocks(tile, pixels, m), launch.multiprocessors())
    return turns * tile.tall * tile.filters * tile.cost * (1 + START / (tile.blocks * slabs))


def _sizes(back: bool, g: ConvGeometry) -> dict[str, int]:
    """What struct ConvNhwc says of images and strides: for y, or if back, for the gradient of the image."""
    common = {"n": g.n, "kh": g.kh, "kw": g.kw}
    if back:
        return {**common, "c": g.m, "h": g.oh, "w": g.ow, "m": g.c, "oh": g.h, "ow": g.w, "sh": 1, "sw": 1,
                "top": g.kh - 1 - g.top, "left": g.kw - 1 - g.left, "divided_h": g.sh, "divided_w": g.sw}
    return {**common, "c": g.c, "h": g.h, "w": g.w, "m": g.m, "oh": g.oh, "ow": g.ow, "sh": g.sh, "sw": g.sw,
            "top": g.top, "left": g.left, "divided_h": 1, "divided_w": 1}


def _channels(c: int, pixels: int, taps: int, each: int) -> int:
    """How many channels an image is given: c rounded up to a multiple of `each`, so that no 16 bytes belong to two
    pixels. Or c, if rounding up makes sums more than MAX_PADDED times as long, or if all images together have too many
    numbers for a kernel."""
    more = launch.blocks(c, each) * each
    longer = launch.blocks(taps * more, 8 * each) > launch.blocks(taps * c, 8 * each) * MAX_PADDED
    return c if longer or pixels * more > launch.MAX_ELEMENTS else more


def _copying(elements: int, dtype: np.dtype) -> float:
    """What it costs to write an image and to read it."""
    return STORED * dtype.itemsize * elements / (128 * launch.multiprocessors())


def _copied(tile: Tile | None, sizes: dict[str, int], depth: int, then: str = "y",
            stored: float = 1.0) -> conv_tma.Tiles | None:
    """The cheapest tiles of those that the hardware copies, of one row of TILES or of all; None if none fits. depth:
    channels of a slab; conv_images.py needs full slabs. stored: how many times as long tiles take that cannot do what
    follows, and have to store y."""
    ones = all(sizes[name] == 1 for name in ("sh", "sw", "divided_h", "divided_w"))
    place = [sizes[name] for name in ("n", "oh", "ow", "m", "kh", "kw")]
    found = [*(conv_tma.tiles(each, *place, images=images) for images in (True, False) for each in conv_tma.TILES
               if ones and tile in (None, each)),
             *(conv_images.tiles(each, sizes, depth) for each in conv_images.TILES
               if tile in (None, each) and sizes["c"] % depth == 0)]
    return launch.best(found, lambda each: each.cost * (1 if conv_tma.can(then, each, sizes["m"]) else stored))


def _of_few(back: bool, g: ConvGeometry, dtype: np.dtype, mode: str, aligned: bool, act: str | None) -> Way | None:
    """In one launch, for images of few channels: the last choice of several ways, but the first of one product."""
    sizes, each = _sizes(back, g), 16 // dtype.itemsize
    channels, m, high, across = (sizes[name] for name in ("c", "m", "oh", "ow"))
    if channels > each or (back and (g.sh, g.sw) != (1, 1)):
        return None
    folded = conv_few.fold(channels, g.kw, g.sw, dtype)
    row_taps = launch.blocks(g.kw, folded)
    patch = conv_few.patch_of(g.n, high, across, g.kh, row_taps, g.sh, g.sw // folded)
    if patch is None:
        return None
    plan, product = conv_few.product(patch, dtype, mode, g.n, high, across, m, g.kh * row_taps,
                                     (channels == each and aligned, m % each == 0), act, folded)
    struct = launch.by_value("ConvNhwc", sum=0, filters=0, **sizes)
    return Way(math.inf, (g.n, high, across, m), "y", (plan,), lambda x, w, b, y: product(x, w, b, y, struct, back))


def _straight(back: bool, g: ConvGeometry, dtype: np.dtype, mode: str, aligned: bool, act: str | None,
              tile: Tile | None, then: str) -> Way:
    """By one product."""
    sizes, each = _sizes(back, g), 16 // dtype.itemsize
    channels, m, high, across = (sizes[name] for name in ("c", "m", "oh", "ow"))
    sizes["c"] = c = _channels(channels, g.n * sizes["h"] * sizes["w"], g.kh * g.kw, each)
    pixels, slabs = g.n * high * across, launch.blocks(g.kh * g.kw * c, 8 * each)
    wide = c % each == 0 and (aligned or c > channels), m % each == 0
    chunked = wide[0] and c % (8 * each) == 0
    taps, hopper, file = g.kh * g.kw, has_wgmma(), tile and tile.file
    by_copies = hopper and mode != "TF32X3" and file != FILE
    stored = 1.0 if then == "y" else 1 + STORED * dtype.itemsize / slabs
    few = _of_few(back, g, dtype, mode, aligned, act) if by_copies and file != conv_images.FILE else None
    tiled = _copied(tile, sizes, 8 * each, then, stored) if by_copies and wide[0] else None
    best = launch.best([tile] if tile and file == FILE else _fitting(mode, wide[0], slabs, launch.most_shared()),
                       lambda tile: _cost(tile, pixels, m, slabs))
    most = _cost(best, pixels, m, slabs) * stored if best else math.inf
    longer = taps * launch.blocks(c, 8 * each) * conv_tma.steps_of_slab(c, dtype) / 4 / slabs  # if none is filled
    by_tiles = tiled if tiled and (tile or tiled.cost * longer < most) and not few else None
    chunked = chunked or by_tiles is not None
    sums = 8 * each * (taps * launch.blocks(c, 8 * each) if chunked else slabs)
    if then != "y" and not (wide[1] and by_tiles and conv_tma.can(then, by_tiles, m)):
        way = _straight(back, g, dtype, mode, aligned, act if then == "maxima" else None, tile, "y")
        return way._replace(cost=way.cost + _copying(pixels * m, dtype))
    if few:
        return few
    product: Callable[..., cupy.ndarray | None] | None = None
    if by_tiles and by_tiles.patch:
        plan, product = conv_tma.product(by_tiles, dtype, mode, c, high, across, m, wide[1], act, then)
    elif by_tiles:
        plan, product = conv_images.product(by_tiles, dtype, mode, wide[1], act)
    elif best:
        divided = back and (g.sh, g.sw) != (1, 1)
        plan = launch.Plan(FILE, "conv_nhwc", _constants(best, dtype, mode, wide, divided, chunked, act, hopper),
                           (_blocks(best, pixels, m),), 256, _shared(best, mode, slabs))
    else:
        raise ValueError(f"conv2d_nhwc: sums of {g.kh * g.kw * c} terms in {mode} take "
                         f"{min(_shared(tile, mode, slabs) for tile in TILES[mode])} bytes of shared memory but a "
                         f"block has {launch.most_shared()}; use another precision, or images in NCHW")
    beside = dict(plan.constants)["FILTERS"]
    filters, padded = launch.blocks(m, beside) * beside, (g.n, sizes["h"], sizes["w"], c)
    packed_shape = 2 if mode == "TF32X3" else 1, filters, sums
    struct = launch.by_value("ConvNhwc", sum=sums, filters=filters, **sizes)
    pack = (_packing("conv_nhwc_pad", math.prod(padded) // each, dtype, mode, chunked, beside) if c > channels else
            _packing("conv_nhwc_pack", filters * (c + sums - g.kh * g.kw * c), dtype, mode, chunked, beside))

    def run(x: cupy.ndarray, w: cupy.ndarray, b: cupy.ndarray | None, y: cupy.ndarray,
            *more: Any) -> cupy.ndarray | None:
        as_b = launch.empty(packed_shape, x.dtype)
        if c > channels:
            given, x = x, launch.empty(padded, x.dtype)
            pack.start(w, as_b, given, x, struct, channels, int(back))
        else:
            pack.start(w, as_b, struct, channels, int(back))
        return (product or plan.start)(x, as_b, b, y, struct, *more)
    shape = (g.n, high // 2, across // 2, m) if then == "maxima" else (g.n, high, across, m)
    return Way(slabs * (by_tiles.cost * longer if by_tiles else most), shape, then, (plan, pack), run)


# ---------------------------------------------------------------- the gradient of an image with strides
def _by_zeros(g: ConvGeometry, dtype: np.dtype, mode: str, act: str | None, then: str) -> Way | None:
    """dy with zeros between its pixels, and then strides of 1."""
    one = g._replace(oh=(g.oh - 1) * g.sh + 1, ow=(g.ow - 1) * g.sw + 1, sh=1, sw=1)
    size = g.n * one.oh * one.ow * g.m
    if size > launch.MAX_ELEMENTS or mode == "TF32X3":
        return None
    way = _straight(True, one, dtype, mode, True, act, None, then)
    spread = _packing("conv_nhwc_spread", size * dtype.itemsize // 16, dtype, mode, True, 64)

    def run(dy: cupy.ndarray, w: cupy.ndarray, *more: Any) -> cupy.ndarray | None:
        apart = launch.empty((g.n, one.oh, one.ow, g.m), dtype)
        spread.start(dy, apart, g.n, g.oh, g.ow, g.m, g.sh, g.sw)
        return way.run(apart, w, *more)
    return way._replace(cost=way.cost + _copying(size, dtype), plans=(*way.plans, spread), run=run)


class Phases(NamedTuple):
    """Along an axis: how many of `step` neighbouring rows meet taps of their own; and the window of dy that they meet
    together, whose first row is `low` rows below theirs. Row p, from `before` rows above the image on, meets every
    step-th tap from tap a on, where a is the remainder of p + before."""

    step: int
    before: int
    taps: int
    number: int
    low: int
    window: int


def phases(step: int, before: int, taps: int) -> Phases:
    """
    >>> phases(2, 1, 3)                    # one row meets the middle tap, the next the two others
    Phases(step=2, before=1, taps=3, number=2, low=0, window=2)
    >>> phases(2, 0, 1).number             # every other row meets none
    1
    """
    meets = [((p + before) // step, (taps - 1 - (p + before) % step) // step) for p in range(step)
             if (p + before) % step < taps]
    low = min(first - more for first, more in meets)
    return Phases(step, before, taps, len(meets), low, max(first for first, _ in meets) - low + 1)


def _by_phases(g: ConvGeometry, dtype: np.dtype, mode: str, aligned: bool, act: str | None, then: str,
               zeros: bool) -> Way | None:
    """Pixels of dx that are one stride apart meet the same taps. So dx takes several convolutions of dy with strides of
    1, each by some of the taps. They run as one with that many times the filters, whose images are then put side by
    side. zeros: whether a pixel that meets no tap is 0."""
    down, right = phases(g.sh, g.top, g.kh), phases(g.sw, g.left, g.kw)
    each, count = 16 // dtype.itemsize, down.number * right.number
    if down.low > 0 or right.low > 0 or g.c % each or not (zeros or count == g.sh * g.sw):
        return None
    of = g._replace(c=g.m, h=g.oh, w=g.ow, m=count * g.c, kh=down.window, kw=right.window, oh=launch.blocks(g.h, g.sh),
                    ow=launch.blocks(g.w, g.sw), sh=1, sw=1, top=-down.low, left=-right.low)
    if of.n * of.oh * of.ow * of.m > launch.MAX_ELEMENTS:
        return None
    way = _straight(False, of, dtype, mode, aligned, act if then == "y" else None, None, "y")
    size, filters = g.n * g.h * g.w * g.c, (of.m, of.c, of.kh, of.kw)

    structs = launch.by_value("Phases", down), launch.by_value("Phases", right)
    sort, join = (_packing(name, threads, dtype, mode, True, 64) for name, threads in (
        ("conv_nhwc_phases", math.prod(filters)), ("conv_nhwc_join", size // each)))

    def run(dy: cupy.ndarray, w: cupy.ndarray, b: cupy.ndarray | None, dx: cupy.ndarray) -> None:
        sorted_, biases = launch.empty(filters, w.dtype), None if b is None else launch.empty((of.m,), b.dtype)
        sort.start(w, b, sorted_, biases, *structs, g.m, g.c)
        apart = launch.empty(way.y, dtype)
        way.run(dy, sorted_, biases, apart)
        join.start(apart, dx, *structs, g.n, g.h, g.w, g.c)
    # Another kernel does what follows, and reads dx
    return Way(way.cost + _copying(size, dtype) * (1 if then == "y" else 2), (g.n, g.h, g.w, g.c), "y",
               (*way.plans, sort, join), run)


@functools.lru_cache(maxsize=1024)
def _plan(back: bool, g: ConvGeometry, dtype: np.dtype, mode: str, aligned: bool, act: str | None, tile: Tile | None,
          then: str, zeros: bool) -> Way:
    """The cheapest way; for the gradient of an image with strides, the cheapest of three."""
    ways: list[Way | None] = [_straight(back, g, dtype, mode, aligned, act, tile, then)]
    if back and (g.sh, g.sw) != (1, 1) and not tile:
        ways.append(_by_phases(g, dtype, mode, aligned, act, then, zeros))
        if aligned and g.m * dtype.itemsize % 16 == 0:
            ways.append(_by_zeros(g, dtype, mode, act, then))
    way = launch.best(ways)
    assert way
    launch.prepare(*way.plans)
    return way


def _planned(name: str, back: bool, x: cupy.ndarray, g: ConvGeometry, act: str | None, precision: str,
             tile: Tile | None, then: str = "y", zeros: bool = True) -> tuple[cupy.ndarray, Way]:
    """x, contiguous, and the way to compute the result. zeros: as in _by_phases."""
    expected = (g.n, g.oh, g.ow, g.m) if back else (g.n, g.h, g.w, g.c)
    if x.dtype not in C_TYPES:
        raise TypeError(f"{name}: the image is of {x.dtype} but must be of float32, or bf16 as uint16; convert it")
    if x.shape != expected:
        raise ValueError(f"{name}: the image has shape {x.shape} but the geometry says {expected}; pass it in NHWC")
    if precision not in MODES or precision == "fp32":
        raise ValueError(f"{name}: the precision is {precision!r} but must be tf32, 3xtf32 or bf16; set another")
    if launch.compute_capability() < 80:
        raise ValueError(f"{name}: the GPU's compute capability is {launch.compute_capability() / 10} but tf32 and "
                         "bf16 need 8.0; use precision fp32, and images in NCHW")
    x = launch.dense(x)
    mode = "BF16" if x.dtype == np.uint16 else "TF32" if precision == "bf16" else MODES[precision]
    aligned = x.data.ptr % 16 == 0
    return x, _plan(back, g, x.dtype, mode, aligned, act, tile, then, zeros)


def _run(x: cupy.ndarray, way: Way, w: cupy.ndarray, b: cupy.ndarray | None) -> cupy.ndarray:
    y = launch.empty(way.y, x.dtype)
    if y.size:
        way.run(x, w, b, y)
    return y


def y(x: cupy.ndarray, w: cupy.ndarray, b: cupy.ndarray | None, g: ConvGeometry, act: str | None = None, *,
      precision: str, tile: Tile | None = None) -> cupy.ndarray:
    """act(conv2d(x) + b), or without act: (n,oh,ow,m) of x's type, from x (n,h,w,c) in float32, or bf16 as uint16.

    w (m,c,kh,kw) and b are float32. precision: "tf32", "3xtf32" or "bf16"; products of bf16 images are in bf16; those
    of float32 images never are, but in tf32. tile: in place of what the launcher finds cheapest; a tile of conv_tma.py
    or conv_images.py that cannot take these images is ignored.
    """
    return _run(*_planned("conv2d_nhwc", False, x, g, act, precision, tile), w, b)


def max_pooled(x: cupy.ndarray, w: cupy.ndarray, b: cupy.ndarray | None, g: ConvGeometry, act: str | None,
               pooling: PoolGeometry, *, precision: str,
               tile: Tile | None = None) -> tuple[cupy.ndarray, cupy.ndarray]:
    """max_pool2d of y: (maxima, winners). y is not stored if the kernel that computes its tile also finds the
    maxima, over windows of 2x2 side by side."""
    halves = (pooling.kh, pooling.kw) == (2, 2) and side_by_side(pooling)
    x, way = _planned("conv2d_max_pool_nhwc", False, x, g, act, precision, tile, "maxima" if halves else "y")
    if way.then == "y":
        return max_pool2d(_run(x, way, w, b), pooling)
    maxima, winners = launch.empty(way.y, x.dtype), launch.empty(way.y, np.dtype(np.uint8))
    if maxima.size:
        way.run(x, w, b, maxima, winners)
    return maxima, winners


def grad_x(dy: cupy.ndarray, w: cupy.ndarray, g: ConvGeometry, b: cupy.ndarray | None = None, act: str | None = None, *,
           precision: str, tile: Tile | None = None) -> cupy.ndarray:
    """The gradient of y by x, (n,h,w,c) of dy's type, from dy (n,oh,ow,m): see y. b, act: for a transposed convolution,
    act(the gradient + b)."""
    zeros = b is None and act is None
    return _run(*_planned("conv2d_grad_x_nhwc", True, dy, g, act, precision, tile, zeros=zeros), w, b)


def grad_x_act(dy: cupy.ndarray, w: cupy.ndarray, g: ConvGeometry, act: str, beside: conv_tma.Beside, *, precision: str,
               tile: Tile | None = None) -> tuple[cupy.ndarray, cupy.ndarray | None]:
    """(gz, sums): the gradient by what an activation was given, and its sum over each channel, (1, c). If `beside` has
    what was normalised, also the sum of gz times the normalised values, (2, c). (dx, None) if the product's tile cannot
    do it."""
    beside = conv_tma.Beside(*[None if each is None else launch.dense(each) for each in beside])
    then = "gradient" if beside.normalized is None else "normalized"
    given, way = _planned("conv2d_grad_x_nhwc", True, dy, g, act, precision, tile, then)
    if way.then == "y" or 0 in way.y:
        return _run(given, way, w, None), None
    gz = launch.empty(way.y, dy.dtype)
    return gz, sum_first(way.run(given, w, None, gz, None, beside))


FLOAT, HALF = np.dtype(np.float32), np.dtype(np.uint16)
IMAGES: dict[str, np.dtype] = {"BF16": HALF, "TF32": FLOAT, "TF32X3": FLOAT}
ALL_ROOM = 1 << 30
# Each tile with wide copies; then elements one by one, divided positions, an activation; with wgmma and with mma
CONFIGURATIONS = [
    *conv_tma.CONFIGURATIONS, *conv_images.CONFIGURATIONS,
    *[(PACK_FILE, _pack_constants(dtype, mode, chunked, beside))
      for mode, dtype in IMAGES.items() for chunked, beside in ((True, 64), (True, 8), (False, 64))],
    *[(FILE, _constants(tile, IMAGES[mode], mode, wide, divided, chunked, act, hopper))
      for mode in TILES for hopper in (True, False)
      for wide, divided, chunked, act in (
          ((True, True), False, True, "relu"), ((True, True), False, False, None), ((True, True), True, True, None),
          ((False, False), True, False, None), ((False, True), False, False, None))
      for tile in _fitting(mode, wide[0], 1, ALL_ROOM)]]
