"""Batches from stored bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .parallel import images_a_chunk, parallel_for

Array = np.ndarray


def gather(images: Array, indices: Array, scale: Array, shift: Array, padding: int, dtype: Any) -> Array:
    """images[indices] * scale + shift, one scale and shift a channel: uint8 (N,c,h,w) -> dtype (n,c,h',w').

    A border of `padding` zero bytes is put around each image first, so that it is scaled and shifted too.
    """
    n, (c, h, w) = len(indices), images.shape[1:]
    y = np.empty((n, c, h + 2 * padding, w + 2 * padding), dtype)
    scale, shift = (np.asarray(v, dtype)[:, None, None] for v in (scale, shift))

    def work(i: int, j: int) -> None:
        if padding:
            y[i:j] = shift
        inside = y[i:j, :, padding:padding + h, padding:padding + w]
        np.multiply(images[indices[i:j]], scale, out=inside, dtype=dtype)
        inside += shift

    parallel_for(n, images_a_chunk(y[:1].nbytes), work)
    return y
