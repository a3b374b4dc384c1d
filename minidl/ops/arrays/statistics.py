"""Reductions and sums beyond those of a plain training step: smallest values, variance, norm, cumulative sums."""

from __future__ import annotations

import math

import numpy as np

from ...core.tensor import Tensor
from ..common.op import also, op
from ..layers.activation import one_axis
from . import basic
from .arrange import squeeze
from .basic import Axis, _adds, _axes, _compared, _searched
from .select import abs, where

__all__ = ["argmin", "cumsum", "logsumexp", "min", "norm", "prod", "std", "var"]


@op(by_place=0)
def min(k, x: Tensor, *, axis: Axis = None, keepdims: bool = False):
    """Smallest value over the given axes (all by default); equal minima share the gradient equally.

    NaN counts as smallest. Raises ValueError over an axis of size 0.
    """
    axes = _compared("min", "smallest", x.shape, axis)
    y = k.min(x, axes, keepdims)
    return y, lambda gy, need: (k.max_grad_x(gy, x, y, axes, keepdims),)


@op
def argmin(k, x: Tensor, *, axis: int | None = None):
    """Index (int64) of the first smallest value along one axis, or in the flattened Tensor; no gradient."""
    return k.argmin(x, _searched("argmin", "smallest", x.shape, axis)), None


def _degrees(name: str, shape: tuple[int, ...], axes: tuple[int, ...], correction: float) -> float:
    """What the sum of squared differences is divided by."""
    count = math.prod(shape[a] for a in axes)
    if count <= correction:
        raise ValueError(f"{name}: {count} values (shape {shape}, axes {axes}) have none with correction "
                         f"{correction}; reduce over more values, or pass correction=0")
    return float(count - correction)       # a NumPy number would decide the dtype


@op(floating=True, by_place=1)
def var(k, x: Tensor, *, axis: Axis = None, keepdims: bool = False, correction: float | bool = 1):
    """Variance over the given axes (all by default): squared differences from the mean, over n - correction.

    correction: 1 as in PyTorch, an unbiased estimate; 0 as NumPy's var has it. Raises ValueError for too few values.

    >>> x = Tensor([1.0, 3.0])
    >>> var(x).item(), var(x, correction=0).item()
    (2.0, 1.0)
    """
    axes = _axes("var", x.shape, axis)
    degrees = _degrees("var", x.shape, axes, correction)
    y, center = k.variance(x, axes, keepdims, False, degrees)
    return y, lambda gy, need: (k.variance_grad_x(gy, x, y, center, axes, False, degrees),)


@op(floating=True, by_place=1)
def std(k, x: Tensor, *, axis: Axis = None, keepdims: bool = False, correction: float | bool = 1):
    """Standard deviation over the given axes: the root of `var`. Where it is 0, its gradient is 0 too."""
    axes = _axes("std", x.shape, axis)
    degrees = _degrees("std", x.shape, axes, correction)
    y, center = k.variance(x, axes, keepdims, True, degrees)
    return y, lambda gy, need: (k.variance_grad_x(gy, x, y, center, axes, True, degrees),)


@op(floating=True)
def norm(k, x: Tensor, *, p: float = 2, axis: Axis = None, keepdims: bool = False):
    """The Euclidean norm over the given axes (all by default): the root of the sum of squares. At 0 its gradient is 0.

    p: must be 2; it has the same position as in PyTorch. Raises ValueError for another value.

    >>> norm(Tensor([3.0, 4.0])).item()
    5.0
    """
    if p != 2:
        raise ValueError(f"norm: p is {p!r} but must be 2, the Euclidean norm; an axis goes by name, axis=1")
    axes = _axes("norm", x.shape, axis)
    y = k.norm(x, axes, keepdims)
    return y, lambda gy, need: (k.norm_grad_x(gy, x, y, axes),)


@op(floating=True)
def prod(k, x: Tensor, *, axis: Axis = None, keepdims: bool = False):
    """The product over the given axes (all by default), with a gradient at zeros too: the product of the others.

    >>> prod(Tensor([2.0, 3.0, 4.0])).item()
    24.0
    """
    axes = _axes("prod", x.shape, axis)
    return k.prod(x, axes, keepdims), lambda gy, need: (k.prod_grad_x(gy, x, axes, keepdims),)


@op
def cumsum(k, x: Tensor, *, axis: int):
    """Sums of the values up to each one, along an axis. For integers and masks they are int64; TypeError for uint64.

    >>> cumsum(Tensor([1.0, 2.0, 4.0]), axis=0).tolist()
    [1.0, 3.0, 7.0]
    """
    axis = one_axis("cumsum", x.shape, axis)
    y = k.cumsum(x if _adds("cumsum", x.dtype) else k.cast(x, "int64"), axis)
    return y, lambda gy, need: (k.cumsum(gy, axis, True),)


@also
def logsumexp(x: Tensor, axis: Axis, keepdims: bool = False) -> Tensor:
    """The logarithm of the sum of e^x over the given axes, without overflow.

    Raises TypeError for integers, ValueError over an axis of size 0.

    >>> logsumexp(Tensor([1000.0, 1000.0]), 0).item()
    1000.6931762695312
    """
    axis = _axes("logsumexp", x.shape, axis)
    if x.dtype not in (np.float32, np.float64):
        raise TypeError(f"logsumexp: the input has dtype {x.dtype} but must be float32 or float64; convert it with "
                        ".to(dtype='float32')")
    if not all(x.shape[a] for a in axis):
        raise ValueError(f"logsumexp: there is no sum of 0 values (shape {x.shape}, axis {axis}); reduce over axes "
                         "that are not empty")
    top = basic.max(x.detach(), axis=axis, keepdims=True)
    top = where(abs(top) < np.inf, top, 0.0)
    total = basic.sum(basic.exp(basic.sub(x, top)), axis=axis, keepdims=True)
    y = basic.add(basic.log(total), top)
    return y if keepdims else squeeze(y, axis)
