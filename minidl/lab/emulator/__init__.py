"""CUDA kernels without a GPU: compiled by g++ as C++, and run on the CPU on NumPy arrays.

The threads of a block are coroutines that take turns in a random order (scheduler.cpp). What a GPU would not survive,
or leave undefined, is reported: see `watch.py`, which runs a kernel of a user's own file, and `minidl emulate`. The
tests run all of minidl's kernels by their own launchers in the same way (tests/emulator). Needs Linux and g++.

Compiled libraries are removed with their user, unless $MINIDL_EMULATED names a folder: it keeps them for all processes.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...ops.common.sources import parameters
from ..source import KERNELS as KERNELS
from ..source import SYMBOL

HERE = Path(__file__).parent
COMPILER = shutil.which("g++") or shutil.which("c++") if sys.platform == "linux" else None
# Large frames are entered page by page, so that none passes over the guard of a stack.
OPTIONS = ("-O1", "-w", "-std=c++17", "-shared", "-fPIC", "-fno-strict-aliasing", "-fstack-clash-protection",
           f"-I{HERE}")
# Added if each access is to be seen (watch.cpp): a function is called before it, at each basic block, and before each
# comparison. Structs are copied whole, and blocks are there once, in source order (counts.cpp). With SSE4.1 floorf is
# one instruction, not additions.
WATCHED = ("-g1", "-fno-toplevel-reorder", "-fsanitize=thread", "-fsanitize-coverage=trace-pc,trace-cmp",
           "-fno-tree-sra", "-fno-reorder-blocks", "-fno-thread-jumps", "-DWATCH",
           *(["-msse4.1"] if platform.machine() == "x86_64" else ()))
EDGE, ALIGNMENT = 4096, 256                # bytes around an array; CuPy's memory starts at a multiple of ALIGNMENT
UNTOUCHED = 0xFF                           # in every byte that was never written: NaN, or -1
BYTES = "minidl_bytes_of_"                 # what holds the size of constant memory and the like has this prefix
# Functions that hold a GPU's instructions; emulator.h replaces them
REPLACED = ("start_copy", "stream_copy", "end_copies", "await_copies", "tf32", "bf16_pair", "mma", "wgmma",
            "wgmma_rows", "wgmma_both", "load_transposed", "await_turn", "give_turn", "start_barrier",
            "expect_bytes", "arrive", "await", "copy_rows", "copy_pixels", "store_pixels",
            "end_stores", "await_stores")


# ---------------------------------------------------------------- arrays
class Memory(np.ndarray):
    """In place of a CuPy array."""

    @property
    def data(self) -> Any:
        return types.SimpleNamespace(ptr=self.ctypes.data, device_id=0, mem=object())

    @property
    def _c_contiguous(self) -> bool:
        return self.flags.c_contiguous

    def get(self) -> np.ndarray:
        return np.array(self, subok=False)

    def __getitem__(self, key: Any) -> Any:
        """One element is an array without axes, as CuPy has it."""
        found = super().__getitem__(key)
        return found if isinstance(found, Memory) else np.asarray(found).view(Memory)

    def __array_function__(self, function: Callable[..., Any], kinds: Iterable[type], arguments: Iterable[Any],
                           options: Mapping[str, Any]) -> Any:
        """If a function returns a plain array for a subclass, as concatenate does, this returns one of these."""
        result = super().__array_function__(function, kinds, arguments, options)
        return result.view(Memory) if type(result) is np.ndarray else result


class Guarded:
    """Makes Memory, and checks that its edges stay as they are."""

    def __init__(self) -> None:
        self._buffers: list[weakref.ref[np.ndarray]] = []

    def empty(self, shape: tuple[int, ...], dtype: np.typing.DTypeLike = float,
              order: Literal["C", "F"] = "C") -> Memory:
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        buffer = np.full(size + 2 * EDGE + ALIGNMENT, UNTOUCHED, np.uint8)
        start = EDGE + -(buffer.ctypes.data + EDGE) % ALIGNMENT
        self._buffers.append(weakref.ref(buffer))
        return np.ndarray(shape, dtype, buffer[start:start + size], order=order).view(Memory)

    def asarray(self, array: object, dtype: np.typing.DTypeLike | None = None) -> Memory:
        if isinstance(array, Memory) and dtype in (None, array.dtype):
            return array
        array = np.asarray(array, dtype)
        there = self.empty(array.shape, array.dtype, "F" if array.flags.fnc else "C")
        there[...] = array
        return there

    def made(self, function: Callable[..., object], *arguments: object, **options: object) -> Memory:
        return self.asarray(function(*arguments, **options))

    def ascontiguousarray(self, array: Memory) -> Memory:
        return array if array.flags.c_contiguous else self.made(np.ascontiguousarray, array)

    def check(self) -> None:
        """Raises AssertionError if an edge of an array that still exists was written."""
        alive = [(reference, buffer) for reference in self._buffers if (buffer := reference()) is not None]
        self._buffers = [reference for reference, _ in alive]
        for _, buffer in alive:
            start = EDGE + -(buffer.ctypes.data + EDGE) % ALIGNMENT
            end = start + buffer.size - 2 * EDGE - ALIGNMENT
            for where, edge in (("before", buffer[:start]), ("behind", buffer[end:])):
                assert (edge == UNTOUCHED).all(), f"memory {where} an array of {end - start} bytes is written"


# ---------------------------------------------------------------- kernels
RUN = """
#ifdef WATCH
GUARD(guard_behind);
#endif
extern "C" UNWATCHED const char* run(const int* sizes, void** arguments) {
    watch_launch(__start_block_shared, __stop_block_shared, sizes[6], (void*)run);
    return run_grid(sizes, __start_block_shared, __stop_block_shared,
                    [](void** arguments) UNWATCHED { KERNEL(VALUES); }, arguments);
}
"""


def translated(text: str, name: str) -> str:
    """A kernel's source, includes pasted in, as C++ with a function `run` that launches it."""
    taken = parameters(text, name)
    text = re.sub(r"extern\s+(volatile\s+)?__shared__\s+(?:__align__\(\d+\)\s+)?((?:\w+\s+)+)(\w+)\s*\[\s*\]\s*;",
                  lambda found: "{0}* {1} = ({0}*)dynamic_shared;".format((found[1] or "") + found[2], found[3]), text)
    text = re.sub(r"#\s*include\s*<cooperative_groups/\w+\.h>", "", text)             # all in one here
    text = re.sub(r"\bstatic\s+(?=(volatile\s+)?__shared__)", "", text)             # __shared__ itself is static here
    text = re.sub(rf"(__forceinline__ \w+) ({'|'.join(REPLACED)})\(", r"\1 gpus_\2(", text)
    text = SYMBOL.sub(lambda found: '}} extern "C" {{ {0}{1}{2}{3}; extern const size_t {4}{1}; const size_t {4}{1} = '
                      "sizeof({1}); }} namespace {{".format(re.sub(r"\bconst\s", "", found[2]), *found.group(3, 4),
                                                           found[5] or "", BYTES), text)        # get_global finds it
    text = re.sub(r"struct alignas\([^{]*\) Pack \{", "struct GpusPack {", text)
    declared = [f"{'const ' if kind == 'in' else ''}{c_type}{'' if kind == 'value' else '*'}"
                for _, c_type, kind in taken]
    values = ", ".join(f"*({c_type}*)arguments[{i}]" for i, c_type in enumerate(declared))
    return "\n".join(['#include "emulator.h"', text, "}", RUN.replace("KERNEL", name).replace("VALUES", values)])


