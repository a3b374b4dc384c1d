"""Cache-sized chunks of work on all cores, with the BLAS library kept to one thread inside.

NumPy releases the interpreter lock in its loops and products, so plain threads serve. A product of small
matrices is many times slower on several BLAS threads than on one; so the chunks are spread over our threads and
each product runs on one. What is a chunk depends on the sizes alone, never on the number of threads: results are
the same bits for any of them.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

CHUNK_BYTES = 1 << 20                      # of the array a chunk walks over: less, and threads wait for each other more

# Names that builds of OpenBLAS give to one function, in the order of how usual they are in NumPy's wheels.
_SETTERS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads64_",
            "openblas_set_num_threads")


@cache
def threads() -> int:
    """How many threads share the work: MINIDL_NUM_THREADS, or the cores this process may use."""
    wanted = os.environ.get("MINIDL_NUM_THREADS")
    if wanted is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not wanted.isdigit() or int(wanted) < 1:
        raise ValueError(f"MINIDL_NUM_THREADS: {wanted!r} is not an int of at least 1; unset it to use all cores")
    return int(wanted)


# ---------------------------------------------------------------- BLAS threads
@cache
def _openblas() -> tuple[Callable[[int], None], Callable[[], int]] | None:
    """(set, get) of the number of threads of the OpenBLAS that NumPy has loaded; None for another BLAS."""
    package = Path(np.__file__).parent
    folders = (package.parent / "numpy.libs", package / ".libs", package / ".dylibs")
    for path in sorted(p for folder in folders if folder.is_dir() for p in folder.glob("*openblas*")):
        library = ctypes.CDLL(str(path))   # loaded already, so this only finds it
        for setter in _SETTERS:
            if hasattr(library, setter):
                return getattr(library, setter), getattr(library, setter.replace("_set_", "_get_"))
    return None


_lock = threading.Lock()
_inside = 0                                # sections open now, on all threads
_before = 1                                # BLAS threads when the first of them opened


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Products inside run on one BLAS thread; the number set before holds again outside."""
    global _inside, _before
    blas = _openblas()
    if blas is None:
        yield
        return
    set_threads, get_threads = blas
    with _lock:
        if _inside == 0:
            _before = get_threads()
            set_threads(1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                set_threads(_before)


# ---------------------------------------------------------------- chunks over threads
@cache
def _helpers() -> SimpleQueue[Callable[[], None]]:
    """Where threads() - 1 threads wait for something to do."""
    jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def serve() -> None:
        while True:
            jobs.get()()

    for i in range(threads() - 1):
        threading.Thread(target=serve, name=f"minidl-{i}", daemon=True).start()
    return jobs


def _after_fork() -> None:
    """A forked child has none of its parent's threads: it starts its own, and no section is open in it."""
    global _lock, _inside
    _helpers.cache_clear()
    _lock, _inside = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def parallel_for(count: int, chunk: int, work: Callable[[int, int], Any]) -> list[Any]:
    """work(begin, end) for each chunk of range(count), on all threads; the results in order of the chunks."""
    begins = range(0, count, chunk)
    results: list[Any] = [None] * len(begins)
    take = itertools.count().__next__      # one counter for all threads: who is free takes the next chunk
    finished: SimpleQueue[BaseException | None] = SimpleQueue()

    def run(report: Callable[[BaseException | None], None]) -> None:
        while (i := take()) < len(begins):
            try:
                results[i] = work(begins[i], min(begins[i] + chunk, count))
            except BaseException as error:
                report(error)
            else:
                report(None)

    own: list[BaseException | None] = []
    with one_blas_thread():
        for _ in range(min(threads(), len(begins)) - 1):
            _helpers().put(lambda: run(finished.put))
        run(own.append)                    # all of it, should no helper wake up in time
        outcomes = own + [finished.get() for _ in range(len(begins) - len(own))]
    for error in outcomes:
        if error is not None:
            raise error
    return results


def images_a_chunk(bytes_an_image: int, budget: int = CHUNK_BYTES) -> int:
    """How many images' data make a chunk of `budget` bytes; at least one."""
    return max(1, budget // max(1, bytes_an_image))


# ---------------------------------------------------------------- memory
KEPT_BYTES = 1 << 30                       # of memory for reuse, at most
REUSED_BYTES = 1 << 17                     # of the smallest array that is worth it
_kept: list[np.ndarray] = [np.empty(0, np.uint8)]


def _references(i: int) -> int:
    """How many references there are to a kept buffer; every array that lies in it holds one."""
    return sys.getrefcount(_kept[i])


_UNUSED = _references(0)


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """np.empty, but large arrays lie where earlier ones of the same size lay that nobody refers to any more.

    Memory fresh from the system costs more than filling it: its pages are mapped and cleared one by one.
    """
    need = math.prod(shape) * np.dtype(dtype).itemsize
    if need < REUSED_BYTES:
        return np.empty(shape, dtype)
    with _lock:
        unused = [i for i in range(len(_kept)) if _references(i) == _UNUSED]
        for i in unused:
            if _kept[i].nbytes == need:
                return np.ndarray(shape, dtype, _kept[i])
        if sum(buffer.nbytes for buffer in _kept) + need > KEPT_BYTES:
            for i in reversed(unused):
                del _kept[i]
        buffer = np.empty(need, np.uint8)
        if sum(buffer.nbytes for buffer in _kept) + need <= KEPT_BYTES:
            _kept.append(buffer)
        return np.ndarray(shape, dtype, buffer)


def elementwise(work: Callable[..., None], *arrays: np.ndarray) -> np.ndarray:
    """A new array from arrays of one shape: work(y, *arrays) fills a chunk of it, in any number of passes."""
    y = empty(arrays[0].shape, arrays[0].dtype)
    if y.nbytes <= CHUNK_BYTES:
        work(y, *arrays)
        return y
    flat = [a.reshape(-1) for a in (y, *map(np.ascontiguousarray, arrays))]
    parallel_for(y.size, CHUNK_BYTES // y.itemsize, lambda i, j: work(*[a[i:j] for a in flat]))
    return y


class _Scratch(threading.local):
    buffers: dict[str, np.ndarray]

    def __init__(self) -> None:
        self.buffers = {}


_scratch = _Scratch()


def scratch(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """This thread's buffer of a name, with whatever it last held; it grows to the largest request."""
    need = math.prod(shape) * np.dtype(dtype).itemsize
    held = _scratch.buffers.get(name)
    if held is None or held.nbytes < need:
        held = _scratch.buffers[name] = np.empty(need, np.uint8)
    return held[:need].view(dtype).reshape(shape)
