"""Rows: what linear layers, layer normalisation and attention read, stored like images in NHWC.

A value (..., c) as rows is an image (rows,1,1,c) of one pixel each: so a linear layer is a convolution of 1x1, and the
kernels of images in NHWC work for what follows it. Its order in memory stays as it is. As a view, a value keeps its own
shape and strides. Both are float32, or bfloat16 in uint16; see nhwc.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import EllipsisType
from typing import Any

from ..patterns import Made, Rule, rule
from ..primitives import Array
from . import ConvGeometry, conv_geometry
from .nhwc import AT_MAXIMA, AXES, BACK, FULL, FURTHER, IMAGES, JOINED, MADE, Fits, PrimitiveForm, Row, always, read

MIN_ROWS, MIN_WIDTH = 1024, 32             # of a linear layer, from which a convolution pays
MAX_NORMALISED = 1024                      # channels of a row that threads hold
MAX_HEAD = 128                             # numbers of a head of attention
PRECISIONS = "tf32", "bf16"
ANY_ORDER = "getitem", "getitem_grad_x", "pad", "transpose", "concatenate"     # whose own code works for images too
SAME = "same"                              # the form of a call whose result is its argument in another shape


def pixels(x: Array, w: Array) -> ConvGeometry | None:
    """The convolution that a linear layer of weight w is on the rows of x, if that pays. The hardware copies 16 bytes
    at a time, of either type."""
    return _pixels(x.shape[0], *w.shape)


def _pixels(rows: int, m: int, c: int) -> ConvGeometry | None:
    if rows < MIN_ROWS or min(m, c) < MIN_WIDTH or m % FULL or c % FULL:
        return None
    return conv_geometry((rows, c, 1, 1), (m, c, 1, 1), None, 1, 0, "auto")


def _products(of: Mapping[str, Any]) -> bool:
    return of["precision"] in PRECISIONS


def _grad_pixels(gy: Array, x: Array) -> ConvGeometry | None:
    return _pixels(gy.shape[0], gy.shape[1], x.shape[1])


def _bias(of: Mapping[str, Any]) -> bool:
    """Whether b is a number for each channel of an image."""
    return getattr(of["b"], "shape", None) == (1, of["x"].shape[1], 1, 1)


def _layer_norm(of: Mapping[str, Any]) -> bool:
    g = of["g"]
    fits = not g.across and g.groups == g.spread == 1 and g.channels % FULL == 0 and g.channels <= MAX_NORMALISED
    return bool(fits and of["x"].shape[-1] == g.channels)


def _attention(of: Mapping[str, Any]) -> bool:
    """Whether the kernels take these heads."""
    widths, mask = {of[each].shape[-1] for each in "qkv"}, of["mask"]
    fits = len(widths) == 1 and min(widths) % FULL == 0 and max(widths) <= MAX_HEAD and of["precision"] in PRECISIONS
    return fits and (mask is None or mask.dtype == "float32")


def _turned(*order: int) -> Fits:
    return lambda of: bool(of["order"] == order)


def _basic(of: Mapping[str, Any]) -> bool:
    """Whether the index gives a view."""
    index = of["index"] if isinstance(of["index"], tuple) else (of["index"],)
    return all(isinstance(part, (int, slice, EllipsisType, type(None))) and not isinstance(part, bool)
               for part in index)


def _same_width(of: Mapping[str, Any]) -> bool:
    return len(of["shape"]) > 1 and of["shape"][-1] == of["x"].shape[-1]


MADE |= {"pixels": pixels, "grad_pixels": _grad_pixels, "axis_there": AXES.index}

# r: rows; v: a view; i: an image; w: a matrix (m,c) as filters (m,c,1,1), or the gradient of one
TABLE: tuple[Row, ...] = (
    ("y = linear(x, w, b)", "y.r = conv2d_nhwc(x.r, w.w, b, pixels(x, w), None, precision)", _products),
    ("y = linear_act(x, w, b, ACT)", "y.r = conv2d_nhwc(x.r, w.w, b, pixels(x, w), ACT, precision)", _products),
    ("gx = linear_grad_x(gy, w)", "gx.r = conv2d_grad_x_nhwc(gy.r, w.w, pixels(gy, w), precision)", _products),
    ("gw = linear_grad_w(gy, x)", "gw.w = conv2d_grad_w_nhwc(gy.r, x.r, grad_pixels(gy, x), precision)", _products),
    ("gb = linear_grad_b(gy)", "gb = conv2d_grad_b_nhwc(gy.r)", always),
    *((plain, re.sub(r"\.i\b", ".r", form), fits) for plain, form, fits in IMAGES
      if form.split(" = ")[1].startswith(("act_nhwc", "act_grad_nhwc", "add_nhwc"))),
    *((f"y = {name}({both}{act})", f"y.i = add_bias_nhwc(x.i, b{act or ', None'})", _bias)
      for name, act in (("add", ""), ("add_act", ", ACT")) for both in ("x, b", "b, x")),
    ("y, mean, rstd = normalize(x, w, b, eps, g)", "y.r, mean, rstd = layer_norm_nhwc(x.r, w, b, eps, g)",
     _layer_norm),
    ("gx, gw, gb = normalize_grad(gy, x, w, mean, rstd, g)",
     "gx.r, gw, gb = layer_norm_grad_nhwc(gy.r, x.r, w, mean, rstd, g, None)", _layer_norm),
    ("o, sums = attention(q, k, v, mask, causal, scale)",
     "o.v, sums = attention_stored(q.v, k.v, v.v, mask, causal, scale)", _attention),
    ("gq, gk, gv = attention_grad(go, q, k, v, mask, o, sums, causal, scale)",
     "gq.v, gk.v, gv.v = attention_grad_stored(go.v, q.v, k.v, v.v, mask, o.v, sums, causal, scale)", _attention),
    ("y = reshape(x, shape)", "y.r = same(x.r, shape)", _same_width),
    ("y = reshape(x, shape)", "y.v = same(x.v, shape)", always),
    ("y = transpose(x, order)", "y.r = same(x.i, order)", _turned(*AXES)),
    ("y = transpose(x, order)", "y.i = same(x.r, order)", _turned(*BACK)),
    ("y = transpose(x, order)", "y.v = transpose(x.v, order)", always),
    ("y = concatenate(x, axis)", "y.i = concatenate(x.i, axis_there(axis))", always),
    ("y = concatenate(x, axis)", "y.v = concatenate(x.v, axis)", always),
    ("y = getitem(x, index)", "y.v = getitem(x.v, index)", _basic),
    ("gx = getitem_grad_x(gy, index, shape, once)", "gx.v = getitem_grad_x(gy.v, index, shape, once)", _basic),
)
ROWS: dict[str, list[PrimitiveForm]] = {}           # by primitive
for _primitive, _form in read(TABLE):
    ROWS.setdefault(_primitive, []).append(_form)

# What each form computes, and each call that passes make of forms; the same of forms that are their plain calls with
# another layout in the geometry
COMPUTED: dict[str, list[Rule]] = {}
LAID_OUT: dict[str, list[Rule]] = {}
for _rule in (*(rule(plain, form) for plain, form, _ in (*IMAGES, *TABLE)), *FURTHER, AT_MAXIMA, *JOINED):
    _fused, _makes = _rule.fused, {a.function for a in _rule.fused.arguments if isinstance(a, Made)}
    if _makes == {"in_nhwc"}:
        _own = tuple(a.of[0] if isinstance(a, Made) else a for a in _fused.arguments)
        LAID_OUT.setdefault(_fused.primitive, []).append(replace(_rule, fused=replace(_fused, arguments=_own)))
    elif _fused.primitive not in {SAME, *ANY_ORDER} and not _makes:
        COMPUTED.setdefault(_fused.primitive, []).append(_rule)
