"""What a step can reach by name: the globals, closure cells, attributes and containers that its code mentions.

A replay does not run the step's Python, so whatever its code reads there must be as it was. The code is not run for
this: each function that can be reached from the step has its names looked up, and so on from what they refer to. The
code of Python's own library, of installed packages and of minidl, which tells the recorder itself, is not looked into.
"""

from __future__ import annotations

import array
import builtins
import contextlib
import contextvars
import dis
import functools
import gc
import inspect
import itertools
import operator
import os
import random
import re
import site
import sys
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy as np

from ...core.mode import Watched
from ...core.tensor import Tensor
from .facts import GONE, Facts, is_plain

LIBRARY = str(Path(__file__).resolve().parents[2]) + os.sep
_PACKAGES = tuple(folder + os.sep for folder in (*site.getsitepackages(), site.getusersitepackages()))
_OTHERS = (str(Path(functools.__file__).parent) + os.sep, *_PACKAGES)
MAX_BYTES = 1 << 20                        # of an array of the host: each replay looks at all of it
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME"}
# No methods that Python calls by itself: __init__ counts where a class is met, not an object of it.
_NO_METHODS = {"__init__", "__dict__", "__weakref__"}
_IMPORTS = {"import_module", "__import__"}             # code with one of these may import what it has a word for
_UNSEEN = {"builtins.memoryview", "_thread._local", "torch.Tensor", "multiprocessing.sharedctypes.SynchronizedBase",
           *(f"_ctypes.{name}" for name in ("_SimpleCData", "_Pointer", "Array", "Structure", "Union"))}
_CLOCKS = {"time", "datetime"}             # modules; they may tell the same in two recordings, and another hour later
_TELLS_TIME = {"now", "today", "utcnow", "localtime", "gmtime", "ctime", "asctime", "strftime"}
_ANY_ATTRIBUTE = {"vars", "__dict__", "getattr"}       # code with one of these may read any attribute,
_ANY_GLOBAL = {"globals", "modules", "__globals__"}    # and with one of these any global that it has a word for
_FORMATS = {"format", "format_map"}
# What holds the functions that it calls, as C sees it.
_HOLDERS = (functools.partial, property, staticmethod, classmethod, MethodType, MethodWrapperType, BuiltinFunctionType,
            type(functools.cmp_to_key(max)))
_RUNS_TEXT = {"eval", "exec"}              # Python's functions, with which it may read what a text names


def _in_context(variable: contextvars.ContextVar[Any]) -> Any:
    with contextlib.suppress(LookupError):
        return variable.get()


@functools.cache
def _states() -> dict[type, Callable[[Any], Any]]:
    """How to read the state of what changes as it is used. Made at the first recording: numpy.random takes long to
    import."""
    return {
        random.SystemRandom: lambda r: object(),       # never the same
        itertools.count: repr, random.Random: lambda r: r.getstate(), contextvars.ContextVar: _in_context,
        np.random.Generator: lambda g: repr(g.bit_generator.state),
        np.random.RandomState: lambda r: repr(r.get_state(legacy=False)["state"]),
        **dict.fromkeys(map(type, (iter([]), iter(()), iter({}), iter(range(0)), iter(""), iter(set()), reversed([]))),
                        operator.length_hint)}


@functools.cache
def _sources() -> dict[str, set[str]]:
    """What else in Python's and NumPy's modules is not the same at each look."""
    return {"os": {"environ"}, "numpy": {"random"}, "random": set(vars(random)), "numpy.random": set(vars(np.random))}


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether a file is neither minidl's nor Python's nor an installed package's."""
    return not file.startswith((LIBRARY, *_OTHERS, "<frozen")) or file.startswith(tuple(_CLAIMED))


_CLAIMED: set[str] = set()                 # folders of installed packages that hold a step or a Module: the user's


def claim(step: Callable[..., object]) -> None:
    """Treat the package that a step is written in as the user's own."""
    code = getattr(inspect.unwrap(getattr(step, "func", step)), "__code__", None)
    _claim(code and code.co_filename)


def _claim(file: str | None) -> None:
    """Treat the installed package that a file belongs to as the user's own."""
    for folder in _PACKAGES:
        if file is not None and file.startswith(folder):
            top, *inner = Path(file).relative_to(folder).parts
            if top not in ("numpy", "minidl"):
                _CLAIMED.add(folder + top + os.sep if inner else file)
                is_users.cache_clear()
                _may_change.cache_clear()


