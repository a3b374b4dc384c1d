"""Products of many matrices."""

from __future__ import annotations

import numpy as np

from ..common.primitives import Array

__all__ = ["bmm"]


def bmm(x: Array, y: Array, transpose_x: bool, transpose_y: bool) -> Array:
    """x (n,r,k) @ y (n,k,s) -> (n,r,s); a transposed one is stored (n,k,r), or (n,s,k)."""
    return np.matmul(x.swapaxes(1, 2) if transpose_x else x, y.swapaxes(1, 2) if transpose_y else y)
