"""Recurrences on CuPy arrays: launches recurrence.cu, for all steps at once if a cluster of blocks can hold the
weights, else a product and a kernel per step."""

from __future__ import annotations

import functools
import math

import cupy
import numpy as np

from ....common.geometry.recurrent import SIZES
from ....common.primitives import Array
from ....common.shared import add
from ... import launch
from ..linear import linear, linear_grad_x

__all__ = ["recurrence", "recurrence_grad"]

FILE = "layers/recurrent/recurrence.cu"
ROWS, CLUSTERS = (1, 2, 4), (1, 2, 4, 8)   # sequences and blocks of a cluster; no more sequences than gates
SHARE = 10 / 11                            # of the multiprocessors, which clusters of more than two can use
MAX_THREADS, REGISTERS = 1024, 1 << 14     # of a block; of each of a multiprocessor's four schedulers
MAX_REGISTERS = 248                        # of a thread
OTHERS, PER_ROW = 44, 8                    # of these, what holds no weights, and more of it per sequence
# Cycles: of a step, however small; of a barrier of a cluster, each time it has twice the blocks; of two launches
STEP, MEETING, LAUNCHES = 700, 250, 16_000
# What all multiprocessors do in a cycle: products, bytes of memory
PRODUCTS, BYTES = 10_000, 2_700
FLOAT = np.dtype(np.float32)


def _constants(dtype: np.dtype, kind: str) -> tuple[launch.Constant, ...]:
    gates = SIZES[kind].gates
    return launch.real(dtype), ("GATES", gates), *((("ACT", kind),) if gates == 1 else ())


def _held(kind: str, size: int, rows: int, cluster: int) -> tuple[int, int]:
    """(threads of a block, weights that each of them has in registers)"""
    threads = launch.blocks(SIZES[kind].gates * size // cluster, 32) * 32
    registers = min(MAX_REGISTERS, REGISTERS // (32 * launch.blocks(threads, 128)) // 8 * 8)
    return threads, min(size, (registers - OTHERS - (PER_ROW + cluster - 1) * rows) // 4 * 4)


def _resident_constants(kind: str, size: int, rows: int, cluster: int) -> tuple[launch.Constant, ...]:
    threads, held = _held(kind, size, rows, cluster)
    return (*_constants(FLOAT, kind), ("H", size), ("ROWS", rows), ("CLUSTER", cluster), ("REGISTERS", held),
            ("THREADS_PER_BLOCK", threads), *((launch.HOPPER,) if cluster > 1 else ()))


def _resident(name: str, kind: str, size: int, n: int, rows: int, cluster: int) -> launch.Plan | None:
    """All steps of n sequences in one launch, by clusters that have `rows` sequences each; None if these cannot hold
    the weights. Its cost is an estimate of a step's cycles."""
    columns, (threads, held) = SIZES[kind].gates * size // cluster, _held(kind, size, rows, cluster)
    if size % (4 * cluster) or threads > MAX_THREADS or held < 4 or rows > SIZES[kind].gates:
        return None
    work = rows * columns + 2 * rows * max(cluster * columns, size) + (size - held) * (columns + 1)
    shared = 4 * max(work, 2 * rows * size + held * (columns + 1))         # the second while weights are loaded
    if shared > launch.most_shared():
        return None
    blocks, warps = launch.blocks(n, rows) * cluster, threads // 32
    rounds = launch.blocks(blocks, int(launch.multiprocessors() * (SHARE if cluster > 2 else 1)) or 1)
    products, loads = size * rows * warps / 4, warps * (size - held + size * rows / 4)
    return launch.Plan(FILE, name, _resident_constants(kind, size, rows, cluster), (blocks,), threads, shared,
                       cost=rounds * (STEP + products + loads + MEETING * math.log2(cluster)))


CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    *((FILE, _constants(dtype, kind)) for dtype in launch.C_NAME for kind in SIZES),
    *((FILE, _resident_constants(*form)) for form in (
        ("lstm", 8, 1, 1), ("lstm", 128, 1, 1), ("lstm", 128, 4, 1), ("lstm", 64, 4, 1), ("lstm", 148, 2, 1),
        ("gru", 8, 2, 1), ("gru", 64, 1, 1), ("gru", 128, 2, 1), ("gru", 160, 1, 1), ("tanh", 8, 1, 1),
        ("tanh", 128, 1, 1), ("relu", 256, 1, 1), ("lstm", 128, 1, 2), ("lstm", 256, 4, 4), ("lstm", 384, 4, 8),
        ("gru", 256, 2, 4), ("gru", 384, 2, 8), ("tanh", 512, 1, 4)))]


@functools.lru_cache(maxsize=4096)
def _plan(name: str, kind: str, size: int, n: int, dtype: np.dtype) -> launch.Plan | None:
    """The launch of all steps; None if no cluster can hold the weights, or a product and a kernel per step take less
    time, as of thousands of sequences."""
    if dtype != FLOAT:
        return None
    clusters, columns = CLUSTERS if launch.compute_capability() == 90 else CLUSTERS[:1], SIZES[kind].gates * size
    found = launch.best(_resident(name, kind, size, n, rows, cluster) for cluster in clusters for rows in ROWS)
    by_steps = LAUNCHES + n * columns * (size / PRODUCTS + 16 / BYTES)   # four numbers per gate
    return found if found is not None and found.cost < by_steps else None


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
                    states: cupy.ndarray, kept: cupy.ndarray, kind: str, reverse: bool) -> tuple[Array, ...]:
    """(gradient by gx, by state, of gated recurrent units also by W h + b (l,n,G*h))"""
    (steps, n, _), size, dtype = gx.shape, w.shape[1], gx.dtype
    ga, gstate = launch.empty(gx.shape, dtype), launch.empty(state.shape, dtype)
    gq = launch.empty(gx.shape, dtype) if kind == "gru" else ga        # the same array for the others
    mine = gq if kind == "gru" else None
    made = (ga, gstate) if mine is None else (ga, gstate, mine)
    if not gy.size:
        gstate[...] = 0
        return made
    if plan := _plan("recurrence_grad", kind, size, n, dtype):
        plan.start(gy, w, state, states, kept, ga, mine, gstate, steps, n, int(reverse))
        return made
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
    return made
