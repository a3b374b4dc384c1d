"""Concatenation, and the gradient of indexing, on CuPy arrays. Where an element was taken several times, its gradients
add up in a fixed order, which cupy.add.at does not promise."""

from __future__ import annotations

import math

import cupy
import numpy as np

from ...common.primitives import Array
from .. import launch
from ..reduce import sum_first

__all__ = ["concatenate", "embedding_grad_w", "getitem_grad_x"]

FILE = "indexing/scatter.cu"
EMBEDDING, COLUMNS_PER_BLOCK = "indexing/embedding.cu", 128
MIN_SHARE, BLOCKS = 512, 1024              # of ids; blocks up to which they are shared out
CONFIGURATIONS = [(file, (launch.real(dtype),)) for file in (FILE, EMBEDDING) for dtype in launch.C_NAME]


def concatenate(xs: tuple[Array, ...], axis: int) -> Array:
    """One array beside the other, copied 16 bytes at a time where the last axis of each is a run of these: element by
    element, bfloat16 is copied at a sixth of the memory's speed."""
    if not all(x.ndim and x.size and x.dtype == xs[0].dtype and x.flags.c_contiguous and x.dtype.itemsize < 16
               and x.shape[-1] * x.dtype.itemsize % 16 == 0 for x in xs):
        return np.concatenate(xs, axis=axis)
    before, behind = xs[0].shape[:axis], xs[0].shape[axis + 1:]
    y = launch.empty((*before, sum(x.shape[axis] for x in xs), *behind), xs[0].dtype)
    wide, start = y.view(np.complex128), 0
    for x in xs:
        part = x.view(np.complex128)
        stop = start + part.shape[axis]
        wide[(slice(None),) * axis + (slice(start, stop),)] = part
        start = stop
    return y


def getitem_grad_x(gy: Array, index: object, shape: tuple[int, ...], once: bool) -> Array:
    """Put a gradient back where it was taken from. once: no element was taken twice, so a plain store does."""
    gx = cupy.zeros(shape, gy.dtype)
    if once:
        gx[index] = gy
        return gx
    taken = cupy.arange(math.prod(shape), dtype=np.int64).reshape(shape)[index].ravel()
    order = cupy.argsort(taken)            # stable: equal elements stay in the order in which they were taken
    launch.kernel(FILE, "scatter", launch.real(gy.dtype))(
        (launch.blocks(gy.size, launch.THREADS),), (launch.THREADS,), gy, taken[order],
        order, gx, gy.size)
    return gx


def embedding_grad_w(gy: Array, ids: Array, rows: int) -> Array:
    """gw[r] = the sum of gy[i] over all i with ids[i] = r: gy (...,d), ids (...), gw (rows,d)."""
    d = gy.shape[-1]
    blocks = launch.blocks(rows, launch.THREADS // 32), launch.blocks(d, COLUMNS_PER_BLOCK)
    shares = min(launch.blocks(ids.size, MIN_SHARE), launch.blocks(BLOCKS, math.prod(blocks)))
    each = launch.blocks(ids.size, shares)
    gw = launch.empty((shares, rows, d), gy.dtype)
    if gw.size:
        launch.kernel(EMBEDDING, "embedding_grad_w", launch.real(gy.dtype))(
            (*blocks, shares), (launch.THREADS,), gy, ids.astype(np.int64, copy=False), gw, ids.size, d, rows, each)
    return sum_first(gw) if shares > 1 else gw[0]
