"""Convolution on NumPy arrays: x (n,c,h,w), w (m,c,kh,kw), y (n,m,oh,ow); g is an ops.common.geometry.ConvGeometry.

Four algorithms, each in the directions y (forward), dx and dw: the formula (direct.py); one unrolled image at a time
(unroll.py); many images as matrix products (gemm.py or shifted.py), which is `auto`; and transforms (fft.py). One more
is for what is not dense (grouped.py).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...common.geometry import ConvGeometry
from ...common.primitives import Array
from ..parallel import images_per_chunk, parallel_for
from ..reduce import sum
from ..reduce.along import dots
from . import direct, fft, gemm, grouped, shifted, unroll

__all__ = ["CONV_ALGORITHMS", "conv2d", "conv2d_grad_b", "conv2d_grad_w", "conv2d_grad_x"]

MIN_READ_BYTES = 1 << 22                   # worth a second thread when they are only read and summed

ALGORITHMS: dict[str, tuple[Callable[..., Array], ...]] = {       # name -> (y, dx, dw)
    "direct": (direct.y, direct.dx, direct.dw),
    "unroll": (unroll.y, unroll.dx, unroll.dw),
    "gemm": (gemm.y, gemm.dx, gemm.dw),
    "fft": (fft.y, fft.dx, fft.dw),
    "grouped": (grouped.y, grouped.dx, grouped.dw),
}
ALGORITHMS["auto"] = ALGORITHMS["gemm"]
CONV_ALGORITHMS = tuple(ALGORITHMS)


def _algorithm(g: ConvGeometry) -> tuple[Callable[..., Array], ...]:
    if g.algorithm not in ALGORITHMS:
        raise ValueError(f"conv2d: algorithm {g.algorithm!r} is not one of {', '.join(ALGORITHMS)} on the cpu")
    if not g.dense:
        return ALGORITHMS["grouped"]
    if g.algorithm in ("auto", "gemm") and (g.sh, g.sw, g.ow) == (1, 1, g.w) and shifted.pays(g):
        return shifted.y, shifted.dx, shifted.dw
    return ALGORITHMS[g.algorithm]


def conv2d(x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    return _algorithm(g)[0](x, w, b, g)


def conv2d_grad_x(gy: Array, w: Array, g: ConvGeometry) -> Array:
    return _algorithm(g)[1](gy, w, g)


def conv2d_grad_w(gy: Array, x: Array, g: ConvGeometry) -> Array:
    return _algorithm(g)[2](gy, x, g)


def conv2d_grad_b(gy: Array) -> Array:
    n, m, oh, ow = gy.shape
    sums, maps = np.empty((n, m), gy.dtype), gy.reshape(n, m, oh * ow)
    nb = images_per_chunk(m * oh * ow * gy.itemsize, MIN_READ_BYTES)

    def work(i: int, j: int) -> None:
        sums[i:j] = dots(maps[i:j])

    parallel_for(n, nb, work)
    return sum(sums, (0,))
