"""Attention written out as products and a softmax, for both backends: all of it on the CPU, and on CUDA what no kernel
computes.

q (...,L,d), k (...,S,d), v (...,S,dv), and a mask that broadcasts to (...,L,S), is floating and is added to the scores,
or None. causal: query i attends to the first i + 1 keys. `sums` is log(sum of e^score) of each query, (...,L); infinite
for one that attends to nothing, so that e^(score - sums) is a key's weight in any case.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from ..primitives import Array


class Product(Protocol):
    """matmul(x, y), matmul_grad_x(gy, y) or matmul_grad_y(gy, x) of a backend."""

    def __call__(self, x: Array, y: Array, /) -> Array: ...


class Attention(NamedTuple):
    """Attention by a backend's products."""

    matmul: Product                        # x y
    by_rows: Product                       # x y^T: matmul_grad_x
    by_columns: Product                    # y^T x: matmul_grad_y

    def scores(self, q: Array, k: Array, mask: Array | None, causal: bool, scale: float, first: int = 0) -> Array:
        """(...,L,S), of queries that are preceded by `first` others."""
        s = self.by_rows(q * scale, k)
        if mask is not None:
            s = s + mask
        if causal:
            later = np.triu(np.ones_like(s, dtype=bool, shape=s.shape[-2:]), 1 + first)
            s = np.where(later, -np.inf, s)
        return s

    def forward(self, q: Array, k: Array, v: Array, mask: Array | None, causal: bool, scale: float,
                first: int = 0) -> tuple[Array, Array]:
        """(o (...,L,dv), sums)"""
        s = self.scores(q, k, mask, causal, scale, first)
        if not s.size:
            return self.matmul(s, v), np.full_like(s, np.inf, shape=s.shape[:-1])
        top = np.max(s, axis=-1, keepdims=True)
        top = np.where(top == -np.inf, 0, top)             # of a query that attends to nothing
        s -= top
        p = np.exp(s)
        total = np.sum(p, axis=-1, keepdims=True)
        some = np.where(total == 0, 1, total)
        sums = np.where(total == 0, np.inf, top + np.log(some))
        return self.matmul(p, v) / some, sums[..., 0]

    def weights(self, s: Array, sums: Array) -> Array:
        return np.exp(s - sums[..., None])

    def grad_scores(self, go: Array, v: Array, o: Array, p: Array) -> Array:
        """The gradient by the scores, from the weights p."""
        gs = self.by_rows(go, v)
        gs -= np.sum(go * o, axis=-1, keepdims=True)
        gs *= p
        return gs

    def grad(self, go: Array, q: Array, k: Array, v: Array, mask: Array | None, o: Array, sums: Array, causal: bool,
             scale: float, first: int = 0) -> tuple[Array, Array, Array]:
        """(gq, gk, gv), each in the shape to which all broadcast"""
        p = self.weights(self.scores(q, k, mask, causal, scale, first), sums)
        gs = self.grad_scores(go, v, o, p)
        return self.matmul(gs, k) * scale, self.by_columns(q, gs) * scale, self.by_columns(go, p)

    def grad_mask(self, go: Array, q: Array, k: Array, v: Array, mask: Array, o: Array, sums: Array,
                  scale: float) -> Array:
        """(...,L,S)"""
        p = self.weights(self.scores(q, k, mask, False, scale), sums)
        return self.grad_scores(go, v, o, p)
