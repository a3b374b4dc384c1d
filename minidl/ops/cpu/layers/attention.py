"""Attention on NumPy arrays: some heads at a time on all cores, and long ones by blocks of queries."""

from __future__ import annotations

import math

import numpy as np

from ...common.geometry.attention import Attention
from ...common.primitives import Array
from ...common.shared import matmul, matmul_grad_x, matmul_grad_y
from ..parallel import CHUNK_BYTES, empty, parallel_for

__all__ = ["attention", "attention_grad", "attention_grad_mask"]

CAUSAL_ROWS = 64                           # queries of a block, which leaves out the keys after its last query

WRITTEN = Attention(matmul, matmul_grad_x, matmul_grad_y)


class _Heads:
    """The matrices of all heads, as chunks take them."""

    def __init__(self, q: Array, k: Array, v: Array, causal: bool):
        self.lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
        self.count, self.queries, self.keys = math.prod(self.lead), q.shape[-2], k.shape[-2]
        row = max(1, self.keys * q.itemsize)               # bytes of scores
        self.causal = causal                               # rows: queries of a block
        self.rows = max(1, min(self.queries, CHUNK_BYTES // row, CAUSAL_ROWS if causal else self.queries))
        self.at_once = max(1, CHUNK_BYTES // (row * max(1, self.queries)))     # heads of a chunk

    def some(self, x: Array, i: int, j: int) -> Array:
        """Those of heads i to j - 1, (j-i,rows,columns)"""
        if x.shape[:-2] == self.lead and x.flags.c_contiguous:
            return x.reshape(self.count, *x.shape[-2:])[i:j]
        x = np.broadcast_to(x, (*self.lead, *x.shape[-2:]))
        if j - i == 1:
            return x[np.unravel_index(i, self.lead)][None]
        return x[np.unravel_index(np.arange(i, j), self.lead)]

    def blocks(self, mask: Array | None, i: int, j: int) -> list[tuple[slice, slice, Array | None]]:
        """Each block's queries, the keys that they may attend to, and its part of the mask."""
        if mask is not None:
            mask = self.some(np.broadcast_to(mask, (*mask.shape[:-2], self.queries, self.keys)), i, j)
        parts = [slice(first, first + self.rows) for first in range(0, self.queries, self.rows)]
        return [(part, keys, None if mask is None else mask[:, part, keys])
                for part in parts for keys in [slice(part.stop if self.causal else self.keys)]]


def attention(q: Array, k: Array, v: Array, mask: Array | None, causal: bool, scale: float) -> tuple[Array, Array]:
    """(o (...,L,dv), the logarithm of each query's sum (...,L)); see common/geometry/attention.py"""
    heads = _Heads(q, k, v, causal)
    o = empty((heads.count, heads.queries, v.shape[-1]), q.dtype)
    sums = np.empty(o.shape[:2], q.dtype)

    def some(i: int, j: int) -> None:
        qs, ks, vs = (heads.some(each, i, j) for each in (q, k, v))
        for part, keys, masked in heads.blocks(mask, i, j):
            o[i:j, part], sums[i:j, part] = WRITTEN.forward(qs[:, part], ks[:, keys], vs[:, keys], masked, causal,
                                                            scale, part.start)
    parallel_for(heads.count, heads.at_once, some)
    return o.reshape(*heads.lead, *o.shape[1:]), sums.reshape(*heads.lead, heads.queries)


def attention_grad(go: Array, q: Array, k: Array, v: Array, mask: Array | None, o: Array, sums: Array, causal: bool,
                   scale: float) -> tuple[Array, Array, Array]:
    """(gq, gk, gv), each of as many heads as o"""
    heads = _Heads(q, k, v, causal)
    gradients = [empty((heads.count, *each.shape[-2:]), q.dtype) for each in (q, k, v)]

    def some(i: int, j: int) -> None:
        qs, ks, vs, gs, os = (heads.some(each, i, j) for each in (q, k, v, go, o))
        rows = heads.some(sums[..., None], i, j)[..., 0]
        gq, gk, gv = (each[i:j] for each in gradients)
        gk[...] = gv[...] = 0
        for part, keys, masked in heads.blocks(mask, i, j):
            gq[:, part], more_k, more_v = WRITTEN.grad(gs[:, part], qs[:, part], ks[:, keys], vs[:, keys], masked,
                                                       os[:, part], rows[:, part], causal, scale, part.start)
            gk[:, keys] += more_k
            gv[:, keys] += more_v
    parallel_for(heads.count, heads.at_once, some)
    gq, gk, gv = (each.reshape(*heads.lead, *each.shape[1:]) for each in gradients)
    return gq, gk, gv


attention_grad_mask = WRITTEN.grad_mask
