"""What a kernel's accesses to memory cost, by line: what counts.cpp counts, added up and written next to the source."""

from __future__ import annotations

import ctypes
import functools
import operator
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ...ops.common.sources import Constant
from . import HERE

S = TypeVar("S", bound="Sums")

SECTOR = 32                                # bytes: what global memory moves at least
LANES = 32
WAYS = ("loads", "stores", "atomics", "shared_loads", "shared_stores", "shared_atomics", "barriers", "divergent",
        "flop")                            # as in counts.cpp; the last is of blocks that are entered
NAMES = {"barriers": "barriers", "divergent": "divergent", "flop": "FLOP"}


class Sums:
    """Numbers that are added up field by field."""

    def __add__(self: S, other: S) -> S:
        return type(self)(*(getattr(self, each.name) + getattr(other, each.name)
                            for each in fields(self)))     # type: ignore[arg-type]  # of a dataclass


@dataclass(frozen=True)
class Global(Sums):
    """Accesses to global memory. requests: of warps, one per instruction; sectors: of 32 bytes that they touch, each
    counted once per request; asked: bytes that the lanes asked for; several lanes may ask for the same bytes.

    >>> copy = Global(requests=1, sectors=4, asked=128)
    >>> copy.per_request, copy.moved
    (4.0, 128)
    """

    requests: int = 0
    sectors: int = 0
    asked: int = 0

    @property
    def per_request(self) -> float:
        """Sectors per request: 4 if the lanes of a full warp read neighbouring floats."""
        return self.sectors / self.requests if self.requests else 0.0

    @property
    def moved(self) -> int:
        """Bytes of the sectors."""
        return SECTOR * self.sectors


@dataclass(frozen=True)
class Shared(Sums):
    """Accesses to shared memory. requests: of warps, one per instruction; wavefronts: the turns that they take (in
    each, a bank gives one word); conflicts: wavefronts beyond those that the bytes take without any conflict.

    >>> Shared(requests=1, wavefronts=32, conflicts=31) + Shared(1, 1, 0)
    Shared(requests=2, wavefronts=33, conflicts=31)
    """

    requests: int = 0
    wavefronts: int = 0
    conflicts: int = 0


@dataclass(frozen=True)
class Counts(Sums):
    """What a line, or a kernel, does to memory. barriers: summed over the blocks.

    >>> (Counts(barriers=2) + Counts(Global(1, 4, 128))).loads.sectors
    4
    """

    loads: Global = Global()
    stores: Global = Global()
    atomics: Global = Global()
    shared_loads: Shared = Shared()
    shared_stores: Shared = Shared()
    shared_atomics: Shared = Shared()
    barriers: int = 0
    divergent: int = 0
    flop: int = 0

    @property
    def moved(self) -> int:
        """Bytes of global memory, in whole sectors."""
        return self.loads.moved + self.stores.moved + self.atomics.moved


class Request(NamedTuple):
    """One request of a warp: which of WAYS, the warp's number in its block, the bytes of an access, the address that
    each lane accesses, or 0 for none, how many sectors or wavefronts it is, and the names of what is stored there."""

    way: str
    block: tuple[int, int, int]
    warp: int
    size: int
    at: tuple[int, ...]
    parts: int
    places: tuple[str, ...] = ()


class LaunchConfiguration(NamedTuple):
    """How a kernel was launched: threads of a block; its bytes of shared memory, those of the launch and those of
    arrays with a size of their own; the source with its includes; and the constants."""

    threads: int = 1
    dynamic: int = 0
    static: int = 0
    source: str = ""
    constants: tuple[Constant, ...] = ()


