"""The learning rates of a whole schedule, where the update itself reads them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.tensor import Tensor


class Rates(NamedTuple):
    """The learning rates of a whole schedule, on the parameters' device, where the update itself reads them.

    table: float64 (groups, steps). position: int64 (1 or more,); the rates of a step are table[:, position[0]]. It
    counts from 0, as `data.DeviceBatches.position` does.
    """

    table: Tensor
    position: Tensor


def check_rates(name: str, rates: object, groups: int) -> None:
    """Refuse what is not the rates of `groups` groups, for the optimizer of this name."""
    if not isinstance(rates, Rates):
        raise TypeError(f"{name}.step: rates is a {type(rates).__name__} but must be an optim.Rates(table, position); "
                        "for a number, set lr")
    for what, t, dtype, axes in (("table", rates.table, np.float64, 2), ("position", rates.position, np.int64, 1)):
        if not isinstance(t, Tensor) or t.dtype != dtype or t.ndim != axes or t.size == 0:
            given = f"a {type(t).__name__}" if not isinstance(t, Tensor) else f"{t.dtype} of shape {t.shape}"
            raise ValueError(f"{name}.step: the rates' {what} is {given} but must be a Tensor of {np.dtype(dtype)}: "
                             "table (groups, steps), position (1 or more,)")
    if rates.table.shape[0] != groups:
        raise ValueError(f"{name}.step: the rates' table has shape {rates.table.shape} but there are {groups} "
                         "parameter groups; give a row to each")
