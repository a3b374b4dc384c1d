"""A region of a program on NumPy arrays: step by step."""

from __future__ import annotations

import sys

from ..primitives import Array
from ..region import Region, by_steps

__all__ = ["can_region_step", "region_step"]


def can_region_step(region: Region) -> bool:
    """Whether region_step is faster than the steps: never, here."""
    return False


def region_step(region: Region, *arrays: Array) -> tuple[Array, ...]:
    """The outputs of a region, for its inputs."""
    return by_steps(region, sys.modules[__package__], arrays)
