"""Convolution of images in NHWC by tensor cores: see conv.py and conv_grad_w.py."""

from __future__ import annotations

from ...common.geometry import ConvGeometry, PoolGeometry
from ...common.geometry.sets import NormGeometry
from ...common.primitives import Array
from ..layers.norm.fused import folded
from .conv.conv import grad_x, grad_x_act, max_pooled, y
from .conv.conv_tma import Beside
from .elementwise import act_grad_b_nhwc
from .grad_w.conv_grad_w import grad_w
from .norm import normalize_act_grad_nhwc, normalize_grad_by

__all__ = ["conv2d_grad_w_nhwc", "conv2d_grad_x_act_b_nhwc", "conv2d_grad_x_nhwc", "conv2d_grad_x_norm_nhwc",
           "conv2d_max_pool_nhwc", "conv2d_nhwc", "conv2d_norm_nhwc"]


def conv2d_nhwc(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str | None, precision: str) -> Array:
    """act(conv2d(x)), or conv2d(x) where act is None"""
    return y(x, w, b, g, act, precision=precision)


def conv2d_max_pool_nhwc(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str | None, precision: str,
                         pooling: PoolGeometry) -> tuple[Array, Array]:
    """max_pool2d_nhwc(conv2d_nhwc(x)): (maxima, winners)"""
    return max_pooled(x, w, b, g, act, pooling, precision=precision)


def conv2d_norm_nhwc(x: Array, w: Array, b: Array | None, g: ConvGeometry, mean: Array, var: Array,
                     weight: Array | None, bias: Array | None, eps: float, sets: NormGeometry, act: str | None,
                     precision: str) -> Array:
    """act(normalize_by(conv2d(x))), or without act, by filters that do both."""
    return y(x, *folded(w, b, mean, var, weight, bias, eps), g, act, precision=precision)


def conv2d_grad_x_nhwc(gy: Array, w: Array, g: ConvGeometry, precision: str) -> Array:
    return grad_x(gy, w, g, precision=precision)


def conv2d_grad_x_act_b_nhwc(gy: Array, w: Array, g: ConvGeometry, precision: str, other: Array | None, y: Array,
                             act: str) -> tuple[Array, Array]:
    """act_grad_b_nhwc(conv2d_grad_x_nhwc(gy), other, y): (gz, its sum over each channel)"""
    made, sums = grad_x_act(gy, w, g, act, Beside(other, y), precision=precision)
    return act_grad_b_nhwc(made, other, y, act) if sums is None else (made, sums[0])


def conv2d_grad_x_norm_nhwc(gy: Array, w: Array, g: ConvGeometry, precision: str, other: Array | None,
                            y: Array, x: Array, weight: Array | None, mean: Array, rstd: Array, sets: NormGeometry,
                            act: str) -> tuple[Array, Array, Array, Array]:
    """normalize_act_grad_nhwc(conv2d_grad_x_nhwc(gy), other, y, x): (gz, gx, gw, gb)"""
    made, sums = grad_x_act(gy, w, g, act, Beside(other, y, x, mean, rstd), precision=precision)
    if sums is None:
        return normalize_act_grad_nhwc(made, other, y, x, weight, mean, rstd, sets, act)
    return made, *normalize_grad_by(made, x, weight, mean, rstd, sums)


def conv2d_grad_w_nhwc(gy: Array, x: Array, g: ConvGeometry, precision: str) -> Array:
    """(m,c,kh,kw) of float32"""
    return grad_w(gy, x, g, precision=precision)
