"""Clipping of gradients, between backward() and step()."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..core.mode import mode
from ..core.tensor import Tensor, as_tensor, wrap
from ..ops.common.backend import backend_of
from .optimizer import with_gradients

EPS = 1e-6                                 # as in PyTorch: nothing is divided by a norm of 0


def clip_grad_norm(params: Iterable[Tensor] | Tensor, max_norm: float) -> Tensor:
    """Scale all gradients so that their norm, as one vector, is at most max_norm; returns the norm that they had.

    The norm is a Tensor of shape (), float64, on the parameters' device: the host does not wait for it, and a compiled
    step may do this. Each p.grad is a new Tensor. Parameters that are frozen, or have no gradient, are left
    out, and one that is listed twice counts once (Pascanu et al. 2013, algorithm 1).

    Raises ValueError for a max_norm that is not above 0, or if no parameter has a gradient; TypeError for anything
    that is not a Tensor.

    >>> w = Tensor([3.0, 4.0], requires_grad=True)
    >>> (w * w).sum().backward(); clip_grad_norm([w], 1.0).item()
    10.0
    >>> [round(g, 3) for g in w.grad.tolist()]
    [0.6, 0.8]
    """
    live = _with_gradients("clip_grad_norm", params, "max_norm", max_norm)
    k = backend_of(*live)
    gradients = [p._grad._data for p in live]  # type: ignore[union-attr]  # live: there is one
    norm = k.sqrt(k.square_sum(gradients))
    factor = k.minimum(k.div(max_norm, k.add(norm, EPS)), 1.0)
    for p, g in zip(live, k.scaled(gradients, factor), strict=True):
        p.grad = wrap(g)
    return wrap(norm)


def clip_grad_value(params: Iterable[Tensor] | Tensor, value: float) -> None:
    """Keep each number of all gradients between -value and value. Each p.grad is a new Tensor; in a compiled step too.

    Raises as `clip_grad_norm`.

    >>> w = Tensor([3.0, -0.1], requires_grad=True)
    >>> (w * w).sum().backward(); clip_grad_value([w], 1.0); [round(g, 3) for g in w.grad.tolist()]
    [1.0, -0.2]
    """
    live = _with_gradients("clip_grad_value", params, "value", value)
    k = backend_of(*live)
    for p in live:
        p.grad = wrap(k.minimum(k.maximum(p._grad._data, -value), value))  # type: ignore[union-attr]


def divide(params: Iterable[Tensor], total: Tensor | float) -> None:
    """Divide all gradients by a number, which may be a Tensor on the parameters' device; if it is 0, they stay. Each
    p.grad is a new Tensor."""
    live = with_gradients(list(params))
    if not live:
        return
    by = as_tensor(total, live[0].device)._data
    k = backend_of(*live)
    by = k.reshape(k.cast(by, "float64"), ())
    factor = k.div(1.0, k.where(k.eq(by, 0), 1.0, by))
    for p, g in zip(live, k.scaled([p._grad._data for p in live], factor), strict=True):  # type: ignore[union-attr]
        p.grad = wrap(g)


def check_limit(name: str, what: str, limit: object) -> None:
    """Refuse a limit that gradients cannot be kept below."""
    if isinstance(limit, bool) or not isinstance(limit, (int, float, np.integer, np.floating)) or not limit > 0:
        raise ValueError(f"{name}: {what} is {limit!r} but must be a number above 0")


def _with_gradients(name: str, params: Iterable[Tensor] | Tensor, what: str, limit: float) -> list[Tensor]:
    """Those that have a gradient, once everything is checked."""
    check_limit(name, what, limit)
    given = [params] if isinstance(params, Tensor) else list(params)
    for p in given:
        if not isinstance(p, Tensor):
            raise TypeError(f"{name}: a parameter is a {type(p).__name__}; pass model.parameters()")
    if isinstance(params, list):
        mode.recorder.reads(params, what=f"the list that {name} is given")
    live = with_gradients(given)
    if not live:
        raise ValueError(f"{name}: none of {len(given)} parameters has a gradient and is not frozen; call it between "
                         "backward() and step()")
    return live
