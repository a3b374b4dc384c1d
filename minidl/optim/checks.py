"""What may be given to an optimizer: its parameters, in groups, and their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..core.mode import mode
from ..core.tensor import Tensor
from .names import ByTensor, without_names

# Entries of a group that are numbers: what each must be, how many there are, and what they are below.
NUMBERS = dict.fromkeys(("lr", "momentum", "weight_decay", "eps"), ("a finite number of at least 0", 1, math.inf))
NUMBERS |= {"alpha": ("a number from 0 to below 1", 1, 1), "betas": ("two numbers from 0 to below 1", 2, 1)}


def check_number(optimizer: str, name: str, value: object) -> None:
    """Refuse, for the optimizer of this name, a number that no update can use."""
    must, count, below = NUMBERS.get(name, ("", 0, 0.0))
    numbers = value if count == 2 and isinstance(value, tuple) else (value,)
    if count and (len(numbers) != count or not all(
            isinstance(number, (int, float, np.integer, np.floating)) and 0 <= number < below for number in numbers)):
        raise ValueError(f"{optimizer}: {name} is {value!r} but must be {must}")


def with_gradients(params: list[Tensor]) -> list[Tensor]:
    """Those that require a gradient and have one: one that was frozen may still have that of a step before."""
    mode.recorder.seen(params)             # a compiled step depends on which are frozen
    return [p for p in params if p.requires_grad and p.grad is not None]


def entries_of(optimizer: str, params: Iterable[Any], common: dict[str, Any],
               names: ByTensor[str]) -> list[dict[str, Any]]:
    """The entries of each group: those it was given with, else the common ones. Parameters' names are noted."""
    if isinstance(params, (Tensor, dict)) or not isinstance(params, Iterable):
        raise TypeError(f"{optimizer}: params is a {type(params).__name__} but must be parameters, or groups of them; "
                        "pass model.parameters(), or [tensor]")
    given = list(params)
    groups = given if given and all(isinstance(each, dict) for each in given) else [{"params": given}]
    for group in groups:
        if "params" not in group or group.keys() - common.keys() - {"params", "name"}:
            raise ValueError(f"{optimizer}: a parameter group has keys {sorted(group)} but must have 'params' and may "
                             f"have name, {', '.join(common)}")
    full = [{**common, **group, "params": without_names(group["params"], names)} for group in groups]
    everything = [p for group in full for p in group["params"]]
    for p in everything:
        if not isinstance(p, Tensor) or not p.requires_grad or not p.is_leaf:
            what = "a Tensor that is not a leaf with requires_grad=True" if isinstance(p, Tensor) else \
                f"a {type(p).__name__}"
            raise TypeError(f"{optimizer}: a parameter is {what}; pass model.parameters()")
    if not everything:
        raise ValueError(f"{optimizer}: got 0 parameters but needs at least 1; pass model.parameters()")
    if len({id(p) for p in everything}) < len(everything):
        raise ValueError(f"{optimizer}: {len(everything)} parameters were given but only "
                         f"{len({id(p) for p in everything})} are different; name each once")
    return full
