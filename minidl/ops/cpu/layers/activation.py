"""Activations and softmax on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...common import curves
from ...common.primitives import ALL, Array, of_activations
from ..parallel import CHUNK_BYTES, TEMPORARY_BYTES, elementwise, empty, parallel_for, scratch, straight
from ..reduce import max, sum
from ..reduce.along import dots

curves.scratch = scratch
CHUNKS = {"gelu": TEMPORARY_BYTES}         # it needs nine arrays
VALUES, GRADIENTS = of_activations(
    lambda act, x: elementwise(ALL[act].value, x, chunk=CHUNKS.get(act, CHUNK_BYTES)),
    lambda act, gy, y: elementwise(ALL[act].grad, gy, y, chunk=CHUNKS.get(act, CHUNK_BYTES)))
_OWN = {primitive.__name__: primitive for primitive in (*VALUES.values(), *GRADIENTS.values())}
globals().update(_OWN)

__all__ = ["log_softmax", "log_softmax_grad_x", "softmax", "softmax_grad_x", *_OWN]


def _softmax(y: Array, x: Array, axis: int) -> None:
    np.subtract(x, max(x, (axis,), True), out=y)       # the same softmax, by a finite e^x
    np.exp(y, out=y)
    y /= sum(y, (axis,), True)


def _softmax_grad(gx: Array, gy: Array, y: Array, axis: int) -> None:
    """y * (gy - sum of gy * y)"""
    total = dots(gy, y)[..., None] if axis == y.ndim - 1 else sum(np.multiply(gy, y, out=gx), (axis,), True)
    np.subtract(gy, total, out=gx)
    gx *= y


def _log_softmax(y: Array, x: Array, axis: int) -> None:
    np.subtract(x, max(x, (axis,), True), out=y)
    y -= np.log(sum(np.exp(y, out=scratch("e to the y", y.shape, y.dtype)), (axis,), True))


def _log_softmax_grad(gx: Array, gy: Array, y: Array, axis: int) -> None:
    """gy - softmax * sum of gy"""
    np.exp(y, out=gx)
    gx *= sum(gy, (axis,), True)
    np.subtract(gy, gx, out=gx)


def _by_rows(work: Callable[..., None], axis: int, *arrays: Array) -> Array:
    """An array that work(y, *arrays, axis) fills: along the last axis in chunks of rows, along another at once."""
    y, length = empty(arrays[0].shape, arrays[0].dtype), arrays[0].shape[axis]
    if y.size and (axis != y.ndim - 1 or y.nbytes <= CHUNK_BYTES):
        work(y, *arrays, axis)
    elif y.size:
        rows = [a.reshape(-1, length) for a in (y, *map(straight, arrays))]
        parallel_for(len(rows[0]), -(-CHUNK_BYTES // (length * y.itemsize)),
                     lambda i, j: work(*(a[i:j] for a in rows), 1))
    return y


def softmax(x: Array, axis: int) -> Array:
    return _by_rows(_softmax, axis, x)


def softmax_grad_x(gy: Array, y: Array, axis: int) -> Array:
    return _by_rows(_softmax_grad, axis, gy, y)


def log_softmax(x: Array, axis: int) -> Array:
    return _by_rows(_log_softmax, axis, x)


def log_softmax_grad_x(gy: Array, y: Array, axis: int) -> Array:
    return _by_rows(_log_softmax_grad, axis, gy, y)
