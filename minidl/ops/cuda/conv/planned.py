"""Convolutions that are one launch, planned from the shape, with what may stand before or behind it fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .. import launch
from ..pool import in_squares
from ..reduce import sum_first

Array = Any


class Plan(NamedTuple):
    """One launch."""

    grid: tuple[int, ...]
    threads: int
    shared: int                                        # bytes
    constants: tuple[launch.Constant, ...]
    sizes: bytes                                       # the kernel's struct
    time: float = 0.0                                  # estimated, in cycles


class Outputs(NamedTuple):
    """y of a convolution by a kernel (x, w, b, out, pooled, sizes); plan(g, dtype, window): for averages over windows
    of that size too, or 1."""

    file: str
    kernel: str
    plan: Callable[[Any, Any, int], Plan | None]

    def run(self, plan: Plan | None, x: Array, w: Array, b: Array | None, out: Array,
            fused: tuple[launch.Constant, ...] = (), pooled: Array | None = None) -> Array:
        assert plan is not None, "refuses() was not asked"
        if out.size:
            launch.kernel(self.file, self.kernel, *plan.constants, *fused)(
                plan.grid, (plan.threads,), _on_16_bytes(x), _on_16_bytes(w), b, out, pooled, plan.sizes,
                shared=plan.shared)
        return out

    def y(self, x: Array, w: Array, b: Array | None, g: Any) -> Array:
        return self.run(self.plan(g, x.dtype, 1), x, w, b, _maps(g, x))

    def y_act(self, x: Array, w: Array, b: Array | None, g: Any, act: str) -> Array:
        """act(y), in the same launch."""
        return self.run(self.plan(g, x.dtype, 1), x, w, b, _maps(g, x), (("FUSED", 1), ("ACT", act)))

    def y_act_pool(self, x: Array, w: Array, b: Array | None, g: Any, act: str, pooling: Any) -> tuple[Array, Array]:
        """(act(y), its averages over windows), in the same launch."""
        pooled = launch.empty((g.n, g.m, pooling.oh, pooling.ow), x.dtype)
        return self.run(self.plan(g, x.dtype, pooling.kh), x, w, b, _maps(g, x), _windows(act, pooling), pooled), pooled

    def can_pool(self, g: Any, pooling: Any, dtype: Any) -> bool:
        """Whether y's launch can also average windows."""
        return in_squares(pooling) and self.plan(g, dtype, pooling.kh) is not None


class Gradients(NamedTuple):
    """dw of a convolution by a kernel (gy, y, x, parts, sizes), whose blocks each leave a part of it, and where the
    bias's is fused, its part behind that; plan(g, dtype, window): of the fused form, or 0."""

    file: str
    kernel: str
    plan: Callable[[Any, Any, int], Plan | None]

    def run(self, gy: Array, y: Array | None, x: Array, g: Any, window: int = 0,
            fused: tuple[launch.Constant, ...] = ()) -> tuple[Array, Array]:
        """(dw, db), with the parts added up in a fixed order; db is empty where it is not fused.

        Then dw is no view of anything, so that the tape takes it for a leaf's gradient as it is.
        """
        plan, shape, taps = self.plan(g, x.dtype, window), (g.m, g.c, g.kh, g.kw), g.m * g.c * g.kh * g.kw
        assert plan is not None, "refuses() was not asked"
        parts = launch.empty((plan.grid[0], taps + (g.m if fused else 0)), x.dtype)
        launch.kernel(self.file, self.kernel, *plan.constants, *fused)(
            plan.grid, (plan.threads,), _on_16_bytes(gy), y, _on_16_bytes(x), parts, plan.sizes, shared=plan.shared)
        if not fused:
            return sum_first(parts, launch.empty(shape, x.dtype)), parts[0, taps:]
        sums = sum_first(parts) if len(parts) > 1 else parts[0]
        return sums[:taps].reshape(shape), sums[taps:]

    def dw(self, gy: Array, x: Array, g: Any) -> Array:
        return self.run(gy, None, x, g)[0]

    def grad_wb(self, gp: Array, y: Array, x: Array, g: Any, act: str, pooling: Any) -> tuple[Array, Array]:
        """(dw, db) through the averages over windows and the activation, in the same launch."""
        return self.run(gp, y, x, g, pooling.kh, _windows(act, pooling))


def _on_16_bytes(x: Array) -> Array:
    """x where kernels may copy it by 16 bytes: a copy where it does not start on a multiple of them."""
    return x.copy() if x.data.ptr % 16 else x


def _maps(g: Any, x: Array) -> Array:
    return launch.empty((g.n, g.m, g.oh, g.ow), x.dtype)


def _windows(act: str, pooling: Any) -> tuple[launch.Constant, ...]:
    return ("FUSED", 1), ("ACT", act), ("POOL", pooling.kh)
