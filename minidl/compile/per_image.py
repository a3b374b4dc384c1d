"""The pass that makes one call of all that a step does to each image by itself.

A net whose images fit a multiprocessor's shared memory needs no array in global memory between its layers: a kernel
generated for the region takes an image from its pixels to the gradients of everything it met (ops/cuda/image).
"""

from __future__ import annotations

from dataclasses import replace as with_
from typing import Any

from ..ops.image import Region, Step, Value
from .program import Call, Program, Slot, replace

# What primitives take and give: i: a value of each image; p: a parameter; l: labels; c: a constant;
# s: a sum over images.
PRIMITIVES: dict[str, tuple[str, str]] = {
    "conv2d": ("ippc", "i"), "conv2d_act": ("ippcc", "i"), "conv2d_act_pool": ("ippccc", "ii"),
    "conv2d_grad_x": ("ipc", "i"), "conv2d_grad_w": ("iic", "s"), "conv2d_grad_b": ("i", "s"),
    "linear": ("ipp", "i"), "linear_act": ("ippc", "i"), "linear_grad_x": ("ip", "i"),
    "linear_grad_act": ("ipic", "i"), "linear_grad_w": ("ii", "s"), "linear_grad_b": ("i", "s"),
    "avg_pool2d": ("ic", "i"), "avg_pool2d_grad_x": ("ic", "i"), "avg_pool2d_grad_act": ("iicc", "i"),
    "tanh": ("i", "i"), "sigmoid": ("i", "i"), "relu": ("i", "i"),
    "tanh_grad_x": ("ii", "i"), "sigmoid_grad_x": ("ii", "i"), "relu_grad_x": ("ii", "i"),
    "reshape": ("ic", "i"), "cross_entropy_with_grad": ("ilcc", "si"),
}


MOST_PRODUCTS = 512                        # images up to which the gradients of linear layers are part of it


def per_image(program: Program) -> Program:
    """Replace the calls before the update that treat images one by one, where the backend can do them as one."""
    members = _members(program)
    if not any(call.name == "cross_entropy_with_grad" for call in members):
        return program
    region, given, made = _region(program, members)
    backend = members[0].backend
    if not backend.can_image_step(region):
        return program
    one = Call(backend, "image_step", (region, *given), {}, tuple(made), True)
    own, before, after = set(map(id, members)), [], []
    late: set[Slot] = {slot for call in members for slot in call.results}
    for call in program.calls:
        if id(call) in own:
            continue
        follows = call.effect and call.name == "sgd" or not late.isdisjoint(call.reads())
        late.update(call.results if follows else ())
        (after if follows else before).append(call)
    note = f"per image: {len(members) - 1} calls fewer"
    return with_(program, calls=[*before, one, *after], notes=[*program.notes, note])


def _members(program: Program) -> list[Call]:
    """The calls that can be of the region: known ones, on images of one batch, that wait for nothing outside it that
    waits for the region itself."""
    members: list[Call] = []
    made: set[Slot] = set()
    late: set[Slot] = set()                            # made outside from what the region makes
    n = None
    for call in program.calls:
        if call.effect:
            if call.name == "check_labels":            # it looks at labels alone, wherever it stands
                continue
            break
        roles, _ = PRIMITIVES.get(call.name, ("", ""))
        images = [a for a, role in zip(call.arguments, roles) if role in "il"]
        if n is None and call.name.startswith("conv2d") and images:
            n = images[0].shape[0]
        fits = (bool(roles) and len(roles) == len(call.arguments) and not call.options and n
                and late.isdisjoint(call.reads()) and (not members or call.backend is members[0].backend)
                and all(a.shape[:1] == (n,) for a in images)
                and all(isinstance(a, Slot) or a is None for a, role in zip(call.arguments, roles) if role in "ip")
                and not (call.name == "reshape" and call.results[0].shape[:1] != (n,))
                and not (n > MOST_PRODUCTS and _is_product(call)))
        if fits and (members or call.name.startswith("conv2d")):
            members.append(call)
            made.update(call.results)
        elif not (made | late).isdisjoint(call.reads()):
            late.update(call.results)
    return members


def _is_product(call: Call) -> bool:
    """Whether a call is a product over images: with many of those, a kernel of its own is faster."""
    return call.name == "linear_grad_w" or call.name == "conv2d_grad_w" and call.arguments[0].shape[2:] == (1, 1)


def _region(program: Program, members: list[Call]) -> tuple[Region, list[Slot], list[Slot]]:
    """(the region, what it is given, what it makes that others look at)"""
    numbers: dict[Slot, Value] = {}

    def value(a: Any) -> Any:
        return numbers.setdefault(a, Value(len(numbers))) if isinstance(a, Slot) else a

    steps = tuple(Step(call.name, replace(call.arguments, value), tuple(map(value, call.results))) for call in members)
    own, made = set(map(id, members)), {slot for call in members for slot in call.results}
    read = {slot for call in program.calls if id(call) not in own for slot in call.reads()} | program.kept()
    given, wanted = [s for s in numbers if s not in made], [s for s in numbers if s in made and s in read]
    labels = next(call.arguments[1] for call in members if call.name == "cross_entropy_with_grad")
    region = Region(labels.shape[0], steps, tuple(numbers[s] for s in given), tuple(numbers[s] for s in wanted),
                    tuple(tuple(s.shape) for s in numbers), tuple(str(s.dtype) for s in numbers))
    return region, given, wanted
