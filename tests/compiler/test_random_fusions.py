"""Random nets for fused kernels (tests/random_fusions.py): what needs no GPU, that they are nets, and that each planted
fault has a place in the sources."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from types import SimpleNamespace
from typing import Any

import pytest
import random_fusions
from random_fusions import FAULTS, NAMES, net

from minidl.ops import cpu
from minidl.ops.common import sources

Shape = tuple[int, ...]
SOURCES = {path: path.read_text(encoding="utf-8") for path in sources.FOLDER.rglob("*.cu*")}


def pair(value: Any) -> tuple[Any, Any]:
    return value if isinstance(value, tuple) else (value, value)


def windows(shape: Shape, channels: int, kernel: Any, stride: Any, padding: Any) -> Shape:
    """What a convolution or pooling makes of images, each side at least 1."""
    sides = [(size + sum(pair(before)) - k) // s + 1 for size, k, s, before in zip(
        shape[2:], pair(kernel), pair(stride), pair(padding), strict=True)]
    assert min(sides) >= 1, f"windows of {kernel} in {shape}"
    return shape[0], channels, *sides


def conv2d(c: int, m: int, kernel: Any, stride: Any = 1, padding: Any = 0, bias: bool = True) -> Callable[..., Shape]:
    def of(shape: Shape) -> Shape:
        assert shape[1] == c
        return windows(shape, m, kernel, stride, padding)
    return of


def norm(c: int, eps: float, affine: bool = True) -> Callable[..., Shape]:
    def of(shape: Shape) -> Shape:
        assert shape[1] == c
        assert math.prod(shape) > c, "one value has no variance"
        return shape
    return of


def linear(inputs: int, outputs: int, bias: bool = True) -> Callable[..., Shape]:
    def of(shape: Shape) -> Shape:
        assert shape[1:] == (inputs,)
        return shape[0], outputs
    return of


def residual(body: Callable[..., Shape], act: Callable[..., Shape]) -> Callable[..., Shape]:
    def of(shape: Shape) -> Shape:
        assert body(shape) == shape
        return shape
    return of


def pool(kernel: Any, stride: Any, padding: Any) -> Callable[..., Shape]:
    return lambda shape: windows(shape, shape[1], kernel, stride, padding)


def sequential(*layers: Callable[..., Shape]) -> Callable[..., Shape]:
    return lambda shape: reduce(lambda given, layer: layer(given), layers, shape)


# Layers as what they make of a shape
SHAPES: dict[str, Any] = {"Residual": residual, "nn": SimpleNamespace(
    Conv2d=conv2d, BatchNorm2d=norm, Linear=linear, MaxPool2d=pool, AvgPool2d=pool, Sequential=sequential,
    AdaptiveAvgPool2d=lambda size: lambda shape: (*shape[:2], size, size),
    Flatten=lambda: lambda shape: (shape[0], math.prod(shape[1:])),
    **{act[3:act.index("(")]: lambda *_: lambda shape: shape for act in random_fusions.ACTIVATIONS})}


def test_nets_are_nets() -> None:
    """By shapes alone; the modules of some."""
    for number in range(1001):
        each = net(number)
        text = f"nn.Sequential({', '.join(each.layers)})"
        assert eval(text, dict(SHAPES))((each.n, *each.shape)) == (each.n, each.classes), each
        if number % 50 == 0:
            assert len(eval(text, dict(NAMES))) == len(each.layers), each
    assert str(net(7)) == str(net(7)) != str(net(8))


@pytest.mark.slow
@pytest.mark.parametrize("number", [4, 14, 20])
def test_compiled_steps_are_replays(number: int) -> None:
    """On the CPU here, which gives the eager step's bits but in sums; a step that is recorded anew is refused."""
    share, _, calls = random_fusions.compare(net(number), "cpu", "fp32")
    assert share <= 1
    assert {*calls} <= {*random_fusions.calls_of(net(number), "cpu", "fp32"), "sgd"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_changes_one_place(name: str) -> None:
    precision, old, new, call, algorithm = (*FAULTS[name], "", "")[:5]
    assert precision in random_fusions.ROUNDING
    assert algorithm in ("", *random_fusions.GO_ON)
    assert not call or hasattr(cpu, call), "names of primitives"
    assert old != new
    assert [path.name for path, text in SOURCES.items() for _ in range(text.count(old))][1:] == [], "several places"
    assert any(old in text for text in SOURCES.values()), f"no source holds {old!r}; correct the fault"
