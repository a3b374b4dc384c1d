"""Elementwise choices: absolute values, the larger and the smaller of two, values by a condition."""

from __future__ import annotations

from ...core.tensor import Tensor
from ..common.op import op
from .basic import Number, _broadcast, _shape

__all__ = ["abs", "clip", "maximum", "minimum", "where"]


@op
def abs(k, x: Tensor):
    """The absolute value; its gradient at 0 is 0.

    >>> abs(Tensor([-2.0, 3.0])).tolist()
    [2.0, 3.0]
    """
    return k.abs(x), lambda gy, need: (k.mul(gy, k.sign(x)),)


@op(numbers=True)
def maximum(k, x: Number, y: Number):
    """The larger of x and y, elementwise, broadcast; equal ones share the gradient, and NaN is passed on.

    >>> maximum(Tensor([1.0, 5.0]), 3.0).tolist()
    [3.0, 5.0]
    """
    xs, ys = _shape(x), _shape(y)
    _broadcast("maximum", xs, ys)

    def backward(gy, need):
        shared = k.where(k.eq(x, y), k.div(gy, 2), gy)
        return (k.sum_to(k.where(k.lt(x, y), 0, shared), xs) if need[0] else None,
                k.sum_to(k.where(k.gt(x, y), 0, shared), ys) if need[1] else None)
    return k.maximum(x, y), backward


@op(numbers=True)
def minimum(k, x: Number, y: Number):
    """The smaller of x and y, elementwise, broadcast; equal ones share the gradient, and NaN is passed on."""
    xs, ys = _shape(x), _shape(y)
    _broadcast("minimum", xs, ys)

    def backward(gy, need):
        shared = k.where(k.eq(x, y), k.div(gy, 2), gy)
        return (k.sum_to(k.where(k.gt(x, y), 0, shared), xs) if need[0] else None,
                k.sum_to(k.where(k.lt(x, y), 0, shared), ys) if need[1] else None)
    return k.minimum(x, y), backward


@op
def clip(k, x: Tensor, *, low: float | None = None, high: float | None = None):
    """x, but at least `low` and at most `high`; the gradient goes to values between them, both included.

    Raises TypeError for a bound that is not a plain number, ValueError if neither is given.

    >>> clip(Tensor([-2.0, 0.5, 9.0]), 0.0, 1.0).tolist()
    [0.0, 0.5, 1.0]
    """
    if low is None and high is None:
        raise ValueError("clip: got neither low nor high; give one of them, or both")
    for bound in (low, high):
        if bound is not None and not isinstance(bound, (int, float)):
            raise TypeError(f"clip: a bound is a {type(bound).__name__} but must be a plain number; write "
                            "ops.minimum(ops.maximum(x, low), high)")
    return k.clip(x, low, high), lambda gy, need: (k.clip_grad_x(gy, x, low, high),)


@op(index=("condition",), numbers=True)
def where(k, condition: Tensor, x: Number, y: Number):
    """x where the condition holds, y elsewhere, broadcast; the condition gets no gradient.

    >>> x = Tensor([-1.0, 2.0])
    >>> where(x > 0, x, 0.0).tolist()
    [0.0, 2.0]
    """
    cs, xs, ys = _shape(condition), _shape(x), _shape(y)
    _broadcast("where", xs, ys)
    _broadcast("where", cs, xs)
    _broadcast("where", cs, ys)

    def backward(gy, need):
        return (None,
                k.sum_to(k.where(condition, gy, 0), xs) if need[1] else None,
                k.sum_to(k.where(condition, 0, gy), ys) if need[2] else None)
    return k.where(condition, x, y), backward
