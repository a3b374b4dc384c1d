"""Batches from stored bytes, and from stored arrays."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.primitives import Array, Augment

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

__all__ = ["advance", "gather", "next_batch", "next_rows"]


def gather(images: Array, indices: Array, scale: ArrayLike, shift: ArrayLike, padding: int, dtype: DTypeLike,
           augment: Augment | None = None, key: Array | None = None) -> Array:
    """images[indices] * scale + shift, one scale and shift a channel: uint8 (N,c,h,w) -> dtype (n,c,h',w').

    A border of `padding` zero bytes is put around each image first, so that it is scaled and shifted too.
    augment: (crop, flip, cutout). Image i is seen as block i of Philox(key), key uint64 (2,), decides: moved by up to
    `crop` pixels in each direction, zero bytes coming in; if flip, mirrored from left to right with probability 1/2;
    and 0, which is the mean of what is normalised, in a square of `cutout` pixels a side around one of the pixels.
    """
    picked, cut = images[indices], None
    if augment is not None and key is not None:
        words = _words(*key.tolist(), len(images))[indices]
        picked, cut = _augmented(_bordered(picked, padding + augment[0]), words, augment)
    else:
        picked = _bordered(picked, padding)
    y = picked.astype(dtype)
    y *= np.asarray(scale, dtype)[:, None, None]
    y += np.asarray(shift, dtype)[:, None, None]
    if cut is not None:
        np.copyto(y, 0, where=cut)
    return y


def _bordered(images: Array, border: int) -> Array:
    """With so many zeros around each image: as bytes, which is a quarter of the work of moving floats."""
    if not border:
        return images
    n, c, h, w = images.shape
    y = np.zeros((n, c, h + 2 * border, w + 2 * border), images.dtype)
    y[:, :, border:border + h, border:border + w] = images
    return y


@functools.lru_cache(maxsize=2)
def _words(seed: int, counter: int, count: int) -> Array:
    """The first blocks of Philox(seed, counter), four words each: drawn once for an epoch, as one by one takes long."""
    return np.random.Philox(key=np.array([seed, counter], np.uint64)).random_raw(4 * count).reshape(count, 4)


def _augmented(images: Array, words: Array, augment: Augment) -> tuple[Array, Array | None]:
    """Images with a border of `crop` pixels, cropped and mirrored as words (n,4) say, and where they are cut out; the
    memory of those that were given is used."""
    crop, flip, cutout = augment

    def below(size: int, bits: Array) -> Array:
        """A number in [0, size) from 32 random bits."""
        return ((bits & np.uint64(0xffffffff)) * np.uint64(size) >> np.uint64(32)).astype(np.int64)

    def low_and_high(word: Array) -> tuple[Array, Array]:
        return word, word >> np.uint64(32)

    height, width = images.shape[2] - 2 * crop, images.shape[3] - 2 * crop
    if crop:
        down, right = (below(2 * crop + 1, bits) for bits in low_and_high(words[:, 0]))
        axes: Any = 2, 3                   # NumPy 2.2 and 2.3 allow more than one, and have types for one only
        windows = np.lib.stride_tricks.sliding_window_view(images, (height, width), axis=axes)
        images = windows[np.arange(len(images)), :, down, right]
    if flip:
        mirrored = words[:, 1] % np.uint64(2) == 1
        images[mirrored] = images[mirrored, :, :, ::-1]
    if not cutout:
        return images, None
    top, left = (below(size, bits) - cutout // 2
                 for size, bits in zip((height, width), low_and_high(words[:, 2]), strict=True))
    rows, columns = ((np.arange(size) - first[:, None]).astype(np.uint64) < cutout            # not below 0 either
                     for size, first in ((height, top), (width, left)))
    return images, rows[:, None, :, None] & columns[:, None, None, :]


def next_batch(images: Array, labels: Array, order: Array, position: Array, batch: int, n: int,
               scale: tuple[float, ...], shift: tuple[float, ...], padding: int, dtype: DTypeLike,
               augment: Augment | None = None, key: Array | None = None) -> tuple[Array, Array]:
    """(gather(...), labels) of the batch after number position[0] of an epoch.

    order: the indices (N,) of the epoch's images in their order. n: how many images that batch has; batch: how many all
    but the last have.
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
