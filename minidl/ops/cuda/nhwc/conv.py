"""Launcher of conv.cu: convolution of images in NHWC, and the gradient of its image, on tensor cores."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import cupy
import numpy as np

from ...common.geometry import ConvGeometry
from .. import launch
from ..linear.tile import MODES
from .pixels import C_TYPES

FILE = "nhwc/conv.cu"
MIN_COMPILER = 12, 9                       # NVRTC: older ones refuse the architecture that has wgmma


class Form(NamedTuple):
    """A block's tile, tall * 128 pixels by so many filters; stages of shared memory; blocks of a multiprocessor; and
    what a product costs, relative to the best form's."""

    tall: int
    filters: int
    stages: int
    blocks: int
    cost: float


# By PRECISION
FORMS = {
    "BF16": (Form(2, 128, 4, 1, 1.0), Form(1, 128, 3, 2, 1.08), Form(1, 256, 4, 1, 1.0), Form(1, 64, 4, 2, 1.3)),
    "TF32": (Form(2, 128, 4, 1, 1.0), Form(1, 128, 3, 2, 1.08), Form(1, 256, 4, 1, 1.0), Form(1, 64, 4, 2, 1.3)),
    "TF32X3": (Form(1, 128, 3, 1, 1.0), Form(1, 64, 4, 1, 1.2), Form(1, 64, 3, 1, 1.3)),
}


class Plan(NamedTuple):
    """The launches of a shape: of the filters' packing, and of the product."""

    pack: Callable[..., None]
    product: Callable[..., None]
    packed: tuple[int, ...]
    y: tuple[int, ...]
    struct: bytes


def _constants(form: Form, dtype: np.dtype, mode: str, wide: tuple[bool, bool], divided: bool, chunked: bool,
               act: str | None = None, hopper: bool = True) -> tuple[launch.Constant, ...]:
    blocks = form.blocks if wide[0] or not (divided or form.filters > 64) else 1           # for want of registers
    return (*[launch.HOPPER][:hopper], ("IMAGE", C_TYPES[dtype]), ("PRECISION", mode), ("FILTERS", form.filters),
            ("TALL", form.tall), ("STAGES", form.stages), ("BLOCKS", blocks), ("WIDE", int(wide[0])),
            ("WIDE_Y", int(wide[1])), ("CHUNKED", int(chunked)), ("DIVIDED", int(divided)),
            *((("ACT", act), ("AFTER", 1)) if act else ()))


def _shared(form: Form, mode: str, slabs: int) -> int:
    """Bytes, as the kernel lays them out."""
    return min(form.stages, slabs) * (2 if mode == "TF32X3" else 1) * (128 * form.tall + form.filters) * 128


def _forms(mode: str, wide: bool, slabs: int, room: int) -> list[Form]:
    """Those for channels that are copied 16 bytes at once, or one by one, which takes registers for what is read; and
    whose slabs fit into so many bytes of shared memory."""
    return [form for form in FORMS[mode] if (wide or form.tall == 1) and _shared(form, mode, slabs) <= room]


def _cheapest(forms: list[Form], pixels: int, filters: int) -> Form:
    """The form in which a multiprocessor's tiles take the least time."""
    def cost(form: Form) -> float:
        tiles = launch.blocks(pixels, 128 * form.tall) * launch.blocks(filters, form.filters)
        return launch.blocks(tiles, launch.multiprocessors()) * form.tall * form.filters * form.cost
    return min(forms, key=cost)


