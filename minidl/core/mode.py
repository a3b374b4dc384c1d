"""What every thread's tape knows: whether it records, who is told of its work, and when something last changed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .contexts import context

if TYPE_CHECKING:
    from .tensor import Tensor

clock = itertools.count(1).__next__        # creation order of Nodes, of changes in place, and of attributes
changes = [0]                              # when an attribute of anything Watched was last set


def note_change() -> None:
    """Something Watched is another now. To be called after the change: who sees the old number may see the new value,
    never the reverse."""
    changes[0] = clock()


class Watched:
    """An object whose changes of attributes are noted in `changes`, so that compiled steps see them in one look.

    restless: attributes that change as it is used, on which no compiled step depends.
    """

    restless: frozenset[str] = frozenset()

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name not in self.restless:
            note_change()

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        note_change()


class Listener:
    """What a thread's work is told to. This one does nothing; compiler.record.Recorder, which takes its place while
    a step is recorded, notes or refuses."""

    recording = False

    def through(self, backend: ModuleType) -> Any:
        """The primitives that are to be called in the place of a backend's."""
        return backend

    def dynamic(self, read: Callable[[], Any]) -> Any:
        """A number that every run reads anew: read now, or by each replay."""
        return read()

    def refuse(self, what: str, way_out: str) -> None:
        """Something is done that no replay could repeat."""

    def seen(self, tensors: Iterable[object]) -> None:
        """Tensors are given to an op."""

    def run(self, name: str, body: Callable[..., Any], k: ModuleType, arrays: list[Any],
            options: dict[str, Any]) -> Any:
        """(the result, its backward closure) of an op's body."""
        return body(k, *arrays, **options)

    def outside(self, *arrays: object) -> None:
        """Arrays from before the step are given to a primitive."""

    def whole(self, value: object) -> Any:
        """A value that an op takes as it is, where a recorded step may have been given something in its place."""
        return value

    def constant(self, t: Tensor) -> None:
        """A Tensor is made from data."""

    def made(self, *tensors: Tensor) -> None:
        """Tensors are made around results of primitives."""

    def change(self, t: Tensor) -> None:
        """A Tensor's memory is about to be changed in place."""

    def become(self, t: Tensor) -> None:
        """A Tensor is about to become the result of `t op= ...` on the tape."""

    def look_at_grad(self, leaf: Tensor) -> None:
        """leaf.grad is read."""

    def set_grad(self, leaf: Tensor) -> None:
        """leaf.grad is about to be set."""

    def write_grad(self, leaf: Tensor) -> None:
        """A backward pass is about to add to leaf.grad."""

    def module(self, module: object) -> None:
        """A Module, or a function that somebody else wrote, is about to be called."""

    def watch(self, value: Watched) -> None:
        """What follows depends on the attributes of something."""

    def holds_items(self, what: str, container: Iterable[object]) -> None:
        """What follows depends on what a container holds."""

    def reads_entry(self, place: dict[str, Any], name: str, value: object, noted: bool) -> None:
        """An entry of an optimizer's group is read. noted: its changes are, in `changes`."""


class _Mode(threading.local):
    grad = True                            # is the tape recording in this thread?
    recorder: Listener = Listener()        # what the work of this thread is told to


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
