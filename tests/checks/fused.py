"""Steps that a fused primitive serves, as data: what `step_agrees` of agrees.py compares, on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import minidl
from minidl import Tensor, ops
from minidl.compiler.passes import without_identities
from minidl.compiler.program import Program
from minidl.compiler.record import record
from minidl.ops import ACTIVATIONS
from minidl.ops.common.primitives import ALL, OF_X

Step = Callable[..., Any]


def backward(loss: Callable[..., Tensor]) -> Step:
    """A step that computes a loss and its gradient by the first input."""
    def step(x: Tensor, *others: Tensor) -> Tensor:
        x.grad = None
        value = loss(x, *others)
        value.backward()
        return value
    return step


def pooled(act: str, size: Any, stride: Any = None, padding: Any = 0) -> Step:
    return backward(lambda x, w: (ops.avg_pool2d(getattr(ops, act)(x), size=size, stride=stride, padding=padding)
                                  * w).sum())


def classified(reduction: str, smoothing: float) -> Step:
    return backward(lambda x, labels: ops.cross_entropy(x, labels, reduction=reduction, label_smoothing=smoothing))


def convolved(act: str, size: int | None = None) -> Step:
    def loss(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = getattr(ops, act)(ops.conv2d(x, w, b, padding=1))
        y = ops.avg_pool2d(y, size=size) if size else y
        return (y * y).sum()
    return backward(loss)


def convolved_weights(act: str, size: Any, stride: Any = None) -> Step:
    """The filters' gradient, and through a bias that is made of them the bias's, but none of the images."""
    def loss(w: Tensor, x: Tensor) -> Tensor:
        y = getattr(ops, act)(ops.conv2d(x, w, w.sum(axis=(1, 2, 3)), padding=((1, 2), (2, 1))))
        y = ops.avg_pool2d(y, size=size, stride=stride)
        return (y * y).sum()
    return backward(loss)


def multiplied(act: str) -> Step:
    return backward(lambda x, w: ops.linear(activated(act, ops.linear(x, w)), w).sum())


def activated(act: str, x: Tensor) -> Tensor:
    return ops.gelu(x, approximate="tanh") if act == "gelu_tanh" else getattr(ops, act)(x)


def alone(act: str, op: Callable[..., Tensor]) -> Step:
    """An activation of what an op gives, without gradients: nothing but the result is read."""
    def step(x: Tensor, *others: Tensor) -> Tensor:
        x.grad = x * 1
        with minidl.no_grad():
            z = op(x, *others)
            return activated(act, z) if act else z
    return step


def added(act: str) -> Step:
    """What comes of a sum is read twice, so that two gradients of it are added up."""
    def loss(x: Tensor, other: Tensor) -> Tensor:
        y = activated(act, x + other)
        return (y * y).sum() + y.mean()
    return backward(loss)


def normalized(act: str, way: str) -> Step:
    """A block of a residual net."""
    def loss(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        other = x * 2
        z = ops.batch_norm(x, mean, var, w, b, training=True)
        other = ops.pad(other[:, :, ::2], (0, 0, 0, x.shape[2] // 2)) if way == "padded" else other
        y = activated(act, z if not way else other + z if way == "before" else z + other)
        return (y * x).sum() + ((y * y).sum() if way else 0.0)
    return backward(loss)


def in_groups(act: str) -> Step:
    """Of each image's own values."""
    return backward(lambda x, w, b: (activated(act, ops.group_norm(x, 2, w + x.sum(axis=(0, 2, 3)), b)) * x).sum())


