"""The public face: a decorated step, its programs by signature, and when a program is trusted.

The first call with new arguments records; so does the next. If the two recordings agree, and what they read has not
changed, later calls replay. An argument's array that differed between the two may be any array; what was the same must
stay the same.
"""

from __future__ import annotations

import functools
import types
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from ..core.device import owner
from ..core.mode import mode
from ..core.tensor import Tensor
from .agree import Difference, compare
from .graph import AsGraph, NotCaptured
from .passes import optimised
from .plan import can_be_captured
from .program import Program
from .reads.facts import Fact, first_change
from .reads.looks import Look, Read
from .record import CompileError, line_of, record
from .replay import ByCalls
from .signature import Signature, root_text

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
MAX_PROGRAMS = 64                          # of one step, over all signatures; the least recently used go first
WARN_AT = 10                               # recordings, at which a warning says that a step is recorded again and again


def compile(step: Callable[P, R]) -> CompiledStep[P, R]:
    """Make a step (any function of Tensors that may run forward, backward() and optimizer.step()) run without the tape.

    The first two calls with a new signature (shapes, dtypes and devices of its Tensors, other arguments by value,
    precision) run the function as it is and keep the primitive calls that it made, its program. If both made the
    same, later calls replay it: parameters, gradients and optimizer state change in place as in the plain function, a
    learning rate is read anew, and random numbers are drawn anew. Whatever else the step read (attributes of Modules
    and of your own objects, globals, lists, flags of Tensors, an optimizer's numbers) is looked at before each replay;
    if something is different, the step is recorded anew. On a CUDA device the program is one captured graph.

    Returned Tensors are off the tape. Raises CompileError (a ValueError), naming the line, for what could not be
    replayed: two runs that did not do the same (a NumPy random number, a counter), reading a Tensor's values in
    the step, making a Tensor from data, moving one between devices, keeping a Tensor that is not returned. Other
    effects of the function's Python, such as print, happen only when a call is recorded; `recordings` counts these.
    Warns at the tenth.

    >>> import minidl
    >>> w = minidl.Tensor([1.0, 2.0], requires_grad=True)
    >>> sgd = minidl.optim.SGD([w], lr=0.1)
    >>> @minidl.compile
    ... def step(x):
    ...     sgd.zero_grad()
    ...     loss = ((w * x) * (w * x)).sum()
    ...     loss.backward()
    ...     sgd.step()
    ...     return loss
    >>> x = minidl.Tensor([1.0, 0.5])
    >>> step(x).item(), step(x).item(), w.tolist()  # doctest: +ELLIPSIS
    (2.0, 1.542..., [0.639..., 1.804...])
    """
    return CompiledStep(step)


