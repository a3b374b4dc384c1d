"""Convolution of images in NHWC: by tensor cores, see conv.py and conv_grad_w.py, or in thin groups, see
conv/grouped."""

from __future__ import annotations

from ...common.geometry import ConvGeometry, PoolGeometry
from ...common.geometry.sets import NormGeometry
from ...common.primitives import Array
from ..conv import grouped
from ..layers.norm.fused import folded
from ..layers.pool.windows import max_pool2d
from .conv import conv
from .conv.conv_tma import Beside
from .elementwise import act_grad_b_nhwc, add_bias_nhwc
from .grad_w.conv_grad_w import grad_w
from .norm.batch import normalize_act_grad_nhwc, normalize_grad_by

__all__ = ["conv2d_grad_w_nhwc", "conv2d_grad_x_act_b_nhwc", "conv2d_grad_x_nhwc", "conv2d_grad_x_norm_nhwc",
           "conv2d_max_pool_nhwc", "conv2d_nhwc", "conv2d_norm_nhwc", "conv2d_transposed_nhwc"]


def conv2d_nhwc(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str | None, precision: str) -> Array:
    """act(conv2d(x)), or conv2d(x) if act is None"""
    if not g.dense:
        return grouped.y(x, w, b, g, grouped.NHWC, act)
    return conv.y(x, w, b, g, act, precision=precision)


def conv2d_max_pool_nhwc(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str | None, precision: str,
                         pooling: PoolGeometry) -> tuple[Array, Array]:
    """max_pool2d(conv2d_nhwc(x)): (maxima, winners)"""
    if not g.dense:
        return max_pool2d(conv2d_nhwc(x, w, b, g, act, precision), pooling)
    return conv.max_pooled(x, w, b, g, act, pooling, precision=precision)


def conv2d_norm_nhwc(x: Array, w: Array, b: Array | None, g: ConvGeometry, mean: Array, var: Array,
                     weight: Array | None, bias: Array | None, eps: float, sets: NormGeometry, act: str | None,
                     precision: str) -> Array:
    """act(normalize_by(conv2d(x))), or without act. The filters do both: the convolution and the normalisation."""
    return conv2d_nhwc(x, *folded(w, b, mean, var, weight, bias, eps), g, act, precision)


def conv2d_grad_x_nhwc(gy: Array, w: Array, g: ConvGeometry, precision: str) -> Array:
    return grouped.dx(gy, w, g, grouped.NHWC) if not g.dense else conv.grad_x(gy, w, g, precision=precision)


def conv2d_transposed_nhwc(x: Array, w: Array, b: Array, g: ConvGeometry, act: str | None, precision: str) -> Array:
    """add_bias_nhwc(conv2d_grad_x_nhwc(x)): act(conv_transpose2d(x) + b)"""
    if not g.dense:
        return add_bias_nhwc(grouped.dx(x, w, g, grouped.NHWC), b, act)
    return conv.grad_x(x, w, g, b, act, precision=precision)


def _grad_x(gy: Array, w: Array, g: ConvGeometry, precision: str, act: str,
            beside: Beside) -> tuple[Array, Array | None]:
    """(the gradient by x, None); or (gz, its sums) if the kernel also does what `beside` is for."""
    if not g.dense:
        return grouped.dx(gy, w, g, grouped.NHWC), None
    return conv.grad_x_act(gy, w, g, act, beside, precision=precision)


def conv2d_grad_x_act_b_nhwc(gy: Array, w: Array, g: ConvGeometry, precision: str, other: Array | None, y: Array,
                             act: str) -> tuple[Array, Array]:
    """act_grad_b_nhwc(conv2d_grad_x_nhwc(gy), other, y): (gz, its sum over each channel)"""
    made, sums = _grad_x(gy, w, g, precision, act, Beside(other, y))
    return act_grad_b_nhwc(made, other, y, act) if sums is None else (made, sums[0])


def conv2d_grad_x_norm_nhwc(gy: Array, w: Array, g: ConvGeometry, precision: str, other: Array | None,
                            y: Array, x: Array, weight: Array | None, mean: Array, rstd: Array, sets: NormGeometry,
                            act: str) -> tuple[Array, Array, Array, Array]:
    """normalize_act_grad_nhwc(conv2d_grad_x_nhwc(gy), other, y, x): (gz, gx, gw, gb)"""
    made, sums = _grad_x(gy, w, g, precision, act, Beside(other, y, x, mean, rstd))
    if sums is None:
        return normalize_act_grad_nhwc(made, other, y, x, weight, mean, rstd, sets, act)
    return made, *normalize_grad_by(made, x, weight, mean, rstd, sums)


def conv2d_grad_w_nhwc(gy: Array, x: Array, g: ConvGeometry, precision: str) -> Array:
    """(m,c,kh,kw) of float32"""
    return grouped.dw(gy, x, g, grouped.NHWC) if not g.dense else grad_w(gy, x, g, precision=precision)