def folded(weight: bool) -> Callable[..., Tensor]:
    def op(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return ops.batch_norm(ops.conv2d(x, w, b, padding=1), mean, var * var, *((b, mean) if weight else ()))
    return op


def channels(*more: int) -> tuple[Any, ...]:
    """Images of 4 channels, and their weight, bias, running mean and variance."""
    return (normal(*more), *(normal(more[1], seed=seed) for seed in (1, 2, 3, 4)))


# a fused primitive that serves a step, the step, and its inputs; the first is a leaf whose gradient it computes
STEPS: dict[str, tuple[str, Step, Callable[[], tuple[Any, ...]]]] = {
    **{f"pooled {act}": ("avg_pool2d_grad_act", pooled(act, 2), lambda: (normal(3, 2, 6, 8), normal(3, 2, 3, 4)))
       for act in ACTIVATIONS},
    **{f"overlapping {act}": ("avg_pool2d_grad_act", pooled(act, 3, 2, 1),
                              lambda: (normal(2, 3, 9, 7), normal(2, 3, 5, 4))) for act in ACTIVATIONS},
    **{f"classified {reduction} {smoothing}": ("cross_entropy_with_grad", classified(reduction, smoothing),
                                               lambda: (normal(5, 7), np.arange(5)))
       for reduction in ("mean", "sum") for smoothing in (0.0, 0.1)},
    **{f"convolved {act}": ("conv2d_act", convolved(act), lambda: (normal(3, 2, 7, 9), normal(5, 2, 3, 3), normal(5)))
       for act in ACTIVATIONS},
    **{f"convolved and pooled {act}, {size}": ("conv2d_act_pool", convolved(act, size), lambda: (
        normal(3, 2, 8, 12), normal(5, 2, 3, 3), normal(5))) for act in ACTIVATIONS for size in (2, 3, 4)},
    **{f"gradients of convolved and pooled {act}, {size}": ("conv2d_act_pool_grad_wb", convolved_weights(act, *size),
       lambda: (normal(5, 2, 4, 4), normal(3, 2, 8, 12)))
       for act in ACTIVATIONS for size in ((2,), (4,), ((4, 2),), (3, 2))},
    **{f"{name} {act}": (name, multiplied(act), lambda: (normal(5, 7), normal(7, 7)))
       for name in ("linear_act", "linear_grad_act") for act in ACTIVATIONS},
    **{f"{name} {act}": (name, multiplied(act), lambda: (normal(5, 7), normal(7, 7)))
       for name in ("linear_and_act", "linear_grad_act") for act in OF_X},
    **{f"linear_act alone {act}": ("linear_act", alone(act, ops.linear), lambda: (normal(5, 7), normal(6, 7)))
       for act in OF_X},
    **{f"{name} {act} {shape}": (name, added(act), lambda shape=shape: (normal(3, 4, 5), normal(*shape, seed=1)))
       for name in ("add_act", "add_grad_act") for act in (ACTIVATIONS if name == "add_act" else ALL)
       for shape in ((3, 4, 5), (4, 1))[:1 + (act == "relu")]},
    **{f"add_act alone {act}": ("add_act", alone(act, lambda x, other: x + other),
                                lambda: (normal(3, 5), normal(3, 5, seed=1))) for act in OF_X},
    **{f"normalized {act} {way}": ("batch_norm_act", normalized(act, way), lambda: channels(6, 4, 6, 5))
       for act in ACTIVATIONS for way in ("", "before", "behind")},
    "normalized relu padded": ("batch_norm_act", normalized("relu", "padded"), lambda: channels(6, 4, 6, 5)),
    **{f"gradient of normalized {act} {way}": ("normalize_act_grad", normalized(act, way), lambda: channels(6, 4, 6, 5))
       for act in ALL for way in ("", "behind")},
    **{f"gradient of groups {act}": ("normalize_act_grad", in_groups(act), lambda: channels(3, 4, 3, 5)[:3])
       for act in ("relu", "tanh")},
    **{f"folded {act} {weight}": ("conv2d_norm_act" if act else "conv2d_norm", alone(act, folded(weight)), lambda: (
        normal(3, 2, 7, 9), normal(5, 2, 3, 3), *(normal(5, seed=seed) for seed in (1, 2, 3))))
       for act in (*ACTIVATIONS, "") for weight in (False, True)},
    "classified one": ("cross_entropy_with_grad", classified("none", 0.1), lambda: (normal(1, 4), np.array([2]))),
}


def normal(*shape: int, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def recorded(name: str, dtype: Any = np.float32,
             there: Callable[[np.ndarray], Tensor] = Tensor) -> tuple[Program, Tensor, list[Tensor]]:
    """(the program of a step, the leaf, what it ran on)"""
    _, step, given = STEPS[name]
    tensors = [there(a.astype(dtype) if a.dtype.kind == "f" else a) for a in given()]
    tensors[0].requires_grad = True
    return without_identities(record(step, tuple(tensors), {})[0]), tensors[0], tensors
