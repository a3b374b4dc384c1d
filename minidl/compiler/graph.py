"""Replaying a program on a CUDA device as one captured graph."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.device import Array, is_array, span
from ..core.mode import Listener, mode
from ..core.pools import GraphMemory, at_end, free_if_much
from ..core.tensor import Node, Tensor, mark_changed, wrap
from ..ops.common.primitives import known
from .buckets import Buckets
from .program import Dynamic, Program, Slot, leaves, replace
from .replay import ByCalls, arrays_of

if TYPE_CHECKING:
    import cupy


class SideStreams:
    """Streams in addition to the main one: `others` in turn for work that an update waits for and for `advance`, `last`
    for counters.

    A call on a side stream waits for all that the main stream was given before it. The call that waits for it waits for
    all that its stream was given up to it. No call on a side stream reads or changes what another one made or reads,
    except counters, which stay in order.

    So memory may be used again within a capture. A pool keeps freed memory for the stream on which it was taken.
    A value of the main stream that no side stream touches is made, read, and followed by its successor there, in order.
    One that a side stream reads ends with the update that waits for it, or not at all. What a side stream made is
    read by updates on the main stream, and ends with one; whatever its stream is given later waits for the main stream.
    """

    def __init__(self, main: cupy.cuda.Stream, others: list[cupy.cuda.Stream], last: cupy.cuda.Stream):
        self.main, self.others, self.last = main, others, last
        self.behind: dict[tuple[Any, int], Any] = {}   # a stream, and a call that waits for it: what is waited for

    def run(self, number: int, waiting: int | None, primitive: Callable[..., Any], arguments: list[Any],
            options: dict[str, Any]) -> Any:
        """A call, by its number and that of the one that waits for it, as in Schedule.side."""
        if waiting is None:
            self.join(number)
            return primitive(*arguments, **options)
        if known(primitive.__name__).counter:
            other = self.last
        else:
            other = self.others[0]
            self.others.append(self.others.pop(0))     # in turn
        other.wait_event(self.main.record())
        with other:
            result = primitive(*arguments, **options)
        self.behind[other, waiting] = other.record()
        return result

    def join(self, number: int) -> None:
        """The main stream waits for what is due at a call."""
        for key in [key for key in self.behind if key[1] <= number]:
            self.main.wait_event(self.behind.pop(key))


class Dry:
    """Makes calls, in the place of SideStreams, for their kernels alone: an array that one would change is
    replaced by another one, which holds anything."""

    def __init__(self, program: Program):
        self.calls = program.calls

    def run(self, number: int, waiting: int | None, primitive: Callable[..., Any], arguments: list[Any],
            options: dict[str, Any]) -> Any:
        """As SideStreams.run."""
        for i in self.calls[number].known.changes:
            arguments[i] = replace(arguments[i], _another)
        return primitive(*arguments, **options)


def _place(dynamic: Dynamic) -> Array:
    """Where calls of a graph read a number that is given anew."""
    import cupy

    return cupy.zeros(2, np.uint64) if dynamic.key else cupy.zeros(1)


def _another(array: object) -> Any:
    return type(array)(array.shape, array.dtype) if is_array(array) else array


def backward_ahead(node: Node, result: Array) -> None:
    """Have the kernels of an op's backward compiled while the recorded step goes on, by a dry call for a gradient that
    looks like the op's result. Nothing is noted; an error is raised again when the gradient is wanted."""
    recorder: Any = mode.recorder
    refusal, mode.recorder = recorder.refusal, _UNHEARD
    try:
        with contextlib.suppress(Exception):
            node.k.backend.ahead(lambda: node.backward and node.backward(result, node.need))
    finally:
        mode.recorder, recorder.refusal = recorder, refusal


class _Unheard(Listener):
    """As a recorder that notes nothing."""

    recording = True


_UNHEARD = _Unheard()


GRAPHS: weakref.WeakSet[AsGraph] = weakref.WeakSet()


def give_up() -> None:
    """Destroy all graphs, at the end of a program: after that, what they launch on may end."""
    for each in GRAPHS:
        each.addresses.graph = None


at_end.append(give_up)


class NotCaptured(Exception):
    """A program that no graph can hold: cuBLAS refuses to be captured, and so does a call that waits; and a graph reads
    copies of arguments, which share no memory as the arguments do."""


@contextlib.contextmanager
def _captured(stream: cupy.cuda.Stream | None = None) -> Iterator[None]:
    """Errors within are NotCaptured; a capture on the stream ends with them, and its launches overlap."""
    import cupy

    from ..ops.cuda.launch.overlap import overlapping

    try:
        with overlapping(stream.ptr) if stream is not None else contextlib.nullcontext():
            yield
    except Exception as error:
        if stream is not None and stream.is_capturing():
            with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
                stream.end_capture()                   # to end a failed capture is an error, too
        raise NotCaptured(f"{type(error).__name__}: {error}") from error


