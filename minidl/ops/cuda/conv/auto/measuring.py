"""Measuring: how long each algorithm takes for a case, and when that is found out."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Hashable, Mapping

import cupy

from .....core.pools import GraphMemory, capturing, free_all_blocks
from ....common.geometry import ConvGeometry
from ....common.primitives import Array
from ... import launch

Launcher = Callable[..., Array]
Arguments = tuple[Array | None, ...]

REPEATS, IN_A_ROW = 5, 4                   # timed runs, after one that compiles and warms up; calls in each
FILLED = 0x3C                              # each byte of arrays to measure on: small numbers that are not zero

_waiting: dict[Hashable, Callable[[], object]] = {}    # what measures each case that `ahead` is to measure


def ahead(run: Callable[[], object]) -> None:
    """Prepare what is captured next: have the kernels of all calls of `run` compiled, at once, and measure which
    algorithms are the fastest, on arrays of their own. Launches of `run` are left out, but for CuPy's. Threads do this
    one after the other."""
    with capturing:
        with launch.dry():
            run()
        if _waiting:
            while _waiting:
                _waiting.popitem()[1]()
            with launch.dry():             # what is fused to the chosen ones
                run()


def wait(key: tuple[Hashable, ConvGeometry, Hashable, Hashable], arguments: Arguments, able: Mapping[str, Launcher],
         measured: Callable[[Arguments], object]) -> None:
    """Have the kernels that can do a case compiled, and `ahead` call `measured`, with arrays of the same shapes."""
    if key in _waiting:
        return
    shapes = [None if a is None else (a.shape, a.dtype) for a in arguments]

    def on_own_arrays() -> None:
        arrays = [None if each is None else launch.empty(*each) for each in shapes]
        for array in arrays:
            if array is not None:
                array.data.memset_async(FILLED, array.nbytes)
        measured(tuple(arrays))

    _waiting[key] = on_own_arrays
    for launcher in able.values():
        with contextlib.suppress(MemoryError, NotImplementedError):
            launcher(*arguments, key[1])


def measure(able: Mapping[str, Launcher], arguments: tuple[Array | None, ...], g: ConvGeometry) -> dict[str, float]:
    """Median milliseconds of each launcher on these very arrays; what a graph or memory cannot hold takes for ever."""
    if len(able) == 1 or g.n == 0:
        return {next(iter(able)): 0.0}
    times = {}
    for name, launcher in able.items():
        try:
            times[name] = _time(launcher, arguments, g)
        except (MemoryError, NotImplementedError):     # the latter by CuPy, for what cannot be captured
            times[name] = float("inf")
    free_all_blocks()
    return times


def _time(launcher: Launcher, arguments: tuple[Array | None, ...], g: ConvGeometry) -> float:
    """Median milliseconds of a few calls in a row, replayed as a graph: the host's time for a call must not count."""
    launcher(*arguments, g)
    memory = GraphMemory()
    with memory.as_allocator(), cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        try:
            results = [launcher(*arguments, g) for _ in range(IN_A_ROW)]
        finally:
            graph = stream.end_capture()
        times = []
        for _ in range(REPEATS):
            begin = stream.record()
            graph.launch()
            end = stream.record()
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(begin, end))
        del results                        # the graph wrote there
    return statistics.median(times)
