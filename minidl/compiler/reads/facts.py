"""What a step read beside its arguments, and whether it is still so: looked at before each replay.

A fact is noted as a step is recorded; `Facts.changed` says which one is another now. The common case, that none is, is
what a replay pays for each time: plain loops of identities, and one number for all attributes of what is Watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from operator import is_
from types import CellType, FunctionType
from typing import Any

import numpy as np

from ...core.mode import Watched, changes
from ...core.tensor import Tensor

PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, Enum)
INEXACT = (float, complex, np.generic)     # of these: types whose equal values may differ
GONE = object()                            # in the place of a value that is not there


def same(a: Any, b: Any) -> bool:
    """Whether two values are one: the same object, or equal plain values of one type. NaN is NaN, and 0 is not -0."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return isinstance(a, PLAIN) and (repr(a) == repr(b) if isinstance(a, INEXACT) else bool(a == b))


def picture(array: np.ndarray) -> tuple[Any, ...]:
    """What an array held, to the bit: 0 is not -0. Of objects, which ones."""
    return array.dtype, array.shape, array.tobytes()


class Facts:
    """What was read while a step was recorded: each list holds places, what was there, and a name for a message."""

    def __init__(self) -> None:
        self.tensors: list[tuple[Tensor, Any, bool]] = []                # from outside: array, requires_grad
        self.gradients: list[tuple[Tensor, bool]] = []                   # whether a leaf had one before the step
        self.entries: list[tuple[Mapping[str, Any], str, Any, str]] = []     # of globals, attributes, an optimizer
        self.cells: list[tuple[Any, Any, str]] = []
        self.items: list[tuple[Any, Any, str]] = []                      # of lists, tuples, sets and dicts
        self.watched: dict[int, tuple[Watched, dict[str, Any]]] = {}     # and their attributes; with the next, looked
        self.settings: list[tuple[Mapping[str, Any], str, Any, str]] = []    # at only where `changes` has moved
        self.lengths: list[tuple[Mapping[str, Any], int, str]] = []      # of dicts: nothing was added
        self.functions: list[tuple[Any, tuple[Any, ...], str]] = []      # their code and defaults
        self.states: list[tuple[Any, Callable[[Any], Any], Any, str]] = []   # of iterators and random numbers
        self.arrays: list[tuple[np.ndarray, tuple[Any, ...], str]] = []  # that the host computes with
        self.arguments: dict[int, tuple[Any, ...]] = {}                  # arrays of which values were read, by number
        self._more = False                 # whether there are any of the last four kinds
        self._noted: set[int] = set()      # ids of these Tensors
        self._named: set[tuple[int, str]] = set()      # places and names of entries and settings
        self._changes = changes[0]         # when these were last looked at

    # ------------------------------------------------------------------ what is noted
    def tensor(self, t: Tensor) -> None:
        if id(t) not in self._noted:
            self._noted.add(id(t))
            self.tensors.append((t, t._data, t.requires_grad))

    def gradient(self, leaf: Tensor) -> None:
        self.gradients.append((leaf, leaf._grad is not None))

    def entry(self, place: Mapping[str, Any], name: str, value: object, what: str) -> None:
        if (id(place), name) not in self._named:
            self._named.add((id(place), name))
            self.entries.append((place, name, value, what))

    def cell(self, cell: CellType, what: str) -> None:
        self.cells.append((cell, cell.cell_contents, what))

    def container(self, value: Iterable[object], what: str) -> None:
        if all(value is not noted for noted, *_ in self.items):
            self.items.append((value, _listed(value), what))

    def length(self, place: Mapping[str, Any], what: str) -> None:
        self._more = True
        self.lengths.append((place, len(place), what))

    def function(self, function: FunctionType, what: str) -> None:
        self._more = True
        self.functions.append((function, _parts(function), what))

    def state(self, value: object, read: Callable[[Any], Any], what: str) -> None:
        self._more = True
        self.states.append((value, read, read(value), what))

    def array(self, array: np.ndarray, what: str) -> None:
        self._more = True
        self.arrays.append((array, picture(array), what))

    def argument(self, number: int, array: np.ndarray) -> None:
        self.arguments.setdefault(number, picture(array))

    def watch(self, value: Watched) -> None:
        self.watched.setdefault(id(value), (value, _attributes(value)))

    def setting(self, place: Mapping[str, Any], name: str, value: object, what: str) -> None:
        if (id(place), name) not in self._named:
            self._named.add((id(place), name))
            self.settings.append((place, name, value, what))

    # ------------------------------------------------------------------ whether it is still so
    def changed(self) -> str | None:
        """What is not as it was, in words; None where all is."""
        for t, flag in self.gradients:
            if (t._grad is not None) is not flag:
                return f"whether a Tensor has a gradient (shape {t.shape})"
        return self.changed_by_hand()

    def changed_by_hand(self) -> str | None:
        """The same, but for gradients: what a program itself does not change."""
        for t, array, flag in self.tensors:
            if t._data is not array or t.requires_grad is not flag:
                return f"a Tensor's array or requires_grad (shape {t.shape})"
        if self.entries and (what := _changed_entry(self.entries)):
            return what
        for cell, then, what in self.cells:
            try:
                now = cell.cell_contents
            except ValueError:             # it was deleted
                return what
            if now is not then and not same(now, then):
                return f"{what} (from {_short(then)} to {_short(now)})"
        for container, then, what in self.items:
            now = container if container.__class__ is list else _listed(container)
            if len(now) != len(then) or not (all(map(is_, now, then)) or all(map(same, now, then))):
                return f"what {what} holds"
        if self._changes != changes[0] and (what := self._changed_watched()):
            return what
        return self._changed_more() if self._more else None

    def _changed_more(self) -> str | None:
        for place, length, what in self.lengths:
            if len(place) != length:
                return f"the attributes of {what}"
        for function, parts, what in self.functions:
            if not all(map(is_, _parts(function), parts)):
                return f"the code or the defaults of {what}"
        for value, read, then, what in self.states:
            if read(value) != then:
                return f"the state of {what}"
        for array, then, what in self.arrays:
            if picture(array) != then:
                return f"the values of {what}"
        return None

    def changed_arguments(self, given: Sequence[Any]) -> str | None:
        """The same of the arrays among a call's arguments."""
        for number, then in self.arguments.items():
            if picture(given[number]) != then:
                return f"the values of argument {number}, an array that the step reads beside its ops,"
        return None

    def _changed_watched(self) -> str | None:
        now = changes[0]
        for value, then in self.watched.values():
            attributes = _attributes(value)
            if list(attributes) != list(then):
                return f"the attributes of a {type(value).__name__}"
            for name, attribute in then.items():
                if not same(attributes[name], attribute):
                    return f"{name} of a {type(value).__name__}"
        if what := _changed_entry(self.settings):
            return what
        self._changes = now
        return None


def _changed_entry(entries: list[tuple[Mapping[str, Any], str, Any, str]]) -> str | None:
    for place, name, then, what in entries:
        now = place.get(name, GONE)
        if now is not then and not same(now, then):
            return f"{what} (from {_short(then)} to {_short(now)})"
    return None


def _attributes(value: Watched) -> dict[str, Any]:
    return {name: attribute for name, attribute in vars(value).items() if name not in value.restless}


def _listed(container: Iterable[object]) -> list[Any]:
    """What a container holds, in its order; keys and values of a dict; of a set in an order that is its own."""
    if isinstance(container, Mapping):
        return [*container, *container.values()]
    return list(container)


def _parts(function: FunctionType) -> tuple[Any, ...]:
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _short(value: object) -> str:
    """A value in few letters, without a look into arrays."""
    if isinstance(value, Tensor):
        return f"a Tensor of shape {value.shape}"
    if value is GONE:
        return "nothing"
    text = repr(value) if isinstance(value, PLAIN) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