@functools.lru_cache(maxsize=4096)
def _mentioned(code: CodeType) -> tuple[frozenset[str], ...]:
    """(the globals that code reads, the words that may be attributes, the modules that it may import, its texts), with
    the functions defined within."""
    names, words, imports = set(), set(code.co_names), set()
    texts: set[str] = set()
    loaded: object = None                  # by the instruction before
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBALS:
            names.add(instruction.argval)
        if instruction.opname == "IMPORT_NAME":
            imports.add(instruction.argval)
        if instruction.opname == "MATCH_CLASS" and isinstance(loaded, tuple):      # case Point(x=0)
            words.update(loaded)
        loaded = instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _mentioned(constant)
            names |= inner[0]
            words |= inner[1]
            imports |= inner[2]
            texts |= inner[3]
        elif isinstance(constant, str):
            texts.add(constant)
            if all(map(str.isidentifier, parts := constant.split("."))):           # getattr(x, "name")
                words.update(parts)
            if not _FORMATS.isdisjoint(code.co_names):             # "{x.name}".format(x=x)
                words.update(re.findall(r"\.(\w+)", constant))
            imports |= {constant} if _IMPORTS.intersection(code.co_names) else set()
    return frozenset(names), frozenset(words), frozenset(imports), frozenset(texts)


