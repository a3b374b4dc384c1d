"""Whether two recordings of a step did the same: only then may a replay take the place of a third."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np

from ..core.device import is_array
from .program import Dynamic, Program, Slot, show
from .reads.facts import picture, same


class Difference(Exception):
    """Where two recordings differ, in words."""


def compare(first: Program, second: Program) -> None:
    """See that two programs are the same; raises Difference if they are not."""
    pairs = dict(zip([*first.inputs, *(slot for _, slot in first.before)],
                     [*second.inputs, *(slot for _, slot in second.before)], strict=False))

    def equal(a: object, b: object) -> bool:
        if isinstance(a, Slot) and isinstance(b, Slot):
            if pairs.get(a) is b or a.array is None or b.array is None or a.kind != b.kind:
                return pairs.get(a) is b
            return a.array is b.array or (a.kind == "constant" and picture(a.array) == picture(b.array))
        if isinstance(a, Dynamic) and isinstance(b, Dynamic):
            return a.number == b.number and _same_read(a.read, b.read)
        if is_array(a) and is_array(b):
            return a is b or picture(a) == picture(b)
        return _is_slice(a, b) or same(a, b)

    if len(first.before) != len(second.before):
        raise Difference("it looked at gradients from before the step in one of two runs")
    for one, other in zip_longest(first.calls, second.calls):
        if one is None or other is None or (one.name, one.backend) != (other.name, other.backend):
            made = [f"{call.name} at {call.line}" if call else "nothing more" for call in (one, other)]
            raise Difference(f"it called {made[0]} in one run and {made[1]} in the next")
        if len(one.results) == len(other.results):
            pairs.update(zip(one.results, other.results, strict=True))
        for a, b in _aligned([one.arguments, one.options, one.results], [other.arguments, other.options,
                                                                       other.results]):
            if not equal(a, b):
                raise Difference(f"it gave {one.name} at {other.line} {_said(a)} in one run and {_said(b)} in the next")
    for what, mine, others in (("returned", first.outputs, second.outputs),
                               ("left as gradients", first.grads, second.grads),
                               ("changed", first.changed, second.changed)):
        for a, b in _aligned(mine, others):
            if not equal(a, b):
                raise Difference(f"it {what} {_said(a)} in one run and {_said(b)} in the next")


def _aligned(a: Any, b: Any) -> Iterator[tuple[Any, Any]]:
    """Leaves of two nested values side by side; if they are nested differently, these parts themselves."""
    if type(a) is type(b) and isinstance(a, (tuple, list)) and len(a) == len(b) and not hasattr(a, "_fields"):
        for mine, other in zip(a, b, strict=True):
            yield from _aligned(mine, other)
    elif isinstance(a, dict) and isinstance(b, dict) and list(a) == list(b):
        yield from _aligned(list(a.values()), list(b.values()))
    else:
        yield a, b


def _same_read(a: object, b: object) -> bool:
    """Whether two dynamic numbers are read from one place."""
    if isinstance(a, functools.partial) and isinstance(b, functools.partial):
        return a.func is b.func and len(a.args) == len(b.args) and all(map(same, a.args, b.args))
    return a is b or a == b


def _is_slice(a: object, b: object) -> bool:
    """Whether two indices are equal slices (or the Ellipsis), or equal named tuples, dtypes and modes."""
    return type(a) is type(b) and (isinstance(a, (slice, np.dtype, type)) or hasattr(type(a), "_fields")
                                   or a is Ellipsis) and a == b


def _said(value: object) -> str:
    text = show(value)
    if isinstance(value, Slot) and value.kind == "constant":
        text = " ".join(str(value.array).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
