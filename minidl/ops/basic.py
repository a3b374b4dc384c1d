"""Arithmetic, reductions, shapes and indexing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..mode import mode
from ..tensor import Tensor
from ._op import op
from .activation import one_axis
from .geometry import cached

__all__ = [
    "add", "argmax", "concatenate", "div", "eq", "exp", "flatten", "ge", "getitem", "gt", "le", "log", "lt",
    "matmul", "max", "mean", "mul", "ne", "neg", "pow", "reshape", "sqrt", "sub", "sum", "transpose",
]

Axis = int | tuple[int, ...] | None
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
    asked = axis if isinstance(axis, tuple) else (axis,)
    for a in asked:
        if not isinstance(a, int) or not -len(shape) <= a < len(shape):
            raise ValueError(f"{name}: axis {a!r} is out of range for a Tensor of shape {shape}; "
                             f"use an int from {-len(shape)} to {len(shape) - 1}")
    axes = tuple(sorted(a % len(shape) for a in asked))
    if len(set(axes)) < len(axes):
        raise ValueError(f"{name}: axis {axis} names one axis of shape {shape} twice; name each once")
    return axes


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
def matmul(k, x: Tensor, y: Tensor):
    """Matrix product of x (..., i, j) and y (..., j, l) -> (..., i, l), leading axes broadcast.

    Raises ValueError where an input has fewer than 2 axes, the inner sizes differ or the leading axes
    do not broadcast. (`@` takes vectors too.)

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
    return k.matmul(x, y), backward


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
    """Sum over the given axes (all of them by default)."""
    shape, axes = x.shape, _axes("sum", x.shape, axis)
    return k.sum(x, axes, keepdims), lambda gy, need: (k.spread(gy, shape, axes, keepdims),)


@op
def mean(k, x: Tensor, *, axis: Axis = None, keepdims: bool = False):
    """Arithmetic mean over the given axes (all of them by default).

    >>> mean(Tensor([[1.0, 2.0], [3.0, 6.0]]), axis=1).tolist()
    [1.5, 4.5]
    """
    shape, axes = x.shape, _axes("mean", x.shape, axis)
    count = math.prod(shape[a] for a in axes)
    return k.mean(x, axes, keepdims), lambda gy, need: (k.spread(k.div(gy, count), shape, axes, keepdims),)


@op
def max(k, x: Tensor, *, axis: Axis = None, keepdims: bool = False):
    """Largest value over the given axes (all by default); equal maxima share the gradient equally.

    NaN counts as largest. Raises ValueError over an axis of size 0.
    """
    axes = _axes("max", x.shape, axis)
    if math.prod(x.shape[a] for a in axes) == 0:
        raise ValueError(f"max: there is no largest of 0 values (shape {x.shape}, axis {axis}); "
                         "reduce over axes that are not empty")
    y = k.max(x, axes, keepdims)
    return y, lambda gy, need: (k.max_grad_x(gy, x, y, axes, keepdims),)


@op
def argmax(k, x: Tensor, *, axis: int | None = None):
    """Index (int64) of the first largest value along one axis, or in the flattened Tensor; no gradient."""
    if axis is not None:
        axis = one_axis("argmax", x.shape, axis)
    if 0 in (x.shape if axis is None else x.shape[axis:axis + 1]):
        raise ValueError(f"argmax: there is no largest of 0 values (shape {x.shape}, axis {axis}); "
                         "search an axis that is not empty")
    return k.argmax(x, axis), None


# ---------------------------------------------------------------- shapes
@op(view=True)
def reshape(k, x: Tensor, *, shape: tuple[int, ...]):
    """The same values in another shape; one size may be -1. Raises ValueError where the counts differ."""
    before = x.shape
    sizes = all(hasattr(n, "__index__") and n >= -1 for n in shape)
    known = math.prod(n for n in shape if n != -1) if sizes else 0
    count = math.prod(before)
    wild = shape.count(-1)
    if not sizes or wild > 1 or (count != known if not wild else known == 0 or count % known):
        raise ValueError(f"reshape: {count} values of shape {before} do not fill shape {tuple(shape)}; "
                         "the products of the sizes (ints) must be equal, with at most one -1")
    return k.reshape(x, shape), lambda gy, need: (k.reshape(gy, before),)


