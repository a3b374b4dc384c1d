"""Normalisation fused with what is next to it, on CuPy arrays: a residual and an activation, or a convolution."""

from __future__ import annotations

from ....common.geometry import ConvGeometry
from ....common.geometry.sets import NormGeometry
from ....common.primitives import Array
from ....common.shared import add
from ... import launch
from ...conv import conv2d
from ...conv.fused import conv2d_act
from ..activation.elementwise import GRADIENTS, VALUES, add_grad_act, alike
from . import batch_norm, gradient, normalize_grad, normalized, plan_of, sizes_of

__all__ = ["batch_norm_act", "conv2d_norm", "conv2d_norm_act", "normalize_act_grad"]

FOLD = "layers/norm/fold.cu"
CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FOLD, (launch.real(dtype),)) for dtype in launch.C_NAME]


def batch_norm_act(x: Array, other: Array | None, w: Array | None, b: Array | None, running_mean: Array,
                   running_var: Array, momentum: float, eps: float, g: NormGeometry,
                   act: str) -> tuple[Array, Array, Array]:
    """(y, mean, rstd): y = act(batch_norm(x) + other)"""
    if other is None or alike(x, other):
        return normalized(x, w, b, (running_mean, running_var), momentum, eps, g, other,
                          (("FUSED", 1), ("ACT", act)))
    z, mean, rstd = batch_norm(x, w, b, running_mean, running_var, momentum, eps, g)
    return VALUES[act](add(z, other)), mean, rstd


def normalize_act_grad(gy: Array, other: Array | None, y: Array, x: Array, w: Array | None, mean: Array, rstd: Array,
                       g: NormGeometry, act: str) -> tuple[Array, Array, Array, Array]:
    """(gz, gx, gw, gb): the gradients by z and by x, weight and bias, of y = act(z), z = normalize(x) plus a residual,
    and gy + other is the gradient by y. gz is the residual's, too. y is z for those of OF_X."""
    if not g.across or not (other is None or alike(gy, other)):
        gz = GRADIENTS[act](gy, y) if other is None else add_grad_act(gy, other, y, act)
        return gz, *normalize_grad(gz, x, w, mean, rstd, g)
    gz, gw, gb = launch.empty(x.shape, x.dtype), launch.empty(g.affine, x.dtype), launch.empty(g.affine, x.dtype)
    plan = plan_of("norm_act_products", sizes_of(g, x, gy, other, y, gz), (("FUSED", 1), ("ACT", act)))
    sums = launch.empty((plan.splits, 2, *g.sets), x.dtype)
    plan.start(gy, other, y, x, mean, rstd, gz, sums, plan.struct)
    return gz, gradient(gz, x, w, mean, rstd, g, gw, gb, sums), gw, gb


# ---------------------------------------------------------------- in evaluation
def folded(w: Array, b: Array | None, mean: Array, var: Array, weight: Array | None, bias: Array | None,
            eps: float) -> tuple[Array, Array]:
    """Filters and bias of a convolution that also does the normalisation after it."""
    u, v = launch.empty(w.shape, w.dtype), launch.empty(mean.shape, w.dtype)
    launch.kernel(FOLD, "fold_norm", launch.real(w.dtype))(
        (launch.spread(w.size),), (launch.THREADS,), w, b, mean, var, weight, bias, u, v, eps, len(w),
        w.size // max(1, len(w)))
    return u, v


def conv2d_norm(x: Array, w: Array, b: Array | None, g: ConvGeometry, mean: Array, var: Array, weight: Array | None,
                bias: Array | None, eps: float, sets: NormGeometry) -> Array:
    """normalize_by(conv2d(x)), as one convolution by filters that do both."""
    return conv2d(x, *folded(w, b, mean, var, weight, bias, eps), g)


def conv2d_norm_act(x: Array, w: Array, b: Array | None, g: ConvGeometry, mean: Array, var: Array,
                    weight: Array | None, bias: Array | None, eps: float, sets: NormGeometry, act: str) -> Array:
    """act(normalize_by(conv2d(x)))"""
    return conv2d_act(x, *folded(w, b, mean, var, weight, bias, eps), g, act)
