"""Recording: run a step for real, and note every call of a primitive.

While `mode.recorder` is set, ops and optimizers get their primitives through a Recorder, and everything that a replay
could not repeat (reading a value, moving it between devices, making a Tensor from data) is refused, naming the line.
What the step looks at other than its arguments is noted as Facts.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import sys
import weakref
from collections.abc import Callable
from types import CellType, FrameType, ModuleType
from typing import Any, NoReturn

import numpy as np

from ..core import tensor
from ..core.device import Array, is_array, is_cuda
from ..core.mode import Listener, Watched, mode, unwrapped
from ..core.tensor import Tensor, counted, share, wrap
from ..ops.common.primitives import known
from .graph import backward_ahead
from .program import Bare, Call, Dynamic, Program, Slot, Weighted, leaves, replace
from .reads.arguments import Argument
from .reads.facts import PLAIN, Facts, first_change
from .reads.names import MAX_BYTES, Names, claim, is_users

BEFORE = "goes backward through what was computed before the step"


class CompileError(ValueError):
    """A step that cannot be replayed."""


class Symbol:
    """An array as an op's body sees it while a step is recorded: its shape and dtype, and nothing else.

    A body that computes with its values, without the primitives of `k`, would leave a constant in the program.
    """

    __slots__ = ("_array", "_recorder")

    def __init__(self, array: Array, recorder: Recorder):
        self._array, self._recorder = array, recorder

    shape = property(lambda self: self._array.shape)
    dtype = property(lambda self: self._array.dtype)
    ndim = property(lambda self: self._array.ndim)
    size = property(lambda self: self._array.size)

    def __getattr__(self, name: str) -> NoReturn:
        self._recorder.refuse(f"reads {name} of an array in the body of the op {self._recorder.op!r}",
                              "compute with the primitives of k, and look at shapes and dtypes alone")


def _not_a_symbols(name: str) -> Callable[..., NoReturn]:
    return lambda symbol, *_, **__: symbol.__getattr__(name)


# What Python and NumPy look up in the class.
for _name in ("array array_ufunc array_function bool int float complex index len iter next contains getitem setitem "
              "neg pos abs invert lt le eq ne gt ge " + " ".join(f"{way}{name}" for way in ("", "r", "i") for name in (
                  "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"))).split():
    setattr(Symbol, f"__{_name}__", _not_a_symbols(f"__{_name}__"))
Symbol.__hash__ = object.__hash__          # type: ignore[method-assign]  # __eq__ took it


def _array_of(value: object) -> Any:
    return value._array if type(value) is Symbol else unwrapped(value)


class Recorder(Listener):
    """What one run of a step does, as it does it."""

    recording = True

    def __init__(self, step: Callable[..., Any], given: list[Any]):
        self.name = getattr(step, "__qualname__", repr(step))
        self.line = line_of(step)
        self.refusal: CompileError | None = None       # the last: a step that caught it took another way than plain
        self.op = ""                                   # whose body runs
        self.calls: list[Call] = []
        self.slots: dict[int, Slot] = {}               # of arrays, by id, for as long as they live
        self.ends: list[weakref.ref[Any]] = []         # of these: ids are used again
        self.numbers = 0                               # of slots
        self.facts = Facts()
        self.own: dict[int, tuple[weakref.ref[Tensor], str]] = {}            # Tensors of this run, and the lines
        self.names = Names(self.facts, self.is_own)
        claim(step)
        self.names.follow(step, self.name)
        self.check_names()
        self.dynamics: list[Dynamic] = []
        self.places = {id(t): i for i, t in enumerate(given) if isinstance(t, Tensor)}      # arguments
        self.inputs = [self.slots.get(id(_of(value))) or self.slot("input", _of(value)) for value in given]
        self.known: dict[int, Tensor] = {}             # whose .grad was looked at or set
        self.before: list[tuple[Tensor, Slot]] = []    # and was there before the step: more inputs
        self.old_grads: set[int] = set()               # ids of those gradients
        self.leaves: dict[int, Tensor] = {}            # whose .grad was set or written
        self.lines: dict[int, str] = {}                # that did so last
        self.changed: dict[int, Tensor] = {}
        self._backends: dict[tuple[str, bool], RecordingBackend] = {}

    # ------------------------------------------------------------------ what ops, tape and optimizers tell
    def through(self, backend: ModuleType, symbolic: bool = False) -> RecordingBackend:
        """The primitives of a backend, noting each call. symbolic: as an op's body is given them."""
        key = backend.__name__, symbolic
        if key not in self._backends:
            self._backends[key] = RecordingBackend(self, backend, symbolic)
        return self._backends[key]

    def run(self, name: str, body: Callable[..., Any], k: ModuleType, arrays: list[Array],
            options: dict[str, Any]) -> Any:
        """(the result, its backward closure) of an op's body, which sees Symbols in the place of arrays."""
        self.op, symbol = name, self._symbol
        y, backward = body(self.through(k.backend, symbolic=True), *map(symbol, arrays), **options)
        y = self._made_by_k(name, y)
        if backward is None:
            return y, None

        def watched(gy: Array, need: tuple[bool, ...]) -> tuple[Any, ...]:
            self.op = name
            gradients = backward(symbol(gy), need)
            return tuple(None if g is None else self._made_by_k(f"{name}'s gradient", g) for g in gradients)
        watched.__wrapped__ = backward     # type: ignore[attr-defined]  # which a second derivative runs on Tensors
        return y, watched

    def _symbol(self, array: Array) -> Any:
        return Symbol(array, self) if is_array(array) else array

    def _made_by_k(self, name: str, value: object) -> Array:
        if value.__class__ is not Symbol:
            self.refuse(f"calls the op {name}, whose result did not come from a primitive of k",
                        "compute it with the primitives of k")
        return value._array

    def given(self, *things: object) -> None:
        """Tensors and arrays from before the step: all replays share them, and read and write in them."""
        for t in things:
            if isinstance(t, Tensor):
                if (own := self.is_own(t)) and id(t._data) not in self.slots:
                    self.refuse(f"gives an op a Tensor of shape {t.shape} whose array it made itself",
                                "compute it with minidl's ops")
                if own or id(t) in self.places or id(t) in self.old_grads:
                    continue
                self.facts.tensor(t)
            array = _of(t)
            if id(array) not in self.slots and is_array(array):
                self.slot("outside", array)

    def change(self, t: Tensor, on_tape: bool = False) -> None:
        """A Tensor is about to be changed in place: replays do that to one from outside; on the tape it is refused."""
        if self.is_own(t):
            return
        if on_tape:
            self.refuse(f"adds in place, on the tape, to a Tensor from outside (shape {t.shape})",
                        "write t = t + x, with another name")
        self.given(t)
        self.changed[id(t)] = t

    def flag(self, t: Tensor) -> None:
        if not self.is_own(t):
            self.refuse("changes whether a Tensor requires a gradient", "do it outside the step, or of x.detach()")

    def alias(self, array: Array) -> Array:
        view: Array = array.view()
        self._known_as(self.slots[id(array)], view)
        return view

    def constant(self, array: Array) -> Array:
        """The step makes it anew in each run: it gets its own copy, unless a pass finds that it may be shared."""
        self.slot("constant", array)
        return tensor.backend_of(wrap(array)).copy(array)

    def made(self, t: Tensor, of_data: bool = False) -> None:
        """A Tensor that the step made, of a value that the program knows: new data are refused. It must not outlive the
        step, unless it is returned."""
        if of_data and id(t._data) not in self.slots:
            self.refuse("makes a Tensor from data", "make it outside and use it here, or pass it as an argument")
        self.own[id(t)] = weakref.ref(t), where()
        if t.node is not None and is_cuda(t._data):
            backward_ahead(t.node, t._data)

    def is_own(self, t: Tensor) -> bool:
        entry = self.own.get(id(t))
        return entry is not None and entry[0]() is t

    def reads(self, *things: object, what: str = "", entry: str = "") -> None:
        """The program depends on these things. `changes` does not note a restless entry."""
        for thing in things:
            if isinstance(thing, dict):
                note = self.facts.entry if entry in type(thing).restless else self.facts.setting  # type: ignore[attr-defined]  # a group
                note(thing, entry, dict.__getitem__(thing, entry), what)
            elif isinstance(thing, list):
                self.facts.container(thing, what)
            elif callable(thing) or (isinstance(thing, Watched) and not type(thing).__module__.startswith("minidl.")):
                self.names.follow(thing, type(thing).__name__)         # its methods are the user's, as an optimizer's
            elif isinstance(thing, Watched):
                self.facts.watch(thing)

    def dynamic(self, read: Callable[[], Any]) -> Dynamic:
        """A number that each replay reads anew."""
        self.dynamics.append(Dynamic(len(self.dynamics), read))
        return self.dynamics[-1]

    # ------------------------------------------------------------------ arrays among the arguments
    def check_names(self) -> None:
        """Raise CompileError if something was reached whose changes cannot be seen."""
        if self.names.refused:
            raise CompileError(f"compile: {self.name} reads {self.names.refused} ({self.line})")

    def as_arguments(self, given: list[Any]) -> dict[int, Argument]:
        """By id, what the step is to see in place of arrays. An array stays, and counts as read, if the step may look
        at what it is: with `is`, if it knows the array by another name too, or with `type`."""
        found = {}
        for number, value in enumerate(given):
            if isinstance(value, Tensor):
                continue
            if not (self.names.reached(value) or self.names.mentions("type")):
                found[id(value)] = Argument(value, functools.partial(self.look_at, number, value))
            elif isinstance(value, np.ndarray):
                self.facts.argument(number, value)
        return found

    def look_at(self, number: int, array: Array) -> Array:
        """Values of an array among the arguments are read: what the program depends on."""
        if mode.recorder is not self:
            return array                               # after the step, by code that kept it
        if is_cuda(array):
            self.refuse(f"reads argument {number}, an array on a GPU, beside its ops",
                        "pass what it is read for as a number, or compute with a Tensor of it")
        if array.nbytes > MAX_BYTES:
            self.refuse(f"reads argument {number}, an array of {array.nbytes:,} bytes, beside its ops",
                        "pass what it is read for as a number, or compute with a Tensor of it")
        self.facts.argument(number, array)
        return array

    # ------------------------------------------------------------------ gradients
    def gradient(self, leaf: Tensor, how: str) -> None:
        """leaf.grad is about to be looked at, set, or added to, which is both."""
        if how == "add" and id(leaf._data) not in self.slots:
            self.refuse(BEFORE, "compute it in the step, or pass x.detach()")
        if self.is_own(leaf):
            return
        if how != "set" and id(leaf) not in self.known:
            self._gradient_before(leaf)
        if how != "look":
            self.known[id(leaf)] = self.leaves[id(leaf)] = leaf
            self.lines[id(leaf)] = where()

    def _gradient_before(self, leaf: Tensor) -> None:
        """The first look at leaf.grad sees what was there before the step."""
        self.known[id(leaf)] = leaf
        if id(leaf) not in self.places:                # of an argument, the signature says whether there is one
            self.facts.gradient(leaf)
        if leaf._grad is not None and id(leaf._grad._data) not in self.slots:
            self.old_grads.add(id(leaf._grad))
            self.before.append((leaf, self.slot("input", leaf._grad._data)))

    # ------------------------------------------------------------------ what is refused
    def refuse(self, what: str, way_out: str = "do it outside the step") -> NoReturn:
        self.refusal = CompileError(f"compile: {self.name} {what} at {where()}, which a replay could not repeat; "
                                    f"{way_out}")
        raise self.refusal

    # ------------------------------------------------------------------ slots
    def slot(self, kind: str, array: Array) -> Slot:
        slot = Slot(self.numbers, kind, array.shape, array.dtype, array if kind in ("outside", "constant") else None)
        self.numbers += 1
        self._known_as(slot, array)
        return slot

    def _known_as(self, slot: Slot, array: Array) -> None:
        """An array holds a slot's value, for as long as it lives."""
        key = id(array)
        self.slots[key] = slot
        self.ends.append(weakref.ref(array, lambda _: self.slots.pop(key, None)))

    def slot_of(self, value: object, primitive: str) -> Any:
        value = _of(value)
        slot = self.slots.get(id(value))
        if slot is None and is_array(value):
            if known(primitive).indexed:
                return value.copy()                    # an index: a constant, whatever the step does with it later
            self.refuse(f"gives {primitive} an array of shape {value.shape} that it made itself",
                        "make it outside, as a Tensor")
        return value if slot is None else slot


