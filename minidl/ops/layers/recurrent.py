"""Recurrences: a long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000) and
gated recurrent units (Cho et al. 2014), over all steps of sequences.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.tensor import Tensor
from ..common.geometry.recurrent import SIZES
from ..common.op import op
from .activation import relu, sigmoid, tanh

__all__ = ["recurrence"]

State = tuple[Tensor, ...]                 # the hidden state h, and for an LSTM the cell state c
Shape = tuple[int, ...]


def _lstm(gx: Tensor, gh: Tensor, h: Tensor, c: Tensor) -> State:
    i, f, g, o = (gx + gh).chunk(4, 1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def _gru(gx: Tensor, gh: Tensor, h: Tensor) -> State:
    (xr, xz, xn), (hr, hz, hn) = gx.chunk(3, 1), gh.chunk(3, 1)
    n = tanh(xn + sigmoid(xr + hr) * hn)
    return n + sigmoid(xz + hz) * (h - n),


# One step of a kind: (W_ih x + b_ih, W_hh h + b_hh, state) -> state. Cells and second derivatives are made of them
STEPS: dict[str, Callable[..., State]] = {
    "lstm": _lstm, "gru": _gru, "tanh": lambda gx, gh, h: (tanh(gx + gh),), "relu": lambda gx, gh, h: (relu(gx + gh),)}


def _check(kind: str, gx: Shape, w: Shape, state: Shape, b: Shape | None) -> None:
    """Refuse what does not fit."""
    if kind not in tuple(SIZES):
        raise ValueError(f"recurrence: kind is {kind!r} but must be one of {', '.join(SIZES)}")
    gates, states, _ = SIZES[kind]
    if len(gx) != 3 or len(w) != 2 or gx[2] != w[0] or w[0] != gates * w[1]:
        raise ValueError(f"recurrence: gx has shape {gx} and w has shape {w} but of kind {kind!r} they must be gx "
                         f"(l,n,{gates} h) and w ({gates} h,h); see nn.LSTM, nn.GRU and nn.RNN")
    if not w[1]:
        raise ValueError(f"recurrence: w has shape {w}, of 0 units, but needs at least 1")
    if not gx[0]:
        raise ValueError(f"recurrence: gx has shape {gx}, whose sequences have 0 steps but need at least 1; leave "
                         "empty ones out")
    if state != (states, gx[1], w[1]):
        raise ValueError(f"recurrence: state has shape {state} but of kind {kind!r}, with gx {gx} and w {w}, it must "
                         f"have {(states, gx[1], w[1])}; see ops.stack")
    if b is not None and b != w[:1]:
        raise ValueError(f"recurrence: b has shape {b} but w has {w[0]} outputs; b must have shape ({w[0]},)")


@op(floating=True)
def recurrence(k, gx: Tensor, w: Tensor, state: Tensor, b: Tensor | None = None, *, kind: str, reverse: bool = False):
    """All steps of a recurrence: the states after each step, from gx = W_ih x + b_ih of all steps.

    kind "lstm": c = sigmoid(f) c + sigmoid(i) tanh(g) and h = sigmoid(o) tanh(c), where i, f, g and o are, in this
    order, the parts of gx + w h + b. kind "gru": h = (1 - z) n + z h, where r and z are the sigmoids of the first two
    parts of gx + w h + b, and n = tanh(gx + r (w h + b)) of the third parts. "tanh" and "relu": h is
    that of gx + w h + b.

    gx (l,n,gates h) of l steps and n sequences, w (gates h,h), state (states,n,h) before the first step, b (gates h,)
    -> (states,l,n,h), each state at the place of its step. An LSTM has 4 gates and 2 states, h and c; gated recurrent
    units have 3 gates and 1 state, h, the others 1 and 1. reverse: the steps run from the last to the first.

    Raises ValueError for another kind, for shapes that do not fit, for 0 units and for sequences of 0 steps.

    Hochreiter and Schmidhuber 1997, Gers et al. 2000; Cho et al. 2014; Elman 1990.

    >>> from minidl.ops.create import ones, zeros
    >>> recurrence(zeros(5, 2, 12), ones(12, 3), zeros(2, 2, 3), kind="lstm").shape
    (2, 5, 2, 3)
    """
    _check(kind, gx.shape, w.shape, state.shape, None if b is None else b.shape)
    states, kept = k.recurrence(gx, w, b, state, kind, reverse)
    (steps, n, rows), size = gx.shape, w.shape[1]

    def backward(gy, need):
        ga, gstate, *others = k.recurrence_grad(gy, gx, w, b, state, states, kept, kind, reverse)
        gq, = others or (ga,)              # by w h + b
        flat = k.reshape(gq, (steps * n, rows)) if need[1] or need[3] else None
        gw = None
        if need[1]:
            h = k.getitem(state, slice(0, 1))
            if steps > 1:
                others = k.getitem(states, (0, slice(1, None) if reverse else slice(None, -1)))
                h = k.concatenate([others, h] if reverse else [h, others], 0)
            gw = k.linear_grad_w(flat, k.reshape(h, (steps * n, size)))
        return (ga if need[0] else None, gw, gstate if need[2] else None, k.linear_grad_b(flat) if need[3] else None)
    return states, backward
