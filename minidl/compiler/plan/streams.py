"""Which calls of a program go to side streams of a GPU."""

from __future__ import annotations

from ...core.device import owner
from ..program import Program, Slot, leaves


def side_streams_of(program: Program) -> list[int | None]:
    """Schedule.side: calls that only updates wait for, such as gradients of filters and biases; and counters and
    `advance`, which only their readers wait for. What one of them reads is not changed until it is waited for."""
    calls, readers, source = program.calls, dict[Slot, list[int]](), program.sources()

    def memory(slot: Slot) -> object:
        slot = source.get(slot, slot)
        return slot if slot.array is None else id(owner(slot.array))

    reads = [[memory(slot) for slot in call.reads] for call in calls]
    changes = [{memory(slot) for at in call.known.changes for slot in leaves(call.arguments[at])
                if isinstance(slot, Slot)} for call in calls]
    changing = [i for i, changed in enumerate(changes) if changed]
    for i, call in enumerate(calls):
        for slot in call.reads:
            readers.setdefault(slot, []).append(i)

    def first_reader(i: int) -> int:
        """The first later call that reads what call i changes, other than a counter aside, which follows it there."""
        return min((k for k in range(i + 1, len(calls)) if not changes[i].isdisjoint(reads[k])
                    and not (calls[i].known.counter and calls[k].known.counter and side[k])), default=len(calls))

    def unchanged(i: int, waiting: int) -> bool:
        others = set(reads[i]) - changes[i]
        return all(others.isdisjoint(changes[k]) for k in changing if i < k < waiting)

    side = list[int | None]([None] * len(calls))
    update = len(calls)                                # the next one
    for i, call in reversed(list(enumerate(calls))):
        waiting = None
        if call.known.counter or call.name == "advance":
            waiting = first_reader(i)
            if waiting == i + 1 or (waiting < len(calls) and side[waiting]):
                waiting = None
        elif not call.effect:
            waits = [calls[k].known.update for slot in call.results for k in readers.get(slot, ())]
            waiting = update if waits and all(waits) else None
        side[i] = waiting if waiting is not None and unchanged(i, waiting) else None
        update = i if call.known.update else update
    if all(waiting is None or call.name == "advance" for call, waiting in zip(calls, side, strict=True)):
        return [None] * len(calls)                     # a graph with no more than that aside takes longer to launch
    return side
