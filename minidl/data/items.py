"""What all data in memory have: items, in the field that `items` names, and a label for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from ..core.device import as_array, to_numpy, unmasked

Kind = TypeVar("Kind", bound="Items")


def one_place(who: str, index: object) -> int:
    """The index of one item as an int. Raises TypeError for all else: NumPy would turn a mask of one item into 1."""
    if isinstance(index, (bool, np.bool)) or not isinstance(index, (int, np.integer)):
        raise TypeError(f"{who}: index {index!r} is a {type(index).__name__} but must be an int")
    return int(index)


class Items:
    """The part that Dataset and Table, two dataclasses, share."""

    items: ClassVar[str]                               # the field of the items: images, or rows
    numbers: ClassVar[type[np.number]]                 # what its array holds,
    axes: ClassVar[str]                                # and its axes
    name: str
    labels: np.ndarray
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int | np.integer | slice | Sequence[int] | np.ndarray) -> Any:
        """(item, label) for an integer; for a slice, a mask or integers, data of the same kind.

        >>> from minidl import data
        >>> digits = data.load("synthetic-digits", "test")
        >>> image, label = digits[0]
        >>> image.shape, label, len(digits[10:30])
        ((1, 28, 28), 0, 20)
        """
        values = getattr(self, self.items)
        if isinstance(index, (bool, np.bool, int, np.integer)):
            index = one_place(type(self).__name__, index)
            return values[index], int(self.labels[index])
        return replace(self, **{self.items: values[index], "labels": self.labels[index]})   # type: ignore[type-var]

    def __post_init__(self) -> None:
        who, both = f"{type(self).__name__}: {self.name}", (self.items, "labels")
        unmasked(who, tuple(getattr(self, field) for field in both))
        for field in both:                 # of a Series, [i] would be the item that its index calls i
            object.__setattr__(self, field, to_numpy(as_array(getattr(self, field))))
        values, labels = (getattr(self, field) for field in both)
        if not np.issubdtype(values.dtype, self.numbers) or labels.dtype.kind not in "iu":
            needs = "uint8" if self.numbers is np.uint8 else "floating numbers"
            raise TypeError(f"{who} has {self.items} {values.dtype} and labels {labels.dtype} but needs {needs} and "
                            "integers; convert them")
        if values.ndim != self.axes.count(",") + 1 or labels.shape != values.shape[:1]:
            raise ValueError(f"{who} has {self.items} {values.shape} and labels {labels.shape} but needs {self.axes} "
                             "and (n,); reshape them")
        self._require_names(who)

    def _require_names(self, who: str) -> None:
        """Refuse names that contradict the data, as labels and predictions would be given wrong ones. Labels below 0
        are of no class."""
        columns = getattr(self, "columns", ())
        for what, names in (("class", self.classes), ("column", columns)):
            name, count = next(iter(Counter(names).most_common(1)), ("", 0))
            if count > 1:
                raise ValueError(f"{who} has the {what} {name!r} {count} times; give each {what} a name of its own")
        if len(columns) not in (0, self.shape[0]):
            raise ValueError(f"{who} has rows of {self.shape[0]} numbers but {len(columns)} columns "
                             f"({', '.join(map(str, columns[:9]))}); name each column, or none")
        if len(self.classes) and len(self) and (label := int(self.labels.max())) >= len(self.classes):
            raise ValueError(f"{who} has a label {label} but {len(self.classes)} classes "
                             f"({', '.join(map(str, self.classes[:9]))}), whose labels are 0 to "
                             f"{len(self.classes) - 1}; name each class, or correct the labels")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one item."""
        shape: tuple[int, ...] = getattr(self, self.items).shape[1:]
        return shape

    def first(self: Kind, count: int | None) -> Kind:
        """The first `count` items; all of them for None.

        >>> from minidl import data
        >>> len(data.load("synthetic-digits", "test").first(10))
        10
        """
        if count is not None and one_place("first", count) < 0:
            raise ValueError(f"first: count is {count} but must be at least 0")
        part: Kind = self if count is None else self[:count]
        return part
