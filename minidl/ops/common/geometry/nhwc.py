"""Images in NHWC: the primitives that have a form for them, and bfloat16, in which they may be stored.

The compiler (compiler/passes/layouts.py) puts these forms in the place of the plain primitives, and joins them by
JOINED. An image in NHWC is an array (n,h,w,c) of float32, or of uint16, which holds the upper 16 bits of a float32: a
bfloat16. Geometries, filters, biases, statistics and sums are as in the plain forms.
A row of the table is a pattern (../patterns.py): the plain call, the form, and whether the form can do the case. On the
CPU a form is its plain call between two conversions (ops/cpu/nhwc.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..patterns import ACT, Made, Name, Rule, each_act, rule
from ..primitives import ALL, PRIMITIVES, Array, Primitive
from . import PoolGeometry

AXES = (0, 2, 3, 1)                        # which axis of (n,c,h,w) each axis of (n,h,w,c) is
BACK = (0, 3, 1, 2)
STORES: dict[str, np.dtype] = {"float32": np.dtype(np.float32), "bf16": np.dtype(np.uint16)}
C_TYPES = {STORES["float32"]: "float", STORES["bf16"]: "unsigned short"}
MAX_FILTER = 49                            # elements of a filter in one map: larger ones have better algorithms
FULL = 8                                   # channels that fill 16 bytes, of either type
MAX_WINDOW = 255                           # elements of a window whose winner a byte can name
Arguments = tuple[Any, ...]


# ---------------------------------------------------------------- bfloat16
def bf16(x: Array) -> Array:
    """float32 -> its upper 16 bits, rounded to nearest, ties to even; NaN stays NaN.

    >>> bf16(np.array([1.0, 1.00390625, -2.0], np.float32))
    array([16256, 16256, 49152], dtype=uint16)
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    return np.where(x != x, 0x7FFF, rounded).astype(np.uint16)


def widened(x: Array) -> Array:
    """An image's values as float32; bfloat16 has the same values there.

    >>> widened(np.array([16256, 49152], np.uint16))
    array([ 1., -2.], dtype=float32)
    """
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x


# ---------------------------------------------------------------- forms
class PrimitiveForm(NamedTuple):
    """A primitive's form in NHWC: its name; for each argument of the plain primitive, and for each result, i: an image,
    or None; x: the winners of windows; -: anything else. And what the form takes, from the plain arguments and the
    precision, or None if it cannot do the case."""

    name: str
    takes: str
    gives: str
    arguments: Callable[[Arguments, str], Arguments | None]


Fits = Callable[[Mapping[str, Any]], bool]             # of the values of a row's names
MADE: dict[str, Callable[..., Any]] = {}               # what rows make of values, by the name there; None: does not fit


def form_of(row: Rule, fits: Fits) -> PrimitiveForm:
    """The row's form. A value written `w.f` is not an image: filters, which products of bfloat16 round."""
    (plain,), form = row.pattern, row.fused
    roles = {name: "-" if role == "f" else role for name, role in form.roles}

    def arguments(given: Arguments, precision: str) -> Arguments | None:
        of: dict[str, Any] = dict(zip(plain.arguments, given, strict=True), precision=precision)
        if not fits(of):
            return None
        made = [of[a] if isinstance(a, Name) else MADE[a.function](*(of[name] for name in a.of))
                if isinstance(a, Made) else a for a in form.arguments]
        missing = any(m is None for m, a in zip(made, form.arguments, strict=True) if isinstance(a, Made))
        return None if missing else tuple(made)
    takes = "".join(roles.get(a, "-") if isinstance(a, Name) else "-" for a in plain.arguments)
    return PrimitiveForm(form.primitive, takes, "".join(roles.get(each, "-") for each in plain.results), arguments)


Row = tuple[str, str, Fits]                            # the plain call, the form, and whether that can do it


def read(rows: Iterable[Row]) -> list[tuple[str, PrimitiveForm]]:
    """(the plain primitive, its form) for each row; for each activation if the primitive is ACT or its gradient."""
    return [(each.pattern[0].primitive, form_of(each, fits)) for plain, form, fits in rows for each in (
        each_act(plain, form, ALL) if ACT in plain.split("(")[0] else [rule(plain, form)])]


def always(of: Mapping[str, Any]) -> bool:
    """For a form that can do every case of its plain primitive."""
    return True


def _convolution(of: Mapping[str, Any]) -> bool:
    g = of["g"]
    return g.algorithm == "auto" and g.kh * g.kw <= MAX_FILTER


def _window(of: Mapping[str, Any]) -> bool:
    return of["g"].kh * of["g"].kw <= MAX_WINDOW


def _across(of: Mapping[str, Any]) -> bool:
    return bool(of["g"].across)


def _alike(of: Mapping[str, Any]) -> bool:
    """Images of one shape: none is spread over another."""
    return bool(of["x"].shape == of["other"].shape)


