"""Batches from stored bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray


def gather(images: Array, indices: Array, scale: Array, shift: Array, padding: int, dtype: Any) -> Array:
    """images[indices] * scale + shift, one scale and shift a channel: uint8 (N,c,h,w) -> dtype (n,c,h',w').

    A border of `padding` zero bytes is put around each image first, so that it is scaled and shifted too.
    """
    picked = images[indices]
    if padding:                            # as bytes, which is a quarter of the work of moving floats
        n, c, h, w = picked.shape
        inside, picked = picked, np.zeros((n, c, h + 2 * padding, w + 2 * padding), images.dtype)
        picked[:, :, padding:padding + h, padding:padding + w] = inside
    y = picked.astype(dtype)
    y *= np.asarray(scale, dtype)[:, None, None]
    y += np.asarray(shift, dtype)[:, None, None]
    return y
