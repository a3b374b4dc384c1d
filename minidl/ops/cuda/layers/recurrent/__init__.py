"""Recurrences on CuPy arrays: launches recurrence.cu, for all steps at once if a block can hold the weights, else a
product and a kernel per step."""

from __future__ import annotations

import functools

import cupy
import numpy as np

from ....common.geometry.recurrent import SIZES
from ....common.primitives import Array
from ....common.shared import add
from ... import launch
from ..linear import linear, linear_grad_x

__all__ = ["recurrence", "recurrence_grad"]

FILE = "layers/recurrent/recurrence.cu"
ROWS = 1, 2, 4                             # sequences of a block: no more than gates
MAX_THREADS, REGISTERS = 1024, 1 << 14     # of a block; of each of a multiprocessor's four schedulers
OTHERS, PER_ROW = 44, 8                    # registers of a thread that hold no weights, and more of them per sequence
FLOAT = np.dtype(np.float32)


def _constants(dtype: np.dtype, kind: str) -> tuple[launch.Constant, ...]:
    gates = SIZES[kind].gates
    return launch.real(dtype), ("GATES", gates), *((("ACT", kind),) if gates == 1 else ())


def _shape(gates: int, size: int, rows: int) -> tuple[int, int, int]:
    """(threads, weights in a thread's registers, bytes of shared memory) of a block that has all weights."""
    columns = gates * size
    threads = launch.blocks(columns, 32) * 32
    registers = REGISTERS // (32 * launch.blocks(threads, 128)) // 8 * 8
    held = min(size, (min(248, registers) - OTHERS - PER_ROW * rows) // 4 * 4)
    work = max(2 * rows * columns + (size - held) * (columns + 1), rows * size + held * (columns + 1))
    return threads, held, 4 * work


def _resident(kind: str, size: int, rows: int) -> tuple[tuple[launch.Constant, ...], int, int]:
    """(constants, threads and bytes of shared memory) of all steps in one launch."""
    threads, held, shared = _shape(SIZES[kind].gates, size, rows)
    return (*_constants(FLOAT, kind), ("H", size), ("ROWS", rows), ("REGISTERS", held),
            ("THREADS_PER_BLOCK", threads)), threads, shared


CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *((FILE, _constants(dtype, kind)) for dtype in launch.C_NAME for kind in SIZES),
    *((FILE, _resident(kind, size, rows)[0]) for kind, size, rows in (
        ("lstm", 8, 1), ("lstm", 128, 1), ("lstm", 128, 4), ("lstm", 64, 4), ("lstm", 148, 2), ("gru", 8, 2),
        ("gru", 64, 1), ("gru", 128, 2), ("gru", 160, 1), ("tanh", 8, 1), ("tanh", 128, 1), ("relu", 256, 1)))]


@functools.lru_cache(maxsize=4096)
def _plan(name: str, kind: str, size: int, n: int, dtype: np.dtype) -> launch.Plan | None:
    """The launch of all steps, or None if no block can hold the weights."""
    gates = SIZES[kind].gates
    if dtype != FLOAT or size % 4 or gates * size > MAX_THREADS:
        return None
    possible = [rows for rows in ROWS if rows <= gates]
    rows = next((rows for rows in possible if launch.blocks(n, rows) <= launch.multiprocessors()), possible[-1])
    constants, threads, shared = _resident(kind, size, rows)
    held = dict(constants)["REGISTERS"]
    if held < 4 or shared > launch.most_shared():
        return None
    return launch.Plan(FILE, name, constants, (launch.blocks(n, rows),), threads, shared)


@functools.lru_cache(maxsize=4096)
def _cell(name: str, kind: str, count: int, dtype: np.dtype) -> launch.Plan:
    """The launch of one step."""
    return launch.Plan(FILE, name, _constants(dtype, kind), (launch.spread(count),), launch.THREADS)


def _times(steps: int, reverse: bool) -> range:
    return range(steps - 1, -1, -1) if reverse else range(steps)


def recurrence(gx: cupy.ndarray, w: cupy.ndarray, b: cupy.ndarray | None, state: cupy.ndarray, kind: str,
               reverse: bool) -> tuple[Array, Array]:
    """(states (S,l,n,h), what recurrence_grad needs); see cpu/layers/recurrent.py"""
    (steps, n, _), size, dtype = gx.shape, w.shape[1], gx.dtype
    states = launch.empty((len(state), steps, n, size), dtype)
    kept = launch.empty((steps, n, SIZES[kind].kept * size), dtype)
    if not states.size:
        return states, kept
    if plan := _plan("recurrence", kind, size, n, dtype):
        plan.start(gx, w, b, state, states, kept, steps, n, int(reverse))
        return states, kept
    gx, state, cell = launch.dense(gx), launch.dense(state), _cell("recurrence_cell", kind, n * size, dtype)
    now = [*state]
    for t in _times(steps, reverse):
        after = [each[t] for each in states]
        cell.start(gx[t], linear(now[0], w, b), now[0], now[-1], after[0], after[-1], kept[t], n, size)
        now = after
    return states, kept


def recurrence_grad(gy: cupy.ndarray, gx: cupy.ndarray, w: cupy.ndarray, b: cupy.ndarray | None, state: cupy.ndarray,
                    states: cupy.ndarray, kept: cupy.ndarray, kind: str, reverse: bool) -> tuple[Array, Array, Array]:
    """(gradient by gx, by W h + b (l,n,G*h), by state)"""
    (steps, n, _), size, dtype = gx.shape, w.shape[1], gx.dtype
    ga, gstate = launch.empty(gx.shape, dtype), launch.empty(state.shape, dtype)
    gq = launch.empty(gx.shape, dtype) if kind == "gru" else ga
    mine = gq if kind == "gru" else None
    if not gy.size:
        gstate[...] = 0
        return ga, gq, gstate
    if plan := _plan("recurrence_grad", kind, size, n, dtype):
        plan.start(gy, w, state, states, kept, ga, mine, gstate, steps, n, int(reverse))
        return ga, gq, gstate
    gy, state = launch.dense(gy), launch.dense(state)
    cell, more = _cell("recurrence_cell_grad", kind, n * size, dtype), None
    direct, gc = launch.empty((n, size), dtype), launch.empty((n, size), dtype)
    times = [*_times(steps, reverse)]
    for t, before in zip(times[::-1], [*times[-2::-1], None], strict=True):
        was = [*state] if before is None else [each[before] for each in states]
        cell.start(gy[0, t], gy[-1, t], more, kept[t], was[0], was[-1], states[-1, t], direct, gc, ga[t],
                   None if mine is None else mine[t], n, size)
        more = linear_grad_x(gq[t], w)
    gstate[0] = add(more, direct)          # of the first step
    if kind == "lstm":
        gstate[1] = gc
    return ga, gq, gstate
