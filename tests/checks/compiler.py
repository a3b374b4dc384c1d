"""What is skipped where there is no C++ compiler, by which kernels are emulated."""

from __future__ import annotations

import pytest

from minidl.lab.emulator import COMPILER

REASON = "the emulator needs Linux and a C++ compiler, g++ or c++"

needs_compiler = pytest.mark.skipif(COMPILER is None, reason=REASON)


def skip_without_compiler() -> None:
    """For a fixture, which takes no marks."""
    if COMPILER is None:
        pytest.skip(REASON)
