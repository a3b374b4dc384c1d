"""Which calls of a program go to side streams of a GPU."""

from __future__ import annotations

from ..program import Program, Slot


def side_streams_of(program: Program) -> list[int | None]:
    """Schedule.side: calls that only updates wait for, such as gradients of filters and biases; and counters and
    `advance`, which only their readers wait for."""
    calls, readers = program.calls, dict[Slot, list[int]]()
    for i, call in enumerate(calls):
        for slot in call.reads:
            readers.setdefault(slot, []).append(i)
    side, source = list[int | None]([None] * len(calls)), program.sources()
    update = len(calls)                                # the next one
    for i, call in reversed(list(enumerate(calls))):
        if call.known.counter:
            total, *others = call.reads
            waiting = min((k for k in readers[total] if k > i and not (calls[k].known.counter and side[k])),
                          default=len(calls))
            changed = {slot for later in calls[i + 1:waiting] if later.known.update for slot in later.reads}
            if waiting > i + 1 and changed.isdisjoint(source.get(slot, slot) for slot in others):
                side[i] = waiting
        elif not call.effect:
            waits = [calls[k].known.update for slot in call.results for k in readers.get(slot, ())]
            side[i] = update if waits and all(waits) else None
        update = i if call.known.update else update
    if any(waiting is not None for waiting in side):   # a graph with a single such call takes longer to launch
        for i, call in enumerate(calls):
            if call.name == "advance":
                waiting = min((k for k in readers[call.reads[0]] if k > i), default=len(calls))
                side[i] = waiting if waiting > i + 1 and (waiting == len(calls) or side[waiting] is None) else None
    return side
