"""Compiling: each kernel is a module of its own, compiled in a thread from when it is named. And dry calls: code that
launches kernels is called only to have them compiled, all at once."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import cupy

from ...common.sources import BOUNDS, HOPPER, Constant, options

MAX_COMPILING = 16                         # kernels at a time; the compiler parses one after the other


@functools.cache
def _compilers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(MAX_COMPILING, os.cpu_count() or 1), "minidl-compiles")


def compiling(file: str, text: str, constants: tuple[Constant, ...], name: str) -> Callable[[], cupy.RawModule]:
    """A function that waits for the module of one kernel of a source, which is compiled from now on. NVRTC runs without
    Python's lock. The function raises RuntimeError, with the compiler's message, if it does not compile."""
    compiled = functools.partial(_compiled, file, alone(text, name), constants, cupy.cuda.runtime.getDevice())
    try:
        return _compilers().submit(compiled).result
    except RuntimeError:                   # the main thread has ended, and with it the pool: another one still runs
        return compiled


# A kernel waits until the launches before it have ended: its blocks may be there before that (overlap.py)
BEGIN = """
#if __CUDA_ARCH__ >= 900
#define MINIDL_BEGIN asm volatile("griddepcontrol.wait;" ::: "memory");
#else
#define MINIDL_BEGIN
#endif
#line 1
"""
# Between parameters and {: comments, too
SPACE = r"(?:\s|/\*[\s\S]*?\*/|//.*\n)*"


def alone(text: str, name: str) -> str:
    """A source whose other kernels are functions that are not called: the compiler parses them, and makes nothing. The
    kernel begins as BEGIN says. Raises RuntimeError if it is not seen where."""
    def unless_named(found: re.Match[str]) -> str:
        bounds, other, takes = found.groups()
        return found[0] if other == name else "".join((
            "static __device__ void", re.sub(r"CLUSTERED|__launch_bounds__\(.*\)", "", bounds), other,
            takes.replace("__grid_constant__", "")))
    text = re.sub(rf'extern "C" __global__ void(\s+{BOUNDS})(\w+)(\s*\([^)]*\))', unless_named, text)
    text, count = re.subn(rf"__global__ void\s+{BOUNDS}{name}\s*\([^)]*\){SPACE}{{", r"\g<0> MINIDL_BEGIN", text)
    if not count:
        raise RuntimeError(f"kernel: {name} has no {{ behind its parameters; write it there")
    return BEGIN + text


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


# ---------------------------------------------------------------- dry calls
class _Thread(threading.local):
    """devices: those on which this thread launches. It has entered their contexts, which the driver's call requires.
    dry: see `dry`. launch: in place of the driver's call, see overlap.py."""

    dry = False
    launch: Callable[..., None] | None = None

    def __init__(self) -> None:
        self.devices: set[int] = set()


thread = _Thread()


@contextlib.contextmanager
def dry() -> Iterator[None]:
    """Within it this thread's launches are left out: kernels are only compiled. Results have any values. What CuPy
    itself launches does run."""
    before = thread.dry, thread.devices
    thread.dry, thread.devices = True, set()
    try:
        yield
    finally:
        thread.dry, thread.devices = before


def is_dry() -> bool:
    """Whether launches of this thread are left out."""
    return thread.dry


def is_captured() -> bool:
    """Whether a call is to be part of a graph: of one that is captured now, or soon, after it was called dry."""
    return thread.dry or cupy.cuda.get_current_stream().is_capturing()
