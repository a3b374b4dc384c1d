"""Shapes and order beyond those of a plain training step: axes of size 1, repeats, frames, parts, values by index."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...core.mode import mode
from ...core.tensor import Tensor, wrap
from ..common.backend import backend_of
from ..common.geometry import is_int
from ..common.op import _number, also, op, tensor
from ..common.primitives import Index
from ..layers.activation import one_axis
from .basic import Axis, _axes
from .indexing import getitem, own_index, plain_index
from .shapes import reshape

__all__ = [
    "argsort", "clone", "concatenate", "expand", "flip", "gather", "pad", "split", "squeeze", "stack", "unique",
    "unsqueeze",
]


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


def _inputs(name: str, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Tensors, or the rows of one. Raises TypeError for anything else."""
    found = tuple(tensors) if isinstance(tensors, Iterable) else (tensors,)
    for t in found:
        if not isinstance(t, Tensor):
            _number(name, t, numbers=False)
    return found


@also
def concatenate(tensors: list[Tensor] | tuple[Tensor, ...], axis: int = 0) -> Tensor:
    """Join Tensors along an existing axis. Raises ValueError if another size differs or no Tensor is given.

    >>> concatenate([Tensor([1.0]), Tensor([2.0, 3.0])]).tolist()
    [1.0, 2.0, 3.0]
    """
    tensors = _inputs("concatenate", tensors)
    if not tensors:
        raise ValueError("concatenate: got 0 Tensors but needs at least 1")
    return _concatenate(*tensors, axis=axis)


@op
def clone(k, x: Tensor):
    """A copy in memory of its own, through which the gradient flows."""
    return k.copy(x), lambda gy, need: (gy,)


def own(y: Tensor, x: Tensor) -> Tensor:
    """y, or a copy if it has some of x's memory: a change of one would be one of both."""
    return clone(y) if np.may_share_memory(y._data, x._data) else y


@op(view=True)
def expand(k, x: Tensor, *, shape: tuple[int, ...]):
    """x repeated to a shape that it broadcasts to, without a copy; -1 leaves a size as it is.

    Raises ValueError if it does not broadcast.

    >>> expand(Tensor([[1.0], [2.0]]), (2, 3)).tolist()
    [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]
    """
    before, more = x.shape, len(shape) - len(x.shape)
    asked = tuple(before[i - more] if n == -1 and i >= more else n for i, n in enumerate(shape))
    if more < 0 or not all(is_int(n, 0) for n in asked) or any(n not in (1, m) for n, m in zip(before, asked[more:])):
        raise ValueError(f"expand: shape {before} does not broadcast to {tuple(shape)}; from the right, sizes must be "
                         "equal or 1, ints, see .reshape()")
    return k.spread(x, asked, (), True), lambda gy, need: (k.sum_to(gy, before),)


@op
def pad(k, x: Tensor, *, widths: tuple[int, ...], value: float | bool = 0.0):
    """A frame of one value around x. widths: before and after, from the last axis on: (left, right, top, bottom).

    Raises ValueError for widths that are not pairs of ints of at least 0, or too many.

    >>> pad(Tensor([[1.0]]), (1, 2)).tolist()
    [[0.0, 1.0, 0.0, 0.0]]
    """
    shape = x.shape
    if (len(widths) % 2 or len(widths) > 2 * len(shape)
            or not all(is_int(n, 0) for n in widths)):
        raise ValueError(f"pad: widths {widths!r} do not fit shape {shape}; give ints of at least 0, two for each axis "
                         "from the last on: (left, right, top, bottom)")
    pairs = tuple((int(a), int(b)) for a, b in zip(widths[::2], widths[1::2]))[::-1]
    pairs = ((0, 0),) * (len(shape) - len(pairs)) + pairs
    inner = tuple(slice(before, before + n) for n, (before, _) in zip(shape, pairs, strict=True))
    return k.pad(x, pairs, value), lambda gy, need: (k.getitem(gy, inner),)


@op
def _argsort(k, x: Tensor, *, axis: int, descending: bool, first: int | None):
    return k.argsort(x, one_axis("argsort", x.shape, axis), bool(descending), first), None


@also
def argsort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """The indices (int64) that put the values along an axis in rising order; equal ones keep their order, NaN is last.

    descending: in falling order; equal ones keep their order, NaN is first.

    >>> argsort(Tensor([3.0, 1.0, 2.0])).tolist(), argsort(Tensor([3.0, 1.0, 3.0]), descending=True).tolist()
    ([1, 2, 0], [0, 2, 1])
    """
    return first_of(x, None, axis, descending)


def first_of(x: Tensor, first: int | None, axis: int, descending: bool) -> Tensor:
    """The first `first` indices along an axis that argsort gives; all of them for None."""
    return _argsort(x, axis=axis, descending=descending, first=first)


@op
def _gather(k, x: Tensor, *, index: Index, axis: int, once: bool):
    shape = x.shape
    if any(n > m for a, (n, m) in enumerate(zip(index.shape, shape, strict=True)) if a != axis):
        raise IndexError(f"gather: index has shape {index.shape}, which is larger than x {shape} outside axis {axis}; "
                         "it may be smaller there, or as large")
    try:
        y = k.take_along(x, index, axis)
    except IndexError as error:
        raise IndexError(f"gather: {error} (shape {shape}); index within the shape") from None
    return y, lambda gy, need: (k.take_along_grad_x(gy, index, shape, axis, once),)


