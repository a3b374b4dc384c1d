"""Arrays one after the other in one, since processes exchange a single array; and a rank's weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, ...]
ALIGNMENT = 16                             # bytes: on GPUs, the most that kernels write at once


def laid_out(empty: Callable[[Any, Any], Any], shapes: Sequence[Shape], dtype: np.dtype,
             alignment: int = 1) -> tuple[Any, list[Any]]:
    """(a flat array, an array of each shape in its memory).

    alignment: arrays of several axes begin at a multiple of this many bytes. Others, such as biases, begin right after
    the array before them: kernels may write filters and biases as one. The places depend on the shapes alone, so that
    all ranks agree; what is between the arrays is not read.

    >>> import numpy as np
    >>> flat, (a, b) = laid_out(np.empty, [(2, 3), (4,)], np.dtype(float))
    >>> flat.shape, a.shape, b.shape, a.base is flat
    ((10,), (2, 3), (4,), True)
    """
    ends, begins, step = [0], [], max(1, alignment // dtype.itemsize)
    for shape in shapes:
        begins.append(-(-ends[-1] // step) * step if len(shape) > 1 else ends[-1])
        ends.append(begins[-1] + math.prod(shape))
    flat = empty((ends[-1],), dtype)
    return flat, [flat[begin:end].reshape(shape) for begin, end, shape in zip(begins, ends[1:], shapes, strict=True)]


def weight(share: float, ranks: int) -> float:
    """A rank's factor before the mean over all: its share over 1 / ranks; exactly 1 if the two are equal.

    >>> weight(0.25, 2), weight(1 / 49, 49), 1 / 49 * 49
    (0.5, 1.0, 0.9999999999999999)
    """
    return 1.0 if math.isclose(share * ranks, 1, rel_tol=1e-12) else share * ranks
