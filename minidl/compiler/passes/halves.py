"""The pass that stores y of a convolution in bfloat16 if only the gradient of what follows it reads it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace as with_

import numpy as np

from ..program import Call, Program, Slot

FORWARD, BACKWARD = "conv2d_act_pool", "conv2d_act_pool_grad_wb"


def in_halves(program: Program) -> Program:
    """The program, one in the precision bf16, with such values stored in half the bytes if the backend can."""
    kept, readers = program.kept(), defaultdict[Slot, list[Call]](list)
    for call in program.calls:
        for slot in call.reads:
            readers[slot].append(call)
    halves: dict[Slot, Slot] = {}
    for call in program.calls:
        if call.name == FORWARD and call.backend.stores_half:
            y, (*_, g, _act, pooling) = call.results[0], call.arguments
            if (y not in kept and y.dtype == np.float32 and all(
                    reader.name == BACKWARD and reader.arguments[1] is y for reader in readers[y])
                    and call.backend.stores_half(g, pooling)):
                halves[y] = Slot(y.number, "result", y.shape, np.dtype(np.uint16))
    if not halves:
        return program

    def stored(call: Call) -> Call:
        if call.name == FORWARD and call.results[0] in halves:
            return with_(call, name="conv2d_act_pool_half", results=(halves[call.results[0]], *call.results[1:]))
        if call.name == BACKWARD and call.arguments[1] in halves:
            gp, y, *others = call.arguments
            return with_(call, name="conv2d_act_pool_half_grad_wb", arguments=(gp, halves[y], *others))
        return call
    return with_(program, calls=[stored(call) for call in program.calls],
                 notes=[*program.notes, f"halves: {len(halves)} values in bfloat16"])