def pick(x: Tensor, axis: int, index: Tensor | np.ndarray, once: bool) -> Tensor:
    """Values by their indices along an axis; an index below 0 counts from the end. once: no value is taken twice."""
    return _gather(x, index=own_index(x, index), axis=axis, once=once)


@also
def gather(x: Tensor, axis: int, index: Index) -> Tensor:
    """Values by their indices along one axis: y[i,j] = x[index[i,j], j] for axis 0, x[i, index[i,j]] for axis 1.

    index: integers, an array or nested lists, of as many axes as x. Elements taken several times receive the sum of
    their gradients. Raises TypeError for an index that is not of integers, ValueError if the numbers of axes differ,
    IndexError out of range.

    >>> gather(Tensor([[1.0, 2.0], [3.0, 4.0]]), 1, np.array([[1], [0]])).tolist()
    [[2.0], [3.0]]
    """
    axis = one_axis("gather", x.shape, axis)
    index = plain_index([*index] if isinstance(index, tuple) else index)
    if not hasattr(index, "dtype") or index.dtype.kind not in "iu":                # booleans would select as a mask
        what = f"has dtype {index.dtype}" if hasattr(index, "dtype") else f"is a {type(index).__name__}"
        raise TypeError(f"gather: index {what} but must be integers; with a mask, use x[mask]")
    if len(index.shape) != x.ndim:
        raise ValueError(f"gather: x has shape {x.shape} and index {index.shape} but both must have as many axes")
    return pick(x, axis, index, once=False)


@also
def flip(x: Tensor, axis: Axis = None) -> Tensor:
    """The values in reverse order along the given axes (all by default).

    >>> flip(Tensor([1.0, 2.0, 3.0]), 0).tolist()
    [3.0, 2.0, 1.0]
    """
    axes = _axes("flip", x.shape, axis)
    return own(getitem(x, tuple(slice(None, None, -1 if a in axes else None) for a in range(x.ndim))), x)


@also
def unsqueeze(x: Tensor, axis: int) -> Tensor:
    """A new axis of size 1, which will be number `axis`.

    >>> unsqueeze(Tensor([1.0, 2.0]), 0).shape, unsqueeze(Tensor([1.0, 2.0]), -1).shape
    ((1, 2), (2, 1))
    """
    axis = one_axis("unsqueeze", (*x.shape, 1), axis)
    return reshape(x, shape=(*x.shape[:axis], 1, *x.shape[axis:]))


@also
def squeeze(x: Tensor, axis: Axis = None) -> Tensor:
    """x without its axes of size 1, or without those of the given axes that have size 1.

    >>> squeeze(Tensor([[[1.0], [2.0]]]), 0).shape
    (2, 1)
    """
    axes = _axes("squeeze", x.shape, axis)
    return reshape(x, shape=tuple(n for a, n in enumerate(x.shape) if n != 1 or a not in axes))


@also
def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join Tensors of one shape along a new axis. Raises ValueError if shapes differ or no Tensor is given.

    >>> stack([Tensor([1.0, 2.0]), Tensor([3.0, 4.0])], axis=1).tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """
    tensors = _inputs("stack", tensors)
    shapes = [t.shape for t in tensors]
    if len(set(shapes)) != 1:
        raise ValueError(f"stack: got Tensors of shapes {', '.join(map(str, shapes)) or 'none'}; give at least 1, all "
                         "of one shape")
    axis = one_axis("stack", (*shapes[0], 1), axis)
    return concatenate([unsqueeze(t, axis) for t in tensors], axis)


@also
def unique(x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
    """The values of x in rising order, each once, along one axis. NaN is not equal to NaN: all NaNs are listed, last.

    return_inverse: also the place of each element among them (int64, x's shape). return_counts: also how often each
    occurs (int64). sorted: they are sorted in any case. There is no gradient. A compiled step refuses it, since the
    number of values is not known before they are looked at.

    >>> unique(Tensor([3, 1, 3])).tolist()
    [1, 3]
    >>> [t.tolist() for t in unique(Tensor([3, 1, 3]), return_inverse=True, return_counts=True)]
    [[1, 3], [1, 0, 1], [1, 2]]
    """
    mode.recorder.refuse("calls unique, whose result has a size that only its values decide")
    found = tuple(map(wrap, backend_of(tensor("unique", x)).unique(x._data, bool(return_inverse), bool(return_counts))))
    return found if len(found) > 1 else found[0]


@also
def split(x: Tensor, sizes: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """Parts along an axis: of one size (the last may be smaller), or of the given sizes, which add up to the axis's.

    Raises ValueError if they do not.

    >>> [part.tolist() for part in split(Tensor([1.0, 2.0, 3.0]), 2)]
    [[1.0, 2.0], [3.0]]
    """
    axis = one_axis("split", x.shape, axis)
    n = x.shape[axis]
    if not isinstance(sizes, (Sequence, np.ndarray)):
        if not is_int(sizes, 1):
            raise ValueError(f"split: size {sizes!r} of a part must be at least 1, an int")
        sizes = [min(sizes, n - begin) for begin in range(0, max(n, 1), sizes)]
    if not all(is_int(size, 0) for size in sizes) or sum(sizes) != n:
        raise ValueError(f"split: sizes {list(sizes)} do not add up to the {n} of axis {axis} (shape {x.shape}); give "
                         "ints that do")
    head, ends = (slice(None),) * axis, itertools.accumulate([0, *sizes])
    return tuple(getitem(x, (*head, slice(begin, end))) for begin, end in itertools.pairwise(ends))
