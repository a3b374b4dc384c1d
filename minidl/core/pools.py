"""Memory of a CUDA device that belongs to a captured graph, and how it is returned to the device."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import cupy

# Pools whose graph no longer exists. Free memory in a pool of CuPy (14.2) is lost with the pool: the free chunks and
# their arena refer to each other, and Python's collector does not visit them. Arrays may also outlive the graph. So a
# pool stays here until all its memory has been returned to the device.
_ended: set[Any] = set()
_pages: list[Any] = []                     # the host's memory that such graphs read: given back once nothing runs

_lasting: list[Any] = []                   # the pool of arrays that live as long as a training, once there is one

keepers: list[Callable[[], None]] = []     # functions that release memory that is kept for reuse
at_end: list[Callable[[], None]] = []      # functions that destroy captured graphs, before what they use ends
capturing = threading.RLock()              # captures take turns: while one lasts, no thread may wait for the device
LITTLE = 1 << 28                           # bytes that other pools may keep when a graph takes its memory


class GraphMemory:
    """Memory for the calls of one graph, while they are captured and as long as the graph exists.

    `pool` is a pool of CuPy's. It uses freed memory again but, unlike others, returns none to the device when memory
    runs out: kernels that were captured before write there at every replay.
    """

    def __init__(self) -> None:
        import cupy

        blocks: list[Any] = []

        def take(size: int) -> Any:
            try:
                blocks.append(cupy.cuda.Memory(size))
            except cupy.cuda.memory.OutOfMemoryError:
                free_all_blocks()
                blocks.append(cupy.cuda.Memory(size))
            return cupy.cuda.MemoryPointer(blocks[-1], 0)

        self.pool, self._blocks, self._read = cupy.cuda.MemoryPool(take), blocks, list[Any]()
        weakref.finalize(self, _end, self.pool, blocks, self._read).atexit = False

    @property
    def bytes(self) -> int:
        return sum(block.size for block in self._blocks)

    @contextlib.contextmanager
    def as_allocator(self) -> Iterator[None]:
        """New arrays have their memory here meanwhile, and no other thread captures. What other pools hold, which this
        one cannot take, and what launchers keep, is returned to the device first, if it is much."""
        import cupy

        with capturing:
            cupy.cuda.Device().synchronize()
            _pages.clear()
            free_if_much()
            with cupy.cuda.using_allocator(self.pool.malloc):
                yield

    def page(self, rows: int, columns: int) -> tuple[np.ndarray, cupy.ndarray]:
        """uint64 (rows,columns) in the host's memory that kernels read: as an array of NumPy's, and of CuPy's."""
        import cupy

        size = rows * columns * 8
        page = cupy.cuda.alloc_pinned_memory(size)
        self._read.append(page)
        there = cupy.cuda.UnownedMemory(page.ptr, size, page, cupy.cuda.Device().id)
        return (np.frombuffer(page, np.uint64, rows * columns).reshape(rows, columns),
                cupy.ndarray((rows, columns), np.uint64, cupy.cuda.MemoryPointer(there, 0)))


def _end(pool: Any, blocks: list[Any], read: list[Any]) -> None:
    """The graph no longer exists: from now on the pool can return memory. What the host started may still run."""
    blocks.clear()
    _pages.extend(read)
    _ended.add(pool)


@contextlib.contextmanager
def lasting(beside: object = None) -> Iterator[None]:
    """Within this, new arrays on a CUDA device are expected to live as long as the process or the training. They have
    their own pool: in CuPy's pool each would keep the whole of a larger chunk that a step's values left.

    beside: an array on the device that they go to; if it is a NumPy array, there is nothing to do.
    """
    if isinstance(beside, np.ndarray):
        yield
        return
    import cupy

    if not _lasting:
        _lasting.append(cupy.cuda.MemoryPool())
    with cupy.cuda.using_allocator(_lasting[0].malloc):
        yield


def free_if_much() -> None:
    """As `free_all_blocks`, unless only little can become free. The driver serves one process after the other, so that
    memory for an array takes a millisecond where many train on a GPU."""
    import cupy

    if sum(pool.total_bytes() for pool in (cupy.get_default_memory_pool(), *_ended)) > LITTLE:
        free_all_blocks()


def free_all_blocks() -> None:
    """Return to the device all free memory of CuPy's own pool, of the pool for lasting arrays, and of the pools whose
    graph no longer exists; also what is kept for reuse."""
    import cupy

    for let_go in keepers:
        let_go()
    for pool in (cupy.get_default_memory_pool(), *_lasting, *_ended):
        pool.free_all_blocks()
    for pool in tuple(_ended):             # another one may end at any moment
        if not pool.total_bytes():
            _ended.discard(pool)
