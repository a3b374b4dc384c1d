"""Recording: run a step once for real, and note every call of a primitive.

While `mode.recorder` is set, ops and optimizers get their primitives through a Recorder, and everything that a replay
could not repeat (reading a value, moving it between devices, making a Tensor from data) is refused, naming the line.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ..device import is_cuda
from ..tensor import Node, Tensor, mode, wrap
from .program import Call, Dynamic, Program, Slot, replace

LIBRARY = str(Path(__file__).resolve().parents[1])
PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic)       # what a step may return beside Tensors


BEFORE = "goes backward through what was computed before the step"


class CompileError(ValueError):
    """A step that cannot be replayed."""


def _still(held: list[tuple[Tensor, Any]]) -> bool:
    """Whether Tensors still hold their arrays."""
    return all(t.data is array for t, array in held)


def is_array(value: Any) -> bool:
    """Whether something is an array of a known backend."""
    return isinstance(value, np.ndarray) or is_cuda(value)


class Recorder:
    """What one run of a step does, as it does it."""

    def __init__(self, name: str):
        self.name = name
        self.calls: list[Call] = []
        self.slots: dict[int, Slot] = {}               # of arrays, by id: `alive` keeps ids from being used again
        self.alive: list[Any] = []
        self.held: list[tuple[Tensor, Any]] = []       # Tensors from outside, and their arrays
        self.guards: list[tuple[Callable[[], Any], Any]] = [(functools.partial(_still, self.held), True)]
        self.guarded: set[Any] = set()
        self.dynamics: list[Dynamic] = []
        self.leaves: dict[int, Tensor] = {}            # whose gradients were written
        self.zeroed: dict[int, Tensor] = {}            # whose gradients were forgotten
        self.changed: dict[int, Tensor] = {}
        self.start = Node("", None, (), (), lambda gy, need: ()).number      # Nodes of this run have higher ones
        self._backends: dict[str, RecordingBackend] = {}

    # ------------------------------------------------------------------ what ops, tape and optimizers tell
    def through(self, backend: ModuleType) -> Any:
        """The primitives of a backend, noting each call."""
        found = self._backends.get(backend.__name__)
        if found is None:
            found = self._backends[backend.__name__] = RecordingBackend(self, backend)
        return found

    def seen(self, tensors: Any) -> None:
        """Tensors that an op was given: those from before the step are shared by all replays."""
        for t in tensors:
            if isinstance(t, Tensor) and id(t.data) not in self.slots:
                if t.node is not None and t.node.number > self.start:
                    self.refuse(f"gives an op a Tensor of shape {t.shape} whose array it made itself",
                                "compute it with minidl's ops")
                self.outside(t.data)
                self.held.append((t, t.data))

    def outside(self, array: Any) -> None:
        """An array from before the step, in which replays read and write."""
        if id(array) not in self.slots:
            self.slot("outside", array)

    def guard(self, key: Any, read: Callable[[], Any]) -> None:
        """A fact that the step depends on: another value of it means another program."""
        if key not in self.guarded:
            self.guarded.add(key)
            self.guards.append((read, read()))

    def dynamic(self, read: Callable[[], Any]) -> Dynamic:
        """A number that each replay reads anew."""
        self.dynamics.append(Dynamic(len(self.dynamics), read))
        return self.dynamics[-1]

    def grad_of(self, leaf: Tensor) -> None:
        """A backward pass is about to write leaf.grad."""
        if id(leaf.data) not in self.slots:
            self.refuse(BEFORE, "compute it in the step, or pass x.detach()")
        if leaf.grad is not None and id(leaf.grad.data) not in self.slots:
            raise CompileError(f"compile: {self.name} adds to a gradient from before the step (shape {leaf.shape}); "
                               f"call optimizer.zero_grad() in the step ({where()})")
        if leaf.grad is None and id(leaf) not in self.zeroed:
            self.guard((id(leaf), "grad"), lambda: leaf.grad is None)
        self.leaves[id(leaf)] = leaf

    def refuse(self, what: str, way_out: str) -> None:
        raise CompileError(f"compile: {self.name} {what} at {where()}, which a replay could not repeat; {way_out}")

    def constant(self, data: Any) -> None:
        """A Tensor is being made: from a value that the program knows, or from new data, which is refused."""
        if not (is_array(data) and id(data) in self.slots):
            self.refuse("makes a Tensor from data", "make it outside and use it here, or pass it as an argument")

    # ------------------------------------------------------------------ slots
    def slot(self, kind: str, array: Any) -> Slot:
        slot = self.slots[id(array)] = Slot(len(self.alive), kind, array)
        self.alive.append(array)
        return slot

    def slot_of(self, value: Any, primitive: str) -> Any:
        if isinstance(value, Tensor):
            value = value.data
        if not is_array(value):
            return value
        if id(value) not in self.slots:
            if primitive in ("getitem", "getitem_grad_x"):
                return value                           # an index: a constant of the program
            self.refuse(f"gives {primitive} an array of shape {value.shape} that it made itself",
                        "make it outside, as a Tensor")
        return self.slots[id(value)]


def current(value: Any) -> Any:
    """A Dynamic's value in the run that is being recorded: read once, however many calls want it."""
    if isinstance(value, Dynamic):
        if value.first is None:
            value.first = value.read()
        return value.first
    return value


