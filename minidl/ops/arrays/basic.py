"""Arithmetic, comparisons and reductions."""

from __future__ import annotations

import math

import numpy as np

from ...core.tensor import Tensor
from ..common.geometry import cached
from ..common.op import op
from ..layers.activation import one_axis

__all__ = [
    "add", "argmax", "div", "eq", "exp", "ge", "gt", "le", "log", "lt", "matmul", "max", "mean", "mul", "ne",
    "neg", "pow", "rsqrt", "sqrt", "sub", "sum",
]

Axis = int | tuple[int, ...] | list[int] | None
Number = Tensor | float | np.number        # of either: a Tensor, or a plain number


# ---------------------------------------------------------------- geometry: shapes in, shapes or errors out
def _shape(x: object) -> tuple[int, ...]:
    """The shape of an array; () for a plain number."""
    return getattr(x, "shape", ())


def _broadcast(name: str, xs: tuple[int, ...], ys: tuple[int, ...]) -> None:
    if xs == ys or not xs or not ys:
        return
    try:
        np.broadcast_shapes(xs, ys)
    except ValueError:
        raise ValueError(f"{name}: shapes {xs} and {ys} do not broadcast; from the right, sizes must be equal "
                         "or 1, see .reshape()") from None


@cached
def _axes(name: str, shape: tuple[int, ...], axis: Axis) -> tuple[int, ...]:
    """The reduced axes as a sorted tuple of non-negative ints."""
    if axis is None:
        return tuple(range(len(shape)))
    axes = tuple(sorted(one_axis(name, shape, a) for a in (axis if isinstance(axis, (tuple, list)) else (axis,))))
    if len(set(axes)) < len(axes):
        raise ValueError(f"{name}: axis {axis} names one axis of shape {shape} twice; name each once")
    return axes


def _adds(name: str, dtype: np.dtype) -> bool:
    """Whether numbers are added up in their own dtype: floating ones and int64 are; others as int64, as in PyTorch."""
    if dtype == np.uint64:
        raise TypeError(f"{name}: the input has dtype uint64, whose sums int64 may not hold; convert it with "
                        ".to(dtype='int64') or .to(dtype='float64')")
    return dtype.kind == "f" or dtype == np.int64


# ---------------------------------------------------------------- arithmetic
@op(numbers=True)
def add(k, x: Number, y: Number):
    """x + y, broadcast.

    >>> add(Tensor([1.0, 2.0]), 1)
    Tensor([2., 3.], shape=(2,), dtype=float32, device=cpu)
    """
    xs, ys = _shape(x), _shape(y)
    _broadcast("add", xs, ys)

    def backward(gy, need):
        return (k.sum_to(gy, xs) if need[0] else None,
                k.sum_to(gy, ys) if need[1] else None)
    return k.add(x, y), backward


@op(numbers=True)
def sub(k, x: Number, y: Number):
    """x - y, broadcast."""
    xs, ys = _shape(x), _shape(y)
    _broadcast("sub", xs, ys)

    def backward(gy, need):
        return (k.sum_to(gy, xs) if need[0] else None,
                k.sum_to(k.neg(gy), ys) if need[1] else None)
    return k.sub(x, y), backward


@op(numbers=True)
def mul(k, x: Number, y: Number):
    """x * y, elementwise, broadcast."""
    xs, ys = _shape(x), _shape(y)
    _broadcast("mul", xs, ys)

    def backward(gy, need):
        return (k.sum_to(k.mul(gy, y), xs) if need[0] else None,
                k.sum_to(k.mul(gy, x), ys) if need[1] else None)
    return k.mul(x, y), backward


@op(numbers=True)
def div(k, x: Number, y: Number):
    """x / y, elementwise, broadcast."""
    xs, ys = _shape(x), _shape(y)
    _broadcast("div", xs, ys)
    q = k.div(x, y)

    def backward(gy, need):
        gx = k.div(gy, y)
        return (k.sum_to(gx, xs) if need[0] else None,
                k.sum_to(k.neg(k.mul(gx, q)), ys) if need[1] else None)
    return q, backward


@op(numbers=True)
def pow(k, x: Number, p: Number):
    """x ** p, elementwise, broadcast. At x = 0 the gradient is p x^(p-1), and 0 for p = 0."""
    xs, ps = _shape(x), _shape(p)
    _broadcast("pow", xs, ps)
    y = k.pow(x, p)

    def backward(gy, need):
        return (k.sum_to(k.pow_grad_x(gy, x, p), xs) if need[0] else None,
                k.sum_to(k.pow_grad_p(gy, x, y), ps) if need[1] else None)
    return y, backward


@op
def neg(k, x: Tensor):
    """-x."""
    return k.neg(x), lambda gy, need: (k.neg(gy),)


@op
def exp(k, x: Tensor):
    """e to the power x."""
    y = k.exp(x)
    return y, lambda gy, need: (k.mul(gy, y),)


@op
def log(k, x: Tensor):
    """The natural logarithm."""
    return k.log(x), lambda gy, need: (k.div(gy, x),)


@op
def sqrt(k, x: Tensor):
    """The square root; its gradient at 0 is infinite."""
    y = k.sqrt(x)
    return y, lambda gy, need: (k.div(gy, k.mul(y, 2)),)


@op
def rsqrt(k, x: Tensor):
    """1 / sqrt(x).

    >>> rsqrt(Tensor([4.0, 0.25])).tolist()
    [0.5, 2.0]
    """
    y = k.rsqrt(x if x.dtype.kind == "f" else k.cast(x, "float64"))
    return y, lambda gy, need: (k.rsqrt_grad_x(gy, y),)


