"""What is computed of data that do not change, once for all nets that are trained on them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

_found: list[dict[Any, tuple[Callable[[], object], Any]]] = []       # of the contexts that this process is within


@contextmanager
def unchanging() -> Iterator[None]:
    """Within this, no data set changes."""
    _found.append({})
    try:
        yield
    finally:
        _found.pop()


def once(of: object, compute: Callable[[], T]) -> T:
    """compute() of a data set; where these do not change, what it gave before for the same one."""
    if not _found:
        return compute()
    key, found = (id(of), compute.__code__), _found[-1]
    if key not in found or found[key][0]() is not of:          # one that is gone had its number
        found[key] = weakref.ref(of), compute()
    value: T = found[key][1]
    return value
