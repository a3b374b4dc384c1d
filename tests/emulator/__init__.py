"""minidl's CUDA kernels without a GPU, launched by the backend's own launchers on minidl.emulator's arrays.

`Emulator(folder).running()` is a context in which `minidl.ops.cuda` computes on `Memory`, which `cupy.asarray` makes
there, and which has the few things of a CuPy array that launchers and tests ask for. launch.Kernel is the real one, but
for the driver's launch call: here it runs the grid (scheduler.cpp), and raises AssertionError for what a GPU would not
survive and for bytes that are written outside of an array.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import pkgutil
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from minidl.emulator import COMPILER, Compiler, Guarded, Memory, translated  # noqa: E402
from minidl.ops import cuda  # noqa: E402
from minidl.ops._backend import BACKENDS  # noqa: E402
from minidl.ops.cuda import launch  # noqa: E402

__all__ = ["COMPILER", "Emulator", "cupy", "forget"]

# What the GPU has and a CPU has not: multiprocessors (few, so that blocks take several turns), an H200's other facts.
FACTS = {"multiprocessors": 4, "compute_capability": 90, "most_shared": 232448}


class Function:
    """A kernel as CuPy's RawModule gives it: with an attribute, and a handle, here itself."""

    def __init__(self, name: str, run: Any):
        self.name, self.run = name, run
        self.max_dynamic_shared_size_bytes = 48 * 1024
        self.kernel = types.SimpleNamespace(ptr=self)


class Module:
    """In place of CuPy's RawModule; each of its kernels is compiled alone, when it is asked for."""

    def __init__(self, emulator: Emulator, text: str, constants: tuple[launch.Constant, ...]):
        self._emulator, self._text, self._constants = emulator, text, constants
        self._libraries: list[ctypes.CDLL] = []

    def get_function(self, name: str) -> Function:
        self._libraries.append(self._emulator.compiled(translated(self._text, name), self._constants))
        return Function(name, self._libraries[-1].run)

    def get_global(self, name: str) -> Any:
        """Constant memory: each kernel has its own here, and all of them are filled."""
        def fill(source: Any, size: int) -> None:
            for library in self._libraries:
                ctypes.memmove(ctypes.addressof(ctypes.c_char.in_dll(library, name)), source.ptr, size)
        return types.SimpleNamespace(copy_from_device_async=fill)


class Emulator(Compiler):
    """What is compiled lies in a folder, once for all contexts."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.memory, self._launches = Guarded(), 0
        self.launched: set[str] = set()    # names of kernels

    def compiled(self, text: str, constants: tuple[launch.Constant, ...]) -> ctypes.CDLL:
        """A translated source, with the constants that its launcher asks for."""
        return self.kernel(text, *(option for option in launch.options(constants) if option.startswith("-D")))

    def _launch(self, function: Function, *numbers: Any) -> None:
        """cupy.cuda.driver.launchKernel: grid (3), block (3), shared memory, stream, arguments, extra."""
        *sizes, _, arguments, _ = numbers
        self.launched.add(function.name)
        asked = function.max_dynamic_shared_size_bytes
        assert sizes[6] <= asked, f"{function.name}: {sizes[6]} bytes of shared memory, but {asked} were asked for"
        self._launches += 1                # threads take turns in another order each time
        message = function.run((ctypes.c_int * 8)(*map(int, sizes), self._launches), ctypes.c_void_p(arguments))
        assert not message, f"{function.name}: {message.decode()}"
        try:
            self.memory.check()
        except AssertionError as error:
            raise AssertionError(f"{function.name}: {error}") from None

    @contextlib.contextmanager
    def running(self, old: str = "", new: str = "") -> Iterator[Emulator]:
        """With `old`, sources have `new` in its place, wherever it stands."""
        changed = not old
        stream = types.SimpleNamespace(ptr=0, is_capturing=lambda: False, synchronize=lambda: None)

        def module(file: str, text: str, constants: tuple[launch.Constant, ...]) -> Module:
            nonlocal changed
            changed = changed or old in text
            return Module(self, text.replace(old, new) if old else text, constants)

        self.memory, self._launches = (memory := Guarded()), 0
        with pytest.MonkeyPatch.context() as patch:
            for name in ("arange", "argsort", "asfortranarray", "full", "ones", "ones_like", "zeros"):
                patch.setattr(cupy, name, functools.partial(memory.made, getattr(np, name)))
            for name in ("asarray", "ascontiguousarray"):
                patch.setattr(cupy, name, getattr(memory, name))
            patch.setattr(cupy, "ndarray", Memory)
            patch.setattr(np, "broadcast_to", functools.partial(np.broadcast_to, subok=True))     # as CuPy's
            patch.setattr(cupy.cuda, "get_current_stream", lambda: stream)
            patch.setattr(cupy.cuda, "Device", lambda *number: contextlib.nullcontext())
            patch.setattr(cupy.cuda.runtime, "getDevice", lambda: 0)
            facts = {name: functools.partial(int, fact) for name, fact in FACTS.items()}
            for name, value in {"_module": module, "_launch": self._launch, "_ndarray": Memory, "empty": memory.empty,
                                "_current_device": lambda: 0, "_current_stream": lambda: stream,
                                "_make_ready": lambda device: None, **facts}.items():
                for room in (launch, launch.device, launch.grid, launch.kernels, launch.memory):
                    if hasattr(room, name):
                        patch.setattr(room, name, value)
            patch.setitem(BACKENDS, Memory, cuda)
            forget()
            try:
                yield self
            finally:
                forget()
        assert changed, f"no source that was compiled holds {old!r}: correct the mutation"


def forget() -> None:
    """Whatever launchers remember, plans and kernels, is of this device or of that."""
    for found in pkgutil.walk_packages(cuda.__path__, f"{cuda.__name__}."):
        for value in vars(importlib.import_module(found.name)).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
