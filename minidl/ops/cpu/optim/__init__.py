"""The optimizer's update on NumPy arrays, in place."""

from __future__ import annotations

from ...common.primitives import Array, Rate

__all__ = ["sgd"]


def sgd(params: list[Array], grads: list[Array], velocities: list[Array] | None, lr: Rate, momentum: float,
        weight_decay: float, nesterov: bool) -> None:
    """g += weight_decay * p; v = momentum * v + g; p -= lr * v, or lr * (g + momentum * v) with nesterov.

    lr: a number, or (rates, position), arrays of float64 and int64: the rate is rates[position[0]].
    """
    if isinstance(lr, tuple):
        rates, position = lr
        lr = float(rates[position[0]])
    for i, (p, g) in enumerate(zip(params, grads, strict=True)):
        if weight_decay:
            g = g + weight_decay * p
        if velocities is not None:
            v = velocities[i]
            v *= momentum
            v += g
            g = g + momentum * v if nesterov else v
        p -= lr * g
