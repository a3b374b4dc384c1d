"""Dropout on CuPy arrays, by the counter-based generator of rng.py."""

from __future__ import annotations

from ....common.primitives import Array
from ... import launch

__all__ = ["dropout", "dropout_grad_x"]

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    ("layers/activation/dropout.cu", (launch.real(dtype),)) for dtype in launch.C_NAME]


def dropout(x: Array, p: float, key: tuple[int, int] | Array) -> Array:
    """x / (1 - p) if the i-th float32 of Philox(key), in C order, is at least p; else 0. An array holds the key of a
    captured graph, (2,) of uint64."""
    y = launch.empty(x.shape, x.dtype)
    run = launch.kernel("layers/activation/dropout.cu", "dropout", launch.real(x.dtype))
    keys = (None, *key) if isinstance(key, tuple) else (key, 0, 0)
    run((launch.blocks(x.size, 8 * launch.THREADS),), (launch.THREADS,), x, y, x.size, p, 1 - p, *keys)
    return y


def dropout_grad_x(gy: Array, p: float, key: tuple[int, int] | Array) -> Array:
    return dropout(gy, p, key)             # the same mask again: drawing it costs less than keeping it
