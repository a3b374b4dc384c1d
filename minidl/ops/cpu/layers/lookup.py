"""The gradient of rows that were taken by number, on NumPy arrays."""

from __future__ import annotations

import numpy as np

from ...common.primitives import Array

__all__ = ["embedding_grad_w"]


def embedding_grad_w(gy: Array, ids: Array, rows: int) -> Array:
    """gw[r] = the sum of gy[i] over all i with ids[i] = r: gy (...,d), ids (...), gw (rows,d)."""
    d = gy.shape[-1]
    gw = np.zeros((rows, d), gy.dtype)
    if ids.size and d:
        flat = ids.reshape(-1)
        order = np.argsort(flat, kind="stable")
        taken, first = np.unique(flat[order], return_index=True)
        gw[taken] = np.add.reduceat(gy.reshape(-1, d)[order], first, axis=0)
    return gw
