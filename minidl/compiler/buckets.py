"""Kernels write gradients to where the mean over the ranks is formed: a captured step needs no launch that puts them
one behind the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..core.device import Array
from ..ops.common.ranks import ALIGNMENT, laid_out, weight
from .program import Program, Slot

if TYPE_CHECKING:
    from ..distributed.world import World
    from .graph import SideStreams


def averaged(program: Program) -> dict[int, tuple[Slot, ...]]:
    """The calls of `rank_mean`, by number, whose arrays may be parts of one array from the start; and these arrays.

    Such arrays are of one dtype, results of calls and no views, and nothing else reads them, since the mean is written
    over them. The rank's share is 1 / the number of ranks: NCCL's mean has no other weights.
    """
    calls = program.calls
    made = {slot for call in calls if not (call.known.shares or call.effect) for slot in call.results}
    readers = Counter([*(slot for call in calls for slot in call.reads), *program.kept()])
    found = {}
    for number, call in enumerate(calls):
        if call.name == "rank_mean":
            slots, share, world = call.arguments
            if (share is not None and weight(share, world.size) == 1 and len({slot.dtype for slot in slots}) == 1
                    and all(slot in made and readers[slot] == 1 for slot in slots)):
                found[number] = tuple(slots)
    return found


class Bucket:
    """The arrays of one mean. All of their memory is taken before the first is made; `Program.peak` counts each from
    when it is made."""

    def __init__(self, slots: tuple[Slot, ...]):
        self.slots = slots
        self.flat: Array | None = None
        self.parts: dict[Slot, Array] = {}

    def open(self) -> None:
        if self.flat is None:
            import cupy

            self.flat, parts = laid_out(cupy.empty, [slot.shape for slot in self.slots], self.slots[0].dtype, ALIGNMENT)
            self.parts = dict(zip(self.slots, parts, strict=True))

    def holds(self, arrays: tuple[Array, ...]) -> bool:
        """Whether each array is its part: a launcher may have used memory of that size for something else."""
        return all(not part.size or (array.flags.c_contiguous and array.data.ptr == part.data.ptr
                                     and array.data.mem is part.data.mem)
                   for array, part in zip(arrays, self.parts.values(), strict=True))


class Buckets:
    """Makes calls on their streams, in place of SideStreams.

    While a call makes arrays that are averaged, it gets a part of a bucket whenever it requests memory of exactly that
    size, or of the size of several adjacent parts. If all were made there, the mean is formed in place; if not,
    `rank_mean` copies them. A bucket is memory of the main stream: a side stream that writes to it waits for all that
    came before, and the mean waits for the side stream.
    """

    def __init__(self, program: Program, streams: SideStreams):
        self.streams = streams
        self.means = {number: Bucket(slots) for number, slots in averaged(program).items()}
        buckets = {slot: bucket for bucket in self.means.values() for slot in bucket.slots}
        self.makers = {number: [(slot, buckets[slot]) for slot in call.results if slot in buckets]
                       for number, call in enumerate(program.calls) if not buckets.keys().isdisjoint(call.results)}

    def run(self, number: int, waiting: int | None, primitive: Callable[..., Any], arguments: list[Any],
            options: dict[str, Any]) -> Any:
        """As SideStreams.run."""
        bucket, wanted = self.means.pop(number, None), self.makers.pop(number, ())
        if bucket is not None and bucket.holds(arguments[0]):
            primitive = _in_place(bucket.flat)
        elif wanted:
            import cupy

            for _, each in wanted:
                each.open()
            parts = [each.parts[slot] for slot, each in wanted]
            with cupy.cuda.using_allocator(_handing_out(parts, cupy.cuda.get_allocator())):
                return self.streams.run(number, waiting, primitive, arguments, options)
        return self.streams.run(number, waiting, primitive, arguments, options)


def _in_place(flat: Array) -> Callable[..., tuple[Array, ...]]:
    def rank_mean(arrays: tuple[Array, ...], share: float, world: World) -> tuple[Array, ...]:
        world.mean(flat)
        return tuple(arrays)
    return rank_mean


def _handing_out(parts: list[Array], others: Callable[[int], Any]) -> Callable[[int], Any]:
    """An allocator that gives each part once, and other memory if none has the size."""
    free = sorted((part for part in parts if part.size), key=lambda part: part.data.ptr)

    def take(size: int) -> Any:
        for i, first in enumerate(free):
            for j, last in enumerate(free[i:], i + 1):
                if (sum(part.nbytes for part in free[i:j]) == size == last.data.ptr + last.nbytes - first.data.ptr
                        and last.data.mem is first.data.mem):
                    del free[i:j]
                    return first.data
        return others(size)
    return take
