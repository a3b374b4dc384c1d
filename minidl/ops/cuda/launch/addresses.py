"""What a captured graph is given anew at each replay: copied by the graph itself, from and to addresses in a table."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import struct
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any

import cupy
import numpy as np

from . import memory
from .grid import THREADS, blocks
from .kernels import kernel

ROWS = 512                                 # replays that the host may be ahead, at most
HALF = ROWS // 2
FILE, BYTES_PER_BLOCK, MAX_BLOCKS = "launch/addresses.cu", THREADS * 16, 128

CONFIGURATIONS: list[tuple[str, tuple[Any, ...]]] = [(FILE, ())]


@functools.cache
def _graph_launch() -> Callable[[int, int], int]:
    """The driver's call that starts a graph on a stream, and returns its status. Python's lock is kept for its 4 us:
    CuPy gives it away, and a thread among others would wait at each replay to have it again."""
    call = ctypes.PyDLL("nvcuda" if os.name == "nt" else "libcuda.so.1").cuGraphLaunch
    call.argtypes, call.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int
    return call


class Addresses:
    """The table of a graph that is given `inputs` inputs, `results` results and some numbers at each replay. numbers:
    the codes of struct for each, "d" for a float64, "QQ" for the two words of a key. page: gives memory for it, as
    `GraphMemory.page`.

    A row holds the addresses of inputs and of results, and the numbers themselves. The graph is captured from `take`,
    its calls, and `give`; `start` starts a replay. Kernels copy instead of the driver: a call of the driver for each
    array costs the host as much as a launch. The first kernel brings the row to the device, and the numbers are copied
    from there.

    A row of the table is written again once an event tells that its replay has ended. Graphs of one capture run one
    after the other, on any streams, so an event after one of them is after all before it.
    """

    def __init__(self, page: Callable[[int, int], tuple[np.ndarray, cupy.ndarray]], inputs: int, results: int,
                 numbers: Sequence[str]):
        copies, codes = len(numbers) + inputs + results, "".join(numbers)
        self._copies, (self._host, self._table) = copies, page(ROWS, max(1, copies + len(codes)))
        self._row_bytes, self._first, self._rows = self._host.strides[0], 8 * len(numbers), self._host.data
        self._pack = struct.Struct(f"={inputs + results}Q{codes}").pack_into
        self._row, self._next = cupy.zeros(self._host.shape[1], np.uint64), cupy.zeros(1, np.int32)
        before = [sum(map(len, numbers[:i])) for i in range(len(numbers))]           # words of numbers
        self._host[:, :len(numbers)] = self._row.data.ptr + 8 * (copies + np.array(before, np.int64))
        # For each copy the graph's own address and the bytes, written once they are known
        self._own = cupy.zeros((max(1, copies), 2), np.uint64)
        self._arrays: list[cupy.ndarray] = []
        self._events = [cupy.cuda.Event(block=True, disable_timing=True) for _ in range(2)]       # after each half
        self._read, self._kernel = kernel(FILE, "read_given"), kernel(FILE, "copy_given")
        # None until it is captured, and at the end of a program
        self.graph: cupy.cuda.Graph = None
        self.turn: int | None = 0          # the next row; None: not known, since a start was interrupted; -1: starting

    def take(self, numbers: list[cupy.ndarray], inputs: list[cupy.ndarray]) -> None:
        """Copy to these arrays: to be captured, before all calls."""
        if self._copies:
            self._read((1,), (THREADS,), self._table, self._row, self._next, ROWS, self._row.size)
        self._copy([*numbers, *inputs], 0)

    def give(self, results: list[cupy.ndarray]) -> None:
        """Copy from these arrays: to be captured, after all calls."""
        self._copy(results, 1)

    def _copy(self, arrays: list[cupy.ndarray], back: int) -> None:
        if arrays:
            first, count = len(self._arrays), len(arrays)
            per_copy = min(MAX_BLOCKS, max(blocks(array.nbytes, BYTES_PER_BLOCK) for array in arrays))
            self._kernel((per_copy, count), (THREADS,), self._row, self._own[first:], first, back)
            self._arrays += arrays

    def captured(self, graph: cupy.cuda.Graph) -> None:
        """Tells the captured graph where its arrays are."""
        self.graph = graph
        if self._arrays:
            self._own.set(np.array([(array.data.ptr, array.nbytes) for array in self._arrays], np.uint64))

    def start(self, *row: float) -> None:
        """Start a replay on the current stream, with the addresses of contiguous arrays like the inputs and then like
        the results, and the numbers. One thread at a time may call it.

        Raises RuntimeError if this is called within itself, by a signal handler or a finalizer.
        """
        turn, after = self.turn, None
        if turn == -1:
            raise RuntimeError("compile: a step was called while a call of it was being started, by a signal handler "
                               "or a finalizer; have that set a flag, and call the step from the loop")
        self.turn = -1
        try:
            if turn is None:
                turn = self._start_over()
            self._pack(self._rows, turn * self._row_bytes + self._first, *row)
            if _graph_launch()(self.graph.graphExec, memory._current_stream().ptr):
                self.graph.launch()        # for a thread that has no context yet, or for CuPy's error
            after = turn + 1 if (turn + 1) % HALF else self._next_half(turn // HALF)
        finally:
            self.turn = after

    def _next_half(self, half: int) -> int:
        """The first row of the other half, once all replays that read it have ended."""
        self._events[half].record()
        self._events[1 - half].synchronize()
        return (1 - half) * HALF

    def _start_over(self) -> int:
        """The first row, after a start that may or may not have reached the device."""
        cupy.cuda.Device().synchronize()
        self._next.fill(0)
        return 0


class Results:
    """Arrays for a result of a graph, another one for each replay: small ones in turn, except those
    that are still held.

    In turn, so that two consecutive calls never get the same one. Only on the null stream, as `memory.empty`.
    """

    KEPT, MAX_BYTES = 4, 1 << 16

    def __init__(self, like: cupy.ndarray):
        self._shape, self._dtype = like.shape, like.dtype
        kept: list[list[cupy.ndarray]] = [[] for _ in range(self.KEPT if like.nbytes <= self.MAX_BYTES else 0)]
        self._large, self._turn = not kept, itertools.cycle(kept)

    def take(self) -> cupy.ndarray:
        """An array that nothing else holds."""
        if self._large or memory._current_stream().ptr:
            return memory._new(self._shape, self._dtype)
        place = next(self._turn)
        for array in place:
            if getrefcount(array) == memory.UNUSED and memory.alone(array):
                return array
        with memory.lasting():             # as long as the graph: else one could keep a large chunk of others
            place[:] = [memory._new(self._shape, self._dtype)]
        return place[0]
