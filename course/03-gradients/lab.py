"""Lab 3: gradients by hand. Fill the gaps that are marked TODO; README.md says how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import minidl
from minidl import Tensor


def numerical_gradient(f: Callable[[np.ndarray], float], x: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """The derivative of f(x) by each element of x, by central differences; x stays as it is."""
    # TODO: (f(x + eps) - f(x - eps)) / (2 eps), an element at a time
    raise NotImplementedError("return an array like x: how f changes when one element moves up and down by eps")


@minidl.op
def linear(k: Any, x: Tensor, w: Tensor, b: Tensor) -> Any:
    """y = x w^T + b: x (n, inputs), w (outputs, inputs), b (outputs,) -> (n, outputs)."""
    # TODO: y, by k.matmul, k.transpose and k.add
    raise NotImplementedError("compute y = x w^T + b with the primitives of k")
    y = ...

    def backward(gy: Any, need: tuple[bool, ...]) -> Any:
        # TODO: the gradients gx, gw and gb, each in its input's shape
        raise NotImplementedError("return gx, gw, gb, from gy (n, outputs)")
    return y, backward


@minidl.op
def softmax_cross_entropy(k: Any, x: Tensor, t: Tensor) -> Any:
    """The mean over n rows of -sum(t log softmax(x)): x (n, classes), t (n, classes) of rows that sum to 1 -> ()."""
    # TODO: the loss, by k.sub, k.max, k.exp, k.sum, k.log, k.mul, k.neg and k.div; also of x = 1000
    raise NotImplementedError("compute the loss; subtract each row's maximum first, so that no power overflows")
    loss = ...

    def backward(gy: Any, need: tuple[bool, ...]) -> Any:
        # TODO: gx; t needs no gradient
        raise NotImplementedError("return gx, None, from gy, a single number")
    return loss, backward
