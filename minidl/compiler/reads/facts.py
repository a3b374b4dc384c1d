"""What a step read other than its arguments, and whether it is unchanged: looked at before each replay.

A fact is noted as a step is recorded: how to read a value, and what it was. In the common case all are the same
objects. Each replay checks this by one expression, see looks.py, in which one number represents all attributes of what
is Watched. Otherwise each fact is compared by value: `first_change` says which one has changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from operator import is_
from types import CellType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from ...core.mode import Watched, changes
from ...core.tensor import Tensor
from .looks import Read

PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic)
INEXACT = (float, complex, np.generic)     # of these: types whose equal values may differ
GONE = object()                            # in the place of a value that is not there
MAX_SPELLED = 64                           # up to this many items of a container have a test each: half of a map's time
ENTRY = "$0[$1]"                           # of a dict, by its name


def is_plain(value: object) -> bool:
    """Whether a value is all that it says: one of a user's class may have attributes and methods of its own."""
    return isinstance(value, PLAIN) and type(value).__module__.split(".")[0] in ("builtins", "numpy", "minidl")


def same(a: Any, b: Any) -> bool:
    """Whether two values are one: the same object, or equal plain values of one type. NaN is NaN, and 0 is not -0."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return is_plain(a) and (repr(a) == repr(b) if isinstance(a, INEXACT) else bool(a == b))


def picture(array: np.ndarray) -> tuple[Any, ...]:
    """What an array held, to the bit: 0 is not -0. For objects: which ones."""
    return array.dtype, array.shape, array.strides, array.tobytes()


class Fact(NamedTuple):
    """What a read gave while a step was recorded, and what that is, in words; None if the read itself says it."""

    read: Read
    then: Any
    what: str | None
    told: bool = False                     # whether the values belong to the words

    def changed(self, given: Sequence[Any] = ()) -> str | None:
        """Whether something else is there now, in words."""
        try:
            now = self.read.now(given)
        except (ValueError, LookupError):  # a closure's variable was deleted, or a dict's entry
            now = GONE
        if same(now, self.then):
            return None
        return f"{self.what} (from {_short(self.then)} to {_short(now)})" if self.told else self.what or now


def first_change(facts: Iterable[Fact], given: Sequence[Any] = ()) -> str | None:
    """What has changed, in words; None if nothing has."""
    return next((what for fact in facts if (what := fact.changed(given)) is not None), None)


class Facts:
    """What was read while a step was recorded."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []                # from outside, that ops were given
        self.leaves: list[Tensor] = []                 # whose gradients from before the step were looked at
        self.gradients: list[Fact] = []                # whether there were any
        self.others: list[Fact] = []
        self.arguments: dict[int, Fact] = {}           # values of arrays, by the number of what is given
        self.noted = _Noted()
        self._flags: dict[int, tuple[weakref.ref[Tensor], tuple[Any, ...]]] = {}
        self._known: set[tuple[object, ...]] = set()   # what was noted already
        self._note("$0.changed()", (self.noted,), None, None)

    def _note(self, text: str, objects: tuple[Any, ...], then: object, what: str | None, told: bool = False) -> None:
        self.others.append(Fact(Read(text, objects), then, what, told))

    def _first(self, *key: object) -> bool:
        """Whether something is met for the first time."""
        if key in self._known:
            return False
        self._known.add(key)
        return True

    # ------------------------------------------------------------------ what is noted
    def tensor(self, t: Tensor) -> None:
        """One that an op is given."""
        if self._first("tensor", id(t)):
            self.tensors.append(t)
            what = f"a Tensor's array or requires_grad (shape {t.shape})"
            self._note("$0._data", (t,), t._data, what)
            self._note("$0.requires_grad", (t,), t.requires_grad, what)

    def flags(self, t: Tensor) -> None:
        """One that code may look at: it is not held, since the code may hold it by a weak reference."""
        if id(t) not in self._flags:
            self._flags[id(t)] = weakref.ref(t), (t.requires_grad, type(t._data), t._data.shape, t._data.dtype)

    def finish(self) -> None:
        """Note the flags of Tensors that no op was given."""
        for key, (ref, then) in self._flags.items():
            if ("tensor", key) not in self._known:
                self._note("(t := $0()) is None or (t.requires_grad, type(a := t._data), a.shape, a.dtype) == $1",
                           (ref, then), True, f"the shape, dtype or requires_grad of a Tensor (shape {then[2]})")

    def gradient(self, leaf: Tensor) -> None:
        self.leaves.append(leaf)
        self.gradients.append(Fact(Read("$0._grad is None", (leaf,)), leaf._grad is None,
                                   f"whether a Tensor has a gradient (shape {leaf.shape})"))

    def entry(self, place: Mapping[str, Any], name: str, value: object, what: str) -> None:
        """An entry of globals, of attributes or of an optimizer."""
        if self._first("entry", id(place), name):
            text = "$0.get($1, $2)" if value is GONE else ENTRY
            self._note(text, (place, name, GONE), value, what, told=True)

    def cell(self, cell: CellType, what: str) -> None:
        self._note("$0.cell_contents", (cell,), cell.cell_contents, what, told=True)

    def container(self, value: Iterable[object], what: str) -> None:
        """For lists, tuples, sets and dicts."""
        if self._first("container", id(value)):
            items = "[*$0, *$0.values()]" if isinstance(value, Mapping) else "$0" if type(value) is list else "[*$0]"
            then = [*Read(items, (value,)).now()]      # of a set, in an order that is its own
            alike = ("all(map($2, now, $1))" if not 0 < len(then) <= MAX_SPELLED else
                     " and ".join(f"now[{i}] is ${i + 4}" for i in range(len(then))))
            self._note(f"len(now := {items}) == len($1) and ({alike} or all(map($3, now, $1)))",
                       (value, then, is_, same, *then), True, f"what {what} holds")

    def names(self, place: Mapping[str, Any], what: str) -> None:
        """For a dict of attributes: none was added or removed; for a large one, only their number."""
        text, then = ("$0.keys() == $1", {*place}) if len(place) <= MAX_SPELLED else ("len($0) == $1", len(place))
        self._note(text, (place, then), True, f"the attributes of {what}")

    def function(self, function: FunctionType, what: str) -> None:
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self._note(f"$0.{name}", (function,), getattr(function, name), f"the code or the defaults of {what}")
        if function.__kwdefaults__:        # a dict, which may be changed itself
            self.container(function.__kwdefaults__, f"the defaults of {what}")

    def class_of(self, value: object, what: str) -> None:
        """Of what takes a weak reference, it is not held: see above."""
        try:
            self._note("type($0())", (weakref.ref(value),), type(value), f"the class of {what}")
        except TypeError:
            self._note("type($0)", (value,), type(value), f"the class of {what}")

    def bases(self, cls: type) -> None:
        self._note("$0.__bases__", (cls,), cls.__bases__, f"the bases of the class {cls.__name__}")

    def state(self, value: object, read: Callable[[Any], Any], what: str) -> None:
        """For iterators and random numbers."""
        self._note("not $0($1) != $2", (read, value, read(value)), True, f"the state of {what}")

    def array(self, array: np.ndarray, what: str) -> None:
        """For an array that the host computes with."""
        self._note("$0($1) == $2", (picture, array, picture(array)), True, f"the values of {what}")

    def argument(self, number: int, array: np.ndarray) -> None:
        if number not in self.arguments:
            self.arguments[number] = Fact(Read(f"$0(given[{number}]) == $1", (picture, picture(array))), True,
                                          f"the values of argument {number}, an array that the step reads beside its "
                                          "ops,")

    def watch(self, value: Watched) -> None:
        self.noted.watched.setdefault(id(value), (value, type(value), _attributes(value)))

    def setting(self, place: Mapping[str, Any], name: str, value: object, what: str) -> None:
        """An entry whose changes are in `changes`."""
        if self._first("entry", id(place), name):
            self.noted.settings.append(Fact(Read(ENTRY, (place, name)), value, what, told=True))

    # ------------------------------------------------------------------ whether it is still so
    def all(self) -> list[Fact]:
        return [*self.gradients, *self.others, *self.arguments.values()]


