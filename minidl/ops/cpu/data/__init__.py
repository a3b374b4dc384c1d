"""Batches from stored bytes, and from stored arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...common.primitives import Array, Augment
from .augment import Views

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

__all__ = ["advance", "gather", "next_batch", "next_rows"]


def gather(images: Array, indices: Array, scale: ArrayLike, shift: ArrayLike, padding: int, dtype: DTypeLike,
           augment: Augment | None = None, key: Array | None = None) -> Array:
    """images[indices] * scale + shift, one scale and shift a channel: uint8 (N,c,h,w) -> dtype (n,c,h',w').

    A border of `padding` zero bytes is put around each image first, so that it is scaled and shifted too.
    augment, key: how images are seen at random (augment.py).
    """
    views = None if augment is None or key is None else Views(augment, key.tolist(), len(images), indices)
    picked = _bordered(images[indices], padding + (views.crop if views and not views.reflect else 0))
    if views:
        if views.reflect:
            picked = np.pad(picked, ((0, 0), (0, 0), *[(views.crop, views.crop)] * 2), "reflect")
        picked = views.moved(picked)
    y = picked.astype(dtype)
    y *= np.asarray(scale, dtype)[:, None, None]
    y += np.asarray(shift, dtype)[:, None, None]
    if views:
        views.finish(y)
    return y


def _bordered(images: Array, border: int) -> Array:
    """With `border` zeros around each image: as bytes, which is a quarter of the work of moving floats."""
    if not border:
        return images
    n, c, h, w = images.shape
    y = np.zeros((n, c, h + 2 * border, w + 2 * border), images.dtype)
    y[:, :, border:border + h, border:border + w] = images
    return y


def next_batch(images: Array, labels: Array, order: Array, position: Array, batch: int, n: int,
               scale: tuple[float, ...], shift: tuple[float, ...], padding: int, dtype: DTypeLike,
               augment: Augment | None = None, key: Array | None = None) -> tuple[Array, Array]:
    """(gather(...), labels) of the batch after number position[0] of an epoch.

    order: the indices (N,) of the epoch's images in their order. n: how many images that batch has; batch: how many
    each batch but the last has.
    """
    indices = _next("next_batch", "images", order, position, batch, n)
    return gather(images, indices, scale, shift, padding, dtype, augment, key), labels[indices]


def next_rows(rows: Array, order: Array, position: Array, batch: int, n: int) -> Array:
    """rows[order[...]] of the batch after number position[0] of an epoch: any dtype (N,...) -> (n,...).

    order, batch, n: as of next_batch.
    """
    return rows[_next("next_rows", "rows", order, position, batch, n)]


def _next(name: str, what: str, order: Array, position: Array, batch: int, n: int) -> Array:
    first = (int(position[0]) + 1) * batch
    indices = order[first:first + n]
    if len(indices) < n:
        raise ValueError(f"{name}: {n} {what} were asked for but the epoch has {len(indices)} left; start the next "
                         "one by iterating over the batches")
    return indices


def advance(position: Array) -> None:
    """position += 1"""
    position += 1
