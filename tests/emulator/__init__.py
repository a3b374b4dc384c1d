"""minidl's CUDA kernels without a GPU, for tests: minidl.lab.emulator.own with the real CuPy."""

from __future__ import annotations

import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from minidl.lab.emulator import COMPILER  # noqa: E402
from minidl.lab.emulator.own import Emulator, forget  # noqa: E402

__all__ = ["COMPILER", "Emulator", "cupy", "forget"]
