"""A kernel of a user's own file, run on the CPU: its results, and what is wrong with it, line by line."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...ops.common.sources import TYPES, parameters, struct
from .. import source
from . import BYTES, EDGE, Guarded, Memory, loaded, translated, watched, watcher
from .counts import Counted, LaunchConfiguration, Table, counted, frames, rules

ORDERS = 4                                 # launches, each with another order of the threads
STEPS = 10_000_000                         # basic blocks that a thread may enter before it is said not to end
OUTSIDE, RACE, UNSET, ENDLESS, DIVIDED, MISSED, MISALIGNED, OVERFLOWED, STRAYED = range(9)      # as in watch.cpp
CONSTANT = 1 << 16                         # bytes of constant memory, on every GPU
STATIC = 48 << 10                          # bytes of shared arrays with a size of their own, on every GPU
LOCAL = 512 << 10                          # bytes of a thread's own arrays and calls
# A struct whose alignment may be 8 although it has 16 bytes
WIDE = r"\b(?:struct|class|union)\b[^;{}()]*\{[^}]*(?:\b(?:double|long|u?int64_t|size_t|REAL|[A-Z])\b|\*)"
NULL_PAGE = 1 << 16                        # addresses below are elements of an array that is not there
# What is said of a fault. who: where, and which thread; does: "reads y[3]"; other, block, did, line: of another one
FAULTS = {
    OUTSIDE: "{who} {does}, outside of all arrays",
    RACE: "{who} {does}, which thread {other} of {block} {did} in {line}: a race, with no {between}",
    UNSET: "{who} {does} before anything wrote it",
    ENDLESS: "{who} does not end: it has taken more steps than a thread may (--steps): an endless loop, or one that "
             "waits for another thread",
    DIVIDED: "{who} divides an integer by 0, by / or %; on a GPU the kernel would go on with a number without meaning",
    MISSED: "{who} waits at a barrier, but thread {other} of the same block has ended",
    MISALIGNED: "{who} {does} by an access of {size} bytes, whose address must be a multiple of {size}; access smaller "
                "parts, or start at such a multiple",
    OVERFLOWED: f"{{who}} takes more than {LOCAL:,} bytes for its local arrays and nested calls, all that a GPU has "
                "for a thread; take smaller arrays, or a loop for the recursion",
    STRAYED: "{who} takes by a shuffle what lane {size} of its warp has, which is not in the mask or beyond the block: "
             "an undefined number"}
UNFILLED = ("{who} {does}, constant memory that nothing filled; fill it: --args {symbol}=..., or in a launcher "
            "launch.copy_to_symbol({symbol!r}, array)")

Size = int | tuple[int, ...]


@dataclass(frozen=True)
class Parameter:
    """One of a kernel. written: an array that the kernel may write, T* and not const T*."""

    name: str
    dtype: np.dtype
    array: bool
    written: bool


@dataclass(frozen=True)
class Symbol:
    """Memory that a file itself declares: __constant__ F[...], or __device__. start: what it holds before any launch.
    given: whether its declaration gives its values; those of __device__ memory are zeros otherwise."""

    name: str
    dtype: np.dtype
    constant: bool
    given: bool
    address: int
    start: bytes

    def fill(self, given: object) -> None:
        """Set its first bytes to what is given, and the rest to what it holds at first."""
        array = np.asarray(given)
        data = b"" if given is None else array.tobytes()
        if given is not None and (array.dtype != self.dtype or len(data) > len(self.start)):
            raise ValueError(f"emulator: {self.name} holds {len(self.start) // self.dtype.itemsize} numbers of "
                             f"{self.dtype}, but it is given {array.size} of {array.dtype}; give as many, or fewer")
        ctypes.memmove(self.address, data + self.start[len(data):], len(self.start))


@dataclass(frozen=True)
class Run:
    """The arrays of a kernel after its launch, by parameter; what was wrong; what its accesses cost, by line; and notes
    that are not faults.

    No faults: `faults` is empty. arrays: also its __device__ symbols.
    """

    arrays: dict[str, np.ndarray]
    faults: list[str]
    counts: Table
    notes: list[str]


class _Finding(ctypes.Structure):
    """As watch.cpp writes it."""

    _fields_ = [*((name, ctypes.c_int) for name in ("what", "size", "writes", "other_writes", "thread",
                                                    "other_thread")),
                ("block", ctypes.c_uint * 3), ("other_block", ctypes.c_uint * 3), ("at", ctypes.c_void_p),
                ("line", ctypes.c_size_t), ("other_line", ctypes.c_size_t)]


class Kernel:
    """A `__global__ void name(...)` of a .cu file, compiled for the CPU with constants that become -D.

    The file may include others of its folder, and minidl's own, "include/common.cuh"; host code is left out. Without a
    name the file's only kernel is meant. Raises ValueError for an unknown name, or type of a parameter, RuntimeError
    for a source that does not compile and if there is no compiler.
    """

    def __init__(self, file: str | os.PathLike[str], name: str | None = None,
                 constants: Mapping[str, Any] | None = None):
        self.file = Path(file)
        read = source.read(self.file)
        names = read.kernels
        if name is None and len(names) != 1:
            raise ValueError(f"emulator: {self.file} has {len(names)} kernels{_listed(names)}; name one" + (
                ", that is __global__ void and not a template" if not names else ""))
        if name is not None and name not in names:
            raise ValueError(f"emulator: {self.file} has no kernel {name!r}{_listed(names, 'it has')}; a kernel is "
                             "__global__ void and not a template")
        self.name = name or names[0]
        given = {**read.types, **(constants or {})}                # a type may be one of them, as REAL
        self._text, self._constants = read.text, tuple((constants or {}).items())
        self.parameters = [_parameter(self.name, name, str(given.get(c_type, c_type)), kind)
                           for name, c_type, kind in parameters(read.text, self.name) if name]
        self._atomics = "atomic" in read.text
        self._folder = tempfile.TemporaryDirectory(prefix="minidl-emulator-")
        self._library = self._compiled(read, [f"-D{k}={v}" for k, v in (constants or {}).items()])
        self._shared = self._shared_arrays()
        self.symbols = {each.name: each for each in self._symbols(read.text, given)}
        constant = {each.name: len(each.start) for each in self.symbols.values() if each.constant}
        if sum(constant.values()) > CONSTANT:
            told = ", ".join(f"{each} of {size:,} bytes" for each, size in constant.items())
            raise ValueError(f"emulator: {self.file} declares {told} in constant memory, but a GPU has {CONSTANT:,} "
                             "bytes of it; declare less")
        if (static := sum(size for *_, size in self._shared)) > STATIC:
            raise ValueError(f"emulator: {self.file} declares {static:,} bytes of __shared__ arrays, but a GPU takes "
                             f"{STATIC:,}; declare less, or one as extern __shared__ and launch with shared=")

    def _compiled(self, read: source.Source, constants: list[str]) -> ctypes.CDLL:
        """Compiled so that each access is looked at, and linked with what looks."""
        text = "\n".join([*(f"#include <{header}>" for header in read.headers), translated(read.text, self.name)])
        watch = watcher()                  # says what is missing if there is no compiler
        try:
            self._path = watched(Path(self._folder.name), text, *constants)
        except subprocess.CalledProcessError as error:
            lines = [line for line in error.stderr.splitlines() if "error" in line] or error.stderr.splitlines()
            told = "; ".join(lines[:4])
            raise RuntimeError(f"emulator: {self.file} does not compile: {told}{read.hint(told)}") from None
        self._watch = ctypes.CDLL(str(watch))
        self._watch.watch_findings.restype = ctypes.POINTER(_Finding)
        return loaded(self._path)

    def _symbols(self, text: str, constants: Mapping[str, Any]) -> Iterator[Symbol]:
        """What its file declares that a launcher may fill, of the types that parameters may have."""
        for qualifiers, words, name, _, value in source.SYMBOL.findall(text):
            c_type = " ".join(word for word in words.split() if word not in ("const", "volatile"))
            dtype = TYPES.get(str(constants.get(c_type, c_type)))
            if dtype is not None:
                size = ctypes.c_size_t.in_dll(self._library, BYTES + name).value
                memory = (ctypes.c_char * size).in_dll(self._library, name)
                constant = "__constant__" in qualifiers
                given = not constant or bool(value)
                yield Symbol(name, dtype, constant, given, ctypes.addressof(memory), bytes(memory))

    def run(self, grid: Size, block: Size, arguments: Mapping[str, Any], *, shared: int = 0, seed: int = 1,
            orders: int = ORDERS, steps: int = STEPS, arch: int = 0) -> Run:
        """Launch it on copies of the arguments, once for each of some orders of threads.

        grid, block: ints, or up to three of them. arguments: by parameter a number, an array, the shape of an array
        whose values are not set, or None for a null pointer; and by name the values of the file's __constant__ and
        __device__ memory. shared: bytes of dynamic shared memory. steps: of a thread, in basic blocks, after which it
        is said not to end. The results, and what is printed, are those of the first order. arch: a GPU's compute
        capability, 90 for 9.0; accesses are counted by its rules: those below 20 serve half of a warp at a time.

        Raises TypeError and ValueError for arguments that are not the kernel's, KeyboardInterrupt at Ctrl-C.
        """
        launches, counts = [], Counted({}, False, {})
        self._watch.watch_limits(ctypes.c_longlong(steps), 8 if re.search(WIDE, self._text) else 16)
        for i in range(orders):
            self._watch.set_launch(i)
            launches.append(self._run(_three("grid", grid), _three("block", block), arguments, shared, seed + i,
                                      0 if i else rules(arch)))
            counts = counts if i else counted(self._watch, self._path, self.file.name,
                                              functools.partial(self._place, self._arrays))
            if any(what == ENDLESS for what, _ in launches[-1][1]):
                break
        self._watch.set_launch(0)
        said = {key: told for _, found in reversed(launches) for key, told in found.items()}
        strayed = [told for (what, _), told in said.items() if what == STRAYED]
        arrays, faults = launches[0][0], [told for told in said.values() if told not in strayed]
        notes = list[str]()
        for name in arrays if not faults else ():
            others = [other[name] for other, _ in launches[1:]]
            unlike = [other for other in others if other.tobytes() != arrays[name].tobytes()]
            if unlike:
                same = (unlike[0] == arrays[name]) | ((unlike[0] != unlike[0]) & (arrays[name] != arrays[name]))
                differ = f"{np.sum(~same)} of {arrays[name].size} elements differ"
                told = f"{name} depends on the order of the threads: {differ}"
                if self._atomics and _rounded_otherwise(arrays[name], unlike):
                    notes.append(f"{told} in their last digits, as sums by floating-point atomics do: two runs may "
                                 "differ in bits")
                else:                      # each launch has other numbers for what a lane does not give
                    faults.append(f"{strayed[0]}, and {name} depends on it: {differ}" if strayed else told)
        text = source.text_in(self.file)
        launch = LaunchConfiguration(math.prod(_three("block", block)), shared, sum(size for *_, size in self._shared),
                                     self._text, self._constants)
        return Run(arrays, faults, Table(self.name, self.file.name, text, math.prod(_three("grid", grid)), *counts,
                                         launch), notes)

    def _run(self, grid: tuple[int, int, int], block: tuple[int, int, int], arguments: Mapping[str, Any], shared: int,
             seed: int, counts: int) -> tuple[dict[str, np.ndarray], dict[Any, str]]:
        """The arrays after one launch, and its faults, one of each kind and place."""
        names = [each.name for each in self.parameters]
        wrong = [*(f"{name} is missing" for name in names if name not in arguments),
                 *(f"{name} is not one of them" for name in arguments if name not in (*names, *self.symbols))]
        if wrong:
            told = ", ".join([*(f"{each.name} ({each.dtype}{'[]' if each.array else ''})" for each in self.parameters),
                              *(f"{each.name} ({'constant' if each.constant else 'device'} memory)"
                                for each in self.symbols.values())])
            raise ValueError(f"emulator: {self.name} has the parameters {told}, but {', '.join(wrong)}")
        memory, arrays, values = Guarded(), dict[str, Memory](), list[Any]()
        self._watch.watch_start(1, counts)
        for each in self.parameters:
            given = arguments[each.name]
            if not each.array:
                values.append((_struct if each.dtype.names else _number)(self.name, each, given).ctypes)
                continue
            if given is None:
                values.append(np.zeros(1, np.uint64).ctypes)
                continue
            arrays[each.name] = array = memory.empty(given, each.dtype) if isinstance(given, tuple) else \
                memory.asarray(_array(self.name, each, given))
            self._watch.watch_array(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes),
                                    each.dtype.itemsize, int(not isinstance(given, tuple)), 0)
            values.append(np.array([array.ctypes.data], np.uint64).ctypes)
        for symbol in self.symbols.values():
            symbol.fill(filled := arguments.get(symbol.name))
            known = symbol.given or filled is not None
            self._watch.watch_array(ctypes.c_void_p(symbol.address), ctypes.c_size_t(len(symbol.start)),
                                    symbol.dtype.itemsize, int(known), int(symbol.constant))
        self._arrays = arrays              # until the counts name what is in them
        packed = (ctypes.c_void_p * len(values))(*(value.data for value in values))
        sys.stdout.flush()                 # before what the kernel prints
        message = self._library.run((ctypes.c_int * 8)(*grid, *block, shared, seed), packed)
        ctypes.CDLL(None).fflush(None)
        faults = self._faults(arrays, block)
        if message and not any(what not in (RACE, UNSET, STRAYED) for what, _ in faults):
            faults[message, frozenset()] = f"{self.file.name}: {message.decode()}"
        self._watch.watch_end()
        held = {each.name: np.frombuffer(ctypes.string_at(each.address, len(each.start)), each.dtype)
                for each in self.symbols.values() if not each.constant}
        for symbol in self.symbols.values():
            symbol.fill(None)              # another Kernel of this source has the same library
        return {**{name: array.get() for name, array in arrays.items()}, **held}, faults

    # ---------------------------------------------------------------- what is said of a fault
    def _faults(self, arrays: Mapping[str, Memory], block: tuple[int, int, int]) -> dict[Any, str]:
        count = ctypes.c_int()
        found = self._watch.watch_findings(ctypes.byref(count))[:count.value]
        lines = self._lines({offset for each in found for offset in (each.line, each.other_line)})
        told: dict[Any, str] = {}
        for each in found:
            same = tuple(each.block) == tuple(each.other_block)
            symbol = self._symbol(each.at or 0) if each.what == UNSET else None
            key = each.what, frozenset((lines[each.line], lines[each.other_line]))
            told.setdefault(key, (FAULTS[each.what] if symbol is None else UNFILLED).format(
                who=f"{lines[each.line]}: thread {_thread(each.thread, block)} of block {tuple(each.block)}",
                does=f"{'writes' if each.writes else 'reads'} {self._place(arrays, each.at or 0, each.size)}",
                size=each.size, symbol=symbol, other=_thread(each.other_thread, block), line=lines[each.other_line],
                block="the same block" if same else f"block {tuple(each.other_block)}",
                did="writes" if each.other_writes else "reads",
                between="barrier between them" if same else "order between blocks"))
        return told

    def _place(self, arrays: Mapping[str, Memory], at: int, size: int) -> str:
        """An address, by the array that it is in or near: "y[64]"."""
        if at < NULL_PAGE:
            return "through a null pointer"
        for name, array in arrays.items():
            start, end = array.ctypes.data, array.ctypes.data + array.nbytes
            if start - EDGE <= at < end + EDGE:
                where = f"{name}[{(at - start) // array.itemsize}]"
                return where if start <= at < end else f"{where} of {array.size} elements"
        for name, start, length in (*self._shared, *((each.name, each.address, len(each.start))
                                                     for each in self.symbols.values())):
            if start <= at < start + length:
                return f"{name}[{(at - start) // size}]"
        return f"{size} bytes of {'shared' if self._watch.watch_in_shared(ctypes.c_void_p(at)) else 'global'} memory"

    def _symbol(self, at: int) -> str | None:
        """Constant memory that has an address."""
        return next((each.name for each in self.symbols.values()
                     if each.constant and each.address <= at < each.address + len(each.start)), None)

    def _shared_arrays(self) -> list[tuple[str, int, int]]:
        """Name, address and bytes of each shared array with a size of its own, as far as binutils can tell."""
        tool = shutil.which("nm")
        if tool is None:
            return []
        done = subprocess.run([tool, "-SC", str(self._path)], capture_output=True, text=True, check=False)
        rows = [line.split(maxsplit=3) for line in done.stdout.splitlines()]
        found = {row[3].split("::")[-1]: (int(row[0], 16), int(row[1], 16)) for row in rows if len(row) == 4}
        if not {"run", "guard_before", "guard_behind"} <= found.keys():
            return []
        base = ctypes.cast(self._library.run, ctypes.c_void_p).value or 0
        within = range(found["guard_before"][0] + 1, found["guard_behind"][0])
        return [(name, base - found["run"][0] + start, length) for name, (start, length) in found.items()
                if start in within]

    def _lines(self, offsets: set[int]) -> dict[int, str]:
        """Where in the sources instructions of the library come from: "saxpy.cu:3"."""
        places = frames(self._path, offsets)
        return {each: "{}:{}".format(*places[each][0]) if places.get(each) else self.file.name for each in offsets}


def _rounded_otherwise(array: np.ndarray, others: list[np.ndarray]) -> bool:
    """Whether arrays differ by no more than sums of some thousand numbers in another order."""
    if array.dtype.kind != "f":
        return False
    most = 1e3 * np.finfo(array.dtype).eps * np.max(np.abs(array), initial=0)
    return all(bool(np.all(np.abs(other - array) <= most)) for other in others)


def _parameter(kernel: str, name: str, c_type: str, kind: str) -> Parameter:
    if kind == "value" and c_type not in TYPES:
        with contextlib.suppress(ValueError):
            return Parameter(name, struct(c_type), False, False)
    if c_type not in TYPES:
        raise ValueError(f"emulator: {kernel} takes {name} of type {c_type!r}, which is not one of "
                         f"{', '.join(TYPES)}; use one of these, or an array of them")
    if kind == "value" and c_type[-1] in "234" and c_type != "int4":
        raise ValueError(f"emulator: {kernel} takes {name} as one {c_type}; take its numbers, or an array of them")
    return Parameter(name, TYPES[c_type], kind != "value", kind == "out")


def _number(kernel: str, parameter: Parameter, given: Any) -> np.ndarray:
    if isinstance(given, (tuple, np.ndarray)) or np.asarray(given).ndim:
        raise TypeError(f"emulator: {kernel} takes {parameter.name} as a number ({parameter.dtype}), but it is given "
                        f"as {given!r}")
    try:
        return fitting([given], parameter.dtype)
    except ValueError:
        raise ValueError(f"emulator: {kernel} takes {parameter.name} as {parameter.dtype}, which {given!r} is "
                         "not") from None


def fitting(given: Sequence[Any], dtype: np.dtype) -> np.ndarray:
    """Numbers as an array of a dtype, which has each of them, but for rounding. Raises ValueError for the first that
    it does not have.

    >>> fitting([1, 2.0], np.dtype("uint8"))
    array([1, 2], dtype=uint8)
    """
    array = np.zeros(len(given), dtype)
    for i, number in enumerate(given):
        with np.errstate(all="ignore"):
            try:                           # as an object: no whole number is rounded to a float on the way
                array[i:i + 1] = np.array([number], object).astype(dtype)
                fits = np.isclose(float(array[i]), number, float(np.finfo(dtype).eps), 1e-8, True) \
                    if dtype.kind == "f" else int(array[i]) == number
            except (OverflowError, ValueError):
                fits = False
        if not fits:
            raise ValueError(f"{number} is not a number of {dtype}")
    return array


def _struct(kernel: str, parameter: Parameter, given: object) -> np.ndarray:
    if not isinstance(given, np.ndarray) or given.dtype != parameter.dtype:
        raise TypeError(f"emulator: {kernel} takes {parameter.name} as a struct of "
                        f"{', '.join(parameter.dtype.names or ())}, but it is given as {given!r}; launch it by "
                        "minidl.register_conv and minidl check-conv")
    return given


def _array(kernel: str, parameter: Parameter, given: object) -> np.ndarray:
    array = np.asarray(given)
    if array.ndim == 0:
        raise TypeError(f"emulator: {kernel} takes {parameter.name} as an array of {parameter.dtype}, but it is given "
                        f"as {given!r}; give an array, or a shape")
    if array.dtype != parameter.dtype:
        raise TypeError(f"emulator: {kernel} takes {parameter.name} as an array of {parameter.dtype}, but it is given "
                        f"one of {array.dtype}; convert it with .astype('{parameter.dtype}')")
    return array


def _three(what: str, size: Size) -> tuple[int, int, int]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(n, int) and 0 < n < 1 << 31 for n in sizes):
        raise ValueError(f"emulator: {what} is {size!r} but must be 1 to 3 ints of at least 1 and below 2^31")
    x, y, z = (*sizes, 1, 1, 1)[:3]
    return x, y, z


def _thread(number: int, block: tuple[int, int, int]) -> tuple[int, int, int]:
    return number % block[0], number // block[0] % block[1], number // block[0] // block[1]


def _listed(names: list[str], intro: str = "") -> str:
    return f" ({intro}{' ' if intro else ''}{', '.join(names)})" if names else ""
