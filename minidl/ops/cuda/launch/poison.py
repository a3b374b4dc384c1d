"""Poison: with MINIDL_POISON=1 in the environment, memory that a kernel reads before it was written is full of NaN.

Without it such a fault is silent: that memory is often zero, or has the last step's values. With poison, each launch is
preceded by one that fills the shared memory of all multiprocessors (poison.cu); `empty` fills each result before it
gives it, also one that is handed out again; generated kernels forget an image's values before the next (-DPOISON). All
bytes are 0xFF: NaN of every floating type, -1 of integers. Steps take several times as long, and their graphs have
twice the nodes. The tests on a GPU run with it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import cupy

from ...common.sources import Constant
from .device import most_shared, multiprocessors

ON = os.environ.get("MINIDL_POISON", "0") not in ("", "0")
CONSTANTS: tuple[Constant, ...] = (("POISON", 1),) if ON else ()       # of generated kernels
BYTE = 0xFF
CONFIGURATIONS: list[tuple[str, tuple[Constant, ...]]] = [("launch/poison.cu", ())]


def fill(array: cupy.ndarray) -> cupy.ndarray:
    """The array, filled with the mark of unwritten memory, on the current stream."""
    array.data.memset_async(BYTE, array.nbytes)
    return array


def filled(empty: Callable[..., cupy.ndarray]) -> Callable[..., cupy.ndarray]:
    """A function that gives memory; with poison it also fills it."""
    return functools.wraps(empty)(lambda *arguments: fill(empty(*arguments))) if ON else empty


def fill_shared() -> None:
    """All shared memory of the GPU, on the current stream."""
    from .kernels import kernel

    shared = most_shared()
    kernel("launch/poison.cu", "poison")((2 * multiprocessors(),), (1024,), shared // 4, shared=shared)


def behind_a_fill(start: Callable[..., None]) -> Callable[..., None]:
    """A function that starts a kernel; with poison it first fills all shared memory."""
    @functools.wraps(start)
    def start_behind(kernel: Any, *arguments: object) -> None:
        if ON and kernel.name != "poison":
            fill_shared()
        start(kernel, *arguments)
    return start_behind if ON else start
