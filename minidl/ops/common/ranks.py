"""Arrays one behind the other in one: what goes from process to process is one array."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Shape = tuple[int, ...]


def laid_out(empty: Callable[[Any, Any], Any], shapes: Sequence[Shape], dtype: Any) -> tuple[Any, list[Any]]:
    """(a flat array, of its memory an array of each shape).

    >>> import numpy as np
    >>> flat, (a, b) = laid_out(np.empty, [(2, 3), (4,)], np.dtype(float))
    >>> flat.shape, a.shape, b.shape, a.base is flat
    ((10,), (2, 3), (4,), True)
    """
    sizes = [math.prod(shape) for shape in shapes]
    flat, begin, views = empty((sum(sizes),), dtype), 0, []
    for shape, size in zip(shapes, sizes, strict=True):
        views.append(flat[begin:begin + size].reshape(shape))
        begin += size
    return flat, views
