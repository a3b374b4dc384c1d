"""Layers of the activations in minidl.ops.layers.units, softmax, and the layer that does nothing."""

from __future__ import annotations

from ... import ops
from ...core.tensor import Tensor
from ..module import Module


class LeakyReLU(Module):
    """`ops.leaky_relu` as a layer."""

    def __init__(self, negative_slope: float = 0.01):
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return ops.leaky_relu(x, negative_slope=self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class ELU(Module):
    """`ops.elu` as a layer."""

    def __init__(self, alpha: float = 1.0):
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return ops.elu(x, alpha=self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class Softplus(Module):
    """`ops.softplus` as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.softplus(x)


class Hardsigmoid(Module):
    """`ops.hardsigmoid` as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.hardsigmoid(x)


class SiLU(Module):
    """`ops.silu` as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.silu(x)


class GELU(Module):
    """`ops.gelu` as a layer. Raises ValueError for an approximation that is neither "none" nor "tanh"."""

    def __init__(self, approximate: str = "none"):
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"GELU: approximate is {approximate!r} but must be 'none' or 'tanh'")
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return ops.gelu(x, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class Softmax(Module):
    """`ops.softmax` along an axis, which PyTorch calls dim, as a layer."""

    def __init__(self, axis: int = -1, *, dim: int | None = None):
        super().__init__()
        self.axis = axis if dim is None else dim

    def forward(self, x: Tensor) -> Tensor:
        return ops.softmax(x, axis=self.axis)
