"""The pass that lets images lie in NHWC, as tensor cores read them, from one convolution to the next.

Layout is a decision of the plan: the calls between convolutions get their forms in NHWC (ops/common/geometry/nhwc.py),
and conversions stand where a value goes in or comes out, each once. What has no form keeps to NCHW behind such a
border. With the precision bf16 images in NHWC are stored as bfloat16; parameters, sums and statistics are float32.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace as with_
from types import SimpleNamespace

import numpy as np

from ...ops.common.geometry.nhwc import FORMS, STORES, Arguments, Form, ordered
from ...ops.common.primitives import OF_X
from ..program import Call, Program, Slot, leaves
from .fusion import Rule, View, fuse, rule

# What the forms in NHWC are joined to
RULES: tuple[Rule, ...] = (
    rule("""
        gz = act_grad_nhwc(gy, other, y, act)
        db = conv2d_grad_b_nhwc(gz)
        """, "gz, db = act_grad_b_nhwc(gy, other, y, act)"),
    rule("""
        gz = max_pool2d_grad_relu_nhwc(gp, index, p, g)
        db = conv2d_grad_b_nhwc(gz)
        """, "gz, db = max_pool2d_grad_relu_b_nhwc(gp, index, p, g)"),
    rule("""
        y = conv2d_nhwc(x, w, b, g, act, precision)
        p, index = max_pool2d_nhwc(y, pooling)
        """, "p, index = conv2d_max_pool_nhwc(x, w, b, g, act, precision, pooling)"),
    *[each for both in ("dx, other", "other, dx") for each in (
        rule(f"""
            dx = conv2d_grad_x_nhwc(dy, k, g, precision)
            gz, db = act_grad_b_nhwc({both}, y, act)
            """, "gz, db = conv2d_grad_x_act_b_nhwc(dy, k, g, precision, other, y, act)"),
        rule(f"""
            dx = conv2d_grad_x_nhwc(dy, k, g, precision)
            gz, gx, gw, gb = normalize_act_grad_nhwc({both}, y, x, w, mean, rstd, sets, act)
            """, "gz, gx, gw, gb = "
                 "conv2d_grad_x_norm_nhwc(dy, k, g, precision, other, y, x, w, mean, rstd, sets, act)"))],
)


def pays(call: Call) -> bool:
    """Whether a call is a convolution for whose sake images are converted: small filters, and enough channels for
    tensor cores. Those of LeNet-5 and of the report's net have kernels of their own that are faster."""
    if call.name not in ("conv2d", "conv2d_act", "conv2d_norm", "conv2d_norm_act"):
        return False
    g = call.arguments[3]
    return bool(g.c >= 8 and g.m >= 16 and g.kh * g.kw <= 9)


def in_nhwc(program: Program) -> Program:
    """The program with the calls around convolutions in NHWC, where that pays."""
    apart = _taken_apart(program)
    chosen = _Choice(apart).calls
    if not chosen:
        return program
    program = apart
    program, values, conversions = _rewritten(program, chosen)
    store = "bfloat16" if program.precision == "bf16" else "float32"
    note = f"layouts: {values} values in NHWC as {store}, {conversions} conversions"
    return fuse(_normalized_again(_relus_at_maxima(with_(program, notes=[*program.notes, note]))), RULES)


def _taken_apart(program: Program) -> Program:
    """Convolutions that were joined with the averages behind them, which have no form together."""
    calls: list[Call] = []
    number = 1 + max((slot.number for slot in _slots(program)), default=0)
    for call in program.calls:
        if call.name == "conv2d_act_pool":
            *given, pooling = call.arguments
            y, averages = call.results
            calls += [with_(call, name="conv2d_act", arguments=tuple(given), results=(y,), several=False),
                      with_(call, name="avg_pool2d", arguments=(y, pooling), results=(averages,), several=False)]
        elif call.name == "conv2d_act_pool_grad_wb":
            gp, y, x, g, act, pooling = call.arguments
            gz = Slot(number, "result", y)
            number += 1
            calls += [with_(call, name=name, arguments=given, results=(made,), several=False) for name, given, made in (
                ("avg_pool2d_grad_act", (gp, y, pooling, act), gz), ("conv2d_grad_w", (gz, x, g), call.results[0]),
                ("conv2d_grad_b", (gz,), call.results[1]))]
        else:
            calls.append(call)
    return with_(program, calls=calls)


