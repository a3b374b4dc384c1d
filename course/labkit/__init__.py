"""What a lab's check.py is written with: steps of points, the student's file behind a wall, and Wrong.

    from labkit import Lab, step

    @step("the sum of two values", points=10)
    def adds(lab: Lab) -> None:
        a, b = lab.rng.standard_normal(2)
        lab.same("add", lab.call("add", a, b), a + b, f"add({a}, {b})")

A step is passed if it returns. What is right is computed here, in the judge's process; `lab.call` and `lab.launch` ask
the process that runs the student's file (player.py). docs: course/teachers.md.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

WHAT_TO_DO = {                             # about a fault that the emulator finds, by words of it
    "no order between blocks": "no barrier reaches another block: let each element belong to one block alone",
    "a race": "put a __syncthreads() that all threads reach between the two accesses",
    "divides an integer": "look at what stands behind each / and % of the line; a number of tiles is rounded up",
    "outside of all arrays": "compare the index with the size before the access",
    "before anything wrote it": "write each element before it is read, also those at the edge",
    "barrier": "let all threads of the block reach it: return and branch only behind it",
    "depends on the order": "let one thread, or a fixed order, add the numbers"}


class Wrong(Exception):
    """What is wrong with a student's file: a sentence with the fault, its file and line, and what to do."""


class Step(NamedTuple):
    """One of a lab's checks."""

    name: str
    points: int
    check: Callable[[Lab], None]


def step(name: str, *, points: int) -> Callable[[Callable[[Lab], None]], Step]:
    """A decorator: the function is a step of its lab, which has the steps of its check.py in their order."""
    return lambda check: Step(name, points, check)


@dataclass(frozen=True)
class Launch:
    """A kernel's arrays after a launch without faults, by parameter, and what its accesses cost, by line."""

    arrays: dict[str, np.ndarray]
    table: Any                             # minidl.lab.emulator.counts.Table


