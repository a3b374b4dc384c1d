"""A region of a program on NumPy arrays: step by step."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ..common.primitives import Array
from ..common.region import Region, by_steps

__all__ = ["can_region_step", "region_step"]


# Whether `region_step` is faster than a region's steps: never here, so that none is built to ask.
can_region_step: Callable[[Region], bool] | None = None


def region_step(region: Region, *arrays: Array) -> tuple[Array, ...]:
    """The outputs of a region, for its inputs."""
    return by_steps(region, sys.modules[__package__], arrays)
