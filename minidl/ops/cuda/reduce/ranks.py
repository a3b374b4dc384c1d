"""Sums over the processes of a run, on CuPy arrays. The world (minidl/distributed) does the sending."""

from __future__ import annotations

from typing import Any

import cupy

from ...common.primitives import Array
from ...common.ranks import ALIGNMENT, laid_out, weight
from .. import launch
from ..optim.clip import multiply

__all__ = ["rank_mean"]


def rank_mean(arrays: list[cupy.ndarray], share: float | None, world: Any) -> tuple[Array, ...]:
    """As in ops.cpu.ranks. One launch for up to 64 arrays writes them one after the other, times a weight; a captured
    graph needs none if kernels write them there, see minidl/compiler/buckets.py."""
    by, over_ranks = (1.0, world.sum) if share is None else (weight(share, world.size), world.mean)
    results: list[Array] = [arrays[0]] * len(arrays)
    for dtype in dict.fromkeys(x.dtype for x in arrays):
        places = [i for i, x in enumerate(arrays) if x.dtype == dtype]
        flat, views = laid_out(launch.empty, [arrays[i].shape for i in places], dtype, ALIGNMENT)
        if by:
            multiply(views, [arrays[i] for i in places], None, by)
        else:
            flat.fill(0)
        if not launch.is_dry():
            over_ranks(flat)
        for i, view in zip(places, views, strict=True):
            results[i] = view
    return tuple(results)