class _Noted:
    """Attributes of what is Watched and numbers of optimizers: they are looked at only if `changes` has moved."""

    def __init__(self) -> None:
        self.watched: dict[int, tuple[Watched, type, dict[str, Any]]] = {}
        self.settings: list[Fact] = []
        self._changes = changes[0]         # when they were last looked at

    def changed(self) -> str | None:
        if self._changes == changes[0]:
            return None
        now = changes[0]
        for value, cls, then in self.watched.values():
            attributes = _attributes(value)
            if type(value) is not cls:
                return f"the class of a {cls.__name__}"
            if list(attributes) != list(then):
                return f"the attributes of a {type(value).__name__}"
            for name, attribute in then.items():
                if not same(attributes[name], attribute):
                    return f"{name} of a {type(value).__name__}"
        if what := first_change(self.settings):
            return what
        self._changes = now
        return None


def _attributes(value: Watched) -> dict[str, Any]:
    return {name: attribute for name, attribute in vars(value).items() if name not in value.restless}


def _short(value: object) -> str:
    """A value in few letters, without a look into arrays."""
    if isinstance(value, Tensor):
        return f"a Tensor of shape {value.shape}"
    if value is GONE:
        return "nothing"
    text = repr(value) if isinstance(value, (*PLAIN, Enum)) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
