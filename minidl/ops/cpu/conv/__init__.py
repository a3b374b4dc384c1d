"""Convolution on NumPy arrays: x (n,c,h,w), w (m,c,kh,kw), y (n,m,oh,ow); g is an ops.common.geometry.ConvGeometry.

Four algorithms, each in the directions y (forward), dx and dw: the formula (direct.py), an image at a time, unrolled
(unroll.py), many images as matrix products (gemm.py, shifted.py, single.py), which `auto` is, and transforms (fft.py).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...common.geometry import ConvGeometry, PoolGeometry
from ...common.primitives import Array
from ..layers.activation import VALUES
from ..layers.pool import avg_pool2d, avg_pool2d_grad_act
from ..parallel import images_per_chunk, parallel_for
from ..reduce import dots, sum
from . import direct, fft, gemm, shifted, single, unroll

__all__ = [
    "CONV_ALGORITHMS", "conv2d", "conv2d_act", "conv2d_act_pool", "conv2d_act_pool_grad_wb", "conv2d_grad_b",
    "conv2d_grad_w", "conv2d_grad_x",
]

MIN_READ_BYTES = 1 << 22                   # worth a second thread when they are only read and summed

ALGORITHMS: dict[str, tuple[Callable[..., Array], ...]] = {       # name -> (y, dx, dw)
    "direct": (direct.y, direct.dx, direct.dw),
    "unroll": (unroll.y, unroll.dx, unroll.dw),
    "gemm": (gemm.y, gemm.dx, gemm.dw),
    "fft": (fft.y, fft.dx, fft.dw),
}
ALGORITHMS["auto"] = ALGORITHMS["gemm"]
CONV_ALGORITHMS = tuple(ALGORITHMS)


def _algorithm(g: ConvGeometry) -> tuple[Callable[..., Array], ...]:
    if g.algorithm not in ALGORITHMS:
        raise ValueError(f"conv2d: algorithm {g.algorithm!r} is not one of {', '.join(ALGORITHMS)} on the cpu")
    if g.algorithm in ("auto", "gemm"):
        for each in (single, shifted):
            if each.pays(g):
                return each.y, each.dx, each.dw
    return ALGORITHMS[g.algorithm]


def conv2d(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    return _algorithm(g)[0](x, w, b, g)


def conv2d_grad_x(gy: Array, w: Array, g: ConvGeometry) -> Array:
    return _algorithm(g)[1](gy, w, g)


def conv2d_grad_w(gy: Array, x: Array, g: ConvGeometry) -> Array:
    return _algorithm(g)[2](gy, x, g)


def conv2d_grad_b(gy: Array) -> Array:
    n, m, oh, ow = gy.shape
    sums, maps, ones = np.empty((n, m), gy.dtype), gy.reshape(n, m, oh * ow), np.ones(oh * ow, gy.dtype)
    nb = images_per_chunk(m * oh * ow * gy.itemsize, MIN_READ_BYTES)

    def work(i: int, j: int) -> None:
        sums[i:j] = dots(maps[i:j], ones)

    parallel_for(n, nb, work)
    return sum(sums, (0,))


# ---------------------------------------------------------------- fused with what follows
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
