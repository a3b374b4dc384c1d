"""What a DataLoader takes in addition to images: arrays, and items that are stacked; and parts of all these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Number
from operator import getitem, itemgetter
from typing import Any, Protocol

import numpy as np

from ..core import rng
from ..core.device import Array, as_array, is_array, to_numpy, unmasked
from ..core.tensor import Tensor
from .items import one_place
from .sets.datasets import Dataset
from .sets.table import Table


def mapped(function: Callable[[Any], Any], parts: object) -> Any:
    """function(part) of one part, or of each part in tuples and dicts.

    >>> mapped(len, {"x": "abc", "y": ("", "ab")})
    {'x': 3, 'y': (0, 2)}
    """
    if isinstance(parts, dict):
        return {name: mapped(function, part) for name, part in parts.items()}
    return tuple(mapped(function, part) for part in parts) if isinstance(parts, tuple) else function(parts)


def leaves(parts: object) -> list[Any]:
    """The same parts in one list.

    >>> leaves({"x": "abc", "y": ("", "ab")})
    ['abc', '', 'ab']
    """
    found: list[Any] = []
    mapped(found.append, parts)
    return found


def arrays_of(source: object, who: str) -> Any:
    """Data that is an array, or a tuple or dict with one, as arrays; None for data of another kind. An array is
    anything with `__array__`: a Tensor, a table of pandas, a tensor of PyTorch too.

    Raises ValueError, in the name of `who`, for arrays that do not count the same items by their first axis, and
    TypeError for values that are no numbers, and for lists and numbers where arrays may be meant.
    """
    if isinstance(source, Mapping) and all(isinstance(name, str) for name in source):
        source = dict(source)              # of a UserDict, of an .npz file
    if not any(isinstance(part, Tensor) or (hasattr(part, "__array__") and not isinstance(part, np.generic))
               for part in leaves(source)):
        _require_items(source, who)
        return None
    arrays = mapped(lambda part: _numbers(part, who), source)
    shapes = [array.shape for array in leaves(arrays)]
    if len({shape[:1] for shape in shapes}) > 1 or () in shapes:
        raise ValueError(f"{who}: the arrays have shapes {', '.join(map(str, shapes))} but their first axes must count "
                         "the same items; reshape or cut them")
    return arrays


def _require_items(source: object, who: str) -> None:
    """Refuse a dict without arrays, which has no items, and a tuple in which each part may be an item as well as the
    values of all items: ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) would be two items."""
    if isinstance(source, dict):
        raise TypeError(f"{who}: a dict of {', '.join(map(repr, [*source][:9]))} holds no array; make each value one, "
                        "np.array(value)")
    if isinstance(source, tuple) and source and all(map(_is_row_or_column, source)):
        raise TypeError(f"{who}: a tuple of {len(source)} lists or tuples of numbers may be {len(source)} items, or "
                        f"{len(source)} arrays; make each an array, np.array(part), or pass the items in a list")


def _is_row_or_column(part: object) -> bool:
    return isinstance(part, (list, range)) or (
        isinstance(part, tuple) and all(isinstance(each, Number) for each in part))


def item_of(arrays: object, index: int) -> Any:
    """arrays[index]; for a tuple or dict of arrays, this of each."""
    return mapped(itemgetter(index), arrays)


def collated(items: Sequence[Any], who: str) -> Any:
    """Items as a batch: numbers and arrays are stacked, and so is each part of tuples and dicts.

    >>> collated([(np.zeros(2), 1), (np.ones(2), 3)], "mine")
    (array([[0., 0.],
           [1., 1.]]), array([1, 3]))
    """
    first = items[0]
    if not isinstance(first, (dict, tuple)):
        items = [to_numpy(_numbers(each, who)) for each in items]
    forms = list(dict.fromkeys(map(_form, items)))
    if len(forms) > 1:
        raise ValueError(f"{who}: items have {forms[0]} and {forms[1]} but a batch stacks equal ones; make them equal, "
                         "in a transform for instance")
    if isinstance(first, dict):
        return {name: collated([each[name] for each in items], who) for name in first}
    if isinstance(first, tuple):
        return tuple(collated(parts, who) for parts in zip(*items, strict=True))
    return np.stack(items)


def _form(item: np.ndarray | tuple[object, ...] | dict[object, object]) -> str:
    """What items of a batch have in common, in words."""
    if isinstance(item, dict):
        return f"keys {', '.join(sorted(map(str, item)))}"
    return f"{len(item)} parts" if isinstance(item, tuple) else f"shape {np.shape(item)}"


def _numbers(value: object, who: str) -> Array:
    unmasked(who, value)
    try:
        array: Array = value._data if isinstance(value, Tensor) else value if is_array(value) else as_array(value)
    except ValueError:
        raise ValueError(f"{who}: a {type(value).__name__} of the data holds things of several shapes but must be one "
                         "array of numbers; give the parts of an item as a tuple, (image, label)") from None
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{who}: a {type(value).__name__} of the data has dtype {array.dtype} but must hold numbers; "
                        "convert it, in a transform for instance")
    return array


# ---------------------------------------------------------------- parts of data
class Indexed(Protocol):
    """What has items, and gives one by its number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Subset:
    """Some items of an object with len() and [i], or of a tuple or dict of arrays, in this order. Those of
    pandas are taken by place, not by what their index calls them, and those of a DataFrame are its rows.

    indices: integers in one axis, which are copied; those below 0 count from the end. Raises TypeError for others, such
    as a mask, and for a tuple or dict of lists, which may be meant as arrays; ValueError for an index out of range, and
    for arrays that do not count the same items.

    >>> letters = Subset("abcdef", [5, 0, 0])
    >>> len(letters), letters[0]
    (3, 'f')
    """

    def __init__(self, source: Indexed, indices: Sequence[int] | np.ndarray):
        arrays = arrays_of(source, "Subset") if isinstance(source, (tuple, Mapping)) else None
        self._get: Callable[[Any, int], Any] = getitem if arrays is None else item_of
        self.source = source if arrays is None else arrays
        places = to_numpy(_numbers(indices, "Subset"))
        count = len(self.source if arrays is None else leaves(arrays)[0])
        if places.ndim != 1 or (len(places) and places.dtype.kind not in "iu"):
            raise TypeError(f"Subset: indices have dtype {places.dtype} and shape {places.shape} but must be integers "
                            "in one axis; of a mask, pass np.flatnonzero(mask)")
        outside = places[(places < -count) | (places >= count)]
        if len(outside):                   # an IndexError from the item would silently end a `for` over the Subset
            raise ValueError(f"Subset: index {outside[0]} is out of range for {count} items; use {-count} to "
                             f"{count - 1}")
        self.indices = places.astype(np.int64)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        by_place = getattr(self.source, "iloc", self.source)           # [i] of pandas is what its index calls i
        return self._get(by_place, int(self.indices[one_place("Subset", index)]))


