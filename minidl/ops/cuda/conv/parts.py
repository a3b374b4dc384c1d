"""A filter gradient as blocks leave it: a part from each, and where the bias's is fused, its part behind that."""

from __future__ import annotations

from typing import Any

from .. import launch
from ..reduce import sum_first

Array = Any


def empty(blocks: int, g: Any, dtype: Any, fused: bool) -> Array:
    """Memory for the parts: (blocks, m*c*kh*kw), and m more columns where the bias's gradient is fused."""
    return launch.empty((blocks, g.m * g.c * g.kh * g.kw + (g.m if fused else 0)), dtype)


def add_up(parts: Array, g: Any) -> tuple[Array, Array]:
    """(dw, db) in a fixed order; db is empty where it is not fused.

    Then dw is no view of anything, so that the tape takes it for a leaf's gradient as it is.
    """
    shape, taps = (g.m, g.c, g.kh, g.kw), g.m * g.c * g.kh * g.kw
    if parts.shape[1] == taps:
        return sum_first(parts, launch.empty(shape, parts.dtype)), parts[0, taps:]
    sums = sum_first(parts) if len(parts) > 1 else parts[0]
    return sums[:taps].reshape(shape), sums[taps:]
