"""Layers against overfitting, and between layers: dropout, and the normalisation of KSH 2012."""

from __future__ import annotations

from .. import ops
from ..tensor import Tensor
from .layers import _positive
from .module import Module


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


class LocalResponseNorm(Module):
    """`ops.local_response_norm` as a layer. Raises ValueError for a size below 1."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0):
        super().__init__()
        _positive("LocalResponseNorm", size=size)
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: Tensor) -> Tensor:
        return ops.local_response_norm(x, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
