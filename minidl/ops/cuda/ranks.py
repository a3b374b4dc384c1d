"""Sums over the processes of a run: there are none between GPUs."""

from __future__ import annotations

from typing import Any

from ..common.primitives import Array
from ..common.ranks import not_on_gpus

__all__ = ["rank_mean"]


def rank_mean(arrays: list[Array], share: float, world: Any) -> tuple[Array, ...]:
    """Raises ValueError."""
    raise not_on_gpus(world.size)
