"""The pass that keeps images in NHWC, as tensor cores read them, from one convolution to the next; and rows from one
linear layer to the next.

The plan decides the layout: the calls between products get their forms (ops/common/geometry/nhwc.py and rows.py), and
a value is converted once where it goes in or comes out. What has no form stays in NCHW, outside such a border.
With the precision bf16 what has a form is stored as bfloat16; parameters, sums and statistics are float32.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace as with_
from typing import Any, NamedTuple

import numpy as np

from ...ops.common.geometry.nhwc import FORMS, JOINED, STORES, Arguments, PrimitiveForm, ordered
from ...ops.common.geometry.rows import PRECISIONS, ROWS, SAME, pixels
from ...ops.common.primitives import OF_X
from ..program import Call, Program, Slot, leaves, replace
from . import fusion
from .fusion import Place, View, fuse

AXES_OF = {"i": 4, "x": 4}                 # of the values that a form's letter means; others have two or more


def pays(call: Call) -> bool:
    """Whether it pays to convert values for a call with a form: it does for a linear layer, or a convolution with small
    filters and enough channels for tensor cores. Those of LeNet-5 and of the report's net have kernels of their own
    that are faster."""
    if call.name not in ("conv2d", "conv2d_act", "conv2d_norm", "conv2d_norm_act"):
        return call.name in ("linear", "linear_act")
    g = call.arguments[3]
    return bool(g.c >= 8 and g.m >= 16 and g.kh * g.kw <= 9)


def in_nhwc(program: Program) -> Program:
    """The program with the calls around products in their forms, if that pays."""
    apart = _taken_apart(program)
    chosen = _Choice(apart).calls
    if not chosen:
        return program
    made = _Rewriting(apart, chosen)
    store = "bfloat16" if made.store == "bf16" else "float32"
    conversions = sum(call.name in ("to_nhwc", "to_nchw") for call in made.calls)
    note = f"layouts: {len(made.there)} values in NHWC as {store}, {conversions} conversions"
    program = with_(program, calls=made.calls, notes=[*program.notes, note])
    return fuse(_normalized_again(_relus_at_maxima(program)), (*JOINED, *fusion.RULES))


def _taken_apart(program: Program) -> Program:
    """The program in which joined calls without a form are separate again: convolutions with the averages behind them,
    and linear layers with activations. What stays in NCHW is joined again at the end."""
    calls: list[Call] = []
    number = 1 + max((slot.number for slot in _slots(program)), default=0)
    for call in program.calls:
        rows = call.name in ("linear_and_act", "linear_grad_act") and program.precision in PRECISIONS and pixels(
            *call.arguments[:2])
        if call.name == "conv2d_act_pool":
            *given, pooling = call.arguments
            y, averages = call.results
            calls += [with_(call, name="conv2d_act", arguments=tuple(given), results=(y,), several=False),
                      with_(call, name="avg_pool2d", arguments=(y, pooling), results=(averages,), several=False)]
        elif call.name == "conv2d_act_pool_grad_wb":
            gp, y, x, g, act, pooling = call.arguments
            gz = Slot(number, "result", y.shape, y.dtype)
            number += 1
            calls += [with_(call, name=name, arguments=given, results=(made,), several=False) for name, given, made in (
                ("avg_pool2d_grad_act", (gp, y, pooling, act), gz), ("conv2d_grad_w", (gz, x, g), call.results[0]),
                ("conv2d_grad_b", (gz,), call.results[1]))]
        elif rows and call.name == "linear_and_act":
            *given, act = call.arguments
            z, y = call.results
            calls += [with_(call, name="linear", arguments=tuple(given), results=(z,), several=False),
                      with_(call, name=act, arguments=(z,), results=(y,), several=False)]
        elif rows:
            gy, w, y, act = call.arguments
            gx = Slot(number, "result", y.shape, y.dtype)
            number += 1
            calls += [with_(call, name="linear_grad_x", arguments=(gy, w), results=(gx,)),
                      with_(call, name=f"{act}_grad_x", arguments=(gx, y))]
        else:
            calls.append(call)
    return with_(program, calls=calls)


# ---------------------------------------------------------------- which calls
class Chosen(NamedTuple):
    """A call that gets a form, and what the form takes."""

    form: PrimitiveForm
    arguments: Arguments


class _Choice:
    """The calls of a program that get a form, by their places."""

    def __init__(self, program: Program):
        view, written = View(program), program.written()
        self.program, self.every = program, view.calls
        self.kept, self.makers, self.readers = view.kept, view.makers, view.readers
        self.calls: dict[Place, Chosen] = {}
        known: dict[Slot, str] = {}                    # how what a chosen call makes is stored
        for i, call in view.calls.items():
            found = [each for form in _forms(call.name) if (each := self._chosen(call, form, written))]
            if found:
                self.calls[i] = best = max(found, key=lambda each: sum(
                    known.get(slot) == role for slot, role in _stored(call.arguments, each.form.takes)))
                known.update(_stored(call.results, best.form.gives))
        self._keep_what_pays()
        self._trim()
        while split := self._split_windows():
            for i in split:
                self.calls.pop(i, None)
            self._trim()
        self._keep_what_pays()

    def _chosen(self, call: Call, form: PrimitiveForm, written: set[Slot]) -> Chosen | None:
        """None if a form cannot do a call, or its images are no plain values."""
        if call.options or (len(form.takes), len(form.gives)) != (len(call.arguments), len(call.results)):
            return None
        parameters = {value for value, role in zip(call.arguments, form.takes, strict=True)
                      if role in "-w" and isinstance(value, Slot)}
        for value, role in (*_stored(call.arguments, form.takes), *_stored(call.results, form.gives)):
            if role != "w" and not (
                    isinstance(value, Slot) and AXES_OF.get(role, len(value.shape)) == len(value.shape) > 1
                    and 0 not in value.shape and value.dtype == (np.int32 if role == "x" else np.float32)
                    and value not in written | parameters and len(self.makers[value]) < 2):
                return None
        arguments = form.arguments(call.arguments, self.program.precision)
        return None if arguments is None else Chosen(form, arguments)

    def images(self, i: Place) -> list[tuple[Slot, str]]:
        """What a chosen call reads and makes that is stored another way, with its letters in the form."""
        call, form = self.every[i], self.calls[i].form
        return [*_stored(call.arguments, form.takes), *_stored(call.results, form.gives)]

    def _keep_what_pays(self) -> None:
        """Keep only connected calls of which one pays."""
        group: dict[Slot, Slot] = {}

        def first(slot: Slot) -> Slot:
            while group.setdefault(slot, slot) is not slot:
                slot = group[slot]
            return slot

        images = {i: [slot for slot, _ in self.images(i)] for i in self.calls}
        for slots in images.values():
            for slot in slots:
                group[first(slot)] = first(slots[0])
        paying = {first(images[i][0]) for i in self.calls if pays(self.every[i])}
        self.calls = {i: chosen for i, chosen in self.calls.items() if first(images[i][0]) in paying}

    def _trim(self) -> None:
        """Leave out calls at the edge, except products, if less has to be converted without them."""
        smaller = True
        while smaller:
            smaller = False
            for i in list(self.calls):
                name = self.every[i].name
                if name.startswith(("conv2d", "linear")) and not name.endswith("_grad_b"):
                    continue
                slots = {slot for slot, _ in self.images(i)}
                within = self._converted(slots)
                chosen = self.calls.pop(i)
                if self._converted(slots) < within:
                    smaller = True
                else:
                    self.calls[i] = chosen

    def _converted(self, slots: set[Slot]) -> int:
        """How many elements of these values go through a border. Rows of float32 are stored as plain values are."""
        same = {"v": "r"} if self.program.precision == "bf16" else {"v": "", "r": ""}

        def ways(value: Slot, places: list[Place]) -> set[str]:
            """How a value is stored where calls read or make it: "" means plain."""
            return {same.get(role, role) for i in places for role in (
                [role for slot, role in self.images(i) if slot is value] if i in self.calls else [""])}

        total = 0
        for slot in slots:
            made = ways(slot, self.makers[slot][:1]) or {""}
            read = ways(slot, self.readers[slot]) | ({""} if slot in self.kept else set())
            total += len(read - made) * math.prod(slot.shape)
        return total

    def _split_windows(self) -> set[Place]:
        """The calls that make or read winners of windows that other calls would need in another form."""
        split: set[Place] = set()
        for i in self.calls:
            for slot, role in self.images(i):
                users = {*self.makers[slot], *self.readers[slot]}
                if role == "x" and (slot in self.kept or not self.makers[slot] or not users <= self.calls.keys()):
                    split |= users
        return split


def _forms(name: str) -> list[PrimitiveForm]:
    return [*([FORMS[name]] if name in FORMS else []), *ROWS.get(name, ())]


def _stored(values: Sequence[Any], roles: str) -> Iterator[tuple[Slot, str]]:
    """Those of the values, also in tuples, that a form stores another way, with their letters in it."""
    yield from ((value, role) for of, role in zip(values, roles, strict=True) if role != "-"
                for value in leaves(of) if value is not None)


# ---------------------------------------------------------------- the program in NHWC
def _shape(slot: Slot, role: str) -> tuple[int, ...]:
    """The shape of a value as it is stored."""
    return {"i": lambda s: ordered(s), "x": lambda s: ordered(s), "r": lambda s: (math.prod(s[:-1]), 1, 1, s[-1]),
            "v": lambda s: s, "w": lambda s: (*s, 1, 1)}[role](slot.shape)


class _Rewriting:
    """A program's calls in their forms, with conversions where a value goes in or comes out."""

    def __init__(self, program: Program, chosen: dict[Place, Chosen]):
        self.store = "bf16" if program.precision == "bf16" else "float32"
        self.number = 1 + max(slot.number for slot in _slots(program))
        self.there: dict[tuple[Slot, str], Slot] = {}  # the same value, stored as a letter says
        self.plain: set[Slot] = set()                  # what was converted back
        self.calls: list[Call] = []
        self.backend = program.calls[0].backend
        wanted = {slot for i, call in enumerate(program.calls) for slot in call.reads
                  if i not in chosen} | program.kept()
        for i, call in enumerate(program.calls):
            if i in chosen:
                self.rewrite(call, *chosen[i])
                for slot, role in _stored(call.results, chosen[i].form.gives):
                    if slot in wanted or role == "w":
                        self.convert_back(slot, role)
            else:
                self.calls.append(call)

    def rewrite(self, call: Call, form: PrimitiveForm, arguments: Arguments) -> None:
        given = {slot: self.stored(slot, role) for slot, role in _stored(call.arguments, form.takes)}
        if form.name == SAME:
            self.there[call.results[0], form.gives[0]] = self.reshaped(
                given[call.arguments[0]], _shape(call.results[0], form.gives[0]))
            return
        results = tuple(slot if role == "-" else self.made(slot, role)
                        for slot, role in zip(call.results, form.gives, strict=True))
        self.calls.append(with_(call, name=form.name, results=results, arguments=replace(
            arguments, lambda value: given.get(value, value) if isinstance(value, Slot) else value)))

    def made(self, slot: Slot, role: str) -> Slot:
        """Where a value is to be stored."""
        dtype = np.dtype(np.uint8) if role == "x" else STORES["float32" if role == "w" else self.store]
        self.there[slot, role] = made = self.slot(_shape(slot, role), dtype)
        return made

    def slot(self, shape: tuple[int, ...], dtype: np.dtype) -> Slot:
        self.number += 1
        return Slot(self.number, "result", shape, dtype)

    def call(self, name: str, result: Slot, *arguments: object) -> Slot:
        self.calls.append(Call(self.backend, name, arguments, {}, (result,), False))
        return result

    def reshaped(self, slot: Slot, shape: tuple[int, ...]) -> Slot:
        return slot if slot.shape == shape else self.call("reshape", self.slot(shape, slot.dtype), slot, shape)

    def stored(self, slot: Slot, role: str) -> Slot:
        """The value as a letter says, converted if it is not there."""
        if (slot, role) in self.there:
            return self.there[slot, role]
        shape, other = _shape(slot, role), {"r": "v", "v": "r"}.get(role, "")
        if (slot, other) in self.there:
            self.there[slot, role] = self.reshaped(self.there[slot, other], shape)
        else:
            for way in "irv":                          # in another order: back first
                if (slot, way) in self.there and slot not in self.plain:
                    self.convert_back(slot, way)
            if role == "i":
                self.call("to_nhwc", self.made(slot, role), slot, self.store)
            elif role == "w" or self.store == "float32":
                self.there[slot, role] = self.reshaped(slot, shape)
            else:                                      # of images of one pixel, the order in memory stays
                rows = _shape(slot, "r")
                self.there[slot, "r"] = self.call("to_nhwc", self.slot(rows, STORES[self.store]), self.reshaped(
                    slot, (rows[0], rows[3], 1, 1)), self.store)
                self.there[slot, role] = self.reshaped(self.there[slot, "r"], shape)
        return self.there[slot, role]

    def convert_back(self, slot: Slot, role: str) -> None:
        """Make the plain value of what is stored as a letter says."""
        self.plain.add(slot)
        there = self.there[slot, role]
        if role == "i":
            self.call("to_nchw", slot, there)
        elif role == "w" or self.store == "float32":
            self.call("reshape", slot, there, slot.shape)
        else:
            rows = _shape(slot, "r")
            image = self.slot((rows[0], rows[3], 1, 1), np.dtype(np.float32))
            self.call("reshape", slot, self.call("to_nchw", image, self.reshaped(there, rows)), slot.shape)


