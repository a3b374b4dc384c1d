"""Memory for results: taken from CuPy's pool, and handed out again when nothing refers to it."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from sys import getrefcount
from types import SimpleNamespace
from typing import Any

import cupy
import numpy as np

from ....core.pools import free_all_blocks, keepers, lasting
from . import poison
from .misfits import MAX_ELEMENTS, dense

_current_device = cupy.cuda.runtime.getDevice
_current_stream = cupy.cuda.get_current_stream

KEPT_BYTES = 1 << 29                       # of results that are kept for reuse, at most


def _references(arrays: list[Any]) -> int:
    """How many references there are to what only a list and a loop hold, as `empty` counts them."""
    for array in arrays:
        return getrefcount(array)
    raise AssertionError


# A tracer that reads f_locals (until Python 3.12) also holds what has a name. A count that is one too high would hand
# out memory in use, so it is counted without a name too. That is exact if passing a name makes a reference (until
# 3.13).
_SAMPLE = [object()]
UNUSED = min(_references(_SAMPLE), getrefcount(_SAMPLE[0]) + 1)
_HOLDER = SimpleNamespace(held=object())
HELD = getrefcount(_HOLDER.held)           # of what one attribute alone refers to


def alone(array: cupy.ndarray) -> bool:
    """Whether an array alone refers to its memory. Arrays of as_strided, and of other libraries, refer to the memory,
    not to the array."""
    return getrefcount(array.data) <= HELD and getrefcount(array.data.mem) <= HELD


class _Kept:
    """Results by shape, dtype and device, for as long as there is room."""

    def __init__(self) -> None:
        self.arrays: dict[tuple[Any, ...], list[cupy.ndarray]] = {}
        self.bytes = 0

    def forget(self) -> None:
        """What is in use lives on with the code that uses it."""
        self.arrays.clear()
        self.bytes = 0

    def add(self, key: tuple[Any, ...], array: cupy.ndarray) -> None:
        if self.bytes + array.nbytes > KEPT_BYTES:
            self.forget()
        if array.nbytes <= KEPT_BYTES // 4:
            self.bytes += array.nbytes         # first: after an interrupt there is rather too little kept
            self.arrays.setdefault(key, []).append(array)


_kept = _Kept()
keepers.append(_kept.forget)


@poison.filled
def empty(shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> cupy.ndarray:
    """Memory on the current device for a kernel to write: every launcher takes its results from here.

    A result of an earlier step that nothing refers to any more is handed out again: taking and giving back memory costs
    as much of the host's time as a launch. This is only done on the null stream: what is still queued comes first
    there, and it cannot be captured in a graph.

    Raises MemoryError if there is not enough; then what was taken before is still there, and the process can go on.
    """
    if _current_stream().ptr:
        return _new(shape, dtype)
    key = shape, dtype, _current_device()
    for array in _kept.arrays.get(key, ()):
        if getrefcount(array) == UNUSED and alone(array):
            return array
    array = _new(shape, dtype)
    _kept.add(key, array)
    return array


@poison.filled
def fresh(shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> cupy.ndarray:
    """As `empty`, but always fresh memory: for results of arithmetic, which are often a compiled step's arguments. An
    array that is there at both recordings is taken for one that stays."""
    return _new(shape, dtype)


def _new(shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> cupy.ndarray:
    try:
        return cupy.ndarray(shape, dtype)
    except cupy.cuda.memory.OutOfMemoryError:
        free_all_blocks()
    try:
        return cupy.ndarray(shape, dtype)
    except cupy.cuda.memory.OutOfMemoryError:
        asked, pool = math.prod(shape) * np.dtype(dtype).itemsize, cupy.get_default_memory_pool()
        free, total = cupy.cuda.runtime.memGetInfo()
        raise MemoryError(f"cuda: {asked:,} bytes were asked for (shape {shape}, {np.dtype(dtype)}) but the device has "
                          f"{free:,} bytes free of {total:,}, and the pool holds {pool.total_bytes():,} bytes, "
                          f"{pool.used_bytes():,} of them in use; use a smaller batch") from None


def _references_of_base(view: cupy.ndarray) -> int:
    """How many references there are to the array that one is a view of, counted as `owns` does it."""
    base = view.base
    return getrefcount(base)


ALONE = _references_of_base(SimpleNamespace(base=object()))            # if a single view refers to it


def owns(array: cupy.ndarray) -> bool:
    """Whether nothing else uses an array's memory: it is not a view, or it is a view of all of an array that
    only `empty` refers to as well, which hands it out again when the view has gone."""
    if array.base is None:
        return True
    references = _references_of_base(array)            # before what is kept is looked at: another thread may forget it
    key = array.base.shape, array.base.dtype, array.data.device_id
    kept = sum(each is array.base for each in _kept.arrays.get(key, ()))
    whole = array.base.nbytes == array.nbytes and min(array.strides, default=0) >= 0       # laid out like a copy of it
    return bool(whole and references == ALONE + kept)


def ones_like(x: cupy.ndarray) -> cupy.ndarray:
    """Ones. A single one, from which each backward starts, is always the same: primitives change no input. It is a
    part of an array, for which `owns` is False: who gets it as a gradient gets a copy."""
    return cupy.ones_like(x) if x.ndim else _one(x.dtype, x.data.device_id)


@functools.cache
def _one(dtype: np.dtype, device: int) -> cupy.ndarray:
    with for_all_streams():
        return cupy.ones((2,), dtype)[:1].reshape(())


@contextlib.contextmanager
def for_all_streams() -> Iterator[None]:
    """As `lasting`, for arrays that calls on any stream will read: it waits until they are written, which no captured
    call can do."""
    with lasting():
        yield
    _current_stream().synchronize()


def flat(x: cupy.ndarray) -> tuple[cupy.ndarray, tuple[int, ...]]:
    """All memory from an array's first number to its last, for kernels that read it in place; and each axis's step, in
    numbers. Of a copy, if a step is below 0 or the memory is larger than kernels count to."""
    steps = tuple(stride // x.itemsize if n > 1 else 0 for n, stride in zip(x.shape, x.strides, strict=True))
    extent = 1 + sum((n - 1) * step for n, step in zip(x.shape, steps, strict=True))
    if x._c_contiguous:
        return x, steps
    if x.size and (min(steps, default=0) < 0 or extent > MAX_ELEMENTS):
        return flat(dense(x))
    return cupy.lib.stride_tricks.as_strided(x, (extent if x.size else 0,), (x.itemsize,)), steps


def memory_of(x: cupy.ndarray) -> cupy.ndarray:
    """All memory from an array's first number to its last, as `flat` has it."""
    return x if x._c_contiguous else flat(x)[0]


def one_order(arrays: Sequence[cupy.ndarray]) -> tuple[int, ...] | None:
    """The order of axes, other than theirs, in which arrays of one shape are all in memory without gaps: an elementwise
    kernel reads them as they are. None if they are in C order, or have no such order."""
    first = arrays[0]
    if first._c_contiguous or any(a.strides != first.strides for a in arrays):
        return None
    order = tuple(sorted(range(first.ndim), key=lambda a: -first.strides[a]))
    return order if first.transpose(order)._c_contiguous else None
