"""What is fused on CUDA, on NumPy arrays: the plain primitives in turn."""

from __future__ import annotations

import numpy as np

from ...common.geometry import ConvGeometry, PoolGeometry
from ...common.geometry.sets import NormGeometry
from ...common.primitives import Array
from ...common.shared import add
from ..conv import conv2d, conv2d_grad_b, conv2d_grad_w
from .activation import GRADIENTS, VALUES
from .linear import linear, linear_grad_x
from .loss import cross_entropy, cross_entropy_grad_x
from .norm import batch_norm, normalize_by, normalize_grad
from .pool import avg_pool2d, avg_pool2d_grad_x

__all__ = [
    "add_act", "add_grad_act", "avg_pool2d_grad_act", "batch_norm_act", "conv2d_act", "conv2d_act_pool",
    "conv2d_act_pool_grad_wb", "conv2d_norm", "conv2d_norm_act", "cross_entropy_with_grad", "linear_act",
    "linear_and_act", "linear_grad_act", "normalize_act_grad",
]


def add_act(x: Array, other: Array, act: str) -> Array:
    """act(x + other)"""
    return VALUES[act](add(x, other))


def add_grad_act(gy: Array, other: Array, y: Array, act: str) -> Array:
    """The gradient by z of y = act(z), which two have read: gy + other is its gradient. y is z for those of OF_X."""
    return GRADIENTS[act](add(gy, other), y)


def linear_act(x: Array, w: Array, b: Array | None, act: str) -> Array:
    """act(linear(x))"""
    return VALUES[act](linear(x, w, b))


def linear_grad_act(gy: Array, w: Array, y: Array, act: str) -> Array:
    """The gradient of linear(act(z)) by z, from y = act(z); for those of OF_X y is z."""
    return GRADIENTS[act](linear_grad_x(gy, w), y)


def linear_and_act(x: Array, w: Array, b: Array | None, act: str) -> tuple[Array, Array]:
    """(z, act(z)) of z = linear(x)"""
    z = linear(x, w, b)
    return z, VALUES[act](z)


def batch_norm_act(x: Array, other: Array | None, w: Array | None, b: Array | None, running_mean: Array,
                   running_var: Array, momentum: float, eps: float, g: NormGeometry,
                   act: str) -> tuple[Array, Array, Array]:
    """(y, mean, rstd): y = act(batch_norm(x) + other)"""
    z, mean, rstd = batch_norm(x, w, b, running_mean, running_var, momentum, eps, g)
    return VALUES[act](z if other is None else add(z, other)), mean, rstd


def normalize_act_grad(gy: Array, other: Array | None, y: Array, x: Array, w: Array | None, mean: Array, rstd: Array,
                       g: NormGeometry, act: str) -> tuple[Array, Array, Array, Array]:
    """(gz, gx, gw, gb): the gradients by z and by x, weight and bias, of y = act(z), z = normalize(x) plus a residual,
    where gy + other is the gradient by y. gz is the residual's, too. y is z for those of OF_X."""
    gz = GRADIENTS[act](gy if other is None else add(gy, other), y)
    return gz, *normalize_grad(gz, x, w, mean, rstd, g)


def avg_pool2d_grad_act(gy: Array, y: Array, g: PoolGeometry, act: str) -> Array:
    """The gradient of avg_pool2d(act(x)) by x, from y = act(x)."""
    return GRADIENTS[act](avg_pool2d_grad_x(gy, g), y)


def conv2d_act(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str) -> Array:
    """act(conv2d(x))"""
    return VALUES[act](conv2d(x, w, b, g))


def conv2d_act_pool(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str,
                    pooling: PoolGeometry) -> tuple[Array, Array]:
    """(y, its averages) of y = act(conv2d(x))"""
    y = conv2d_act(x, w, b, g, act)
    return y, avg_pool2d(y, pooling)


def conv2d_act_pool_grad_wb(gp: Array, y: Array, x: Array, g: ConvGeometry, act: str,
                            pooling: PoolGeometry) -> tuple[Array, Array]:
    """(dw, db) of avg_pool2d(y), y = act(conv2d(x)), from the averages' gradient gp; x's gradient is not needed"""
    gz = avg_pool2d_grad_act(gp, y, pooling, act)
    return conv2d_grad_w(gz, x, g), conv2d_grad_b(gz)


def conv2d_norm(x: Array, w: Array, b: Array | None, g: ConvGeometry, mean: Array, var: Array, weight: Array | None,
                bias: Array | None, eps: float, sets: NormGeometry) -> Array:
    """normalize_by(conv2d(x)): on CUDA one convolution, by filters that do both."""
    return normalize_by(conv2d(x, w, b, g), mean, var, weight, bias, eps, sets)


def conv2d_norm_act(x: Array, w: Array, b: Array | None, g: ConvGeometry, mean: Array, var: Array,
                    weight: Array | None, bias: Array | None, eps: float, sets: NormGeometry, act: str) -> Array:
    """act(normalize_by(conv2d(x)))"""
    return VALUES[act](conv2d_norm(x, w, b, g, mean, var, weight, bias, eps, sets))


def cross_entropy_with_grad(x: Array, labels: Array, reduction: str, smoothing: float) -> tuple[Array, Array]:
    """(loss, gx): the loss, and the gradient by x of its values' sum."""
    loss, log_p = cross_entropy(x, labels, reduction, smoothing)
    return loss, cross_entropy_grad_x(np.ones_like(loss), log_p, labels, reduction, smoothing)
