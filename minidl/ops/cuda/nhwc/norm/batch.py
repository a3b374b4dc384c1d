"""Batch normalisation of images in NHWC: three launches each way."""

from __future__ import annotations

import numpy as np

from ....common.geometry.sets import NormGeometry
from ....common.primitives import Array
from ... import launch
from ...pixels import configurations, rows_of, sums, walk
from ...reduce import sum_first

__all__ = [
    "batch_norm_nhwc", "normalize_act_grad_nhwc", "normalize_again_act_grad_nhwc", "normalize_by_nhwc",
    "normalize_grad_nhwc",
]

FILE, FLOAT = "nhwc/norm/batch.cu", np.dtype(np.float32)
CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *configurations(FILE, None), *configurations(FILE, "relu", "tanh", "gelu", after=True)]


def batch_norm_nhwc(x: Array, other: Array | None, w: Array | None, b: Array | None, running_mean: Array,
                    running_var: Array, momentum: float, eps: float, g: NormGeometry,
                    act: str | None) -> tuple[Array, Array, Array]:
    """batch_norm, plus other if it is given, and act of it if act is given; statistics are in float32."""
    rows, c = rows_of(x), g.channels
    plan = walk(FILE, "batch_moments_nhwc", rows, c, x.dtype)
    parts = sums(2, plan.splits, c)
    plan.start(x, parts, plan.struct)
    y, mean, rstd = launch.empty(x.shape, x.dtype), launch.empty((c,), FLOAT), launch.empty((c,), FLOAT)
    plan = walk(FILE, "batch_norm_nhwc", rows, c, x.dtype, act, True)
    plan.start(x, other, w, b, sum_first(parts), y, mean, rstd, running_mean, running_var, momentum, eps, plan.struct)
    return y, mean, rstd


def normalize_by_nhwc(x: Array, mean: Array, var: Array, w: Array | None, b: Array | None, eps: float,
                      g: NormGeometry) -> Array:
    y = launch.empty(x.shape, x.dtype)
    plan = walk(FILE, "normalize_by_nhwc", rows_of(x), g.channels, x.dtype)
    plan.start(x, mean, var, w, b, y, eps, plan.struct)
    return y


def normalize_grad_nhwc(gy: Array, x: Array, w: Array | None, mean: Array, rstd: Array,
                        g: NormGeometry) -> tuple[Array, Array, Array]:
    """normalize_grad: (gx, gw, gb)"""
    return _gradients("batch_products_nhwc", gy, None, (None, x), x, w, mean, rstd, None)[1:]


def normalize_act_grad_nhwc(gy: Array, other: Array | None, y: Array, x: Array, w: Array | None, mean: Array,
                            rstd: Array, g: NormGeometry, act: str) -> tuple[Array, Array, Array, Array]:
    """normalize_act_grad: (gz, gx, gw, gb)"""
    return _gradients("batch_products_nhwc", gy, other, (y, x), x, w, mean, rstd, act)


def normalize_again_act_grad_nhwc(gy: Array, other: Array | None, x: Array, w: Array | None, b: Array | None,
                                  mean: Array, rstd: Array, g: NormGeometry,
                                  act: str) -> tuple[Array, Array, Array, Array]:
    """normalize_act_grad_nhwc for OF_X: normalises x once more, for what the activation was given."""
    return _gradients("batch_products_again_nhwc", gy, other, (x, w, b), x, w, mean, rstd, act)


def _gradients(name: str, gy: Array, other: Array | None, given: tuple[Array | None, ...], x: Array, w: Array | None,
               mean: Array, rstd: Array, act: str | None) -> tuple[Array, Array, Array, Array]:
    """given: what the kernel of that name takes of y, x and parameters."""
    rows, c = rows_of(x), x.shape[3]
    plan = walk(FILE, name, rows, c, x.dtype, act, True)
    gz, parts = launch.empty(x.shape, x.dtype) if act else gy, sums(2, plan.splits, c)
    plan.start(gy, other, *given, mean, rstd, gz if act else None, parts, plan.struct)
    return gz, *normalize_grad_by(gz, x, w, mean, rstd, sum_first(parts))


def normalize_grad_by(gz: Array, x: Array, w: Array | None, mean: Array, rstd: Array,
                      sums: Array) -> tuple[Array, Array, Array]:
    """normalize_grad: (gx, gw, gb), from sums over pixels, (2, c), of gz and of gz times the normalised x."""
    rows, c = rows_of(x), x.shape[3]
    gx, gw, gb = launch.empty(x.shape, x.dtype), launch.empty((c,), FLOAT), launch.empty((c,), FLOAT)
    plan = walk(FILE, "normalize_grad_nhwc", rows, c, x.dtype)
    plan.start(gz, x, w, mean, rstd, sums, gx, gw, gb, plan.struct)
    return gx, gw, gb
