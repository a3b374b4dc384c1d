"""Stochastic gradient descent."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..device import to_device
from ..mode import Watched, mode, note_change
from ..ops.common.backend import backend_of
from ..tensor import Tensor, mark_changed
from .state import load_state, state_of

_NUMBERS = ("lr", "momentum", "weight_decay")


class Group(dict[str, Any]):
    """Parameters and the numbers that hold for them. A number that no update can use is refused wherever it is set."""

    restless = frozenset({"lr"})           # each replay's update reads it anew

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        mode.recorder.reads_entry(self, name, value, noted=name not in self.restless)
        return value

    def get(self, name: str, default: object = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def __init__(self, entries: dict[str, Any]):
        super().__init__()
        self.update(entries)

    def __setitem__(self, name: str, value: object) -> None:
        if name in _NUMBERS and not (isinstance(value, (int, float, np.integer, np.floating)) and value >= 0
                                     and math.isfinite(value)):
            raise ValueError(f"SGD: {name} is {value!r} but must be a finite number of at least 0")
        mode.recorder.refuse(f"sets an optimizer's {name}", "set it outside the step")
        super().__setitem__(name, value)
        if name not in self.restless:
            note_change()

    def update(self, *entries: Any, **named: object) -> None:
        for name, value in dict(*entries, **named).items():
            self[name] = value

    def __ior__(self, entries: Mapping[str, object]) -> Group:  # type: ignore[override, misc]  # of dict's two forms the one in use
        self.update(entries)
        return self


class Rates(NamedTuple):
    """The learning rates of a whole schedule, on the parameters' device, where the update itself reads them.

    table: float64 (groups, steps). position: int64 (1 or more,); the rates of a step are table[:, position[0]]. That
    counts from 0, as `data.DeviceBatches.position` does.
    """

    table: Tensor
    position: Tensor


class SGD(Watched):
    """Stochastic gradient descent with momentum, Nesterov momentum and weight decay.

    params: parameters, or groups {"params": [...], "lr": ..., "weight_decay": ...} whose entries replace
    the common ones. A step with gradient g reads

        g <- g + weight_decay * p;   v <- momentum * v + g;   p <- p - lr * v

    and with nesterov p <- p - lr * (g + momentum * v) (Sutskever et al. 2013, in the form with the rate
    outside the velocity). Parameters without a gradient are left alone.

    Raises ValueError for no parameters, one named twice, a negative rate, momentum or decay, or Nesterov
    without momentum; TypeError for anything that is no Tensor with requires_grad.

    >>> w = Tensor([1.0], requires_grad=True)
    >>> sgd = SGD([w], lr=0.1)
    >>> (w * w).sum().backward(); sgd.step(); w.tolist()  # doctest: +ELLIPSIS
    [0.8...]
    """

    restless = frozenset({"_velocities"})

    def __init__(self, params: Iterable[Any], lr: float, momentum: float = 0.0, weight_decay: float = 0.0,
                 nesterov: bool = False):
        common = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        if isinstance(params, (Tensor, dict)) or not isinstance(params, Iterable):
            raise TypeError(f"SGD: params is a {type(params).__name__} but must be parameters, or groups of them; pass "
                            "model.parameters(), or [tensor]")
        entries = list(params)
        groups = entries if entries and all(isinstance(e, dict) for e in entries) else [{"params": entries}]
        self.groups: list[Group] = [self._group(group, common) for group in groups]
        everything = [p for group in self.groups for p in group["params"]]
        if not everything:
            raise ValueError("SGD: got 0 parameters but needs at least 1; pass model.parameters()")
        if len({id(p) for p in everything}) < len(everything):
            raise ValueError(f"SGD: {len(everything)} parameters were given but only "
                             f"{len({id(p) for p in everything})} are different; name each once")
        self._velocities: dict[int, Any] = {}

    @staticmethod
    def _group(group: dict[str, Any], common: dict[str, Any]) -> Group:
        unknown = group.keys() - common.keys() - {"params"}
        if unknown or "params" not in group:
            raise ValueError(f"SGD: a parameter group has keys {sorted(group)} but must have 'params' and may "
                             f"have {', '.join(common)}")
        full = Group({**common, **group, "params": list(group["params"])})
        if full["nesterov"] and full["momentum"] == 0:
            raise ValueError("SGD: nesterov=True needs a momentum but momentum is 0; set momentum above 0")
        for p in full["params"]:
            if not isinstance(p, Tensor) or not p.requires_grad or not p.is_leaf:
                what = "a Tensor that is not a leaf with requires_grad=True" if isinstance(p, Tensor) else \
                    f"a {type(p).__name__}"
                raise TypeError(f"SGD: a parameter is {what}; pass model.parameters()")
        return full

    @property
    def lr(self) -> float:
        """The first group's learning rate. Setting it sets every group's."""
        return self.groups[0]["lr"]

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.groups:
            group["lr"] = value

    def zero_grad(self) -> None:
        """Forget all gradients."""
        self._tell_lists()
        for group in self.groups:
            for p in group["params"]:
                p.grad = None

    def forget(self) -> None:
        """Set all velocities to 0, in place: as before the first step, and what was compiled stays good."""
        mode.recorder.refuse("forgets an optimizer's velocities", "do it outside the step")
        for velocity in self._velocities.values():
            velocity.fill(0)

    def step(self, rates: Rates | None = None) -> None:
        """Update every parameter that has a gradient, in place: one primitive call per group.

        rates: in place of the groups' own learning rates, those of a schedule.

        Raises TypeError for rates of another type; ValueError for rates of another shape or dtype, and for a gradient
        that does not have its parameter's shape; then nothing has changed.
        """
        if rates is not None:
            self._check_rates(rates)
        self._tell_lists()
        updates = [(number, group, live, [self._velocity(p) for p in live] if group["momentum"] else None)
                   for number, group in enumerate(self.groups) if (live := self._live(group))]
        for number, group, live, velocities in updates:
            k = backend_of(*live, *(rates or ()))
            mode.recorder.outside(*(velocities or ()))
            if rates is None:
                lr = mode.recorder.dynamic(functools.partial(dict.__getitem__, group, "lr"))
            else:
                lr = k.getitem(rates.table._data, number), rates.position._data
            mark_changed(live)             # before the first write: an interrupted update is a change, too
            gradients = [p._grad._data for p in live]  # type: ignore[union-attr]  # live: there is one
            k.sgd([p._data for p in live], gradients, velocities, lr, group["momentum"],
                  group["weight_decay"], group["nesterov"])

    @staticmethod
    def _live(group: Group) -> list[Tensor]:
        """The parameters that have a gradient, each of which is seen to fit."""
        if group.__class__ is not Group:
            raise TypeError(f"SGD: a group is a {type(group).__name__} but must be one that SGD made; change the "
                            "entries of a group, or build another SGD from all groups")
        live = [p for p in group["params"] if p.grad is not None]
        for p in live:
            if p._grad._data.shape != p._data.shape:
                raise ValueError(f"SGD: a parameter has shape {p.shape} but its gradient {p._grad.shape}; call "
                                 "zero_grad() after a parameter's array was replaced")
        return live

    def _check_rates(self, rates: Rates) -> None:
        if not isinstance(rates, Rates):
            raise TypeError(f"SGD.step: rates is a {type(rates).__name__} but must be an optim.Rates(table, position); "
                            "for a number, set lr")
        for what, t, dtype, axes in (("table", rates.table, np.float64, 2), ("position", rates.position, np.int64, 1)):
            if not isinstance(t, Tensor) or t.dtype != dtype or t.ndim != axes or t.size == 0:
                given = f"a {type(t).__name__}" if not isinstance(t, Tensor) else f"{t.dtype} of shape {t.shape}"
                raise ValueError(f"SGD.step: the rates' {what} is {given} but must be a Tensor of {np.dtype(dtype)}: "
                                 "table (groups, steps), position (1 or more,)")
        if rates.table.shape[0] != len(self.groups):
            raise ValueError(f"SGD.step: the rates' table has shape {rates.table.shape} but there are "
                             f"{len(self.groups)} parameter groups; give a row to each")

    def _tell_lists(self) -> None:
        """What a recorded step depends on that goes through all parameters."""
        mode.recorder.watch(self)
        mode.recorder.holds_items("the optimizer's groups", self.groups)
        for group in self.groups:
            mode.recorder.holds_items("the parameters of an optimizer's group", group["params"])

    def _velocity(self, p: Tensor) -> Any:
        velocity, data = self._velocities.get(id(p)), p._data
        if velocity is None:
            velocity = self._velocities[id(p)] = np.zeros_like(data)
        elif velocity.__class__ is not data.__class__ or velocity.dtype != data.dtype:     # .to() moved the model since
            velocity = self._velocities[id(p)] = to_device(velocity, p.device).astype(p.dtype, copy=False)
        if velocity.shape != data.shape:
            raise ValueError(f"SGD: a parameter has shape {p.shape} but its velocity {velocity.shape}; build another "
                             "SGD after a parameter's array was replaced by one of another shape")
        return velocity

    def state_dict(self) -> dict[str, Any]:
        """{"groups": [{"lr": ..., "velocities": [...]}, ...]}: copies, velocities by place; None before the first step.
        """
        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` gave: velocities change in place. Raises ValueError for what does not fit; then
        nothing has changed."""
        load_state(self, state)

    def __getstate__(self) -> dict[str, Any]:
        """Velocities go by their parameters' places: copies of these are other objects."""
        held = [self._velocities.get(id(p)) for group in self.groups for p in group["params"]]
        return {**vars(self), "_velocities": held}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        everything = [p for group in self.groups for p in group["params"]]
        self._velocities = {id(p): velocity for p, velocity in zip(everything, state["_velocities"], strict=True)
                            if velocity is not None}
