"""Muon: momentum whose singular values are made equal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from ..ops.common.primitives import Array, Rate
from .optimizer import Group, Optimizer

COEFFICIENTS = 3.4445, -4.7750, 2.0315     # of x, x^3 and x^5 in an iteration
EPS = 1e-7


class Muon(Optimizer):
    """Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon), for matrices and filters; as PyTorch's.

    params: parameters of two axes or more, or groups of them, as in `SGD`; biases and scales need another optimizer.
    Filters (m,c,kh,kw) are matrices (m, c*kh*kw). A step with gradient g, a matrix (rows, columns), reads

        m <- momentum * m + (1 - momentum) * g;   u <- m, or with nesterov momentum * m + (1 - momentum) * g
        p <- p - lr * weight_decay * p - lr * sqrt(max(1, rows / columns)) * orthogonal(u)

    orthogonal(u) has u's singular vectors, and singular values from about 0.7 to 1.2 in place of its own: `ns_steps`
    Newton-Schulz iterations, a quintic polynomial of u / |u|. Matrices of one shape go through them together, in the
    parameters' own dtype (PyTorch: in bfloat16). normalized: before each update p is multiplied by sqrt(rows) / |p|, so
    that its length does not change (Jordan 2024, airbench94_muon); PyTorch's has no such option.

    Raises ValueError for a parameter of fewer axes or no elements, a momentum of 1 or more, and iterations that are no
    int of at least 1; else as `SGD`.

    >>> from minidl import Tensor
    >>> w = Tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    >>> muon = Muon([w], lr=0.1, weight_decay=0.0)
    >>> (w * w).sum().backward(); muon.step(); 0.87 < w[0, 0].item() < 0.94
    True
    """

    kept = {"means": "mean"}

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95,
                 nesterov: bool = True, *, ns_steps: int = 5, normalized: bool = False):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
                                  "ns_steps": ns_steps, "normalized": normalized})

    @classmethod
    def _check(cls, group: Mapping[str, Any]) -> None:
        if group["momentum"] >= 1:
            raise ValueError(f"Muon: momentum is {group['momentum']} but must be below 1")
        for p in group["params"]:
            if p.ndim < 2 or p.size == 0:
                raise ValueError(f"Muon: a parameter has shape {p.shape} but must be a matrix or filters; give biases "
                                 "and scales to another optimizer, as AdamW")

    def _update(self, k: ModuleType, params: list[Array], grads: list[Array], kept: dict[str, list[Array]], lr: Rate,
                group: Group) -> None:
        means, momentum = kept["means"], group["momentum"]
        k.ema(means, grads, momentum)
        alike: dict[Any, list[int]] = {}
        for i, p in enumerate(params):
            alike.setdefault((p.dtype, len(p), p.size // len(p)), []).append(i)
        updates, excess = list(params), list(params)   # excess: the part by which each parameter is too long
        for (_, rows, columns), places in alike.items():
            u = stacked(k, means, places, rows, columns)
            if group["nesterov"]:
                u = k.add(k.mul(stacked(k, grads, places, rows, columns), 1 - momentum), k.mul(u, momentum))
            u = orthogonal(k, u, group["ns_steps"])
            put(k, updates, places, u if rows <= columns else k.mul(u, math.sqrt(rows / columns)))
            if group["normalized"]:
                x = stacked(k, params, places, rows, columns)
                put(k, excess, places, k.add(x, k.mul(k.div(x, lengths(k, x)), -math.sqrt(rows))))
        if group["normalized"]:
            k.sgd(params, excess, None, 1.0, 0.0, 0.0, False)
        k.sgd(params, updates, None, lr, 0.0, group["weight_decay"], False)


def stacked(k: ModuleType, arrays: list[Array], places: list[int], rows: int, columns: int) -> Array:
    """Some of the arrays as matrices (n,rows,columns), to be read only: a single one stays where it is."""
    matrices = tuple(k.reshape(arrays[i], (1, rows, columns)) for i in places)
    return k.concatenate(matrices, 0) if len(matrices) > 1 else matrices[0]


def put(k: ModuleType, arrays: list[Array], places: list[int], matrices: Array) -> None:
    """The inverse of `stacked`: each matrix gets the shape of the array whose place it takes."""
    for matrix, i in enumerate(places):
        arrays[i] = k.reshape(k.getitem(matrices, matrix), arrays[i].shape)


def lengths(k: ModuleType, x: Array) -> Array:
    """The lengths of matrices (n,rows,columns) as vectors: (n,1,1)."""
    return k.maximum(k.sqrt(k.sum(k.mul(x, x), (1, 2), True)), EPS)


def orthogonal(k: ModuleType, x: Array, iterations: int = 5) -> Array:
    """Matrices (n,rows,columns) with the same singular vectors and singular values of about 1, by primitives of k."""
    a, b, c = COEFFICIENTS
    tall = x.shape[1] > x.shape[2]         # which of both products with itself is the smaller
    x = k.div(x, lengths(k, x))
    for _ in range(iterations):
        gram = k.matmul_grad_y(x, x) if tall else k.matmul_grad_x(x, x)        # x^T x, or x x^T
        polynomial = k.matmul_sum(gram, gram, gram, c, b)
        x = k.matmul_sum(x, polynomial, x, 1.0, a) if tall else k.matmul_sum(polynomial, x, x, 1.0, a)
    return x
