"""What is skipped where there is no C++ compiler, by which kernels are emulated."""

from __future__ import annotations

import importlib.util

import pytest

from minidl.lab.emulator import COMPILER

REASON = "the emulator needs Linux and a C++ compiler, g++ or c++"

needs_compiler = pytest.mark.skipif(COMPILER is None, reason=REASON)
on_cuda = pytest.mark.skipif(COMPILER is None or importlib.util.find_spec("cupy") is None,
                             reason="CuPy or a C++ compiler is not installed: launchers cannot be imported, or run")


def skip_without_compiler() -> None:
    """For a fixture, which takes no marks."""
    if COMPILER is None:
        pytest.skip(REASON)
