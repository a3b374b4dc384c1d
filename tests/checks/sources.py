"""The CUDA sources: their kernels' names, which are launched, and what a compiler without a GPU says of them."""

from __future__ import annotations

import importlib
import io
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from minidl.ops import cuda
from minidl.ops.common.sources import BOUNDS
from minidl.ops.cuda import launch

Constants = tuple[launch.Constant, ...]

LAUNCHERS = [importlib.import_module(found.name) for found in pkgutil.walk_packages(cuda.__path__, f"{cuda.__name__}.")]
CONFIGURATIONS: list[tuple[str, Constants]] = list(dict.fromkeys(
    configuration for launcher in LAUNCHERS for configuration in getattr(launcher, "CONFIGURATIONS", ())))
FILES = sorted(str(path.relative_to(launch.FOLDER).as_posix()) for path in launch.FOLDER.rglob("*.cu"))


def kernels(file: str) -> list[str]:
    """The names of a file's kernels, the includes' among them."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", launch.source(file), flags=re.DOTALL)
    names = re.findall(rf"__global__\s+void\s+{BOUNDS}(\w+)\s*\(", text)
    assert len(names) == text.count("__global__"), f"{file}: a __global__ function that is not `void name(...)`"
    return names


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """How often each kernel is launched meanwhile, by its name; but for launches that were prepared before."""
    found: Counter[str] = Counter()
    start = launch.Kernel._start

    def count(self: launch.Kernel, *arguments: Any) -> None:
        start(self, *arguments)
        found[self.name] += not launch.is_dry()

    with mock.patch.object(launch.Kernel, "_start", count):
        yield found


def compiled(text: str, constants: Constants, architecture: int) -> str:
    """The assembler's log. Raises an exception that holds the compiler's."""
    compiler = pytest.importorskip("cuda.core", reason="cuda.core is not installed: nothing compiles without a GPU")
    logs = io.StringIO()
    own = "a" if architecture == 90 and launch.HOPPER in constants else ""
    options = compiler.ProgramOptions(arch=f"sm_{architecture}{own}", std="c++17", ptxas_options=["-v"],
                                      define_macro=[(name, str(value)) for name, value in constants] or None)
    compiler.Program(text, "c++", options).compile("cubin", logs=logs)
    return logs.getvalue()


def ptx_of(text: str, constants: Constants) -> str:
    """What the assembler is given for compute capability 9.0."""
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    architecture = () if launch.HOPPER in constants else ("-arch=sm_90",)
    nvrtc.compileProgram(program, (*launch.options(constants), *architecture))
    return nvrtc.getPTX(program).decode()


def spilled(log: str) -> dict[str, int]:
    """Kernel -> bytes it stores to and loads from memory for want of registers."""
    found = re.findall(r"Function properties for (\w+)\s+ptxas[^\n]*?(\d+) bytes spill stores, (\d+) bytes spill loads",
                       log)
    return {name: int(stores) + int(loads) for name, stores, loads in found}


def registers(log: str) -> dict[str, int]:
    """Kernel -> registers of a thread."""
    found = re.findall(r"Function properties for (\w+)\s+ptxas[^\n]*?\n[^\n]*?Used (\d+) registers", log)
    return {name: int(count) for name, count in found}