class RecordingBackend:
    """A backend whose primitives do what they do, and are noted."""

    def __init__(self, recorder: Recorder, backend: ModuleType):
        self._recorder, self._backend = recorder, backend

    def __getattr__(self, name: str) -> Any:
        primitive, recorder, backend = getattr(self._backend, name), self._recorder, self._backend

        def call(*arguments: Any, **options: Any) -> Any:
            if mode.recorder is not recorder:          # a closure that outlived the recording
                return primitive(*arguments, **options)
            noted = replace((list(arguments), options), lambda value: recorder.slot_of(value, name))
            now = replace((list(arguments), options), current)
            result = primitive(*now[0], **now[1])
            results = result if isinstance(result, tuple) else () if result is None else (result,)
            results = tuple(np.asarray(r) if isinstance(r, np.generic) else r for r in results)
            slots = tuple(recorder.slots.get(id(r)) or recorder.slot("result", r) for r in results)
            recorder.calls.append(Call(backend, name, tuple(noted[0]), noted[1], slots, isinstance(result, tuple)))
            return results if isinstance(result, tuple) else results[0] if results else None

        setattr(self, name, call)
        return call


def record(step: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Program, Any]:
    """Run a step and note what it does: (its program, what it returned, its Tensors off the tape)."""
    recorder = Recorder(getattr(step, "__qualname__", repr(step)))
    inputs = [recorder.slots.get(id(array)) or recorder.slot("input", array) for array in arrays_of(arguments, options)]
    before, mode.recorder = mode.recorder, recorder
    try:
        returned = step(*arguments, **options)
    finally:
        mode.recorder = before

    def slot_of(value: Any) -> Any:
        if isinstance(value, Tensor) or is_array(value):
            array = value.data if isinstance(value, Tensor) else value
            if id(array) not in recorder.slots:
                raise CompileError(f"compile: {recorder.name} returns an array of shape {array.shape} that no "
                                   "primitive made; return Tensors that it computed")
            return recorder.slots[id(array)]
        if not isinstance(value, PLAIN):
            raise CompileError(f"compile: {recorder.name} returns a {type(value).__name__}, which a replay could not "
                               "make anew; return Tensors and plain values, in tuples, lists and dicts")
        return value

    for leaf in (recorder.zeroed | recorder.leaves).values():
        if leaf.grad is not None and id(leaf.grad.data) not in recorder.slots:
            raise CompileError(f"compile: {recorder.name} {BEFORE}, or sets a gradient (shape {leaf.shape}) that no "
                               "primitive made; compute it in the step, or pass x.detach()")
    grads = [(leaf, recorder.slots.get(id(leaf.grad.data)) if leaf.grad is not None else None)
             for leaf in (recorder.zeroed | recorder.leaves).values()]
    program = Program(inputs, recorder.calls, replace(returned, slot_of), grads, list(recorder.changed.values()),
                      recorder.dynamics, recorder.guards)
    return program, replace(returned, lambda value: wrap(value.data) if isinstance(value, Tensor) else value)


def arrays_of(arguments: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
    """The arrays among a step's arguments, in order."""
    values = [*arguments, *(options[name] for name in sorted(options))]
    return [v.data if isinstance(v, Tensor) else v for v in values if isinstance(v, Tensor) or is_array(v)]


def where() -> str:
    """file:line of the innermost frame outside minidl."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(LIBRARY):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
