"""Launches in a graph whose blocks are on the multiprocessors before the launch before them has ended.

Each kernel begins by waiting for that (compiling.py), so that only the start of blocks overlaps. For compute
capability 9.0, and from CUDA 12.3 on; elsewhere a launch is as any other.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import cupy

from .compiling import thread
from .device import compute_capability, driver

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
def overlapping() -> Iterator[None]:
    """This thread's launches overlap meanwhile, if they can."""
    can = compute_capability() >= MIN_CAPABILITY and cupy.cuda.runtime.driverGetVersion() >= MIN_DRIVER
    thread.launch = _launch if can else None
    try:
        yield
    finally:
        thread.launch = None


def _launch(function: int, *given: int) -> None:
    """As cupy.cuda.driver.launchKernel: given are the sizes, the stream, the arguments and more, which nothing uses."""
    *sizes, stream, arguments, _ = given
    config = _Config((ctypes.c_uint * 7)(*sizes), stream, ctypes.pointer(_SERIALIZED), 1)
    if error := driver().cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(function), ctypes.c_void_p(arguments),
                                          None):
        raise RuntimeError(f"kernel: the driver refuses a launch of {sizes[:3]} blocks of {sizes[3:6]} threads with "
                           f"{sizes[6]} bytes of shared memory, with error {error}; give a grid that the device has")