# ---------------------------------------------------------------- which calls
class _Choice:
    """The calls of a program that are made in NHWC, by their places, and the arguments of their forms."""

    def __init__(self, program: Program):
        view, written = View(program), program.written()
        self.program, self.kept, self.makers, self.readers = program, view.kept, view.makers, view.readers
        self.calls: dict[int, Arguments] = {}
        for i, call in enumerate(program.calls):
            arguments = self._arguments(call, written)
            if arguments is not None:
                self.calls[i] = arguments
        self._keep_what_pays()
        self._trim()
        while split := self._split_windows():
            for i in split:
                self.calls.pop(i, None)
            self._trim()
        self._keep_what_pays()

    def _arguments(self, call: Call, written: set[Slot]) -> Arguments | None:
        """What a call's form takes; None where it has none, or its images are no plain values."""
        form = FORMS.get(call.name)
        if form is None or call.options or (len(form.takes), len(form.gives)) != (
                len(call.arguments), len(call.results)):
            return None
        parameters = {value for value, role in zip(call.arguments, form.takes, strict=True)
                      if role == "-" and isinstance(value, Slot)}
        for value, role in (*zip(call.arguments, form.takes, strict=True), *zip(call.results, form.gives, strict=True)):
            if role != "-" and value is not None and not (
                    isinstance(value, Slot) and len(value.shape) == 4 and 0 not in value.shape
                    and value.dtype == (np.float32 if role == "i" else np.int32)
                    and value not in written | parameters and len(self.makers[value]) < 2):
                return None
        return form.arguments(call.arguments, self.program.precision)

    def _keep_what_pays(self) -> None:
        """Only connected calls of which one does."""
        group: dict[Slot, Slot] = {}

        def first(slot: Slot) -> Slot:
            while group.setdefault(slot, slot) is not slot:
                slot = group[slot]
            return slot

        images = {i: [slot for slot, _ in _images(self.program.calls[i])] for i in self.calls}
        for slots in images.values():
            for slot in slots:
                group[first(slot)] = first(slots[0])
        paying = {first(images[i][0]) for i in self.calls if pays(self.program.calls[i])}
        self.calls = {i: arguments for i, arguments in self.calls.items() if first(images[i][0]) in paying}

    def _trim(self) -> None:
        """Leave out calls at the edge, but convolutions, without which fewer bytes have to be converted."""
        smaller = True
        while smaller:
            smaller = False
            for i in list(self.calls):
                call = self.program.calls[i]
                if call.name.startswith("conv2d") and call.name != "conv2d_grad_b":
                    continue
                slots = {slot for slot, _ in _images(call)}
                within = self._converted(slots)
                arguments = self.calls.pop(i)
                if self._converted(slots) < within:
                    smaller = True
                else:
                    self.calls[i] = arguments

    def _converted(self, slots: set[Slot]) -> int:
        """How many elements of these values go through a border."""
        total = 0
        for slot in slots:
            inside = [slot in _images_of(self.program.calls[i]) and i in self.calls for i in self.readers[slot]]
            made_inside = bool(self.makers[slot]) and self.makers[slot][0] in self.calls
            out = made_inside and (slot in self.kept or not all(inside))
            into = not made_inside and any(inside)
            total += (out or into) * math.prod(slot.shape)
        return total

    def _split_windows(self) -> set[int]:
        """The calls that make or read winners of windows which other calls would have in another form."""
        split: set[int] = set()
        for i in self.calls:
            for slot, role in _images(self.program.calls[i]):
                users = {*self.makers[slot], *self.readers[slot]}
                if role == "x" and (slot in self.kept or not self.makers[slot] or not users <= self.calls.keys()):
                    split |= users
        return split


def _images(call: Call) -> Iterator[tuple[Slot, str]]:
    """The images, and winners of windows, that a call with a form reads and makes, with their letters in it."""
    form = FORMS[call.name]
    yield from ((slot, role) for slots, roles in ((call.arguments, form.takes), (call.results, form.gives))
                for slot, role in zip(slots, roles, strict=True) if role != "-" and slot is not None)


def _images_of(call: Call) -> set[Slot]:
    """Those that it reads."""
    form = FORMS.get(call.name)
    if form is None or len(form.takes) != len(call.arguments):
        return set()
    return {slot for slot, role in zip(call.arguments, form.takes, strict=True) if role != "-"
            and isinstance(slot, Slot)}


