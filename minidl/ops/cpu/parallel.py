"""Cache-sized chunks of work on all cores, with the BLAS library kept to one thread inside.

NumPy releases the interpreter lock in its loops and products, so plain threads are enough. A product of small
matrices is many times slower on several BLAS threads than on one; so the chunks are spread over our threads and
each product runs on one. The chunks depend on the sizes alone, never on the number of threads: results have the
same bits for any number.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

T = TypeVar("T")

CHUNK_BYTES = 1 << 20                      # of the array that a chunk covers: with less, threads wait more for others
TEMPORARY_BYTES = 1 << 18                  # of NumPy's temporary arrays: larger ones get new pages each time

# How builds of OpenBLAS name a function; the form that is most usual in NumPy's wheels comes first.
_FORMS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


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
def _openblas(names: tuple[str, ...] = ("set_num_threads", "get_num_threads")) -> list[Any] | None:
    """These functions of the OpenBLAS that NumPy has loaded; None for another BLAS."""
    package = Path(np.__file__).parent
    folders = (package.parent / "numpy.libs", package / ".libs", package / ".dylibs")
    for path in sorted(p for folder in folders if folder.is_dir() for p in folder.glob("*openblas*")):
        library = ctypes.PyDLL(str(path)) # loaded already, so this only finds it; calls keep the interpreter locked
        for form in _FORMS:
            if all(hasattr(library, form.format(name)) for name in names):
                return [getattr(library, form.format(name)) for name in names]
    return None


_inside = 0                                # sections open now, on all threads
_before = 1                                # BLAS threads when the first of them opened


def on_one_blas_thread(work: Callable[[], T]) -> T:
    """work(), whose products run on one BLAS thread; the number set before holds again when the last section closes.

    Sections open and close without a lock, and never halfway. CPython looks for signals and other threads only after a
    call, at a function's start and at a jump back (3.10: at any jump taken). The code below is not interrupted between
    those: an interrupt comes before a section is opened or finds it open, and `finally` starts by closing it. That is
    why this is not a context manager: there an interrupt may come between its functions and the block.
    """
    global _inside, _before
    blas = _openblas()
    if blas is None:
        return work()
    set_threads, get_threads = blas
    mine = 0
    try:
        if _inside == 0:
            _before = get_threads()
        mine = 1
        _inside += 1
        set_threads(1)
        return work()
    finally:
        _inside -= mine if _inside else 0  # none is open in a child that a handler has forked within a section
        if mine > _inside:
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
    global _inside
    blas = _openblas()
    if blas is not None and _inside:
        blas[0](_before)
    _helpers.cache_clear()
    _inside = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def parallel_for(count: int, chunk: int, work: Callable[[int, int], Any]) -> list[Any]:
    """work(begin, end) for each chunk of range(count), on all threads; the results in order of the chunks.

    After an error or an interrupt no thread takes another chunk, and this waits for the chunks under way: after that no
    thread writes to the caller's arrays.
    """
    if 0 < count <= chunk:                 # nothing to share: half the time for small products
        return [on_one_blas_thread(partial(work, 0, count))]
    begins = range(0, count, chunk)
    results, todo, left = [None] * len(begins), [work], list(range(len(begins)))
    numbers = iter(left)                   # one for all threads: a free thread takes the next chunk
    errors: list[BaseException] = []
    helping = [threading.Lock() for _ in range(min(threads(), len(begins)) - 1)]       # each held while a helper works

    def run() -> None:
        for i in numbers:
            results[i] = todo[0](begins[i], min(begins[i] + chunk, count))

    def help_(working: threading.Lock) -> None:
        with working:
            try:
                run()
            except BaseException as error:
                left.clear()               # this ends `numbers`
                errors.append(error)

    def wait() -> None:
        for working in helping:            # a helper that did not wake up in time finds no chunk
            with working:
                pass

    def together() -> None:
        try:
            for working in helping:
                _helpers().put(partial(help_, working))
            run()                          # all of it, if no helper wakes up in time
            wait()
        finally:                           # only after an error is anything left to do here
            left.clear()
            wait()

    on_one_blas_thread(together)
    todo.clear()                           # its arrays are the caller's, and a helper holds these names a moment longer
    if errors:
        error = errors.pop()
        try:
            raise error
        finally:
            del error                      # which refers to this function's names
    return results


def images_per_chunk(bytes_per_image: int, budget: int = CHUNK_BYTES) -> int:
    """How many images' data make a chunk of `budget` bytes; at least one."""
    return max(1, budget // max(1, bytes_per_image))


# ---------------------------------------------------------------- memory
KEPT_BYTES = 1 << 30                       # of memory for reuse, at most
REUSED_BYTES = 1 << 17                     # of the smallest array that is worth it
ALIGNMENT = 64                             # bytes: of a line of a cache, and of the widest registers
_kept: list[np.ndarray] = [np.empty(0, np.uint8)]


def _references(arrays: list[Any]) -> int:
    """How many references there are to an array that a container and a name hold, as `empty` and `scratch` count."""
    for array in arrays:
        return sys.getrefcount(array)
    raise AssertionError


# A tracer that reads f_locals (until Python 3.12) refers to all named values too. A count that is one too high would
# hand out memory in use, so it is counted without a name too; that is exact if passing a name on makes a reference
# (until 3.13).
_UNUSED = min(_references(_kept), sys.getrefcount(_kept[0]) + 1)


def _aligned(need: int) -> np.ndarray:
    """`need` bytes that start at a cache line (elsewhere NumPy takes up to twice as long). Arrays in this memory must
    refer to the result itself: that is why it is made of a memoryview, and not of an array."""
    whole = np.empty(need + ALIGNMENT, np.uint8)
    first = -whole.ctypes.data % ALIGNMENT
    return np.frombuffer(whole.data[first:first + need], np.uint8)


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """np.empty, but a large array takes the memory of an earlier one of its size that has no reference left.

    New memory from the system costs more than filling it: its pages are mapped and cleared one by one.
    This needs no lock: code that looks at a buffer refers to it, so others (a signal handler too) see it as in use.
    """
    need = math.prod(shape) * np.dtype(dtype).itemsize
    if need < REUSED_BYTES:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, _buffer(need))