@op(view=True)
def transpose(k, x: Tensor, *, axes: tuple[int, ...] | None = None):
    """Permute the axes (reversed by default)."""
    ndim = len(x.shape)
    asked = range(ndim)[::-1] if axes is None else axes
    order = tuple(a % ndim for a in asked if isinstance(a, int) and -ndim <= a < ndim)
    if len(order) != len(asked) or sorted(order) != list(range(ndim)):
        raise ValueError(f"transpose: axes {axes} are not a permutation of the {ndim} axes of shape {x.shape}; "
                         f"name each of 0 to {ndim - 1} once")
    inverse = tuple(order.index(a) for a in range(ndim))
    return k.transpose(x, order), lambda gy, need: (k.transpose(gy, inverse),)


def _is_mask(i: object) -> bool:
    return hasattr(i, "dtype") and i.dtype.kind == "b"


@op(view=True)
def _getitem(k, x: Tensor, *, index: Any):
    shape = x.shape
    once = all(i is None or i is Ellipsis or isinstance(i, (int, slice)) or _is_mask(i)
               for i in (index if isinstance(index, tuple) else (index,)))
    try:
        y = k.getitem(x, index)
    except IndexError as error:
        raise IndexError(f"getitem: {error} (shape {shape}); index within the shape") from None
    return y, lambda gy, need: (k.getitem_grad_x(gy, index, shape, once),)


@op
def _concatenate(k, *xs: Tensor, axis: int):
    first = xs[0].shape
    axis = one_axis("concatenate", first, axis)
    for x in xs[1:]:
        if len(x.shape) != len(first) or any(n != m for i, (n, m) in enumerate(zip(x.shape, first, strict=True))
                                             if i != axis):
            raise ValueError(f"concatenate: shapes {first} and {x.shape} differ outside axis {axis}; "
                             "all other sizes must be equal")
    ends = np.cumsum([x.shape[axis] for x in xs]).tolist()

    def backward(gy, need):
        head = (slice(None),) * axis
        return tuple(k.getitem(gy, (*head, slice(begin, end))) if n else None
                     for begin, end, n in zip([0, *ends], ends, need, strict=False))
    return k.concatenate(xs, axis), backward


def plain_index(index: Any, own: bool = False) -> Any:
    """An index with arrays in the place of Tensors and lists. own: copies, which nobody changes."""
    def plain(i: Any) -> Any:
        if isinstance(i, list):
            return np.asarray(i)
        array = i._data if isinstance(i, Tensor) else i
        return array.copy() if own and hasattr(array, "copy") else array
    mode.recorder.seen(index if isinstance(index, tuple) else (index,))
    return tuple(map(plain, index)) if isinstance(index, tuple) else plain(index)


def getitem(x: Tensor, index: Any) -> Tensor:
    """x[index]: ints, slices, None, Ellipsis, bool masks and integer arrays, as NumPy indexes.

    Elements taken several times receive the sum of their gradients. Raises IndexError out of range.

    >>> getitem(Tensor([1.0, 2.0, 3.0]), slice(1, None)).tolist()
    [2.0, 3.0]
    """
    # The gradient goes back to where values came from, whatever becomes of the index arrays meanwhile.
    own = mode.grad and not mode.recorder.recording and isinstance(x, Tensor) and x.requires_grad
    return _getitem(x, index=plain_index(index, own))


def concatenate(tensors: list[Tensor] | tuple[Tensor, ...], axis: int = 0) -> Tensor:
    """Join Tensors along an existing axis. Raises ValueError where another size differs or none is given.

    >>> concatenate([Tensor([1.0]), Tensor([2.0, 3.0])]).tolist()
    [1.0, 2.0, 3.0]
    """
    tensors = tuple(tensors)
    if not tensors:
        raise ValueError("concatenate: got 0 Tensors but needs at least 1")
    return _concatenate(*tensors, axis=axis)


def flatten(x: Tensor, start: int = 0) -> Tensor:
    """All axes from `start` on as one: (n, c, h, w) with start=1 -> (n, c*h*w).

    >>> flatten(Tensor(np.zeros((2, 3, 4))), 1).shape
    (2, 12)
    """
    start = one_axis("flatten", x.shape, start) if x.shape else 0
    return reshape(x, shape=(*x.shape[:start], math.prod(x.shape[start:])))
