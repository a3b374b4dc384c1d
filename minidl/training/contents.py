"""What a loader's data holds, as digests: a run that goes on must find the data that it began with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.device import to_numpy
from ..data.items import Items
from ..data.loader import DataLoader
from ..data.once import once
from ..data.sources import arrays_of, leaves
from ..nn.weights.common import shown

MAX_BYTES = 2**28                          # of an array, read in a third of a second; of a larger one, every k-th item
MAX_TEXT = 60                              # characters of names that a message can show


def contents_of(loader: object) -> dict[str, str]:
    """By name, what must be the same: labels, class names and items, in their order, or the arrays. Empty for objects
    whose items are made only when they are needed, and for a user's own loaders.

    >>> from minidl import data
    >>> sorted(contents_of(data.DataLoader(data.load("synthetic-digits", "test"), 100)))
    ['class names', 'images', 'labels']
    """
    source: Any = loader.dataset if isinstance(loader, DataLoader) else None
    if isinstance(source, Items):
        return once(source, lambda: _of_items(source))
    arrays = None if source is None else arrays_of(source, "fit")
    parts = [] if arrays is None else leaves(arrays)
    return {f"values of array {i} of {len(parts)}": _digest(to_numpy(part)) for i, part in enumerate(parts, 1)}


def _of_items(source: Items) -> dict[str, str]:
    names = {f"{what} names": _names(getattr(source, field)) for what, field in (("class", "classes"),
                                                                                ("column", "columns"))
             if hasattr(source, field)}
    return {**names, "labels": _digest(source.labels.astype(np.int64)),
            source.items: _digest(getattr(source, source.items))}


def differences(there: object, here: dict[str, str]) -> list[str]:
    """What is not the same, in words. What only one of the two knows is not compared."""
    known = there if isinstance(there, dict) else {}
    return [f"{name} are {shown(here[name])} here but {shown(known[name])} there" for name in here
            if name in known and known[name] != here[name]]


def _names(names: Sequence[str]) -> str:
    """The names as they are if their text is short, else a digest."""
    text = ", ".join(map(str, names))
    return text if len(text) < MAX_TEXT else hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _digest(array: np.ndarray) -> str:
    """A digest of dtype, shape and values, in their order."""
    found = hashlib.blake2b(f"{array.dtype.str} {array.shape}".encode(), digest_size=8)
    step = -(-array.nbytes // MAX_BYTES) or 1
    found.update(np.ascontiguousarray(array[::step]).reshape(-1).view(np.uint8).data)
    return found.hexdigest()