def current(value: object) -> Any:
    """An argument as a primitive gets it in the run that is being recorded. A Dynamic is read once, however many calls
    want it."""
    if isinstance(value, Dynamic):
        if value.first is None:
            value.first = value.read()
        return value.first
    return _array_of(value)


class RecordingBackend:
    """A backend whose primitives do what they do, and are noted. symbolic: they give Symbols."""

    def __init__(self, recorder: Recorder, backend: ModuleType, symbolic: bool):
        self._recorder, self.backend, self._symbolic = recorder, backend, symbolic

    def __getattr__(self, name: str) -> Any:
        primitive, recorder, backend = getattr(self.backend, name), self._recorder, self.backend

        def call(*arguments: object, **options: object) -> Any:
            # Not the recorder: in a closure that outlived the recording.
            result = (recorded if mode.recorder is recorder else plain)((arguments, options))
            if not self._symbolic:
                return result
            return tuple(map(recorder._symbol, result)) if isinstance(result, tuple) else recorder._symbol(result)

        def plain(given: tuple[tuple[object, ...], dict[str, object]]) -> Any:
            now = replace(given, _array_of)
            return primitive(*now[0], **now[1])

        def recorded(given: tuple[tuple[object, ...], dict[str, object]]) -> Any:
            noted, now = replace(given, lambda value: recorder.slot_of(value, name)), replace(given, current)
            result = primitive(*now[0], **now[1])
            results = result if isinstance(result, tuple) else () if result is None else (result,)
            results = tuple([np.asarray(r) if isinstance(r, np.generic) else r for r in results])
            # One that it was given, or else a new value: launch.empty hands an array out again.
            slots = tuple([slot if (slot := recorder.slots.get(id(r))) and any(r is a for a in leaves(now))
                           else recorder.slot("result", r) for r in results])
            recorder.calls.append(Call(backend, name, noted[0], noted[1], slots, isinstance(result, tuple), where()))
            return results if isinstance(result, tuple) else results[0] if results else None

        setattr(self, name, call)
        return call


