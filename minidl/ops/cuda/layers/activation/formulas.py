"""Elementwise functions and arithmetic of floating numbers in one launch; formulas.cu has them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import cupy
import numpy as np

from ....common import choice, shared
from ....common.primitives import Array
from ... import launch
from ...indexing.copies import copy_into

__all__ = [
    "abs", "add", "cast", "ceil", "clip", "clip_grad_x", "cos", "div", "eq", "erf", "exp", "expm1", "floor", "ge", "gt",
    "le", "log", "log1p", "lt", "maximum", "minimum", "mul", "ne", "neg", "pow", "pow_grad_p", "pow_grad_x", "round",
    "rsqrt", "rsqrt_grad_x", "sign", "sin", "sqrt", "sub",
]

FILE = "layers/activation/formulas.cu"
POWERS: dict[float, str] = {2: "squared", 3: "cubed"}      # exponents whose powers are products, as PyTorch has them
QUESTIONS = "greater", "greater_equal", "less", "less_equal", "equal", "unequal"
FORMULAS = (*POWERS.values(), *QUESTIONS, "absolute", "bounded", "bounded_grad", "cosine", "difference",
            "error_function", "exponential", "exponential_less_1", "larger", "logarithm", "logarithm_of_1_more",
            "negative", "over_root", "over_root_grad", "power_derivative", "power_derivative_p", "power_grad",
            "product", "quotient", "root", "rounded", "rounded_down", "rounded_up", "sign", "sine", "smaller", "sum")
OF_FLOATS = "power_grad", "power_derivative", "sine", "cosine"     # of float32 alone: of doubles they call a function
MAX_INT = 1 << 53                          # of a plain number: all to there are doubles


def _constants(name: str, dtype: np.dtype, wide: bool) -> tuple[launch.Constant, ...]:
    result = "unsigned char" if name in QUESTIONS else launch.C_NAME[dtype]
    return launch.real(dtype), ("FORMULA", name), ("RESULT", result), ("WIDE", int(wide))


CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, _constants(name, dtype, wide)) for dtype in launch.C_NAME
    for wide, names in ((True, FORMULAS), (False, ("quotient", "unequal"))) for name in names
    if dtype == np.float32 or name not in OF_FLOATS]


@functools.lru_cache(maxsize=4096)
def _start(name: str, size: int, dtype: np.dtype, wide: bool) -> Callable[..., None]:
    runs = size * dtype.itemsize // 16 if wide else size
    return launch.kernel(FILE, "formula", *_constants(name, dtype, wide)).sized(
        (launch.spread(runs),), (launch.THREADS,))


def _formula(name: str, x: cupy.ndarray | None, z: cupy.ndarray | None = None, p: float = 0.0, q: float = 0.0,
             out: cupy.ndarray | None = None) -> Array:
    """A new array from one or two of one shape and two numbers, or `out`, which may be one of them and has their order
    in memory (`_lies`). The result has the order in memory that all arrays have, if they have one."""
    if out is not None and any(a is not None and a.data.ptr != out.data.ptr and np.may_share_memory(a, out)
                               for a in (x, z)):
        out[...] = _formula(name, x, z, p, q)
        return out
    given: list[cupy.ndarray] = [a for a in (x, z, out) if a is not None]
    first = given[0]
    order = launch.one_order(given)
    if order:
        x, z = (None if a is None else a.transpose(order) for a in (x, z))
    dtype = np.dtype(np.bool_) if name in QUESTIONS else first.dtype
    if out is None:
        memory = launch.fresh(tuple(first.shape[a] for a in order) if order else first.shape, dtype)
    else:
        memory = out.transpose(order) if order else out
    wide = all(a is None or a.data.ptr % 16 == 0 for a in (x, z, memory))
    _start(name, first.size, first.dtype, wide)(
        x, z, p, q, memory.view(np.uint8) if dtype == np.bool_ else memory, first.size)
    if out is not None:
        return out
    return memory.transpose(np.argsort(order).tolist()) if order else memory


def _goes(*values: Array | float) -> bool:
    """Whether the kernels do this: of arrays of one shape and floating dtype, and plain numbers."""
    arrays = [value for value in values if isinstance(value, cupy.ndarray)]
    first = arrays[0]
    return first.dtype in launch.C_NAME and first.size <= launch.MAX_ELEMENTS and all(
        (value.shape == first.shape and value.dtype == first.dtype) if isinstance(value, cupy.ndarray) else
        type(value) in (float, bool) or (type(value) is int and -MAX_INT <= value <= MAX_INT) for value in values)


def _lies(out: cupy.ndarray | None, *given: Array | float) -> bool:
    """Whether the kernels can write to out: it needs memory without gaps, in the order that all arrays have. CuPy's
    kernels write to any out."""
    if out is None:
        return True
    arrays = [out, *(each for each in given if isinstance(each, cupy.ndarray))]
    return all(each._c_contiguous for each in arrays) or launch.one_order(arrays) is not None


def _lying_as(out: cupy.ndarray, x: Array) -> Array:
    """x in out's order in memory; x itself if it is a number or has out's strides."""
    if not isinstance(x, cupy.ndarray) or x.strides == out.strides:
        return x
    order = sorted(range(out.ndim), key=lambda axis: -out.strides[axis])
    y = launch.fresh(tuple(out.shape[axis] for axis in order), x.dtype)
    copy_into([(y, x.transpose(order))])
    return y.transpose(np.argsort(order).tolist())


def _two(name: str, x: Array, y: Array, out: Array | None = None) -> Array:
    """Numbers take an array's place: the first p, the second q."""
    one, two = isinstance(x, cupy.ndarray), isinstance(y, cupy.ndarray)
    return _formula(name, x if one else None, y if two else None, 0.0 if one else float(x),
                    0.0 if two else float(y), out)


