"""CuPy arrays put together: copies, several arrays in one, frames, and gradients of the parts of an array."""

from __future__ import annotations

from itertools import accumulate, pairwise

import cupy
import numpy as np

from ...common import shared
from ...common.primitives import Array, Index
from .. import launch
from .copies import copy_into, dense_copy, view_of

__all__ = ["add_parts", "concatenate", "copy", "pad", "reshape"]


def copy(x: cupy.ndarray) -> Array:
    """A copy in the memory order of x; by the driver's copy, if x has no gaps."""
    order = sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))
    lying = x.transpose(*order)
    y = launch.empty(lying.shape, x.dtype)
    if lying._c_contiguous:
        np.copyto(y, lying)
    else:
        copy_into([(y, lying)])
    return y if order == list(range(x.ndim)) else y.transpose(*np.argsort(order).tolist())


def reshape(x: cupy.ndarray, shape: tuple[int, ...]) -> Array:
    """A view if there can be one, else a copy."""
    if not x._c_contiguous:
        try:
            return x.reshape(shape, copy=False)
        except ValueError:
            x = dense_copy(x)
    return shared.reshape(x, shape)


def concatenate(xs: tuple[Array, ...], axis: int) -> Array:
    first = xs[0]
    if any(x.dtype != first.dtype for x in xs):
        return np.concatenate(xs, axis=axis)
    ends = [0, *accumulate(x.shape[axis] for x in xs)]
    y = launch.empty((*first.shape[:axis], ends[-1], *first.shape[axis + 1:]), first.dtype)
    head = (slice(None),) * axis
    copy_into((view_of(y, (*head, slice(*ends_of))), x) for x, ends_of in zip(xs, pairwise(ends), strict=True))
    return y


def pad(x: Array, widths: tuple[tuple[int, int], ...], value: float) -> Array:
    """x within a frame of one value: (before, after) of each axis. The frame is two boxes per axis. They are as wide as
    x along the axes before that one, and as wide as y along those after it."""
    y = launch.empty(tuple(n + before + after for n, (before, after) in zip(x.shape, widths)), x.dtype)
    inner = tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, widths))
    frame = [view_of(y, (*inner[:axis], part)) for axis, of in enumerate(inner)
             for part in (slice(of.start), slice(of.stop, None))]
    copy_into([(view_of(y, inner), x), *[(box, None) for box in frame]], value)
    return y


def add_parts(gys: tuple[Array, ...], indices: tuple[Index, ...], shape: tuple[int, ...]) -> Array:
    """Zeros of a shape, with each gradient added at its index, which gives a view. One launch if the indices are
    separate runs along one axis, and one more for the zeros if they are not all of it."""
    places = [_place(index, shape) for index in indices]
    (axis, *_), *_ = places
    runs = sorted(place[1:] for place in places)
    if axis is not None and all(place[0] == axis for place in places) and all(
            end <= begin for (_, end), (begin, _) in pairwise(runs)):
        whole = sum(end - begin for begin, end in runs) == shape[axis]
        gx = launch.empty(shape, gys[0].dtype) if whole else cupy.zeros(shape, gys[0].dtype)
        copy_into((view_of(gx, index), gy) for gy, index in zip(gys, indices, strict=True))
        return gx
    gx = cupy.zeros(shape, gys[0].dtype)
    for gy, index in zip(gys, indices, strict=True):
        gx[index] += gy
    return gx


def _place(index: Index, shape: tuple[int, ...]) -> tuple[int | None, int, int]:
    """The axis along which an index takes a run of an array, where that begins and where it ends; None for the axis
    of an index that does anything else."""
    parts = list(index if isinstance(index, tuple) else (index,))
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        parts[at:at + 1] = [slice(None)] * (len(shape) - len(parts) + 1)
    taken = [(axis, part) for axis, part in enumerate(parts) if part != slice(None)]
    if len(taken) != 1 or taken[0][1] is None or isinstance(taken[0][1], bool):
        return None, 0, 0
    (axis, part), = taken
    if isinstance(part, int):
        begin = part % shape[axis]
        return axis, begin, begin + 1
    begin, end, step = part.indices(shape[axis])
    return (axis if step == 1 else None), begin, max(begin, end)
