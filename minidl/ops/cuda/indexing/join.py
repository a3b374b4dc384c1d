"""Copies of CuPy arrays: of whole ones, of several into one, and of gradients into the parts of one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import cupy
import numpy as np

from ...common.primitives import Array, Index
from .. import launch

__all__ = ["add_parts", "concatenate", "copy"]

FILE = "indexing/join.cu"
UNITS = {16: "int4", 8: "unsigned long long", 4: "unsigned", 2: "unsigned short", 1: "unsigned char"}  # by bytes
CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [(FILE, (("UNIT", unit),)) for unit in UNITS.values()]


def copy(x: Array) -> Array:
    """In the order in which x lies in memory; by the driver's copy, which is twice as fast as CuPy's, if it has no
    gaps."""
    order = sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))
    lying = x.transpose(*order)
    y = launch.empty(lying.shape, x.dtype)
    np.copyto(y, lying)
    return y if order == list(range(x.ndim)) else y.transpose(*np.argsort(order).tolist())


def concatenate(xs: tuple[Array, ...], axis: int) -> Array:
    first = xs[0]
    if any(x.dtype != first.dtype for x in xs):
        return np.concatenate(xs, axis=axis)
    ends = [0, *accumulate(x.shape[axis] for x in xs)]
    y = launch.empty((*first.shape[:axis], ends[-1], *first.shape[axis + 1:]), first.dtype)
    _copy_parts(y, axis, [(x, *ends_of) for x, ends_of in zip(xs, pairwise(ends), strict=True)])
    return y


def add_parts(gys: tuple[Array, ...], indices: tuple[Index, ...], shape: tuple[int, ...]) -> Array:
    """Zeros of a shape, to which gradients are added where indices, which give views, say. One launch where these are
    next to each other along one axis, and one for zeros where they are not all of it."""
    places = [_place(index, shape) for index in indices]
    (axis, *_), *_ = places
    runs = sorted(place[1:] for place in places)
    if axis is not None and all(place[0] == axis for place in places) and all(
            end <= begin for (_, end), (begin, _) in pairwise(runs)):
        whole = sum(end - begin for begin, end in runs) == shape[axis]
        gx = launch.empty(shape, gys[0].dtype) if whole else cupy.zeros(shape, gys[0].dtype)
        _copy_parts(gx, axis, [(np.expand_dims(gy, axis) if gy.ndim < len(shape) else gy, *place[1:])
                               for gy, place in zip(gys, places, strict=True)])
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


# ---------------------------------------------------------------- one launch for up to 16 parts
class _Part(NamedTuple):
    """One part, in bytes."""

    source: cupy.ndarray                   # lives until the launch
    to: int
    rows: int
    width: int
    from_pitch: int


def _copy_parts(y: cupy.ndarray, axis: int, given: Sequence[tuple[Array, int, int]]) -> None:
    """y[..., begin:end, ...] = x along an axis, for each of given (x, begin, end)."""
    each = math.prod(y.shape[axis + 1:]) * y.itemsize
    pitch = y.shape[axis] * each
    parts = [_part(x, axis, y.data.ptr + begin * each) for x, begin, _ in given if x.size]
    table = np.zeros((), launch.struct("Parts"))
    count = table["from"].size
    for some in (parts[i:i + count] for i in range(0, len(parts), count)):
        bits = pitch                       # whose last one that is set is that of the largest common power of two
        for part in some:
            bits |= part.source.data.ptr | part.to | part.width | part.from_pitch
        unit = min(bits & -bits, 16)
        sizes = [part.rows * part.width // unit for part in some]
        table["first"], table["width"] = np.iinfo(np.int32).max, 1
        for name, values in (("from", [part.source.data.ptr for part in some]), ("to", [part.to for part in some]),
                             ("first", [0, *accumulate(sizes[:-1])]), ("width", [part.width // unit for part in some]),
                             ("from_pitch", [part.from_pitch // unit for part in some]), ("to_pitch", pitch // unit)):
            table[name][:len(some)] = values
        launch.kernel(FILE, "copy_parts", ("UNIT", UNITS[unit]))(
            (launch.spread(sum(sizes)),), (launch.THREADS,), table.tobytes(), sum(sizes))


def _part(x: cupy.ndarray, axis: int, to: int) -> _Part:
    """An array as rows: the axes before one count them, and those from it on lie in one piece."""
    rows, width = math.prod(x.shape[:axis]), math.prod(x.shape[axis:]) * x.itemsize
    pitch = width if x._c_contiguous else _pitch(x, axis)
    if pitch is None:
        x, pitch = cupy.ascontiguousarray(x), width
    return _Part(x, to, rows, width, pitch)


def _pitch(x: Array, axis: int) -> int | None:
    """Bytes from one row to the next; None where rows are not in one piece, or not equally far apart."""
    lying = x.itemsize
    for n, stride in _longer(x, axis, x.ndim):
        if stride != lying:
            return None
        lying *= n
    pitch, far = lying, None
    for n, stride in _longer(x, 0, axis):
        if far is None:
            pitch = far = stride
        if stride != far or stride < lying:
            return None
        far *= n
    return pitch


def _longer(x: Array, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Size and stride of the axes of more than one element, the last one first."""
    return ((x.shape[a], x.strides[a]) for a in reversed(range(first, last)) if x.shape[a] > 1)
