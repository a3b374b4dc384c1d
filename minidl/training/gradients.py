"""Check the gradients of a whole net against central differences, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np

from .. import ops
from ..core import rng
from ..core.gradcheck import GradcheckError
from ..core.mode import no_grad
from ..core.tensor import Tensor, as_tensor
from ..data.sources import mapped
from ..nn.module import Module
from .metrics import Parts, outputs_of
from .resume import modules_of, named_tensors

STEPS = 1e-5, 1e-6, 1e-7                   # the smaller ones if a kink is within the larger: of ReLU, of a maximum
RELATIVE, ROUNDING = 1e-5, 1e-14           # of the derivative; and of the loss, divided by the step


def check_gradients(net: Module, inputs: Parts, targets: Parts, loss: Callable[..., Tensor] = ops.cross_entropy, *,
                    directions: int = 4, seed: int = 0) -> float:
    """Compare gradients of `loss(net(inputs), targets)` with central differences, for all parameters of a net.

    inputs and targets: a Tensor or array, or several as a tuple or dict, as `fit` has them. A copy of the net, and of a
    loss that is a Module, computes in float64. For each parameter, of such a loss too, the derivatives along random
    directions of length 1 are compared; `seed` decides the directions. Dropout draws the same mask each time. Returns
    the largest difference as a share of its tolerance. The net, its gradients and the random numbers stay as they are.

    Raises GradcheckError (a ValueError) naming parameter, element and both values, and for a loss that is not finite.

    >>> from minidl import nn
    >>> check_gradients(nn.Linear(3, 2), Tensor([[1.0, 2.0, 3.0]]), Tensor([1])) < 1
    True
    """
    net, copied = copy.deepcopy((net, loss if isinstance(loss, Module) else None))     # what both share stays shared
    loss, state = loss if copied is None else copied, rng.get_state()
    modules = modules_of(net, loss)
    for module in modules.values():
        module.to(dtype="float64")
    named = [(name, t) for name, t in named_tensors(modules) if t.requires_grad]
    draw, worst = np.random.default_rng(seed).standard_normal, 0.0
    inputs, targets = (mapped(lambda t: t.to(dtype="float64") if t.dtype.kind == "f" else t, mapped(as_tensor, parts))
                       for parts in (inputs, targets))

    def result() -> Tensor:
        rng.manual_seed(seed)              # the same dropout
        return loss(outputs_of(net, inputs), targets)

    try:
        for _, parameter in named:
            parameter.grad = None
        (at := result()).backward()
        size = max(1.0, abs(at.item()))
        if not np.isfinite(at.item()):
            raise GradcheckError(f"check_gradients: the loss is {at.item()}; choose inputs and parameters where it is "
                                 "finite")
        with no_grad():
            for name, parameter in named:
                grad = np.zeros(parameter.size) if parameter.grad is None else parameter.grad.numpy().reshape(-1)
                for _ in range(directions):
                    v = draw(grad.size)
                    v /= np.linalg.norm(v)
                    share = _share(result, parameter, grad, v, size)
                    worst = max(worst, share)
                    if share > 1:
                        _refuse(result, name, parameter, grad, v)
    finally:
        rng.set_state(state)
    return worst


def _derivative(result: Callable[[], Tensor], parameter: Tensor, v: np.ndarray, step: float) -> float:
    """Central difference of a result when a parameter moves along v, both flat."""
    before, values = parameter._data, []
    for way in (step, -step):
        moved = parameter.numpy().reshape(-1) + way * v
        parameter._data = Tensor(moved.reshape(parameter.shape), device=parameter.device)._data
        values.append(result().item())
        parameter._data = before
    return (values[0] - values[1]) / (2 * step)


def _share(result: Callable[[], Tensor], parameter: Tensor, grad: np.ndarray, v: np.ndarray, size: float) -> float:
    """By how much of its tolerance the derivative along v is off, with the step that fits best."""
    least = np.inf
    for step in STEPS:
        numeric = _derivative(result, parameter, v, step)
        off = abs(float(grad @ v) - numeric) / (RELATIVE * abs(numeric) + ROUNDING * size / step)
        least = min(least, off)
        if least <= 1:
            break
    return float(least)


def _refuse(result: Callable[[], Tensor], name: str, parameter: Tensor, grad: np.ndarray, v: np.ndarray) -> None:
    """Halve a direction that failed, keeping the half that is further off, down to one element, and name it."""
    begin, end = 0, v.size
    while end - begin > 1:
        halves = [np.where((np.arange(v.size) >= i) & (np.arange(v.size) < j), v, 0.0)
                  for middle in [(begin + end) // 2] for i, j in ((begin, middle), (middle, end))]
        off = [abs(float(grad @ half) - _derivative(result, parameter, half, STEPS[1])) for half in halves]
        begin, end = (begin, (begin + end) // 2) if off[0] >= off[1] else ((begin + end) // 2, end)
    element = tuple(int(n) for n in np.unravel_index(begin, parameter.shape))
    numeric = _derivative(result, parameter, np.eye(1, v.size, begin)[0], STEPS[1])
    raise GradcheckError(f"check_gradients: {name}, element {element}: backward gives {grad[begin]:.9g} but "
                         f"differences give {numeric:.9g}; correct the backward of an op between {name} and the loss")
