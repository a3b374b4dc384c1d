"""What is computed from data that do not change, once for all nets that are trained on them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class _Found:
    """What the process knows within `unchanging`."""

    def __init__(self) -> None:
        self.of_objects: dict[Any, tuple[Callable[[], object], Any]] = {}
        self.last: tuple[object, Any] | None = None


_found: list[_Found] = []                  # one for each context that the process is within: the same


@contextmanager
def unchanging() -> Iterator[None]:
    """Within this, no data set changes, nor a file that holds one, nor the user's git commit."""
    _found.append(_found[-1] if _found else _Found())
    try:
        yield
    finally:
        found = _found.pop()
        if not _found:                     # what watches an object refers to this: nothing else would end it at once
            found.of_objects.clear()


def once(of: object, compute: Callable[[], T]) -> T:
    """compute() of a data set, or of another object; if data do not change, what the same function gave before for the
    same one."""
    if not _found:
        return compute()
    key, found = (id(of), compute.__code__), _found[-1].of_objects
    known = found.get(key)
    if known is None or known[0]() is not of:          # one that is gone had its number
        known = found[key] = weakref.ref(of, lambda _: found.pop(key, None)), compute()
    value: T = known[1]
    return value


def last(key: object, compute: Callable[[], T]) -> T:
    """compute(); if data do not change, what was given last, if it was for the same key."""
    known = _found[-1].last if _found else None
    if known is None or known[0] != key:
        known = key, compute()
        if _found:
            _found[-1].last = known
    value: T = known[1]
    return value