@dataclass(frozen=True)
class Table:
    """The counts of a kernel's launches. lines: by the number of a line of its file; an access in a function of another
    file counts where this file calls it. `print(table)` shows the source with the counts of each line next to it.

    A launch is not counted if its warps do more than some hundred thousand steps per thread between two barriers:
    `complete` is False, and `lines` lacks it. requests: for each line and way the one that costs most.

    >>> table = Table("k", "k.cu", "__global__ void k(float* y) {\\n    y[threadIdx.x] = 1;\\n}\\n", 1,
    ...               {2: Counts(stores=Global(1, 4, 128))})
    >>> print(table)                                            # doctest: +NORMALIZE_WHITESPACE
    k.cu: k, 1 block
       global stores
    reqs  sectors  each
                               1  __global__ void k(float* y) {
           1       4  4.0      2      y[threadIdx.x] = 1;
                               3  }
           1       4  4.0         total
    global stores: 128 bytes asked for by the lanes, 128 moved
    """

    kernel: str
    file: str
    text: str = field(repr=False)
    blocks: int
    lines: Mapping[int, Counts]
    complete: bool = True
    requests: Mapping[tuple[int, str], Request] = field(default_factory=dict, repr=False)
    launch: LaunchConfiguration = field(default=LaunchConfiguration(), repr=False)

    @property
    def total(self) -> Counts:
        return functools.reduce(operator.add, self.lines.values(), Counts())

    def __add__(self, other: Table) -> Table:
        """Both launches of a kernel."""
        lines = {line: self.lines.get(line, Counts()) + other.lines.get(line, Counts())
                 for line in sorted({*self.lines, *other.lines})}
        return Table(self.kernel, self.file, self.text, self.blocks + other.blocks, lines,
                     self.complete and other.complete, {**other.requests, **self.requests}, self.launch)

    def rows(self) -> list[tuple[int, str, Counts]]:
        """Number, text and counts of each line of the kernel, and of others that have counts; of no line: number 0."""
        source = self.text.splitlines()
        return [(number, source[number - 1] if 0 < number <= len(source) else "in no line",
                 self.lines.get(number, Counts()))
                for number in sorted({*_extent(self.text, self.kernel), *self.lines})]

    def columns(self) -> Iterator[tuple[str, str, list[list[str]]]]:
        """For each of WAYS that was counted: it, its name, and columns: a head, each row's text, and the total's."""
        rows = [*(counts for *_, counts in self.rows()), self.total]
        for way in (way for way in WAYS if _asked(getattr(self.total, way))):
            title = NAMES.get(way) or (way.replace("_", " ") if way in WAYS[3:6] else f"global {way}")
            yield way, title, [[name, *(show(getattr(row, way)) if _asked(getattr(row, way)) else "" for row in rows)]
                               for name, show in COLUMNS[type(getattr(self.total, way))]]

    def __str__(self) -> str:
        total, rows = self.total, self.rows()
        numbers = [number for number, *_ in rows]
        beside = ["", "", *(f"{number:>4}  {text}" if number else f"   {text}" for number, text, _ in rows),
                  "      total"]
        blocks = []
        for _, title, columns in self.columns():
            lines = ["  ".join(cells) for cells in zip(*([text.rjust(max(map(len, column))) for text in column]
                                                         for column in columns))]
            blocks.append([text.center(max(len(title), len(lines[0]))) for text in (title, *lines)])
        shown = ["   ".join([*each, text]).rstrip() for *each, text in zip(*blocks, beside)]
        gaps = [at for at in range(1, len(numbers)) if numbers[at] > numbers[at - 1] + 1]
        for at in reversed(gaps):
            shown.insert(at + 2, "...")
        said = [f"global {way}: {each.asked:,} bytes asked for by the lanes, {each.moved:,} moved"
                for way, each in ((way, getattr(total, way)) for way in WAYS[:3]) if each.requests]
        if total.flop and total.moved:
            said.append(f"{total.flop:,} FLOP, {total.flop / total.moved:.2f} per byte of global memory")
        head = f"{self.file}: {self.kernel}, {self.blocks:,} block{'s' * (self.blocks != 1)}"
        said += [] if self.complete else ["not all is counted: a warp does too much between two barriers; use smaller "
                                          "sizes"]
        return "\n".join([head, *shown, *said])


def _asked(each: Global | Shared | int) -> int:
    return each if isinstance(each, int) else each.requests


FLOP = {r"(add|sub|mul|div|sqrt)s[sd] ": 1, r"call .*<fmaf?@plt>": 2}      # of an instruction
# Additions that convert whole numbers of 64 bits without a sign: half of a large one is doubled, or 2^63 is taken away
CONVERTS = re.compile(r"(\tor +.*\n(?:.*\tpxor .*\n)?.*\tcvtsi2s[sd]q? +\S+,(%\w+)\n.*\t)adds[sd] +\2,\2$|"
                      r"\tsubs[sd] (?=.*\n.*\tcvtts[sd]2siq? .*\n(?:.*\tmov .*\n)?.*\tbtcq? )", re.MULTILINE)
CALL = 5                                   # bytes of one

COLUMNS: dict[type, list[tuple[str, Callable[[Any], str]]]] = {
    Global: [("reqs", lambda each: f"{each.requests}"), ("sectors", lambda each: f"{each.sectors}"),
             ("each", lambda each: f"{each.per_request:.1f}")],
    Shared: [("reqs", lambda each: f"{each.requests}"), ("conflicts", lambda each: f"{each.conflicts}")],
    int: [("", str)]}


def _extent(text: str, kernel: str) -> range:
    """The lines of a kernel, from `__global__` to its last brace."""
    text = re.sub(r"//[^\n]*", lambda comment: " " * len(comment[0]), text)
    text = re.sub(r"/\*.*?\*/", lambda comment: re.sub(r"[^\n]", " ", comment[0]), text, flags=re.DOTALL)
    found = re.search(rf"^[^\n]*__global__[^;{{]*\b{kernel}\s*\([^)]*\)\s*{{", text, re.MULTILINE)
    if found is None:
        return range(0)
    depth, end = 1, found.end()
    while depth and end < len(text):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return range(text.count("\n", 0, found.start()) + 1, text.count("\n", 0, end) + 2)


# ---------------------------------------------------------------- what counts.cpp has counted
def rules(arch: int) -> int:
    """Rules of counting by a compute capability (13 for 1.3), as counts.cpp numbers them: by half warps or warps.

    >>> rules(13), rules(90)
    (2, 1)
    """
    return 2 if 0 < arch < 20 else 1


