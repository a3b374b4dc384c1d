"""The bias's gradient: the sum of each map over images and pixels."""

from __future__ import annotations

import functools
import math

import numpy as np

from ....common.primitives import Array
from ... import launch
from ...reduce import sum_first

FILE = "conv/bias/bias.cu"
CONFIGURATIONS = [(FILE, (launch.real(np.dtype(dtype)), ("WIDE", wide)))
                  for dtype in ("float32", "float64") for wide in (1, 4)]
ELEMENTS = 1 << 14                         # elements of a map that one block adds up, if there are enough for a second
MAX_ALONE = 1 << 17                        # launch to pay; up to this many, one block adds up all


@functools.lru_cache(maxsize=4096)
def _plan(shape: tuple[int, ...], dtype: np.dtype) -> tuple[launch.Plan, tuple[int, ...], tuple[int, ...]]:
    """The launch for maps of a shape, its result's shape, and the numbers it takes last."""
    n, m, length = shape[0], shape[1], math.prod(shape[2:])
    images = max(1, n if n * length <= MAX_ALONE else ELEMENTS // max(1, length))
    shares = launch.blocks(n, images)
    plan = launch.Plan(FILE, "conv2d_grad_b", (launch.real(dtype), ("WIDE", 1 if length % 4 else 4)), (m, shares), 1024)
    return plan, (shares, m) if shares > 1 else (m,), (n, m, length, images)


def sum_maps(maps: Array) -> Array:
    """(n,m,h,w) -> (m,), in a fixed order."""
    plan, shape, numbers = _plan(maps.shape, maps.dtype)
    parts = launch.empty(shape, maps.dtype)
    plan.start(maps, parts, *numbers)
    return sum_first(parts) if len(shape) > 1 else parts