def _slots(program: Program) -> Iterator[Slot]:
    """All values of a program."""
    named = (program.inputs, [slot for _, slot in program.before], program.outputs, [slot for _, slot in program.grads])
    yield from (slot for slot in leaves(named) if isinstance(slot, Slot))
    for call in program.calls:
        yield from call.reads
        yield from call.results


def _relus_at_maxima(program: Program) -> Program:
    """The gradient of max pooling and then that of the relu before it as one call, which looks at the maxima alone.

    If a window's maximum is above 0, the gradient passes. If not, nothing in the window is above 0.
    """
    pools = {call.results[1]: call for call in program.calls if call.name == "max_pool2d"}
    spreads = {call.results[0]: call for call in program.calls if call.name == "max_pool2d_grad_x"}
    uses = Counter(slot for call in program.calls for slot in call.reads) + Counter(program.kept())
    joined: dict[int, Call | None] = {}
    for call in program.calls:
        if call.name == "act_grad_nhwc" and call.arguments[1:4:2] == (None, "relu") and uses[
                call.arguments[0]] == 1:
            spread = spreads.get(call.arguments[0])
            pool = pools.get(spread.arguments[1]) if spread else None
            if spread and pool and pool.arguments[0] is call.arguments[2]:
                gp, index, g = spread.arguments
                joined[id(call)] = with_(call, name="max_pool2d_grad_relu", arguments=(
                    gp, index, pool.results[0], g))
                joined[id(spread)] = None
    calls = [joined.get(id(call), call) for call in program.calls]
    return with_(program, calls=[call for call in calls if call is not None])


