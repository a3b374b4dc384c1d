"""Images in NHWC on NumPy arrays: what the CUDA kernels of this name are held against, by the plain primitives.

A compiled step on the CPU keeps to NCHW. Where images are stored in bfloat16, filters are rounded to it too (but those
of thin groups, whose products are exact), and each result once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..common.geometry import ConvGeometry, PoolGeometry
from ..common.geometry.nhwc import AXES, BACK, STORES, bf16, widened
from ..common.geometry.sets import NormGeometry
from ..common.primitives import Array
from .conv import conv2d, conv2d_grad_b, conv2d_grad_w, conv2d_grad_x
from .layers.activation import GRADIENTS, VALUES
from .layers.attention import attention, attention_grad
from .layers.fused import avg_pool2d_grad_act, conv2d_act_pool, conv2d_act_pool_grad_wb
from .layers.max_pool import max_pool2d, max_pool2d_grad_x
from .layers.norm import batch_norm, normalize, normalize_by, normalize_grad, normalized
from .layers.pool import avg_pool2d, avg_pool2d_grad_x

__all__ = [
    "act_grad_b_nhwc", "act_grad_nhwc", "act_nhwc", "add_bias_nhwc", "add_nhwc", "attention_grad_stored",
    "attention_stored", "avg_pool2d_grad_act_nhwc", "avg_pool2d_grad_x_nhwc", "avg_pool2d_nhwc", "batch_norm_nhwc",
    "conv2d_act_pool_half", "conv2d_act_pool_half_grad_wb", "conv2d_grad_b_nhwc", "conv2d_grad_w_nhwc",
    "conv2d_grad_x_act_b_nhwc", "conv2d_grad_x_nhwc", "conv2d_grad_x_norm_nhwc", "conv2d_max_pool_nhwc",
    "conv2d_nhwc", "conv2d_norm_nhwc", "conv2d_transposed_nhwc", "layer_norm_grad_nhwc", "layer_norm_nhwc",
    "max_pool2d_grad_relu_b_nhwc", "max_pool2d_grad_relu_nhwc", "max_pool2d_grad_x_nhwc", "max_pool2d_nhwc",
    "normalize_act_grad_nhwc", "normalize_again_act_grad_nhwc", "normalize_by_nhwc", "normalize_grad_nhwc",
    "stores_half", "takes_nhwc", "to_nchw", "to_nhwc",
]

# Whether programs in a precision gain by images in NHWC: never here
takes_nhwc: Callable[[str], bool] | None = None
# Whether there are kernels that store y of a convolution with averages behind it in bf16: nor is that ever so
stores_half: Callable[[ConvGeometry, PoolGeometry], bool] | None = None


def to_nhwc(x: Array, store: str) -> Array:
    """(n,c,h,w) of float32 -> (n,h,w,c) of STORES[store]"""
    return _stored(x, STORES[store])


def to_nchw(x: Array) -> Array:
    """(n,h,w,c) of either type -> (n,c,h,w) of float32"""
    return np.array(widened(x).transpose(BACK), order="C")


def _stored(y: Array, dtype: np.dtype) -> Array:
    return _as(np.array(y.transpose(AXES), order="C"), dtype)


def _as(y: Array, dtype: np.dtype) -> Array:
    return bf16(y) if dtype == np.uint16 else y


def _rounded(w: Array, g: ConvGeometry, precision: str) -> Array:
    return widened(bf16(w)) if precision == "bf16" and g.dense else w


# ---------------------------------------------------------------- convolution
def conv2d_nhwc(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str | None, precision: str) -> Array:
    """act(conv2d(x)), or conv2d(x) where act is None"""
    y = conv2d(to_nchw(x), _rounded(w, g, precision), b, g)
    return _stored(VALUES[act](y) if act else y, x.dtype)


def conv2d_max_pool_nhwc(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str | None, precision: str,
                         pooling: PoolGeometry) -> tuple[Array, Array]:
    """max_pool2d_nhwc(conv2d_nhwc(x)): (maxima, winners)"""
    return max_pool2d_nhwc(conv2d_nhwc(x, w, b, g, act, precision), pooling)


def conv2d_norm_nhwc(x: Array, w: Array, b: Array | None, g: ConvGeometry, mean: Array, var: Array,
                     weight: Array | None, bias: Array | None, eps: float, sets: NormGeometry, act: str | None,
                     precision: str) -> Array:
    """act(normalize_by(conv2d(x))), or without act"""
    y = normalize_by(conv2d(to_nchw(x), _rounded(w, g, precision), b, g), mean, var, weight, bias, eps, sets)
    return _stored(VALUES[act](y) if act else y, x.dtype)


def conv2d_grad_x_nhwc(gy: Array, w: Array, g: ConvGeometry, precision: str) -> Array:
    return _stored(conv2d_grad_x(to_nchw(gy), _rounded(w, g, precision), g), gy.dtype)


def conv2d_transposed_nhwc(x: Array, w: Array, b: Array, g: ConvGeometry, act: str | None, precision: str) -> Array:
    """act(conv_transpose2d(x) + b)"""
    z = conv2d_grad_x(to_nchw(x), _rounded(w, g, precision), g) + b.reshape(-1, 1, 1)
    return _stored(VALUES[act](z) if act else z, x.dtype)


def conv2d_grad_x_act_b_nhwc(gy: Array, w: Array, g: ConvGeometry, precision: str, other: Array | None, y: Array,
                             act: str) -> tuple[Array, Array]:
    """act_grad_b_nhwc(conv2d_grad_x_nhwc(gy), other, y): (gz, its sum over each channel)"""
    return act_grad_b_nhwc(conv2d_grad_x_nhwc(gy, w, g, precision), other, y, act)


def conv2d_grad_x_norm_nhwc(gy: Array, w: Array, g: ConvGeometry, precision: str, other: Array | None,
                            y: Array, x: Array, weight: Array | None, mean: Array, rstd: Array, sets: NormGeometry,
                            act: str) -> tuple[Array, Array, Array, Array]:
    """normalize_act_grad_nhwc(conv2d_grad_x_nhwc(gy), other, y, x): (gz, gx, gw, gb)"""
    gx = conv2d_grad_x_nhwc(gy, w, g, precision)
    return normalize_act_grad_nhwc(gx, other, y, x, weight, mean, rstd, sets, act)


def conv2d_grad_w_nhwc(gy: Array, x: Array, g: ConvGeometry, precision: str) -> Array:
    """(m,c,kh,kw) of float32"""
    return conv2d_grad_w(to_nchw(gy), to_nchw(x), g)


def conv2d_grad_b_nhwc(gy: Array) -> Array:
    """(m,) of float32"""
    return conv2d_grad_b(to_nchw(gy))


# ---------------------------------------------------------------- element by element
def act_nhwc(x: Array, act: str) -> Array:
    return _stored(VALUES[act](to_nchw(x)), x.dtype)


def act_grad_nhwc(gy: Array, other: Array | None, y: Array, act: str) -> Array:
    """The gradient of act(x) by x, from y = act(x), of activations of OF_X from x; gy plus other, where one is given,
    is that by y."""
    return _stored(GRADIENTS[act](_summed(gy, other), to_nchw(y)), gy.dtype)


def _summed(gy: Array, other: Array | None) -> Array:
    return to_nchw(gy) if other is None else to_nchw(gy) + to_nchw(other)


def act_grad_b_nhwc(gy: Array, other: Array | None, y: Array, act: str) -> tuple[Array, Array]:
    """(act_grad_nhwc, its sum over each channel)"""
    gz = act_grad_nhwc(gy, other, y, act)
    return gz, conv2d_grad_b_nhwc(gz)


def add_nhwc(x: Array, other: Array, act: str | None) -> Array:
    """x + other, and act of it where one is given"""
    z = to_nchw(x) + to_nchw(other)
    return _stored(VALUES[act](z) if act else z, x.dtype)


def add_bias_nhwc(x: Array, b: Array, act: str | None) -> Array:
    """x + b, a number for each channel, and act of it where one is given"""
    z = to_nchw(x) + b.reshape(-1, 1, 1)
    return _stored(VALUES[act](z) if act else z, x.dtype)


# ---------------------------------------------------------------- pooling
def max_pool2d_nhwc(x: Array, g: PoolGeometry) -> tuple[Array, Array]:
    """(y, index) as max_pool2d, the index as bytes."""
    y, index = max_pool2d(to_nchw(x), g)
    return _stored(y, x.dtype), np.ascontiguousarray(index.transpose(AXES)).astype(np.uint8)


def max_pool2d_grad_x_nhwc(gy: Array, index: Array, g: PoolGeometry) -> Array:
    return _stored(max_pool2d_grad_x(to_nchw(gy), index.transpose(BACK), g), gy.dtype)


def max_pool2d_grad_relu_nhwc(gy: Array, index: Array, y: Array, g: PoolGeometry) -> Array:
    """The gradient of y = max_pool2d(relu(x)) by x: relu lets pass what won where the winner is above 0."""
    return max_pool2d_grad_x_nhwc(act_grad_nhwc(gy, None, y, "relu"), index, g)


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
def batch_norm_nhwc(x: Array, other: Array | None, w: Array | None, b: Array | None, running_mean: Array,
                    running_var: Array, momentum: float, eps: float, g: NormGeometry,
                    act: str | None) -> tuple[Array, Array, Array]:
    """batch_norm, plus other where one is given, and act of it where one is; statistics are of float32."""
    y, mean, rstd = batch_norm(to_nchw(x), w, b, running_mean, running_var, momentum, eps, g)
    y = y if other is None else y + to_nchw(other)
    return _stored(VALUES[act](y) if act else y, x.dtype), mean, rstd


def normalize_by_nhwc(x: Array, mean: Array, var: Array, w: Array | None, b: Array | None, eps: float,
                      g: NormGeometry) -> Array:
    return _stored(normalize_by(to_nchw(x), mean, var, w, b, eps, g), x.dtype)


def normalize_grad_nhwc(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array,
                        g: NormGeometry) -> tuple[Array, Array, Array]:
    """normalize_grad: (gx, gw, gb)"""
    gx, gw, gb = normalize_grad(to_nchw(gy), to_nchw(x), w, mean, rstd, g)
    return _stored(gx, gy.dtype), gw, gb


def normalize_act_grad_nhwc(gy: Array, other: Array | None, y: Array, x: Array, w: Array | None, mean: Array,
                            rstd: Array, g: NormGeometry, act: str) -> tuple[Array, Array, Array, Array]:
    """normalize_act_grad: (gz, gx, gw, gb)"""
    gz = _stored(GRADIENTS[act](_summed(gy, other), to_nchw(y)), gy.dtype)
    return gz, *normalize_grad_nhwc(gz, x, w, mean, rstd, g)


def normalize_again_act_grad_nhwc(gy: Array, other: Array | None, x: Array, w: Array | None, b: Array | None,
                                  mean: Array, rstd: Array, g: NormGeometry,
                                  act: str) -> tuple[Array, Array, Array, Array]:
    """normalize_act_grad_nhwc, which normalises x once more for what an activation of OF_X was given."""
    z = _stored(normalized(to_nchw(x), mean, rstd, w, b, g), np.dtype(np.float32))
    return normalize_act_grad_nhwc(gy, other, z, x, w, mean, rstd, g, act)


def layer_norm_nhwc(x: Array, w: Array | None, b: Array | None, eps: float,
                    g: NormGeometry) -> tuple[Array, Array, Array]:
    """normalize of each row: (y, mean, rstd); statistics are of float32."""
    y, mean, rstd = normalize(widened(x), w, b, eps, g)
    return _as(y, x.dtype), mean, rstd


def layer_norm_grad_nhwc(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array, g: NormGeometry,
                         other: Array | None) -> tuple[Array, Array, Array]:
    """normalize_grad of each row, and other added to gx where one is given: (gx, gw, gb)"""
    gx, gw, gb = normalize_grad(widened(gy), widened(x), w, mean, rstd, g)
    return _as(gx if other is None else gx + widened(other), gy.dtype), gw, gb


# ---------------------------------------------------------------- attention
def attention_stored(q: Array, k: Array, v: Array, mask: Array | None, causal: bool,
                     scale: float) -> tuple[Array, Array]:
    """attention: (o, sums)"""
    o, sums = attention(widened(q), widened(k), widened(v), mask, causal, scale)
    return _as(o, q.dtype), sums


def attention_grad_stored(go: Array, q: Array, k: Array, v: Array, mask: Array | None, o: Array, sums: Array,
                          causal: bool, scale: float) -> tuple[Array, Array, Array]:
    """attention_grad: (gq, gk, gv)"""
    gq, gk, gv = attention_grad(widened(go), widened(q), widened(k), widened(v), mask, widened(o), sums, causal,
                                scale)
    return _as(gq, q.dtype), _as(gk, q.dtype), _as(gv, q.dtype)


# ---------------------------------------------------------------- in NCHW, stored in bf16
def conv2d_act_pool_half(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str,
                         pooling: PoolGeometry) -> tuple[Array, Array]:
    """(y in bf16 as uint16, its averages) of y = act(conv2d(x))"""
    y, averages = conv2d_act_pool(x, w, b, g, act, pooling)
    return bf16(y), averages


def conv2d_act_pool_half_grad_wb(gp: Array, y: Array, x: Array, g: ConvGeometry, act: str,
                                 pooling: PoolGeometry) -> tuple[Array, Array]:
    """(dw, db) of avg_pool2d(y), y = act(conv2d(x)) in bf16 as uint16, from the averages' gradient gp"""
    return conv2d_act_pool_grad_wb(gp, widened(y), x, g, act, pooling)
