"""Updates by running averages, on NumPy arrays, in place; and many arrays as one vector."""

from __future__ import annotations

import math

import numpy as np

from ...common.primitives import Array, Rate
from ..layers.matmul import matmul

__all__ = ["adam", "ema", "matmul_sum", "rmsprop", "scaled", "square_sum"]


def adam(params: list[Array], grads: list[Array], means: list[Array], squares: list[Array], steps: list[Array],
         lr: Rate, betas: tuple[float, float], eps: float, weight_decay: float, decoupled: bool) -> None:
    """t += 1; m += (1 - beta1) * (g - m); s = beta2 * s + (1 - beta2) * g^2;
    p -= lr / (1 - beta1^t) * m / (sqrt(s) / sqrt(1 - beta2^t) + eps), after g += weight_decay * p, or p -= lr *
    weight_decay * p if it is decoupled.

    steps: t of each parameter, int64 (1,). lr: as of sgd.
    """
    lr = number(lr)
    for p, g, m, s, t in zip(params, grads, means, squares, steps, strict=True):
        t += 1
        size = lr / (1 - betas[0] ** int(t[0]))
        root = math.sqrt(1 - betas[1] ** int(t[0]))
        if decoupled:
            p *= 1 - lr * weight_decay
        elif weight_decay:
            g = g + weight_decay * p
        m += (1 - betas[0]) * (g - m)
        s *= betas[1]
        s += (1 - betas[1]) * (g * g)
        p -= size * (m / (np.sqrt(s) / root + eps))


def rmsprop(params: list[Array], grads: list[Array], squares: list[Array], means: list[Array] | None,
            velocities: list[Array] | None, lr: Rate, alpha: float, eps: float, weight_decay: float,
            momentum: float) -> None:
    """g += weight_decay * p; s = alpha * s + (1 - alpha) * g^2; g /= sqrt(s) + eps; v = momentum * v + g; p -= lr * v

    With means also m += (1 - alpha) * (g - m), and s - m^2 in the place of s under the root. Without velocities p -= lr
    * g. lr: as of sgd.
    """
    lr = number(lr)
    for i, (p, g, s) in enumerate(zip(params, grads, squares, strict=True)):
        if weight_decay:
            g = g + weight_decay * p
        s *= alpha
        s += (1 - alpha) * (g * g)
        variance = s
        if means is not None:
            m = means[i]
            m += (1 - alpha) * (g - m)
            variance = np.maximum(s - m * m, 0)        # rounding may leave it below
        g = g / (np.sqrt(variance) + eps)
        if velocities is not None:
            v = velocities[i]
            v *= momentum
            v += g
            g = v
        p -= lr * g


def ema(averages: list[Array], values: list[Array], decay: float) -> None:
    """averages += (1 - decay) * (values - averages), each in place."""
    for average, value in zip(averages, values, strict=True):
        average += (1 - decay) * (value - average)


def square_sum(arrays: list[Array]) -> Array:
    """The sum of all squares, in float64, of shape ()."""
    return sum((np.sum(np.square(x, dtype=np.float64)) for x in arrays), np.zeros(()))


def scaled(arrays: list[Array], factor: Array) -> tuple[Array, ...]:
    """Each times a float64 of shape (), in its own dtype."""
    return tuple(x * factor.astype(x.dtype) for x in arrays)


def number(lr: Rate) -> float:
    """A learning rate, as sgd takes it."""
    if isinstance(lr, tuple):
        rates, position = lr
        lr = float(rates[position[0]])
    return float(lr)


def matmul_sum(x: Array, y: Array, z: Array, alpha: float, beta: float) -> Array:
    """alpha * x @ y + beta * z: x (n,i,j), y (n,j,k), z (n,i,k), floating"""
    result = matmul(x, y)
    result *= alpha
    result += beta * z
    return result
