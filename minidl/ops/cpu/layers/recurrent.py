"""Recurrences on NumPy arrays. A thread takes some sequences through all their steps, with few calls for each step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...common.curves import over_exp
from ...common.geometry.recurrent import SIZES
from ...common.primitives import ACTIVATIONS, Array
from ..parallel import empty, parallel_for, scratch

__all__ = ["recurrence", "recurrence_grad"]

MIN_ROWS = 32                              # sequences of a chunk: with fewer, products of large matrices take longer
MIN_CHUNK = 1 << 21                        # multiplications of a chunk's step: fewer take less time than its calls


def _rows(w: Array) -> int:
    return max(MIN_ROWS, MIN_CHUNK // max(1, w.size))


def _parts(x: Array, size: int) -> list[Array]:
    """The gates of x (...,gates size)."""
    return [x[..., i:i + size] for i in range(0, x.shape[-1], size)]


# ---------------------------------------------------------------- all steps of some sequences, in their order
def _lstm(gx: Array, w: Array, b: Array | None, state: Array, states: Array, kept: Array) -> None:
    size, (h, c) = w.shape[1], state
    np.add(gx, 0 if b is None else b, out=kept)
    total = scratch("recurrence", kept[0].shape, kept.dtype)
    before_g = _parts(total, size)[2]
    for gates, i, f, g, o, now, cell in zip(kept, *_parts(kept, size), *states, strict=True):
        np.matmul(h, w.T, out=total)
        total += gates
        over_exp(gates, total, 1)          # of g too: one call for all takes less time
        np.tanh(before_g, out=g)
        np.multiply(f, c, out=cell)
        cell += np.multiply(i, g, out=now)
        np.tanh(cell, out=now)
        now *= o
        h, c = now, cell


def _gru(gx: Array, w: Array, b: Array | None, state: Array, states: Array, kept: Array) -> None:
    size, (h,) = w.shape[1], state
    both = kept[..., :2 * size]            # r and z
    np.add(gx[..., :2 * size], 0 if b is None else b[:2 * size], out=both)
    kept[..., 2 * size:3 * size] = gx[..., 2 * size:]
    kept[..., 3 * size:] = 0 if b is None else b[2 * size:]
    total = scratch("recurrence", gx[0].shape, kept.dtype)
    of_both, of_n = total[:, :2 * size], total[:, 2 * size:]
    for gates, r, z, n, q, now in zip(both, *_parts(kept, size), *states, strict=True):
        np.matmul(h, w.T, out=total)
        of_both += gates
        over_exp(gates, of_both, 1)
        q += of_n
        np.multiply(r, q, out=of_n)
        of_n += n
        np.tanh(of_n, out=n)
        np.subtract(h, n, out=now)
        now *= z
        now += n
        h = now


def _plain(act: str) -> Callable[..., None]:
    def run(gx: Array, w: Array, b: Array | None, state: Array, states: Array, kept: Array) -> None:
        (h,), total = state, scratch("recurrence", gx[0].shape, gx.dtype)
        np.add(gx, 0 if b is None else b, out=states[0])
        for now in states[0]:
            now += np.matmul(h, w.T, out=total)
            ACTIVATIONS[act].value(now, now)
            h = now
    return run


def _lstm_grad(gy: Array, w: Array, before: list[list[Array]], states: Array, kept: Array, ga: Array, gq: Array,
               gstate: Array) -> None:
    """From the last step to the first. ga is gq."""
    size, (gh, gc) = w.shape[1], gstate
    by_tanh, gate = _parts(ga, size)[2], _parts(kept, size)[2]
    np.subtract(1, kept, out=ga)           # at first the derivatives of sigmoid and tanh
    ga *= kept
    np.multiply(gate, gate, out=by_tanh)
    np.subtract(1, by_tanh, out=by_tanh)
    inner, cell = scratch("inner", ga[0].shape, ga.dtype), scratch("cell", gh.shape, ga.dtype)
    by_i, by_f, by_g, by_o = _parts(inner, size)
    for each, c_before, c, i, f, g, o, gates in zip(
            gy.swapaxes(0, 1), before[1], states[1], *_parts(kept, size), ga, strict=True):
        gstate += each
        np.tanh(c, out=cell)
        np.multiply(gh, cell, out=by_o)
        gh *= o
        cell *= cell
        np.subtract(1, cell, out=cell)
        cell *= gh
        gc += cell
        np.multiply(gc, g, out=by_i)
        np.multiply(gc, c_before, out=by_f)
        np.multiply(gc, i, out=by_g)
        gates *= inner
        gc *= f
        np.matmul(gates, w, out=gh)


def _gru_grad(gy: Array, w: Array, before: list[list[Array]], states: Array, kept: Array, ga: Array, gq: Array,
              gstate: Array) -> None:
    size, (gh,) = w.shape[1], gstate
    both, of_n, n = gq[..., :2 * size], ga[..., 2 * size:], _parts(kept, size)[2]
    np.subtract(1, kept[..., :2 * size], out=both)     # at first the derivatives of sigmoid and tanh
    both *= kept[..., :2 * size]
    np.multiply(n, n, out=of_n)
    np.subtract(1, of_n, out=of_n)
    inner, product = scratch("inner", both[0].shape, ga.dtype), scratch("cell", gh.shape, ga.dtype)
    by_r, by_z = _parts(inner, size)
    for each, h, r, z, n, q, gates, gn, gqs, gqn in zip(
            gy[0], before[0], *_parts(kept, size), both, of_n, gq, gq[..., 2 * size:], strict=True):
        gh += each
        np.subtract(1, z, out=by_z)
        by_z *= gh
        gn *= by_z
        np.multiply(gn, q, out=by_r)
        np.subtract(h, n, out=by_z)
        by_z *= gh
        gates *= inner
        np.multiply(gn, r, out=gqn)
        gh *= z
        gh += np.matmul(gqs, w, out=product)
    ga[..., :2 * size] = both


def _plain_grad(act: str) -> Callable[..., None]:
    def run(gy: Array, w: Array, before: list[list[Array]], states: Array, kept: Array, ga: Array, gq: Array,
            gstate: Array) -> None:
        (gh,) = gstate
        for each, now, g in zip(gy[0], states[0], ga, strict=True):
            gh += each
            ACTIVATIONS[act].grad(g, gh, now)
            np.matmul(g, w, out=gh)
    return run


# ---------------------------------------------------------------- primitives
ALL_STEPS: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "lstm": (_lstm, _lstm_grad), "gru": (_gru, _gru_grad),
    **{act: (_plain(act), _plain_grad(act)) for act in ("tanh", "relu")}}


def recurrence(gx: Array, w: Array, b: Array | None, state: Array, kind: str, reverse: bool) -> tuple[Array, Array]:
    """(states (S,l,n,h), kept): of gx (l,n,G h), w (G h,h), b (G h,) and state (S,n,h).

    kept (l,n,4 h): of an LSTM its gates, after sigmoid or tanh; of gated recurrent units r, z, n, and W_hn h + b_hn; of
    the others (l,n,0).
    """
    (steps, n, _), size, order = gx.shape, w.shape[1], slice(None, None, -1 if reverse else 1)
    states = empty((len(state), steps, n, size), gx.dtype)
    kept, run = empty((steps, n, SIZES[kind].kept * size), gx.dtype), ALL_STEPS[kind][0]
    parallel_for(n, _rows(w), lambda i, j: run(gx[order, i:j], w, b, state[:, i:j], states[:, order, i:j],
                                               kept[order, i:j]))
    return states, kept


def recurrence_grad(gy: Array, gx: Array, w: Array, b: Array | None, state: Array, states: Array, kept: Array,
                    kind: str, reverse: bool) -> tuple[Array, ...]:
    """(ga, gstate): the gradients by gx and by state; of gated recurrent units also gq, that by W_hh h + b_hh (l,n,G
    h), which is ga for the others."""
    order = slice(None, None, 1 if reverse else -1)
    ga, gstate = empty(gx.shape, gx.dtype), np.zeros(state.shape, gx.dtype)
    gq, run = empty(gx.shape, gx.dtype) if kind == "gru" else ga, ALL_STEPS[kind][1]

    def work(i: int, j: int) -> None:
        mine = states[:, order, i:j]
        before = [[*now[1:], first] for now, first in zip(mine, state[:, i:j], strict=True)]
        run(gy[:, order, i:j], w, before, mine, kept[order, i:j], ga[order, i:j], gq[order, i:j], gstate[:, i:j])
    parallel_for(gx.shape[1], _rows(w), work)
    return (ga, gstate, gq) if kind == "gru" else (ga, gstate)
