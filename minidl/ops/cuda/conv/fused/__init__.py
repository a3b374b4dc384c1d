"""Convolutions with what follows them, in one launch if the algorithm can do that; the compiler's rules make these
calls."""

from __future__ import annotations

from ....common.geometry import ConvGeometry, PoolGeometry
from ....common.primitives import Array
from ...layers.activation.elementwise import VALUES
from ...layers.pool import avg_pool2d, avg_pool2d_grad_act
from ...layers.pool.average import in_squares
from .. import ALGORITHMS, chosen, conv2d, conv2d_grad_b, conv2d_grad_w

__all__ = ["conv2d_act", "conv2d_act_pool", "conv2d_act_pool_grad_wb"]


def conv2d_act(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str) -> Array:
    """act(conv2d(x))"""
    y_act = ALGORITHMS[chosen("y", g, (x, w, b))].y_act
    return y_act(x, w, b, g, act) if y_act else VALUES[act](conv2d(x, w, b, g))


def conv2d_act_pool(x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str,
                    pooling: PoolGeometry) -> tuple[Array, Array]:
    """(y, its averages) of y = act(conv2d(x))"""
    row = ALGORITHMS[chosen("y", g, (x, w, b))]
    if row.y_act_pool and row.can_pool and row.can_pool(g, pooling, x.dtype):
        return row.y_act_pool(x, w, b, g, act, pooling)
    y = conv2d_act(x, w, b, g, act)
    return y, avg_pool2d(y, pooling)


def conv2d_act_pool_grad_wb(gp: Array, y: Array, x: Array, g: ConvGeometry, act: str,
                            pooling: PoolGeometry) -> tuple[Array, Array]:
    """(dw, db) of avg_pool2d(y), y = act(conv2d(x)), from the averages' gradient gp; x's gradient is not needed."""
    fused = ALGORITHMS[chosen("dw", g, (y, x))].grad_wb    # y has the gradient's shape: `auto` may measure on it
    if fused and in_squares(pooling):
        return fused(gp, y, x, g, act, pooling)
    gz = avg_pool2d_grad_act(gp, y, pooling, act)
    return conv2d_grad_w(gz, x, g), conv2d_grad_b(gz)
