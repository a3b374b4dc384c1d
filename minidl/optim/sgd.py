"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from ..ops.common.primitives import Array, Rate
from .optimizer import Group, Optimizer


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, Nesterov momentum and weight decay.

    params: parameters, or groups {"params": [...], "lr": ..., "weight_decay": ...} whose entries replace
    the common ones; with "name", a group is found by `group(name)`. A parameter may come as (name, Tensor), as from
    `net.named_parameters()`; its state is then found by the name. A step with gradient g reads

        g <- g + weight_decay * p;   v <- momentum * v + g;   p <- p - lr * v

    and with nesterov p <- p - lr * (g + momentum * v) (Sutskever et al. 2013, in the form with the rate
    outside the velocity). Parameters without a gradient are left alone.

    Raises ValueError for no parameters, one named twice, a negative rate, momentum or decay, or Nesterov
    without momentum; TypeError for anything that is not a Tensor with requires_grad.

    >>> from minidl import Tensor
    >>> w = Tensor([1.0], requires_grad=True)
    >>> sgd = SGD([w], lr=0.1)
    >>> (w * w).sum().backward(); sgd.step(); w.tolist()  # doctest: +ELLIPSIS
    [0.8...]
    """

    kept = {"velocities": "velocity"}

    def __init__(self, params: Iterable[Any], lr: float, momentum: float = 0.0, *,
                 weight_decay: float = 0.0, nesterov: bool = False):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov})

    @classmethod
    def _check(cls, group: Mapping[str, Any]) -> None:
        if group["nesterov"] and group["momentum"] == 0:
            raise ValueError(f"{cls.__name__}: nesterov=True needs a momentum but momentum is 0; set momentum "
                             "above 0")

    def _uses(self, group: Group) -> Iterable[str]:
        return self.kept if group["momentum"] else ()

    def _update(self, k: ModuleType, params: list[Array], grads: list[Array], kept: dict[str, list[Array]], lr: Rate,
                group: Group) -> None:
        k.sgd(params, grads, kept.get("velocities"), lr, group["momentum"], group["weight_decay"], group["nesterov"])
