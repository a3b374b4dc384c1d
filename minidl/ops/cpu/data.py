"""Batches from stored bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..primitives import Array

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

__all__ = ["advance", "gather", "next_batch"]


def gather(images: Array, indices: Array, scale: ArrayLike, shift: ArrayLike, padding: int, dtype: DTypeLike) -> Array:
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


def next_batch(images: Array, labels: Array, order: Array, position: Array, batch: int, n: int,
               scale: tuple[float, ...], shift: tuple[float, ...], padding: int,
               dtype: DTypeLike) -> tuple[Array, Array]:
    """(gather(...), labels) of the batch after number position[0] of an epoch.

    order: the indices (N,) of the epoch's images in their order. n: how many images that batch has; batch: how many all
    but the last have.
    """
    first = (int(position[0]) + 1) * batch
    indices = order[first:first + n]
    if len(indices) < n:
        raise ValueError(f"next_batch: {n} images were asked for but the epoch has {len(indices)} left; start the next "
                         "one by iterating over the batches")
    return gather(images, indices, scale, shift, padding, dtype), labels[indices]


def advance(position: Array) -> None:
    """position += 1"""
    position += 1
