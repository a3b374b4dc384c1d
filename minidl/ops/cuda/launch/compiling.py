"""Compiling: each kernel in a thread, as a module of its own, from when it is named."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import cupy

from ...common.sources import BOUNDS, HOPPER, Constant, options

MAX_COMPILING = 16                         # kernels at a time; the compiler parses one after the other


@functools.cache
def _compilers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(MAX_COMPILING, os.cpu_count() or 1), "minidl-compiles")


def compiling(file: str, text: str, constants: tuple[Constant, ...], name: str) -> Callable[[], cupy.RawModule]:
    """What waits for the module of one kernel of a source, which is compiled from now on. NVRTC runs without Python's
    lock. Raises RuntimeError there, with the compiler's message, if it does not compile."""
    compiled = functools.partial(_compiled, file, alone(text, name), constants, cupy.cuda.runtime.getDevice())
    try:
        return _compilers().submit(compiled).result
    except RuntimeError:                   # the main thread has ended, and with it the pool: another one still runs
        return compiled


def alone(text: str, name: str) -> str:
    """A source whose other kernels are functions that nobody calls: the compiler parses them, and makes nothing."""
    def unless_named(found: re.Match[str]) -> str:
        bounds, other, takes = found.groups()
        return found[0] if other == name else "".join((
            "static __device__ void", re.sub(r"__launch_bounds__\(.*\)", "", bounds), other,
            takes.replace("__grid_constant__", "")))
    return re.sub(rf'extern "C" __global__ void(\s+{BOUNDS})(\w+)(\s*\([^)]*\))', unless_named, text)


def _compiled(file: str, text: str, constants: tuple[Constant, ...], device: int) -> cupy.RawModule:
    # Constants as lines of the source: CuPy compiles an empty file for each tuple of options that it has not seen.
    own = tuple(constant for constant in constants if constant == HOPPER)
    lines = [f"#define {name} {value}\n" for name, value in constants if (name, value) not in own]
    module = cupy.RawModule(code="".join([*lines, text]), options=options(own), backend="nvrtc")
    try:
        with cupy.cuda.Device(device):
            module.compile()
    except cupy.cuda.compiler.CompileException as error:
        found = [line for line in str(error).splitlines() if "error" in line] or [str(error)]
        raise RuntimeError(f"kernel: {file} does not compile with {dict(constants)}: {'; '.join(found[:4])}; "
                           "correct the source at that line") from None
    return module
