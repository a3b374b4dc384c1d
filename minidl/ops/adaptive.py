"""Averages over as many windows as are asked for, whatever the size of the images."""

from __future__ import annotations

from ..tensor import Tensor
from .basic import mean
from .common.op import also
from .pool import avg_pool2d
from .shapes import concatenate, getitem

__all__ = ["adaptive_avg_pool2d"]

Size = int | None | tuple[int | None, int | None]


@also
def adaptive_avg_pool2d(x: Tensor, output_size: Size) -> Tensor:
    """Means over a grid of windows: x (n,c,h,w) -> (n,c,oh,ow), where output_size is an int or (oh, ow).

    Window i of oh has the rows from i*h/oh, rounded down, to (i+1)*h/oh, rounded up. So output_size 1 is the mean of
    each map. None keeps the size of x. Raises ValueError for an x of other than 4 axes, and sizes below 1.

    >>> x = Tensor([[[[1.0, 2.0, 6.0], [3.0, 4.0, 8.0]]]])
    >>> adaptive_avg_pool2d(x, 1).item(), adaptive_avg_pool2d(x, (1, 2)).tolist()
    (4.0, [[[[2.5, 5.0]]]])
    """
    if x.ndim != 4 or 0 in x.shape[1:]:
        raise ValueError(f"adaptive_avg_pool2d: x has shape {x.shape} but must be (n,c,h,w), with at least one "
                         "channel, row and column; see .reshape()")
    asked = output_size if isinstance(output_size, (tuple, list)) else (output_size, output_size)
    if len(asked) != 2 or not all(n is None or (isinstance(n, int) and n >= 1) for n in asked):
        raise ValueError(f"adaptive_avg_pool2d: output_size is {output_size!r} but must be an int or a pair (oh, ow), "
                         "each at least 1, or None to keep a size")
    sizes = [m if n is None else n for n, m in zip(asked, x.shape[2:], strict=True)]
    if not any(m % n for n, m in zip(sizes, x.shape[2:], strict=True)):                # all windows are alike
        return avg_pool2d(x, size=(x.shape[2] // sizes[0], x.shape[3] // sizes[1]))
    return _along(_along(x, 2, sizes[0]), 3, sizes[1])


def _along(x: Tensor, axis: int, count: int) -> Tensor:
    """The means of so many parts of an axis."""
    size = x.shape[axis]
    parts = [slice(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
    return concatenate([mean(getitem(x, (*[slice(None)] * axis, part)), axis=axis, keepdims=True) for part in parts],
                       axis)
