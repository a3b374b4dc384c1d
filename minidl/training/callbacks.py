"""What a training calls after its steps and epochs."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import nn, optim
from ..nn.weights import require_described, require_own_ending, save
from ..ops.common.geometry import whole
from ..optim.checks import Judge, Patient
from .metrics import Metrics

Callback = Any                             # a function of an epoch's metrics, or an object with the methods below
METHODS = ("on_train_begin", "on_step_end", "on_epoch_end")
ELSEWHERE = re.compile(r"on_\w+_(begin|start|end)")           # what other libraries call theirs


class Step(NamedTuple):
    """A step that was just done. Numbers from 1: of the epoch, of the step in all epochs, and of the step in this one.

    means(): loss, accuracy and other metrics of this epoch so far; images: how many images these are over. lr(): the
    step's learning rate, of the first group. If the steps are compiled, both functions wait for the device.
    """

    epoch: int
    step: int
    batch: int
    means: Callable[[], dict[str, float]]
    images: int
    lr: Callable[[], float]


class SaveBest(Judge):
    """A callback that saves a model's weights after each epoch that is better than all before.

    metric: which of an epoch's metrics decides. mode: "min" if lower is better, "max" if higher is better; for a loss
    or an accuracy, the name says it. data: as `minidl.save` takes it: with it, `minidl predict` reads the file.
    Raises ValueError for a metric of another name without a mode.

    >>> SaveBest(nn.Linear(3, 2), "best.h5", "test_loss").best
    inf
    """

    def __init__(self, model: nn.Module, path: str | os.PathLike[str], metric: str = "test_accuracy",
                 mode: str | None = None, data: object = None):
        if not hasattr(model, "state_dict"):
            raise TypeError(f"SaveBest: the model is a {type(model).__name__} but must be a Module; call "
                            "SaveBest(model, path)")
        require_own_ending("SaveBest", path)
        require_described(model, data)
        self.model, self.path, self.data = model, path, data
        super().__init__(metric, mode)

    def on_epoch_end(self, metrics: Metrics) -> None:
        """Save if this epoch is the best. Raises ValueError for a metric that an epoch does not have."""
        if self.sign * self.judged(metrics) < self.sign * self.best:
            self.best = metrics[self.metric]
            save(self.model, self.path, data=self.data)


class EarlyStop(Patient):
    """A callback that ends a training once a metric has not become better for `patience` epochs, one after the other.

    metric, mode: as for `SaveBest`, which keeps the weights of the best epoch. better_by: an epoch counts as better if
    it beats the best so far by more than this. Each training begins anew, unless a state was loaded; a SaveBest and a
    Plateau keep their best. Raises ValueError for patience that is not an int of at least 1, for a better_by below 0,
    and for a metric of another name without a mode.

    >>> stop = EarlyStop(patience=2)
    >>> [stop.on_epoch_end({"test_loss": loss}) for loss in (3.0, 2.0, 2.5, 1.0, 1.5, 1.0)]
    [False, False, False, False, False, True]
    """

    _loaded = False                        # pickles of earlier versions do not have it

    def __init__(self, metric: str = "test_loss", patience: int = 3, mode: str | None = None, better_by: float = 0.0):
        self.patience, self.better_by = whole("EarlyStop", "patience", patience, 1), better_by
        super().__init__(metric, mode)

    def on_train_begin(self) -> None:
        """Forget the training before, but not a state that was loaded."""
        if not self._loaded:
            self.best, self.waited = self.sign * np.inf, 0
        self._loaded = False

    def on_epoch_end(self, metrics: Metrics) -> bool:
        """Whether to stop. Raises ValueError for a metric that an epoch does not have."""
        self.note(self.judged(metrics), self.best - self.sign * self.better_by)
        return self.waited >= self.patience

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint. Raises ValueError for another metric or mode."""
        super().load_state_dict(state)
        self._loaded = True


def plain(value: object) -> Any:
    """A value whose Tensors, arrays and numbers of NumPy are Python's numbers, or lists of these."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _true(returned: object) -> bool:
    """Whether it is True, or NumPy's True, as comparisons of NumPy numbers give; other true values do not count."""
    return isinstance(returned, (bool, np.bool_)) and bool(returned)


