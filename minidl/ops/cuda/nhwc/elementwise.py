"""Conversions of images to NHWC and back, activations, sums, and gradients by biases."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ...common.geometry.nhwc import C_TYPES, STORES, ordered
from ...common.primitives import Array
from .. import launch
from ..pixels import configurations, constants, rows_of, sums, walk
from ..reduce import sum_first

__all__ = ["act_grad_b_nhwc", "act_grad_nhwc", "act_nhwc", "add_bias_nhwc", "add_nhwc", "conv2d_grad_b_nhwc", "to_nchw",
           "to_nhwc"]

FILE, CONVERT, ELEMENTWISE = "nhwc/elementwise.cu", "nhwc/convert.cu", "layers/activation/activation.cu"
MAX_NARROW = 4                                    # tiles have this many channels if an image has no more

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *configurations(FILE, "relu", "gelu", after=True), *configurations(FILE, None),
    *((CONVERT, (("STORE", c_type), ("TILE", tile))) for c_type in C_TYPES.values() for tile in (MAX_NARROW, 32))]


# ---------------------------------------------------------------- conversions
@functools.lru_cache(maxsize=4096)
def _converting(name: str, n: int, channels: int, pixels: int, dtype: np.dtype) -> Callable[[Array, Array], None]:
    if pixels == 1:                        # the order is the same
        n, channels, pixels = 1, 1, n * channels
    tile = MAX_NARROW if channels <= MAX_NARROW else 32
    tiles = launch.blocks(pixels, 1024 // tile)
    start = launch.kernel(CONVERT, name, ("STORE", C_TYPES[dtype]), ("TILE", tile)).sized(
        (n * tiles, launch.blocks(channels, tile)), (launch.THREADS,))
    return lambda x, y: start(x, y, channels, pixels, tiles)


def to_nhwc(x: Array, store: str) -> Array:
    """(n,c,h,w) of float32 -> (n,h,w,c) of STORES[store]"""
    n, c, h, w = x.shape
    y = launch.empty(ordered(x.shape), STORES[store])
    _converting("to_nhwc", n, c, h * w, y.dtype)(x, y)
    return y


def to_nchw(x: Array) -> Array:
    """(n,h,w,c) of either type -> (n,c,h,w) of float32"""
    n, h, w, c = x.shape
    y = launch.empty((n, c, h, w), np.dtype(np.float32))
    _converting("to_nchw", n, c, h * w, x.dtype)(x, y)
    return y


# ---------------------------------------------------------------- element by element
@functools.lru_cache(maxsize=4096)
def _spread(name: str, size: int, dtype: np.dtype, act: str | None) -> Callable[..., None]:
    """Takes an array as one row of elements; WIDE depends on their number."""
    given = constants(dtype, size, act, True)
    kernel = launch.kernel(ELEMENTWISE, name, *given)
    return kernel.sized((launch.spread(size // dict(given)["WIDE"]),), (launch.THREADS,))


def _elementwise(name: str, act: str | None, x: Array, *others: Array | None) -> Array:
    y = launch.empty(x.shape, x.dtype)
    _spread(name, y.size, y.dtype, act)(x, *others, y, y.size)
    return y


def act_nhwc(x: Array, act: str) -> Array:
    return _elementwise("activation", act, x)


def act_grad_nhwc(gy: Array, other: Array | None, y: Array, act: str) -> Array:
    """The gradient of act(x) by x, from y = act(x), or from x for activations of OF_X. The gradient by y is gy, plus
    other if it is given."""
    return _elementwise("activation_grad_x", act, gy, other, y)


def add_nhwc(x: Array, other: Array, act: str | None) -> Array:
    """x + other, and act of it if act is given"""
    return _elementwise("add_act", act, x, other)


def add_bias_nhwc(x: Array, b: Array, act: str | None) -> Array:
    """x + b, one number for each channel, and act of it if act is given"""
    y = launch.empty(x.shape, x.dtype)
    plan = walk(FILE, "add_bias_nhwc", rows_of(x), x.shape[3], x.dtype, act, True)
    plan.start(x, b, y, plan.struct)
    return y


# ---------------------------------------------------------------- with sums
def conv2d_grad_b_nhwc(gy: Array) -> Array:
    """(m,) of float32"""
    plan = walk(FILE, "conv2d_grad_b_nhwc", rows_of(gy), gy.shape[3], gy.dtype)
    parts = sums(1, plan.splits, gy.shape[3])
    plan.start(gy, parts, plan.struct)
    return sum_first(parts)


def act_grad_b_nhwc(gy: Array, other: Array | None, y: Array, act: str) -> tuple[Array, Array]:
    """(act_grad_nhwc, its sum over each channel)"""
    plan = walk(FILE, "act_grad_b_nhwc", rows_of(gy), gy.shape[3], gy.dtype, act, True)
    gx, parts = launch.empty(gy.shape, gy.dtype), sums(1, plan.splits, gy.shape[3])
    plan.start(gy, other, y, gx, parts, plan.struct)
    return gx, sum_first(parts)