class CompiledStep(Generic[P, R]):
    """What `compile` returns: call it as the function, with its arguments.

    `program` is the last one that ran, `recorded` the same before the passes: print them to read them. `recordings`
    counts the calls that were recorded.
    """

    def __init__(self, step: Callable[P, R]):
        if not callable(step):
            raise TypeError(f"compile: the step is a {type(step).__name__} but must be a function")
        functools.update_wrapper(self, step)
        self.step = step
        self.name = getattr(step, "__qualname__", repr(step))
        self.recordings = 0
        self._last: _Entry | None = None
        self._ready: _Entry | None = None  # the same if it replayed, and nothing was recorded since
        # The last recorded call, if it changed what it read other than Tensors: a replay would not.
        self._changing: tuple[Any, Program] | None = None
        self._programs: OrderedDict[Any, list[_Entry]] = OrderedDict()

    @overload
    def __get__(self, instance: None, owner: type) -> CompiledStep[P, R]: ...
    @overload
    def __get__(self: CompiledStep[Concatenate[S, Q], R], instance: S, owner: type | None = None
                ) -> Callable[Q, R]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a function in a class: a method, whose object is an argument."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        """compiled(step: 2 recordings, 1 program; the last of 12 calls)"""
        programs = sum(map(len, self._programs.values()))
        last = "not called yet" if self._last is None else f"the last of {len(self._last.program.calls)} calls"
        return f"compiled({self.name}: {self.recordings} recordings, {programs} programs; {last})"

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledStep[P, R]:
        return CompiledStep(self.step)     # programs belong to the Tensors that they were recorded with

    def __reduce__(self) -> Any:
        return CompiledStep, (self.step,)

    @property
    def program(self) -> Program | None:
        return None if self._last is None else self._last.program

    @property
    def recorded(self) -> Program | None:
        return None if self._last is None else self._last.recorded

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> R:
        if mode.recorder.recording:                  # within another compiled step: part of that one's program
            return self.step(*arguments, **options)
        names: tuple[str, ...] = ()
        values: Sequence[Any] = arguments
        if options:
            names, values = tuple(options), [*arguments, *options.values()]      # in the order in which **more has them
        ready = self._ready
        if ready is not None and (found := ready.look(names, values)) is not None:
            return ready.run(found)
        signature = Signature(names, values)
        entries, given = self._programs.get(signature.key, ()), [values[place] for place in signature.places]
        for entry in entries:
            if entry.trusted and (entry.look(names, values) is not None or entry.changed(given) is None):
                if entry is not self._last:
                    self._last = entry
                    self._programs.move_to_end(signature.key)
                self._ready = entry
                return entry.run(given)
        before = [entry for entry in entries if first_change(entry.recorded.facts.all(), given) is None]
        self._ready = None
        recorded, returned = record(self.step, arguments, options)
        self.recordings += 1
        if self.recordings == WARN_AT:
            warnings.warn(self._why(entries, given), RuntimeWarning, stacklevel=2)
        self._last = self._keep(signature, before, recorded, given)
        return returned

    def _keep(self, signature: Signature, before: list[_Entry], recorded: Program, given: list[Any]) -> _Entry:
        """The entry of a recording: an earlier one that it agrees with, or a new one."""
        changing, self._changing = self._changing, None
        changed = first_change(recorded.facts.others)       # but gradients: a program itself changes those
        try:
            if changed is not None:
                if changing is not None and changing[0] == signature.key:
                    compare(changing[1], recorded)
                    raise CompileError(f"compile: {self.name} changes {changed}, each time it runs, which a replay "
                                       f"would not ({line_of(self.step)}); do it outside the step, or call the plain "
                                       "function")
                self._changing = signature.key, recorded
            for entry in before if changed is None else ():
                if entry.agrees(recorded, given):
                    return entry
        except Difference as difference:
            self._programs.pop(signature.key, None)
            raise CompileError(f"compile: {self.name} did not do the same in two runs: {difference}; a replay would "
                               "repeat one of them. Pass what differs as an argument, make it once outside, or draw it "
                               f"with minidl ({line_of(self.step)})") from None
        entries = self._programs.setdefault(signature.key, [])
        self._programs.move_to_end(signature.key)
        entry = _Entry(recorded, signature, given)
        entries.insert(0, entry)
        while sum(map(len, self._programs.values())) > MAX_PROGRAMS:
            oldest, others = next(iter(self._programs.items()))
            others.pop()
            if not others:
                del self._programs[oldest]
        return entry

    def _why(self, entries: Sequence[_Entry], given: list[Any]) -> str:
        """Why a step is recorded once more."""
        reasons = [reason for entry in entries if (reason := entry.changed(given)) is not None]
        why = f"{reasons[0]} changed" if reasons else "its arguments have other shapes, dtypes or plain values"
        return (f"compile: {self.name} was recorded for the {WARN_AT}th time, which takes longer than the plain "
                f"function; this time since {why}. Pass what changes as a Tensor, or call the plain function")


class _Entry:
    """A program, the arguments that it was recorded with, and its replay once it is trusted and called again."""

    def __init__(self, recorded: Program, signature: Signature, given: list[Any]):
        self.recorded, self.signature = recorded, signature
        self.trusted = False
        self.replay: ByCalls | AsGraph | None = None
        # Arguments that were the same at each recording, as arrays and as Tensors: it cannot be known whether the step
        # used them by another name too. And what it did use by another name: no other argument may be that.
        self.fixed: dict[int, weakref.ref[Any]] = {i: weakref.ref(_array(value)) for i, value in enumerate(given)}
        self.same: dict[int, weakref.ref[Any]] = {i: weakref.ref(value) for i, value in enumerate(given)}
        self.outside = _Outside(recorded)

    @functools.cached_property
    def program(self) -> Program:
        return optimised(self.recorded)

    @functools.cached_property
    def facts(self) -> list[Fact]:
        """All that must be unchanged for a replay, not counting what the signature says."""
        return [*self._facts_of_arguments(), *self.recorded.facts.all()]

    def _facts_of_arguments(self) -> list[Fact]:
        facts = []
        for i, array in enumerate(self.signature.arrays):
            if i in self.fixed:
                facts.append(Fact(Read(f"$0() is {array}", (self.fixed[i],)), True,
                                  f"argument {i}, an array that was the same before,"))
            if i in self.same:
                facts.append(Fact(Read(f"$0() is given[{i}]", (self.same[i],)), True,
                                  f"argument {i}, a Tensor that was the same before,"))
            else:
                facts.append(Fact(Read(f"id(given[{i}]) in $0 or id({root_text(array, '$1')}) in $0",
                                       (self.outside.ids, owner)),
                                  False, f"argument {i}, which shares memory with something that the step uses by "
                                  "another name,"))
        return facts

    @functools.cached_property
    def look(self) -> Callable[[tuple[str, ...], Sequence[Any]], list[Any] | None]:
        """A look at all facts and the signature, see `Look.function`. If it gives None, the program may still be
        replayed: equal values may be other objects."""
        look = Look()
        self.signature.tell(look)
        for fact in self.facts:
            look.expect(fact.read, "is", fact.then)
        return look.function(self.signature.places)

    def agrees(self, recorded: Program, given: list[Any]) -> bool:
        """Whether a second recording did the same: then this one is trusted. Raises Difference if it did not."""
        try:
            compare(self.recorded, recorded)
        except Difference:
            # An argument that the step also knows by another name was one value then and is two now, or the reverse.
            then = [value for ref in (*self.fixed.values(), *self.same.values()) if (value := ref()) is not None]
            if any(map(self.outside.has, given)) or any(map(_Outside(recorded).has, then)):
                return False
            raise
        still = {i: ref for i, ref in self.fixed.items() if ref() is _array(given[i])}
        if len(still) < len(self.fixed):
            self.replay = None                         # it may have read an argument in its own memory
        self.fixed, self.recorded, self.trusted = still, recorded, True
        self.same = {i: ref for i, ref in self.same.items() if ref() is given[i]}
        for name in ("program", "facts", "look"):      # they are of the recording before
            self.__dict__.pop(name, None)
        return True

    def changed(self, given: list[Any]) -> str | None:
        """What keeps the program from being replayed for these arguments, in words."""
        return first_change(self.facts, given)

    def run(self, given: list[Any]) -> Any:
        if self.replay is None:
            self.replay = self._replay(given)
        return self.replay.run(given)

    def _replay(self, given: list[Any]) -> ByCalls | AsGraph:
        if can_be_captured(self.program):
            try:
                return AsGraph(self.program, given, self.fixed.keys())
            except NotCaptured as why:
                self.program.notes.append(f"call by call, not as a graph: {why}")
        return ByCalls(self.program)


class _Outside:
    """What a program reads from outside, or looked at there: Tensors, and the arrays that own the memory."""

    def __init__(self, program: Program):
        facts = program.facts
        self.tensors = [*facts.tensors, *facts.leaves, *(t for t, _ in program.grads if isinstance(t, Tensor))]
        slots = {slot for call in program.calls for slot in call.reads if slot.kind == "outside"}
        self.arrays = [owner(a) for a in (*(slot.array for slot in slots), *(t._data for t in self.tensors))]
        self.ids = {*map(id, self.tensors), *map(id, self.arrays)}

    def has(self, value: object) -> bool:
        return id(value) in self.ids or id(owner(_array(value))) in self.ids


def _array(value: object) -> Any:
    return value._data if isinstance(value, Tensor) else value
