"""The sum of two arrays fused with an activation, and with its gradient, on CuPy arrays."""

from __future__ import annotations

from ....common.primitives import ALL, Array
from ....common.shared import add
from ... import launch
from .elementwise import GRADIENTS, VALUES, _elementwise

__all__ = ["add_act", "add_grad_act"]

FILE = "layers/activation/sums.cu"
CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    (FILE, (launch.real(dtype), ("ACT", act))) for act in ALL for dtype in launch.C_NAME]


def alike(x: object, y: object) -> bool:
    """Whether both are arrays of one shape and dtype, which kernels add as they are."""
    return (getattr(x, "shape", None), getattr(x, "dtype", 0)) == (getattr(y, "shape", 0), getattr(y, "dtype", None))


def add_act(x: Array, other: Array, act: str) -> Array:
    """act(x + other)"""
    return _elementwise("add_act", act, x, other, file=FILE) if alike(x, other) else VALUES[act](add(x, other))


def add_grad_act(gy: Array, other: Array, y: Array, act: str) -> Array:
    """The gradient by z of y = act(z), which two have read: gy + other is its gradient. y is z for those of OF_X."""
    if alike(gy, other):
        return _elementwise("add_grad_act", act, gy, other, y, file=FILE)
    return GRADIENTS[act](add(gy, other), y)