def _normalized_again(program: Program) -> Program:
    """Normalisation and an activation of OF_X behind it as one call, which stores y alone: the activation's gradient,
    if it is wanted, normalises x again.

    It then reads the bias, which the plain gradient does not. So nothing in between may change a value, except the
    running values of batch normalisation.
    """
    view = View(program)
    calls = {**view.calls}
    for i, call in view.calls.items():
        if call.name != "act_nhwc" or call.arguments[1] not in OF_X:
            continue
        z, act = call.arguments
        at = (view.makers[z] or [i])[0]
        norm, gradients = view.calls[at], [j for j in view.readers[z] if j != i]
        if norm.name != "batch_norm_nhwc" or (norm.arguments[1], norm.arguments[-1]) != (None, None) or z in view.kept:
            continue
        x, _, w, b, *_ = norm.arguments
        own = (z, x, w, *norm.results[1:], norm.arguments[-2], act)
        if any(view.calls[j].name != "normalize_act_grad_nhwc" or view.calls[j].arguments[2:] != own
               or z in view.calls[j].arguments[:2] for j in gradients):
            continue
        if any(each.known.update and each.name != "batch_norm_nhwc"
               for each in view.between(at, max(gradients, default=at))):
            continue
        calls[at] = with_(norm, arguments=(*norm.arguments[:-1], act), results=(*call.results, *norm.results[1:]))
        del calls[i]
        for j in gradients:
            calls[j] = with_(view.calls[j], name="normalize_again_act_grad_nhwc", arguments=(
                *view.calls[j].arguments[:2], x, w, b, *own[3:]))
    return with_(program, calls=[*calls.values()])
