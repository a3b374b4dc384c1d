"""What programs are fused from, as data: steps that a fused primitive serves, and nets that a region does.

test_fuse.py and test_region.py run each on the CPU and on CUDA, test_emulated.py on CUDA without a GPU, launch_all.py
for the sanitizer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import minidl
import zoo
from minidl import Tensor, nn, ops
from minidl.ops import ACTIVATIONS
from zoo.recipe import LAYERS

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
    return backward(lambda x, w: ops.linear(getattr(ops, act)(ops.linear(x, w)), w).sum())


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
    "classified one": ("cross_entropy_with_grad", classified("none", 0.1), lambda: (normal(1, 4), np.array([2]))),
}


def normal(*shape: int, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ---------------------------------------------------------------- nets, whose images one by one are a region
def small(*layers: nn.Module) -> nn.Sequential:
    minidl.manual_seed(0)
    return nn.Sequential(*layers)


def lenet(**options: Any) -> nn.Module:
    minidl.manual_seed(0)
    return zoo.build("lenet5", **options)


def krizhevsky() -> nn.Module:
    minidl.manual_seed(0)
    return zoo.build("krizhevsky2009")


NETS: dict[str, tuple[Any, tuple[int, ...], dict[str, Any]]] = {       # layers, an image, options of `recorded`
    "lenet5": (lenet, (1, 32, 32), {}),
    "lenet5 of colours, relu": (lambda: lenet(in_channels=3, activation="relu"), (3, 32, 32), {}),
    "lenet5, sigmoid, smoothed labels": (lambda: lenet(activation="sigmoid"), (1, 32, 32), {"smoothing": 0.1}),
    "padded, odd sizes": (lambda: small(nn.Conv2d(2, 5, 3, padding=1), nn.Tanh(), nn.Conv2d(5, 3, (2, 4)), nn.Flatten(),
                                        nn.Linear(3 * 8 * 8, 10)), (2, 9, 11), {}),
    "asymmetric padding, no bias": (lambda: small(nn.Conv2d(1, 3, (4, 5), padding=((2, 1), (0, 3)), bias=False),
                                                  nn.ReLU(), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(3 * 9, 7)),
                                    (1, 11, 10), {"classes": 7}),
    "one by one filters": (lambda: small(nn.Conv2d(3, 4, 1), nn.Sigmoid(), nn.Conv2d(4, 2, 6), nn.Flatten(),
                                         nn.Linear(2 * 2 * 4, 10)), (3, 7, 9), {}),
    "windows that do not tile": (lambda: small(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
                                               nn.Linear(2 * 3 * 4, 10)), (1, 9, 11), {}),
    "pooling and activations by themselves": (lambda: small(
        nn.Conv2d(1, 2, 3), nn.AvgPool2d(2), nn.AvgPool2d(2), *(layer() for layer in (*LAYERS.values(),) * 2),
        nn.Flatten(), nn.Linear(2 * 2 * 2, 10)), (1, 10, 10), {}),
    "linear": (lambda: small(nn.Flatten(), nn.Linear(35, 50), nn.ReLU(), nn.Linear(50, 33)), (5, 7), {"classes": 33}),
    "krizhevsky2009's end": (krizhevsky, (3, 32, 32), {}),
}
REFUSED: dict[str, tuple[Any, tuple[int, ...], dict[str, Any]]] = {
    "doubles": (lenet, (1, 32, 32), {"dtype": "float64"}),
    "a stride": (lambda: small(nn.Conv2d(1, 2, 3, stride=2), nn.Flatten(), nn.Linear(18, 10)), (1, 8, 8), {}),
    "filters of many taps": (lambda: small(nn.Conv2d(1, 2, 7), nn.Flatten(), nn.Linear(18, 10)), (1, 9, 9), {}),
    "windows that overlap": (lambda: small(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2, stride=1), nn.Flatten(),
                                           nn.Linear(50, 10)), (1, 8, 8), {}),
    "an algorithm that was asked for": (lambda: small(nn.Conv2d(1, 2, 3, algorithm="direct"), nn.Flatten(),
                                                      nn.Linear(72, 10)), (1, 8, 8), {}),
    "more weights than a block should read": (lambda: small(nn.Flatten(), nn.Linear(1024, 100)), (1, 32, 32), {}),
}
