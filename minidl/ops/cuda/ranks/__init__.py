"""Sums over the processes of a run, on CuPy arrays: one launch puts all into one array, NCCL adds it up."""

from __future__ import annotations

import functools
from typing import Any

import cupy

from ...common.primitives import Array
from ...common.ranks import laid_out
from .. import launch
from ..optim.tables import THREADS, launches

__all__ = ["rank_mean"]


def rank_mean(arrays: list[Array], share: float, world: Any) -> tuple[Array, ...]:
    """The sum over all ranks of share * each array. Those of one dtype lie in one array, which is sent as one.

    share: this rank's; where it is 0 its arrays are not looked at. Captured in a graph, too.
    """
    results: list[Any] = [None] * len(arrays)
    for dtype in dict.fromkeys(x.dtype for x in arrays):
        places = [i for i, x in enumerate(arrays) if x.dtype == dtype]
        flat, views = laid_out(launch.empty, [arrays[i].shape for i in places], dtype)
        if share:
            factor = _number(share, flat.data.device_id)
            for constant, blocks, table in launches("rank_mean", views, [arrays[i] for i in places]):
                launch.kernel("optim/clip.cu", "scaled", constant)((blocks,), (THREADS,), table, factor)
        else:
            flat.fill(0)
        world.sum(flat)
        for i, view in zip(places, views, strict=True):
            results[i] = view
    return tuple(results)


@functools.lru_cache(maxsize=64)
def _number(value: float, device: int) -> cupy.ndarray:
    """A number on the device, put there when a step is run and not yet captured."""
    return cupy.full((), value)
