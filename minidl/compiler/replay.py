"""Replaying a program call by call, on any device."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..core.tensor import Tensor, mark_changed, share, wrap
from .plan import plan
from .program import Call, Dynamic, Place, Program, Slot, leaves, replace

if TYPE_CHECKING:
    from .buckets import Buckets
    from .graph import Dry, SideStreams


class ByCalls:
    """Call the primitives one after the other, without tape, geometry or checks.

    Each value is released when the plan says so, and a later one uses its memory. streams: whether `values` is to
    be given side streams.
    """

    def __init__(self, program: Program, streams: bool = False):
        self.program, self.plan = program, plan(program, streams)
        slots = {slot for call in program.calls for slot in (*call.reads, *call.results)}
        self.inputs = [*program.inputs, *(slot for _, slot in program.before)]
        slots |= {*self.inputs, *program.kept()}
        self.outside = [(slot.number, slot.array) for slot in slots if slot.array is not None]
        self.size = 1 + max((slot.number for slot in slots), default=0)
        self.steps = [(getattr(call.backend, call.name), *_template(call), [slot.number for slot in call.results],
                       call.several, [slot.number for slot in end])
                      for call, end in zip(program.calls, self.plan.ends, strict=True)]
        self.changed, self.leaves = Places(program.changed), Places([place for place, _ in program.grads])
        self.sources, self.owners = program.sources(), _owners(program)

    def values(self, arrays: list[Any], numbers: list[Any],
               side: SideStreams | Buckets | Dry | None = None) -> list[Any]:
        """Run on input arrays and the dynamic numbers' values; all values that are kept, by their slots' numbers.

        side: what makes the calls, each on its stream, see `SideStreams`.
        """
        values: list[Any] = [None] * self.size
        for slot, array in zip(self.inputs, arrays, strict=True):
            values[slot.number] = array
        for number, array in self.outside:
            values[number] = array

        def now(value: object) -> Any:
            return (values[value.number] if isinstance(value, Slot) else
                    numbers[value.number] if isinstance(value, Dynamic) else value)

        for at, (primitive, arguments, places, nested, options, results, several, end) in enumerate(self.steps):
            given = list(arguments)
            for i, number in places:
                given[i] = values[number]
            for i in nested:
                given[i] = replace(arguments[i], now)
            options = replace(options, now) if options else options
            if side is None:
                result = primitive(*given, **options)
            else:
                result = side.run(at, self.plan.side[at], primitive, given, options)
            for i, number in enumerate(results):
                values[number] = result[i] if several else result
            del given, result                          # or these would keep values beyond their end
            for number in end:
                values[number] = None
        return values

    def run(self, given: list[Any]) -> Any:
        """What the step returns for these arguments; its effects on parameters and gradients happen. After an error,
        gradients that it sets without reading them are None, as if they had been cleared first."""
        program, numbers = self.program, _Numbers(self.program)
        mark_changed(self.changed.of(given))           # before the first write: an interrupted update is a change, too
        arrays = arrays_of(program, given)
        try:
            values = self.values(arrays, numbers)
        except BaseException:
            for leaf, (place, _) in zip(self.leaves.of(given), program.grads, strict=True):
                if not any(place is other for other, _ in program.before):
                    leaf._grad = None
            raise
        numbers.read()                                 # what no call needs was drawn, too
        for leaf, (_, slot) in zip(self.leaves.of(given), program.grads, strict=True):
            leaf._grad = None if slot is None else wrap(values[slot.number])

        made: dict[Slot, Tensor] = {}
        known: dict[Slot, Any] = {}                    # by whose memory it is: what others know it by

        def returned(value: object) -> Any:
            if not isinstance(value, Slot):
                return value
            if value not in made:
                t = made[value] = wrap(values[value.number])
                root = self.sources.get(value, value)
                of = known.setdefault(root, self.owners[root](given) if root in self.owners else t)
                if isinstance(of, Tensor) and of is not t:         # and no array
                    share(t, of)
            return made[value]
        return replace(program.outputs, returned)


class _Numbers(list[Any]):
    """The numbers that change, each read when a call needs it or one after it: an error leaves later ones undrawn."""

    def __init__(self, program: Program):
        super().__init__()
        self.left = iter(program.dynamics)

    def read(self, count: float = math.inf) -> None:
        """Read them until there are `count`."""
        while len(self) < count and (dynamic := next(self.left, None)) is not None:
            self.append(dynamic.read())

    def __getitem__(self, number: int) -> object:  # type: ignore[override]  # no slices
        self.read(number + 1)
        return super().__getitem__(number)


def _owners(program: Program) -> dict[Slot, Callable[[list[Any]], Any]]:
    """How to get, from the arguments, at what knows a value's memory outside: an argument, a Tensor from outside, or a
    gradient."""
    owners: dict[Slot, Callable[[list[Any]], Any]] = {slot: operator.itemgetter(i)
                                                      for i, slot in enumerate(program.inputs)}
    tensors = {id(t._data): t for t in program.facts.tensors}
    for slot in {*program.sources().values(), *program.kept()}:
        if slot.array is not None and id(slot.array) in tensors:
            owners[slot] = functools.partial(lambda t, given: t, tensors[id(slot.array)])
    for place, gradient in program.grads:
        if gradient is not None:
            owners[gradient] = functools.partial(lambda places, given: places.of(given)[0]._grad, Places([place]))
    return owners


class Places:
    """Tensors of a program: those from outside, and those that are arguments of the call."""

    def __init__(self, places: list[Place]):
        self.places, self.outside = places, all(isinstance(place, Tensor) for place in places)

    def of(self, given: list[Any]) -> list[Tensor]:
        if self.outside:
            return self.places  # type: ignore[return-value]  # all of them Tensors
        return [given[place] if isinstance(place, int) else place for place in self.places]


def arrays_of(program: Program, given: list[Any]) -> list[Any]:
    """What a program's inputs are, for these arguments."""
    arrays = [value._data if isinstance(value, Tensor) else value for value in given]
    if program.before:
        leaves = Places([place for place, _ in program.before]).of(given)
        arrays += [leaf._grad._data for leaf in leaves]  # type: ignore[union-attr]  # facts say that there is one
    return arrays


def _template(call: Call) -> tuple[tuple[Any, ...], list[tuple[int, int]], list[int], dict[str, Any]]:
    """(arguments, where plain Slots go and their numbers, which arguments hold others, options)."""
    places = [(i, a.number) for i, a in enumerate(call.arguments) if isinstance(a, Slot)]
    nested = [i for i, a in enumerate(call.arguments)
              if not isinstance(a, Slot) and any(isinstance(v, (Slot, Dynamic)) for v in leaves(a))]
    return call.arguments, places, nested, call.options
