"""Lab 2: tensors and broadcasting, solved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

Shape = tuple[int, ...]


def indices(shape: Shape) -> Iterator[Shape]:
    """All indices of a shape, the last axis fastest. This one is given."""
    return np.ndindex(*shape)


def strides(shape: Shape) -> Shape:
    """How many numbers to go on in memory for one step along each axis, where the last axis is contiguous."""
    return tuple(math.prod(shape[axis + 1:]) for axis in range(len(shape)))


def place(index: Shape, strides: Shape) -> int:
    """Where the number of an index is in memory."""
    return sum(i * stride for i, stride in zip(index, strides, strict=True))


def transposed(shape: Shape, strides: Shape) -> tuple[Shape, Shape]:
    """Shape and strides of the same memory with its axes in reverse order."""
    return shape[::-1], strides[::-1]


def broadcast_shape(x: Shape, y: Shape) -> Shape:
    """The shape of an elementwise result of two shapes. Raises ValueError, naming both, where they do not fit."""
    axes = max(len(x), len(y))
    sizes = list(zip((1,) * (axes - len(x)) + x, (1,) * (axes - len(y)) + y, strict=True))
    if any(m != n and 1 not in (m, n) for m, n in sizes):
        raise ValueError(f"{x} and {y} do not fit: from the last axis on, sizes must be equal, or one of them 1")
    return tuple(n if m == 1 else m for m, n in sizes)


def broadcast_strides(shape: Shape, strides: Shape, to: Shape) -> Shape:
    """Strides by which memory of a shape is read as one of the shape `to`: 0 along axes that are repeated."""
    missing = len(to) - len(shape)
    return (0,) * missing + tuple(0 if m == 1 else stride for m, stride in zip(shape, strides, strict=True))


def multiply(x: Sequence[float], x_shape: Shape, y: Sequence[float], y_shape: Shape) -> tuple[list[float], Shape]:
    """The numbers and the shape of x * y, broadcast; x and y are contiguous memory."""
    shape = broadcast_shape(x_shape, y_shape)
    along_x, along_y = (broadcast_strides(each, strides(each), shape) for each in (x_shape, y_shape))
    return [x[place(index, along_x)] * y[place(index, along_y)] for index in indices(shape)], shape


def unbroadcast(gradient: np.ndarray, shape: Shape) -> np.ndarray:
    """The gradient of an input of a shape, from that of its broadcast form: sums over the axes that were repeated."""
    missing = gradient.ndim - len(shape)
    gradient = gradient.sum(axis=tuple(range(missing)))
    repeated = tuple(axis for axis, n in enumerate(shape) if n == 1)
    return gradient.sum(axis=repeated, keepdims=True)