def as_set(data: object) -> object:
    """A Subset of a data set as a data set, which has classes, and pixels that are scaled; other data as they are."""
    if not isinstance(data, Subset) or not isinstance(whole := as_set(data.source), (Dataset, Table)):
        return data
    return whole[data.indices]


def checked_order(order: object, count: int, who: str) -> np.ndarray:
    """The order that a loader gives, checked: as many places as there are items, each from 0; a place may come more
    than once. Raises TypeError for what is not integers, ValueError for another count and for places out of range."""
    places = to_numpy(_numbers(order, who))
    if places.ndim != 1 or places.dtype.kind not in "iu":
        raise TypeError(f"{who}: order gives dtype {places.dtype} and shape {places.shape} but must give integers in "
                        "one axis; of a mask, np.flatnonzero(mask)")
    if len(places) != count:
        raise ValueError(f"{who}: order gives {len(places)} places but the data has {count} items; give as many, or a "
                         "loader of a data.Subset")
    outside = places[(places < 0) | (places >= count)]
    if len(outside):
        raise ValueError(f"{who}: order gives place {outside[0]} but the data has {count} items; give 0 to {count - 1}")
    return places.astype(np.int64, copy=False)


def random_split(source: Any, sizes: Sequence[float], *, seed: int = 0) -> list[Any]:
    """Data in random parts, each item in one of them. sizes: numbers of items, or shares that add up to 1.

    source: what a DataLoader takes. A part of a `data.Dataset` or `data.Table` has the same type, a part of arrays is
    copied arrays, and a part of other objects is a `Subset`. The same seed gives the same parts. Raises ValueError for
    sizes that do not add up.

    >>> from minidl import data
    >>> train, test = random_split(data.load("synthetic-digits", "test"), [0.9, 0.1])
    >>> len(train), len(test)
    (1800, 200)
    """
    seed = rng.checked_seed("random_split", seed)
    count, taken = counted(source, "random_split")
    shares = any(isinstance(size, (float, np.floating)) for size in sizes)
    ends = np.cumsum(sizes)
    if not len(sizes) or min(sizes) < 0 or not (abs(ends[-1] - 1) <= 1e-6 if shares else ends[-1] == count):
        raise ValueError(f"random_split: sizes are {list(sizes)} but must add up to {'1' if shares else count}; give "
                         "shares, or numbers of items")
    order = rng.generator((seed, SPLIT)).permutation(count)
    return [taken(part) for part in np.split(order, np.rint(ends[:-1] * count if shares else ends[:-1]).astype(int))]


def counted(source: Indexed, who: str) -> tuple[int, Callable[[np.ndarray], Any]]:
    """How many items data has, and a function that gives those at some places, as data of the same kind."""
    if isinstance(source, (Dataset, Table)):
        return len(source), source.__getitem__
    arrays = arrays_of(source, who)
    if arrays is None:
        return len(source), partial(Subset, source)
    return len(leaves(arrays)[0]), lambda places: mapped(itemgetter(places), arrays)


SPLIT = 1 << 62                            # separate from the counters of `rng.next_key`, and from a loader's
