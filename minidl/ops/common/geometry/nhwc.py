"""Images in NHWC: the primitives that have a form for them, and bfloat16, in which they may be stored.

The compiler (compiler/passes/layouts.py) puts these forms in the place of the plain primitives. An image in NHWC is an
array (n,h,w,c) of float32, or of uint16, which holds the upper 16 bits of a float32: a bfloat16. Geometries, filters,
biases, statistics and sums are as in the plain forms.
The rows of these primitives are at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..primitives import ALL, PLAIN, PRIMITIVES, Array, Primitive

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


# ---------------------------------------------------------------- the table
class Form(NamedTuple):
    """A primitive's form in NHWC: its name; for each argument of the plain primitive, and for each result, i: an image,
    or None; x: the winners of windows; -: anything else. And what the form takes, from the plain arguments and the
    precision, or None where it cannot do the case."""

    name: str
    takes: str
    gives: str
    arguments: Callable[[Arguments, str], Arguments | None] = lambda given, precision: given


def ordered(of: tuple[Any, ...]) -> tuple[Any, ...]:
    """What there is for each axis of (n,c,h,w), for those of (n,h,w,c)."""
    return tuple(of[axis] for axis in AXES)


def _convolution(*more: object) -> Callable[[Arguments, str], Arguments | None]:
    def arguments(given: Arguments, precision: str) -> Arguments | None:
        g = next(value for value in given if hasattr(value, "algorithm"))
        return (*given, *more, precision) if g.algorithm == "auto" and g.kh * g.kw <= MAX_FILTER else None
    return arguments


def _pooling(given: Arguments, precision: str) -> Arguments | None:
    g = given[-1]
    return given if g.kh * g.kw <= MAX_WINDOW else None


def _norm(given: Arguments, precision: str) -> Arguments | None:
    return given if next(value for value in given if hasattr(value, "across")).across else None


def _added(*more: object) -> Callable[[Arguments, str], Arguments | None]:
    """Of images of one shape: none is spread over another."""
    return lambda given, _: (*given, *more) if given[0].shape == given[1].shape else None


def _grad_of(act: str) -> Callable[[Arguments, str], Arguments | None]:
    return lambda given, _: (given[0], None, given[1], act)


def _of(act: str) -> Callable[[Arguments, str], Arguments | None]:
    return lambda given, _: (*given, act)


def _batch_norm(given: Arguments, precision: str) -> Arguments | None:
    x, *others = given
    return (x, None, *others, None) if given[-1].across else None


def _sliced(given: Arguments, precision: str) -> Arguments | None:
    """x[::, ::, ::, ::]; of a gradient, also the shape, which nothing is added up in. A slice stays where it is in
    memory, and kernels read 16 bytes at a time: so it, and each slice of it, begins at a multiple of 16 bytes. Where
    channels do not fill these, it begins where the image does and has all channels."""
    image, index, *more = given
    if not (isinstance(index, tuple) and all(isinstance(part, slice) for part in index)):
        return None
    index = (*index, *[slice(None)] * (4 - len(index)))
    if not more:
        all_of = [range(size) for size in image.shape]
        taken = [each[part] for each, part in zip(all_of, index, strict=True)]
        if image.shape[1] % FULL:
            fits = taken[1] == all_of[1] and not any(part.start for part in taken)
        else:
            fits = taken[1].start % FULL == 0
        return (image, ordered(index)) if fits else None
    shape, once = more
    return (image, ordered(index), ordered(shape), True) if once else None


def _padded(given: Arguments, precision: str) -> Arguments | None:
    """With zeros, which are the same bits in both types."""
    image, widths, value = given
    return (image, ordered(widths), value) if value == 0 and len(widths) == 4 else None


FORMS: dict[str, Form] = {
    "conv2d": Form("conv2d_nhwc", "i---", "i", _convolution(None)),
    "conv2d_act": Form("conv2d_nhwc", "i----", "i", _convolution()),
    "conv2d_norm": Form("conv2d_norm_nhwc", "i---------", "i", _convolution(None)),
    "conv2d_norm_act": Form("conv2d_norm_nhwc", "i----------", "i", _convolution()),
    "conv2d_grad_x": Form("conv2d_grad_x_nhwc", "i--", "i", _convolution()),
    "conv2d_grad_w": Form("conv2d_grad_w_nhwc", "ii-", "-", _convolution()),
    "conv2d_grad_b": Form("conv2d_grad_b_nhwc", "i", "-"),
    **{act: Form("act_nhwc", "i", "i", _of(act)) for act in ALL},
    **{f"{act}_grad_x": Form("act_grad_nhwc", "ii", "i", _grad_of(act)) for act in ALL},
    "add": Form("add_nhwc", "ii", "i", _added(None)),
    "add_act": Form("add_nhwc", "ii-", "i", _added()),
    "add_grad_act": Form("act_grad_nhwc", "iii-", "i", _added()),
    "max_pool2d": Form("max_pool2d_nhwc", "i-", "ix", _pooling),
    "max_pool2d_grad_x": Form("max_pool2d_grad_x_nhwc", "ix-", "i", _pooling),
    "avg_pool2d": Form("avg_pool2d_nhwc", "i-", "i"),
    "avg_pool2d_grad_x": Form("avg_pool2d_grad_x_nhwc", "i-", "i"),
    "avg_pool2d_grad_act": Form("avg_pool2d_grad_act_nhwc", "ii--", "i"),
    "batch_norm": Form("batch_norm_nhwc", "i-------", "i--", _batch_norm),
    "batch_norm_act": Form("batch_norm_nhwc", "ii--------", "i--", _norm),
    "normalize_by": Form("normalize_by_nhwc", "i------", "i", _norm),
    "normalize_grad": Form("normalize_grad_nhwc", "ii----", "i--", _norm),
    "normalize_act_grad": Form("normalize_act_grad_nhwc", "iiii-----", "ii--", _norm),
    # whose own code does for images in any order
    "getitem": Form("getitem", "i-", "i", _sliced),
    "getitem_grad_x": Form("getitem_grad_x", "i---", "i", _sliced),
    "pad": Form("pad", "i--", "i", _padded),
}

PRIMITIVES |= {
    **dict.fromkeys(("to_nhwc", "to_nchw"), PLAIN),
    **{form.name: PLAIN for form in FORMS.values() if form.name not in PRIMITIVES},
    "batch_norm_nhwc": Primitive(changes=(4, 5), effect=True, update=True),
    # what the rules of the pass join
    **dict.fromkeys(("act_grad_b_nhwc", "conv2d_grad_x_act_b_nhwc", "conv2d_grad_x_norm_nhwc",
                     "conv2d_max_pool_nhwc", "max_pool2d_grad_relu_nhwc", "max_pool2d_grad_relu_b_nhwc",
                     "normalize_again_act_grad_nhwc"), PLAIN),
    # images in NCHW, stored in bf16
    **dict.fromkeys(("conv2d_act_pool_half", "conv2d_act_pool_half_grad_wb"), PLAIN),
}
