"""Arrays among a step's arguments: an op may take one whole, and what Python reads of one is looked at again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.device import Array
from ...core.mode import StandIn

HOW = ("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "device")     # known of it without a look at its values
OWN = ("__array_function__", "__array_ufunc__", "__class__", "__dir__", "__getattribute__", "__hash__", "__init__",
       "__init_subclass__", "__len__", "__new__", "__setattr__", "__subclasshook__", "__class_getitem__")


class Argument(StandIn):
    """An array as a recorded step sees it. Its `__class__` is the array's own class.

    Tensor(argument) and x[argument] take the array itself, which each replay is given anew. Any other use of it
    reads its values: `read` gives the array then, and knows of it.
    """

    __slots__ = ("_read",)
    _array: Array

    def __init__(self, array: Array, read: Callable[[], Any]):
        object.__setattr__(self, "_array", array)
        object.__setattr__(self, "_read", read)

    @property  # type: ignore[misc]  # what isinstance looks at
    def __class__(self) -> Any:
        return type(self._array)

    def __len__(self) -> int:
        return len(self._array)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array if name in HOW else self._read(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._read(), name, value)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> Any:
        return getattr(ufunc, method)(*map(looked_at, inputs), **looked_at(options))

    def __array_function__(self, function: Callable[..., Any], types: object, arguments: object, options: object
                           ) -> Any:
        return function(*looked_at(arguments), **looked_at(options))

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self._read())


def _reads(name: str) -> Callable[..., Any]:
    def method(argument: Argument, *others: object, **options: object) -> Any:
        return getattr(argument._read(), name)(*map(looked_at, others), **options)
    return method


# What Python and NumPy look up in the class.
for _name in dir(np.ndarray):
    if _name.startswith("__") and _name not in OWN and callable(getattr(np.ndarray, _name)):
        setattr(Argument, _name, _reads(_name))
Argument.__hash__ = None                   # type: ignore[method-assign, assignment]  # as of an array


def looked_at(value: object) -> Any:
    """A value with the arrays in the place of Arguments, whose values are read."""
    if type(value) is Argument:
        return value._read()
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(looked_at, value))
    return {key: looked_at(each) for key, each in value.items()} if isinstance(value, dict) else value
