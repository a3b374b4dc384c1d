"""Facts about the current device, each asked for once."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any

import cupy


def _attribute(name: str) -> Callable[[], int]:
    return functools.cache(lambda: cupy.cuda.Device().attributes[name])


multiprocessors = _attribute("MultiProcessorCount")
most_shared = _attribute("MaxSharedMemoryPerBlockOptin")       # bytes of shared memory that one block may ask for
RESERVED = 1024                                                # bytes of it that each block takes in addition
cache_bytes = _attribute("L2CacheSize")                        # of the cache that all multiprocessors share


@functools.cache
def driver() -> Any:
    """The driver's functions, for what CuPy does not call."""
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")


MPS_ENABLED = 133                          # CU_DEVICE_ATTRIBUTE_MPS_ENABLED


def is_served_by_mps() -> bool:
    """Whether NVIDIA's Multi-Process Service lets the kernels of several processes run at the same time on the current
    device. From CUDA 12.4 on."""
    found = ctypes.c_int()
    failed = driver().cuDeviceGetAttribute(ctypes.byref(found), MPS_ENABLED, cupy.cuda.runtime.getDevice())
    return not failed and bool(found.value)


@functools.cache
def compute_capability() -> int:
    """10 times major plus minor: 90 for 9.0."""
    return int(cupy.cuda.Device().compute_capability)


@functools.cache
def compiler_version() -> tuple[int, int]:
    """The version of NVRTC."""
    return cupy.cuda.nvrtc.getVersion()
