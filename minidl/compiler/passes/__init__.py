"""Passes over programs. Each takes a Program and returns a smaller one that does the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace as with_
from functools import partial
from typing import Any

from ..plan import can_be_captured, plan
from ..program import Call, Dynamic, Program, Slot, leaves, replace
from ..reads.facts import INEXACT
from .fusion import fuse
from .halves import in_halves
from .layouts import in_nhwc
from .parts import join_parts
from .regions import join_regions


def dead_code(program: Program) -> Program:
    """Leave out calls whose results are not read and that do nothing else."""
    needed, calls = program.kept(), []
    for call in reversed(program.calls):
        if call.effect or not needed.isdisjoint(call.results):
            calls.append(call)
            needed.update(call.reads)
    return _noted(program, calls[::-1], "dead code")


def without_identities(program: Program) -> Program:
    """Leave out calls that gave back what they were given, as a sum over no axes does."""
    return with_(program, calls=[call for call in program.calls
                                 if call.effect or not call.results or not set(call.results) <= set(call.reads)])


def late_counters(program: Program) -> Program:
    """Move counters to where the next effect is, so that rules see the calls on both sides of them as neighbours.

    No further than to a call that reads what they add up.
    """
    source, calls = program.sources(), list(program.calls)
    for i in reversed([i for i, call in enumerate(calls) if call.known.counter]):
        total = source.get(calls[i].arguments[0], calls[i].arguments[0])
        until = next((j for j, call in enumerate(calls[i + 1:], i + 1) if call.effect or total in {
            source.get(slot, slot) for slot in call.reads}), len(calls))
        calls.insert(until - 1, calls.pop(i))
    return with_(program, calls=calls)


def common_subexpressions(program: Program) -> Program:
    """Make each call once: a second one with the same arguments is the first one's results.
    Only between effects, which may change what an argument holds. What is changed in place stays separate, as
    does each gradient and each result of the step.
    """
    own = program.written() | {slot for _, slot in program.grads if slot is not None}
    kept = program.kept()
    seen: dict[Any, tuple[Slot, ...]] = {}
    renamed: dict[Slot, Slot] = {}

    calls = []
    for call in program.calls:
        call = _with_slots(call, renamed)
        if call.effect:
            seen.clear()
        if call.effect or call.name == "copy" or not own.isdisjoint(call.results):
            calls.append(call)
            continue
        first = seen.setdefault(_key(call), call.results)
        if first is call.results or not kept.isdisjoint(call.results):
            calls.append(call)
        else:
            renamed.update(zip(call.results, first, strict=True))
    return _renamed(program, calls, renamed, "common subexpressions")


def _key(call: Call) -> Any:
    """Equal for calls that compute the same; values that cannot be compared are equal to themselves alone."""
    def part(value: object) -> Any:
        if isinstance(value, (Slot, Dynamic)):
            return value
        try:
            hash(value)
        except TypeError:
            return "id", id(value)
        return type(value), repr(value) if isinstance(value, INEXACT) else value       # 0.0 == -0.0
    return call.backend.__name__, call.name, tuple(call.options), tuple(
        part(value) for value in leaves((call.arguments, tuple(call.options.values())))), _shape_of(call.arguments)


def _shape_of(value: object) -> Any:
    """How arguments are nested: ((1,), 2) and (1, (2,)) have the same leaves."""
    return tuple(map(_shape_of, value)) if isinstance(value, (tuple, list)) else None


def copy_elision(program: Program) -> Program:
    """Leave out copies of what nothing else reads or keeps, if it has its own memory: it serves as the copy. Also leave
    out copies of constants, if nothing is written to the copy and nothing keeps it."""
    makers = Counter(slot for call in program.calls for slot in call.results)
    uses = Counter(slot for call in program.calls for slot in call.reads) + Counter(program.kept())
    own = {slot for call in program.calls if not call.known.shares for slot in call.results
           if slot.kind == "result" and makers[slot] == uses[slot] == 1}
    source, alive = program.sources(), program.written() | program.kept()
    changed = alive | {source[slot] for slot in alive if slot in source}
    renamed: dict[Slot, Slot] = {}

    calls = []
    for call in program.calls:
        if call.name == "copy" and (call.arguments[0] in own or (
                call.arguments[0].kind == "constant" and call.results[0] not in changed)):
            renamed[call.results[0]] = _current(renamed, call.arguments[0])
        else:
            calls.append(_with_slots(call, renamed))
    return _renamed(program, calls, renamed, "copy elision")


def _with_slots(call: Call, renamed: dict[Slot, Slot]) -> Call:
    """A call on other values; itself if it reads none of those that are renamed."""
    if renamed.keys().isdisjoint(call.reads):
        return call
    current = partial(_current, renamed)
    return with_(call, arguments=replace(call.arguments, current), options=replace(call.options, current))


def _renamed(program: Program, calls: list[Call], renamed: dict[Slot, Slot], what: str) -> Program:
    """A program of other calls, and what it returns and leaves behind under its new names."""
    return with_(_noted(program, calls, what), outputs=replace(program.outputs, partial(_current, renamed)),
                 grads=[(leaf, _current(renamed, slot)) for leaf, slot in program.grads])


def _current(renamed: dict[Slot, Slot], value: object) -> Any:
    return renamed.get(value, value) if isinstance(value, Slot) else value


def _noted(program: Program, calls: list[Call], what: str) -> Program:
    fewer = len(program.calls) - len(calls)
    return with_(program, calls=calls, notes=[*program.notes, f"{what}: {fewer} calls fewer"])


PASSES = (without_identities, late_counters, common_subexpressions, join_parts, fuse, dead_code, copy_elision)


def optimised(program: Program) -> Program:
    """All passes, in their order, and the memory that the result needs."""
    for each in PASSES:
        program = each(program)
    # After copies have gone: two results of a region may be in the same memory.
    if program.calls and program.calls[0].backend.can_region_step:     # the CPU has no kernel for one
        program = join_regions(program)
    if program.calls and (takes := program.calls[0].backend.takes_nhwc) and takes(program.precision):
        program = in_nhwc(program)
    if program.precision == "bf16":
        program = in_halves(program)
    peak = plan(program, can_be_captured(program)).peak
    return with_(program, peak=peak, notes=[*program.notes, f"memory: {peak:,} bytes for results"])
