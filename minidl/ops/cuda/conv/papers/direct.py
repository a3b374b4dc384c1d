"""Convolution by its formula (PMPP Fig. 16.12, corrected): one thread per element of y, dx or dw."""

from __future__ import annotations

import numpy as np

from ....common.geometry import ConvGeometry, layouts
from ....common.primitives import Array
from ... import launch

BLOCK = 256                                # threads

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    ("conv/papers/direct.cu", (launch.real(dtype), *layouts.constants(layout)))
    for dtype in launch.C_NAME for layout in layouts.IMAGES]


def refuses(direction: str, g: ConvGeometry, dtype: np.dtype) -> str | None:
    """Why this algorithm cannot do a case: it can do them all."""
    return None


def _fill(name: str, layout: str, out: Array, *arguments: Array | bytes | None) -> Array:
    launch.kernel("conv/papers/direct.cu", name, launch.real(out.dtype), *layouts.constants(layout))(
        (launch.blocks(out.size, BLOCK),), (BLOCK,), *arguments)
    return out


def y(x: Array, w: Array, b: Array | None, g: ConvGeometry, layout: str = "NCHW") -> Array:
    out = launch.empty(layouts.ordered(layouts.IMAGES[layout], (g.n, g.m, g.oh, g.ow)), x.dtype)
    return _fill("conv2d_direct_y", layout, out, x, w, b, out, launch.by_value("Geometry", g))


def dx(gy: Array, w: Array, g: ConvGeometry, layout: str = "NCHW") -> Array:
    out = launch.empty(layouts.ordered(layouts.IMAGES[layout], (g.n, g.c, g.h, g.w)), gy.dtype)
    return _fill("conv2d_direct_dx", layout, out, gy, w, out, launch.by_value("Geometry", g))


def dw(gy: Array, x: Array, g: ConvGeometry, layout: str = "NCHW") -> Array:
    out = launch.empty(layouts.ordered(layouts.FILTERS[layout], (g.m, g.c, g.kh, g.kw)), gy.dtype)
    return _fill("conv2d_direct_dw", layout, out, gy, x, out, launch.by_value("Geometry", g))
