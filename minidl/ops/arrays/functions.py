"""Elementwise functions beyond those of a plain training step: waves, steps, the error function, remainders; and the
parts of matrices above or below a diagonal."""

from __future__ import annotations

import math

from ...core.tensor import Tensor
from ..common.geometry import is_int
from ..common.op import op
from .basic import Number, _broadcast, _shape

__all__ = [
    "ceil", "cos", "erf", "expm1", "floor", "floor_divide", "log1p", "remainder", "round", "sign", "sin", "tril",
    "triu",
]


@op
def sin(k, x: Tensor):
    """The sine of x in radians."""
    return k.sin(x), lambda gy, need: (k.mul(gy, k.cos(x)),)


@op
def cos(k, x: Tensor):
    """The cosine of x in radians."""
    return k.cos(x), lambda gy, need: (k.neg(k.mul(gy, k.sin(x))),)


@op
def log1p(k, x: Tensor):
    """log(1 + x), exact for a small x too.

    >>> log1p(Tensor([1e-8])).item() == Tensor(1e-8).item()
    True
    """
    return k.log1p(x), lambda gy, need: (k.div(gy, k.add(x, 1)),)


@op
def expm1(k, x: Tensor):
    """e^x - 1, exact for a small x too."""
    y = k.expm1(x)
    return y, lambda gy, need: (k.mul(gy, k.add(y, 1)),)


@op
def erf(k, x: Tensor):
    """The error function: 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x.

    >>> erf(Tensor([-10.0, 0.0, 10.0])).tolist()
    [-1.0, 0.0, 1.0]
    """
    y = k.erf(x if x.dtype.kind == "f" else k.cast(x, "float64"))
    return y, lambda gy, need: (k.mul(k.mul(gy, k.exp(k.neg(k.mul(x, x)))), 2 / math.sqrt(math.pi)),)


# ---------------------------------------------------------------- steps, whose gradient is 0
@op
def sign(k, x: Tensor):
    """1 for values above 0, -1 for values below 0, and 0 for 0. NaN is passed on; PyTorch makes it 0.

    >>> sign(Tensor([-3.0, 0.0, 5.0])).tolist()
    [-1.0, 0.0, 1.0]
    """
    return k.sign(x), lambda gy, need: (k.zeros_like(gy),)


@op
def round(k, x: Tensor):
    """The nearest integer; halfway between two, the even one.

    >>> round(Tensor([0.5, 1.5, 2.5, -0.7])).tolist()
    [0.0, 2.0, 2.0, -1.0]
    """
    return (k.round(x) if x.dtype.kind == "f" else k.copy(x)), lambda gy, need: (k.zeros_like(gy),)


@op
def floor(k, x: Tensor):
    """The largest integer that is not above x."""
    return (k.floor(x) if x.dtype.kind == "f" else k.copy(x)), lambda gy, need: (k.zeros_like(gy),)


@op
def ceil(k, x: Tensor):
    """The smallest integer that is not below x."""
    return (k.ceil(x) if x.dtype.kind == "f" else k.copy(x)), lambda gy, need: (k.zeros_like(gy),)


def _numbers(name: str, x: Number, y: Number) -> None:
    """Refuse masks, which NumPy would make int8, and shapes that do not broadcast."""
    for each in (x, y):
        if getattr(getattr(each, "dtype", None), "kind", "") == "b":
            raise TypeError(f"{name}: an input has dtype bool but must hold numbers; convert it with "
                            ".to(dtype='int64')")
    _broadcast(name, _shape(x), _shape(y))


@op(numbers=True)
def floor_divide(k, x: Number, y: Number):
    """x // y: the largest integer that is not above x / y, broadcast; no gradient. For integers, 0 where y is 0.

    >>> floor_divide(Tensor([5, -5]), 3).tolist()
    [1, -2]
    """
    _numbers("floor_divide", x, y)
    return k.floor_divide(x, y), None


@op(numbers=True)
def remainder(k, x: Number, y: Number):
    """x % y: what x // y leaves of x, broadcast; it has the sign of y. For integers, 0 where y is 0.

    >>> remainder(Tensor([5.0, -5.0]), 3).tolist(), remainder(Tensor([5.0, -5.0]), -3).tolist()
    ([2.0, 1.0], [-1.0, -2.0])
    """
    _numbers("remainder", x, y)
    xs, ys = _shape(x), _shape(y)

    def backward(gy, need):
        return (k.sum_to(gy, xs) if need[0] else None,
                k.sum_to(k.neg(k.mul(gy, k.floor_divide(x, y))), ys) if need[1] else None)
    return k.remainder(x, y), backward


# ---------------------------------------------------------------- above and below a diagonal
def _matrices(name: str, shape: tuple[int, ...], diagonal: int) -> None:
    if len(shape) < 2:
        raise ValueError(f"{name}: x has shape {shape} but must have at least 2 axes, the last two a matrix; see "
                         ".reshape()")
    if not is_int(diagonal, -math.inf):
        raise ValueError(f"{name}: diagonal is {diagonal!r} but must be an int: 0 is the main one, 1 the next above it")


@op
def tril(k, x: Tensor, *, diagonal: int = 0):
    """The last two axes' values on a diagonal and below it, and 0 above. diagonal: 0 is the main one, 1 the next above.

    Raises ValueError for fewer than 2 axes and a diagonal that is not an int.

    >>> tril(Tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[1.0, 0.0], [3.0, 4.0]]
    """
    _matrices("tril", x.shape, diagonal)
    return k.tril(x, diagonal), lambda gy, need: (k.tril(gy, diagonal),)


@op
def triu(k, x: Tensor, *, diagonal: int = 0):
    """The last two axes' values on a diagonal and above it, and 0 below; otherwise as `tril`.

    >>> triu(Tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[1.0, 2.0], [0.0, 4.0]]
    """
    _matrices("triu", x.shape, diagonal)
    return k.triu(x, diagonal), lambda gy, need: (k.triu(gy, diagonal),)