def record(step: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Program, Any]:
    """Run a step and note what it does: (its program, what it returned, with Tensors off the tape)."""
    values = [*arguments, *options.values()]
    given = [value for value in values if isinstance(value, Tensor) or is_array(value)]
    recorder = Recorder(step, given)
    for value in values:
        if not (isinstance(value, Tensor) or is_array(value)):
            recorder.names.follow(value, "an argument")
    seen = recorder.as_arguments(given)
    before, mode.recorder = mode.recorder, recorder
    try:
        returned = step(*(seen.get(id(value), value) for value in arguments),
                        **{name: seen.get(id(value), value) for name, value in options.items()})
    finally:
        mode.recorder = before
    if recorder.refusal is not None:
        raise recorder.refusal
    recorder.facts.finish()
    recorder.check_names()                 # the run may have reached more
    if what := first_change(recorder.facts.arguments.values(), given):
        raise CompileError(f"compile: {recorder.name} changes {what} which a replay could not repeat; change a copy, "
                           f"or do it outside ({recorder.line})")
    outputs = replace(returned, functools.partial(_output, recorder, {}))
    returned = replace(returned, functools.partial(_off_the_tape, {}))
    _refuse_what_stays(recorder)

    def place(t: Tensor) -> Tensor | int:
        return recorder.places.get(id(t), t)

    grads = [(place(leaf), None if leaf._grad is None else recorder.slots[id(leaf._grad._data)])
             for leaf in recorder.leaves.values()]
    read = {slot for call in recorder.calls for slot in call.reads} | set(leaves((outputs, [g for _, g in grads])))
    program = Program(recorder.inputs, [(place(leaf), slot) for leaf, slot in recorder.before if slot in read],
                      recorder.calls, outputs, grads, [place(t) for t in recorder.changed.values()],
                      recorder.dynamics, recorder.facts)
    return program, returned


