"""Reductions in a fixed order; `sum_first` is the second pass of every kernel that leaves partial results."""

from __future__ import annotations

import cupy

from .folds import reduced


def sum_first(parts: cupy.ndarray, out: cupy.ndarray | None = None) -> cupy.ndarray:
    """(s, ...) -> (...), the sum over the first axis; zeros if s is 0. Written to `out` if it is given."""
    return reduced("Total", parts, (0,), out=out)
