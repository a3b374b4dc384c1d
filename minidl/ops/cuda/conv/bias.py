"""The bias's gradient: the sum of each map over images and pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import launch
from ..reduce import sum_first

Array = Any

FILE = "conv/bias.cu"
CONFIGURATIONS = [(FILE, (launch.real(np.dtype(dtype)), ("WIDE", wide)))
                  for dtype in ("float32", "float64") for wide in (1, 4)]
ELEMENTS = 1 << 14                         # of a map that one block adds up, where all together make a second launch
FEW = 1 << 17                              # worth it: up to this many one block does


def sum_maps(maps: Array) -> Array:
    """(n,m,l) -> (m,), in a fixed order."""
    n, m, length = maps.shape
    images = max(1, n if n * length <= FEW else ELEMENTS // max(1, length))
    shares = launch.blocks(n, images)
    parts = launch.empty((shares, m) if shares > 1 else (m,), maps.dtype)
    launch.kernel(FILE, "conv2d_grad_b", launch.real(maps.dtype), ("WIDE", 1 if length % 4 else 4))(
        (m, shares), (1024,), maps, parts, n, m, length, images)
    return sum_first(parts) if shares > 1 else parts
