"""Primitives that NumPy's own functions already express for every array type that follows its protocols.

Both backends re-export this module, so these are written once. Arguments are arrays or plain numbers;
`axis` is a tuple of non-negative ints; results are new arrays or views, and `setitem` alone changes an argument.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .primitives import Array, Flag, Index

__all__ = [
    "add", "argmax", "concatenate", "copy", "div", "eq", "exp", "ge", "getitem", "getitem_grad_x", "gt", "le",
    "log", "lt", "matmul", "matmul_grad_x", "matmul_grad_y", "max", "max_grad_x", "mean", "mul", "ne", "neg",
    "ones_like", "pow", "pow_grad_p", "pow_grad_x", "reshape", "setitem", "spread", "sqrt", "sub", "sum", "sum_to",
    "transpose", "zeros_like",
]

# ---------------------------------------------------------------- elementwise, as NumPy names them
Function = Callable[..., Array]
add: Function = np.add
sub: Function = np.subtract
mul: Function = np.multiply
div: Function = np.true_divide
neg: Function = np.negative
pow: Function = np.power
exp: Function = np.exp
log: Function = np.log
sqrt: Function = np.sqrt
gt: Function = np.greater
ge: Function = np.greater_equal
lt: Function = np.less
le: Function = np.less_equal
eq: Function = np.equal
ne: Function = np.not_equal


def copy(x: Array) -> Array:
    """A copy in x's memory order."""
    return np.copy(x)


def ones_like(x: Array) -> Array:
    return np.ones_like(x)


def zeros_like(x: Array) -> Array:
    return np.zeros_like(x)


def pow_grad_x(gy: Array, x: Array, p: Array) -> Array:
    """p x^(p-1) gy; a zero exponent gives 0 whatever x is."""
    exponent = np.where(np.equal(p, 0), 0, np.subtract(p, 1)).astype(x.dtype)[()]   # CuPy takes no 0-d NumPy array
    return gy * np.multiply(p, np.power(x, exponent))


def pow_grad_p(gy: Array, x: Array, y: Array) -> Array:
    """y log(x) gy, and 0 where x is 0 and p is not negative (so that y = x^p is 0 or 1)."""
    zero = np.equal(x, 0) & np.less_equal(y, 1)
    return gy * np.where(zero, 0, y * np.log(np.where(zero, 1, x))).astype(y.dtype)


# ---------------------------------------------------------------- reductions
def sum(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return np.sum(x, axis=axis, keepdims=keepdims)


def mean(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return np.mean(x, axis=axis, keepdims=keepdims)


def max(x: Array, axis: tuple[int, ...], keepdims: Flag = False) -> Array:
    return np.max(x, axis=axis, keepdims=keepdims)


def argmax(x: Array, axis: int | None) -> Array | np.integer:
    return np.argmax(x, axis=axis)


def spread(gy: Array, shape: tuple[int, ...], axis: tuple[int, ...], keepdims: bool) -> Array:
    """Repeat a reduction's result (or its gradient) along the axes that were reduced."""
    return np.broadcast_to(gy if keepdims else np.expand_dims(gy, axis), shape)


def max_grad_x(gy: Array, x: Array, y: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """The gradient goes to the largest elements, in equal parts if several are equal; NaN is largest.

    PyTorch's x.max(), over all axes, does the same. Over some axes PyTorch has two functions: amax makes the gradient
    NaN wherever there is a NaN along them, and max(axis) gives all of it to the first of equals.
    """
    top = spread(y, x.shape, axis, keepdims)
    winners = (x == top) | ((x != x) & (top != top))
    share = spread(gy, x.shape, axis, keepdims) / np.sum(winners, axis=axis, keepdims=True)
    return np.where(winners, share, 0).astype(x.dtype)         # not multiplied: an infinite gy times 0 would be NaN


def sum_to(gy: Array, shape: tuple[int, ...]) -> Array:
    """Sum a gradient back to the shape that broadcasting grew from."""
    return gy if gy.shape == shape else np.reshape(np.sum(gy, axis=_grown(gy.shape, shape)), shape)


def _grown(large: tuple[int, ...], small: tuple[int, ...]) -> tuple[int, ...]:
    """The axes along which broadcasting grew."""
    extra = len(large) - len(small)
    return *range(extra), *(i + extra for i, n in enumerate(small) if n == 1 != large[i + extra])


# ---------------------------------------------------------------- shapes
def reshape(x: Array, shape: tuple[int, ...]) -> Array:
    return np.reshape(x, shape)


def transpose(x: Array, axes: tuple[int, ...]) -> Array:
    return np.transpose(x, axes)


def concatenate(xs: tuple[Array, ...], axis: int) -> Array:
    """In C order, as what adds up the gradients of parts: of another order, sums of it would have other bits."""
    first, length = xs[0], int(np.sum([x.shape[axis] for x in xs]))
    shape = (*first.shape[:axis], length, *first.shape[axis + 1:])
    return np.concatenate(xs, axis=axis, out=np.empty_like(first, np.result_type(*xs), "C", shape=shape))


def getitem(x: Array, index: Index) -> Array:
    return x[index]


def setitem(x: Array, index: Index, value: Array) -> None:
    """x[index] = value: the only shared primitive that changes an argument."""
    if hasattr(value, "shape") and np.may_share_memory(x, value):
        value = np.copy(value)             # CuPy reads and writes at once
    x[index] = value


def getitem_grad_x(gy: Array, index: Index, shape: tuple[int, ...], once: bool) -> Array:
    """Put a gradient back where it was taken from, in C order. once: no element was taken twice, so a plain store does.
    """
    gx = np.zeros_like(gy, order="C", shape=shape)
    if once:
        gx[index] = gy
    else:
        np.add.at(gx, index, gy)
    return gx


# ---------------------------------------------------------------- products
def matmul(x: Array, y: Array) -> Array:
    return np.matmul(x, y)


def matmul_grad_x(gy: Array, y: Array) -> Array:
    return np.matmul(gy, np.swapaxes(y, -1, -2))


def matmul_grad_y(gy: Array, x: Array) -> Array:
    return np.matmul(np.swapaxes(x, -1, -2), gy)
