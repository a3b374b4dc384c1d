"""What may be given to an optimizer: its parameters, in groups, and their numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..core.by_tensor import ByTensor
from ..core.tensor import Tensor
from .state import without_names


def _number(value: object, below: float = math.inf) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and bool(0 <= value < below)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= least)


# Numbers of optimizers, averages, plateaus and schedules: what each must be, in words, and whether a value is that.
Rule = tuple[str, Callable[[Any], bool]]
FINITE: Rule = ("a finite number of at least 0", _number)
SHARE: Rule = ("a number from 0 to below 1", lambda value: _number(value, 1))
FLAG: Rule = ("True or False", lambda value: isinstance(value, (bool, np.bool_)))
RULES: dict[str, Rule] = {
    **dict.fromkeys(("lr", "momentum", "weight_decay", "eps", "gamma", "start", "end", "factor of the rate"), FINITE),
    **dict.fromkeys(("alpha", "decay"), SHARE), **dict.fromkeys(("nesterov", "centered", "normalized"), FLAG),
    "betas": ("two numbers from 0 to below 1", lambda value: isinstance(value, tuple) and len(value) == 2
              and all(_number(each, 1) for each in value)),
    "ns_steps": ("an int of at least 1", lambda value: _whole(value, 1)),
    "factor": ("a number of at least 0 and below 1", lambda value: _number(value, 1)),
    **dict.fromkeys(("threshold", "min_lr", "better_by"), ("a number of at least 0", _number)),
    "patience": ("an int of at least 0", lambda value: _whole(value, 0))}


def check_number(owner: str, name: str, value: object) -> None:
    """Refuse, for the optimizer or other owner of this name, a number that it cannot use."""
    must, fits = RULES.get(name, ("", lambda value: True))
    if not fits(value):
        raise ValueError(f"{owner}: {name} is {value!r} but must be {must}")


MODES = {"loss": "min", "accuracy": "max"}             # by the last word of a metric's name


class Checked:
    """An object whose numbers are looked at whenever one is set."""

    def __setattr__(self, name: str, value: object) -> None:
        check_number(type(self).__name__, name, value)
        super().__setattr__(name, value)


class Judge(Checked):
    """It compares one metric of each epoch with the best so far. It holds the metric's name, whether lower ("min") or
    higher ("max") is better, and the best value so far."""

    def __init__(self, metric: str, mode: str | None):
        if not isinstance(metric, str):
            raise TypeError(f"{type(self).__name__}: metric is {metric!r} but must be a metric's name, such as "
                            "'test_loss'; it comes first, other options by their names")
        found = MODES.get(metric.rpartition("_")[2]) if mode is None else mode
        if found not in ("min", "max"):
            what = f"the name of metric {metric!r} does not say what is better" if mode is None else f"mode is {mode!r}"
            raise ValueError(f"{type(self).__name__}: {what}; pass mode='min' if lower is better, else mode='max'")
        self.metric, self.mode = metric, found
        self.best = self.sign * math.inf

    @property
    def sign(self) -> float:
        """1 if lower is better, else -1."""
        return 1.0 if self.mode == "min" else -1.0

    def judged(self, metrics: Mapping[str, Any]) -> Any:
        """The metric's value. Raises ValueError for a metric that an epoch does not have."""
        if self.metric not in metrics:
            raise ValueError(f"{type(self).__name__}: metric is {self.metric!r} but an epoch has {', '.join(metrics)}")
        value = metrics[self.metric]
        if isinstance(value, (float, np.floating)) and math.isnan(value):
            warnings.warn(f"{type(self).__name__}: {self.metric} is nan, which counts as no better than before; see "
                          "what computes it", UserWarning, stacklevel=2)
        return value

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"metric": self.metric, "mode": self.mode, "best": self.best}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError for the state of another metric, whose best is nothing to compare with."""
        for name in ("metric", "mode"):
            here, there = getattr(self, name), state.get(name, getattr(self, name))    # not in files of version 0.2
            if here != there:
                raise ValueError(f"{type(self).__name__}: {name} is {here!r} here but {there!r} in the state; build it "
                                 f"with {name}={there!r}, or begin anew")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint. Raises ValueError for another metric or mode."""
        self.check_state(state)
        self.best = float(state["best"])


class Patient(Judge):
    """A Judge that counts how many times in turn the metric was no better."""

    waited = 0

    def note(self, value: float, limit: float) -> None:
        """A value that is better than the limit is the best; any other one was waited for."""
        if self.sign * value < self.sign * limit:
            self.best, self.waited = float(value), 0
        else:
            self.waited += 1

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {**super().state_dict(), "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint. Raises ValueError for another metric or mode."""
        super().load_state_dict(state)
        self.waited = int(state["waited"])


def check_each_once(owner: str, params: list[Tensor]) -> None:
    """Refuse, for the optimizer or other owner of this name, a parameter that is listed twice, and would move twice."""
    different = len({id(p) for p in params})
    if different < len(params):
        raise ValueError(f"{owner}: {len(params)} parameters were given but only {different} are different; name each "
                         "once")


def entries_of(optimizer: str, params: Iterable[Any], common: dict[str, Any],
               names: ByTensor[str]) -> list[dict[str, Any]]:
    """The entries of each group: those it was given with, else the common ones. Parameters' names are noted."""
    if isinstance(params, (Tensor, dict)) or not isinstance(params, Iterable):
        raise TypeError(f"{optimizer}: params is a {type(params).__name__} but must be parameters, or groups of them; "
                        "pass model.parameters(), or [tensor]")
    given = params if isinstance(params, (set, frozenset)) else list(params)
    groups = given if given and all(isinstance(each, dict) for each in given) else [{"params": given}]
    for group in groups:
        if "params" not in group or group.keys() - common.keys() - {"params", "name"}:
            raise ValueError(f"{optimizer}: a parameter group has keys {sorted(group)} but must have 'params' and may "
                             f"have name, {', '.join(common)}")
    full = [{**common, **group, "params": without_names(optimizer, group["params"], names)} for group in groups]
    everything = [p for group in full for p in group["params"]]
    for p in everything:
        if not isinstance(p, Tensor) or not p.requires_grad or not p.is_leaf:
            what = "a Tensor that is not a leaf with requires_grad=True" if isinstance(p, Tensor) else \
                f"a {type(p).__name__}"
            raise TypeError(f"{optimizer}: a parameter is {what}; pass model.parameters()")
    if not everything:
        raise ValueError(f"{optimizer}: got 0 parameters but needs at least 1; pass model.parameters()")
    check_each_once(optimizer, everything)
    return full