@functools.lru_cache(maxsize=1024)
def _plan(back: bool, g: ConvGeometry, dtype: np.dtype, mode: str, aligned: bool, act: str | None,
          form: Form | None) -> Plan:
    if back:
        sizes = {"c": g.m, "h": g.oh, "w": g.ow, "m": g.c, "oh": g.h, "ow": g.w, "sh": 1, "sw": 1,
                 "top": g.kh - 1 - g.top, "left": g.kw - 1 - g.left, "divided_h": g.sh, "divided_w": g.sw}
    else:
        sizes = {"c": g.c, "h": g.h, "w": g.w, "m": g.m, "oh": g.oh, "ow": g.ow, "divided_h": 1, "divided_w": 1}
    c, m, pixels = sizes["c"], sizes["m"], g.n * sizes["oh"] * sizes["ow"]
    each, parts = 16 // dtype.itemsize, 2 if mode == "TF32X3" else 1
    wide = c % each == 0 and aligned, m % each == 0
    slabs = launch.blocks(g.kh * g.kw * c, 8 * each)
    forms = [form] if form else _forms(mode, wide[0], slabs, launch.most_shared())
    if not forms:
        raise ValueError(f"conv2d_nhwc: sums of {g.kh * g.kw * c} terms in {mode} take "
                         f"{min(_shared(form, mode, slabs) for form in FORMS[mode])} bytes of shared memory but a "
                         f"block has {launch.most_shared()}; use another precision, or images in NCHW")
    form = _cheapest(forms, pixels, m)
    sums, filters = slabs * 8 * each, launch.blocks(m, form.filters) * form.filters
    divided = back and (g.sh, g.sw) != (1, 1)
    hopper = launch.compute_capability() == 90 and launch.compiler_version() >= MIN_COMPILER
    constants = _constants(form, dtype, mode, wide, divided, wide[0] and c % (8 * each) == 0, act, hopper)
    width = c + sums - g.kh * g.kw * c
    return Plan(
        launch.kernel(FILE, "conv_nhwc_pack", *constants).sized((launch.spread(filters * width),), (launch.THREADS,)),
        launch.kernel(FILE, "conv_nhwc", *constants).sized(
            (launch.blocks(pixels, 128 * form.tall) * (filters // form.filters),), (256,),
            _shared(form, mode, slabs)),
        (parts, filters, sums), (g.n, sizes["oh"], sizes["ow"], m),
        launch.by_value("ConvNhwc", g, sum=sums, filters=filters, **sizes))


def _run(name: str, back: bool, x: cupy.ndarray, w: cupy.ndarray, b: Any, g: ConvGeometry, act: str | None,
         precision: str, form: Form | None) -> cupy.ndarray:
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
    x = cupy.ascontiguousarray(x)
    mode = "BF16" if x.dtype == np.uint16 else "TF32" if precision == "bf16" else MODES[precision]
    plan = _plan(back, g, x.dtype, mode, x.data.ptr % 16 == 0, act, form)
    y, packed = launch.empty(plan.y, x.dtype), launch.empty(plan.packed, x.dtype)
    if y.size:
        plan.pack(w, packed, plan.struct, int(back))
        plan.product(x, packed, b, y, plan.struct)
    return y


def y(x: cupy.ndarray, w: cupy.ndarray, b: cupy.ndarray | None, g: ConvGeometry, act: str | None = None, *,
      precision: str, form: Form | None = None) -> cupy.ndarray:
    """act(conv2d(x) + b), or without act: (n,oh,ow,m) of x's type, from x (n,h,w,c) in float32, or bf16 as uint16.

    w (m,c,kh,kw) and b are float32. precision: "tf32", "3xtf32" or "bf16"; products of bf16 images are in bf16, and
    those of float32 images never are, but in tf32. form: in place of what the launcher finds cheapest.
    """
    return _run("conv2d_nhwc", False, x, w, b, g, act, precision, form)


def grad_x(dy: cupy.ndarray, w: cupy.ndarray, g: ConvGeometry, *, precision: str,
           form: Form | None = None) -> cupy.ndarray:
    """The gradient of y by x, (n,h,w,c) of dy's type, from dy (n,oh,ow,m): see y."""
    return _run("conv2d_grad_x_nhwc", True, dy, w, None, g, None, precision, form)


FLOAT, HALF = np.dtype(np.float32), np.dtype(np.uint16)
ALL_ROOM = 1 << 30
# Each form with wide copies; then elements one by one, divided positions, an activation; with wgmma and with mma
CONFIGURATIONS = [
    (FILE, _constants(form, HALF if mode == "BF16" else FLOAT, mode, wide, divided, chunked, act, hopper))
    for mode in FORMS for hopper in (True, False)
    for wide, divided, chunked, act in (
        ((True, True), False, True, "relu"), ((True, True), False, False, None), ((True, True), True, True, None),
        ((False, False), True, False, None), ((False, True), False, False, None))
    for form in _forms(mode, wide[0], 1, ALL_ROOM)]
