"""Convolution of images in NHWC, and the gradient of its image, on tensor cores: launches conv_pack.cu, which prepares,
and conv_few.cu for images of few channels, or conv_tma.cu, conv_images.cu or conv.cu, whichever is cheapest, which
multiply."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import cupy
import numpy as np

from ....common.geometry import ConvGeometry, PoolGeometry
from ... import launch
from ...layers.linear.tile import MODES
from ..pixels import C_TYPES, has_wgmma, sum_first
from ..pool import max_pool2d_nhwc, side_by_side
from . import conv_few, conv_images, conv_tma

FILE, PACK_FILE = "nhwc/conv/conv.cu", "nhwc/conv/conv_pack.cu"
MAX_PADDED = 2                             # times as many slabs, at most, where channels are added
START = 4                                  # slabs that a tile takes longer than its products
STORED = 2.75                              # slabs that take as long as writing y and reading it, per byte of a number


class Form(NamedTuple):
    """Of conv.cu: a block's tile, tall * 128 pixels by so many filters; stages of shared memory; blocks of a
    multiprocessor; and what a product costs, relative to the best form's."""

    tall: int
    filters: int
    stages: int
    blocks: int
    cost: float


_WHOLE = (Form(1, 256, 4, 1, 1.0), Form(1, 128, 3, 2, 1.12), Form(1, 64, 4, 2, 1.6), Form(1, 64, 2, 4, 1.8))
# By PRECISION
FORMS = {"BF16": _WHOLE, "TF32": _WHOLE,
         "TF32X3": (Form(1, 128, 3, 1, 1.0), Form(1, 64, 4, 1, 1.2), Form(1, 64, 3, 1, 1.3))}


AnyForm = Form | conv_tma.Form | conv_images.Form


class Plan(NamedTuple):
    """The shape of what is stored, and what launches the kernels for it, given x, w, b, y and what else
    conv_tma.product asks for. then: what the tile stores in place of y (conv_tma.THEN)."""

    y: tuple[int, ...]
    then: str
    run: Callable[..., cupy.ndarray | None]


class Way(NamedTuple):
    """The time that a plan would take, in slabs of 128 pixels by one filter, and what makes it: kernels that are named
    are compiled, so only the cheapest way's are."""

    cost: float
    plan: Callable[[], Plan]


def _constants(form: Form, dtype: np.dtype, mode: str, wide: tuple[bool, bool], divided: bool, chunked: bool,
               act: str | None = None, hopper: bool = True) -> tuple[launch.Constant, ...]:
    blocks = 1 if not wide[0] and (divided or form.filters > 64) else form.blocks
    if not (wide[0] and hopper):
        blocks = min(blocks, 2)            # of registers
    return (*[launch.HOPPER][:hopper], ("IMAGE", C_TYPES[dtype]), ("PRECISION", mode), ("FILTERS", form.filters),
            ("TALL", form.tall), ("STAGES", form.stages), ("BLOCKS", blocks), ("WIDE", int(wide[0])),
            ("WIDE_Y", int(wide[1])), ("CHUNKED", int(chunked)), ("DIVIDED", int(divided)),
            *((("ACT", act), ("AFTER", 1)) if act else ()))


