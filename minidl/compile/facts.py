"""What a step read beside its arguments, and whether it is still so: looked at before each replay.

A fact is noted as a step is recorded; `Facts.changed` says which one is another now. The common case, that none is, is
what a replay pays for each time: plain loops of identities, and one number for all attributes of all Modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from operator import is_
from typing import Any

import numpy as np

from ..tensor import Tensor, changes

PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, Enum)
_GONE = object()                           # in the place of a value that is not there any more


def same(a: Any, b: Any) -> bool:
    """Whether two values are one: the same object, or equal plain values of one type (NaN is equal to NaN)."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return isinstance(a, PLAIN) and bool(a == b or (a != a and b != b))


class Facts:
    """What was read while a step was recorded: each list holds places, what was there, and a name for a message."""

    def __init__(self) -> None:
        self.tensors: dict[int, tuple[Tensor, Any, bool]] = {}           # from outside: array, requires_grad
        self.gradients: list[tuple[Tensor, bool]] = []                   # whether a leaf had one before the step
        self.entries: list[tuple[Mapping[str, Any], str, Any, str]] = []     # of globals, attributes, an optimizer
        self.cells: list[tuple[Any, Any, str]] = []
        self.items: list[tuple[Any, Any, str]] = []                      # of lists, tuples, sets and dicts
        self.lengths: list[tuple[Mapping[str, Any], int, str]] = []      # of dicts: nothing was added
        self.arrays: list[tuple[np.ndarray, np.ndarray, str]] = []       # that the host computes with
        self.modules: dict[int, tuple[Any, dict[str, Any]]] = {}         # and all their attributes
        self._changes = changes[0]         # of any Module, when these were last looked at

    # ------------------------------------------------------------------ what is noted
    def tensor(self, t: Tensor) -> None:
        self.tensors.setdefault(id(t), (t, t._data, t.requires_grad))

    def gradient(self, leaf: Tensor) -> None:
        self.gradients.append((leaf, leaf._grad is not None))

    def entry(self, place: Mapping[str, Any], name: str, what: str) -> None:
        self.entries.append((place, name, place[name], what))

    def cell(self, cell: Any, what: str) -> None:
        self.cells.append((cell, cell.cell_contents, what))

    def container(self, value: Any, what: str) -> None:
        self.items.append((value, _listed(value), what))

    def length(self, place: Mapping[str, Any], what: str) -> None:
        self.lengths.append((place, len(place), what))

    def array(self, array: np.ndarray, what: str) -> None:
        self.arrays.append((array, array.copy(), what))

    def module(self, module: Any) -> None:
        if id(module) not in self.modules:
            self.modules[id(module)] = module, dict(vars(module))

    # ------------------------------------------------------------------ whether it is still so
    def changed(self) -> str | None:
        """What is not as it was, in words; None where all is."""
        for t, array, flag in self.tensors.values():
            if t._data is not array or t.requires_grad is not flag:
                return f"a Tensor's array or requires_grad (shape {t.shape})"
        for t, flag in self.gradients:
            if (t._grad is not None) is not flag:
                return f"whether a Tensor has a gradient (shape {t.shape})"
        for place, name, then, what in self.entries:
            now = place.get(name, _GONE)
            if now is not then and not same(now, then):
                return f"{what} (from {_short(then)} to {'nothing' if now is _GONE else _short(now)})"
        for cell, then, what in self.cells:
            try:
                now = cell.cell_contents
            except ValueError:             # it was deleted
                return what
            if now is not then and not same(now, then):
                return f"{what} (from {_short(then)} to {_short(now)})"
        for container, then, what in self.items:
            now = _listed(container)
            if len(now) != len(then) or not (all(map(is_, now, then)) or all(map(same, now, then))):
                return f"what {what} holds"
        for place, length, what in self.lengths:
            if len(place) != length:
                return f"the attributes of {what}"
        for array, then, what in self.arrays:
            if array.shape != then.shape or not np.array_equal(array, then, equal_nan=array.dtype.kind in "fc"):
                return f"the values of {what}"
        return self._changed_module()

    def _changed_module(self) -> str | None:
        now = changes[0]
        if now == self._changes:
            return None
        for module, then in self.modules.values():
            attributes = vars(module)
            if len(attributes) != len(then):
                return f"the attributes of a {type(module).__name__}"
            for name, value in then.items():
                if not same(attributes.get(name, _GONE), value):
                    return f"{name} of a {type(module).__name__}"
        self._changes = now
        return None


def _listed(container: Any) -> list[Any]:
    """What a container holds, in its order; keys and values of a dict; of a set in an order that is its own."""
    if isinstance(container, dict):
        return [*container, *container.values()]
    return list(container)


def _short(value: Any) -> str:
    """A value in few letters, without a look into arrays."""
    if isinstance(value, Tensor):
        return f"a Tensor of shape {value.shape}"
    text = repr(value) if isinstance(value, PLAIN) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
