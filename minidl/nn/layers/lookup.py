"""The layer that looks up rows of a table by their numbers."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...core.tensor import Tensor
from ...ops.common.geometry import plain
from .. import init
from ..module import Module
from .basic import _positive


class Embedding(Module):
    """`ops.embedding` with weight (num_embeddings, embedding_dim), which starts normal with deviation 1.

    padding_idx: a row that starts at 0 and gets no gradient. Raises ValueError for sizes below 1, and for a padding_idx
    that is not a row.

    >>> Embedding(5, 3)([4, 0]).shape
    (2, 3)
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None):
        super().__init__()
        num_embeddings, embedding_dim = _positive("Embedding", num_embeddings=num_embeddings,
                                                  embedding_dim=embedding_dim)
        padding_idx = plain(padding_idx)
        if padding_idx is not None and not 0 <= padding_idx < num_embeddings:
            raise ValueError(f"Embedding: padding_idx is {padding_idx!r} but must be a row, 0 to {num_embeddings - 1}")
        self.padding_idx = padding_idx
        self.weight = init.normal_(init.parameter((num_embeddings, embedding_dim)), 0.0, 1.0)
        if padding_idx is not None:
            self.weight.data[padding_idx] = 0

    def forward(self, ids: Tensor | np.ndarray | list[int]) -> Tensor:
        return ops.embedding(ids, self.weight, padding_idx=self.padding_idx)

    def extra_repr(self) -> str:
        rows, d = self.weight.shape
        return f"{rows}, {d}" + (f", padding_idx={self.padding_idx}" if self.padding_idx is not None else "")
