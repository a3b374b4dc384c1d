"""Facts about the current device, each asked for once."""

from __future__ import annotations

import functools

import cupy


@functools.cache
def multiprocessors() -> int:
    return cupy.cuda.Device().attributes["MultiProcessorCount"]


@functools.cache
def compute_capability() -> int:
    """10 times major plus minor: 90 for 9.0."""
    return int(cupy.cuda.Device().compute_capability)


@functools.cache
def compiler_version() -> tuple[int, int]:
    """Of NVRTC."""
    return cupy.cuda.nvrtc.getVersion()


@functools.cache
def cache_bytes() -> int:
    """Of the second-level cache, which all multiprocessors share."""
    return cupy.cuda.Device().attributes["L2CacheSize"]


@functools.cache
def most_shared() -> int:
    """Bytes of shared memory that one block may ask for."""
    return cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
