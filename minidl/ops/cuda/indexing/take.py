"""Values taken by arrays of indices, and the gradients of that, on CuPy arrays. If an element was taken several times,
its gradients add up in a fixed order, which cupy.add.at does not promise."""

from __future__ import annotations

import functools
import math
from typing import Any

import cupy
import numpy as np

from ...common import shared
from ...common.primitives import Array, Index
from .. import launch
from ..reduce import sum_first
from .copies import copy_into, view_of
from .join import copy
from .order import PLACES, by_digits

__all__ = ["embedding_grad_w", "getitem", "getitem_grad_x", "setitem", "take_along", "take_along_grad_x"]

SCATTER, TAKE, ALONG, MASK = (f"indexing/{name}.cu" for name in ("scatter", "take", "along", "mask"))
EMBEDDING, COLUMNS_PER_BLOCK = "indexing/embedding.cu", 128
MIN_SHARE, BLOCKS = 512, 1024              # ids of a share; blocks up to which ids are shared out
MAX_COMPARED = 1 << 24                     # ids times rows, up to which each row looks for its ids: about 10 us
MAX_FIRSTS = 512                           # ids, up to which each is compared with all others
MAX_READ, MAX_READ_BY_ALL = 16, 1 << 20    # elements that each result reads, at most; and that all results do
MAX_IN_TURN = 4096                         # elements of a line, up to which a warp adds it up
SHARE, MAX_ALONE = 32, 128                 # elements of a share of a sorted line; and of a line that is one share
WIDTH = 4                                  # columns of a thread, if rows are aligned to them
VECTOR = 16                                # bytes that a thread takes at once
ITEMS: dict[int, tuple[launch.Constant, type]] = {         # by bytes
    1: (("ITEM", "unsigned char"), np.uint8), 2: (("ITEM", "unsigned short"), np.uint16),
    4: (("ITEM", "unsigned"), np.uint32), 8: (("ITEM", "unsigned long long"), np.uint64)}
CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *((file, (launch.real(dtype),)) for file in (EMBEDDING, ALONG, MASK) for dtype in launch.C_NAME),
    *((SCATTER, (launch.real(dtype), ("WIDTH", width))) for dtype in launch.C_NAME for width in (1, WIDTH)),
    *((TAKE, (constant, ("WIDTH", width))) for size, (constant, _) in ITEMS.items() for width in (1, VECTOR // size))]


# ---------------------------------------------------------------- what an index is
def _is_ints(index: object) -> bool:
    return hasattr(index, "dtype") and index.dtype.kind in "iu"


def _is_mask_of(index: Index, x: Array, shape: tuple[int, ...]) -> bool:
    """Whether an index is a mask of a shape's first axes, of the same array type as x."""
    return (index.__class__ is x.__class__ and index.dtype == np.bool_ and index.shape == shape[:index.ndim])


def _is_all(part: object) -> bool:
    return isinstance(part, slice) and part == slice(None)


def _is_basic(index: Index) -> bool:
    """Whether an index gives a view."""
    return all(part is None or part is Ellipsis or (isinstance(part, (int, slice)) and not isinstance(part, bool))
               for part in (index if isinstance(index, tuple) else (index,)))


def _in_full(parts: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    """An index of ints, slices and arrays of ints with slices in the place of an Ellipsis, and none behind the last
    part that chooses."""
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    parts = (*parts[:at], *[slice(None)] * (ndim - len(parts) + 1), *parts[at + 1:])
    chosen = [i for i, part in enumerate(parts) if not _is_all(part)]
    return parts[:chosen[-1] + 1] if chosen else parts


def _ids(index: Array) -> Array:
    return cupy.asarray(index).astype(np.int64, copy=False)


# ---------------------------------------------------------------- values
def getitem(x: Array, index: Index) -> Array:
    """x[index]. An array of indices, x[i] or x[:, i], and a pair of them, x[i, j], take
    one launch; a mask takes two, and the host waits for its count."""
    parts = index if type(index) is tuple else (index,)
    ours = x.size and x.itemsize in ITEMS and x.flags.c_contiguous and 0 < len(parts) <= x.ndim
    if ours and parts[-1].__class__ is x.__class__ and _is_ints(parts[-1]) and all(map(_is_all, parts[:-1])):
        return _rows(x, parts[-1], len(parts) - 1)
    if (ours and len(parts) == 1 and x.dtype in launch.C_NAME and _is_mask_of(parts[0], x, x.shape)
            and not launch.is_dry()):      # in which nothing would be counted
        return _take_set(x, parts[0])
    if not (ours and len(parts) == 2 and all(
            _is_ints(part) and part.__class__ is x.__class__ and part.shape == parts[0].shape for part in parts)):
        return shared.getitem(x, index)
    (rows, columns), d = x.shape[:2], math.prod(x.shape[2:])
    y = launch.empty((*parts[0].shape, *x.shape[2:]), x.dtype)
    _take(x, parts[0], parts[1], y, rows, columns, d, 1)
    return y


def _rows(x: Array, index: Array, axis: int) -> Array:
    """x's parts by their indices along an axis."""
    y = launch.empty((*x.shape[:axis], *index.shape, *x.shape[axis + 1:]), x.dtype)
    _take(x, None, index, y, *_around(x.shape, axis), index.size, by_row=True)
    return y


def take_along(x: Array, index: Array, axis: int) -> Array:
    """x's values by their indices along an axis. index may be smaller than x along other axes; y has index's shape."""
    x = x[_cut(index.shape, axis)]
    y = launch.empty(index.shape, x.dtype)
    before, n, inner = _around(x.shape, axis)
    _take(x, None, index, y, before, n, inner, index.shape[axis])
    return y


def _take(x: cupy.ndarray, first: Array | None, index: Array, y: cupy.ndarray, before: int, n: int, inner: int, m: int,
          by_row: bool = False) -> None:
    if not y.size:
        return
    constant, item = ITEMS[x.itemsize]
    width = VECTOR // x.itemsize
    if not (by_row or first is not None) or inner % width or x.data.ptr % VECTOR or y.data.ptr % VECTOR:
        width = 1
    size = y.size // width
    launch.kernel(TAKE, "take", constant, ("WIDTH", width))(
        (launch.spread(size),), (launch.THREADS,), x.view(item), None if first is None else _ids(first), _ids(index),
        y.view(item), size, before, n, inner, m, int(by_row))


def _around(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """How many elements an axis has before it, along it and behind it."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1:])


def _cut(shape: tuple[int, ...], axis: int) -> tuple[slice, ...]:
    """Slices that cut a larger array to a shape, but keep all of it along one axis."""
    return tuple(slice(None if a == axis else n) for a, n in enumerate(shape))


def setitem(x: Array, index: Index, value: Array) -> None:
    """As ops.common.shared.setitem; one number by a mask in one launch: CuPy would wait for the mask's count."""
    if getattr(value, "shape", ()) == () and _is_mask_of(index, x, x.shape):
        if x.dtype in launch.C_NAME and x.flags.c_contiguous and x.size and value.__class__ is not x.__class__:
            with np.errstate(over="ignore"):           # what is too large is infinite, as in CuPy
                number = float(x.dtype.type(value))
            launch.kernel(MASK, "fill_set", launch.real(x.dtype))(
                (launch.spread(x.size),), (launch.THREADS,), x, launch.dense(index).view(np.uint8), x.size,
                x.size // index.size, number)
            return
        where = index.reshape(*index.shape, *(1,) * (x.ndim - index.ndim))
        np.copyto(x, value, casting="unsafe", where=np.broadcast_to(where, x.shape))
    elif _is_basic(index) and x.size:
        _set_view(view_of(x, index), value)
    else:
        shared.setitem(x, index, value)


def _set_view(place: Array, value: Array) -> None:
    """place[...] = value, an array or a number."""
    there = value.__class__ is place.__class__
    if not there and np.ndim(value) == 0:
        copy_into([(place, None)], value)
    elif there and value.dtype == place.dtype and value.ndim <= place.ndim:
        if np.may_share_memory(place, value):
            value = copy(value)            # the launch reads and writes at once
        copy_into([(place, np.broadcast_to(value, place.shape))])
    else:
        shared.setitem(place, ..., value)


# ---------------------------------------------------------------- gradients
def getitem_grad_x(gy: Array, index: Index, shape: tuple[int, ...], once: bool) -> Array:
    """Put a gradient back where it was taken from. once: no element was taken twice, so a plain store is enough."""
    if once and _is_mask_of(index, gy, shape):
        return _spread_set(gy, index, shape)
    if once and _is_basic(index):
        gx = launch.empty(shape, gy.dtype)
        if gy.size < gx.size:              # else the view is all of gx, in another order
            copy_into([(gx, None)])
        copy_into([(view_of(gx, index), gy)])
        return gx
    if once or 0 in shape:
        gx = cupy.zeros(shape, gy.dtype)
        gx[index] = gy
        return gx
    parts = _in_full(index if isinstance(index, tuple) else (index,), len(shape))
    axis, last = len(parts) - 1, parts[-1]
    if _is_ints(last) and all(map(_is_all, parts[:-1])):
        ids, numbers = range(axis, axis + last.ndim), cupy.asarray(last)
        if axis == 0:
            return _add_rows(gy, numbers, shape[0], shape)
        rest = [a for a in range(gy.ndim) if a not in ids]             # x[:, i]: rows, with the axis first
        gx = _add_rows(gy.transpose(*ids, *rest), numbers, shape[axis],
                       (shape[axis], *shape[:axis], *shape[axis + 1:]))
        return launch.dense(np.moveaxis(gx, 0, axis))
    lead = len(parts) if all(map(_is_ints, parts)) else len(shape)     # axes that the index numbers
    rows = math.prod(shape[:lead])
    taken = getitem(cupy.arange(rows, dtype=np.int64).reshape(shape[:lead]), index)
    return _add_rows(gy, taken, rows, shape)


def take_along_grad_x(gy: Array, index: Array, shape: tuple[int, ...], axis: int, once: bool) -> Array:
    """The gradient of take_along with respect to x, which has this shape. once: no element was taken twice."""
    cut = (*index.shape[:axis], shape[axis], *index.shape[axis + 1:])
    if cut != shape:
        gx = cupy.zeros(shape, gy.dtype)
        gx[_cut(cut, axis)] = take_along_grad_x(gy, index, cut, axis, once)
        return gx
    (before, n, inner), m = _around(shape, axis), index.shape[axis]
    if not gy.size:
        return cupy.zeros(shape, gy.dtype)
    sizes, size = (n, inner, m), math.prod(shape)
    if m <= MAX_READ and m * size <= MAX_READ_BY_ALL:
        gx = launch.empty(shape, gy.dtype)
        _along("add_along", launch.spread(size), gy, index, gx, size, *sizes)
        return gx
    gx = launch.empty(shape, gy.dtype) if once and m == n else cupy.zeros(shape, gy.dtype)
    if once or m == 1:
        _along("put_along", launch.spread(gy.size), gy, index, gx, gy.size, *sizes)
    elif m <= MAX_IN_TURN:
        lines = before * inner
        _along("add_in_turn", launch.blocks(32 * lines, launch.THREADS), gy, index, gx, lines, *sizes)
    else:
        _add_sorted(gy, index, gx, before * inner, m, n, inner)
    return gx


def _along(name: str, blocks: int, gy: Array, index: Array, gx: Array, *sizes: int) -> None:
    launch.kernel(ALONG, name, launch.real(gy.dtype))(
        (blocks,), (launch.THREADS,), gy, _ids(index), gx, *sizes)


def _add_rows(gy: Array, ids: Array, rows: int, shape: tuple[int, ...]) -> Array:
    """gx[r] = the sum of gy[i] over all i with ids[i] = r; ids below 0 count from the end. gy (*shape of ids, ...), gx
    of a shape with `rows` rows."""
    d = math.prod(shape) // max(1, rows)
    if rows * ids.size * launch.blocks(d, COLUMNS_PER_BLOCK) <= MAX_COMPARED:
        return _compared(gy, ids, rows, shape, d)
    gx = cupy.zeros(shape, gy.dtype)
    if not gy.size:
        return gx
    if ids.size <= MAX_FIRSTS:
        gy = launch.dense(gy)
        launch.kernel(SCATTER, "add_firsts", launch.real(gy.dtype), _width(d, gy, gx))(
            (launch.spread(gy.size),), (launch.THREADS,), gy, _ids(ids), gx, ids.size, d, rows)
    else:
        _add_sorted(gy, ids, gx, 1, ids.size, rows, 1, d)
    return gx


def _width(d: int, *arrays: cupy.ndarray) -> launch.Constant:
    """How many columns a thread has, in rows of d."""
    return "WIDTH", WIDTH if d % WIDTH == 0 and all(a.data.ptr % (WIDTH * a.itemsize) == 0 for a in arrays) else 1


def _add_sorted(gy: Array, ids: Array, gx: Array, lines: int, m: int, n: int, inner: int, d: int = 1) -> None:
    """gx[b,i,c,:] = the sum of gy[b,j,c,:] over all j with ids[b,j,c] = i: gx (before,n,inner,d), which is zeros; gy
    (before,m,inner,d), ids (before,m,inner) of `lines` lines. The ids are sorted along with the gradients if d is 1,
    else with the places of the rows of gradients. The sums of shares are added up again."""
    gy = launch.dense(gy)
    keys, found = by_digits(_ids(ids), PLACES, lines, m, inner, n, gy if d == 1 else None)
    places, rows, parts = (None, found.view(gy.dtype), 1) if d == 1 else (found, gy, 1)
    while True:
        each = SHARE if m > MAX_ALONE else m
        shares = launch.blocks(m, each)
        split = shares > 1
        next_keys = launch.empty((lines, shares), np.dtype(np.uint32)) if split else None
        left = launch.empty((lines, shares, 2, d), gy.dtype) if split else None
        width = _width(d, rows, gx, *[left] * split)
        launch.kernel(SCATTER, "add_runs", launch.real(gy.dtype), width)(
            (launch.blocks(lines * m * d // width[1], launch.THREADS),), (launch.THREADS,), keys, places, rows, gx,
            next_keys, left, launch.by_value("SortedRuns", lines=lines, m=m, n=n, inner=inner, d=d, each=each,
                                             shares=shares, parts=parts))
        if not split:
            return
        keys, places, rows, m, parts = next_keys, None, left, shares, 2


def embedding_grad_w(gy: Array, ids: Array, rows: int) -> Array:
    """gw[r] = the sum of gy[i] over all i with ids[i] = r; ids below 0 count from the end. gy (...,d), ids (...), gw
    (rows,d)."""
    return _add_rows(gy, ids, rows, (rows, gy.shape[-1]))


def _compared(gy: Array, ids: Array, rows: int, shape: tuple[int, ...], d: int) -> Array:
    """As _add_rows; each row looks for its ids."""
    blocks = launch.blocks(rows, launch.THREADS // 32), launch.blocks(d, COLUMNS_PER_BLOCK)
    shares = min(launch.blocks(ids.size, MIN_SHARE), launch.blocks(BLOCKS, math.prod(blocks)))
    each = launch.blocks(ids.size, shares)
    gw = launch.empty((shares, *shape) if shares > 1 else shape, gy.dtype)
    if gw.size:
        launch.kernel(EMBEDDING, "embedding_grad_w", launch.real(gy.dtype))(
            (*blocks, shares), (launch.THREADS,), gy, ids.astype(np.int64, copy=False), gw, ids.size, d, rows, each)
    return sum_first(gw) if shares > 1 else gw


@functools.lru_cache(maxsize=4096)
def _shares_of(rows: int) -> tuple[int, int]:
    """Rows per block of mask.cu, and blocks."""
    each = launch.THREADS * launch.blocks(rows, launch.THREADS * BLOCKS)
    return each, launch.blocks(rows, each)


def _counted(mask: Array, dtype: np.dtype) -> tuple[cupy.ndarray, cupy.ndarray | None, int, int]:
    """(the mask as bytes, how many true rows each block of mask.cu has or None for one block, rows per block,
    blocks)"""
    each, blocks = _shares_of(mask.size)
    mask, counts = launch.dense(mask).view(np.uint8), None
    if blocks > 1:
        counts = launch.empty((blocks,), np.dtype(np.int32))
        launch.kernel(MASK, "count_set", launch.real(dtype))(
            (blocks,), (launch.THREADS,), mask, counts, mask.size, each)
    return mask, counts, each, blocks


def _spread_set(gy: Array, mask: Array, shape: tuple[int, ...]) -> Array:
    """The rows of gy where the mask of a shape's first axes is true, else 0."""
    gx = launch.empty(shape, gy.dtype)
    if gx.size:
        mask, counts, each, blocks = _counted(mask, gy.dtype)
        launch.kernel(MASK, "spread_set", launch.real(gy.dtype))(
            (blocks,), (launch.THREADS,), gy, mask, counts, gx, mask.size, each, gx.size // mask.size)
    return gx


def _take_set(x: Array, mask: Array) -> Array:
    """x's rows where the mask of its first axes is true; the host waits for their count."""
    of, counts, each, blocks = _counted(mask, x.dtype)
    rows = int((of if counts is None else counts).get().sum())
    y = launch.empty((rows, *x.shape[mask.ndim:]), x.dtype)
    if rows:
        launch.kernel(MASK, "take_set", launch.real(x.dtype))(
            (blocks,), (launch.THREADS,), x, of, counts, y, of.size, each, x.size // of.size)
    return y
