"""Images in NHWC on NumPy arrays: what the CUDA kernels of this name are held against, by the plain primitives.

A compiled step on the CPU keeps to NCHW. Where images are stored in bfloat16, filters are rounded to it too, and each
result once.
"""

from __future__ import annotations

import numpy as np

from ..common.geometry import ConvGeometry, PoolGeometry
from ..common.nhwc import AXES, BACK, STORES, bf16, widened
from ..common.primitives import Array
from ..common.sets import NormGeometry
from .activation import GRADIENTS, VALUES
from .conv import conv2d, conv2d_grad_b, conv2d_grad_w, conv2d_grad_x
from .norm import batch_norm, normalize_by, normalize_grad
from .pool import avg_pool2d, avg_pool2d_grad_act, avg_pool2d_grad_x, max_pool2d, max_pool2d_grad_x

__all__ = [
    "act_grad_b_nhwc", "act_grad_nhwc", "act_nhwc", "add_nhwc", "avg_pool2d_grad_act_nhwc", "avg_pool2d_grad_x_nhwc",
    "avg_pool2d_nhwc", "batch_norm_nhwc", "conv2d_grad_b_nhwc", "conv2d_grad_w_nhwc", "conv2d_grad_x_nhwc",
    "conv2d_nhwc", "max_pool2d_grad_relu_b_nhwc", "max_pool2d_grad_relu_nhwc", "max_pool2d_grad_x_nhwc",
    "max_pool2d_nhwc", "normalize_by_nhwc", "normalize_grad_nhwc", "to_nchw", "to_nhwc",
]


def to_nhwc(x: Array, store: str) -> Array:
    """(n,c,h,w) of float32 -> (n,h,w,c) of STORES[store]"""
    return _stored(x, STORES[store])


def to_nchw(x: Array) -> Array:
    """(n,h,w,c) of either type -> (n,c,h,w) of float32"""
    return np.ascontiguousarray(widened(x).transpose(BACK))


def _stored(y: Array, dtype: np.dtype) -> Array:
    y = np.ascontiguousarray(y.transpose(AXES))
    return bf16(y) if dtype == np.uint16 else y


def _rounded(w: Array, precision: str) -> Array:
    return widened(bf16(w)) if precision == "bf16" else w


# ---------------------------------------------------------------- convolution
def conv2d_nhwc(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str | None, precision: str) -> Array:
    """act(conv2d(x)), or conv2d(x) where act is None"""
    y = conv2d(to_nchw(x), _rounded(w, precision), b, g)
    return _stored(VALUES[act](y) if act else y, x.dtype)


def conv2d_grad_x_nhwc(gy: Array, w: Array, g: ConvGeometry, precision: str) -> Array:
    return _stored(conv2d_grad_x(to_nchw(gy), _rounded(w, precision), g), gy.dtype)


def conv2d_grad_w_nhwc(gy: Array, x: Array, g: ConvGeometry, precision: str) -> Array:
    """(m,c,kh,kw) of float32"""
    return conv2d_grad_w(to_nchw(gy), to_nchw(x), g)


def conv2d_grad_b_nhwc(gy: Array) -> Array:
    """(m,) of float32"""
    return conv2d_grad_b(to_nchw(gy))


# ---------------------------------------------------------------- element by element
def act_nhwc(x: Array, act: str) -> Array:
    return _stored(VALUES[act](to_nchw(x)), x.dtype)


def act_grad_nhwc(gy: Array, y: Array, act: str) -> Array:
    """The gradient of act(x) by x, from y = act(x); of activations of OF_X from x."""
    return _stored(GRADIENTS[act](to_nchw(gy), to_nchw(y)), gy.dtype)


def act_grad_b_nhwc(gy: Array, y: Array, act: str) -> tuple[Array, Array]:
    """(act_grad_nhwc, its sum over each channel)"""
    gz = act_grad_nhwc(gy, y, act)
    return gz, conv2d_grad_b_nhwc(gz)


def add_nhwc(x: Array, y: Array) -> Array:
    return _stored(to_nchw(x) + to_nchw(y), x.dtype)


# ---------------------------------------------------------------- pooling
def max_pool2d_nhwc(x: Array, g: PoolGeometry) -> tuple[Array, Array]:
    """(y, index) as max_pool2d, the index as bytes."""
    y, index = max_pool2d(to_nchw(x), g)
    return _stored(y, x.dtype), np.ascontiguousarray(index.transpose(AXES)).astype(np.uint8)


def max_pool2d_grad_x_nhwc(gy: Array, index: Array, g: PoolGeometry) -> Array:
    return _stored(max_pool2d_grad_x(to_nchw(gy), index.transpose(BACK), g), gy.dtype)


def max_pool2d_grad_relu_nhwc(gy: Array, index: Array, y: Array, g: PoolGeometry) -> Array:
    """The gradient of y = max_pool2d(relu(x)) by x: relu lets pass what won where the winner is above 0."""
    return max_pool2d_grad_x_nhwc(act_grad_nhwc(gy, y, "relu"), index, g)


def max_pool2d_grad_relu_b_nhwc(gy: Array, index: Array, y: Array, g: PoolGeometry) -> tuple[Array, Array]:
    """(max_pool2d_grad_relu_nhwc, its sum over each channel)"""
    gz = max_pool2d_grad_relu_nhwc(gy, index, y, g)
    return gz, conv2d_grad_b_nhwc(gz)


def avg_pool2d_nhwc(x: Array, g: PoolGeometry) -> Array:
    return _stored(avg_pool2d(to_nchw(x), g), x.dtype)


def avg_pool2d_grad_x_nhwc(gy: Array, g: PoolGeometry) -> Array:
    return _stored(avg_pool2d_grad_x(to_nchw(gy), g), gy.dtype)


def avg_pool2d_grad_act_nhwc(gy: Array, y: Array, g: PoolGeometry, act: str) -> Array:
    return _stored(avg_pool2d_grad_act(to_nchw(gy), to_nchw(y), g, act), gy.dtype)


# ---------------------------------------------------------------- normalisation
def batch_norm_nhwc(x: Array, w: Array | None, b: Array | None, running_mean: Array, running_var: Array,
                    momentum: float, eps: float, g: NormGeometry, act: str | None) -> tuple[Array, Array, Array]:
    """batch_norm, and act of it where one is given; statistics are of float32."""
    y, mean, rstd = batch_norm(to_nchw(x), w, b, running_mean, running_var, momentum, eps, g)
    return _stored(VALUES[act](y) if act else y, x.dtype), mean, rstd


def normalize_by_nhwc(x: Array, mean: Array, var: Array, w: Array | None, b: Array | None, eps: float,
                      g: NormGeometry) -> Array:
    return _stored(normalize_by(to_nchw(x), mean, var, w, b, eps, g), x.dtype)


def normalize_grad_nhwc(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array, g: NormGeometry,
                        y: Array | None, act: str | None) -> tuple[Array, Array, Array]:
    """normalize_grad of gy, or of what act lets pass of it: y is what act computed then."""
    gz = GRADIENTS[act](to_nchw(gy), to_nchw(y)) if act and y is not None else to_nchw(gy)
    gx, gw, gb = normalize_grad(gz, to_nchw(x), w, mean, rstd, g)
    return _stored(gx, gy.dtype), gw, gb
