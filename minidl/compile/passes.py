"""Passes over programs. Each takes a Program and returns a smaller one that does the same."""

from __future__ import annotations

from dataclasses import replace as with_
from typing import Any

from .fuse import fuse
from .per_image import per_image
from .program import Call, Dynamic, Program, Slot, leaves, replace


def dead_code(program: Program) -> Program:
    """Leave out calls whose results nobody reads and that do nothing else."""
    needed, calls = program.kept(), []
    for call in reversed(program.calls):
        if call.effect or not needed.isdisjoint(call.results):
            calls.append(call)
            needed.update(call.reads())
    return _noted(program, calls[::-1], "dead code")


def common_subexpressions(program: Program) -> Program:
    """Make each call once: a second one with the same arguments is the first one's results.

    Only between effects, which may change what an argument holds.
    """
    seen: dict[Any, tuple[Slot, ...]] = {}
    renamed: dict[Slot, Slot] = {}

    def current(value: Any) -> Any:
        return renamed.get(value, value) if isinstance(value, Slot) else value

    calls = []
    for call in program.calls:
        call = with_(call, arguments=replace(call.arguments, current), options=replace(call.options, current))
        if call.effect:
            seen.clear()
        key = _key(call)
        if key in seen and not call.effect and call.name != "copy":
            renamed.update(zip(call.results, seen[key], strict=True))
            continue
        seen[key] = call.results
        calls.append(call)
    return with_(_noted(program, calls, "common subexpressions"), outputs=replace(program.outputs, current),
                 grads=[(leaf, current(slot)) for leaf, slot in program.grads])


def _key(call: Call) -> Any:
    """Equal for calls that compute the same; values that cannot be compared are equal to themselves alone."""
    def part(value: Any) -> Any:
        if isinstance(value, (Slot, Dynamic)):
            return value
        try:
            hash(value)
        except TypeError:
            return "id", id(value)
        return type(value), value
    return call.backend.__name__, call.name, tuple(call.options), tuple(
        part(value) for value in leaves((call.arguments, tuple(call.options.values())))), _shape_of(call.arguments)


def _shape_of(value: Any) -> Any:
    """How arguments are nested: ((1,), 2) and (1, (2,)) have the same leaves."""
    return tuple(map(_shape_of, value)) if isinstance(value, (tuple, list)) else None


def _noted(program: Program, calls: list[Call], what: str) -> Program:
    fewer = len(program.calls) - len(calls)
    return with_(program, calls=calls, notes=[*program.notes, f"{what}: {fewer} calls fewer"])


PASSES = (common_subexpressions, fuse, dead_code, per_image)


def optimised(program: Program) -> Program:
    """All passes, in their order."""
    for each in PASSES:
        program = each(program)
    return program
