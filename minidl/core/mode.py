"""What every thread's tape knows: whether it records, who is told of its work, and when something last changed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from .contexts import context

if TYPE_CHECKING:
    from .tensor import Tensor

T = TypeVar("T")

clock = itertools.count(1).__next__        # creation order of Nodes, of changes in place, and of attributes
changes = [0]                              # when an attribute of anything Watched was last set


def note_change() -> None:
    """Something Watched has changed. Call it after the change: a reader of the old number may see the new value, never
    the reverse."""
    changes[0] = clock()


class Watched:
    """An object whose changes of attributes are noted in `changes`, so that compiled steps see them in one look. To set
    one to the object that it is changes nothing, as `train()` before each step does.

    restless: attributes that change as it is used, on which no compiled step depends.
    """

    restless: frozenset[str] = frozenset()

    def __setattr__(self, name: str, value: object) -> None:
        held = vars(self)
        kept = name in held and held[name] is value and not hasattr(type(self), name)      # a property may do more
        object.__setattr__(self, name, value)
        if not kept and name not in self.restless:
            note_change()

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        note_change()


class Listener:
    """It is told of a thread's work. This one does nothing. compiler.record.Recorder takes its place while a step is
    recorded: it notes the work, or refuses it."""

    recording = False

    def through(self, backend: ModuleType) -> Any:
        """The primitives that are to be called in the place of a backend's."""
        return backend

    def run(self, name: str, body: Callable[..., Any], k: ModuleType, arrays: list[Any],
            options: dict[str, Any]) -> Any:
        """(the result, its backward closure) of an op's body."""
        return body(k, *arrays, **options)

    def dynamic(self, read: Callable[[], Any]) -> Any:
        """A number that every run reads anew: read now, or by each replay."""
        return read()

    def refuse(self, what: str, way_out: str = "do it outside the step") -> None:
        """Something is done that no replay could repeat."""

    def reads(self, *things: object, what: str = "", entry: str = "") -> None:
        """What follows depends on things: on all that can be reached from a Module or a function, which is about to be
        called; on what a list holds; on the attributes of anything else. entry: on this entry of an optimizer's group
        alone. what: a list or an entry in words."""

    def given(self, *things: object) -> None:
        """Tensors, and arrays from before the step, are given to an op or a primitive."""

    def alias(self, array: T) -> T:
        """Another array in the memory of one that is known."""
        view: T = array.view()             # type: ignore[attr-defined]  # of NumPy or CuPy
        return view

    def constant(self, array: T) -> T:
        """An array that depends on shapes and plain numbers alone, as a Tensor is to hold it."""
        return array

    def made(self, t: Tensor, of_data: bool = False) -> None:
        """A Tensor is made around what a primitive gave, or from data."""

    def change(self, t: Tensor, on_tape: bool = False) -> None:
        """A Tensor is about to be changed in place: its memory or, on the tape, its array and Node."""

    def flag(self, t: Tensor) -> None:
        """Whether a Tensor requires a gradient is about to be set."""

    def gradient(self, leaf: Tensor, how: str) -> None:
        """leaf.grad is about to be looked at ("look"), set ("set"), or added to by a backward pass ("add")."""


class StandIn:
    """What a recorded step sees in the place of an array among its arguments, see compiler/reads/arguments.py."""

    __slots__ = ("_array",)
    _array: object


def unwrapped(value: object) -> Any:
    """The array of a StandIn that an op is given; anything else as it is."""
    return value._array if issubclass(type(value), StandIn) else value  # type: ignore[attr-defined]  # just seen


class _Mode(threading.local):
    grad = True                            # is the tape recording in this thread?
    recorder: Listener = Listener()        # it is told of the work of this thread


mode = _Mode()


@context
def no_grad() -> Iterator[None]:
    """Within this context (or decorated function or generator) no operation is recorded on the tape.

    >>> from minidl import Tensor
    >>> x = Tensor([1.0], requires_grad=True)
    >>> with no_grad():
    ...     (x * 2).requires_grad
    False
    """
    before, mode.grad = mode.grad, False
    try:
        yield
    finally:
        mode.grad = before


@context
def recorded() -> Iterator[None]:
    """Within this context operations are recorded on the tape, within `no_grad` too."""
    before, mode.grad = mode.grad, True
    try:
        yield
    finally:
        mode.grad = before
