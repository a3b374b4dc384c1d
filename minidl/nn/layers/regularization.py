"""Layers against overfitting: dropout, of values and of whole channels."""

from __future__ import annotations

from ... import ops
from ...core.tensor import Tensor
from ..module import Module


class Dropout(Module):
    """`ops.dropout` while training, nothing in evaluation. Raises ValueError if p is not in [0, 1)."""

    _op = staticmethod(ops.dropout)

    def __init__(self, p: float = 0.5):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"{type(self).__name__}: p is {p!r} but must be in [0, 1)")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._op(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Dropout2d(Dropout):
    """`ops.dropout2d`, of whole channels of images, while training. Errors as `Dropout`."""

    _op = staticmethod(ops.dropout2d)
