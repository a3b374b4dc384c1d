"""An optimizer's numbers and velocities as plain data, and back."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..device import is_cuda, to_device, to_numpy
from ..mode import mode

if TYPE_CHECKING:
    from .sgd import SGD

NUMBERS = ("lr", "momentum", "weight_decay", "nesterov")


def state_of(sgd: SGD) -> dict[str, Any]:
    """As `SGD.state_dict`. Raises TypeError for a subclass that keeps more than SGD does, without a state_dict."""
    kind = type(sgd)
    more = [name for name, value in vars(sgd).items() if name not in ("groups", "_velocities")
            and not isinstance(value, (bool, int, float, str, np.generic, NoneType))]
    if more and kind.state_dict.__module__ == f"{__package__}.sgd":
        raise TypeError(f"{kind.__name__}.state_dict: holds what SGD keeps but not {', '.join(more)}; define "
                        "state_dict and load_state_dict that hold them too")

    def velocity(p: object) -> np.ndarray | None:
        held = sgd._velocities.get(id(p))
        return None if held is None else np.array(to_numpy(held))

    return {"groups": [{**{name: group[name] for name in NUMBERS}, "velocities": [velocity(p) for p in group["params"]]}
                       for group in sgd.groups]}


def load_state(sgd: SGD, state: Mapping[str, Any]) -> None:
    """As `SGD.load_state_dict`: everything is looked at before the first write."""
    mode.recorder.refuse("loads an optimizer's state", "do it outside the step")
    groups = state.get("groups") if isinstance(state, Mapping) else None
    if not isinstance(groups, list) or not all(isinstance(group, Mapping) and {*NUMBERS, "velocities"} == group.keys()
                                               and isinstance(group["velocities"], list)
                                               and isinstance(group["nesterov"], bool) for group in groups):
        raise ValueError(f"SGD.load_state_dict: the state is a {type(state).__name__} but must be what state_dict gave")
    mine, theirs = ([len(group[name]) for group in those]
                    for those, name in ((sgd.groups, "params"), (groups, "velocities")))
    if mine != theirs:
        raise ValueError(f"SGD.load_state_dict: the groups have {mine} parameters but the state's have {theirs}; build "
                         "the optimizer that the state was saved from")
    velocities = []
    for number, (group, saved) in enumerate(zip(sgd.groups, groups, strict=True)):
        type(group)({**group, **{name: saved[name] for name in NUMBERS}})          # refuses a number that cannot be
        for place, (p, velocity) in enumerate(zip(group["params"], saved["velocities"], strict=True)):
            array = None if velocity is None else np.asarray(velocity)
            if array is not None and (array.shape, array.dtype) != (p.shape, p.dtype):
                raise ValueError(f"SGD.load_state_dict: velocity {place} of group {number} is {array.shape} "
                                 f"{array.dtype} but its parameter is {p.shape} {p.dtype}; build the optimizer that "
                                 "the state was saved from")
            velocities.append((p, array))
    for group, saved in zip(sgd.groups, groups, strict=True):
        for name in NUMBERS:
            if group[name] != saved[name]:
                group[name] = saved[name]
    for p, array in velocities:
        held = sgd._velocities.get(id(p))
        if held is not None and (held.shape, held.dtype, is_cuda(held)) == (p.shape, p.dtype, p.device == "cuda"):
            held[...] = 0 if array is None else to_device(array, p.device)
        elif array is None:
            sgd._velocities.pop(id(p), None)
        else:
            sgd._velocities[id(p)] = to_device(np.array(array), p.device)