class Callbacks:
    """Functions and objects in the order in which they are called. Raises TypeError for what is neither."""

    def __init__(self, callbacks: Sequence[Callback] | Callback):
        self.all: list[Callback] = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
        for each in self.all:
            if isinstance(each, type):
                raise TypeError(f"fit: a callback is the class {each.__name__} but must be an object; make one, "
                                f"{each.__name__}(...)")
            if not callable(each) and not any(hasattr(each, name) for name in METHODS):
                raise TypeError(f"fit: a callback is a {type(each).__name__} but must be a function of an epoch's "
                                f"metrics, or have a method {', '.join(METHODS[:-1])} or {METHODS[-1]}")
            if never := [name for name in dir(type(each)) if ELSEWHERE.fullmatch(name) and name not in METHODS]:
                warnings.warn(f"fit: a callback, {type(each).__name__}, has {never[0]}, which fit never calls; it "
                              f"calls {', '.join(METHODS)}", UserWarning, stacklevel=4)
        self.begins = [each.on_train_begin for each in self.all if hasattr(each, "on_train_begin")]
        self.steps = [each.on_step_end for each in self.all if hasattr(each, "on_step_end")]
        # Whether a step's may change something: those of minidl do not, but for the averages that an EMA keeps.
        self.free = any(str(getattr(each, "__module__", "")).partition(".")[0] != "minidl" for each in self.steps)
        self.epochs = [each.on_epoch_end if hasattr(each, "on_epoch_end") else each for each in self.all
                       if hasattr(each, "on_epoch_end") or not any(hasattr(each, name) for name in METHODS)]

    def require_of(self, model: nn.Module, optimizer: optim.Optimizer) -> None:
        """Refuse callbacks that lower another optimizer's rates, or average another net's parameters; warn of one that
        saves another net, which a callback of the user's own may change."""
        ours = {id(t) for _, t in model.named_tensors()}
        ours |= {id(p) for group in optimizer.groups for p in group["params"]}
        for each in self.all:
            if isinstance(each, optim.Plateau) and each.optimizer is not optimizer:
                raise ValueError("fit: a Plateau is of another optimizer than the one that trains; make it of this one")
            if isinstance(each, optim.EMA) and not any(id(p) in ours for p in each.params):
                raise ValueError("fit: an EMA holds none of the net's parameters; make it of the net that trains, "
                                 "after layers are replaced")
            if isinstance(each, SaveBest) and (tensors := [id(t) for _, t in each.model.named_tensors()]) and (
                    ours.isdisjoint(tensors)):
                warnings.warn("fit: a SaveBest is of a net that has no parameter of the one that trains; if nothing "
                              "else changes that net, make it of this one", UserWarning, stacklevel=4)

    def on_train_begin(self, _: object = None) -> bool:
        """No step was done, and a checkpoint, if there is one, was accepted."""
        for callback in self.begins:
            callback()
        return False

    def on_step_end(self, step: Step) -> bool:
        """Whether one of them wants to stop."""
        return True in [_true(callback(step)) for callback in self.steps]     # each is called

    def on_epoch_end(self, metrics: Metrics) -> bool:
        """Whether one of them wants to stop. What one adds to the metrics is plain for the next, and for checkpoints.
        """
        stop = False
        for callback in self.epochs:
            stop |= _true(callback(metrics))
            metrics.update(plain(metrics))
        return stop

    def with_state(self) -> list[Callback]:
        """The callbacks whose state a checkpoint holds."""
        return [each for each in self.all if hasattr(each, "state_dict")]

    def kinds(self) -> list[str]:
        """The kinds of these."""
        return [type(each).__name__ for each in self.with_state()]

    def state_dict(self) -> list[dict[str, Any]]:
        """The states of those that have one, with their kinds."""
        return [{"kind": type(each).__name__, "state": each.state_dict()} for each in self.with_state()]

    def check(self, states: object) -> None:
        """Raises ValueError for the states of other callbacks, and for one that its callback refuses."""
        here = self.kinds()
        there = [state.get("kind") if isinstance(state, dict) and state.keys() == {"kind", "state"} else None
                 for state in (states if isinstance(states, list) else [])]
        if there != here:
            raise ValueError(f"fit: the checkpoint has states of callbacks {there} but here are {here}; pass the "
                             "callbacks of the run that it is from, in their order")
        for each, state in zip(self.with_state(), states if isinstance(states, list) else [], strict=True):
            if hasattr(each, "check_state"):           # before anything has changed
                each.check_state(state["state"])
            if isinstance(each, optim.EMA) and each.decay != state["state"]["decay"]:
                raise ValueError(f"fit: an EMA has decay {each.decay} but the checkpoint's in its place "
                                 f"{state['state']['decay']}; pass the callbacks of the run that it is from, in their "
                                 "order")

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Give each callback that has a state its own, in the order of `with_state`; `check` compares their kinds."""
        for each, state in zip(self.with_state(), states, strict=True):
            each.load_state_dict(state["state"])
