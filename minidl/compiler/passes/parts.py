"""The pass that joins gradients of the parts of a value: of `q, k, v = qkv[0], qkv[1], qkv[2]`, and of `x.chunk(3, 1)`.

On the tape each part's gradient is a whole array, zero outside the part, and these are added. If the parts are next
to each other along one axis and are all of it, that is one concatenation. A sum -0.0 + 0.0 is 0.0; here -0.0 stays.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace as with_
from typing import NamedTuple

from ..program import Call, Program, Slot


class Part(NamedTuple):
    """A gradient of x[..., start:stop, ...], or of x[..., start, ...], along an axis of x, whose shape is given; and
    the order of x's axes afterwards."""

    gradient: Slot
    shape: tuple[int, ...]
    axis: int
    start: int
    stop: int
    order: tuple[int, ...]


def join_parts(program: Program) -> Program:
    """The program with sums of parts' gradients as concatenations, in the order of axes that is wanted."""
    uses = Counter(slot for call in program.calls for slot in call.reads) + Counter(program.kept())
    made, written = _Made(program), program.written()
    found: dict[Slot, list[Part]] = {}     # the parts of which a value is the sum
    calls: list[Call] = []
    joined = 0
    for call in program.calls:
        parts: list[Part] = []
        if call.name == "getitem_grad_x" and call.arguments[0] not in written:
            parts = _part(call)
        elif call.name in ("add", "transpose"):
            given = [x for x in call.arguments[:2] if isinstance(x, Slot)]
            if all(x in found and uses[x] == 1 for x in given) and len(given) == (2 if call.name == "add" else 1):
                parts = [part for x in given for part in found[x]]
        if call.name == "transpose":
            parts = [part._replace(order=tuple(part.order[axis] for axis in call.arguments[1])) for part in parts]
        if parts:
            found[call.results[0]] = parts
        if _whole(parts):
            joined += call.name == "add"
            calls += made.concatenated(call, parts)
        else:
            calls.append(call)
    note = [f"parts: {joined} sums are concatenations"] if joined else []
    return with_(program, calls=calls, notes=[*program.notes, *note])


def _part(call: Call) -> list[Part]:
    """The part that a call spreads; none if it is not along one axis."""
    gradient, index, shape, _ = call.arguments
    index = index if isinstance(index, tuple) else (index,)
    if any(isinstance(i, bool) or (not isinstance(i, (int, slice)) and i is not Ellipsis) for i in index):
        return []
    if Ellipsis in index:
        at = index.index(Ellipsis)
        index = (*index[:at], *[slice(None)] * (len(shape) - len(index) + 1), *index[at + 1:])
    parts = []
    for axis, (i, size) in enumerate(zip(index, shape, strict=False)):
        taken = range(size)[i]
        start, stop = (taken, taken + 1) if isinstance(taken, int) else (taken.start, taken.stop)
        if isinstance(taken, range) and (taken.step != 1 or stop < start):
            return []
        if isinstance(taken, int) or (start, stop) != (0, size):
            parts.append(Part(gradient, shape, axis, start, stop, tuple(range(len(shape)))))
    return parts if len(parts) == 1 else []


def _whole(parts: list[Part]) -> bool:
    """Whether each element of an axis is in one of several parts."""
    if len(parts) < 2 or len({(part.axis, part.order) for part in parts}) > 1:
        return False
    parts.sort(key=lambda part: part.start)
    return [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])] and parts[-1].stop == parts[
        0].shape[parts[0].axis]


class _Made:
    """Calls that take the place of others, and the values that these make."""

    def __init__(self, program: Program):
        self.number = 1 + max((slot.number for call in program.calls for slot in (*call.reads, *call.results)),
                              default=0)

    def concatenated(self, call: Call, parts: list[Part]) -> list[Call]:
        """A call's result as its parts, in order, one next to the other."""
        calls, pieces = [], []
        for gradient, shape, axis, start, stop, order in parts:
            whole = (*shape[:axis], stop - start, *shape[axis + 1:])
            piece = gradient
            for name, turned, how in (("reshape", whole, whole),
                                      ("transpose", tuple(whole[axis] for axis in order), order)):
                if piece.shape != turned or (name == "transpose" and order != tuple(range(len(order)))):
                    made = Slot(self.number, "result", turned, piece.dtype)
                    self.number += 1
                    calls.append(with_(call, name=name, arguments=(piece, how), results=(made,)))
                    piece = made
            pieces.append(piece)
        axis = parts[0].order.index(parts[0].axis)
        return [*calls, with_(call, name="concatenate", arguments=(tuple(pieces), axis))]
