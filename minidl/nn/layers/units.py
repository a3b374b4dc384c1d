"""Layers of the activations in minidl.ops.layers.units, softmax, and dropout of values and of whole channels."""

from __future__ import annotations

from ... import ops
from ...core.tensor import Tensor
from .basic import OfOp

__all__ = ["ELU", "GELU", "Dropout", "Dropout2d", "Hardsigmoid", "LeakyReLU", "SiLU", "Softmax", "Softplus"]


class LeakyReLU(OfOp, op=ops.leaky_relu, options=("negative_slope",)):
    """`ops.leaky_relu` as a layer."""

    def __init__(self, negative_slope: float = 0.01):
        super().__init__()
        self.negative_slope = negative_slope


class ELU(OfOp, op=ops.elu, options=("alpha",)):
    """`ops.elu` as a layer."""

    def __init__(self, alpha: float = 1.0):
        super().__init__()
        self.alpha = alpha


class Softplus(OfOp, op=ops.softplus):
    """`ops.softplus` as a layer."""


class Hardsigmoid(OfOp, op=ops.hardsigmoid):
    """`ops.hardsigmoid` as a layer."""


class SiLU(OfOp, op=ops.silu):
    """`ops.silu` as a layer."""


class GELU(OfOp, op=ops.gelu, options=("approximate",)):
    """`ops.gelu` as a layer. Raises ValueError for an approximation that is neither "none" nor "tanh"."""

    def __init__(self, approximate: str = "none"):
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"GELU: approximate is {approximate!r} but must be 'none' or 'tanh'")
        self.approximate = approximate


class Softmax(OfOp, op=ops.softmax, options=("axis",)):
    """`ops.softmax` along an axis, which PyTorch calls dim, as a layer."""

    def __init__(self, axis: int = -1, *, dim: int | None = None):
        super().__init__()
        self.axis = axis if dim is None else dim


class Dropout(OfOp, op=ops.dropout, options=("p",)):
    """`ops.dropout` while training, nothing in evaluation. Raises ValueError if p is not in [0, 1)."""

    def __init__(self, p: float = 0.5):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"{type(self).__name__}: p is {p!r} but must be in [0, 1)")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else x


class Dropout2d(Dropout, op=ops.dropout2d, options=("p",)):
    """`ops.dropout2d`, of whole channels of images, while training. Errors as `Dropout`."""
