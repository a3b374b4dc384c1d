"""Convolutions with averages after them, stored in bfloat16 in between, as the compiler has them (halves.py)."""

from __future__ import annotations

import numpy as np

from ....common.geometry import ConvGeometry, PoolGeometry
from ....common.primitives import Array
from ... import launch
from ...layers.pool.average import in_squares
from .. import chosen
from ..auto import choices
from ..auto.measuring import ahead
from ..resident import few_channels

__all__ = ["conv2d_act_pool_half", "conv2d_act_pool_half_grad_wb", "stores_half"]


def stores_half(g: ConvGeometry, pooling: PoolGeometry) -> bool:
    """Whether the kernels that store bfloat16 are the fastest: y and dw of float32 in the precision bf16. If that is
    not known yet, it is measured."""
    if not in_squares(pooling) or g.ow % 4:
        return False
    if g.algorithm != "auto":
        return g.algorithm == "few_channels"
    keys = [(direction, g, np.dtype(np.float32), "bf16") for direction in ("y", "dw")]
    if not choices.keys() >= {*keys}:
        ahead(lambda: _choose(g))
    return [choices.get(key) for key in keys] == ["few_channels", "few_channels"]


def _choose(g: ConvGeometry) -> None:
    x, y, w = (launch.empty(shape, np.dtype(np.float32)) for shape in (
        (g.n, g.c, g.h, g.w), (g.n, g.m, g.oh, g.ow), (g.m, g.c // g.groups, g.kh, g.kw)))
    chosen("y", g, (x, w, None))
    chosen("dw", g, (y, x))


def conv2d_act_pool_half(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str,
                         pooling: PoolGeometry) -> tuple[Array, Array]:
    """(y in bf16 as uint16, its averages) of y = act(conv2d(x))"""
    return few_channels.OUTPUTS_IN_HALF.y_act_pool(x, w, b, g, act, pooling)


def conv2d_act_pool_half_grad_wb(gp: Array, y: Array, x: Array, g: ConvGeometry, act: str,
                                 pooling: PoolGeometry) -> tuple[Array, Array]:
    """(dw, db) of avg_pool2d(y), y = act(conv2d(x)) in bf16 as uint16, from the averages' gradient gp"""
    return few_channels.GRADIENTS_IN_HALF.grad_wb(gp, y, x, g, act, pooling)
