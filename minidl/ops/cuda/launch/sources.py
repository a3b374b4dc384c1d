"""A kernel's text: a .cu file with its includes, its constants and its parameters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

Constant = tuple[str, Any]                 # name and value, as -Dname=value

FOLDER = Path(__file__).parents[1]         # ops/cuda: files and includes are named from here
OPTIONS = ("--std=c++17",)
HOPPER: Constant = ("SM_90A", 1)           # of kernels for compute capability 9.0 alone, with its own instructions

GENERATED: dict[str, str] = {}             # includes that no file holds, because a table does: their texts

C_NAME = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


def real(dtype: Any) -> Constant:
    """The constant REAL, the type of a kernel's floating numbers: float32 or float64.

    >>> real(np.dtype("float64"))
    ('REAL', 'double')
    """
    return "REAL", C_NAME[dtype]


def source(file: str) -> str:
    """A .cu file with its own includes pasted in; #line keeps the compiler's messages true."""
    return pasted(file, (FOLDER / file).read_text(encoding="utf-8"), set())


def pasted(file: str, text: str, seen: set[str]) -> str:
    """A source of that name with its includes, but for those already seen."""
    seen.add(file)
    lines = [f'#line 1 "{file}"']
    for number, line in enumerate(text.splitlines(), 1):
        include = re.match(r'#include "(.+)"', line)
        if include is None:
            lines.append(line)
        elif include[1] in seen:
            lines.append("")
        else:
            inner = GENERATED.get(include[1]) or (FOLDER / include[1]).read_text(encoding="utf-8")
            lines += [pasted(include[1], inner, seen), f'#line {number + 1} "{file}"']
    return "\n".join(lines)


def parameters(text: str, name: str) -> list[tuple[str, str, str]]:
    """(name, C type, kind) of each parameter of a kernel in a source; kind: "value", "in" (const T*) or "out" (T*)."""
    found = re.search(rf"__global__ void\s+(?:__launch_bounds__\([^{{;]*?\)\s*)?{name}\s*\(([^)]*)\)", text)
    if found is None:
        raise ValueError(f"kernel: there is no __global__ void {name}(...) in the source; correct the name")
    result = []
    for parameter in found[1].split(","):
        words = re.sub("__restrict__", " ", parameter).replace("*", " * ").split()
        kind = "value" if "*" not in words else "in" if "const" in words else "out"
        result.append((words[-1], " ".join(word for word in words[:-1] if word not in ("*", "const")), kind))
    return result


def options(constants: tuple[Constant, ...]) -> tuple[str, ...]:
    """What the compiler is told: the language, the constants, and where these ask for it, that the GPU is a Hopper."""
    architecture = ("-arch=sm_90a",) if HOPPER in constants else ()
    return (*OPTIONS, *architecture, *(f"-D{name}={value}" for name, value in constants))