def _off_the_tape(met: dict[Any, Tensor], value: object) -> Any:
    """A value that a step returned, as the caller gets it. met: what was met before, by its id, and weights that others
    have, too, see `counted`."""
    if not isinstance(value, Tensor):
        return unwrapped(value)
    if id(value) in met:
        return met[id(value)]
    alias = met[id(value)] = wrap(value._data)
    share(alias, value)
    if (weights := value.weights) is not None:
        alias.weights = met.setdefault(counted(weights), wrap(weights._data))
    return alias


def _output(recorder: Recorder, met: dict[Any, Tensor], value: object) -> Any:
    """A value that a step returned, as its program has it. met: as above."""
    if isinstance(value, Tensor) or is_array(value):
        array = _of(value)
        if isinstance(value, Tensor):
            recorder.given(value)
        if id(array) not in recorder.slots:
            raise CompileError(f"compile: {recorder.name} returns an array of shape {array.shape} that no "
                               f"primitive made; return Tensors that it computed ({recorder.line})")
        slot = recorder.slots[id(array)]
        if not isinstance(value, Tensor):
            return Bare((slot,))
        if (weights := value.weights) is None:
            return slot
        if not recorder.is_own(weights):
            raise CompileError(f"compile: {recorder.name} returns a mean with weights that were there before the step; "
                               f"compute the mean in the step ({recorder.line})")
        return Weighted((slot, _output(recorder, met, met.setdefault(counted(weights), weights))))
    if not isinstance(value, PLAIN):
        raise CompileError(f"compile: {recorder.name} returns a {type(value).__name__}, which a replay could not "
                           "make anew; return Tensors and plain values, in tuples, lists and dicts "
                           f"({recorder.line})")
    return value