def _sliced(of: Mapping[str, Any]) -> bool:
    """x[::, ::, ::, ::]. A slice stays where it is in memory, and kernels read 16 bytes at a time: so it, and each
    slice of it, must begin at a multiple of 16 bytes. If channels do not fill 16 bytes, it must begin where the image
    does and have all channels."""
    if not _by_slices(of):
        return False
    all_of = [range(size) for size in of["x"].shape]
    taken = [each[part] for each, part in zip(all_of, _of_all_axes(of["index"]), strict=True)]
    if of["x"].shape[1] % FULL:
        return taken[1] == all_of[1] and not any(part.start for part in taken)
    return taken[1].start % FULL == 0


def _by_slices(of: Mapping[str, Any]) -> bool:
    """Whether all indices are slices; for a gradient, whether nothing is added up in it, too."""
    index = of["index"]
    return isinstance(index, tuple) and all(isinstance(part, slice) for part in index) and of.get("once", True)


def _of_all_axes(index: tuple[slice, ...]) -> tuple[slice, ...]:
    return (*index, *[slice(None)] * (4 - len(index)))


def _with_zeros(of: Mapping[str, Any]) -> bool:
    """Whether the frame is zeros, which are the same bits in both types."""
    return of["value"] == 0 and len(of["widths"]) == 4


def ordered(of: tuple[Any, ...]) -> tuple[Any, ...]:
    """The entries for the axes of (n,c,h,w), in the order of (n,h,w,c)."""
    return tuple(of[axis] for axis in AXES)


def in_nhwc(g: PoolGeometry) -> PoolGeometry:
    """The same pooling of images in NHWC."""
    return g._replace(layout="NHWC")


MADE |= {"ordered": ordered, "turned": lambda index: ordered(_of_all_axes(index))}
MADE["in_nhwc"] = in_nhwc

IMAGES: tuple[Row, ...] = (
    ("y = conv2d(x, w, b, g)", "y.i = conv2d_nhwc(x.i, w.f, b, g, None, precision)", _convolution),
    ("y = conv2d_act(x, w, b, g, ACT)", "y.i = conv2d_nhwc(x.i, w.f, b, g, ACT, precision)", _convolution),
    ("y = conv2d_norm(x, w, b, g, mean, var, weight, bias, eps, sets)",
     "y.i = conv2d_norm_nhwc(x.i, w.f, b, g, mean, var, weight, bias, eps, sets, None, precision)", _convolution),
    ("y = conv2d_norm_act(x, w, b, g, mean, var, weight, bias, eps, sets, ACT)",
     "y.i = conv2d_norm_nhwc(x.i, w.f, b, g, mean, var, weight, bias, eps, sets, ACT, precision)", _convolution),
    ("gx = conv2d_grad_x(gy, w, g)", "gx.i = conv2d_grad_x_nhwc(gy.i, w.f, g, precision)", _convolution),
    ("gw = conv2d_grad_w(gy, x, g)", "gw = conv2d_grad_w_nhwc(gy.i, x.i, g, precision)", _convolution),
    ("gb = conv2d_grad_b(gy)", "gb = conv2d_grad_b_nhwc(gy.i)", always),
    ("y = ACT(x)", "y.i = act_nhwc(x.i, ACT)", always),
    ("gx = ACT_grad_x(gy, y)", "gx.i = act_grad_nhwc(gy.i, None, y.i, ACT)", always),
    ("y = add(x, other)", "y.i = add_nhwc(x.i, other.i, None)", _alike),
    ("y = add_act(x, other, ACT)", "y.i = add_nhwc(x.i, other.i, ACT)", _alike),
    ("gx = add_grad_act(x, other, y, ACT)", "gx.i = act_grad_nhwc(x.i, other.i, y.i, ACT)", _alike),
    ("y, index = max_pool2d(x, g)", "y.i, index.x = max_pool2d(x.i, in_nhwc(g))", _window),
    ("gx = max_pool2d_grad_x(gy, index, g)", "gx.i = max_pool2d_grad_x(gy.i, index.x, in_nhwc(g))", _window),
    ("y = avg_pool2d(x, g)", "y.i = avg_pool2d(x.i, in_nhwc(g))", always),
    ("gx = avg_pool2d_grad_x(gy, g)", "gx.i = avg_pool2d_grad_x(gy.i, in_nhwc(g))", always),
    ("gx = avg_pool2d_grad_act(gy, y, g, ACT)", "gx.i = avg_pool2d_grad_act(gy.i, y.i, in_nhwc(g), ACT)", always),
    ("y, mean, rstd = batch_norm(x, w, b, running_mean, running_var, momentum, eps, g)",
     "y.i, mean, rstd = batch_norm_nhwc(x.i, None, w, b, running_mean, running_var, momentum, eps, g, None)",
     _across),
    ("y, mean, rstd = batch_norm_act(x, other, w, b, running_mean, running_var, momentum, eps, g, ACT)",
     "y.i, mean, rstd = batch_norm_nhwc(x.i, other.i, w, b, running_mean, running_var, momentum, eps, g, ACT)",
     _across),
    ("y = normalize_by(x, mean, var, w, b, eps, g)", "y.i = normalize_by_nhwc(x.i, mean, var, w, b, eps, g)",
     _across),
    ("gx, gw, gb = normalize_grad(gy, x, w, mean, rstd, g)",
     "gx.i, gw, gb = normalize_grad_nhwc(gy.i, x.i, w, mean, rstd, g)", _across),
    ("gz, gx, gw, gb = normalize_act_grad(gy, other, y, x, w, mean, rstd, g, ACT)",
     "gz.i, gx.i, gw, gb = normalize_act_grad_nhwc(gy.i, other.i, y.i, x.i, w, mean, rstd, g, ACT)", _across),
    # primitives whose own code works for images in any order
    ("y = getitem(x, index)", "y.i = getitem(x.i, turned(index))", _sliced),
    ("gx = getitem_grad_x(gy, index, shape, once)", "gx.i = getitem_grad_x(gy.i, turned(index), ordered(shape), True)",
     _by_slices),
    ("y = pad(x, widths, value)", "y.i = pad(x.i, ordered(widths), value)", _with_zeros),
)
FORMS: dict[str, PrimitiveForm] = dict(read(IMAGES))

