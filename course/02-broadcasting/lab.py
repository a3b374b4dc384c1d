"""Lab 2: tensors and broadcasting. Fill the gaps that are marked TODO; README.md says how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

Shape = tuple[int, ...]


def indices(shape: Shape) -> Iterator[Shape]:
    """All indices of a shape, the last axis fastest. This one is given."""
    return np.ndindex(*shape)


def strides(shape: Shape) -> Shape:
    """How many numbers to go on in memory for one step along each axis, where the last axis is contiguous."""
    # TODO: of (2, 3, 4) it is (12, 4, 1)
    raise NotImplementedError("return a stride per axis: the product of the sizes behind it")


def place(index: Shape, strides: Shape) -> int:
    """Where the number of an index is in memory."""
    # TODO: of index (1, 0, 2) with strides (12, 4, 1) it is 14
    raise NotImplementedError("return the place in memory: each index times its stride, added up")


def transposed(shape: Shape, strides: Shape) -> tuple[Shape, Shape]:
    """Shape and strides of the same memory with its axes in reverse order."""
    # TODO: no number moves
    raise NotImplementedError("return the shape and the strides of the transposed view")


def broadcast_shape(x: Shape, y: Shape) -> Shape:
    """The shape of an elementwise result of two shapes. Raises ValueError, naming both, where they do not fit."""
    # TODO: (5, 1, 3) and (4, 1) give (5, 4, 3); (2, 3) and (2,) do not fit
    raise NotImplementedError("return the common shape; align the shapes at their last axes")


def broadcast_strides(shape: Shape, strides: Shape, to: Shape) -> Shape:
    """Strides by which memory of a shape is read as one of the shape `to`: 0 along axes that are repeated."""
    # TODO: of shape (4, 1), strides (1, 1), read as (5, 4, 3), it is (0, 1, 0)
    raise NotImplementedError("return a stride per axis of `to`; which axes repeat the same numbers?")


def multiply(x: Sequence[float], x_shape: Shape, y: Sequence[float], y_shape: Shape) -> tuple[list[float], Shape]:
    """The numbers and the shape of x * y, broadcast; x and y are contiguous memory."""
    # TODO: a loop over the indices of the result, and the functions above
    raise NotImplementedError("return the products as a list, and their shape")


def unbroadcast(gradient: np.ndarray, shape: Shape) -> np.ndarray:
    """The gradient of an input of a shape, from that of its broadcast form: sums over the axes that were repeated."""
    # TODO: NumPy's sum, with axis= and keepdims=
    raise NotImplementedError("return the gradient in the input's own shape")
