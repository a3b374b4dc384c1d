"""Activations and softmax on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...common import curves
from ...common.primitives import ALL, Array, of_activations
from ..parallel import CHUNK_BYTES, TEMPORARY_BYTES, elementwise, empty, parallel_for, scratch
from ..reduce import sum

curves.scratch = scratch
CHUNKS = {**dict.fromkeys(("relu", "sigmoid", "tanh"), CHUNK_BYTES),       # which need no arrays on the way
          "gelu": TEMPORARY_BYTES // 2}                                    # which needs nine
VALUES, GRADIENTS = of_activations(
    lambda act, x: elementwise(ALL[act].value, x, chunk=CHUNKS.get(act, TEMPORARY_BYTES)),
    lambda act, gy, y: elementwise(ALL[act].grad, gy, y, chunk=CHUNKS.get(act, TEMPORARY_BYTES)))
_OWN = {primitive.__name__: primitive for primitive in (*VALUES.values(), *GRADIENTS.values())}
globals().update(_OWN)

__all__ = ["log_softmax", "log_softmax_grad_x", "softmax", "softmax_grad_x", *_OWN]


def _shifted(x: Array, axis: int) -> Array:
    """x less its largest value along the axis, which leaves softmax as it is and keeps e^x finite."""
    return x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)


def _softmax(x: Array, axis: int) -> Array:
    y = np.exp(_shifted(x, axis))
    y /= sum(y, (axis,), True)
    return y


def _log_softmax(x: Array, axis: int) -> Array:
    y = _shifted(x, axis)
    if y.size:
        y -= np.log(sum(np.exp(y), (axis,), True))
    return y


def _by_rows(work: Callable[..., Array], axis: int, *arrays: Array) -> Array:
    """work(*arrays, axis): along the last axis in chunks of rows on all cores, along another at once."""
    x, length = arrays[0], arrays[0].shape[axis]
    if axis != x.ndim - 1 or x.nbytes <= TEMPORARY_BYTES:
        return work(*arrays, axis)
    y = empty(x.shape, x.dtype)
    rows = [a.reshape(-1, length) for a in (y, *arrays)]

    def some(i: int, j: int) -> None:
        rows[0][i:j] = work(*(a[i:j] for a in rows[1:]), 1)

    parallel_for(len(rows[0]), max(1, TEMPORARY_BYTES // (length * x.itemsize)), some)
    return y


def softmax(x: Array, axis: int) -> Array:
    return _by_rows(_softmax, axis, x)


def softmax_grad_x(gy: Array, y: Array, axis: int) -> Array:
    """y * (gy - sum of gy * y)"""
    return _by_rows(lambda gy, y, axis: y * (gy - sum(gy * y, (axis,), True)), axis, gy, y)


def log_softmax(x: Array, axis: int) -> Array:
    return _by_rows(_log_softmax, axis, x)


def log_softmax_grad_x(gy: Array, y: Array, axis: int) -> Array:
    """gy - softmax * sum of gy"""
    return _by_rows(lambda gy, y, axis: gy - np.exp(y) * sum(gy, (axis,), True), axis, gy, y)
