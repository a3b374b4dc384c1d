"""The pass that makes one call of all that a step does to each image by itself.

A net whose images fit a multiprocessor's shared memory needs no array in global memory between its layers: a kernel
generated for the region takes an image from its pixels to the gradients of everything it met (ops/cuda/region).
"""

from __future__ import annotations

from dataclasses import replace as with_
from typing import Any

from ...ops.common.primitives import PRIMITIVES
from ...ops.common.region import Region, Step, Value
from ..program import Call, Program, Slot, replace

REGIONAL = [name for name, known in PRIMITIVES.items() if known.line]

# What to try, the largest first: everything, or only the linear layers at the end.
CHOICES = (frozenset(REGIONAL),
           frozenset(name for name in REGIONAL if name.startswith(("linear", "reshape", "cross_entropy"))))


def join_regions(program: Program) -> Program:
    """Replace the calls before the update that treat images one by one with one call, if the backend can do that."""
    for names in CHOICES:
        members = _members(program, names)
        if members:
            region, given, made = _region(program, members)
            if members[0].backend.can_region_step(region):
                return _replaced(program, members, Call(members[0].backend, "region_step", (region, *given), {},
                                                        tuple(made), True))
    return program


def _replaced(program: Program, members: list[Call], one: Call) -> Program:
    """The program with one call in the place of some, after all calls that do not wait for it."""
    own = set(map(id, members))
    before: list[Call] = []
    after: list[Call] = []
    late: set[Slot] = {slot for call in members for slot in call.results}
    changed = False                                    # something, by calls behind the region
    for call in program.calls:
        if id(call) in own:
            continue
        follows = changed or call.known.update or not late.isdisjoint(call.reads)
        changed |= follows and call.effect
        late.update(call.results if follows else ())
        (after if follows else before).append(call)
    note = f"regions: {len(members) - 1} calls fewer"
    return with_(program, calls=[*before, one, *after], notes=[*program.notes, note])


def _members(program: Program, names: frozenset[str]) -> list[Call]:
    """The calls of some names that can be one region: they work on the images whose labels the loss is given, and wait
    for nothing outside that waits for the region itself. No calls if the loss is not among them."""
    labels = [call.arguments[1] for call in program.calls if call.name == "cross_entropy_with_grad"]
    n = labels[0].shape[0] if len(labels) == 1 else 0
    members: list[Call] = []
    made: set[Slot] = set()                            # by the region, of each image
    late: set[Slot] = set()                            # sums over the region's images, and what is made outside of it
    for call in program.calls:
        if call.known.update:
            break
        if n and call.name in names and late.isdisjoint(call.reads) and _fits(call, n, made) and (
                not members or call.backend is members[0].backend):
            members.append(call)
            for slot, role in zip(call.results, call.known.gives, strict=True):
                (made if role == "i" else late).add(slot)
        elif not (made | late).isdisjoint(call.reads):
            late.update(call.results)
    return members if any(call.name == "cross_entropy_with_grad" for call in members) else []


def _fits(call: Call, n: int, made: set[Slot]) -> bool:
    """Whether a call's arguments are as its primitive's roles say, for n images; no parameter is `made`."""
    roles = call.known.takes
    if call.options or len(roles) != len(call.arguments):
        return False
    of_images = [a for a, role in zip(call.arguments, roles, strict=True) if role in "il"]
    if call.name == "reshape":             # of a value of the region: a region makes no result in its inputs' memory
        if not made.issuperset(of_images):
            return False
        of_images += call.results
    parameters = [a for a, role in zip(call.arguments, roles, strict=True) if role == "p"]
    return (all(isinstance(a, Slot) and a.shape[:1] == (n,) for a in of_images)
            and all(a is None or (isinstance(a, Slot) and a not in made) for a in parameters))


def _region(program: Program, members: list[Call]) -> tuple[Region, list[Slot], list[Slot]]:
    """(the region, what it is given, what it makes that others read)"""
    numbers: dict[Slot, Value] = {}

    def value(a: object) -> Any:
        return numbers.setdefault(a, Value(len(numbers))) if isinstance(a, Slot) else a

    steps = tuple(Step(call.name, replace(call.arguments, value), tuple(map(value, call.results))) for call in members)
    own, made = set(map(id, members)), {slot for call in members for slot in call.results}
    read = {slot for call in program.calls if id(call) not in own for slot in call.reads} | program.kept()
    given, wanted = [s for s in numbers if s not in made], [s for s in numbers if s in made and s in read]
    labels = next(call.arguments[1] for call in members if call.name == "cross_entropy_with_grad")
    region = Region(labels.shape[0], steps, tuple(numbers[s] for s in given), tuple(numbers[s] for s in wanted),
                    tuple(tuple(s.shape) for s in numbers), tuple(str(s.dtype) for s in numbers))
    return region, given, wanted
