"""Products of batches of matrices on CUDA, by the kernels of the fully connected layer: x (..., i, j), y (..., j, k).

cuBLAS, which CuPy calls, cannot be captured in a graph: it is used for large products alone, outside of one (`gemm`).
"""

from __future__ import annotations

import math

import numpy as np

from ....common import shared
from ....common.primitives import Array
from ... import launch
from . import FILE, gemm, is_thin, product_of
from .dots import dot_products
from .tile import TILES

__all__ = ["matmul", "matmul_grad_x", "matmul_grad_y", "matmul_sum"]


def plus_times(alpha: float, beta: float) -> tuple[launch.Constant, ...]:
    """Constants that make the result alpha times the product, plus beta times another matrix."""
    return ("FUSED", "SUM"), ("ALPHA", repr(alpha)), ("BETA", repr(beta))


CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (launch.real(np.dtype(dtype)), ("BM", bm), ("PRECISION", how), ("TA", 0), ("TB", 0),
            *plus_times(-1.5, 2.0), *wide))
    for dtype, how, bm in TILES if bm in (16, 128) for wide in ((), (("WIDE", 1),))]


def matmul(x: Array, y: Array) -> Array:
    (i, j), k = x.shape[-2:], y.shape[-1]
    if x.dtype != y.dtype or x.dtype.kind != "f":      # CuPy multiplies integers
        return shared.matmul(x, y)
    lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    count = math.prod(lead)
    if 0 in lead or is_thin(count * i if y.ndim == 2 else i, k, j):
        return dot_products(x, y)
    (x, transpose_x), (y, transpose_y) = _as_stored(x), _as_stored(y)
    if y.ndim == 2 and not transpose_x:    # the rows of all matrices
        out = launch.empty((1, count * i, k), x.dtype)
        gemm(_stacked(x.reshape(-1, j), ()), _stacked(y, ()), out, transpose_b=transpose_y)
    else:
        out = launch.empty((count, i, k), x.dtype)
        gemm(_stacked(x, lead), _stacked(y, lead), out, transpose_a=transpose_x, transpose_b=transpose_y)
    return out.reshape(*lead, i, k)


def _as_stored(x: Array) -> tuple[Array, bool]:
    """Matrices whose columns are neighbours in memory, as their rows; and whether the product is to transpose them."""
    turned = x.strides[-2] < x.strides[-1]
    return (x.swapaxes(-1, -2) if turned else x), turned


def _stacked(x: Array, lead: tuple[int, ...]) -> Array:
    """As (count, rows, columns); one matrix for all stays one. The launch copies what is not in C order."""
    if x.size > math.prod(x.shape[-2:]):
        x = np.broadcast_to(x, (*lead, *x.shape[-2:]))
    return x.reshape(-1, *x.shape[-2:])


def matmul_grad_x(gy: Array, y: Array) -> Array:
    return matmul(gy, y.swapaxes(-1, -2))


def matmul_grad_y(gy: Array, x: Array) -> Array:
    return matmul(x.swapaxes(-1, -2), gy)


def matmul_sum(x: Array, y: Array, z: Array, alpha: float, beta: float) -> Array:
    """alpha * x @ y + beta * z: x (n,i,j), y (n,j,k), z (n,i,k), floating"""
    sizes = *z.shape, x.shape[2], len(x), len(y), False, 0
    return product_of(x, y, None, launch.empty(z.shape, z.dtype), sizes, False, False,
                         fused=plus_times(alpha, beta), y=z)