class Lab:
    """A student's file, as a check sees it."""

    def __init__(self, file: Path, ask: Callable[[dict[str, Any]], Any], rng: np.random.Generator):
        self.name, self.rng, self._ask = file.name, rng, ask
        both = (file, file.with_suffix(".cu"))         # kernels may lie beside a lab.py
        self.files = {each.name: each.read_text(encoding="utf-8", errors="replace") for each in both if each.is_file()}
        self.text = self.files[file.name]

    # ---------------------------------------------------------------- asking
    def call(self, function: str, *arguments: Any) -> Any:
        """What a function of the student's file returns; of drive.py, if it has one of that name.

        Arguments and results are numbers, texts, arrays, and lists, tuples and dicts of these. Raises Wrong where the
        call raises an error, returns something else, takes too long or ends its process.
        """
        return self._ask({"call": function, "args": list(arguments)})

    def launch(self, grid: Any, block: Any, arguments: Mapping[str, Any], *, kernel: str | None = None,
               constants: Mapping[str, Any] | None = None, shared: int = 0, orders: int = 4) -> Launch:
        """Launch a kernel of the student's .cu file by the emulator, in four orders of its threads; of many launches,
        one order each is enough.

        As `minidl.lab.emulator.watch.Kernel.run`: an argument is a number, an array, or for one that is not set a
        shape. Raises Wrong for a fault: a race, an access outside, a barrier that is missed, a value that is not set.
        """
        return self.launched(self._ask({
            "kernel": kernel, "constants": dict(constants or {}), "grid": grid, "block": block,
            "arguments": dict(arguments), "shared": shared, "seed": int(self.rng.integers(1 << 30)), "orders": orders}))

    def launched(self, made: Any) -> Launch:
        """A launch, of what wire.plain has told about it. Raises Wrong for a fault."""
        from minidl.lab.emulator.counts import Counts, Global, Shared, Table

        if made["faults"]:
            faults = [str(each) for each in made["faults"]]            # a race may be seen as a value that is not set
            fault = next((each for each in faults if "a race" in each), faults[0])
            todo = next((f"; {todo}" for words, todo in WHAT_TO_DO.items() if words in fault), "")
            twice = re.match(r"(\S+): thread .* writes (\w+)\[.* of the same block writes in \1: a race", fault)
            if twice and not re.search(rf"__shared__[^;]*\b{twice[2]}\b", "".join(self.files.values())):
                todo = (f"; two threads write the same element: each element of {twice[2]} belongs to one thread, and "
                        "a thread that has none must not write")
            raise Wrong(fault + todo)
        lines = {}
        for line, ways in made["lines"].items():
            parts: dict[str, Any] = {way: each if isinstance(each, int) else
                                     (Shared if way.startswith("shared") else Global)(*each)
                                     for way, each in ways.items()}
            lines[int(line)] = Counts(**parts)
        file = Path(self.name).with_suffix(".cu").name
        return Launch(made["arrays"], Table(str(made["kernel"]), file, self.files[file], int(made["blocks"]), lines,
                                            bool(made["complete"])))

    # ---------------------------------------------------------------- saying what is wrong
    def at(self, name: str) -> str:
        """Where a function, class or kernel begins: "lab.py:31"; the name of the file where it is not found."""
        return self.where(_definition(name))

    def where(self, pattern: str, *, behind: str = "") -> str:
        """The line of the first match of a regular expression in the files, "lab.py:31"; behind: the function, class or
        kernel behind whose head it is looked for, and whose line it is if there is none."""
        for name, text in self.files.items():
            head = re.search(_definition(behind), text, re.MULTILINE) if behind else None
            found = re.compile(pattern, re.MULTILINE).search(text, head.start() if head else 0) or head
            if found and (head or not behind):
                return f"{name}:{text.count(chr(10), 0, found.start()) + 1}"
        return self.name

    def wrong(self, name: str, text: str) -> Wrong:
        """To be raised: a sentence about a function, class or kernel, after its place."""
        file, _, line = self.at(name).partition(":")
        lines = self.files[file].splitlines()
        begin = int(line or 0)
        indent = len(lines[begin - 1]) - len(lines[begin - 1].lstrip()) if begin and file.endswith(".py") else -1
        other = r"extern|__global__|__device__" if indent < 0 else rf" {{0,{indent}}}(def|class)\b"
        body = itertools.takewhile(lambda each: not re.match(other, each[1]), enumerate(lines[begin:], begin + 1))
        left = next((number for number, text in body if re.search(r"(?:#|//) *TODO", text)), 0)
        return Wrong(f"{self.at(name)}: {text}" + f"; the TODO of line {left} is not done yet" * (left > 0))

    def same(self, name: str, got: Any, expected: Any, what: str, *, todo: str = "", atol: float = 1e-9,
             rtol: float = 1e-6) -> None:
        """Raise Wrong where a result is not what is expected: another shape, or the first element that differs.

        name: of the function at fault. what: the result in words, "the gradient of b". todo: what to look at.
        """
        todo = f"; {todo}" if todo else ""
        try:
            there, right = np.asarray(got, np.float64), np.asarray(expected, np.float64)
        except (TypeError, ValueError):
            raise self.wrong(name, f"{what} is {_short(got)} but must be {_short(expected)}{todo}") from None
        if there.shape != right.shape:
            raise self.wrong(name, f"{what} has the shape {there.shape} but must have {right.shape}{todo}")
        with np.errstate(invalid="ignore"):            # infinity less infinity
            far = ~(np.abs(there - right) <= atol + rtol * np.abs(right)) & (there != right) & \
                ~(np.isnan(there) & np.isnan(right))
        if not far.any():
            return
        first = tuple(int(n) for n in np.argwhere(far)[0])
        where = f"[{', '.join(map(str, first))}]" if first else ""
        count = f" ({far.sum()} of {far.size} elements differ)" if far.size > 1 else ""
        value = "not written, or NaN," if np.isnan(there[first]) else f"{there[first]:.7g}"
        raise self.wrong(name, f"{what}{where} is {value} but must be {right[first]:.7g}{count}{todo}")

    def known(self, got: np.ndarray, right: np.ndarray, faults: Sequence[tuple[np.ndarray, str, str, str]]) -> None:
        """Raise Wrong where a result is not right, but what a known fault gives: its result; the kernel or function in
        which it is, and a pattern of its line there; and the sentence."""
        def close(result: np.ndarray) -> bool:
            return result.shape == got.shape and np.allclose(got, result, 1e-4, 1e-4, equal_nan=True)

        for result, name, pattern, text in () if close(right) else faults:
            if close(result):
                raise Wrong(f"{self.where(pattern, behind=name)}: {text}")

    def sectors(self, done: Launch, most: float, *, way: str = "loads", todo: str) -> None:
        """Raise Wrong where a line of the launch touches more sectors of 32 bytes per request of a warp than `most`;
        way: loads or stores of global memory."""
        self._lines(done, lambda each: getattr(each, way).per_request, most, f"{way} touch", "sectors per request",
                    todo)

    def conflicts(self, done: Launch, most: int = 0, *, todo: str) -> None:
        """Raise Wrong where a line of the launch has more bank conflicts than `most`."""
        self._lines(done, lambda each: each.shared_loads.conflicts + each.shared_stores.conflicts, most,
                    "accesses to shared memory have", "bank conflicts", todo)

    def reads(self, done: Launch, most: int, *, todo: str) -> None:
        """Raise Wrong where the lanes of a launch read more words of 4 bytes of global memory than `most`."""
        self._total(done, lambda each: each.loads.asked // 4, most, "numbers are read from global memory", todo)

    def shared_reads(self, done: Launch, most: int, *, todo: str) -> None:
        """Raise Wrong where the warps of a launch read shared memory more often than `most`."""
        self._total(done, lambda each: each.shared_loads.requests, most, "times a warp reads shared memory", todo)

    def barriers(self, done: Launch, most: int, *, todo: str) -> None:
        """Raise Wrong where the blocks of a launch wait at more barriers than `most`."""
        self._total(done, lambda each: each.barriers, most, "times a block waits at a barrier", todo)

    def _total(self, done: Launch, count: Callable[[Any], int], most: int, what: str, todo: str) -> None:
        self._complete(done, todo)
        total = sum(map(count, done.table.lines.values()))
        if total > most:
            line = max(done.table.lines, key=lambda line: count(done.table.lines[line]))
            raise Wrong(f"{done.table.file}:{line}: {total:,} {what}, here most often, but {most:,} are enough; {todo}")

    def _complete(self, done: Launch, todo: str) -> None:
        if not done.table.complete:
            raise Wrong(f"{done.table.file}: a warp does too much between two barriers for it to be counted; {todo}")

    def _lines(self, done: Launch, count: Callable[[Any], float], most: float, begin: str, unit: str,
               todo: str) -> None:
        self._complete(done, todo)
        line, worst = max(((line, count(each)) for line, each in done.table.lines.items()), key=lambda pair: pair[1],
                          default=(0, 0.0))
        if worst > most:
            raise Wrong(f"{done.table.file}:{line}: its {begin} {worst:g} {unit} but may have {most:g}; {todo}")


def _definition(name: str) -> str:
    return rf"^[^#/\n]*\b(?:def|class|void|float|int)\s+{re.escape(name)}\s*[(:]"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:56]} ..."


def shapes(rng: np.random.Generator, count: int, dimensions: Sequence[int] = (1, 2, 3), most: int = 7
           ) -> list[tuple[int, ...]]:
    """Random shapes, odd ones too."""
    return [tuple(int(n) for n in rng.integers(1, most + 1, rng.choice(dimensions))) for _ in range(count)]
