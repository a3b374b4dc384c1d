"""Dry calls: whatever launches kernels is called only to have them compiled, all at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import cupy


class _Thread(threading.local):
    """devices: whose context this thread has entered, which the driver's call takes for granted; dry: see `dry`."""

    dry = False

    def __init__(self) -> None:
        self.devices: set[int] = set()


thread = _Thread()


@contextlib.contextmanager
def dry() -> Iterator[None]:
    """Within it this thread's launches are left out: kernels are only compiled. Results hold anything. What CuPy
    itself launches does run."""
    before, thread.dry = thread.dry, True
    try:
        yield
    finally:
        thread.dry = before


def is_dry() -> bool:
    """Whether launches of this thread are left out."""
    return thread.dry


def is_captured() -> bool:
    """Whether a call is to be part of a graph: of one that is captured now, or soon, after it was called dry."""
    return thread.dry or cupy.cuda.get_current_stream().is_capturing()