def _overlap(arrays: Iterable[tuple[Array, bool, bool]]) -> bool:
    """Whether an array that is copied has memory in common with another one, and either is written. arrays: each with
    whether it is copied, and written. By their addresses: arrays in one memory need not be views of one array, as those
    of as_strided."""
    furthest = {(copied, writes): 0 for copied in (True, False) for writes in (True, False)}       # ends so far
    spans = sorted((*span(array), copied, writes) for array, copied, writes in arrays if array.size)
    for start, end, copied, writes in spans:
        if any(start < at for kind, at in furthest.items() if (copied or kind[0]) and (writes or kind[1])):
            return True
        furthest[copied, writes] = max(furthest[copied, writes], end)
    return False


def _require_apart(program: Program, arrays: Iterable[Array], kinds: Iterable[tuple[bool, bool]]) -> None:
    """Refuse inputs that overlap with each other, or with what comes from outside. kinds: as _overlap has them."""
    written = program.written()
    outside = {slot for call in program.calls for slot in call.reads if slot.kind == "outside"}
    if _overlap([*((array, *kind) for array, kind in zip(arrays, kinds, strict=True)),
                 *((slot.array, False, slot in written) for slot in outside)]):
        raise NotCaptured("an argument shares its memory with something else, and the step changes one of them")


class AsGraph:
    """One CUDA graph of all launches, with memory of its own that lives as long as it does. Values whose lifetimes do
    not overlap share it, see `SideStreams`.

    Inputs are copied to where the graph's calls read them, and back if these change them; those that are the same
    arrays at each replay (`fixed`, by their places) are read in place. Every replay writes its results to the
    same places: what the step returns is copied, gradients are not. The graph itself makes these copies, from and to
    `Addresses`, where it finds learning rates, too: its launch is a replay's only call of the driver.

    Threads replay it one after the other. Raises NotCaptured if a call cannot be part of a graph; nothing was
    computed then.
    """

    def __init__(self, program: Program, given: list[Any], fixed: Collection[int]):
        import cupy

        from ..ops.cuda.launch.addresses import Addresses, Results

        calls = ByCalls(program, streams=True)
        self.program, self.calls = program, calls
        self.memory, self.lock = GraphMemory(), threading.RLock()
        arrays, written = arrays_of(program, given), program.written()
        self.copied = [i for i in range(len(arrays)) if i not in fixed]
        self.kinds = [(i in self.copied, slot in written) for i, slot in enumerate(calls.inputs)]
        _require_apart(program, arrays, self.kinds)
        self.back = [at for at, i in enumerate(self.copied) if self.kinds[i][1]]
        self.read = program.numbers_read()
        returned = [*dict.fromkeys(v for v in leaves(program.outputs) if isinstance(v, Slot))]
        self.returned = {slot: f"made{i}" for i, slot in enumerate(returned)}
        made = returned + [slot for place, slot in program.grads if slot is not None and isinstance(place, int)]
        stream = cupy.cuda.Stream(non_blocking=True)
        with _captured(), stream:          # a stream of its own: launch.empty keeps nothing of what it gives there
            free_if_much()                 # what other streams left cannot be taken on this one
            numbers = list(map(_place, program.dynamics))
            program.calls[0].backend.ahead(functools.partial(calls.values, arrays, numbers, Dry(program)))
        with self.memory.as_allocator(), stream:
            with contextlib.suppress(cupy.cuda.memory.OutOfMemoryError):       # smaller ones may be there
                cupy.empty((program.peak or 0,), np.uint8)         # a chunk to cut values from: they fit more closely
            self.device = cupy.cuda.Device().id
            self.inputs = [cupy.empty(array.shape, array.dtype) if i in self.copied else array
                           for i, array in enumerate(arrays)]
            self.places = list(map(_place, program.dynamics))
            self.addresses = Addresses(self.memory.page, len(self.copied), len(self.back) + len(made),
                                       ["QQ" if program.dynamics[i].key else "d" for i in self.read])
            stream.synchronize()
            stream.begin_capture()
            with _captured(stream):
                *others, last = (cupy.cuda.Stream(non_blocking=True) for _ in range(3))
                side = SideStreams(stream, others, last)
                mine = [self.inputs[i] for i in self.copied]
                self.addresses.take([self.places[i] for i in self.read], mine)
                values = calls.values(self.inputs, self.places, Buckets(program, side))
                side.join(len(program.calls))
                results = [array if array._c_contiguous else array.copy()
                           for array in (values[slot.number] for slot in made)]
                self.addresses.give([*(mine[at] for at in self.back), *results])
                graph = stream.end_capture()
                GRAPHS.add(self)
            self.addresses.captured(graph)
            stream.synchronize()
        self.values = values                           # what replays leave behind: the same arrays each time
        self.results = [Results(array) for array in results]
        self.run: Callable[[list[Any]], Any] = self.first

    @property
    def bytes(self) -> int:
        """Memory of the graph's values, inputs and workspaces."""
        return self.memory.bytes

    def first(self, given: list[Any]) -> Any:
        """The first replay. After it memory is returned, if it is much: gradients of the recording lived until
        then."""
        self.run = self.straight(given)
        returned = self.run(given)
        free_if_much()
        return returned

    def straight(self, given: list[Any]) -> Callable[[list[Any]], Any]:
        """What a replay does, as a function that is written for the program: loops over lists that are the same
        each time would take 1.5 times as long.

        Gradients are the same Tensors each time, except those of arguments, which are results.
        """
        program = self.program
        text = Text(self.returned, lock=self.lock, mark=mark_changed, start=self.addresses.start, wrap=wrap,
                    overlap=_overlap, calls=self.calls.run,
                    memory=self.memory)                # held, so that it is there as long as the function runs
        near = [f"near{at}" for at in range(len(self.copied))]
        for at, i in enumerate(self.copied):
            text.add(f"far{at} = {text.source(program, given, i)}")
            # One with gaps, in another order or on another device is copied. array.flags is an object made at each look
            text.add(f"near{at} = far{at} if far{at}._c_contiguous and far{at}.data.device_id == {self.device} else "
                     f"far{at}.copy()")
        if any(writes for _, writes in self.kinds):    # they were apart when the graph was made
            arrays = [f"(far{self.copied.index(i)}, *{kind})" if kind[0] else f"({text.name(self.inputs[i])}, *{kind})"
                      for i, kind in enumerate(self.kinds)]
            text.add(f"if overlap([{', '.join(arrays)}]): return calls(given)")
        for dynamic in program.dynamics:               # each draw counts, read or not
            text.add(f"number{dynamic.number} = {text.name(dynamic.read)}()")
        changed = [f"given[{place}]" if isinstance(place, int) else text.name(place) for place in program.changed]
        text.add(f"mark(({''.join(f'{each}, ' for each in changed)}))")
        for at, result in enumerate(self.results):
            text.add(f"made{at} = {text.name(result.take)}()")
        arrays = [*near, *(near[at] for at in self.back), *(f"made{at}" for at in range(len(self.results)))]
        numbers = [f"{'*' * program.dynamics[i].key}number{i}" for i in self.read]
        text.add(f"start({', '.join([*(f'{each}.data.ptr' for each in arrays), *numbers])})")
        for at in self.back:
            text.add(f"if near{at} is not far{at}: far{at}[...] = near{at}")
        outputs, left = text.nested(program.outputs), iter(range(len(self.returned), len(self.results)))
        for place, slot in program.grads:
            if isinstance(place, int):
                text.add(f"given[{place}]._grad = " + ("None" if slot is None else f"wrap(made{next(left)})"))
            else:
                leaf, array = text.name(place), None if slot is None else self.values[slot.number]
                gradient = text.name(None if array is None else wrap(array))
                text.add(f"{leaf}._grad = {gradient}")
                if array is not None:
                    text.add(f"{gradient}._data = {text.name(array)}")
        text.add(f"return {outputs}")
        return text.function()


