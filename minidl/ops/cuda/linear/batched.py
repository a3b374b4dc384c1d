"""Products of many matrices on CUDA, which a graph can hold: as in ops.cpu.batched."""

from __future__ import annotations

from ...common.primitives import Array
from .. import launch
from . import gemm

__all__ = ["bmm"]


def bmm(x: Array, y: Array, transpose_x: bool, transpose_y: bool) -> Array:
    out = launch.empty((len(x), x.shape[2 if transpose_x else 1], y.shape[1 if transpose_y else 2]), x.dtype)
    return gemm(x, y, out, transpose_a=transpose_x, transpose_b=transpose_y)
