"""The launchers of convolutions that take `layout`, by algorithm and direction; see also common/geometry/layouts.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...common.geometry import ConvGeometry, layouts
from ...common.primitives import Array
from .. import launch
from .papers import direct, krizhevsky, tiled
from .product import implicit_gemm

# What is not here has a kernel for NCHW alone: the threads of tiled's and krizhevsky's dw are taps of one channel,
# which no order of pixels makes neighbours.
LAUNCHERS: dict[str, dict[str, Callable[..., Array]]] = {
    "direct": {"y": direct.y, "dx": direct.dx, "dw": direct.dw},
    "tiled": {"y": tiled.y, "dx": tiled.dx},
    "krizhevsky": {"y": krizhevsky.y},
    "implicit_gemm": {"y": implicit_gemm.y, "dx": implicit_gemm.dx, "dw": implicit_gemm.dw},
}
_REFUSES = {"tiled": tiled.refuses, "krizhevsky": krizhevsky.refuses}


def refusal(name: str, direction: str, g: ConvGeometry, dtype: np.dtype, layout: str) -> str | None:
    """Why an algorithm cannot do a case in a layout, or None."""
    if name not in LAUNCHERS:
        return f"only {', '.join(LAUNCHERS)} take a layout"
    if direction not in LAUNCHERS[name]:
        return f"its kernel for {direction} takes NCHW alone"
    return _REFUSES[name](direction, g, dtype, layout) if name in _REFUSES else None


def run(name: str, direction: str, layout: str, g: ConvGeometry, *arrays: Array | None) -> Array:
    """A direction of an algorithm on arrays in a layout: y of (x, w, b), dx of (gy, w), dw of (gy, x).

    Raises ValueError for what it cannot do.
    """
    layouts.known("conv2d", layout)
    dtype = arrays[0].dtype                # type: ignore[union-attr]
    reason = refusal(name, direction, g, dtype, layout)
    if reason:
        raise ValueError(f"conv2d: algorithm {name!r} cannot compute {direction} of x {g[:4]} and w "
                         f"{(g.m, g.c, g.kh, g.kw)} in {layout}: {reason}; use another algorithm")
    if not g.n:
        wanted = {"y": (g.n, g.m, g.oh, g.ow), "dx": (g.n, g.c, g.h, g.w), "dw": (g.m, g.c, g.kh, g.kw)}[direction]
        axes = layouts.FILTERS if direction == "dw" else layouts.IMAGES
        out = launch.empty(layouts.ordered(axes[layout], wanted), dtype)
        out.fill(0)                        # sums over no images
        return out
    return LAUNCHERS[name][direction](*arrays, g, layout=layout)
