"""What every thread's tape knows: whether it records, who notes primitive calls, and when something last changed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name not in self.restless:
            note_change()

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        note_change()


class _Mode(threading.local):
    grad = True                            # is the tape recording in this thread?
    recorder: Any = None                   # what notes the primitive calls of this thread, for minidl.compile

    def dynamic(self, read: Callable[[], Any]) -> Any:
        """A number that every run reads anew: read now, or by each replay of what is being recorded."""
        return read() if self.recorder is None else self.recorder.dynamic(read)


mode = _Mode()


@contextmanager
def no_grad() -> Iterator[None]:
    """Within this context (or decorated function) no operation is recorded on the tape.

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