def _buffer(need: int) -> np.ndarray:
    """`need` bytes: a kept buffer that is not in use, or a new one, which is kept if there is room."""
    for buffer in _kept:
        if buffer.nbytes == need and sys.getrefcount(buffer) == _UNUSED:
            return buffer
    buffer = _aligned(need)
    if sum(kept.nbytes for kept in _kept) + need > KEPT_BYTES:
        _kept[:] = [kept for kept in _kept if sys.getrefcount(kept) != _UNUSED]
    if sum(kept.nbytes for kept in _kept) + need <= KEPT_BYTES:
        _kept.append(buffer)
    return buffer


def elementwise(work: Callable[..., None], *arrays: np.ndarray, chunk: int = CHUNK_BYTES) -> np.ndarray:
    """A new array from arrays of one shape: work(y, *arrays) fills a chunk of it, in any number of passes.

    It has the memory order of the last array, as results of NumPy's own functions have: read in another order, each
    value takes a line of a cache.
    """
    if not arrays[-1].flags.c_contiguous and all(arrays[-1].strides):
        order = sorted(range(arrays[-1].ndim), key=lambda axis: -abs(arrays[-1].strides[axis]))
        if order != list(range(len(order))):
            y = elementwise(work, *(a.transpose(order) for a in arrays), chunk=chunk)
            return y.transpose(np.argsort(order))
    y = empty(arrays[0].shape, arrays[0].dtype)
    if y.nbytes <= chunk:
        work(y, *arrays)
        return y
    flat = [a.reshape(-1) for a in (y, *map(straight, arrays))]
    parallel_for(y.size, chunk // y.itemsize, lambda i, j: work(*[a[i:j] for a in flat]))
    return y


def straight(x: np.ndarray) -> np.ndarray:
    """np.ascontiguousarray, some columns at a time: values at strides of KiB share a few lines of a cache."""
    if x.flags.c_contiguous:
        return x
    y, apart = empty(x.shape, x.dtype), abs(x.strides[-1])
    columns = x.shape[-1] if apart < ALIGNMENT else max(64, (CHUNK_BYTES >> 4) * x.shape[-1] // x.nbytes)
    if apart and apart % 1024 == 0:
        columns = ALIGNMENT // x.itemsize
    for i in range(0, x.shape[-1], columns):
        y[..., i:i + columns] = x[..., i:i + columns]
    return y


def in_order_of(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x, or, if it is large, a copy whose axes have the memory order of y's."""
    if x.shape != y.shape or x.strides == y.strides or x.nbytes < REUSED_BYTES or not all(x.strides):
        return x
    order = sorted(range(y.ndim), key=lambda axis: -abs(y.strides[axis]))
    turned = x.transpose(order)
    return straight(turned).transpose(np.argsort(order)) if abs(turned.strides[-1]) >= ALIGNMENT else x


def owns(array: np.ndarray) -> bool:
    """Whether no other array shares an array's memory, as for a result of `empty` until there is a view of it."""
    base = array.base
    return base is None or (base.nbytes == array.nbytes and any(base is kept for kept in _kept)
                            and sys.getrefcount(base) == _UNUSED + 1)


class _Scratch(threading.local):
    buffers: dict[str, np.ndarray]

    def __init__(self) -> None:
        self.buffers = {}


_scratch = _Scratch()


def scratch(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """This thread's buffer of a name, with whatever it last held; it grows to the largest request.

    As long as there is a reference to the result, no other call gets it: a signal handler in between gets another one.
    """
    need = math.prod(shape) * np.dtype(dtype).itemsize
    held = _scratch.buffers.get(name)
    if held is None or held.nbytes < need or sys.getrefcount(held) != _UNUSED:
        held = _scratch.buffers[name] = _aligned(need)
    return np.ndarray(shape, dtype, held)