@op
def matmul(k, x: Tensor, y: Tensor):
    """Matrix product of x (..., i, j) and y (..., j, l) -> (..., i, l), leading axes broadcast.

    Raises ValueError if an input has fewer than 2 axes, the inner sizes differ or the leading axes
    do not broadcast. (`@` takes vectors too.) The product of integers or masks is int64; TypeError for uint64.

    >>> matmul(Tensor([[1.0, 2.0]]), Tensor([[3.0], [4.0]])).item()
    11.0
    """
    xs, ys = _shape(x), _shape(y)
    if len(xs) < 2 or len(ys) < 2:
        raise ValueError(f"matmul: shapes {xs} and {ys} must have at least 2 axes each; see .reshape()")
    if xs[-1] != ys[-2]:
        raise ValueError(f"matmul: x has {xs[-1]} columns but y has {ys[-2]} rows (x {xs}, y {ys}); "
                         "the inner sizes must be equal, see .transpose()")
    _broadcast("matmul", xs[:-2], ys[:-2])

    def backward(gy, need):
        return (k.sum_to(k.matmul_grad_x(gy, y), xs) if need[0] else None,
                k.sum_to(k.matmul_grad_y(gy, x), ys) if need[1] else None)
    z = k.matmul(x, y) if _adds("matmul", x.dtype) else k.matmul(k.cast(x, "int64"), k.cast(y, "int64"))
    return z, backward


# ---------------------------------------------------------------- comparison: no gradient
@op(numbers=True)
def gt(k, x: Number, y: Number):
    """x > y, elementwise, as a bool Tensor."""
    _broadcast("gt", _shape(x), _shape(y))
    return k.gt(x, y), None


@op(numbers=True)
def ge(k, x: Number, y: Number):
    """x >= y, elementwise, as a bool Tensor."""
    _broadcast("ge", _shape(x), _shape(y))
    return k.ge(x, y), None


@op(numbers=True)
def lt(k, x: Number, y: Number):
    """x < y, elementwise, as a bool Tensor."""
    _broadcast("lt", _shape(x), _shape(y))
    return k.lt(x, y), None


@op(numbers=True)
def le(k, x: Number, y: Number):
    """x <= y, elementwise, as a bool Tensor."""
    _broadcast("le", _shape(x), _shape(y))
    return k.le(x, y), None


@op(numbers=True)
def eq(k, x: Number, y: Number):
    """x == y, elementwise, as a bool Tensor."""
    _broadcast("eq", _shape(x), _shape(y))
    return k.eq(x, y), None


@op(numbers=True)
def ne(k, x: Number, y: Number):
    """x != y, elementwise, as a bool Tensor."""
    _broadcast("ne", _shape(x), _shape(y))
    return k.ne(x, y), None


# ---------------------------------------------------------------- reductions
@op
def sum(k, x: Tensor, *, axis: Axis = None, keepdims: bool = False):
    """Sum over the given axes (all of them by default). For integers and masks it is int64; TypeError for uint64.

    >>> sum(Tensor([[True, True], [False, True]]), axis=1).tolist()
    [2, 1]
    """
    shape, axes = x.shape, _axes("sum", x.shape, axis)
    y = k.sum(x if _adds("sum", x.dtype) else k.cast(x, "int64"), axes, keepdims)
    return y, lambda gy, need: (k.spread(gy, shape, axes, keepdims),)


@op
def mean(k, x: Tensor, *, axis: Axis = None, keepdims: bool = False):
    """Arithmetic mean over the given axes (all of them by default).

    >>> mean(Tensor([[1.0, 2.0], [3.0, 6.0]]), axis=1).tolist()
    [1.5, 4.5]
    """
    shape, axes = x.shape, _axes("mean", x.shape, axis)
    count = math.prod(shape[a] for a in axes)
    return k.mean(x, axes, keepdims), lambda gy, need: (k.spread(k.div(gy, count), shape, axes, keepdims),)


def _compared(name: str, which: str, shape: tuple[int, ...], axis: Axis) -> tuple[int, ...]:
    """The axes of max or min, which are not empty."""
    axes = _axes(name, shape, axis)
    if math.prod(shape[a] for a in axes) == 0:
        raise ValueError(f"{name}: there is no {which} of 0 values (shape {shape}, axis {axis}); "
                         "reduce over axes that are not empty")
    return axes


def _searched(name: str, which: str, shape: tuple[int, ...], axis: int | None) -> int | None:
    """The axis of argmax or argmin, which is not empty."""
    axis = None if axis is None else one_axis(name, shape, axis)
    if 0 in (shape if axis is None else shape[axis:axis + 1]):
        raise ValueError(f"{name}: there is no {which} of 0 values (shape {shape}, axis {axis}); "
                         "search an axis that is not empty")
    return axis


@op(by_place=0)
def max(k, x: Tensor, *, axis: Axis = None, keepdims: bool = False):
    """Largest value over the given axes (all by default); equal maxima share the gradient equally.

    NaN counts as largest. Raises ValueError over an axis of size 0.
    """
    axes = _compared("max", "largest", x.shape, axis)
    y = k.max(x, axes, keepdims)
    return y, lambda gy, need: (k.max_grad_x(gy, x, y, axes, keepdims),)


@op
def argmax(k, x: Tensor, *, axis: int | None = None):
    """Index (int64) of the first largest value along one axis, or in the flattened Tensor; no gradient."""
    return k.argmax(x, _searched("argmax", "largest", x.shape, axis)), None
