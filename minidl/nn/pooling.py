"""Pooling to a given size."""

from __future__ import annotations

from .. import ops
from ..ops.adaptive import Size
from ..tensor import Tensor
from .module import Module


class AdaptiveAvgPool2d(Module):
    """`ops.adaptive_avg_pool2d` as a layer: output_size is an int or (oh, ow), of which None keeps x's.

    >>> AdaptiveAvgPool2d(1)(Tensor([[[[1.0, 2.0, 6.0]]]])).item()
    3.0
    """

    def __init__(self, output_size: Size):
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return ops.adaptive_avg_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"
