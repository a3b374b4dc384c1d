"""Convolutions with averages behind them, stored in bfloat16 in between, as the compiler has them (halves.py)."""

from __future__ import annotations

import numpy as np

from ....common.geometry import ConvGeometry, PoolGeometry
from ....common.primitives import Array
from ...layers.pool.average import in_squares
from ..auto import choices
from ..resident import few_channels

__all__ = ["conv2d_act_pool_half", "conv2d_act_pool_half_grad_wb", "stores_half"]


def stores_half(g: ConvGeometry, pooling: PoolGeometry) -> bool:
    """Whether the kernels that do: y and dw of float32 in the precision bf16 were found to be the fastest."""
    taken = [choices.get((direction, g, np.dtype(np.float32), "bf16")) if g.algorithm == "auto" else g.algorithm
             for direction in ("y", "dw")]
    return in_squares(pooling) and g.ow % 4 == 0 and taken == ["few_channels", "few_channels"]


def conv2d_act_pool_half(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str,
                         pooling: PoolGeometry) -> tuple[Array, Array]:
    """(y in bf16 as uint16, its averages) of y = act(conv2d(x))"""
    return few_channels.OUTPUTS_IN_HALF.y_act_pool(x, w, b, g, act, pooling)


def conv2d_act_pool_half_grad_wb(gp: Array, y: Array, x: Array, g: ConvGeometry, act: str,
                                 pooling: PoolGeometry) -> tuple[Array, Array]:
    """(dw, db) of avg_pool2d(y), y = act(conv2d(x)) in bf16 as uint16, from the averages' gradient gp"""
    return few_channels.GRADIENTS_IN_HALF.grad_wb(gp, y, x, g, act, pooling)
