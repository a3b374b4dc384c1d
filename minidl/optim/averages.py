"""Averages of weights over the steps of a training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.by_tensor import ByTensor
from ..core.contexts import context
from ..core.device import Array, as_array, to_device, to_numpy
from ..core.mode import Watched, mode
from ..core.pools import lasting
from ..core.tensor import Tensor, mark_changed
from ..ops.common.backend import backend_of
from .checks import Checked, check_each_once
from .state import WAY_OUT, Named, names_that_differ, places_by_name, require_distinct, without_names

if TYPE_CHECKING:
    from ..nn import Module


class EMA(Named, Checked, Watched):
    """An exponential moving average of parameters: average <- decay * average + (1 - decay) * parameter.

    params: a Module, Tensors or (name, Tensor); of a Module its parameters, frozen ones too, not its buffers. The
    averages start at the present values of the parameters. The average of a Tensor that is put into the list `params`
    later starts at its value at the next use. Call `update` after the optimizer's step; a compiled step may do it, in
    one launch. As a callback of `training.fit` an EMA updates after each step, and its averages are part of
    checkpoints.

    Raises ValueError for a decay that is not from 0 to below 1, no parameters, or one that is listed twice; TypeError
    for what is not a Tensor.

    >>> w = Tensor([1.0], requires_grad=True)
    >>> ema = EMA([w], decay=0.5)
    >>> w.data[...] = 2.0; ema.update()
    >>> with ema.applied():
    ...     w.tolist()
    [1.5]
    >>> w.tolist()
    [2.0]
    """

    restless = frozenset({"_averages"})

    def __init__(self, params: Module | Iterable[Any], decay: float = 0.999):
        self.decay = decay
        self._names: ByTensor[str] = ByTensor()
        if hasattr(params, "_ever_parameters") and hasattr(params, "named_tensors"):   # frozen ones may train later
            ever = {id(t) for _, t in params._ever_parameters()}
            params = [(name, t) for name, t in params.named_tensors() if id(t) in ever]
        self.params: list[Tensor] = without_names("EMA", params, self._names)
        for p in self.params:
            if not isinstance(p, Tensor):
                raise TypeError(f"EMA: a parameter is a {type(p).__name__}; pass a Module, or Tensors")
        if not self.params:
            raise ValueError("EMA: got 0 parameters but needs at least 1; pass a Module, or Tensors")
        check_each_once("EMA", self.params)
        self._applied = False
        self._averages: ByTensor[Array] = ByTensor((p, p._data.copy()) for p in self.params)

    def _parameters(self) -> list[Tensor]:
        return self.params

    def update(self) -> None:
        """Move all averages towards the parameters, by one primitive call."""
        if self._applied:
            raise ValueError("EMA.update: the averages are applied, in the parameters' place; call it outside of "
                             "`with ema.applied()`")
        mode.recorder.reads(self, self.params, what="the parameters of an EMA")
        averages = self._where_parameters_are()
        backend_of(*self.params, *averages).ema(averages, [p._data for p in self.params], self.decay)

    def on_step_end(self, step: object) -> None:
        """As a callback of `training.fit`: update."""
        self.update()

    @context
    def applied(self) -> Iterator[None]:
        """Within this context the parameters are the averages: to evaluate, or to save them. What is written to the
        parameters there is lost. They are put back whatever ends the context, also an interrupt during a write.
        """
        mode.recorder.refuse("applies averaged weights")
        if self._applied:
            raise ValueError("EMA.applied: the averages are applied already; leave that context first")
        held = [p._data.copy() for p in self.params]
        params = list(self.params)
        try:
            try:
                self._applied = True
                self._write(params, self._where_parameters_are())
                yield
            finally:
                self._put_back(params, held)
        finally:
            if self._applied:              # putting them back was interrupted: once more
                self._put_back(params, held)

    def _put_back(self, params: list[Tensor], held: list[Array]) -> None:
        self._write(params, [to_device(array, p.device).astype(p.dtype, copy=False)
                             for p, array in zip(params, held, strict=True)])
        self._applied = False

    def state_dict(self) -> dict[str, Any]:
        """{"decay": ..., "params": [...], "averages": [...]}: the parameters' names, None if they are not known, and
        copies."""
        return {"decay": self.decay, "params": self._known(),
                "averages": [np.array(to_numpy(array)) for array in self._where_parameters_are()]}

    def _known(self) -> list[str | None]:
        """The parameters' names. Raises ValueError for two of one name."""
        names = [self._names.get(p) for p in self.params]
        require_distinct("EMA", names)
        return names

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` gave; averages change in place. They are found by the parameters' names, or
        by place if these are not known. Raises ValueError for what does not fit; then nothing has changed."""
        mode.recorder.refuse("loads averaged weights")
        averages = self.check_state(state)
        if self.decay != state["decay"]:
            self.decay = state["decay"]
        for p, average, array in zip(self.params, self._where_parameters_are(), averages, strict=True):
            average[...] = to_device(array, p.device)

    def check_state(self, state: Mapping[str, Any]) -> list[np.ndarray]:
        """The averages of a state in the parameters' order. Raises ValueError for what does not fit."""
        if not isinstance(state, Mapping) or state.keys() - {"params"} != {"decay", "averages"}:
            raise ValueError(f"EMA.load_state_dict: the state is a {type(state).__name__} but must be what state_dict "
                             "gave")
        names, theirs = self._known(), state.get("params", [])
        order = places_by_name(names, theirs)
        if order is None:
            raise ValueError(f"EMA.load_state_dict: the parameters are {names_that_differ(names, theirs)}; build the "
                             f"EMA {WAY_OUT}")
        averages = [state["averages"][place] for place in order] if len(order) == len(state["averages"]) else \
            state["averages"]
        averages = [to_numpy(as_array(array)) for array in averages]
        there = [(array.shape, array.dtype) for array in averages]
        here = [(p.shape, p.dtype) for p in self.params]
        if there != here:
            raise ValueError(f"EMA.load_state_dict: the averages are {_listed(there)} but the parameters are "
                             f"{_listed(here)}; build the EMA {WAY_OUT}")
        return averages

    def _where_parameters_are(self) -> list[Array]:
        """The averages, moved to where the parameters are now."""
        return [self._average(p) for p in self.params]

    def _average(self, p: Tensor) -> Array:
        average, data = self._averages.get(p), p._data
        if average is None or average.__class__ is not data.__class__ or average.dtype != data.dtype:
            with lasting(data):
                average = self._averages[p] = (data.copy() if average is None else
                                               to_device(average, p.device).astype(data.dtype, copy=False))
        if average.shape != p.shape:
            raise ValueError(f"EMA: a parameter has shape {p.shape} but its average {average.shape}; build another "
                             "EMA after a parameter's array was replaced by one of another shape")
        return average

    def _write(self, params: list[Tensor], arrays: list[Array]) -> None:
        mark_changed(params)
        for p, array in zip(params, arrays, strict=True):
            p._data[...] = array


def _listed(arrays: Iterable[tuple[tuple[int, ...], np.dtype]]) -> str:
    return ", ".join(f"{shape} {dtype}" for shape, dtype in arrays)
