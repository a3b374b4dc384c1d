"""Attention: what a query takes from values, by how well it fits their keys (Vaswani et al. 2017)."""

from __future__ import annotations

import math

import numpy as np

from ...core.tensor import Tensor
from ..common.geometry import cached
from ..common.op import op

__all__ = ["scaled_dot_product_attention"]

NAME = "scaled_dot_product_attention"
Shape = tuple[int, ...]


@cached
def _check(query: Shape, key: Shape, value: Shape, mask: Shape | None, causal: bool) -> None:
    """Refuse shapes that do not fit."""
    three = f"query {query}, key {key}, value {value}"
    if min(map(len, (query, key, value))) < 2:
        raise ValueError(f"{NAME}: {three} must each have 2 axes or more, (...,L,d), (...,S,d) and (...,S,dv); see "
                         ".reshape()")
    if query[-1] != key[-1]:
        raise ValueError(f"{NAME}: query has {query[-1]} features but key has {key[-1]} ({three}); make them equal")
    if key[-2] != value[-2]:
        raise ValueError(f"{NAME}: key has {key[-2]} rows but value has {value[-2]} ({three}); give a value for each "
                         "key")
    try:
        lead = np.broadcast_shapes(query[:-2], key[:-2], value[:-2])
    except ValueError:
        raise ValueError(f"{NAME}: the leading axes of {three} do not broadcast; from the right, sizes must be equal "
                         "or 1, see .reshape()") from None
    if mask is None:
        return
    if causal:
        raise ValueError(f"{NAME}: attn_mask is given and is_causal is True; give one of them, a mask that says both")
    scores = (*lead, query[-2], key[-2])
    if len(mask) > len(scores) or any(m not in (1, n) for m, n in zip(mask[::-1], scores[::-1], strict=False)):
        raise ValueError(f"{NAME}: attn_mask has shape {mask} but must broadcast to {scores} ({three}); see .reshape()")


@op(floating=True, index=("attn_mask",))
def scaled_dot_product_attention(k, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None):
    """softmax(query key^T * scale + mask) value: (...,L,d), (...,S,d), (...,S,dv) -> (...,L,dv).

    Leading axes broadcast. attn_mask: broadcasts to (...,L,S). A bool mask is True where a query attends to a key; a
    floating mask is added to the scores. is_causal: query i attends to keys 0 to i, for all L and S. scale: 1/sqrt(d)
    by default. A query that attends to no key gives zeros, and its gradient is zero, as in PyTorch. dropout_p: must be
    0, since no weights are dropped here.

    Raises ValueError for shapes that do not fit, a mask together with is_causal, and dropout; TypeError for a mask of
    integers, or a floating mask of another dtype than the query.

    >>> q, v = Tensor([[1.0, 0.0], [0.0, 1.0]]), Tensor([[1.0], [3.0]])
    >>> scaled_dot_product_attention(q, q, v, is_causal=True).tolist()[0]
    [1.0]
    >>> scaled_dot_product_attention(q, q, v, Tensor([[False, True], [False, False]])).tolist()
    [[3.0], [0.0]]
    """
    if dropout_p:
        raise ValueError(f"{NAME}: dropout_p is {dropout_p!r} but no weights are dropped here; pass 0, or write "
                         "ops.dropout(ops.softmax(scores), p) @ value")
    added = None if attn_mask is None else attn_mask.shape
    _check(query.shape, key.shape, value.shape, added, bool(is_causal))
    causal, mask = bool(is_causal), attn_mask
    scale = float(max(1, query.shape[-1]) ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        if attn_mask.dtype.kind == "b":
            mask = k.cast(k.where(attn_mask, 0.0, -math.inf), query.dtype.name)
        elif attn_mask.dtype != query.dtype:
            raise TypeError(f"{NAME}: attn_mask has dtype {attn_mask.dtype} but must be bool, or {query.dtype} as "
                            "query; convert it with .to(dtype=...)")
    o, sums = k.attention(query, key, value, mask, causal, scale)

    def backward(gy, need):
        given = gy, query, key, value, mask, o, sums
        gq, gk, gv = k.attention_grad(*given, causal, scale) if any(need[:3]) else (None, None, None)
        return (k.sum_to(gq, query.shape) if need[0] else None,
                k.sum_to(gk, key.shape) if need[1] else None,
                k.sum_to(gv, value.shape) if need[2] else None,
                k.sum_to(k.attention_grad_mask(*given, scale), added) if need[3] else None)
    return o, backward
