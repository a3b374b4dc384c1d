"""A layer against overfitting: dropout."""

from __future__ import annotations

from ... import ops
from ...core.tensor import Tensor
from ..module import Module


class Dropout(Module):
    """`ops.dropout` while training, nothing in evaluation. Raises ValueError where p is not in [0, 1)."""

    def __init__(self, p: float = 0.5):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"Dropout: p is {p!r} but must be in [0, 1)")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return ops.dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"
