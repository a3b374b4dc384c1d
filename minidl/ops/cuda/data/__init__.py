"""Batches from stored bytes, on the device that holds them."""

from __future__ import annotations

import functools

import cupy
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ...primitives import Array
from .. import launch

__all__ = ["advance", "gather", "next_batch"]

THREADS = 256

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    ("data/gather.cu", (launch.real(dtype),)) for dtype in launch.C_NAME
]


def gather(images: Array, indices: Array, scale: ArrayLike, shift: ArrayLike, padding: int, dtype: DTypeLike) -> Array:
    """images[indices] * scale + shift, one scale and shift a channel: uint8 (N,c,h,w) -> dtype (n,c,h',w').

    A border of `padding` zero bytes is put around each image first, so that it is scaled and shifted too.
    images are on the device; indices may be NumPy's, and are moved to it.
    """
    indices = cupy.asarray(indices, np.int64)
    n, (stored, c, h, w) = len(indices), images.shape
    affine, y = _affine_and_batch(images, n, scale, shift, padding, np.dtype(dtype))
    launch.kernel("data/gather.cu", "gather", launch.real(y.dtype))(
        _grid(n * c), (THREADS,), images, indices, affine, y, stored, n, c, h, w, padding)
    return y


def next_batch(images: Array, labels: Array, order: Array, position: Array, batch: int, n: int,
               scale: tuple[float, ...], shift: tuple[float, ...], padding: int,
               dtype: DTypeLike) -> tuple[Array, Array]:
    """(gather(...), labels) of the batch after number position[0] of an epoch.

    order: the indices (N,) of the epoch's images in their order. n: how many images that batch has; batch: how many all
    but the last have. Of images beyond the order's end the pixels are NaN and the labels -1.
    """
    stored, c, h, w = images.shape
    affine, y = _affine_and_batch(images, n, scale, shift, padding, np.dtype(dtype))
    picked = launch.empty((n,), labels.dtype)
    launch.kernel("data/gather.cu", "next_batch", launch.real(y.dtype))(
        _grid(n * c), (THREADS,), images, labels, order, position, affine, y, picked, stored, len(order), batch, n, c,
        h, w, padding)
    return y, picked


def advance(position: Array) -> None:
    """position += 1, where it lies."""
    cupy.add(position, 1, position)


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
    with cupy.cuda.Device(device):
        affine = cupy.asarray(np.frombuffer(scale + shift, np.float64).astype(dtype))
        cupy.cuda.get_current_stream().synchronize()   # later batches may be made on other streams
        return affine
