"""Attention by several heads (Vaswani et al. 2017, section 3.2.2). Names and shapes of parameters are PyTorch's."""

from __future__ import annotations

import math

import numpy as np

from ... import ops
from ...core.device import flags
from ...core.tensor import Tensor
from .. import init
from ..module import Module
from .basic import Linear, _positive

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Module):
    """For each query a mean of the values, weighted by how well their keys fit the query. There are `num_heads` heads
    of embed_dim / num_heads features each; their results are joined and mapped.

    query (l,n,embed_dim), key and value (s,n,embed_dim), or with batch_first (n,l,embed_dim) -> (result, of the query's
    shape, weights (n,l,s), the mean over the heads; None without need_weights). dropout: of the weights, in training.

    Raises ValueError for an embed_dim that num_heads does not divide, and for shapes that do not fit; TypeError for
    masks of integers.

    >>> y, weights = MultiheadAttention(4, 2, batch_first=True)(*[Tensor([[[1.0, 2.0, 3.0, 4.0]] * 3])] * 3)
    >>> y.shape, weights.shape
    ((1, 3, 4), (1, 3, 3))
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, *,
                 batch_first: bool = False):
        super().__init__()
        flags("MultiheadAttention", bias=bias)         # before the layer that has it
        embed_dim, num_heads = _positive("MultiheadAttention", embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads or not 0 <= dropout < 1:
            raise ValueError(f"MultiheadAttention: embed_dim is {embed_dim}, num_heads {num_heads} and dropout "
                             f"{dropout!r} but the heads must divide embed_dim, and dropout be in [0, 1)")
        self.num_heads, self.dropout, self.batch_first = num_heads, float(dropout), bool(batch_first)
        self.in_proj_weight = init.xavier_uniform_(init.parameter((3 * embed_dim, embed_dim)))
        self.in_proj_bias = init.parameter((3 * embed_dim,)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
                need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[Tensor, Tensor | None]:
        """key_padding_mask (n,s) and attn_mask, (l,s) or (n*num_heads,l,s): bool, True where a query does not attend to
        a key (the opposite of `ops.scaled_dot_product_attention`), or floating, added to the scores. is_causal says
        that attn_mask is the causal one. average_attn_weights=False: weights (n,num_heads,l,s)."""
        width, heads = self.out_proj.weight.shape[0], self.num_heads
        if {each.shape[-1:] for each in (query, key, value)} != {(width,)} or query.ndim != 3 or key.ndim != 3:
            raise ValueError(f"MultiheadAttention: query {query.shape}, key {key.shape} and value {value.shape} must "
                             f"each have 3 axes, the last of embed_dim {width}; see .unsqueeze()")
        batch = int(not self.batch_first)
        if key.shape != value.shape or query.shape[batch] != key.shape[batch]:
            raise ValueError(f"MultiheadAttention: query {query.shape}, key {key.shape} and value {value.shape} must "
                             "have one batch size, and a value for each key; see batch_first")
        if is_causal and attn_mask is None:
            raise ValueError("MultiheadAttention: is_causal is True but attn_mask is not given, of which it says the "
                             "kind; pass the mask, True above the diagonal")
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        given = [each if self.batch_first else each.swapaxes(0, 1) for each in (query, key, value)]      # (n,l,width)
        q, k, v = (ops.linear(each, w, b).reshape(*each.shape[:2], heads, width // heads).swapaxes(1, 2)
                   for each, w, b in zip(given, self.in_proj_weight.chunk(3), biases, strict=True))
        mask = self._mask(attn_mask, key_padding_mask, (len(q), heads, q.shape[2], k.shape[2]), q.dtype)
        weights = None
        if need_weights or (self.dropout and self.training):
            scores = q @ k.mT * (width // heads) ** -0.5
            weights = ops.softmax(scores if mask is None else scores + mask)
            weights = ops.dropout(weights, self.dropout) if self.dropout and self.training else weights
            y = weights @ v
        else:
            y = ops.scaled_dot_product_attention(q, k, v, mask)
        y = self.out_proj(y.swapaxes(1, 2).reshape(*given[0].shape[:2], width))
        if need_weights and weights is not None:
            weights = weights.mean(1) if average_attn_weights else weights
        return y if self.batch_first else y.swapaxes(0, 1), weights if need_weights else None

    def _mask(self, pairs: Tensor | None, keys: Tensor | None, shape: tuple[int, ...],
              dtype: np.dtype) -> Tensor | None:
        """What is added to the scores (n,heads,l,s)."""
        n, heads, rows, columns = shape
        total = None
        for name, mask, whole, parts in (
                ("attn_mask", pairs, ((rows, columns), (n * heads, rows, columns)), (-1, heads, rows, columns)),
                ("key_padding_mask", keys, ((n, columns),), (n, 1, 1, columns))):
            if mask is None:
                continue
            if mask.shape not in whole:
                raise ValueError(f"MultiheadAttention: {name} has shape {mask.shape} but must have "
                                 f"{' or '.join(map(str, whole))}; see .reshape()")
            if mask.dtype != np.bool_ and mask.dtype.kind != "f":      # 0 and 1 would be added to the scores
                raise TypeError(f"MultiheadAttention: {name} has dtype {mask.dtype} but must be bool, True where a "
                                "query does not attend, or floating, which is added; convert it: mask != 0, or, where "
                                "1 is what it attends to, mask == 0")
            mask = mask.reshape(1, 1, rows, columns) if mask.shape == (rows, columns) and name == "attn_mask" else (
                mask.reshape(*parts))
            if mask.dtype == np.bool_:
                mask = ops.where(mask, -math.inf, 0.0)
            mask = mask.to(dtype=dtype)
            total = mask if total is None else total + mask
        return total

    def extra_repr(self) -> str:
        return (f"{self.out_proj.weight.shape[0]}, {self.num_heads}" + f", dropout={self.dropout}" * (self.dropout > 0)
                + ", bias=False" * (self.in_proj_bias is None) + ", batch_first=True" * self.batch_first)
