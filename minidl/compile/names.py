"""What a step can reach by name: the globals, closure cells, attributes and containers that its code mentions.

A replay does not run the step's Python, so whatever its code reads there must be as it was. The code is not run for
this: each function that can be reached from the step has its names looked up, and so on from what they stand for.
Left out are Python's own library, installed packages and minidl, which tells the recorder itself.
"""

from __future__ import annotations

import dis
import functools
import site
import sys
import sysconfig
from collections import deque
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from ..device import is_array
from ..tensor import Tensor, Watched
from .facts import PLAIN, Facts

LIBRARY = str(Path(__file__).resolve().parents[1])
_OTHERS = tuple({LIBRARY, sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"),
                 *site.getsitepackages(), site.getusersitepackages()})
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME"}
_EVERYTHING = {"vars", "__dict__", "getattr"}          # code with one of these may read any attribute


def is_users(file: str | None) -> bool:
    """Whether code of a file is looked into."""
    return file is not None and not file.startswith(_OTHERS) and not file.startswith("<frozen")


@functools.lru_cache(maxsize=4096)
def _mentioned(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """(the globals that code reads, the words that may be attributes), with the functions defined within."""
    names, words = set(), set(code.co_names)
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBALS:
            names.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _mentioned(constant)
            names |= inner[0]
            words |= inner[1]
        elif isinstance(constant, str) and constant.isidentifier():      # getattr(x, "name")
            words.add(constant)
    return frozenset(names), frozenset(words)


class Names:
    """Notes, as Facts, what is reached from the values that it is told to follow."""

    def __init__(self, facts: Facts):
        self.facts = facts
        self.iterator: str | None = None   # a name that stands for an iterator, which no replay could advance
        self._seen: dict[int, Any] = {}    # what was reached, by id; held, so that no id is used again
        self._words: set[str] = set()      # that code mentions
        self._spaces: list[tuple[Any, str, set[str]]] = []     # dicts of attributes, and the words looked up there
        self._owners: set[type] = set()    # classes among them
        self._waiting: list[tuple[Any, str]] = []

    def follow(self, value: Any, what: str) -> None:
        """Note all that can be reached from a value."""
        self._waiting.append((value, what))
        while self._waiting or self._look_up():
            value, what = self._waiting.pop()
            if id(value) not in self._seen and not isinstance(value, (*PLAIN, Tensor, BuiltinFunctionType)):
                self._seen[id(value)] = value
                self._visit(value, what)

    def _look_up(self) -> bool:
        """Look up words that were met since in all dicts of attributes; whether that gave something to follow."""
        for space, what, looked in self._spaces:
            words = set(space) if self._words & _EVERYTHING else self._words
            for word in words - looked:
                looked.add(word)
                if word in space:
                    self.facts.entry(space, word, f"{what}.{word}")
                    self._waiting.append((space[word], f"{what}.{word}"))
        return bool(self._waiting)

    def _visit(self, value: Any, what: str) -> None:
        if isinstance(value, FunctionType):
            self._function(value, what)
        elif isinstance(value, MethodType):
            self._waiting += [(value.__func__, what), (value.__self__, f"{what}.__self__")]
        elif isinstance(value, functools.partial):
            self._waiting += [(value.func, what), (value.args, what), (value.keywords, what)]
        elif isinstance(value, (staticmethod, classmethod)):
            self._waiting.append((value.__func__, what))
        elif isinstance(value, property):
            self._waiting.append((value.fget, what))
        elif isinstance(value, Watched):
            self.facts.module(value)
            self._waiting += [(attribute, f"{what}.{name}") for name, attribute in vars(value).items()]
            self._classes(type(value))
        elif isinstance(value, np.ndarray):
            self.facts.array(value, what)
        elif isinstance(value, (list, tuple, set, frozenset, dict, deque)):
            if not isinstance(value, (tuple, frozenset)):
                self.facts.container(value, what)
            held = value.items() if isinstance(value, dict) else enumerate(value)
            self._waiting += [(item, f"{what}[{key!r}]") for key, item in held]
        elif isinstance(value, type):
            self._classes(value)
        elif isinstance(value, ModuleType):
            if is_users(getattr(value, "__file__", None)):
                self._spaces.append((vars(value), what, set()))
        elif hasattr(value, "__next__"):
            self.iterator = what
        elif not is_array(value) and not type(value).__module__.startswith("minidl."):
            self._object(value, what)

    def _function(self, function: FunctionType, what: str) -> None:
        if not is_users(function.__code__.co_filename):
            return
        names, words = _mentioned(function.__code__)
        self._words |= words
        for name in sorted(names & function.__globals__.keys()):
            self.facts.entry(function.__globals__, name, f"the global {name!r}")
            self._waiting.append((function.__globals__[name], name))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                self.facts.cell(cell, f"{name!r}, from around {function.__name__}")
                self._waiting.append((cell.cell_contents, name))
            except ValueError:             # it has no value yet
                pass
        self._waiting += [(default, f"a default of {function.__name__}") for default in (
            *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())]

    def _classes(self, cls: type) -> None:
        """The attributes of a class and its bases, and the functions that Python calls by itself."""
        for each in cls.__mro__:
            if _is_users_class(each) and each not in self._owners:
                self._owners.add(each)
                self._spaces.append((vars(each), each.__name__, set()))
                self._words |= {name for name, function in vars(each).items()
                                if name == "forward" or (name.startswith("__") and isinstance(function, FunctionType))}

    def _object(self, value: Any, what: str) -> None:
        space: Any = getattr(value, "__dict__", None)
        if space is not None:
            self._spaces.append((space, what, set()))
            self.facts.length(space, what)
        slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ())]
        if slots and _is_users_class(type(value)):
            self._spaces.append((_Slots(value, slots), what, set()))
        self._classes(type(value))


def _is_users_class(cls: type) -> bool:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return is_users(file) if file else cls.__module__ not in sys.builtin_module_names


class _Slots(dict[str, Any]):
    """An object's slots, read as a dict is."""

    def __init__(self, value: Any, names: list[str]):
        super().__init__({name: None for name in names if hasattr(value, name)})
        self.value = value

    def __getitem__(self, name: str) -> Any:
        return getattr(self.value, name)

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self.value, name, default)
