"""Fusion: rules of ops/common/fused.py are applied where a program's calls fit them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace as with_
from fractions import Fraction
from typing import Any, NamedTuple

from ...ops.common.fused import RULES
from ...ops.common.patterns import Line, Name, Rule
from ..program import Call, Program, Slot, leaves

Place = int | Fraction                     # a call's: its number before all fusions, or one between two such numbers


def fuse(program: Program, rules: Iterable[Rule] | None = None) -> Program:
    """Apply the first of the rules that fits, at the first place where it does, until none fits anywhere."""
    saved: Counter[str] = Counter()
    view = View(program)
    search = _Search(view, [*(RULES if rules is None else rules)])
    while found := search.first():
        search.fuse(found)
        saved[found.rule.fused.primitive] += len(found.places) - 1
    by = ", ".join(f"{count} by {name}" for name, count in saved.items())
    note = f"fusion: {sum(saved.values())} calls fewer{f' ({by})' if by else ''}"
    return with_(program, calls=view.in_order(), notes=[*program.notes, note])


class Found(NamedTuple):
    """A rule that fits: the places of its pattern's calls, the values of its names, where the fused call may be."""

    rule: Rule
    places: tuple[Place, ...]
    bound: dict[Name, Any]
    at: Place


class _Search:
    """Finds rules that fit. After a fusion only places that it can have changed are tried again, so that the time is in
    proportion to the program: the unrolled steps of a recurrent layer are thousands of calls."""

    def __init__(self, view: View, rules: list[Rule]):
        self.view, self.rules = view, rules
        self.with_call: dict[str, list[int]] = defaultdict(list)       # numbers of the rules whose patterns have it
        for number, rule in enumerate(rules):
            for name in {line.primitive for line in rule.pattern}:
                self.with_call[name].append(number)
        self.left = [self._places(rule) for rule in rules]             # of patterns' last calls, to be tried
        # By rule and place: the first and the last of calls that are there but cannot be fused. That only a fusion of
        # calls between them can change: it removes an effect or moves what reads their results or makes what they read.
        self.blocked: dict[tuple[int, Place], tuple[Place, Place]] = {}

    def _places(self, rule: Rule) -> list[Place]:
        named = self.view.named
        return [*named[rule.pattern[-1].primitive]] if all(named[line.primitive] for line in rule.pattern) else []

    def first(self) -> Found | None:
        for number, (rule, left) in enumerate(zip(self.rules, self.left, strict=True)):
            while left:
                seen: set[Place] = set()
                for places, bound in self.view.matches(rule.pattern, left[0]):
                    at = self.view.place(rule, places, bound)
                    if at is not None:
                        return Found(rule, places, bound, at)
                    seen.update(places)
                last = left.pop(0)
                if seen:
                    self.blocked[number, last] = min(seen), max(seen)
        return None

    def fuse(self, found: Found) -> None:
        self.view.fuse(found)
        anew = set(self.with_call[found.rule.fused.primitive])
        for number in anew:
            self.left[number] = self._places(self.rules[number])
        for (number, last), (begin, end) in [*self.blocked.items()]:
            if number in anew or any(begin <= i <= end for i in found.places):
                del self.blocked[number, last]
                if number not in anew:
                    insort(self.left[number], last)


class View:
    """A program's calls by place, by name, and by the values that they make and read."""

    def __init__(self, program: Program):
        self.program, self.kept = program, program.kept()
        self.calls: dict[Place, Call] = {}
        self.order: list[Place] = []
        self.named: dict[str, list[Place]] = defaultdict(list)
        self.makers: dict[Any, list[Place]] = defaultdict(list)
        self.readers: dict[Any, list[Place]] = defaultdict(list)
        for i, call in enumerate(program.calls):
            self._put(i, call)

    def _lists(self, call: Call) -> list[list[Place]]:
        """The lists that a call's place is in, once for each time that it reads a value."""
        return [self.order, self.named[call.name], *(self.makers[slot] for slot in call.results),
                *(self.readers[slot] for slot in call.reads)]

    def _put(self, at: Place, call: Call) -> None:
        self.calls[at] = call
        for places in self._lists(call):
            insort(places, at)

    def in_order(self) -> list[Call]:
        return [self.calls[i] for i in self.order]

    def between(self, begin: Place, end: Place, without: Collection[Place] = ()) -> list[Call]:
        """The calls from one place on, and before another."""
        places = self.order[bisect_left(self.order, begin):bisect_left(self.order, end)]
        return [self.calls[i] for i in places if i not in without]

    def fuse(self, found: Found) -> None:
        """Put the fused call of a rule there."""
        made, at, bound = found.rule.fused, found.at, found.bound
        call = Call(self.calls[found.places[0]].backend, made.primitive,
                    tuple(bound[a] if isinstance(a, Name) else a for a in made.arguments), {},
                    tuple(bound[name] for name in made.results), len(made.results) > 1)
        if at not in found.places:                     # just before the call there
            at = Fraction(self.order[bisect_left(self.order, at) - 1] + at, 2)
        for i in found.places:
            for places in self._lists(self.calls[i]):
                del places[bisect_left(places, i)]
            del self.calls[i]
        self._put(at, call)

    def matches(self, pattern: tuple[Line, ...], last: Place) -> Iterator[tuple[tuple[Place, ...], dict[Name, Any]]]:
        """Ways to find a pattern's calls, of which the last is there: (their places, the values of the names)."""
        return self._matches(pattern, [last] if last in self.calls else [], (), {})

    def _matches(self, pattern: tuple[Line, ...], candidates: list[Place], places: tuple[Place, ...],
                 bound: dict[Name, Any]) -> Iterator[tuple[tuple[Place, ...], dict[Name, Any]]]:
        *before, wanted = pattern
        for i in candidates:
            more = None if i in places else _bind(wanted, self.calls[i], bound)
            if more is None:
                continue
            if before:
                yield from self._matches(pattern[:-1], self.candidates(before[-1], more), (*places, i), more)
            else:
                yield (*places, i), more

    def candidates(self, wanted: Line, bound: dict[Name, Any]) -> list[Place]:
        """Where a line's call may be, given the values of some of its names."""
        for names, calls_of in ((wanted.results, self.makers), (wanted.arguments, self.readers)):
            for name in names:
                if isinstance(name, Name) and isinstance(bound.get(name), Slot):
                    return calls_of[bound[name]]
        return self.named[wanted.primitive]

    def place(self, rule: Rule, places: Collection[Place], bound: dict[Name, Any]) -> Place | None:
        """Where the fused call may be: the last place before others read its results; None if there is none.

        Nothing moves across an effect, which may change what an argument holds. An effect of the pattern itself
        moves across what reads nothing but results, which it cannot change: arrays from outside may share memory.
        """
        first, last = min(places), max(places)
        calls = [self.calls[i] for i in places]
        between = self.between(first, last, without=places)
        if any(call.effect for call in between):
            return None
        if any(call.effect for call in calls):
            source = with_(self.program, calls=self.in_order()).sources()
            if any(source.get(slot, slot).kind != "result" for call in between for slot in call.reads):
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