def _refuse_what_stays(recorder: Recorder) -> None:
    """Refuse Tensors that a run left behind but a replay would not, and gradients from elsewhere."""
    for leaf in recorder.leaves.values():
        if leaf._grad is not None and id(leaf._grad._data) not in recorder.slots:
            raise CompileError(f"compile: {recorder.name} {BEFORE}, or sets a gradient (shape {leaf.shape}) that no "
                               f"primitive made, at {recorder.lines[id(leaf)]}; compute it in the step, or pass "
                               "x.detach()")
    kept = _kept(recorder)
    if kept:                               # a cycle may hold them, or the frames of an error that was caught
        del kept
        gc.collect()
        _clear_frames(recorder)
        kept = _kept(recorder)
    for t, line in kept:
        raise CompileError(f"compile: {recorder.name} makes a Tensor (shape {t.shape}) at {line} that is kept after "
                           "the step, where a replay would leave the old one; return it, or write t[...] = value under "
                           "no_grad()")


def _kept(recorder: Recorder) -> list[tuple[Tensor, str]]:
    """Tensors of the run that are still held, and the lines that made them; not gradients, which are told."""
    gradients = {id(leaf._grad) for leaf in recorder.leaves.values()}
    return [(t, line) for ref, line in recorder.own.values() if (t := ref()) is not None and id(t) not in gradients]


def _clear_frames(recorder: Recorder) -> None:
    """Empty the frames of functions that have ended and hold Tensors of the run: by themselves, in a tuple, or as a
    variable that a nested function reads."""
    kept: list[Any] = [t for t, _ in _kept(recorder)]
    kept += [holder for t in kept for holder in gc.get_referrers(t) if type(holder) in (tuple, CellType)]
    for value in kept:
        for frame in gc.get_referrers(value):
            if isinstance(frame, FrameType) and not frame.f_code.co_flags & inspect.CO_GENERATOR:
                with contextlib.suppress(RuntimeError):            # it runs
                    frame.clear()


def _of(value: object) -> Any:
    """The array of a Tensor or array."""
    return value._data if isinstance(value, Tensor) else _array_of(value)


def where() -> str:
    """file:line of the innermost frame of the user's code."""
    frame = sys._getframe(1)
    while (caller := frame.f_back) is not None and not is_users(frame.f_code.co_filename):
        frame = caller
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_of(step: Callable[..., Any]) -> str:
    """file:line of a function."""
    code = getattr(inspect.unwrap(getattr(step, "func", step)), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(step)
