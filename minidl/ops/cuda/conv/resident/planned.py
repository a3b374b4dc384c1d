"""Convolutions that are one launch, planned from the shape; what comes before or after them may be fused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import cupy
import numpy as np

from .....core.device import precision
from ....common.geometry import ConvGeometry, PoolGeometry
from ....common.primitives import Array
from ... import launch
from ...layers.pool.average import in_squares
from ...reduce import sum_first


class Outputs(NamedTuple):
    """y of a convolution by a kernel (x, w, b, out, pooled, struct); plan(g, dtype, window): for averages over windows
    of that size too, or 1; what y is stored as, if not as x is."""

    plan: Callable[[ConvGeometry, np.dtype, int], launch.Plan | None]
    stored: np.dtype | None = None

    def run(self, x: Array, w: Array, b: Array | None, out: Array, g: ConvGeometry, window: int = 1,
            fused: tuple[launch.Constant, ...] = (), pooled: Array | None = None) -> Array:
        if out.size:
            plan = _planned(self, g, x.dtype, window, fused, precision())
            plan.start(_on_16_bytes(x), _on_16_bytes(w), b, out, pooled, plan.struct)
        return out

    def y(self, x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
        return self.run(x, w, b, _maps(g, x), g)

    def y_act(self, x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str) -> Array:
        """act(y), in the same launch."""
        return self.run(x, w, b, _maps(g, x), g, 1, (("FUSED", 1), ("ACT", act)))

    def y_act_pool(self, x: Array, w: Array, b: Array | None, g: ConvGeometry, act: str,
                   pooling: PoolGeometry) -> tuple[Array, Array]:
        """(act(y), its averages over windows), in the same launch."""
        pooled = launch.empty((g.n, g.m, pooling.oh, pooling.ow), x.dtype)
        y = launch.empty((g.n, g.m, g.oh, g.ow), self.stored or x.dtype)
        return self.run(x, w, b, y, g, pooling.kh, _windows(act, pooling), pooled), pooled

    def can_pool(self, g: ConvGeometry, pooling: PoolGeometry, dtype: np.dtype) -> bool:
        """Whether y's launch can also average windows."""
        return in_squares(pooling) and self.plan(g, dtype, pooling.kh) is not None


class Gradients(NamedTuple):
    """dw of a convolution by a kernel (gy, y, x, parts, struct), whose blocks each leave a part of it and, if the
    bias's is fused, its part after that; plan(g, dtype, window): the window of the fused form, or 0."""

    plan: Callable[[ConvGeometry, np.dtype, int], launch.Plan | None]

    def _parts(self, gy: Array, y: Array | None, x: Array, g: ConvGeometry, length: int, window: int = 0,
               fused: tuple[launch.Constant, ...] = ()) -> Array:
        """The blocks' parts, each of that length; they are still to be added up, in a fixed order."""
        plan = _planned(self, g, x.dtype, window, fused, precision())
        parts = launch.empty((plan.grid[0], length), x.dtype)
        plan.start(_on_16_bytes(gy), y if y is None else _on_16_bytes(y), _on_16_bytes(x), parts, plan.struct)
        return parts

    def dw(self, gy: Array, x: Array, g: ConvGeometry) -> Array:
        """No view of anything, so that the tape takes it for a leaf's gradient as it is."""
        parts = self._parts(gy, None, x, g, g.m * g.c * g.kh * g.kw)
        return sum_first(parts, launch.empty((g.m, g.c, g.kh, g.kw), x.dtype))

    def grad_wb(self, gp: Array, y: Array, x: Array, g: ConvGeometry, act: str,
                pooling: PoolGeometry) -> tuple[Array, Array]:
        """(dw, db) through the averages over windows and the activation, in the same launch."""
        taps = g.m * g.c * g.kh * g.kw
        parts = self._parts(gp, y, x, g, taps + g.m, pooling.kh, _windows(act, pooling))
        sums = sum_first(parts) if len(parts) > 1 else parts[0]
        return sums[:taps].reshape(g.m, g.c, g.kh, g.kw), sums[taps:]


@functools.lru_cache(maxsize=4096)
def _planned(of: Outputs | Gradients, g: ConvGeometry, dtype: np.dtype, window: int, fused: tuple[launch.Constant, ...],
             precision: str) -> launch.Plan:
    """The plan, which is of the current precision, with what is fused."""
    plan = of.plan(g, dtype, window)
    assert plan is not None, "refuses() was not asked"
    return plan.of(*fused)


def _on_16_bytes(x: cupy.ndarray) -> cupy.ndarray:
    """x, so that kernels may copy it by 16 bytes: a copy if it does not start on a multiple of 16 bytes."""
    return x.copy() if x.data.ptr % 16 else x


def _maps(g: ConvGeometry, x: Array) -> Array:
    return launch.empty((g.n, g.m, g.oh, g.ow), x.dtype)


def _windows(act: str, pooling: PoolGeometry) -> tuple[launch.Constant, ...]:
    return ("FUSED", 1), ("ACT", act), ("POOL", pooling.kh)
