"""Concatenation of CuPy arrays."""

from __future__ import annotations

import numpy as np

from ...common.primitives import Array
from .. import launch

__all__ = ["concatenate"]


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