class Text:
    """A function of a replay's arguments, `given`, built line by line. A lock lets one thread at a time run it: between
    writing a row of addresses and the launch that reads it, nothing else may write one. returned: the names of the
    arrays that are returned. objects: what lines know by name."""

    def __init__(self, returned: dict[Slot, str], **objects: object):
        self.returned, self.objects, self.lines = returned, objects, ["def run(given):", "  with lock:"]
        self.wrapped: set[Slot] = set()

    def add(self, line: str) -> None:
        self.lines.append(f"    {line}")

    def name(self, value: object) -> str:
        """A name for an object."""
        name = f"v{len(self.objects)}"
        self.objects[name] = value
        return name

    def source(self, program: Program, given: list[Any], i: int) -> str:
        """The array that is input i, as `arrays_of` gives it."""
        if i < len(given):
            return f"given[{i}]._data" if isinstance(given[i], Tensor) else f"given[{i}]"
        place, _ = program.before[i - len(given)]
        return f"{f'given[{place}]' if isinstance(place, int) else self.name(place)}._grad._data"

    def nested(self, value: object) -> str:
        """What a step returns, as `replace` makes it: a Tensor around what was made in the places of each Slot."""
        if isinstance(value, Slot):
            array, tensor = self.returned[value], f"t{self.returned[value]}"
            if value in self.wrapped:
                return tensor
            self.wrapped.add(value)
            return f"({tensor} := wrap({array}))"
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            return f"{self.name(type(value))}([{', '.join(map(self.nested, value))}])"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self.name(key)}: {self.nested(item)}" for key, item in value.items()) + "}"
        return self.name(value)

    def function(self) -> Callable[[list[Any]], Any]:
        made: dict[str, Callable[[list[Any]], Any]] = {}           # separate: objects with the function would keep it
        exec("\n".join(self.lines), {"__name__": __name__, **self.objects}, made)
        return made["run"]