# ---------------------------------------------------------------- what forms are joined to
JOINED: tuple[Rule, ...] = (
    rule("""
        gz = act_grad_nhwc(gy, other, y, act)
        db = conv2d_grad_b_nhwc(gz)
        """, "gz, db = act_grad_b_nhwc(gy, other, y, act)"),
    rule("""
        gz = max_pool2d_grad_relu(gy, index, y, g)
        db = conv2d_grad_b_nhwc(gz)
        """, "gz, db = max_pool2d_grad_relu_b(gy, index, y, g)"),
    rule("""
        y = conv2d_nhwc(x, w, b, g, act, precision)
        p, index = max_pool2d(y, pooling)
        """, "p, index = conv2d_max_pool_nhwc(x, w, b, g, act, precision, pooling)"),
    *[each for both in ("dx, other", "other, dx") for each in (
        rule(f"""
            dx = conv2d_grad_x_nhwc(gy, w, g, precision)
            gz, db = act_grad_b_nhwc({both}, y, act)
            """, "gz, db = conv2d_grad_x_act_b_nhwc(gy, w, g, precision, other, y, act)"),
        rule(f"""
            dx = conv2d_grad_x_nhwc(gy, w, g, precision)
            gz, gx, gw, gb = normalize_act_grad_nhwc({both}, y, x, weight, mean, rstd, sets, act)
            """, "gz, gx, gw, gb = "
                 "conv2d_grad_x_norm_nhwc(gy, w, g, precision, other, y, x, weight, mean, rstd, sets, act)"))],
    rule("""
        y = conv2d_grad_x_nhwc(x, w, g, precision)
        z = add_bias_nhwc(y, b, act)
        """, "z = conv2d_transposed_nhwc(x, w, b, g, act, precision)"),
    *[rule(f"""
        gx, gw, gb = layer_norm_grad_nhwc(gy, x, w, mean, rstd, g, None)
        z = add_nhwc({both}, None)
        """, "z, gw, gb = layer_norm_grad_nhwc(gy, x, w, mean, rstd, g, other)")
      for both in ("gx, other", "other, gx")],
)
# The pass joins these if the maxima are of the same relu: it passes a winner's gradient if the winner is above 0
AT_MAXIMA = rule("""
    gz = act_grad_nhwc(gy, None, y, 'relu')
    gx = max_pool2d_grad_x(gz, index, g)
    """, "gx = max_pool2d_grad_relu(gy, index, y, g)")

# What passes make by looking further than a pattern does: an activation's gradient by values normalised again; and
# h: images in NCHW, stored in bf16 (compiler/passes/halves.py)
FURTHER: tuple[Rule, ...] = (
    rule("""
        z = normalized(x, mean, rstd, w, b, g)
        gz, gx, gw, gb = normalize_act_grad(gy, other, z, x, w, mean, rstd, g, ACT)
        """, "gz.i, gx.i, gw, gb = "
             "normalize_again_act_grad_nhwc(gy.i, other.i, x.i, w, b, mean, rstd, g, ACT)"),
    rule("y, p = conv2d_act_pool(x, w, b, g, ACT, pooling)",
         "y.h, p = conv2d_act_pool_half(x, w, b, g, ACT, pooling)"),
    rule("dw, db = conv2d_act_pool_grad_wb(gp, y, x, g, ACT, pooling)",
         "dw, db = conv2d_act_pool_half_grad_wb(gp, y.h, x, g, ACT, pooling)"),
)

PRIMITIVES["batch_norm_nhwc"] = Primitive(changes=(4, 5), effect=True, update=True)
