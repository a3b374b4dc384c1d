"""Batches from stored bytes, on the device that holds them."""

from __future__ import annotations

import functools
import math
from typing import Any

import cupy
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ...common.primitives import Array, Augment
from .. import launch

__all__ = ["advance", "gather", "next_batch", "next_rows"]

WORDS: dict[np.dtype, launch.Constant] = {         # what rows are copied as
    np.dtype(np.int32): ("WORD", "int"), np.dtype(np.uint8): ("WORD", "unsigned char")}

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *(("data/gather.cu", (launch.real(dtype),)) for dtype in launch.C_NAME),
    *(("data/rows.cu", (word,)) for word in WORDS.values())
]


def gather(images: Array, indices: Array, scale: ArrayLike, shift: ArrayLike, padding: int, dtype: DTypeLike,
           augment: Augment | None = None, key: Array | None = None) -> Array:
    """images[indices] * scale + shift, one scale and shift a channel: uint8 (N,c,h,w) -> dtype (n,c,h',w').

    A border of `padding` zero bytes is put around each image first, so that it is scaled and shifted too.
    images are on the device; indices may be NumPy's, and are moved to it. augment, and key on the device: as the CPU's.
    """
    indices = cupy.asarray(indices, np.int64)
    n, (stored, c, h, w) = len(indices), images.shape
    affine, y = _affine_and_batch(images, n, scale, shift, padding, np.dtype(dtype))
    given = images, indices, affine, y, stored, n, c, h, w, padding
    _start("gather", y, n * c, given, augment, key)
    return y


def next_batch(images: Array, labels: Array, order: Array, position: Array, batch: int, n: int,
               scale: tuple[float, ...], shift: tuple[float, ...], padding: int, dtype: DTypeLike,
               augment: Augment | None = None, key: Array | None = None) -> tuple[Array, Array]:
    """(gather(...), labels) of the batch after number position[0] of an epoch.

    order: the indices (N,) of the epoch's images in their order. n: how many images that batch has; batch: how many all
    but the last have. Images beyond the order's end have NaN as pixels and -1 as label.
    """
    stored, c, h, w = images.shape
    affine, y = _affine_and_batch(images, n, scale, shift, padding, np.dtype(dtype))
    picked = launch.empty((n,), labels.dtype)
    given = images, labels, order, position, affine, y, picked, stored, len(order), batch, n, c, h, w, padding
    _start("next_batch", y, n * c, given, augment, key)
    return y, picked


def next_rows(rows: Array, order: Array, position: Array, batch: int, n: int) -> Array:
    """rows[order[...]] of the batch after number position[0] of an epoch: any dtype (N,...) -> (n,...).

    order, batch, n: as in next_batch. In rows beyond the order's end each byte is 0xFF: NaN, or -1.
    """
    y = launch.empty((n, *rows.shape[1:]), rows.dtype)
    size = math.prod(rows.shape[1:]) * rows.dtype.itemsize
    word = _word(rows, size)
    if y.size:
        launch.kernel("data/rows.cu", "next_rows", WORDS[word])(
            _grid(launch.blocks(y.nbytes, launch.THREADS * word.itemsize)), (launch.THREADS,), _flat(rows, word), order,
            position, _flat(y, word), len(order), batch, n, size // word.itemsize)
    return y


def _word(rows: cupy.ndarray, size: int) -> np.dtype:
    """The largest word that divides rows of `size` bytes and their address."""
    return np.dtype("uint8" if size % 4 or rows.data.ptr % 4 else "int32")


def _flat(rows: Array, word: np.dtype) -> Array:
    return rows.reshape(-1).view(word)


def advance(position: Array) -> None:
    """position += 1, in place."""
    cupy.add(position, 1, position)


def _start(name: str, y: Array, planes: int, given: tuple[Any, ...], augment: Augment | None,
            key: Array | None) -> None:
    """Starts a kernel of gather.cu, or if images are augmented the one that does that too."""
    if augment is not None:
        crop, flip, cutout, *jitter, reflect = augment
        turns = 2 if flip == "alternate" else int(flip)
        name, given = f"augmented_{name}", (*given, key, crop, int(reflect), turns, cutout, *jitter)
    launch.kernel("data/gather.cu", name, launch.real(y.dtype))(_grid(planes), (launch.THREADS,), *given)


def _grid(planes: int) -> tuple[int]:
    return (min(max(1, planes), 16 * launch.multiprocessors()),)


def _affine_and_batch(images: cupy.ndarray, n: int, scale: ArrayLike, shift: ArrayLike, padding: int,
                      dtype: np.dtype) -> tuple[Array, Array]:
    """Scales and shifts on the device, and memory for n of the images."""
    _, c, h, w = images.shape
    return (_affine(_bytes(scale), _bytes(shift), dtype, images.data.device_id),
            launch.empty((n, c, h + 2 * padding, w + 2 * padding), dtype))


def _bytes(values: ArrayLike) -> bytes:
    return np.asarray(values, np.float64).tobytes()


@functools.lru_cache(maxsize=256)
def _affine(scale: bytes, shift: bytes, dtype: np.dtype, device: int) -> Array:
    """Scales and shifts on a device: a data set's stay the same, so they are moved there once."""
    with cupy.cuda.Device(device), launch.for_all_streams():
        return cupy.asarray(np.frombuffer(scale + shift, np.float64).astype(dtype))
