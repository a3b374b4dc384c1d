"""Sums over the processes of a run, on NumPy arrays. The world (minidl/distributed) does the sending."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...common.primitives import Array
from ...common.ranks import laid_out

if TYPE_CHECKING:
    from ....distributed.world import World

__all__ = ["rank_mean"]


def rank_mean(arrays: list[Array], share: float | None, world: World) -> tuple[Array, ...]:
    """The mean over all ranks of each array, weighted by each rank's share: the sum of share * array.

    share: this rank's; those of all ranks add up to 1. If it is 0, its arrays are not looked at. None on all ranks:
    their sum. Arrays of one dtype are put in one array, which is sent as one.
    """
    share = 1.0 if share is None else share
    results: list[Array] = [np.empty(0)] * len(arrays)
    for dtype in dict.fromkeys(x.dtype for x in arrays):
        places = [i for i, x in enumerate(arrays) if x.dtype == dtype]
        flat, views = laid_out(np.empty, [arrays[i].shape for i in places], dtype)
        for i, view in zip(places, views, strict=True):
            if share:
                np.multiply(arrays[i], dtype.type(share), out=view)
            else:
                view.fill(0)
            results[i] = view
        world.sum(flat)
    return tuple(results)