@functools.cache
def _compiled_by() -> str:
    """What a library depends on besides its source and its options: the compiler, and all .h and .cpp files here."""
    version = subprocess.run([str(COMPILER), "--version"], capture_output=True, text=True, check=False).stdout
    texts = [path.read_text(encoding="utf-8") for path in sorted(HERE.iterdir()) if path.suffix in (".h", ".cpp")]
    return hashlib.sha256("\n".join([version, *texts]).encode()).hexdigest()


def built(folder: Path, text: str, *commands: Iterable[str], suffix: str = ".so") -> Path:
    """A source as a shared library in a folder, or in $MINIDL_EMULATED; compiled if it is not there.

    commands: the compiler's arguments, which make kernel.so of kernel.cpp. Its name is the digest of all that it
    depends on, and a suffix; and it moves there when it is whole, so that several processes can use the folder at once.

    Raises subprocess.CalledProcessError, with the compiler's messages as `stderr`, if it does not compile.
    """
    commands = tuple(map(tuple, commands))
    key = hashlib.sha256(repr((_compiled_by(), text, commands)).encode()).hexdigest()[:32]
    folder = Path(os.environ.get("MINIDL_EMULATED") or folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{key}{suffix}"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            Path(place, "kernel.cpp").write_text(text, encoding="utf-8")
            for command in commands:
                subprocess.run([str(COMPILER), *command], cwd=place, capture_output=True, text=True, check=True)
            Path(place, "kernel.so").replace(library)
    return library


def loaded(path: Path) -> ctypes.CDLL:
    """A library of a kernel, whose function is `run`."""
    library = ctypes.CDLL(str(path))
    library.run.restype = ctypes.c_char_p
    return library


class Compiler:
    """Compiled libraries are kept in a folder, once for all who use it."""

    def __init__(self, folder: Path):
        if COMPILER is None:
            raise RuntimeError("emulator: there is no C++ compiler, which it needs, and it needs Linux; install g++")
        self._folder = folder

    @functools.cached_property
    def scheduler(self) -> Path:
        """The library that runs grids."""
        return self.library((HERE / "scheduler.cpp").read_text(encoding="utf-8"))

    @functools.cached_property
    def standard(self) -> Path:
        """The standard headers; beside it is what g++ takes in their place, precompiled."""
        return built(self._folder, (HERE / "standard.h").read_text(encoding="utf-8"),
                     [*OPTIONS, "-x", "c++-header", "-o", "kernel.so", "kernel.cpp"], suffix=".h.gch").with_suffix("")

    def library(self, text: str, *options: str) -> Path:
        """A source as a shared library. Raises RuntimeError with the compiler's message if it does not compile."""
        try:
            return built(self._folder, text, [*OPTIONS, "-o", "kernel.so", "kernel.cpp", *options])
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"the source does not compile with {options}:\n{error.stderr[:4000]}") from None

    def kernel(self, text: str, *options: str) -> ctypes.CDLL:
        """A translated source, whose function is `run`."""
        return loaded(self.library(text, "-include", str(self.standard), str(self.scheduler), *options))


# ---------------------------------------------------------------- kernels whose accesses are seen
@functools.cache
def watcher() -> Path:
    """The library that runs grids and looks at accesses, compiled once per process."""
    folder = tempfile.TemporaryDirectory(prefix="minidl-emulator-")
    atexit.register(folder.cleanup)
    return Compiler(Path(folder.name)).library((HERE / "watch.cpp").read_text(encoding="utf-8"), "-ldl")


def watched(folder: Path, text: str, *options: str) -> Path:
    """A translated source as a library in a folder, whose accesses `watcher()` sees; no sanitizer's library is in it.

    Raises subprocess.CalledProcessError, with the compiler's messages as `stderr`, if it does not compile.
    """
    watch = str(watcher())
    return built(folder, text, [*OPTIONS, *WATCHED, *options, "-c", "-o", "kernel.o", "kernel.cpp"],
                 ["-shared", "-o", "kernel.so", "kernel.o", watch])
