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

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

WHAT_TO_DO = {                             # about a fault that the emulator finds, by words of it
    "no order between blocks": "no barrier reaches another block: let each element belong to one block alone",
    "a race": "put a __syncthreads() that all threads reach between the two accesses",
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
        self.name, self.rng = file.name, rng
        self.text = file.read_text(encoding="utf-8", errors="replace")
        self._ask = ask

    # ---------------------------------------------------------------- asking
    def call(self, function: str, *arguments: Any) -> Any:
        """What a function of the student's file returns; of drive.py, if it has one of that name.

        Arguments and results are numbers, texts, arrays, and lists, tuples and dicts of these. Raises Wrong where the
        call raises an error, returns something else, takes too long or ends its process.
        """
        return self._ask({"call": function, "args": list(arguments)})

    def launch(self, grid: Any, block: Any, arguments: Mapping[str, Any], *, kernel: str | None = None,
               constants: Mapping[str, Any] | None = None, shared: int = 0) -> Launch:
        """Launch a kernel of the student's .cu file by the emulator, in four orders of its threads.

        As `minidl.lab.emulator.watch.Kernel.run`: an argument is a number, an array, or for one that is not set a
        shape. Raises Wrong for a fault: a race, an access outside, a barrier that is missed, a value that is not set.
        """
        from minidl.lab.emulator.counts import Counts, Global, Shared, Table

        made = self._ask({"kernel": kernel, "constants": dict(constants or {}), "grid": grid, "block": block,
                          "arguments": dict(arguments), "shared": shared, "seed": int(self.rng.integers(1 << 30))})
        if made["faults"]:
            fault = str(made["faults"][0])
            raise Wrong(fault + next((f"; {todo}" for words, todo in WHAT_TO_DO.items() if words in fault), ""))
        lines = {}
        for line, ways in made["lines"].items():
            parts: dict[str, Any] = {way: each if isinstance(each, int) else
                                     (Shared if way.startswith("shared") else Global)(*each)
                                     for way, each in ways.items()}
            lines[int(line)] = Counts(**parts)
        return Launch(made["arrays"], Table(kernel or "", self.name, self.text, int(made["blocks"]), lines,
                                            bool(made["complete"])))

    # ---------------------------------------------------------------- saying what is wrong
    def at(self, name: str) -> str:
        """Where a function, class or kernel begins: "lab.py:31"; the name of the file where it is not found."""
        return self.where(rf"^[^#/\n]*\b(?:def|class|void|float|int)\s+{re.escape(name)}\s*[(:]")

    def where(self, pattern: str) -> str:
        """The line of the first match of a regular expression in the file: "lab.py:31"."""
        found = re.search(pattern, self.text, re.MULTILINE)
        return f"{self.name}:{self.text.count(chr(10), 0, found.start()) + 1}" if found else self.name

    def wrong(self, name: str, text: str) -> Wrong:
        """To be raised: a sentence about a function, class or kernel, after its place."""
        todo = re.search(r"(?:#|//) *TODO", self.text)
        line = self.text.count("\n", 0, todo.start()) + 1 if todo else 0
        return Wrong(f"{self.at(name)}: {text}" + f"; the TODO of line {line} is not done yet" * (line > 0))

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

    def sectors(self, done: Launch, most: float, *, way: str = "loads", todo: str) -> None:
        """Raise Wrong where a line of the launch touches more sectors of 32 bytes per request of a warp than `most`;
        way: loads or stores of global memory."""
        self._lines(done, lambda each: getattr(each, way).per_request, most, f"{way} touch", "sectors per request",
                    todo)

    def conflicts(self, done: Launch, most: int = 0, *, todo: str) -> None:
        """Raise Wrong where a line of the launch has more bank conflicts than `most`."""
        self._lines(done, lambda each: each.shared_loads.conflicts + each.shared_stores.conflicts, most,
                    "accesses to shared memory have", "bank conflicts", todo)

    def _lines(self, done: Launch, count: Callable[[Any], float], most: float, begin: str, unit: str,
               todo: str) -> None:
        if not done.table.complete:
            raise Wrong(f"{self.name}: a warp does too much between two barriers for it to be counted; {todo}")
        line, worst = max(((line, count(each)) for line, each in done.table.lines.items()), key=lambda pair: pair[1],
                          default=(0, 0.0))
        if worst > most:
            raise Wrong(f"{self.name}:{line}: its {begin} {worst:g} {unit} but may have {most:g}; {todo}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:56]} ..."


def shapes(rng: np.random.Generator, count: int, dimensions: Sequence[int] = (1, 2, 3), most: int = 7
           ) -> list[tuple[int, ...]]:
    """Random shapes, odd ones too."""
    return [tuple(int(n) for n in rng.integers(1, most + 1, rng.choice(dimensions))) for _ in range(count)]