class _Count(ctypes.Structure):
    """As counts.cpp writes it."""

    _fields_ = [("offset", ctypes.c_size_t), ("way", ctypes.c_int), ("unused", ctypes.c_int),
                *((name, ctypes.c_longlong) for name in ("requests", "parts", "least", "asked", "most")),
                ("warp", ctypes.c_int), ("size", ctypes.c_int), ("block", ctypes.c_int * 3), ("unused2", ctypes.c_int),
                ("at", ctypes.c_size_t * LANES)]

    def counts(self) -> Counts:
        """This counter, of one kind of access at one instruction, as Counts; the other fields are empty."""
        name = WAYS[self.way]
        each: Any = self.requests
        if name not in NAMES:
            each = Shared(self.requests, self.parts, self.parts - self.least) if name.startswith("shared") else \
                Global(self.requests, self.parts, self.asked)
        return Counts(**{name: each})


class Counted(NamedTuple):
    """Counts of the last launch of a library's kernel, by line of its file; line 0: if no line is known."""

    lines: dict[int, Counts]
    complete: bool
    requests: dict[tuple[int, str], Request]


def counted(watch: ctypes.CDLL, library: Path, file: str, place: Callable[[int, int], str] = lambda at, size: "",
            ) -> Counted:
    """place: takes an address and a number of bytes, and names what is stored there. The result is empty, and not
    complete, if the lanes of a warp do too much between two barriers for all of it to be kept."""
    watch.watch_counts.restype = ctypes.POINTER(_Count)
    count = ctypes.c_int()
    start = watch.watch_counts(ctypes.byref(count))
    if count.value < 0:
        return Counted({}, False, {})
    found, arithmetic = start[:count.value], _arithmetic(shutil.which("objdump"), library)
    costs = [(each.offset, each.counts(), each) for each in found if WAYS[each.way] != "flop"]
    costs += [(at, Counts(flop=flop * each.asked), None) for each in found if WAYS[each.way] == "flop"
              for at, flop in arithmetic.get(each.offset, ())]
    places = frames(library, {offset for offset, *_ in costs})
    result = Counted({}, True, {})
    for offset, counts, each in costs:
        line = next((number for name, number in places.get(offset, ()) if name == file), 0)
        result.lines[line] = result.lines.get(line, Counts()) + counts
        if each and each.most:             # of several instructions of a line the one that costs most
            asked = Request(WAYS[each.way], tuple(each.block), each.warp, each.size, tuple(each.at), each.most,
                            tuple(place(at, each.size) if at else "" for at in each.at))
            result.requests[line, asked.way] = max(result.requests.get((line, asked.way), asked), asked,
                                                   key=lambda one: one.parts)
    return result._replace(lines=dict(sorted(result.lines.items())))


@functools.lru_cache(64)
def _arithmetic(tool: str | None, library: Path) -> dict[int, list[tuple[int, int]]]:
    """For each basic block of a library, by the offset that counts.cpp gives for it: where its floating-point
    instructions are, and their FLOP. g++ gives each number an instruction of its own. Empty if binutils are not
    installed."""
    done = tool and subprocess.run([tool, "-d", "--no-show-raw-insn", str(library)], capture_output=True, text=True,
                                   check=False)
    found: dict[int, list[tuple[int, int]]] = {}
    block: list[tuple[int, int]] = []      # instructions before the first block of a function do not count
    for line in CONVERTS.sub(r"\1\tconverts ", done.stdout).splitlines() if done else ():
        at, _, instruction = line.partition(":\t")
        if "<__sanitizer_cov_trace_pc@plt>" in instruction:
            block = found.setdefault(int(at, 16) + CALL - 1, [])
        elif line.endswith(">:"):
            block = []
        elif flop := next((flop for text, flop in FLOP.items() if re.match(text, instruction)), 0):
            block.append((int(at, 16), flop))
    return found


def frames(library: Path, offsets: Iterable[int]) -> dict[int, list[tuple[str, int]]]:
    """Where in the sources instructions of a library come from: (file, line), then where that was called from.

    Lines of the emulator's own headers are left out. Empty if binutils are not installed.
    """
    tool, order = shutil.which("addr2line"), tuple(sorted({*offsets} - {0}))
    return _frames(tool, library, order) if tool and order else {}


@functools.lru_cache(64)
def _frames(tool: str, library: Path, order: tuple[int, ...]) -> dict[int, list[tuple[str, int]]]:
    done = subprocess.run([tool, "-a", "-i", "-e", str(library), *map(hex, order)], capture_output=True, text=True,
                          check=False)
    found: list[list[tuple[str, int]]] = []
    for line in done.stdout.splitlines():
        if line.startswith("0x"):
            found.append([])
            continue
        path, _, number = re.sub(r" \(.*", "", line).rpartition(":")
        if Path(path).parent != HERE:
            found[-1].append((Path(path).name, int(number) if number.isdigit() else 0))
    return dict(zip(order, found))