def _pack_constants(dtype: np.dtype, mode: str, chunked: bool, beside: int) -> tuple[launch.Constant, ...]:
    """beside: filters of a block's tile."""
    return (("IMAGE", C_TYPES[dtype]), ("PRECISION", mode), ("CHUNKED", int(chunked)),
            ("NEIGHBOURS", 2 if beside < 32 else 16 // dtype.itemsize))


def _shared(form: Form, mode: str, slabs: int) -> int:
    """Bytes, as the kernel lays them out."""
    return min(form.stages, slabs) * (2 if mode == "TF32X3" else 1) * (128 * form.tall + form.filters) * 128


def _forms(mode: str, wide: bool, slabs: int, room: int) -> list[Form]:
    """Those whose slabs fit into so many bytes of shared memory; of channels that are read one by one, which takes
    registers, those of fewer sums."""
    return [form for form in FORMS[mode] if (wide or form.filters <= 128) and _shared(form, mode, slabs) <= room]


def _tiles(form: Form, pixels: int, m: int) -> int:
    return launch.blocks(pixels, 128 * form.tall) * launch.blocks(m, form.filters)


def _cost(form: Form, pixels: int, m: int, slabs: int) -> float:
    """The time that a multiprocessor's tiles take, relative to their sums. Other blocks' products hide a start."""
    turns = launch.blocks(_tiles(form, pixels, m), launch.multiprocessors())
    return turns * form.tall * form.filters * form.cost * (1 + START / (form.blocks * slabs))


def _sizes(back: bool, g: ConvGeometry) -> dict[str, int]:
    """What struct ConvNhwc says of images and steps: for y, or back, for the gradient of the image."""
    common = {"n": g.n, "kh": g.kh, "kw": g.kw}
    if back:
        return {**common, "c": g.m, "h": g.oh, "w": g.ow, "m": g.c, "oh": g.h, "ow": g.w, "sh": 1, "sw": 1,
                "top": g.kh - 1 - g.top, "left": g.kw - 1 - g.left, "divided_h": g.sh, "divided_w": g.sw}
    return {**common, "c": g.c, "h": g.h, "w": g.w, "m": g.m, "oh": g.oh, "ow": g.ow, "sh": g.sh, "sw": g.sw,
            "top": g.top, "left": g.left, "divided_h": 1, "divided_w": 1}


def _channels(c: int, pixels: int, taps: int, each: int) -> int:
    """How many an image is given: up to a multiple of `each`, so that no 16 bytes belong to two pixels, unless that
    makes sums more than MAX_PADDED times as long, or all images together too many numbers for a kernel."""
    more = launch.blocks(c, each) * each
    longer = launch.blocks(taps * more, 8 * each) > launch.blocks(taps * c, 8 * each) * MAX_PADDED
    return c if longer or pixels * more > launch.MAX_ELEMENTS else more


def _copying(elements: int, dtype: np.dtype) -> float:
    """What it costs to write an image and to read it."""
    return STORED * dtype.itemsize * elements / (128 * launch.multiprocessors())


def _copied(form: AnyForm | None, sizes: dict[str, int], depth: int, then: str = "y",
            stored: float = 1.0) -> conv_tma.Tiles | conv_images.Tiles | None:
    """The cheapest tiles of those that the hardware copies, of one form or of all; None where none fits. depth:
    channels of a slab, which conv_images.py needs full. stored: how many times as long those take that cannot do what
    follows, and have to store y."""
    ones = all(sizes[name] == 1 for name in ("sh", "sw", "divided_h", "divided_w"))
    place = [sizes[name] for name in ("n", "oh", "ow", "m", "kh", "kw")]
    found = [*(conv_tma.tiles(each, *place, images=images) for images in (True, False) for each in conv_tma.FORMS
               if ones and form in (None, each)),
             *(conv_images.tiles(each, sizes, depth) for each in conv_images.FORMS
               if form in (None, each) and sizes["c"] % depth == 0)]
    return min((each for each in found if each), default=None,
               key=lambda each: each.cost * (1 if _can(then, each, sizes["m"]) else stored))


def _can(then: str, tiles: conv_tma.Tiles | conv_images.Tiles | None, m: int) -> bool:
    return isinstance(tiles, conv_tma.Tiles) and conv_tma.can(then, tiles, m)


def _straight(back: bool, g: ConvGeometry, dtype: np.dtype, mode: str, aligned: bool, act: str | None,
              form: AnyForm | None, then: str) -> Way:
    """By one product."""
    sizes, each = _sizes(back, g), 16 // dtype.itemsize
    channels, m, high, across = (sizes[name] for name in ("c", "m", "oh", "ow"))
    sizes["c"] = c = _channels(channels, g.n * sizes["h"] * sizes["w"], g.kh * g.kw, each)
    pixels, slabs = g.n * high * across, launch.blocks(g.kh * g.kw * c, 8 * each)
    wide = c % each == 0 and (aligned or c > channels), m % each == 0
    chunked = wide[0] and c % (8 * each) == 0
    taps, hopper = g.kh * g.kw, has_wgmma()
    by_copies = hopper and mode != "TF32X3" and not isinstance(form, Form)
    stored = 1.0 if then == "y" else 1 + STORED * dtype.itemsize / slabs
    few = tiled = None
    folded, row_taps = 1, g.kw
    if by_copies and channels <= each and not (back and (g.sh, g.sw) != (1, 1)) and form not in conv_images.FORMS:
        folded = conv_few.fold(channels, g.kw, g.sw, dtype)
        row_taps = launch.blocks(g.kw, folded)
        few = conv_few.patch_of(g.n, high, across, g.kh, row_taps, g.sh, g.sw // folded)
    if by_copies and wide[0]:
        tiled = _copied(form, sizes, 8 * each, then, stored)
    forms = [form] if isinstance(form, Form) else _forms(mode, wide[0], slabs, launch.most_shared())
    best = min(forms, key=lambda form: _cost(form, pixels, m, slabs), default=None)
    most = _cost(best, pixels, m, slabs) * stored if best else math.inf
    longer = taps * launch.blocks(c, 8 * each) * conv_tma.steps_of_slab(c, dtype) / 4 / slabs  # where none is filled
    by_tiles = tiled if tiled and (form or tiled.cost * longer < most) and not few else None
    chunked = chunked or by_tiles is not None
    sums = 8 * each * (taps * launch.blocks(c, 8 * each) if chunked else slabs)
    if then != "y" and not (wide[1] and _can(then, by_tiles, m)):
        way = _straight(back, g, dtype, mode, aligned, act if then == "maxima" else None, form, "y")
        return way._replace(cost=way.cost + _copying(pixels * m, dtype))
    if not (few or by_tiles or best):
        raise ValueError(f"conv2d_nhwc: sums of {g.kh * g.kw * c} terms in {mode} take "
                         f"{min(_shared(form, mode, slabs) for form in FORMS[mode])} bytes of shared memory but a "
                         f"block has {launch.most_shared()}; use another precision, or images in NCHW")
    shape = (g.n, high // 2, across // 2, m) if then == "maxima" else (g.n, high, across, m)

    def at_once() -> Plan:
        assert few
        product = conv_few.product(few, dtype, mode, g.n, high, across, m, g.kh * row_taps,
                                   (channels == each and aligned, wide[1]), act, folded)
        struct = launch.by_value("ConvNhwc", sum=0, filters=0, **sizes | {"c": channels})
        return Plan(shape, "y", lambda x, w, b, y: product(x, w, b, y, struct, back))

    def packed() -> Plan:
        if isinstance(by_tiles, conv_tma.Tiles):
            product = conv_tma.product(by_tiles, dtype, mode, c, high, across, m, wide[1], act, then)
        elif by_tiles:
            product = conv_images.product(by_tiles, dtype, mode, wide[1], act)
        elif best:
            divided = back and (g.sh, g.sw) != (1, 1)
            product = launch.kernel(FILE, "conv_nhwc", *_constants(
                best, dtype, mode, wide, divided, chunked, act, hopper)).sized(
                    (_tiles(best, pixels, m),), (256,), _shared(best, mode, slabs))
        chosen = by_tiles.form if by_tiles else best
        assert chosen
        beside = chosen.filters
        filters, padded = launch.blocks(m, beside) * beside, (g.n, sizes["h"], sizes["w"], c)

        def prepare(name: str, size: int) -> Callable[..., None]:
            return launch.kernel(PACK_FILE, name, *_pack_constants(dtype, mode, chunked, beside)).sized(
                (launch.spread(size),), (launch.THREADS,))
        pack = prepare("conv_nhwc_pack", filters * (c + sums - g.kh * g.kw * c))
        pad = prepare("conv_nhwc_pad", math.prod(padded) // each) if c > channels else None
        packed_shape = 2 if mode == "TF32X3" else 1, filters, sums
        struct = launch.by_value("ConvNhwc", sum=sums, filters=filters, **sizes)

        def run(x: cupy.ndarray, w: cupy.ndarray, b: cupy.ndarray | None, y: cupy.ndarray,
                *more: Any) -> cupy.ndarray | None:
            as_b = launch.empty(packed_shape, x.dtype)
            if pad:
                given, x = x, launch.empty(padded, x.dtype)
                pad(w, as_b, given, x, struct, channels, int(back))
            else:
                pack(w, as_b, struct, channels, int(back))
            return product(x, as_b, b, y, struct, *more)
        return Plan(shape, then, run)
    return Way(math.inf, at_once) if few else Way(slabs * (by_tiles.cost * longer if by_tiles else most), packed)


# ---------------------------------------------------------------- the gradient of an image at steps
def _by_zeros(g: ConvGeometry, dtype: np.dtype, mode: str, act: str | None, then: str) -> Way | None:
    """dy with zeros between its pixels, and then steps of 1."""
    one = g._replace(oh=(g.oh - 1) * g.sh + 1, ow=(g.ow - 1) * g.sw + 1, sh=1, sw=1)
    size = g.n * one.oh * one.ow * g.m
    if size > launch.MAX_ELEMENTS or mode == "TF32X3":
        return None
    way = _straight(True, one, dtype, mode, True, act, None, then)

    def made() -> Plan:
        plan = way.plan()
        spread = launch.kernel(PACK_FILE, "conv_nhwc_spread", *_pack_constants(dtype, mode, True, 64)).sized(
            (launch.spread(size * dtype.itemsize // 16),), (launch.THREADS,))

        def run(dy: cupy.ndarray, w: cupy.ndarray, *more: Any) -> cupy.ndarray | None:
            apart = launch.empty((g.n, one.oh, one.ow, g.m), dtype)
            spread(dy, apart, g.n, g.oh, g.ow, g.m, g.sh, g.sw)
            return plan.run(apart, w, *more)
        return plan._replace(run=run)
    return Way(way.cost + _copying(size, dtype), made)


class Phases(NamedTuple):
    """Along an axis: of `step` rows side by side, how many meet taps of their own (row p, from `before` rows above
    the image on, meets taps a, a + step, ..., where a is what remains of p + before); and the window of dy that they
    meet together, whose first row is `low` rows below theirs."""

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
    """Pixels of dx that lie as far apart as the steps are meet the same taps: as many convolutions of dy at steps of 1,
    by some of the taps each, are one with so many times the filters, whose images are put side by side then. zeros:
    whether a pixel that meets no tap is 0."""
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

    def made() -> Plan:
        plan, structs = way.plan(), (launch.by_value("Phases", down), launch.by_value("Phases", right))
        sort, join = (launch.kernel(PACK_FILE, name, *_pack_constants(dtype, mode, True, 64)).sized(
            (launch.spread(threads),), (launch.THREADS,)) for name, threads in (
                ("conv_nhwc_phases", math.prod(filters)), ("conv_nhwc_join", size // each)))

        def run(dy: cupy.ndarray, w: cupy.ndarray, b: cupy.ndarray | None, dx: cupy.ndarray) -> None:
            sorted_, biases = launch.empty(filters, w.dtype), None if b is None else launch.empty((of.m,), b.dtype)
            sort(w, b, sorted_, biases, *structs, g.m, g.c)
            apart = launch.empty(plan.y, dtype)
            plan.run(dy, sorted_, biases, apart)
            join(apart, dx, *structs, g.n, g.h, g.w, g.c)
        return Plan((g.n, g.h, g.w, g.c), "y", run)
    # What follows is another kernel's work, which reads dx
    return Way(way.cost + _copying(size, dtype) * (1 if then == "y" else 2), made)


@functools.lru_cache(maxsize=1024)
def _plan(back: bool, g: ConvGeometry, dtype: np.dtype, mode: str, aligned: bool, act: str | None,
              form: AnyForm | None, then: str, zeros: bool) -> Plan:
    """The cheapest; of the gradient of an image at steps, of three ways."""
    ways: list[Way | None] = [_straight(back, g, dtype, mode, aligned, act, form, then)]
    if back and (g.sh, g.sw) != (1, 1) and not form:
        ways.append(_by_phases(g, dtype, mode, aligned, act, then, zeros))
        if aligned and g.m * dtype.itemsize % 16 == 0:
            ways.append(_by_zeros(g, dtype, mode, act, then))
    return min(filter(None, ways), key=lambda way: way.cost).plan()


def _planned(name: str, back: bool, x: cupy.ndarray, g: ConvGeometry, act: str | None, precision: str,
             form: AnyForm | None, then: str = "y", zeros: bool = True) -> tuple[cupy.ndarray, Plan]:
    """x, without gaps, and the plan for it. zeros: as _by_phases has it."""
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
    return x, _plan(back, g, x.dtype, mode, aligned, act, form, then, zeros)


def _run(x: cupy.ndarray, plan: Plan, w: cupy.ndarray, b: cupy.ndarray | None) -> cupy.ndarray:
    y = launch.empty(plan.y, x.dtype)
    if y.size:
        plan.run(x, w, b, y)
    return y


def y(x: cupy.ndarray, w: cupy.ndarray, b: cupy.ndarray | None, g: ConvGeometry, act: str | None = None, *,
      precision: str, form: AnyForm | None = None) -> cupy.ndarray:
    """act(conv2d(x) + b), or without act: (n,oh,ow,m) of x's type, from x (n,h,w,c) in float32, or bf16 as uint16.

    w (m,c,kh,kw) and b are float32. precision: "tf32", "3xtf32" or "bf16"; products of bf16 images are in bf16, and
    those of float32 images never are, but in tf32. form: in place of what the launcher finds cheapest; one of
    conv_tma.py or conv_images.py that cannot take these images is passed over.
    """
    return _run(*_planned("conv2d_nhwc", False, x, g, act, precision, form), w, b)


def max_pooled(x: cupy.ndarray, w: cupy.ndarray, b: cupy.ndarray | None, g: ConvGeometry, act: str | None,
               pooling: PoolGeometry, *, precision: str,
               form: AnyForm | None = None) -> tuple[cupy.ndarray, cupy.ndarray]:
    """max_pool2d_nhwc of y: (maxima, winners). y is not stored where the kernel that makes its tile finds the maxima,
    over windows of 2x2 side by side."""
    halves = (pooling.kh, pooling.kw) == (2, 2) and side_by_side(pooling)
    x, plan = _planned("conv2d_max_pool_nhwc", False, x, g, act, precision, form, "maxima" if halves else "y")
    if plan.then == "y":
        return max_pool2d_nhwc(_run(x, plan, w, b), pooling)
    maxima, winners = launch.empty(plan.y, x.dtype), launch.empty(plan.y, np.dtype(np.uint8))
    if maxima.size:
        plan.run(x, w, b, maxima, winners)
    return maxima, winners


def grad_x(dy: cupy.ndarray, w: cupy.ndarray, g: ConvGeometry, b: cupy.ndarray | None = None, act: str | None = None, *,
           precision: str, form: AnyForm | None = None) -> cupy.ndarray:
    """The gradient of y by x, (n,h,w,c) of dy's type, from dy (n,oh,ow,m): see y. b, act: of a transposed
    convolution, act(the gradient + b)."""
    zeros = b is None and act is None
    return _run(*_planned("conv2d_grad_x_nhwc", True, dy, g, act, precision, form, zeros=zeros), w, b)


def grad_x_act(dy: cupy.ndarray, w: cupy.ndarray, g: ConvGeometry, act: str, beside: conv_tma.Beside, *, precision: str,
               form: AnyForm | None = None) -> tuple[cupy.ndarray, cupy.ndarray | None]:
    """(gz, sums): the gradient by what an activation was given, and its sum over each channel, (1, c); with what was
    normalised also that of its products with it, (2, c). (dx, None) where the product's tile cannot do it."""
    beside = conv_tma.Beside(*[None if each is None else launch.dense(each) for each in beside])
    then = "gradient" if beside.normalized is None else "normalized"
    given, plan = _planned("conv2d_grad_x_nhwc", True, dy, g, act, precision, form, then)
    if plan.then == "y" or 0 in plan.y:
        return _run(given, plan, w, None), None
    gz = launch.empty(plan.y, dy.dtype)
    return gz, sum_first(plan.run(given, w, None, gz, None, beside))


FLOAT, HALF = np.dtype(np.float32), np.dtype(np.uint16)
IMAGES: dict[str, np.dtype] = {"BF16": HALF, "TF32": FLOAT, "TF32X3": FLOAT}
ALL_ROOM = 1 << 30
# Each form with wide copies; then elements one by one, divided positions, an activation; with wgmma and with mma
CONFIGURATIONS = [
    *conv_tma.CONFIGURATIONS, *conv_images.CONFIGURATIONS,
    *[(PACK_FILE, _pack_constants(dtype, mode, chunked, beside))
      for mode, dtype in IMAGES.items() for chunked, beside in ((True, 64), (True, 8), (False, 64))],
    *[(FILE, _constants(form, IMAGES[mode], mode, wide, divided, chunked, act, hopper))
      for mode in FORMS for hopper in (True, False)
      for wide, divided, chunked, act in (
          ((True, True), False, True, "relu"), ((True, True), False, False, None), ((True, True), True, True, None),
          ((False, False), True, False, None), ((False, True), False, False, None))
      for form in _forms(mode, wide[0], 1, ALL_ROOM)]]
