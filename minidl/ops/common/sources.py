"""A kernel's text: a .cu file with its includes, its constants, its parameters and the structs that they are."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np

Constant = tuple[str, Any]                 # name and value, as -Dname=value

FOLDER = Path(__file__).parents[1] / "cuda"  # ops/cuda: files and includes are named from here
OPTIONS = ("--std=c++17",)
HOPPER: Constant = ("SM_90A", 1)           # of kernels for compute capability 9.0 alone, with its own instructions

# What may come before a kernel's name; CLUSTERED is a macro that says how many blocks a cluster has
BOUNDS = r"(?:CLUSTERED\s+)?(?:__launch_bounds__\([^{;]*?\)\s*)?"

GENERATED: dict[str, str] = {}             # texts of includes that come from a table, not from a file

C_NAME: dict[np.dtype, str] = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}

# C type of a parameter or of a struct's field -> NumPy dtype. Vectors are arrays of their numbers, but for int4, which
# minidl's own kernels take as records.
TYPES: dict[str, np.dtype] = {name: np.dtype(dtype) for names, dtype in (
    ("bool", np.bool_), ("char|signed char|int8_t", np.int8), ("unsigned char|uint8_t|uchar|uchar2|uchar4", np.uint8),
    ("short|short int|int16_t|short2|short4", np.int16),
    ("unsigned short|unsigned short int|uint16_t|ushort|ushort2|ushort4", np.uint16),
    ("int|signed|signed int|int32_t|int2|int3", np.int32),
    ("unsigned|unsigned int|uint32_t|uint|uint2|uint3|uint4", np.uint32),
    ("long|long int|long long|long long int|int64_t", np.int64),
    ("unsigned long|unsigned long int|unsigned long long|unsigned long long int|uint64_t|size_t", np.uint64),
    ("float|float2|float3|float4", np.float32), ("double|double2|double3|double4", np.float64),
    ("half|__half|half2|__half2", np.float16),
    ("int4", [(v, np.int32) for v in "xyzw"])) for name in names.split("|")}


def real(dtype: np.dtype) -> Constant:
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
    head = rf"__global__ void\s+{BOUNDS}{name}\s*\(([^)]*)\)"
    found = re.search(head + r"\s*{", text) or re.search(head, text)       # not a declaration that comes before
    if found is None:
        raise ValueError(f"kernel: there is no __global__ void {name}(...) in the source; correct the name")
    result = []
    for parameter in found[1].split(",") if found[1].split() not in ([], ["void"]) else ():
        parameter = parameter.partition("=")[0]              # a launch in the emulator gives each
        pointer = re.sub(r"^(.*?)(\w+)\s*\[[^]]*\]\s*$", r"\1*\2", parameter, flags=re.DOTALL)      # T x[] is T* x
        words = re.sub(r"\b(__restrict(__)?|__grid_constant__|volatile)\b", " ", pointer).replace("*", " * ").split()
        kind = "value" if "*" not in words else "in" if "const" in words[:words.index("*")] else "out"
        result.append((words[-1], " ".join(word for word in words[:-1] if word not in ("*", "const")), kind))
    return result


@functools.cache
def struct(name: str) -> np.dtype:
    """A struct that kernels take by value, as its definition in a source says: numbers, and arrays of them."""
    for file in sorted(FOLDER.rglob("*.cu*")):
        text = re.sub(r"//[^\n]*", "", file.read_text(encoding="utf-8"))
        found = re.search(rf"^struct (?:alignas\(\d+\) )?{name} {{(.*?)}};", text, re.DOTALL | re.MULTILINE)
        if found:
            return np.dtype([field for line in found[1].split(";")[:-1] for field in _fields(line, text)], align=True)
    raise ValueError(f"kernel: there is no struct {name} {{...}}; in the sources; correct the name")


def _fields(line: str, text: str) -> list[tuple[str, np.dtype, tuple[int, ...]]]:
    """(name, dtype, shape) of each field of `int a, b[4]`; sizes may be names that the text defines."""
    c_type, names = re.findall(rf"\s*({'|'.join(sorted(TYPES, key=len, reverse=True))})\s+(.*)", line, re.DOTALL)[0]
    fields = re.findall(r"(\w+)(?:\[(\w+)\])?(?:,|$)", names)
    defined = dict(re.findall(r"#define (\w+) (\d+)", text))
    return [(field, TYPES[c_type], (int(defined.get(size, size)),) if size else ()) for field, size in fields]


def options(constants: tuple[Constant, ...]) -> tuple[str, ...]:
    """The compiler's options: the language, the constants and, if HOPPER is one of these, that the GPU is a Hopper."""
    architecture = ("-arch=sm_90a",) if HOPPER in constants else ()
    return (*OPTIONS, *architecture, *(f"-D{name}={value}" for name, value in constants))
