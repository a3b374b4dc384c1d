"""The gradient of indexing on CuPy arrays. Where an element was taken several times, its gradients add up in a fixed
order, which cupy.add.at does not promise."""

from __future__ import annotations

import math

import cupy
import numpy as np

from ...common.primitives import Array
from .. import launch
from ..reduce import sum_first

__all__ = ["embedding_grad_w", "getitem_grad_x"]

FILE = "indexing/scatter.cu"
EMBEDDING, COLUMNS_PER_BLOCK = "indexing/embedding.cu", 128
MIN_SHARE, BLOCKS = 512, 1024              # of ids; blocks up to which they are shared out
CONFIGURATIONS = [(file, (launch.real(dtype),)) for file in (FILE, EMBEDDING) for dtype in launch.C_NAME]


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
