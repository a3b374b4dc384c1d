"""CUDA kernels without a GPU: compiled by g++ as C++, launched by the backend's own launchers on NumPy arrays.

`Emulator(folder).running()` is a context in which `minidl.ops.cuda` computes on `Memory`, which `cupy.asarray` makes
there, and which has the few things of a CuPy array that launchers and tests ask for. launch.Kernel is the real one, but
for the driver's launch call: here it runs the grid (scheduler.cpp), and raises AssertionError for what a GPU would not
survive and for bytes that are written outside of an array.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
import math
import pkgutil
import re
import shutil
import subprocess
import sys
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from minidl.ops import cuda  # noqa: E402
from minidl.ops._backend import BACKENDS  # noqa: E402
from minidl.ops.cuda import launch  # noqa: E402

HERE = Path(__file__).parent
COMPILER = shutil.which("g++") or shutil.which("c++") if sys.platform == "linux" else None
OPTIONS = ("-O1", "-w", "-std=c++17", "-shared", "-fPIC", "-fno-strict-aliasing", f"-I{HERE}")
EDGE, ALIGNMENT = 4096, 256                # bytes around an array; what CuPy's memory starts on a multiple of
UNTOUCHED = 0xFF                           # in every byte that was never written: NaN, or -1
# What the GPU has and a CPU has not: multiprocessors (few, so that blocks take several turns), an H200's other facts.
FACTS = {"multiprocessors": 4, "compute_capability": 90, "most_shared": 232448}
# Functions that hold a GPU's instructions, and for which emulator.h has others
REPLACED = ("start_copy", "end_copies", "await_copies", "tf32", "bf16_pair", "mma", "wgmma", "await_turn",
            "give_turn")


# ---------------------------------------------------------------- arrays
class Memory(np.ndarray):
    """In place of a CuPy array."""

    @property
    def data(self) -> Any:
        return types.SimpleNamespace(ptr=self.ctypes.data, device_id=0)

    @property
    def _c_contiguous(self) -> bool:
        return self.flags.c_contiguous

    def get(self) -> np.ndarray:
        return np.array(self, subok=False)


class Guarded:
    """Makes Memory whose edges are seen to stay as they are."""

    def __init__(self) -> None:
        self._buffers: list[weakref.ref[np.ndarray]] = []

    def empty(self, shape: Any, dtype: Any = float, order: Any = "C") -> Memory:
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        buffer = np.full(size + 2 * EDGE + ALIGNMENT, UNTOUCHED, np.uint8)
        start = EDGE + -(buffer.ctypes.data + EDGE) % ALIGNMENT
        self._buffers.append(weakref.ref(buffer))
        return np.ndarray(shape, dtype, buffer[start:start + size], order=order).view(Memory)

    def asarray(self, array: Any, dtype: Any = None) -> Memory:
        if isinstance(array, Memory) and dtype in (None, array.dtype):
            return array
        array = np.asarray(array, dtype)
        there = self.empty(array.shape, array.dtype, "F" if array.flags.fnc else "C")
        there[...] = array
        return there

    def made(self, function: Any, *arguments: Any, **options: Any) -> Memory:
        return self.asarray(function(*arguments, **options))

    def ascontiguousarray(self, array: Memory) -> Memory:
        return array if array.flags.c_contiguous else self.made(np.ascontiguousarray, array)

    def check(self) -> None:
        """Raises AssertionError where an edge of an array that is still there was written."""
        alive = [(reference, buffer) for reference in self._buffers if (buffer := reference()) is not None]
        self._buffers = [reference for reference, _ in alive]
        for _, buffer in alive:
            start = EDGE + -(buffer.ctypes.data + EDGE) % ALIGNMENT
            end = start + buffer.size - 2 * EDGE - ALIGNMENT
            for where, edge in (("before", buffer[:start]), ("behind", buffer[end:])):
                assert (edge == UNTOUCHED).all(), f"memory {where} an array of {end - start} bytes is written"


# ---------------------------------------------------------------- kernels
def translated(text: str, name: str) -> str:
    """A kernel's source, includes pasted in, as C++ with a function `run` that launches it."""
    parameters = launch.parameters(text, name)
    text = re.sub(r"extern __shared__ (?:__align__\(\d+\) )?(\w+(?: \w+)?) (\w+)\[\];",
                  r"\1* \2 = (\1*)dynamic_shared;", text)
    text = re.sub(rf"(__forceinline__ \w+) ({'|'.join(REPLACED)})\(", r"\1 gpus_\2(", text)
    text = re.sub(r"__constant__ ([^;]*);", r'} extern "C" { \1; } namespace {', text)        # get_global finds it
    text = re.sub(r"struct alignas\([^{]*\) Pack \{", "struct GpusPack {", text)
    declared = [f"{'const ' if kind == 'in' else ''}{c_type}{'' if kind == 'value' else '*'}"
                for _, c_type, kind in parameters]
    values = ", ".join(f"*({c_type}*)arguments[{i}]" for i, c_type in enumerate(declared))
    return "\n".join([
        '#include "emulator.h"', text, "}",
        'extern "C" const char* run(const int* sizes, void** arguments) {',
        "    return run_grid(sizes, __start_block_shared, __stop_block_shared,",
        f"                    [](void** arguments) {{ {name}({values}); }}, arguments);", "}", ""])


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


class Emulator:
    """What is compiled lies in a folder, once for all contexts."""

    def __init__(self, folder: Path):
        assert COMPILER, "a test asks for a C++ compiler first"
        self._folder = folder
        self.memory, self._launches = Guarded(), 0
        self.launched: set[str] = set()    # names of kernels

    @functools.cached_property
    def _scheduler(self) -> Path:
        return self._compiled((HERE / "scheduler.cpp").read_text(encoding="utf-8"))

    def _compiled(self, text: str, *options: str) -> Path:
        key = hashlib.sha256("\n".join([text, *options]).encode()).hexdigest()[:32]
        source, library = self._folder / f"{key}.cpp", self._folder / f"{key}.so"
        if not library.exists():
            source.write_text(text, encoding="utf-8")
            done = subprocess.run([str(COMPILER), *OPTIONS, "-o", str(library), str(source), *options],
                                  capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"the source does not compile with {options}:\n{done.stderr[:4000]}")
        return library

    def compiled(self, text: str, constants: tuple[launch.Constant, ...]) -> ctypes.CDLL:
        """A translated source, whose function is `run`."""
        defined = [option for option in launch.options(constants) if option.startswith("-D")]
        library = ctypes.CDLL(str(self._compiled(text, str(self._scheduler), *defined)))
        library.run.restype = ctypes.c_char_p
        return library

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
                for room in (launch, launch.device, launch.kernels, launch.memory):
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
