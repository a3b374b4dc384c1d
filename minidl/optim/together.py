"""Several optimizers as one, and the words of recipes for optimizers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..core.tensor import Tensor
from .adaptive import Adam, AdamW, RMSprop
from .muon import Muon
from .optimizer import Optimizer
from .rates import Rates, check_rates
from .sgd import SGD
from .state import facts_of, in_order, may_be_own, own_of, state_of, writer_of


class Together(Optimizer):
    """Several optimizers, each with parameters of its own, that step one after the other: for `training.fit`.

    Its groups are theirs, in their order; so are the rows of a schedule's rates, and the groups of its state.

    Raises ValueError for no optimizers, and for a parameter that two of them have; TypeError for what is not one.

    >>> from minidl import nn, optim
    >>> net = nn.Linear(3, 2)
    >>> both = Together(optim.Muon([net.weight]), optim.AdamW([net.bias]))
    >>> [len(group["params"]) for group in both.groups]
    [1, 1]
    """

    def __init__(self, *optimizers: Optimizer):
        for each in optimizers:
            if not isinstance(each, Optimizer):
                raise TypeError(f"Together: an optimizer is a {type(each).__name__} but must be one of minidl.optim")
        if not optimizers:
            raise ValueError("Together: got 0 optimizers but needs at least 1; pass each as an argument")
        self.optimizers = tuple(one for each in optimizers for one in getattr(each, "optimizers", (each,)))
        self.groups = [group for each in self.optimizers for group in each.groups]
        everything = [id(p) for group in self.groups for p in group["params"]]
        if len(set(everything)) < len(everything):
            raise ValueError(f"Together: the optimizers have {len(everything)} parameters but only "
                             f"{len(set(everything))} are different; give each to one optimizer")

    def learn_names(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """Each optimizer does so."""
        named = list(named)
        for each in self.optimizers:
            each.learn_names(named)

    def forget(self) -> None:
        """Each optimizer does so."""
        for each in self.optimizers:
            each.forget()

    def step(self, rates: Rates | None = None) -> None:
        """Each optimizer makes its step, in their order, once all of them are checked."""
        if rates is not None:
            check_rates("Together", rates, len(self.groups))
        self._tell_lists()
        for each in self.optimizers:
            each._updates()
        ends = list(itertools.accumulate(len(each.groups) for each in self.optimizers))
        for each, end in zip(self.optimizers, ends, strict=True):
            each.step(rates and Rates(rates.table[end - len(each.groups):end], rates.position))

    def state_dict(self) -> dict[str, Any]:
        """{"groups": [...]}, the groups of all optimizers, and as "own" the numbers of a subclass."""
        facts_of(self)                     # refuses names that two optimizers have
        return {"groups": [group for each in self.optimizers for group in state_of(each)["groups"]], **own_of(self)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` gave. Raises ValueError for what does not fit; then nothing has changed."""
        groups = state.get("groups") if isinstance(state, Mapping) else None
        own = state.get("own", {}) if isinstance(state, Mapping) else {}
        if not isinstance(groups, list) or len(groups) != len(self.groups) or not may_be_own(self, own):
            raise ValueError(f"Together.load_state_dict: the state is a {type(state).__name__} but must be what "
                             f"state_dict gave, with {len(self.groups)} groups")
        left = iter([group for group, _ in in_order(self, groups)])
        for write in [writer_of(each, {"groups": list(itertools.islice(left, len(each.groups)))})
                      for each in self.optimizers]:
            write()
        for name, value in own.items():
            setattr(self, name, value)


def muon_and_adamw(params: Iterable[Tensor], lr: float, momentum: float, weight_decay: float) -> Together:
    """Muon for matrices and filters, and AdamW at a twentieth of its rate for biases and scales; one of them alone for
    a net that has only such parameters."""
    params = list(params)
    matrices, others = [p for p in params if p.ndim > 1], [p for p in params if p.ndim < 2]
    optimizers: list[Optimizer] = []
    if matrices or not others:             # Muon refuses a net without parameters
        optimizers.append(Muon(matrices, lr, weight_decay, momentum))
    if others:
        optimizers.append(AdamW(others, lr / 20, weight_decay=0.0))
    return Together(*optimizers)


# What a recipe calls an optimizer, and the numbers that it uses instead of the recipe's, which are SGD's; None: it has
# no such number.
OPTIMIZERS: dict[str, tuple[Callable[..., Optimizer], dict[str, float | None]]] = {
    "sgd": (SGD, {}),
    "adam": (Adam, {"lr": 1e-3, "momentum": None, "weight_decay": 0.0}),
    "adamw": (AdamW, {"lr": 1e-3, "momentum": None, "weight_decay": 1e-2}),
    "rmsprop": (RMSprop, {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0}),
    "muon": (muon_and_adamw, {"lr": 0.02, "momentum": 0.95, "weight_decay": 1e-2}),
}