class Names:
    """Notes, as Facts, what is reached from the values that it is told to follow."""

    def __init__(self, facts: Facts, is_own: Callable[[Tensor], bool]):
        self.facts = facts
        self._is_own = is_own              # whether the step has made a Tensor, which may not be held then
        self.refused = ""                  # what cannot be seen to change, and the way out
        self._seen: dict[int, Any] = {}    # what was reached, by id; held, so that no id is used again
        self._words: set[str] = set()      # that code mentions
        self._texts: set[str] = set()      # that were met, and not yet looked at for names
        self._named: set[str] = set()      # in texts, if some are run
        self._runs_text = False
        # Dicts of attributes and of globals: with a name, the words looked up there so far, whether it is the user's
        # (then what is found is followed, and code with getattr may read any attribute), and which words are looked up.
        self._spaces: list[tuple[Any, str, set[str], bool, set[str]]] = []
        self._owners: set[type] = set()    # classes among them
        self._clock = ""                   # a way to the time of day that was met
        self._waiting: list[tuple[Any, str]] = []

    def follow(self, value: object, what: str) -> None:
        """Note all that can be reached from a value."""
        self._waiting.append((value, what))
        while self._waiting or self._look_up():
            value, what = self._waiting.pop()
            if isinstance(value, str):
                self._texts.add(value)
            if isinstance(value, Tensor) and not self._is_own(value):
                self.facts.flags(value)
            if id(value) not in self._seen and not is_plain(value) and type(value) is not Tensor:
                self._seen[id(value)] = value
                self._visit(value, what)
        if self._clock and (words := self._words & _TELLS_TIME) and not self.refused:
            self.refused = (f"the clock ({min(words)!r}, of {self._clock!r}), which a replay would not look at; pass "
                            "what it is read for as an argument")
        if "__subclasses__" in self._words and not self.refused:
            self.refused = ("which classes there are, by '__subclasses__', which a replay would not look at; pass what "
                            "it is read for as an argument")

    def mentions(self, word: str) -> bool:
        """Whether code that was met has this word."""
        return word in self._words

    def reached(self, value: object) -> bool:
        """Whether this very object is one that was met."""
        return id(value) in self._seen

    def _look_up(self) -> bool:
        """Look up words that were met since in all dicts of attributes, and what texts name in those of globals;
        whether that gave something to follow."""
        while self._runs_text and self._texts:
            self._name(re.findall(r"[^\W\d]\w*", self._texts.pop()))
        for space, what, looked, users, asked in self._spaces:
            anything = asked is self._words and users and not self._words.isdisjoint(_ANY_ATTRIBUTE)
            for word in (set(space) if anything else asked) - looked:
                looked.add(word)
                if word in space:
                    value = space.get(word, GONE)
                    self.facts.entry(space, word, value, f"{what}.{word}")
                    if users and value is not GONE:
                        self._waiting.append((value, f"{what}.{word}"))
        return bool(self._waiting)

    def _name(self, words: Collection[str]) -> None:
        """A text that may be run names globals and attributes."""
        self._runs_text = True
        self._named.update(words)
        self._words.update(words)

    def _visit(self, value: object, what: str) -> None:
        self._runs_text |= value is eval or value is exec or value is builtins
        if _of_module(value) in _CLOCKS:
            self._clock = what
        states = _states()
        state = next((states[kind] for kind in type(value).__mro__ if kind in states), None)
        if isinstance(value, FunctionType):
            self._function(value, what)
        elif isinstance(value, CodeType):
            read, words, _, texts = _mentioned(value)
            self._name(read | words)
            self._texts |= texts
        elif isinstance(value, type):
            self._words.add("__init__")
            self._classes(value)
            self._classes(type(value))
        elif isinstance(value, ModuleType):
            self._space(vars(value), value.__name__, value.__name__)
            self._waiting += [(getattr(value, name), f"{what}.{name}")
                              for name in self._words & _sources().get(value.__name__, set())]
            if is_users(getattr(value, "__file__", None) or LIBRARY):
                self._words.add("__getattr__")
            self._classes(type(value))
        elif isinstance(value, Watched):
            self._watched(value, what)
        elif hasattr(type(value), "__next__") and state is None:
            self.refused = (f"the iterator {what!r}, which a replay could not advance; take from it outside, and pass "
                            "what it gave as an argument")
        elif not _module(type(value)).startswith("minidl.") and not _UNSEEN.isdisjoint(
                f"{each.__module__}.{each.__name__}" for each in type(value).__mro__):
            self.refused = (f"{what!r}, a {type(value).__name__}, whose memory may change unseen; pass what it is read "
                            "for as a number, or as a Tensor")
        else:
            if state is not None:
                self.facts.state(value, state, what)
            self._holder(value, what)
            self._object(value, what)

    def _holder(self, value: object, what: str) -> None:
        """What Python, NumPy and minidl themselves know of an object."""
        if isinstance(value, _HOLDERS):
            self._waiting += [(held, what) for held in gc.get_referents(value)]
        elif isinstance(value, (functools.partialmethod, functools.singledispatchmethod, functools.cached_property)):
            self._waiting += [(held, what) for held in vars(value).values()]
        elif isinstance(value, (operator.attrgetter, operator.methodcaller)):
            self._words.update(word for name in value.__reduce__()[1] if isinstance(name, str)
                               for word in name.split("."))
        elif isinstance(value, weakref.ref):
            self.facts.state(value, lambda ref: id(ref()), what)
            self._waiting.append((value(), what))
        elif isinstance(value, contextvars.ContextVar):
            self._waiting.append((_in_context(value), what))
        elif isinstance(value, np.ndarray):
            self._array(value, what)
        elif isinstance(value, (list, tuple, set, frozenset, deque, bytearray, array.array, Mapping)):
            self._container(value, what)

    def _watched(self, value: Watched, what: str) -> None:
        # minidl's own optimizers and loaders tell the recorder what counts; Modules and the user's do not.
        if hasattr(type(value), "forward") or not _module(type(value)).startswith("minidl."):
            _claim(getattr(sys.modules.get(_module(type(value))), "__file__", None))
            self.facts.watch(value)
            self._waiting += [(attribute, f"{what}.{name}") for name, attribute in vars(value).items()
                              if name not in value.restless]
        else:                              # the user's code may read them, too: `ema.decay`
            self._spaces.append((vars(value), what, set(), False, self._words))
        self._classes(type(value))

    def _array(self, value: np.ndarray, what: str) -> None:
        if value.dtype.hasobject:
            self._waiting += [(item, f"{what}.flat[{i}]") for i, item in enumerate(value.flat)]
        if value.nbytes <= MAX_BYTES:
            self.facts.array(value, what)
        else:
            self.refused = (f"the array {what!r} of {value.nbytes:,} bytes beside Tensors, of which each replay "
                            "would have to look at all; make it a Tensor, or take what it is read for as a number, "
                            "outside")

    def _container(self, value: Collection[Any], what: str) -> None:
        if isinstance(value, Mapping) and hasattr(type(value), "restless"):      # an optimizer's group
            for name in value.keys() - type(value).restless:  # type: ignore[attr-defined]  # just seen
                self.facts.setting(value, name, value[name], f"{what}[{name!r}]")
        elif not isinstance(value, (tuple, frozenset)):
            self.facts.container(value, what)
        held = value.items() if isinstance(value, Mapping) else enumerate(value)
        self._waiting += [(item, f"{what}[{key!r}]") for key, item in held]
        if isinstance(value, Mapping):
            self._waiting += [(key, f"a key of {what}") for key in value]
            self._waiting.append((getattr(value, "default_factory", None), what))

    def _space(self, space: Mapping[str, Any], what: str, module: str) -> None:
        """Look words up in a dict of attributes of something that a module defines. Of the user's own, a new one
        counts, too: `getattr` and `hasattr` look for what is not there."""
        if _may_change(module):
            users = not module.startswith("minidl")
            self._spaces.append((space, what, set(), users, self._words))
            if users:
                self.facts.names(space, what)

    def _function(self, function: FunctionType, what: str) -> None:
        self._waiting += [(getattr(function, name, None), what) for name in ("__wrapped__", "registry")]
        if not is_users(function.__code__.co_filename):
            return
        read, words, imports, texts = _mentioned(function.__code__)
        names = read
        self._words |= words
        self._texts |= texts
        self._runs_text |= not _RUNS_TEXT.isdisjoint(read - function.__globals__.keys()) or "builtins" in imports
        self._spaces.append((function.__globals__, function.__module__, set(), True, self._named))
        self._imported(imports, function.__globals__.get("__package__") or "")
        self.facts.function(function, what)
        self._spaces.append((vars(function), what, set(), True, self._words))
        self.facts.names(vars(function), what)
        if words & _ANY_GLOBAL:
            names |= words
        for name in sorted(names & function.__globals__.keys()):
            self.facts.entry(function.__globals__, name, function.__globals__[name], f"the global {name!r}")
            self._waiting.append((function.__globals__[name], name))
        for name in sorted(read - function.__globals__.keys()):        # Python's own, or not there
            self.facts.entry(function.__globals__, name, GONE, f"the global {name!r}")
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                self.facts.cell(cell, f"{name!r}, from around {function.__name__}")
                self._waiting.append((cell.cell_contents, name))
            except ValueError:             # it has no value yet
                pass
        self._waiting += [(default, f"a default of {function.__name__}") for default in (
            *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())]

    def _imported(self, imports: Iterable[str], package: str) -> None:
        """Modules that code imports as it runs, of which only those that were imported before can be seen: it may name
        them relative to its own package."""
        above = package.split(".") if package else []
        self._clock = next((name for name in imports if name in _CLOCKS), self._clock)
        for name in imports:
            for full in (name, *(".".join(above[:n] + ([name] if name else [])) for n in range(1, len(above) + 1))):
                module = sys.modules.get(full)
                if module is not None and _may_change(full):
                    self.facts.entry(sys.modules, full, module, f"the module {full}")
                    self._waiting.append((module, full))

    def _classes(self, cls: type) -> None:
        """The attributes of a class and its bases, and the functions that Python calls by itself, or minidl, which
        knows those of its own base: of a loader or an optimizer."""
        base = next((each for each in cls.__mro__ if _module(each).startswith("minidl.") and issubclass(each, Watched)),
                    object)
        for each in cls.__mro__:
            if _may_change(_module(each)) and each not in self._owners:
                self._owners.add(each)
                self._space(vars(each), each.__name__, _module(each))
                if not _module(each).startswith("minidl"):
                    self.facts.bases(each)
                    self._words |= {name for name, method in vars(each).items() if name == "forward" or (
                        (name.startswith("__") or hasattr(base, name)) and name not in _NO_METHODS
                        and hasattr(type(method), "__get__"))}

    def _object(self, value: object, what: str) -> None:
        space: Mapping[str, object] | None = getattr(value, "__dict__", None)
        if space is not None:
            self._spaces.append((space, what, set(), True, self._words))
            module = _module(type(value))
            if _may_change(module) or module.split(".")[0] in sys.stdlib_module_names:         # as a SimpleNamespace
                self.facts.names(space, what)
            self._waiting += [(space.get(name), what) for name in ("__wrapped__", "pyfunc")]       # NumPy's vectorize
        if _may_change(_module(type(value))):
            self.facts.class_of(value, what)
            slots = [name for each in type(value).__mro__ for name, place in vars(each).items()
                     if isinstance(place, MemberDescriptorType)]
            if slots:
                self._space(_Slots(value, slots), what, _module(type(value)))
        self._classes(type(value))


def _of_module(value: object) -> str | None:
    """A module's name, or that of the one which a class or a function of C is from."""
    if isinstance(value, type):
        return _module(value)
    return value.__name__ if isinstance(value, ModuleType) else (
        value.__module__ if isinstance(value, BuiltinFunctionType) else None)


def _module(cls: type) -> str:
    """The name of the module that defines a class; some classes of C extensions have something else there."""
    return cls.__module__ if isinstance(cls.__module__, str) else "builtins"


@functools.lru_cache(maxsize=4096)
def _may_change(module: str) -> bool:
    """Whether what a module defines is looked at: the user's own, and minidl's, which a test may patch."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return module not in sys.builtin_module_names and module not in sys.stdlib_module_names
    return is_users(file) or file.startswith(LIBRARY)


class _Slots(dict[str, Any]):
    """An object's slots, read as a dict is: all of their names, also while nothing is there."""

    def __init__(self, value: object, names: list[str]):
        super().__init__(dict.fromkeys(names))
        self.value = value

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self.value, name)
        except AttributeError:
            raise KeyError(name) from None

    def get(self, name: str, default: object = None) -> Any:
        return getattr(self.value, name, default)
