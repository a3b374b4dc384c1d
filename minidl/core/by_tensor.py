"""Values that belong to Tensors."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from .tensor import Tensor

T = TypeVar("T")


class ByTensor(Generic[T]):
    """A value for each of some Tensors, for as long as they live: an id alone may be another Tensor's later.

    A Tensor that is no longer referred to is forgotten with its value; one that left its group keeps it, as in PyTorch.
    """

    def __init__(self, pairs: Iterable[tuple[Tensor, T]] = ()):
        self._held: dict[int, tuple[weakref.ref[Tensor], T]] = {}
        for t, value in pairs:
            self[t] = value

    def get(self, t: Tensor) -> T | None:
        entry = self._held.get(id(t))
        return entry[1] if entry is not None and entry[0]() is t else None

    def __setitem__(self, t: Tensor, value: T) -> None:
        key, held = id(t), self._held      # the reference must not hold what holds it

        def forget(ref: weakref.ref[Tensor]) -> None:
            if key in held and held[key][0] is ref:
                del held[key]
        held[key] = weakref.ref(t, forget), value

    def pop(self, t: Tensor) -> None:
        if self.get(t) is not None:
            del self._held[id(t)]

    def pairs(self) -> list[tuple[Tensor, T]]:
        """(Tensor, value) of those that live."""
        return [(t, value) for ref, value in list(self._held.values()) if (t := ref()) is not None]

    def __reduce__(self) -> Any:
        return ByTensor, (self.pairs(),)   # copies are of other Tensors, which are copied too
