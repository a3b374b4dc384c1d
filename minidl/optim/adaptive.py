"""Optimizers that divide by a running average of the gradient's size."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from ..ops.common.primitives import Array, Rate
from .optimizer import Group, Optimizer


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, algorithm 1), with weight decay as part of the gradient. As PyTorch's, without amsgrad.

    params: parameters, or groups of them, as in `SGD`. Step t of a parameter with gradient g reads

        g <- g + weight_decay * p;   m <- beta1 * m + (1 - beta1) * g;   s <- beta2 * s + (1 - beta2) * g^2
        p <- p - lr / (1 - beta1^t) * m / (sqrt(s / (1 - beta2^t)) + eps)

    Parameters without a gradient are left alone, and their steps are not counted.

    Raises ValueError for a negative rate, eps or decay, and betas that are not two numbers from 0 to below 1; else as
    `SGD`.

    >>> from minidl import Tensor
    >>> w = Tensor([1.0], requires_grad=True)
    >>> adam = Adam([w], lr=0.1)
    >>> (w * w).sum().backward(); adam.step(); w.tolist()  # doctest: +ELLIPSIS
    [0.90...]
    """

    kept = {"means": "mean", "squares": "square", "steps": "step"}
    _decoupled = False

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _update(self, k: ModuleType, params: list[Array], grads: list[Array], kept: dict[str, list[Array]], lr: Rate,
                group: Group) -> None:
        k.adam(params, grads, kept["means"], kept["squares"], kept["steps"], lr, group["betas"], group["eps"],
               group["weight_decay"], self._decoupled)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2): p <- p - lr * weight_decay * p before
    the step, and the gradient as it is. As PyTorch's, without amsgrad.

    >>> from minidl import Tensor
    >>> w = Tensor([1.0], requires_grad=True)
    >>> adam = AdamW([w], lr=0.1, weight_decay=0.5)
    >>> (w * w).sum().backward(); adam.step(); w.tolist()  # doctest: +ELLIPSIS
    [0.85...]
    """

    _decoupled = True

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2):
        super().__init__(params, lr, betas, eps, weight_decay)


class RMSprop(Optimizer):
    """RMSprop (Hinton 2012, lecture 6e), by default without momentum; centered as in Graves 2013. As PyTorch's.

    params: parameters, or groups of them, as in `SGD`. A step with gradient g reads

        g <- g + weight_decay * p;   s <- alpha * s + (1 - alpha) * g^2;   u <- g / (sqrt(s) + eps)
        v <- momentum * v + u;   p <- p - lr * v

    centered: m <- alpha * m + (1 - alpha) * g, and s - m^2, the variance, in the place of s under the root.

    Raises ValueError for a negative rate, eps, decay or momentum, and an alpha that is not from 0 to below 1; else as
    `SGD`.

    >>> from minidl import Tensor
    >>> w = Tensor([1.0], requires_grad=True)
    >>> rmsprop = RMSprop([w], lr=0.01)
    >>> (w * w).sum().backward(); rmsprop.step(); w.tolist()  # doctest: +ELLIPSIS
    [0.90...]
    """

    kept = {"squares": "square", "means": "mean", "velocities": "velocity"}

    def __init__(self, params: Iterable[Any], lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
                 weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False):
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay,
                                  "momentum": momentum, "centered": centered})

    def _uses(self, group: Group) -> Iterable[str]:
        return ["squares", *["means"] * bool(group["centered"]), *["velocities"] * bool(group["momentum"])]

    def _update(self, k: ModuleType, params: list[Array], grads: list[Array], kept: dict[str, list[Array]], lr: Rate,
                group: Group) -> None:
        k.rmsprop(params, grads, kept["squares"], kept.get("means"), kept.get("velocities"), lr, group["alpha"],
                  group["eps"], group["weight_decay"], group["momentum"])
