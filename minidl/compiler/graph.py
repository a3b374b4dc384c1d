"""Replaying a program on a CUDA device as one captured graph."""

from __future__ import annotations

import contextlib
import operator
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from ..core.pools import GraphMemory
from ..core.tensor import Tensor, mark_changed, wrap
from ..ops.common.primitives import known
from .buckets import Buckets
from .program import Dynamic, Program, Slot, leaves
from .replay import ByCalls, arrays_of

if TYPE_CHECKING:
    import cupy


class SideStreams:
    """Streams beside the main one: `others` in turn for work that an update waits for, `last` for counters.

    A call on a side stream waits for all that the main stream was given before it. The call that waits for it waits for
    all that its stream was given up to it. No call on a side stream reads what another one made, but for counters,
    which stay in order.

    So memory may serve again within a capture. A pool keeps what is let go of for the stream on which it was taken.
    A value of the main stream that no side stream touches is made, read, and followed by its successor there, in order.
    One that a side stream reads ends with the update that waits for it, or not at all. What a side stream made is
    read by updates on the main stream, and ends with one; whatever its stream is given later waits for the main stream.
    """

    def __init__(self, main: cupy.cuda.Stream, others: list[cupy.cuda.Stream], last: cupy.cuda.Stream):
        self.main, self.others, self.last = main, others, last
        self.behind: dict[tuple[Any, int], Any] = {}   # a stream, and a call that waits for it: what is waited for

    def run(self, number: int, waiting: int | None, primitive: Callable[..., Any], arguments: list[Any],
            options: dict[str, Any]) -> Any:
        """A call, by its number and that of the one that waits for it, as in Plan.side."""
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


def nested(value: object) -> tuple[list[Slot], Callable[[Sequence[Any]], Any]]:
    """(the Slots in nested tuples, lists and dicts, a function of what takes their places that makes these anew)."""
    found: list[Slot] = []

    def part(value: Any) -> Callable[[Sequence[Any]], Any]:
        if isinstance(value, Slot):
            found.append(value)
            return operator.itemgetter(len(found) - 1)
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            items, kind = list(map(part, value)), type(value)
            return lambda made: kind([item(made) for item in items])
        if isinstance(value, dict):
            entries = {name: part(item) for name, item in value.items()}
            return lambda made: {name: item(made) for name, item in entries.items()}
        return lambda made: value

    return found, part(value)


GRAPHS: weakref.WeakSet[AsGraph] = weakref.WeakSet()


def give_up() -> None:
    """All graphs are destroyed, at the end of a program: what they launch on may go then."""
    for each in GRAPHS:
        each.graph = None


class NotCaptured(Exception):
    """A program with a call that no graph can hold: cuBLAS refuses to be captured, and so does what waits."""


