"""Rows: what linear layers, layer normalisation and attention read, stored as images in NHWC are.

A value (..., c) as rows is an image (rows,1,1,c) of one pixel each: so a linear layer is a convolution of 1x1, and the
kernels of images in NHWC do for what follows it. Its order in memory stays as it is. As a view, a value keeps its own
shape and strides. Both are float32, or bfloat16 in uint16; see nhwc.py.
"""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType

from ..primitives import ALL, PLAIN, PRIMITIVES, Array
from . import ConvGeometry, conv_geometry
from .nhwc import AXES, BACK, FORMS, FULL, Arguments, Form

MIN_ROWS, MIN_WIDTH = 1024, 32             # of a linear layer, from which a convolution pays
MAX_NORMALISED = 1024                      # channels of a row that threads hold
MAX_HEAD = 128                             # numbers of a head of attention
PRECISIONS = "tf32", "bf16"
SAME = "same"                              # the form of a call whose result is its argument in another shape


def pixels(x: Array, w: Array) -> ConvGeometry | None:
    """The convolution that a linear layer of weight w is on the rows of x, if that pays. The hardware copies 16 bytes
    at a time, of either type."""
    return _pixels(x.shape[0], *w.shape)


def _pixels(rows: int, m: int, c: int) -> ConvGeometry | None:
    if rows < MIN_ROWS or min(m, c) < MIN_WIDTH or m % FULL or c % FULL:
        return None
    return conv_geometry((rows, c, 1, 1), (m, c, 1, 1), None, 1, 0, "auto")


def _linear(given: Arguments, precision: str) -> Arguments | None:
    """x, w, b, and an activation if there is one."""
    g = pixels(given[0], given[1]) if precision in PRECISIONS else None
    return None if g is None else (*given[:3], g, *(given[3:] or (None,)), precision)


def _linear_grad_x(given: Arguments, precision: str) -> Arguments | None:
    g = pixels(given[0], given[1]) if precision in PRECISIONS else None
    return None if g is None else (*given, g, precision)


def _linear_grad_w(given: Arguments, precision: str) -> Arguments | None:
    gy, x = given
    g = _pixels(gy.shape[0], gy.shape[1], x.shape[1]) if precision in PRECISIONS else None
    return None if g is None else (gy, x, g, precision)


def _biased(image: int) -> Callable[[Arguments, str], Arguments | None]:
    """A number for each channel is added to an image; and an activation, if there is one."""
    def arguments(given: Arguments, precision: str) -> Arguments | None:
        x, b = given[image], given[1 - image]
        return (x, b, *(given[2:] or (None,))) if getattr(b, "shape", None) == (
            1, x.shape[1], 1, 1) else None
    return arguments


def _layer_norm(given: Arguments, precision: str) -> Arguments | None:
    g = given[-1]
    fits = not g.across and g.groups == g.spread == 1 and g.channels % FULL == 0 and g.channels <= MAX_NORMALISED
    return given if fits and given[0].shape[-1] == g.channels else None


def _attention(q: int) -> Callable[[Arguments, str], Arguments | None]:
    """Of heads that the kernels take: q, k and v are the arguments from q on, and a mask."""
    def arguments(given: Arguments, precision: str) -> Arguments | None:
        widths = {each.shape[-1] for each in given[q:q + 3]}
        fits = len(widths) == 1 and min(widths) % FULL == 0 and max(widths) <= MAX_HEAD and precision in PRECISIONS
        mask = given[q + 3]
        return given if fits and (mask is None or mask.dtype == "float32") else None
    return arguments


def _turned(order: tuple[int, ...]) -> Callable[[Arguments, str], Arguments | None]:
    return lambda given, _: given if given[1] == order else None


def _basic(given: Arguments, precision: str) -> Arguments | None:
    """Indices that give views."""
    index = given[1] if isinstance(given[1], tuple) else (given[1],)
    return given if all(isinstance(part, (int, slice, EllipsisType, type(None))) and not isinstance(part, bool)
                        for part in index) else None


def _same_width(given: Arguments, precision: str) -> Arguments | None:
    x, shape = given
    return given if len(shape) > 1 and shape[-1] == x.shape[-1] else None


BIASES = {"add": (Form("add_bias_nhwc", "i-", "i", _biased(0)), Form("add_bias_nhwc", "-i", "i", _biased(1))),
          "add_act": (Form("add_bias_nhwc", "i--", "i", _biased(0)), Form("add_bias_nhwc", "-i-", "i", _biased(1)))}

# By primitive. r: rows; v: a view; i: an image; w: a matrix (m,c) as filters (m,c,1,1), or the gradient of one
ROWS: dict[str, tuple[Form, ...]] = {
    "linear": (Form("conv2d_nhwc", "rw-", "r", _linear),),
    "linear_act": (Form("conv2d_nhwc", "rw--", "r", _linear),),
    "linear_grad_x": (Form("conv2d_grad_x_nhwc", "rw", "r", _linear_grad_x),),
    "linear_grad_w": (Form("conv2d_grad_w_nhwc", "rr", "w", _linear_grad_w),),
    "linear_grad_b": (Form("conv2d_grad_b_nhwc", "r", "-"),),
    **{name: (FORMS[name]._replace(takes=FORMS[name].takes.replace("i", "r"), gives="r"), *BIASES.get(name, ()))
       for name in ("add", "add_act", "add_grad_act", *ALL, *(f"{act}_grad_x" for act in ALL))},
    "normalize": (Form("layer_norm_nhwc", "r----", "r--", _layer_norm),),
    "normalize_grad": (Form("layer_norm_grad_nhwc", "rr----", "r--",
                            lambda given, precision: (*given, None) if _layer_norm(given, precision) else None),),
    "attention": (Form("attention_stored", "vvv---", "v-", _attention(0)),),
    "attention_grad": (Form("attention_grad_stored", "vvvv-v---", "vvv", _attention(1)),),
    "reshape": (Form(SAME, "r-", "r", _same_width), Form(SAME, "v-", "v")),
    "transpose": (Form(SAME, "i-", "r", _turned(AXES)), Form(SAME, "r-", "i", _turned(BACK)),
                  Form("transpose", "v-", "v")),
    "concatenate": (Form("concatenate", "i-", "i", lambda given, _: (given[0], AXES.index(given[1]))),
                    Form("concatenate", "v-", "v")),
    "getitem": (Form("getitem", "v-", "v", _basic),),
    "getitem_grad_x": (Form("getitem_grad_x", "v---", "v", _basic),),
}

PRIMITIVES |= dict.fromkeys((
    "add_bias_nhwc", "attention_grad_stored", "attention_stored", "conv2d_transposed_nhwc", "layer_norm_grad_nhwc",
    "layer_norm_nhwc"), PLAIN)
