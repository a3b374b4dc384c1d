"""A program: the primitive calls of one run, and what it reads, changes and leaves behind."""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from ..core.device import Array, precision
from ..core.tensor import Tensor
from ..ops.common.primitives import Primitive, known
from .reads.facts import Facts

_NESTED = (tuple, list, dict)
Place = Tensor | int                       # a Tensor from outside, or the number of the argument that it is


class Slot:
    """A value: an input of the step, an array from outside that every replay shares, a constant that the step makes, or
    the result of a call. Only the second and the third kind have an `array`."""

    __slots__ = ("array", "dtype", "kind", "number", "shape")

    def __init__(self, number: int, kind: str, shape: tuple[int, ...], dtype: np.dtype, array: Array | None = None):
        self.number, self.kind, self.shape, self.dtype, self.array = number, kind, shape, dtype, array

    def __repr__(self) -> str:
        return f"{'%' if self.kind == 'result' else '$' if self.array is None else '@'}{self.number}"


class Weighted(tuple[Any, ...]):
    """In what a step returned: the Slots of a Tensor and of its `weights`. Of two Tensors it makes that Tensor."""

    def __new__(cls, items: Iterable[Any]) -> Any:
        t, weights = items
        if not isinstance(t, Tensor):
            return super().__new__(cls, (t, weights))
        t.weights = weights
        return t


class Bare(tuple[Any, ...]):
    """In what a step returned: the Slot of an array. Of a Tensor it makes its array."""

    def __new__(cls, items: Iterable[Any]) -> Any:
        value, = items
        return value._data if isinstance(value, Tensor) else super().__new__(cls, (value,))


class Dynamic:
    """A number that is read anew at each replay: a learning rate, or the key of a random draw."""

    __slots__ = ("first", "number", "read")

    def __init__(self, number: int, read: Callable[[], Any]):
        self.number, self.read = number, read
        self.first: object = None                      # its value in the run that was recorded

    @property
    def key(self) -> bool:
        """Whether it is a key of draws, two words."""
        return isinstance(self.first, tuple)

    def __repr__(self) -> str:
        return f"?{self.number}"


@dataclass(frozen=True)
class Call:
    """One call of a primitive: arguments with Slots and Dynamics in place of arrays and changing numbers."""

    backend: ModuleType
    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    results: tuple[Slot, ...]
    several: bool                                      # the primitive returns a tuple
    line: str = ""                                     # of the user's code that made it, file:line

    @property
    def known(self) -> Primitive:
        """What is known of its primitive."""
        return known(self.name)

    @property
    def effect(self) -> bool:
        return self.known.effect

    @functools.cached_property
    def reads(self) -> list[Slot]:
        """The Slots among the arguments."""
        return [value for value in leaves((self.arguments, self.options)) if isinstance(value, Slot)]

    def __repr__(self) -> str:
        given = [show(a) for a in self.arguments] + [f"{name}={show(a)}" for name, a in self.options.items()]
        made = ", ".join(f"{slot!r} {slot.dtype}{list(slot.shape)}" for slot in self.results)
        return f"{made + ' = ' if made else ''}{self.name}({', '.join(given)})"


@dataclass
class Program:
    """What a run of a step did: print it to read it."""

    inputs: list[Slot]                                 # the arrays among the arguments
    before: list[tuple[Place, Slot]]                   # more inputs: gradients from before the step, of these leaves
    calls: list[Call]
    outputs: object                                    # nested as the step returned it, Slots in place of Tensors
    grads: list[tuple[Place, Slot | None]]             # leaves and what their .grad is afterwards
    changed: list[Place]                               # what is changed in place
    dynamics: list[Dynamic]
    facts: Facts                                       # what else was read
    notes: list[str] = field(default_factory=list)     # what the passes did
    peak: int | None = None                            # bytes of results that a replay needs at once, at most
    precision: str = field(default_factory=precision)  # of products, as it was recorded

    def _repr_html_(self) -> str:
        """The calls in a table: what each makes, and from what."""
        rows = []
        for call in self.calls:
            made, _, does = repr(call).rpartition(" = ")
            rows.append(f"<tr><td>{html.escape(made)}</td><td>{html.escape(does)}</td></tr>")
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<table><caption>program of {len(self.calls)} calls</caption>{''.join(rows)}</table>{notes}"

    def written(self) -> set[Slot]:
        """The values whose memory a call changes, and those in the same memory."""
        source = self.sources()
        roots = {source.get(slot, slot) for call in self.calls for i in call.known.changes
                 for slot in leaves(call.arguments[i]) if isinstance(slot, Slot)}
        return roots | {slot for slot, root in source.items() if root in roots}

    def sources(self) -> dict[Slot, Slot]:
        """Values that may be views, and what they are views of."""
        source: dict[Slot, Slot] = {}
        for call in self.calls:
            if call.known.shares and isinstance(call.arguments[0], Slot):
                source.update(dict.fromkeys(call.results, source.get(call.arguments[0], call.arguments[0])))
        return source

    def kept(self) -> set[Slot]:
        """The values that are needed after the run."""
        return {slot for slot in leaves((self.outputs, [slot for _, slot in self.grads])) if isinstance(slot, Slot)}

    def numbers_read(self) -> list[int]:
        """Which of the dynamic numbers calls read, in their order."""
        return sorted({value.number for call in self.calls for value in leaves((call.arguments, call.options))
                       if isinstance(value, Dynamic)})

    def __repr__(self) -> str:
        lines = [f"program of {len(self.calls)} calls; inputs "
                 f"{', '.join(f'{slot!r} {slot.dtype}{list(slot.shape)}' for slot in self.inputs) or 'none'}"]
        lines += [f"  {call!r}" for call in self.calls]
        lines += [f"  return {show(self.outputs)}", *(f"  # {note}" for note in self.notes)]
        return "\n".join(lines)

    def to_dot(self) -> str:
        """The program as a graph in Graphviz's language: calls are boxes, values the edges between them."""
        lines = ["digraph program {", "  rankdir=LR; node [shape=box, fontname=monospace];"]
        maker: dict[Slot, str] = {}
        for number, call in enumerate(self.calls):
            lines.append(f'  c{number} [label="{call.name}"];')
            for slot in call.reads:
                source = maker.get(slot)
                if source is None:
                    source = maker[slot] = f"v{len(maker)}"
                    lines.append(f'  {source} [label="{slot!r}", shape=ellipse];')
                lines.append(f'  {source} -> c{number} [label="{list(slot.shape)}"];')
            maker.update(dict.fromkeys(call.results, f"c{number}"))
        return "\n".join([*lines, "}"])


# ---------------------------------------------------------------- nested arguments
def leaves(value: object) -> list[Any]:
    """All that nested tuples, lists and dicts hold; named tuples (geometries) are leaves."""
    if not isinstance(value, _NESTED) or hasattr(value, "_fields"):
        return [value]
    return [leaf for item in (value.values() if isinstance(value, dict) else value)
            for leaf in (leaves(item) if isinstance(item, _NESTED) else (item,))]


def replace(value: object, change: Callable[[Any], Any]) -> Any:
    """Nested tuples, lists and dicts with every leaf changed; named tuples (geometries) are leaves."""
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)([replace(item, change) if isinstance(item, _NESTED) else change(item) for item in value])
    if isinstance(value, dict):
        return {name: replace(item, change) for name, item in value.items()}
    return change(value)


def show(value: Any) -> str:
    """An argument in few letters."""
    if hasattr(value, "_fields"):
        return f"{type(value).__name__}{tuple(value)}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(show, value))})"
    return f"array{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)
