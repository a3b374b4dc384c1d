"""Replaying a program on a CUDA device as one captured graph."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from ..core.device import Array, is_array
from ..core.mode import Listener, mode
from ..core.pools import GraphMemory, free_all_blocks
from ..core.tensor import Node, Tensor, mark_changed, wrap
from ..ops.common.primitives import known
from .buckets import Buckets
from .program import Dynamic, Program, Slot, leaves, replace
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


class Dry:
    """Makes calls, in the place of SideStreams, for their kernels alone: what one would change is another array
    instead, which holds anything."""

    def __init__(self, program: Program):
        self.calls = program.calls

    def run(self, number: int, waiting: int | None, primitive: Callable[..., Any], arguments: list[Any],
            options: dict[str, Any]) -> Any:
        """As SideStreams.run."""
        for i in self.calls[number].known.changes:
            arguments[i] = replace(arguments[i], _another)
        return primitive(*arguments, **options)


def _another(array: object) -> Any:
    return type(array)(array.shape, array.dtype) if is_array(array) else array


def backward_ahead(node: Node, result: Array) -> None:
    """Have the kernels of an op's backward compiled while the recorded step goes on, by a dry call for a gradient that
    looks like the op's result. Nothing is noted; an error is raised again where the gradient is wanted."""
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


def _copied(array: Array) -> Any:
    """A copy in other memory of the same device, by the driver: a quarter of the host's time of array.copy()."""
    if not array._c_contiguous:                        # a view with gaps, or in another order
        return array.copy()
    copy = type(array)(array.shape, array.dtype)       # a third of the time of cupy.empty_like
    copy.data.copy_from_device_async(array.data, array.nbytes)
    return copy


GRAPHS: weakref.WeakSet[AsGraph] = weakref.WeakSet()


def give_up() -> None:
    """All graphs are destroyed, at the end of a program: what they launch on may go then."""
    for each in GRAPHS:
        each.graph = None


class NotCaptured(Exception):
    """A program with a call that no graph can hold: cuBLAS refuses to be captured, and so does what waits."""


@contextlib.contextmanager
def _captured(stream: cupy.cuda.Stream | None = None) -> Iterator[None]:
    """Errors within are NotCaptured; a capture on the stream ends with them."""
    import cupy

    try:
        yield
    except Exception as error:
        if stream is not None and stream.is_capturing():
            with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
                stream.end_capture()                   # of what cannot be, which is an error, too
        raise NotCaptured(f"{type(error).__name__}: {error}") from error


class AsGraph:
    """One CUDA graph of all launches, with memory of its own that lives as long as it does. Values whose lifetimes do
    not meet share it, see `SideStreams`.

    Inputs are copied to where the graph reads them, and back where it changes them; those that are the same arrays at
    each replay (`fixed`, by their places) are read where they lie. Learning rates are read from the device, and stored
    there when they change, by a kernel: the host does not wait. Every replay writes its results to the same places:
    what the step returns is copied, gradients are not.

    Raises NotCaptured where a call cannot be part of a graph; nothing was computed then.
    """

    def __init__(self, program: Program, given: list[Any], fixed: Collection[int]):
        import cupy

        calls = ByCalls(program, streams=True)
        self.program, self.calls = program, calls
        self.memory = GraphMemory()
        self.numbers: list[Any] | None = None
        self.replayed = False
        stream = cupy.cuda.Stream(non_blocking=True)
        arrays = arrays_of(program, given)
        with _captured(), stream:          # a stream of its own: launch.empty keeps nothing of what it gives there
            free_all_blocks()              # what other streams left cannot be taken on this one
            numbers = [cupy.empty(1) for _ in program.dynamics]
            program.calls[0].backend.ahead(functools.partial(calls.values, arrays, numbers, Dry(program)))
        with self.memory.as_allocator(), stream:
            self.inputs = [array if i in fixed else cupy.empty_like(array)
                           for i, array in enumerate(arrays)]
            self.places = [cupy.zeros(1) for _ in program.dynamics]
            stream.synchronize()
            stream.begin_capture()
            with _captured(stream):
                *others, last = (cupy.cuda.Stream(non_blocking=True) for _ in range(3))
                side = SideStreams(stream, others, last)
                values = calls.values(self.inputs, self.places, Buckets(program, side))
                side.join(len(program.calls))
                self.graph: Any = stream.end_capture()
                GRAPHS.add(self)
        self.read = sorted({value.number for call in program.calls for value in leaves((call.arguments, call.options))
                            if isinstance(value, Dynamic)})
        written = program.written()
        self.copied = [(i, mine, mine.data, mine.nbytes) for i, mine in enumerate(self.inputs) if i not in fixed]
        self.back = [i for i, *_ in self.copied if calls.inputs[i] in written]
        self.keep(values)

    def keep(self, values: list[Any]) -> None:
        """What replays leave behind: it is the same arrays each time, and gradients are the same Tensors, but for those
        of arguments, which are copied."""
        self.values = values
        grads = [(place, None if slot is None else values[slot.number]) for place, slot in self.program.grads]
        self.grads = [(place, None if array is None else wrap(array), array) for place, array in grads
                      if isinstance(place, Tensor)]
        self.arguments = [(place, array) for place, array in grads if isinstance(place, int)]

    @property
    def bytes(self) -> int:
        """Memory of the graph's values, inputs and workspaces."""
        return self.memory.bytes

    def run(self, given: list[Any]) -> Any:
        arrays = arrays_of(self.program, given)
        for i, mine, memory, size in self.copied:
            array = arrays[i]
            if array._c_contiguous:                    # as array.flags says, which is an object made at each look
                memory.copy_from_device_async(array.data, size)
            else:
                mine[...] = array
        if self.program.dynamics:
            numbers = [dynamic.read() for dynamic in self.program.dynamics]        # each draw counts, read or not
            if numbers != self.numbers:
                for i in self.read:
                    self.places[i].fill(float(numbers[i]))
                self.numbers = numbers
        mark_changed(self.calls.changed.of(given))
        self.graph.launch()
        for i in self.back:
            arrays[i][...] = self.inputs[i]
        for leaf, gradient, array in self.grads:
            leaf._grad = gradient
            if gradient is not None:
                gradient._data = array
        for number, array in self.arguments:
            given[number]._grad = None if array is None else wrap(_copied(array))
        if not self.replayed:
            self.replayed = True
            free_all_blocks()              # the gradients of the recording, and what they kept from being returned
        return replace(self.program.outputs,
                       lambda v: wrap(_copied(self.values[v.number])) if isinstance(v, Slot) else v)
