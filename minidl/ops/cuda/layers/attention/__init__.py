"""Attention on CuPy arrays."""

from __future__ import annotations

from ....common.geometry.attention import Attention
from ....common.primitives import Array
from ..linear.matmul import matmul, matmul_grad_x, matmul_grad_y

__all__ = ["attention", "attention_grad", "attention_grad_mask"]

WRITTEN = Attention(matmul, matmul_grad_x, matmul_grad_y)


def attention(q: Array, k: Array, v: Array, mask: Array | None, causal: bool, scale: float) -> tuple[Array, Array]:
    """(o (...,L,dv), the logarithm of each query's sum (...,L)); see common/geometry/attention.py"""
    return WRITTEN.forward(q, k, v, mask, causal, scale)


def attention_grad(go: Array, q: Array, k: Array, v: Array, mask: Array | None, o: Array, sums: Array, causal: bool,
                   scale: float) -> tuple[Array, Array, Array]:
    """(gq, gk, gv), each of as many heads as o"""
    return WRITTEN.grad(go, q, k, v, mask, o, sums, causal, scale)


attention_grad_mask = WRITTEN.grad_mask