class AsGraph:
    """One CUDA graph of all launches, with memory of its own that lives as long as it does. Values whose lifetimes do
    not meet share it, see `SideStreams`.

    Inputs are copied to where the graph's calls read them, and back where these change them; those that are the same
    arrays at each replay (`fixed`, by their places) are read where they lie. Every replay writes its results to the
    same places: what the step returns is copied, gradients are not. The graph itself makes these copies, from and to
    `Addresses`, where it finds learning rates, too: its launch is a replay's only call of the driver.

    Threads replay it one after the other. Raises NotCaptured where a call cannot be part of a graph; nothing was
    computed then.
    """

    def __init__(self, program: Program, given: list[Any], fixed: Collection[int]):
        import cupy

        from ..ops.cuda.launch.addresses import Addresses, Results

        calls = ByCalls(program, streams=True)
        self.program, self.calls = program, calls
        self.memory = GraphMemory()
        self.lock = threading.RLock()
        arrays, written = arrays_of(program, given), program.written()
        self.copied = [i for i in range(len(arrays)) if i not in fixed]
        self.back = [at for at, i in enumerate(self.copied) if calls.inputs[i] in written]
        self.read = sorted({value.number for call in program.calls for value in leaves((call.arguments, call.options))
                            if isinstance(value, Dynamic)})
        returned, self.output = nested(program.outputs)
        of_arguments = [(place, slot) for place, slot in program.grads if isinstance(place, int)]
        made = [*returned, *(slot for _, slot in of_arguments if slot is not None)]
        stream = cupy.cuda.Stream(non_blocking=True)
        with self.memory.as_allocator(), stream:
            self.device = cupy.cuda.Device().id
            self.inputs = [cupy.empty(array.shape, array.dtype) if i in self.copied else array
                           for i, array in enumerate(arrays)]
            self.places = [cupy.zeros(1) for _ in program.dynamics]
            self.addresses = Addresses(self.memory.page, len(self.copied), len(self.back) + len(made), len(self.read))
            stream.synchronize()
            stream.begin_capture()
            try:
                *others, last = (cupy.cuda.Stream(non_blocking=True) for _ in range(3))
                side = SideStreams(stream, others, last)
                mine = [self.inputs[i] for i in self.copied]
                self.addresses.take([self.places[i] for i in self.read], mine)
                values = calls.values(self.inputs, self.places, Buckets(program, side))
                side.join(len(program.calls))
                results = [array if array._c_contiguous else array.copy()
                           for array in (values[slot.number] for slot in made)]
                self.addresses.give([*(mine[at] for at in self.back), *results])
                self.graph: Any = stream.end_capture()
                GRAPHS.add(self)
            except Exception as error:
                if stream.is_capturing():
                    with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
                        stream.end_capture()           # of what cannot be, which is an error, too
                raise NotCaptured(f"{type(error).__name__}: {error}") from error
            self.addresses.captured()
            stream.synchronize()
        self.results = [Results(array) for array in results]
        places = iter(range(len(returned), len(made)))
        self.arguments = [(place, None if slot is None else next(places)) for place, slot in of_arguments]
        self.keep(values)

    def keep(self, values: list[Any]) -> None:
        """What replays leave behind: it is the same arrays each time, and gradients are the same Tensors, but for those
        of arguments, which are results."""
        self.values = values
        leaves = [(leaf, slot) for leaf, slot in self.program.grads if isinstance(leaf, Tensor)]
        self.grads = [(leaf, wrap(values[slot.number]), values[slot.number]) for leaf, slot in leaves
                      if slot is not None]
        self.without = [leaf for leaf, slot in leaves if slot is None]

    @property
    def bytes(self) -> int:
        """Memory of the graph's values, inputs and workspaces."""
        return self.memory.bytes

    def run(self, given: list[Any]) -> Any:
        with self.lock:                                # a row of addresses, and the launch that reads it
            arrays = self.sources(given)
            numbers = self.numbers()
            mark_changed(self.calls.changed.of(given))
            results = [each.take() for each in self.results]
            # One with gaps, in another order or on another device is copied first. array.flags is made at each look
            near = [array if array._c_contiguous and array.data.device_id == self.device else array.copy()
                    for array in arrays]
            self.addresses.start(self.graph, [*near, *[near[at] for at in self.back], *results], numbers)
            for at in self.back:
                if near[at] is not arrays[at]:
                    arrays[at][...] = near[at]
            made = [wrap(array) for array in results]
            self.set_grads(given, made)
            return self.output(made)

    # Parts of a replay that benchmarks/overhead.py times, too
    def sources(self, given: list[Any]) -> list[Any]:
        """The arrays that inputs are copied from."""
        arrays = arrays_of(self.program, given)
        return [arrays[i] for i in self.copied]

    def numbers(self) -> list[float]:
        """Those that calls read."""
        numbers = [dynamic.read() for dynamic in self.program.dynamics]            # each draw counts, read or not
        return [float(numbers[i]) for i in self.read]

    def set_grads(self, given: list[Any], made: list[Tensor]) -> None:
        """Leaves have the gradients that the graph makes."""
        for leaf, gradient, array in self.grads:
            leaf._grad, gradient._data = gradient, array
        for leaf in self.without:
            leaf._grad = None
        for number, place in self.arguments:
            given[number]._grad = None if place is None else made[place]
