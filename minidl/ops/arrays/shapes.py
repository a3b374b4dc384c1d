"""Shapes: the same values, and the axes in another order."""

from __future__ import annotations

import math

from ...core.tensor import Tensor
from ..common.geometry import is_int
from ..common.op import also, op
from ..layers.activation import one_axis

__all__ = ["flatten", "reshape", "transpose"]


@op(view=True)
def reshape(k, x: Tensor, *, shape: tuple[int, ...]):
    """The same values in another shape; one size may be -1. Raises ValueError if the counts differ."""
    before = x.shape
    sizes = all(is_int(n, -1) for n in shape)
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
    order = tuple(a % ndim for a in asked if is_int(a, -ndim) and a < ndim)
    if len(order) != len(asked) or sorted(order) != list(range(ndim)):
        raise ValueError(f"transpose: axes {axes} are not a permutation of the {ndim} axes of shape {x.shape}; "
                         f"name each of 0 to {ndim - 1} once; .swapaxes() swaps two")
    inverse = tuple(order.index(a) for a in range(ndim))
    return k.transpose(x, order), lambda gy, need: (k.transpose(gy, inverse),)


@also
def flatten(x: Tensor, start: int = 0) -> Tensor:
    """All axes from `start` on as one: (n, c, h, w) with start=1 -> (n, c*h*w).

    >>> flatten(Tensor([[[1.0, 2.0], [3.0, 4.0]]]), 1).shape
    (1, 4)
    """
    start = one_axis("flatten", x.shape or (1,), start)
    return reshape(x, shape=(*x.shape[:start], math.prod(x.shape[start:])))
