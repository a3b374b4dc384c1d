"""Fusion: rules of ops/common/fused.py are applied where a program's calls fit them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace as with_
from typing import Any

from ...ops.common.fused import RULES
from ...ops.common.patterns import Line, Name, Rule
from ..program import Call, Program, Slot, leaves


def fuse(program: Program, rules: Iterable[Rule] | None = None) -> Program:
    """Apply the first of the rules that fits, at the first place where it does, until none fits anywhere."""
    saved: Counter[str] = Counter()
    while found := next(_fusions(program, RULES if rules is None else rules), None):
        program, fused, fewer = found
        saved[fused] += fewer
    by = ", ".join(f"{count} by {name}" for name, count in saved.items())
    note = f"fusion: {sum(saved.values())} calls fewer{f' ({by})' if by else ''}"
    return with_(program, notes=[*program.notes, note])


def _fusions(program: Program, rules: Iterable[Rule]) -> Iterator[tuple[Program, str, int]]:
    """(the program with one rule applied once, the fused primitive, how many calls fewer) for all rules and places."""
    view = View(program)
    for each in rules:
        for places, bound in view.matches(each.pattern):
            at = view.place(each, places, bound)
            if at is None:
                continue
            made = each.fused
            call = Call(program.calls[places[0]].backend, made.primitive,
                        tuple(bound[a] if isinstance(a, Name) else a for a in made.arguments), {},
                        tuple(bound[name] for name in made.results), len(made.results) > 1)
            before, after = ([c for i, c in part if i not in places] for part in (
                enumerate(program.calls[:at]), enumerate(program.calls[at:], at)))
            yield with_(program, calls=[*before, call, *after]), made.primitive, len(places) - 1


class View:
    """A program's calls by name, and by the values that they make and read; a call is known by its place."""

    def __init__(self, program: Program):
        self.calls, self.kept, self.source = program.calls, program.kept(), program.sources()
        self.named: dict[str, list[int]] = defaultdict(list)
        self.makers: dict[Any, list[int]] = defaultdict(list)
        self.readers: dict[Any, list[int]] = defaultdict(list)
        for i, call in enumerate(self.calls):
            self.named[call.name].append(i)
            for slot in call.results:
                self.makers[slot].append(i)
            for slot in call.reads:
                self.readers[slot].append(i)

    def matches(self, pattern: tuple[Line, ...], places: tuple[int, ...] = (),
                bound: dict[Name, Any] | None = None) -> Iterator[tuple[tuple[int, ...], dict[Name, Any]]]:
        """Ways to find a pattern's calls, its last one first: (their places, the values of the names)."""
        bound = bound or {}
        if not pattern:
            yield places, bound
            return
        for i in self.candidates(pattern[-1], bound):
            more = None if i in places else _bind(pattern[-1], self.calls[i], bound)
            if more is not None:
                yield from self.matches(pattern[:-1], (*places, i), more)

    def candidates(self, wanted: Line, bound: dict[Name, Any]) -> list[int]:
        """Where a line's call may be, given the values of some of its names."""
        for names, calls_of in ((wanted.results, self.makers), (wanted.arguments, self.readers)):
            for name in names:
                if isinstance(name, Name) and isinstance(bound.get(name), Slot):
                    return calls_of[bound[name]]
        return self.named[wanted.primitive]

    def place(self, rule: Rule, places: Collection[int], bound: dict[Name, Any]) -> int | None:
        """Where the fused call may be: the last place before others read its results; None if there is none.

        Nothing moves across an effect, which may change what an argument holds. An effect of the pattern itself
        moves across what reads nothing but results, which it cannot change: arrays from outside may share memory.
        """
        first, last = min(places), max(places)
        calls = [self.calls[i] for i in places]
        between = [self.calls[i] for i in range(first, last) if i not in places]
        if any(call.effect for call in between):
            return None
        if any(call.effect for call in calls) and any(
                self.source.get(slot, slot).kind != "result" for call in between for slot in call.reads):
            return None
        if len({call.backend.__name__ for call in calls}) > 1:
            return None
        visible = {bound[name] for name in rule.fused.results}
        at = last
        for slot in (slot for call in calls for slot in call.results):
            others = [i for i in self.readers[slot] if i not in places]
            if len(self.makers[slot]) > 1 or slot.kind != "result":
                return None                            # a primitive gave back what it was given: one array, two makers
            if slot not in visible and (others or slot in self.kept):
                return None
            at = min([at, *others])
        inputs = leaves([bound.get(name) for name in rule.fused.arguments if isinstance(name, Name)])
        made = [i for slot in inputs if isinstance(slot, Slot) for i in self.makers[slot][:1]]
        return at if all(i < at and i not in places for i in made) else None


def _bind(wanted: Line, call: Call, bound: dict[Name, Any]) -> dict[Name, Any] | None:
    """The values of names, with those of a line that a call fits; None if it does not fit."""
    if (call.name, len(call.results), len(call.arguments)) != (
            wanted.primitive, len(wanted.results), len(wanted.arguments)) or call.options:
        return None
    bound = dict(bound)
    for name, value in zip((*wanted.results, *wanted.arguments), (*call.results, *call.arguments), strict=True):
        if not _same(bound.setdefault(name, value) if isinstance(name, Name) else name, value):
            return None
    return bound


def _same(a: object, b: object) -> bool:
    """Whether two arguments are one: the same value of the program, or equal numbers, words and geometries."""
    return a is b or (type(a) is type(b) and not hasattr(a, "shape") and a == b)
