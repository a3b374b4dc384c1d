"""Values by their numbers, and the sums of their gradients, on NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...common import shared
from ...common.primitives import Array, Index
from ..parallel import TEMPORARY_BYTES, empty, images_per_chunk, parallel_for, scratch, straight
from ..reduce import sum
from .loss import places

__all__ = ["add_parts", "embedding_grad_w", "getitem", "getitem_grad_x", "one_hot", "take_along",
           "take_along_grad_x"]

TERMS = 8                                  # of a sum that are added one by one; such sums are then added up in turn
FEW_ROWS, MAX_TERMS = 16, 1 << 13          # rows whose sums are computed by products; terms that are computed at once
PRODUCT = 32                               # terms of one product: some BLAS add them one after the other
FEW_VALUES = 1 << 17                       # gradients and sums, up to which one pass in float64 takes the least time
MIN_PLACES = 1 << 11                       # of an index of all axes; more places are computed, in half the time
MIN_TAKEN = 1 << 18                        # values from which on np.take is called: an index takes columns one by one


def _order(ids: Array, rows: int) -> Array:
    """The stable order of rising numbers below `rows`, by 16 bits at a time: NumPy sorts these by their digits, and
    longer ones by comparing, which takes ten times as long."""
    order = np.argsort(ids.astype(np.uint16), kind="stable")
    for shift in range(16, rows.bit_length(), 16):
        order = order[np.argsort((ids[order] >> shift).astype(np.uint16), kind="stable")]
    return order


def one_hot(labels: Array, classes: int) -> Array:
    """As ops.common.choice.one_hot, of labels that are classes."""
    y = np.zeros((*labels.shape, classes), np.int64)
    y.reshape(-1)[places(labels.reshape(-1), classes)] = 1
    return y


def _take(x: Array, rows: Array) -> Array:
    return np.take(x, rows, 0, out=empty((len(rows), x.shape[1]), x.dtype), mode="clip")


def _product(gy: Array, ids: Array, rows: int) -> Array | None:
    """Sums of rows as the product with a matrix of 0 and 1; None if gy is not finite: 0 times that would be NaN."""
    if not np.isfinite(gy).all():
        return None
    count, (n, d) = -(-len(ids) // PRODUCT), gy.shape
    block, place = np.divmod(np.arange(n), PRODUCT)
    ones, terms = np.zeros((count, rows, PRODUCT), gy.dtype), gy
    ones[block, ids, place] = 1
    if n % PRODUCT:
        terms = np.zeros((count * PRODUCT, d), gy.dtype)
        terms[:n] = gy
    return sum(np.matmul(ones, terms.reshape(count, PRODUCT, d)), (0,))


def embedding_grad_w(gy: Array, ids: Array, rows: int) -> Array:
    """gw[r] = the sum of gy[i] over all i with ids[i] = r: gy (...,d), ids (...), gw (rows,d).

    The rounding errors grow only with the logarithm of how often a row was taken.
    """
    d, ids = gy.shape[-1], ids.reshape(-1).astype(np.intp, copy=False)
    gy = gy.reshape(len(ids), d)
    if d > 1 and rows <= FEW_ROWS and len(ids) > 4 * rows:
        parts = parallel_for(len(ids), MAX_TERMS, lambda i, j: _product(gy[i:j], ids[i:j], rows))
        if all(part is not None for part in parts):
            return sum(np.stack(parts), (0,))
    gw = empty((rows, d), gy.dtype)
    if d == 1 or (len(ids) + rows) * d <= FEW_VALUES:
        places = ids if d == 1 else (ids * d)[:, None] + np.arange(d)
        sums = np.bincount(places.reshape(-1), gy.reshape(-1).astype(np.float64, copy=False), rows * d)
        gw[...] = sums.reshape(rows, d)
        return gw
    gw.fill(0)
    order = _order(ids, rows)              # those of one row are next to each other
    ids = ids[order]
    while True:
        first = np.diff(ids, prepend=-1) != 0
        rank = np.arange(len(ids)) - np.flatnonzero(first)[np.cumsum(first) - 1]
        begin = np.flatnonzero(rank % TERMS == 0)
        count, last = np.diff(begin, append=len(ids)), not rank.max(initial=0) >= TERMS
        ids = ids[begin]
        sums, to = (gw, ids) if last else (empty((len(ids), d), gy.dtype), np.arange(len(ids)))
        for term in range(count.max(initial=0)):
            more = count > term
            begin, to, count = begin[more], to[more], count[more]
            part = _take(gy, order[begin + term])
            if term:
                part += _take(sums, to)
            sums[to] = part
        if last:
            return gw
        gy, order = sums, np.arange(len(ids))


def add_parts(gys: tuple[Array, ...], indices: tuple[Index, ...], shape: tuple[int, ...]) -> Array:
    """Zeros of a shape, to which each gradient is added at its index; the indices give views."""
    gx = empty(shape, gys[0].dtype)
    gx.fill(0)
    for gy, index in zip(gys, indices, strict=True):
        gx[index] += gy
    return gx


def _along(index: Array, axis: int) -> tuple[Array, ...]:
    """An index of all axes; all but the given one count through the array."""
    grids = [np.arange(n).reshape(-1, *(1,) * (index.ndim - 1 - a)) for a, n in enumerate(index.shape)]
    return (*grids[:axis], index, *grids[axis + 1:])


def _by_places(index: Array, shape: tuple[int, ...], axis: int, work: Callable[[slice, Array], object]) -> None:
    """work(a slice of rows of index, their places), for all rows. The places are what the numbers along an axis mean in
    an array of a shape in C order. It runs in parallel, but not for axis 0: there other rows may mean the same places.
    Raises IndexError if a number is out of range."""
    n, steps = shape[axis], [math.prod(shape[a + 1:]) for a in range(len(shape))]

    def some(i: int, j: int) -> None:
        part = index[i:j]
        # Read as unsigned, numbers below 0 are larger than all others of their dtype
        if part.view(f"u{part.itemsize}").max() >= min(n, np.iinfo(part.dtype).max + 1):
            where: Index = *(0,) * axis, part
            part = np.arange(n).reshape(*(1,) * axis, n)[where]                       # or IndexError
        places = scratch("places", part.shape, np.intp)
        np.multiply(part, steps[axis], out=places, casting="unsafe")
        for a, m in enumerate(index.shape):
            if a != axis:
                at = np.arange(i, j) if a == 0 else np.arange(m)
                places += (at * steps[a]).reshape(-1, *(1,) * (index.ndim - 1 - a))
        work(slice(i, j), places)

    rows = images_per_chunk(8 * math.prod(index.shape[1:]), TEMPORARY_BYTES)
    if axis:
        parallel_for(len(index), rows, some)
    else:
        for i in range(0, len(index), rows):
            some(i, min(i + rows, len(index)))


def take_along(x: Array, index: Array, axis: int) -> Array:
    """x's values by their numbers along an axis: index has x's shape, or less along other axes, and y has index's."""
    if index.size <= MIN_PLACES:
        return x[_along(index, axis)]
    y, values = empty(index.shape, x.dtype), straight(x).reshape(-1)
    _by_places(index, x.shape, axis, lambda rows, places: np.take(values, places, out=y[rows], mode="clip"))
    return y


