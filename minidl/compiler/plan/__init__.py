"""What is known of a program before it runs: which calls go to side streams, and how long each value is needed."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from ...core.device import is_cuda
from ..program import Call, Dynamic, Program, Slot, leaves
from .streams import side_streams_of

ALIGNMENT = 512                            # bytes; each value's memory is a multiple of this


class Schedule(NamedTuple):
    """side: for each call, None on the main stream; on another stream, the number of the call that waits for it, or the
    number of all calls if only the end does. ends: for each call, the values that are no longer needed after it; peak:
    bytes of results that are needed at once, at most."""

    side: list[int | None]
    ends: list[list[Slot]]
    peak: int


def plan(program: Program, streams: bool) -> Schedule:
    """The schedule of a replay with side streams, or without.

    peak leaves out inputs, what comes from outside, and what primitives need while they run. It counts nothing for
    calls that may give back a part of their first argument: they are assumed to do so.
    """
    side: list[int | None] = side_streams_of(program) if streams else [None] * len(program.calls)
    ends = _ends(program, side)
    return Schedule(side, ends, _peak(program, ends))


def _ends(program: Program, side: list[int | None]) -> list[list[Slot]]:
    """A result that is not kept ends with the last call that makes or reads it; if that is on a side stream, with
    the one that waits for it, and not at all if none does."""
    calls, kept = program.calls, program.kept()
    last: dict[Slot, int] = {}
    for i, (call, waiting) in enumerate(zip(calls, side, strict=True)):
        for slot in (*call.reads, *call.results):
            last[slot] = max(last.get(slot, 0), i if waiting is None else waiting)
    ends: list[list[Slot]] = [[] for _ in calls]
    for slot, i in last.items():
        if slot.kind == "result" and slot not in kept and i < len(calls):
            ends[i].append(slot)
    return ends


def _peak(program: Program, ends: list[list[Slot]]) -> int:
    """The most bytes that results take at once. Memory is needed until the last of the values in it ends."""
    memory: dict[Slot, Slot] = {}                      # a value -> the one whose memory it is in
    values: Counter[Slot] = Counter()                  # in that memory
    bytes_now = most = 0
    for call, end in zip(program.calls, ends, strict=True):
        for slot in call.results:
            if slot not in memory:
                source = call.arguments[0] if _shares(call) else slot
                memory[slot] = memory.get(source, source)
                bytes_now += _bytes(slot) if memory[slot] is slot else 0
                values[memory[slot]] += 1
        most = max(most, bytes_now)
        for slot in end:
            values[memory[slot]] -= 1
            if not values[memory[slot]] and memory[slot].kind == "result":
                bytes_now -= _bytes(memory[slot])
    return most


def _shares(call: Call) -> bool:
    """Whether a result is assumed to be in the first argument's memory; what an array of indices picks is not."""
    return call.known.shares and not any(hasattr(value, "shape") for value in leaves(call.arguments[1:]))


def _bytes(slot: Slot) -> int:
    return -(-math.prod(slot.shape) * slot.dtype.itemsize // ALIGNMENT) * ALIGNMENT


def can_be_captured(program: Program) -> bool:
    """Whether all calls run on a CUDA device and read changing numbers there."""
    slots = [slot for call in program.calls for slot in (*call.reads, *call.results)]
    arrays = [slot.array for slot in slots if slot.array is not None]
    on_cuda = bool(program.calls) and all(call.backend.__name__.endswith(".cuda") for call in program.calls)
    return on_cuda and all(map(is_cuda, arrays)) and all(
        call.known.captured for call in program.calls
        if any(isinstance(v, Dynamic) for v in leaves((call.arguments, tuple(call.options.values())))))
