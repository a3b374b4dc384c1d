"""What was read, as Python expressions in text: each is evaluated alone, or many of them in one expression.

A text is an expression of objects, in which $0 is the first of them, and of a call: `values` are its arguments,
`names` those of its options, and `given` the Tensors and arrays among the arguments.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Read(NamedTuple):
    """A place that is read: an expression of `objects`."""

    text: str
    objects: tuple[Any, ...] = ()

    def now(self, given: Iterable[Any] = (), names: Iterable[str] = (), values: Iterable[Any] = ()) -> Any:
        """What is there."""
        return _alone(self.text)(self.objects, given, names, values)


@functools.lru_cache(maxsize=4096)
def _alone(text: str) -> Callable[..., Any]:
    """A function that evaluates a text."""
    text = _OBJECT.sub(r"objects[\1]", text)
    function: Callable[..., Any] = eval(f"lambda objects, given, names, values: {text}", {})
    return function


class Look:
    """Many reads in one expression, compiled once: the fastest way to compare some dozens of values in Python."""

    def __init__(self) -> None:
        self._tests: list[str] = []
        self._objects: dict[str, Any] = {}             # by their names in the expression
        self._names: dict[int, str] = {}               # and these by the objects' ids

    def expect(self, read: Read, how: str, then: object) -> None:
        """What is read has to be `then`. how: the operator that compares, "is" or "=="."""
        text = _OBJECT.sub(lambda number: self._name(read.objects[int(number[1])]), read.text)
        self._tests.append(f"({text}) {how} {self._name(then)}")

    def function(self, places: Iterable[int]) -> Callable[..., list[Any] | None]:
        """A function of a call's names and values. It returns what is given, which is at `places` among the values, if
        all is as expected. Otherwise it returns None, also if something no longer exists. A look at each alone says
        which one it is."""
        given = ", ".join(f"values[{i}]" for i in places)
        tests = " and ".join([f"(given := [{given}]) is not None", *self._tests])
        made: dict[str, Callable[..., list[Any] | None]] = {}
        exec("def look(names, values):\n"
             f"    try: return given if {tests} else None\n"
             "    except Exception: return None", {"__name__": __name__, **self._objects}, made)
        return made["look"]

    def _name(self, value: object) -> str:
        if value is None or value is True or value is False:
            return repr(value)
        name = self._names.setdefault(id(value), f"v{len(self._names)}")
        self._objects[name] = value
        return name


_OBJECT = re.compile(r"\$(\d+)")
