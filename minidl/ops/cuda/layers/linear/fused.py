"""The fully connected layer fused with the activation after it: what the compiler's rules make."""

from __future__ import annotations

import numpy as np

from ....common.primitives import Array
from ... import launch
from . import FILE, product_of

__all__ = ["linear_act", "linear_and_act", "linear_grad_act"]

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (launch.real(np.dtype(dtype)), ("BM", bm), ("PRECISION", "FP32"), ("TA", 0), ("TB", tb), ("FUSED", fused),
            ("ACT", act)))
    for dtype in ("float32", "float64") for bm, fused, tb, act in (
        (16, "VALUE", 1, "tanh"), (128, "VALUE", 1, "sigmoid"), (16, "GRAD", 0, "tanh"), (128, "GRAD", 0, "relu"),
        (16, "BOTH", 1, "gelu"), (128, "BOTH", 1, "gelu_tanh"), (128, "VALUE", 1, "gelu"), (128, "GRAD", 0, "gelu"))]


def linear_act(x: Array, w: Array, b: Array | None, act: str) -> Array:
    """act(linear(x))"""
    out = launch.empty((len(x), len(w)), x.dtype)
    return product_of(x, w, b, out, (1, len(x), len(w), x.shape[1], 1, 1, False, 1), False, True,
                      fused=(("FUSED", "VALUE"), ("ACT", act)))


def linear_and_act(x: Array, w: Array, b: Array | None, act: str) -> tuple[Array, Array]:
    """(z, act(z)) of z = linear(x)"""
    z, y = (launch.empty((len(x), len(w)), x.dtype) for _ in range(2))
    product_of(x, w, b, z, (1, len(x), len(w), x.shape[1], 1, 1, False, 1), False, True,
               fused=(("FUSED", "BOTH"), ("ACT", act)), y=y)
    return z, y


def linear_grad_act(gy: Array, w: Array, y: Array, act: str) -> Array:
    """The gradient of linear(act(z)) by z, from y = act(z); for those of OF_X y is z."""
    out = launch.empty((len(gy), w.shape[1]), gy.dtype)
    return product_of(gy, w, None, out, (1, len(gy), w.shape[1], len(w), 1, 1, False, 1), False, False,
                      fused=(("FUSED", "GRAD"), ("ACT", act)), y=launch.dense(y))
