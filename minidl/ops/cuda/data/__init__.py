"""Batches from stored bytes, on the device that holds them."""

from __future__ import annotations

import functools
from typing import Any

import cupy
import numpy as np

from .. import launch

Array = Any

THREADS = 256

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    ("data/gather.cu", (launch.real(dtype),)) for dtype in launch.C_NAME
]


def gather(images: Array, indices: Array, scale: np.ndarray, shift: np.ndarray, padding: int, dtype: Any) -> Array:
    """images[indices] * scale + shift, one scale and shift a channel: uint8 (N,c,h,w) -> dtype (n,c,h',w').

    A border of `padding` zero bytes is put around each image first, so that it is scaled and shifted too.
    images are on the device; indices may be NumPy's, and are moved to it.
    """
    dtype, (stored, c, h, w) = np.dtype(dtype), images.shape
    indices = cupy.asarray(indices, np.int64)
    n = len(indices)
    y = launch.empty((n, c, h + 2 * padding, w + 2 * padding), dtype)
    launch.kernel("data/gather.cu", "gather", launch.real(dtype))(
        (min(max(1, n * c), 16 * launch.multiprocessors()),), (THREADS,), images, indices,
        _affine(_bytes(scale), _bytes(shift), dtype, images.data.device_id), y, stored, n, c, h, w, padding)
    return y


def _bytes(values: np.ndarray) -> bytes:
    return np.asarray(values, np.float64).tobytes()


@functools.lru_cache(maxsize=256)
def _affine(scale: bytes, shift: bytes, dtype: np.dtype, device: int) -> Array:
    """Scales and shifts on a device: a data set's stay the same, so they are moved there once."""
    with cupy.cuda.Device(device):
        affine = cupy.asarray(np.frombuffer(scale + shift, np.float64).astype(dtype))
        cupy.cuda.get_current_stream().synchronize()   # later batches may be made on other streams
        return affine
