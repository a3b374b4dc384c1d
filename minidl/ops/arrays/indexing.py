"""x[index]: views, and copies of chosen elements."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from ...core import tensor
from ...core.device import as_array, is_array
from ...core.mode import StandIn, mode, unwrapped
from ...core.tensor import Tensor
from ..common.op import op
from ..common.primitives import Array, Index

__all__ = ["getitem"]


class Parts:
    """The gradient of an array from which views were taken by index: zero except for what came back from each view.

    It becomes an array when all parts are there: the parts of `q, k, v = x.chunk(3, 1)` become one concatenation,
    instead of a sum of three whole arrays.
    """

    __slots__ = ("gradients", "indices", "shape")

    def __init__(self, gradients: tuple[Array, ...], indices: tuple[Index, ...], shape: tuple[int, ...]):
        self.gradients, self.indices, self.shape = gradients, indices, shape


def plus(k: ModuleType, x: Array | Parts, y: Array | Parts) -> Array | Parts:
    """The sum of two gradients, arrays or Parts."""
    if isinstance(x, Parts) and isinstance(y, Parts):
        return Parts(x.gradients + y.gradients, x.indices + y.indices, x.shape)
    return k.add(whole(k, x), whole(k, y))


def whole(k: ModuleType, x: Array | Parts) -> Array:
    """A gradient as an array."""
    if not isinstance(x, Parts):
        return x
    found: Array
    if len(x.gradients) == 1:
        found = k.getitem_grad_x(x.gradients[0], x.indices[0], x.shape, True)
    else:
        found = k.add_parts(x.gradients, x.indices, x.shape)
    return found


tensor.Parts, tensor.plus, tensor.whole = Parts, plus, whole


def _is_mask(i: object) -> bool:
    return hasattr(i, "dtype") and i.dtype.kind == "b"


@op(view=True)
def _getitem(k, x: Tensor, *, index: Index):
    shape = x.shape
    parts = index if isinstance(index, tuple) else (index,)
    basic = all(i is None or i is Ellipsis or isinstance(i, (int, slice)) for i in parts)
    once = basic or all(i is None or i is Ellipsis or isinstance(i, (int, slice)) or _is_mask(i) for i in parts)
    try:
        y = k.getitem(x, index)
    except IndexError as error:
        raise IndexError(f"getitem: {error} (shape {shape}); index within the shape") from None

    def backward(gy, need):
        if basic and not mode.recorder.recording:      # a program has the calls, which the compiler joins
            return Parts((gy,), (index,), shape),
        return k.getitem_grad_x(gy, index, shape, once),
    return y, backward


def plain_index(index: Index, own: bool = False) -> Any:
    """An index with arrays in the place of Tensors, lists and other libraries' arrays. own: copies, which are not
    changed later."""
    def plain(i: object) -> Any:
        array = i._data if isinstance(i, Tensor) else unwrapped(i)
        if isinstance(array, list):
            array = np.asarray(array)
            array = array if array.size else array.astype(np.int64)
        elif hasattr(array, "__array__") and not is_array(array) and not isinstance(array, np.generic):
            array = as_array(array)
        return array.copy() if own and hasattr(array, "copy") else array
    mode.recorder.given(*(i for i in (index if isinstance(index, tuple) else (index,)) if isinstance(i, Tensor)))
    return tuple(map(plain, index)) if isinstance(index, tuple) else plain(index)


def own_index(x: Tensor, index: Index) -> Any:
    """`plain_index`, with copies if x is to get a gradient: that goes back to where the values came
    from, even if the index is changed meanwhile."""
    return plain_index(index, mode.grad and not mode.recorder.recording and isinstance(x, Tensor) and x.requires_grad)


def getitem(x: Tensor, index: Index) -> Tensor:
    """x[index]: ints, slices, None, Ellipsis, bool masks and integer arrays, as NumPy indexes.

    Elements taken several times receive the sum of their gradients. Raises IndexError out of range.

    >>> getitem(Tensor([1.0, 2.0, 3.0]), slice(1, None)).tolist()
    [2.0, 3.0]
    """
    if any(issubclass(type(i), (Tensor, StandIn)) and _is_mask(unwrapped(i)) for i in
           (index if isinstance(index, tuple) else (index,))):         # else a constant of the step
        mode.recorder.refuse("takes values by a mask, how many its values alone decide",
                             "compute with all, as in (x * mask).sum() / mask.float().sum(), or index by integers")
    return _getitem(x, index=own_index(x, index))
