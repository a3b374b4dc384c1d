"""Launches in a graph whose blocks start while the last blocks of the launch before them end.

Each kernel begins by waiting until that launch has ended and its results are in memory (compiling.py), so that only
starting overlaps. For compute capability 9.0, and from CUDA 12.3 on; elsewhere a launch is as any other.

Launches on side streams start at the same time as the next launch on the main one. One that overlaps comes first. Where
the other's blocks are few, and several fit on a multiprocessor, they would share out what room is left: several on one,
none on another, and that launch takes twice the time. So the next launch on the main stream does not overlap then.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
from collections.abc import Iterator, Sequence

import cupy

from .compiling import thread
from .device import compute_capability, driver, multiprocessors

MIN_CAPABILITY, MIN_DRIVER = 90, 12030


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, of 72 bytes."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig: sizes of grid and block, bytes of shared memory, and attributes."""

    _fields_ = (("sizes", ctypes.c_uint * 7), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint))


_SERIALIZED = _Attribute(6, 0, (1,))       # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


@contextlib.contextmanager
def overlapping(main: int) -> Iterator[None]:
    """This thread's launches overlap meanwhile, if they can. main: the main stream."""
    can = compute_capability() >= MIN_CAPABILITY and cupy.cuda.runtime.driverGetVersion() >= MIN_DRIVER
    thread.launch = Overlapping(main) if can else None
    try:
        yield
    finally:
        thread.launch = None


class Overlapping:
    """Launches of a capture. uneven: whether one on a side stream, since the last on the main one, is `_uneven`."""

    def __init__(self, main: int):
        self.main = self.stream = main
        self.uneven = False

    def __call__(self, function: int, *given: int) -> None:
        """As cupy.cuda.driver.launchKernel: given are the sizes, the stream, the arguments and a number that nothing
        uses."""
        *sizes, stream, arguments, _ = given
        overlaps = stream != self.main or not self.uneven
        begins = stream not in (self.main, self.stream)                # what a side stream is given at once
        self.uneven = stream != self.main and (self.uneven or (begins and _uneven(function, sizes)))
        self.stream = stream
        _launch(function, sizes, stream, arguments, overlaps)


def _uneven(function: int, sizes: Sequence[int]) -> bool:
    """Whether several blocks fit on a multiprocessor, and there are too few for each to hold that many."""
    blocks, threads = math.prod(sizes[:3]), math.prod(sizes[3:6])
    most = _most_blocks(function, threads, sizes[6])
    return 1 < blocks < most * multiprocessors() and most > 1


@functools.cache
def _most_blocks(function: int, threads: int, shared: int) -> int:
    """Blocks that a multiprocessor holds at once."""
    found = ctypes.c_int()
    error = driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(found), ctypes.c_void_p(function), threads, ctypes.c_size_t(shared))
    return 1 if error else found.value


def _launch(function: int, sizes: Sequence[int], stream: int, arguments: int, overlaps: bool) -> None:
    config = _Config((ctypes.c_uint * 7)(*sizes), stream, ctypes.pointer(_SERIALIZED), overlaps)
    if error := driver().cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(function), ctypes.c_void_p(arguments),
                                          None):
        raise RuntimeError(f"kernel: the driver refuses a launch of {sizes[:3]} blocks of {sizes[3:6]} threads with "
                           f"{sizes[6]} bytes of shared memory, with error {error}; give a grid that the device has")