def take_along_grad_x(gy: Array, index: Array, shape: tuple[int, ...], axis: int, once: bool) -> Array:
    """The gradient of take_along by x, of a shape. once: no element was taken twice."""
    if index.size <= MIN_PLACES:
        return shared.getitem_grad_x(gy, _along(index, axis), shape, once)
    gx = empty(shape, gy.dtype)
    gx.fill(0)
    flat = gx.reshape(-1)

    def store(rows: slice, places: Array) -> None:
        if once:
            flat[places] = gy[rows]
        else:                              # with one axis: with more NumPy takes ten times as long
            np.add.at(flat, places.reshape(-1), gy[rows].reshape(-1))
    _by_places(index, shape, axis, store)
    return gx


def _numbered(index: Index) -> int:
    """The axis that an array of integers indexes, if the index has nothing else than full slices; else -1."""
    parts = index if isinstance(index, tuple) else (index,)
    *before, last = parts or (None,)
    numbers = isinstance(last, np.ndarray) and last.dtype.kind in "iu"
    return len(before) if numbers and all(isinstance(i, slice) and i == slice(None) for i in before) else -1


def getitem(x: Array, index: Index) -> Array:
    # Of one element NumPy gives a number, and with an Ellipsis the view that it gives of several.
    if type(index) is int:
        return x[index, ...]
    axis = _numbered(index) if x.size >= MIN_TAKEN else -1
    if axis > 0:
        return np.take(x, index[axis], axis)
    y = x[index]
    if isinstance(y, np.ndarray):
        return y
    one = *(index if isinstance(index, tuple) else (index,)), ...
    return x[one]


def getitem_grad_x(gy: Array, index: Index, shape: tuple[int, ...], once: bool) -> Array:
    """As ops.common.shared.getitem_grad_x; of whole rows by the sums of `embedding_grad_w`."""
    axis = _numbered(index)
    if once and gy.size == math.prod(shape):           # nothing is left that would be 0
        gx = empty(shape, gy.dtype)
        gx[index] = gy
        return gx
    if once or 0 in shape or gy.size == 0:
        return shared.getitem_grad_x(gy, index, shape, once)
    if axis >= 0:
        ids, n, d = (index[axis] if isinstance(index, tuple) else index), shape[axis], math.prod(shape[axis + 1:])
        gy = gy.reshape(*shape[:axis], ids.size, *shape[axis + 1:])
        if axis:
            among = np.broadcast_to(ids.reshape(-1, *(1,) * (len(shape) - 1 - axis)), gy.shape)
            return take_along_grad_x(gy, among, shape, axis, False)
        ids = ids.reshape(-1).astype(np.intp, copy=False)
        return embedding_grad_w(gy.reshape(-1, d), np.where(ids < 0, ids + n, ids), n).reshape(shape)
    if math.prod(shape) > 4 * gy.size:
        return shared.getitem_grad_x(gy, index, shape, once)
    gx = empty(shape, gy.dtype)
    gx.fill(0)
    places = np.arange(gx.size, dtype=np.min_scalar_type(gx.size)).reshape(shape)[index]
    np.add.at(gx.reshape(-1), places.reshape(-1).astype(np.intp), gy.reshape(-1))
    return gx
