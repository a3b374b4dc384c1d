"""What is equal for all calls that one program may serve; Reads find it out, as they do for facts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.device import address, is_array, owner, precision
from ..core.mode import mode
from ..core.tensor import Tensor
from .reads.facts import INEXACT, is_plain
from .reads.looks import Look, Read


class Signature:
    """The signature of a call: the places of Tensors and arrays among the arguments (`places`), expressions of their
    arrays (`arrays`), what is looked at (`read`), and what was there (`key`)."""

    def __init__(self, names: tuple[str, ...], values: Sequence[Any]):
        kinds = tuple(map(_kind, values))
        self.places, self.read = _read(kinds)
        self.arrays = [_array_text(kinds[place], f"given[{i}]") for i, place in enumerate(self.places)]
        self.key = self.read.now(names=names, values=values)

    def tell(self, look: Look) -> None:
        """Make a look check that calls have this signature."""
        look.expect(self.read, "==", self.key)


def root_text(array: str, owner: str) -> str:
    """The expression of the array that owns the memory of an array, which may be a view. owner: the function's name."""
    return f"({array} if {array}.base is None else {owner}({array}))"


def _kind(value: object) -> type | None:
    return Tensor if isinstance(value, Tensor) else np.ndarray if is_array(value) else None


def _array_text(kind: type | None, place: str) -> str:
    """The expression of the array of a Tensor, or of an array."""
    return f"{place}._data" if kind is Tensor else place


@functools.lru_cache(maxsize=256)
def _read(kinds: tuple[type | None, ...]) -> tuple[list[int], Read]:
    """(the places of Tensors and arrays, all that is looked at, as one tuple) for arguments of these kinds."""
    arrays = [i for i, kind in enumerate(kinds) if kind is not None]
    texts = ["$0()", "$1.grad", "names", "len(values)"]
    for i, kind in enumerate(kinds):
        if kind is None:
            texts.append(f"$2(values[{i}])")
        else:
            array = f"(array{i} := {_array_text(kind, f'values[{i}]')})"
            texts.append(f"values[{i}].__class__, {array}.__class__, array{i}.shape, array{i}.dtype")
        if kind is Tensor:
            texts.append(f"values[{i}]._requires_grad, values[{i}].node is None, values[{i}]._grad is None, "
                         f"values[{i}].weights is None")
    if len(arrays) > 1:
        ids = [f"id({root_text(f'array{i}', '$4')})" for i in arrays]
        texts.append(f"len({{{', '.join(ids)}}}) == {len(ids)} or "
                     f"$3([{', '.join(f'array{i}' for i in arrays)}], [{', '.join(ids)}])")
    return arrays, Read(f"({', '.join(texts)})", (precision, mode, _plain, _alike, owner))


def _alike(arrays: list[Any], roots: list[int]) -> tuple[tuple[Any, ...], ...]:
    """Which arrays are the same, which are in one memory, and which at one place there. roots: ids of its owners."""
    places: list[Any] = [(root, address(array), array.strides) if roots.count(root) > 1 else root
                         for array, root in zip(arrays, roots, strict=True)]
    lists: tuple[list[Any], ...] = [*map(id, arrays)], roots, places
    return tuple(tuple(map(items.index, items)) for items in lists)


def _plain(value: Any) -> tuple[Any, ...]:
    """What distinguishes an argument that is neither a Tensor nor an array from others."""
    if type(value) in (int, str, bool):    # the usual ones, at each call
        return type(value), value
    try:
        hash(value)
    except TypeError:
        raise TypeError(f"compile: an argument is a {type(value).__name__}, which cannot be told from another; pass "
                        "Tensors, arrays and plain values, and use other objects from outside the step") from None
    if isinstance(value, INEXACT):
        return type(value), repr(value)
    # In order, which a step may see. A program knows Tensors in it as these ones, from outside.
    if type(value) in (tuple, frozenset):
        return type(value), tuple(_Same(each) if isinstance(each, Tensor) else _plain(each) for each in value)
    return type(value), value if is_plain(value) or isinstance(value, (type, np.dtype)) else _Same(value)


class _Same:
    """An argument that is equal to itself alone: what an object's own == ignores may matter to a step."""

    __slots__ = ("value",)

    def __init__(self, value: object):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