def _of_one(name: str, other: Callable[..., Array]) -> Callable[..., Array]:
    def primitive(x: Array, out: Array | None = None) -> Array:
        there = _goes(x) and _lies(out, x) and (x.dtype == np.float32 or name not in OF_FLOATS)
        return _formula(name, x, out=out) if there else other(x, out=out)
    return primitive


def _of_two(name: str, other: Callable[..., Array]) -> Callable[..., Array]:
    def primitive(x: Array, y: Array, out: Array | None = None) -> Array:
        if not _goes(x, y):
            return other(x, y, out=out)
        if out is not None and not _lies(out, x, y) and _lies(out, out):
            x, y = _lying_as(out, x), _lying_as(out, y)
        return _two(name, x, y, out) if _lies(out, x, y) else other(x, y, out=out)
    return primitive


exp, log, sqrt = _of_one("exponential", shared.exp), _of_one("logarithm", shared.log), _of_one("root", shared.sqrt)
neg, abs = _of_one("negative", shared.neg), _of_one("absolute", choice.abs)
sign = _of_one("sign", choice.sign)
sin, cos = _of_one("sine", choice.sin), _of_one("cosine", choice.cos)
log1p, expm1 = _of_one("logarithm_of_1_more", choice.log1p), _of_one("exponential_less_1", choice.expm1)
floor, ceil = _of_one("rounded_down", choice.floor), _of_one("rounded_up", choice.ceil)
round = _of_one("rounded", choice.round)
add, sub = _of_two("sum", shared.add), _of_two("difference", shared.sub)
mul, div = _of_two("product", shared.mul), _of_two("quotient", shared.div)
maximum, minimum = _of_two("larger", choice.maximum), _of_two("smaller", choice.minimum)
gt, ge = _of_two("greater", shared.gt), _of_two("greater_equal", shared.ge)
lt, le = _of_two("less", shared.lt), _of_two("less_equal", shared.le)
eq, ne = _of_two("equal", shared.eq), _of_two("unequal", shared.ne)


def pow(x: Array, p: Array | float, out: Array | None = None) -> Array:
    """x ** p; CuPy computes even a square by logarithms."""
    if isinstance(p, (int, float)) and p in POWERS and _goes(x) and _lies(out, x):
        return _formula(POWERS[p], x, out=out)
    return np.power(x, p, out=out)


def pow_grad_x(gy: Array, x: Array, p: Array) -> Array:
    """As ops.common.shared.pow_grad_x."""
    if not _goes(x, p) or gy.dtype != np.float32:
        return shared.pow_grad_x(gy, x, p)
    if not isinstance(p, cupy.ndarray) and p != 0 and _goes(gy, x):
        return _formula("power_grad", gy, x, float(p), float(p) - 1)
    return mul(gy, _two("power_derivative", x, p))


def pow_grad_p(gy: Array, x: Array, y: Array) -> Array:
    """As ops.common.shared.pow_grad_p."""
    return mul(gy, _two("power_derivative_p", x, y)) if _goes(x, y) else shared.pow_grad_p(gy, x, y)


def clip(x: Array, low: float | None, high: float | None, out: Array | None = None) -> Array:
    if not (_goes(x) and _lies(out, x)):
        ordered = low is not None and high is not None and low <= high          # of others, CuPy's takes `low` last
        return cupy.clip(x, low, high, out=out) if ordered else choice.clip(x, low, high, out)
    return _formula("bounded", x, None, -math.inf if low is None else low, math.inf if high is None else high, out)


def cast(x: Array, dtype: str) -> Array:
    """In the order in memory that x has, if it has no gaps."""
    order = launch.one_order([x])
    if order is None:
        return choice.cast(x, dtype)
    return choice.cast(x.transpose(order), dtype).transpose(np.argsort(order).tolist())


def clip_grad_x(gy: Array, x: Array, low: float | None, high: float | None) -> Array:
    return _formula("bounded_grad", gy, x, -math.inf if low is None else low, math.inf if high is None else high)


def erf(x: Array) -> Array:
    return _formula("error_function", x)


def rsqrt(x: Array) -> Array:
    return _formula("over_root", x)


def rsqrt_grad_x(gy: Array, y: Array) -> Array:
    return _formula("over_root_grad", gy, y)
