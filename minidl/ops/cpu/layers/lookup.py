"""Values by their numbers, and what gradients of these add up, on NumPy arrays."""

from __future__ import annotations

import math

import numpy as np

from ...common import shared
from ...common.primitives import Array, Index
from ..parallel import empty

__all__ = ["add_parts", "embedding_grad_w", "getitem_grad_x", "take_along", "take_along_grad_x"]


def _order(ids: Array, rows: int) -> Array:
    """The stable order of rising numbers below `rows`, by 16 bits at a time: NumPy sorts these by their digits, and
    longer ones by comparing, which takes ten times as long."""
    order = np.argsort(ids.astype(np.uint16), kind="stable")
    for shift in range(16, rows.bit_length(), 16):
        order = order[np.argsort((ids[order] >> shift).astype(np.uint16), kind="stable")]
    return order


def embedding_grad_w(gy: Array, ids: Array, rows: int) -> Array:
    """gw[r] = the sum of gy[i] over all i with ids[i] = r: gy (...,d), ids (...), gw (rows,d).

    Those of one row lie together once they are sorted. They are added up in pairs, then pairs of pairs, of all rows at
    once: the rounding errors do not grow with how often a row was taken.
    """
    d = gy.shape[-1]
    gw = empty((rows, d), gy.dtype)
    gw.fill(0)
    if ids.size == 0 or d == 0:
        return gw
    ids = ids.reshape(-1).astype(np.intp)
    order = _order(ids, rows)
    ids, sums = ids[order], gy.reshape(-1, d)[order]
    left = np.arange(ids.size)             # the places of sums that are still to be added up
    first = np.flatnonzero(np.diff(ids, prepend=-1))
    rank = left - np.repeat(first, np.diff(first, append=ids.size))        # of each among its row's
    while len(left) > len(first):
        second = np.flatnonzero(rank & 1)
        sums[left[second - 1]] += sums[left[second]]
        left, rank = (np.delete(each, second) for each in (left, rank))
        rank >>= 1
    gw[ids[left]] = sums[left]
    return gw


def add_parts(gys: tuple[Array, ...], indices: tuple[Index, ...], shape: tuple[int, ...]) -> Array:
    """Zeros of a shape, to which gradients are added where indices, which give views, say."""
    gx = empty(shape, gys[0].dtype)
    gx.fill(0)
    for gy, index in zip(gys, indices, strict=True):
        gx[index] += gy
    return gx


def _along(index: Array, axis: int) -> tuple[Array, ...]:
    """An index of all axes, of which all but one count through an array."""
    grids = [np.arange(n).reshape(-1, *(1,) * (index.ndim - 1 - a)) for a, n in enumerate(index.shape)]
    return (*grids[:axis], index, *grids[axis + 1:])


def take_along(x: Array, index: Array, axis: int) -> Array:
    """x's values by their numbers along an axis: index has x's shape, or less along other axes, and gives y's."""
    return x[_along(index, axis)]


def take_along_grad_x(gy: Array, index: Array, shape: tuple[int, ...], axis: int, once: bool) -> Array:
    """The gradient of take_along by x, of a shape. once: no element was taken twice."""
    return getitem_grad_x(gy, _along(index, axis), shape, once)


def getitem_grad_x(gy: Array, index: Index, shape: tuple[int, ...], once: bool) -> Array:
    """As ops.common.shared.getitem_grad_x; of whole rows by the sums of `embedding_grad_w`."""
    if once or not isinstance(index, np.ndarray) or index.dtype.kind not in "iu" or 0 in shape:
        return shared.getitem_grad_x(gy, index, shape, once)
    ids, rows, d = index.astype(np.intp), shape[0], math.prod(shape[1:])
    return embedding_grad_w(gy.reshape(*ids.shape, d), np.where(ids < 0, ids + rows, ids), rows).reshape(shape)
