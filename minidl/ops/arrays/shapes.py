"""Shapes and indexing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...core.mode import mode
from ...core.tensor import Tensor
from ..common.op import also, op
from ..common.primitives import Index
from ..layers.activation import one_axis

__all__ = ["concatenate", "flatten", "getitem", "reshape", "transpose"]


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
                         f"name each of 0 to {ndim - 1} once; .swapaxes() swaps two")
    inverse = tuple(order.index(a) for a in range(ndim))
    return k.transpose(x, order), lambda gy, need: (k.transpose(gy, inverse),)


def _is_mask(i: object) -> bool:
    return hasattr(i, "dtype") and i.dtype.kind == "b"


@op(view=True)
def _getitem(k, x: Tensor, *, index: Index):
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


def plain_index(index: Index, own: bool = False) -> Any:
    """An index with arrays in the place of Tensors and lists. own: copies, which nobody changes."""
    def plain(i: Any) -> Any:
        if isinstance(i, list):
            return np.asarray(i)
        array = i._data if isinstance(i, Tensor) else i
        return array.copy() if own and hasattr(array, "copy") else array
    mode.recorder.seen(index if isinstance(index, tuple) else (index,))
    return tuple(map(plain, index)) if isinstance(index, tuple) else plain(index)


def getitem(x: Tensor, index: Index) -> Tensor:
    """x[index]: ints, slices, None, Ellipsis, bool masks and integer arrays, as NumPy indexes.

    Elements taken several times receive the sum of their gradients. Raises IndexError out of range.

    >>> getitem(Tensor([1.0, 2.0, 3.0]), slice(1, None)).tolist()
    [2.0, 3.0]
    """
    # The gradient goes back to where values came from, whatever becomes of the index arrays meanwhile.
    own = mode.grad and not mode.recorder.recording and isinstance(x, Tensor) and x.requires_grad
    return _getitem(x, index=plain_index(index, own))


@also
def concatenate(tensors: list[Tensor] | tuple[Tensor, ...], axis: int = 0) -> Tensor:
    """Join Tensors along an existing axis. Raises ValueError where another size differs or none is given.

    >>> concatenate([Tensor([1.0]), Tensor([2.0, 3.0])]).tolist()
    [1.0, 2.0, 3.0]
    """
    tensors = tuple(tensors)
    if not tensors:
        raise ValueError("concatenate: got 0 Tensors but needs at least 1")
    return _concatenate(*tensors, axis=axis)


@also
def flatten(x: Tensor, start: int = 0) -> Tensor:
    """All axes from `start` on as one: (n, c, h, w) with start=1 -> (n, c*h*w).

    >>> flatten(Tensor(np.zeros((2, 3, 4))), 1).shape
    (2, 12)
    """
    start = one_axis("flatten", x.shape, start) if x.shape else 0
    return reshape(x, shape=(*x.shape[:start], math.prod(x.shape[start:])))
