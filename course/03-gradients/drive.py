"""What check.py asks of a student's file: its functions on Tensors, as arrays."""

from __future__ import annotations

from types import ModuleType

import numpy as np


def differentiated(lab: ModuleType, waves: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """numerical_gradient of the sum of sin(waves x) + x^3, and x after it."""
    gradient = lab.numerical_gradient(lambda x: float((np.sin(waves * x) + x ** 3).sum()), x)
    return gradient, x


def value(lab: ModuleType, name: str, arrays: list[np.ndarray]) -> np.ndarray:
    """What an op gives."""
    from minidl import Tensor

    return np.array(getattr(lab, name)(*map(Tensor, arrays)).numpy())


def gradients(lab: ModuleType, name: str, arrays: list[np.ndarray], needed: list[bool], gy: np.ndarray
              ) -> list[np.ndarray | None]:
    """The gradients of an op's inputs by backward; None where there is none."""
    from minidl import Tensor

    inputs = [Tensor(each, requires_grad=need) for each, need in zip(arrays, needed)]
    getattr(lab, name)(*inputs).backward(Tensor(gy))
    return [None if each.grad is None else np.array(each.grad.numpy()) for each in inputs]


def trained(lab: ModuleType, x: np.ndarray, t: np.ndarray, w: np.ndarray, b: np.ndarray, rate: float, steps: int
            ) -> list[float]:
    """The losses of a linear classifier, step by step."""
    from minidl import Tensor, optim

    weights = [Tensor(each, requires_grad=True) for each in (w, b)]
    sgd, losses = optim.SGD(weights, lr=rate), []
    for _ in range(steps):
        loss = lab.softmax_cross_entropy(lab.linear(Tensor(x), *weights), Tensor(t))
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        losses.append(loss.item())
    return losses