# ---------------------------------------------------------------- the program in NHWC
def _rewritten(program: Program, chosen: dict[int, Arguments]) -> tuple[Program, int, int]:
    """The program with the chosen calls in their forms; how many values are in NHWC, and how many conversions there
    are."""
    store = "bf16" if program.precision == "bf16" else "float32"
    number = 1 + max(slot.number for slot in _slots(program))
    there: dict[Slot, Slot] = {}                       # the same value in NHWC
    wanted = {slot for i, call in enumerate(program.calls) for slot in call.reads
              if i not in chosen} | program.kept()

    def made(slot: Slot, dtype: np.typing.DTypeLike) -> Slot:
        there[slot] = Slot(number + len(there), "result", SimpleNamespace(
            shape=ordered(slot.shape), dtype=np.dtype(dtype)))
        return there[slot]

    calls: list[Call] = []
    conversions = 0
    for i, call in enumerate(program.calls):
        if i not in chosen:
            calls.append(call)
            continue
        form: Form = FORMS[call.name]
        for slot, role in zip(call.arguments, form.takes, strict=True):
            if role == "i" and slot is not None and slot not in there:
                calls.append(with_(call, name="to_nhwc", arguments=(slot, store), results=(made(slot, STORES[store]),),
                                   several=False))
                conversions += 1
        images = {slot for slot, _ in _images(call)}
        arguments = tuple(there[value] if isinstance(value, Slot) and value in images else value for value in chosen[i])
        results = tuple(slot if role == "-" else made(slot, STORES[store] if role == "i" else np.uint8)
                        for slot, role in zip(call.results, form.gives, strict=True))
        calls.append(with_(call, name=form.name, arguments=arguments, results=results))
        for slot, role in zip(call.results, form.gives, strict=True):
            if role == "i" and slot in wanted:
                calls.append(with_(call, name="to_nchw", arguments=(there[slot],), results=(slot,), several=False))
                conversions += 1
    return with_(program, calls=calls), len(there), conversions


def _slots(program: Program) -> Iterator[Slot]:
    """All values of a program."""
    named = (program.inputs, [slot for _, slot in program.before], program.outputs, [slot for _, slot in program.grads])
    yield from (slot for slot in leaves(named) if isinstance(slot, Slot))
    for call in program.calls:
        yield from call.reads
        yield from call.results


def _relus_at_maxima(program: Program) -> Program:
    """The gradient of relu behind that of the maxima over its results: one call, which looks at the maxima alone.

    What won is above 0, and lets pass, or it is not, and then nothing in its window is.
    """
    pools = {call.results[1]: call for call in program.calls if call.name == "max_pool2d_nhwc"}
    spreads = {call.results[0]: call for call in program.calls if call.name == "max_pool2d_grad_x_nhwc"}
    uses = Counter(slot for call in program.calls for slot in call.reads) + Counter(program.kept())
    joined: dict[int, Call | None] = {}
    for call in program.calls:
        if call.name == "act_grad_nhwc" and call.arguments[1:4:2] == (None, "relu") and uses[
                call.arguments[0]] == 1:
            spread = spreads.get(call.arguments[0])
            pool = pools.get(spread.arguments[1]) if spread else None
            if spread and pool and pool.arguments[0] is call.arguments[2]:
                gp, index, g = spread.arguments
                joined[id(call)] = with_(call, name="max_pool2d_grad_relu_nhwc", arguments=(
                    gp, index, pool.results[0], g))
                joined[id(spread)] = None
    calls = [joined.get(id(call), call) for call in program.calls]
    return with_(program, calls=[call for call in calls if call is not None])


def _normalized_again(program: Program) -> Program:
    """Normalisation and an activation of OF_X behind it as one call, which stores y alone: the activation's gradient,
    if anybody wants it, normalises x again.

    It reads the bias then, which the plain gradient does not: nothing in between may change a value, but for the
    running values of batch normalisation.
    """
    view = View(program)
    calls: list[Call | None] = [*program.calls]
    for i, call in enumerate(program.calls):
        if call.name != "act_nhwc" or call.arguments[1] not in OF_X:
            continue
        z, act = call.arguments
        at = (view.makers[z] or [i])[0]
        norm, gradients = program.calls[at], [j for j in view.readers[z] if j != i]
        if norm.name != "batch_norm_nhwc" or (norm.arguments[1], norm.arguments[-1]) != (None, None) or z in view.kept:
            continue
        x, _, w, b, *_ = norm.arguments
        own = (z, x, w, *norm.results[1:], norm.arguments[-2], act)
        if any(program.calls[j].name != "normalize_act_grad_nhwc" or program.calls[j].arguments[2:] != own
               or z in program.calls[j].arguments[:2] for j in gradients):
            continue
        if any(each.known.update and each.name != "batch_norm_nhwc"
               for each in program.calls[at:max(gradients, default=at)]):
            continue
        calls[at] = with_(norm, arguments=(*norm.arguments[:-1], act), results=(*call.results, *norm.results[1:]))
        calls[i] = None
        for j in gradients:
            calls[j] = with_(program.calls[j], name="normalize_again_act_grad_nhwc", arguments=(
                *program.calls[j].arguments[:2], x, w, b, *own[3:]))
    return with_(program, calls=[call for call in calls if call is not None])
