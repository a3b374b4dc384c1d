"""Nets, batches and steps that tests of compiled steps share, and programs made by hand."""

from __future__ import annotations

import contextlib
import gc
import re
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

import minidl
from minidl import Tensor, distributed, nn, ops, optim, zoo
from minidl.compiler.program import Call, Dynamic, Program, Slot
from minidl.compiler.reads.facts import Facts
from minidl.core.tensor import Node
from minidl.ops import cpu
from minidl.ops.cpu import parallel

OPTIONS: dict[str, dict[str, Any]] = {"lenet5": {}, "krizhevsky2009": {}, "cifar10-quick": {}, "cifar10-18": {},
                                      "alexnet": {"width": 6, "hidden": 20}, "resnet": {"depth": 8, "width": 4},
                                      "resnet-224": {"width": 4}, "mlp": {"hidden": 20}, "perceptron": {},
                                      "autoencoder": {"width": 4, "code": 8},
                                      "table-mlp": {"classes": 10, "hidden": 20}, "airbench": {"width": 4},
                                      "ece408": {}}
SETTINGS = [{}, {"momentum": 0.9}, {"momentum": 0.5, "nesterov": True}, {"weight_decay": 0.01},
            {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}]
FACTORS = optim.schedule("warmup-cosine", 300)


class Training:
    """A model with its optimizer and the step that trains it, plain or compiled, always from the same start."""

    def __init__(self, net: Callable[[], nn.Module], compiled: bool, device: str = "cpu", **settings: Any):
        minidl.manual_seed(3)
        self.net = net().to(device)
        self.sgd = optim.SGD(self.net.parameters(), **{"lr": 0.02, **settings})
        to_itself = getattr(self.net, "model_name", None) == "autoencoder"     # its target is the image

        def step(x: Tensor, labels: Tensor) -> Tensor:
            self.sgd.zero_grad()
            outputs = self.net(x)
            loss = self.net.loss(outputs, x) if to_itself else ops.cross_entropy(outputs, labels)
            loss.backward()
            self.sgd.step()
            return loss

        self.step: Any = minidl.compile(step) if compiled else step

    def arrays(self) -> dict[str, Any]:
        """Copies of all parameters, gradients, velocities and buffers."""
        found = {name: t.data.copy() for name, t in self.net.named_buffers()}
        for name, p in self.net.named_parameters():
            found |= {name: p.data.copy(), f"{name}.velocity": self.sgd._array("velocities", p).copy()}
            if p.grad is not None:
                found[f"{name}.grad"] = p.grad.data.copy()
        return found

    def set_back(self, state: dict[str, Any]) -> None:
        """To a state, in place: a program stays good, which load_state_dict gives other buffers than its own."""
        with minidl.no_grad():
            for name, t in self.net.named_tensors():
                t[...] = Tensor(state[name], device=t.device)
        self.sgd.forget()

    def follow(self, other: Training) -> None:
        """Go on from where another one is: parameters, buffers and velocities, in place."""
        with minidl.no_grad():
            for mine, its in zip(self.net.named_tensors(), other.net.named_tensors(), strict=True):
                mine[1][...] = its[1]
        for p, q in zip(self.net.parameters(), other.net.parameters(), strict=True):
            self.sgd._array("velocities", p)[...] = other.sgd._array("velocities", q)


def batch(name: str, n: int, seed: Any, device: str = "cpu") -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, *zoo.MODELS[name].shape), dtype=np.float32)
    return Tensor(x, device=device), Tensor(rng.integers(0, 10, n), device=device)


def zoo_model(name: str) -> Callable[[], nn.Module]:
    """Without dropout: two that train in turns would draw from one generator."""
    def build() -> nn.Module:
        net = zoo.build(name, **OPTIONS[name])
        for each in net.modules():
            if isinstance(each, nn.Dropout):
                each.eval()
        return net
    return build


def dense(*middle: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A small net on vectors of 8 with 3 classes."""
    return lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), *(layer() for layer in middle), nn.Linear(16, 3))


def half() -> nn.Module:
    return nn.Dropout(0.5)


def two_dropouts() -> nn.Module:
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 16), nn.Dropout(0.3))


def normalising() -> nn.Module:
    """All layers of normalisation, one of them twice, on the maps of vectors of 8; for 3 classes."""
    class Maps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.twice, self.groups = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4)
            self.pool, self.output = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 3)
            self.rows, self.vectors = nn.LayerNorm(4), nn.BatchNorm1d(3, momentum=0.3)

        def forward(self, x: Tensor) -> Tensor:
            y = ops.tanh(self.twice(self.conv(x.reshape(-1, 2, 2, 2))))
            y = self.groups(y + self.twice(y * 2))
            return self.vectors(self.output(self.rows(self.pool(y).flatten(1))))
    return Maps()


def regularised() -> nn.Module:
    """Normalisation of every kind, and dropout."""
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 8),
                         normalising())


def vectors(n: int = 4, seed: Any = 0, device: str = "cpu") -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    return Tensor(rng.standard_normal((n, 8), dtype=np.float32), device=device), Tensor(rng.integers(0, 3, n),
                                                                                       device=device)


def assert_same_bits(mine: Any, other: Any) -> None:
    """Equal arrays by name, and both have gradients."""
    assert mine.keys() == other.keys()
    for name in mine:
        assert mine[name].dtype == other[name].dtype
        assert mine[name].tobytes() == other[name].tobytes(), name


def bits(t: Tensor) -> bytes:
    return t.numpy().tobytes()


def numbers(*values: float, **options: Any) -> Tensor:
    return Tensor(np.array(values, np.float32), **options)


def names(program: Program) -> list[str]:
    return [call.name for call in program.calls]


class Maker:
    """Programs by hand: values are float32 numbers in arrays of 2."""

    def __init__(self) -> None:
        self.count, self.calls = 0, list[Call]()

    def slot(self, kind: str = "result") -> Slot:
        self.count += 1
        return Slot(self.count - 1, kind, (2,), np.dtype(np.float32))

    def call(self, name: str, *arguments: Any, results: int = 1, **options: Any) -> Any:
        slots = tuple(self.slot() for _ in range(results))
        self.calls.append(Call(cpu, name, arguments, options, slots, results > 1))
        return slots[0] if len(slots) == 1 else slots

    def program(self, inputs: list[Slot], outputs: Any, grads: Any = ()) -> Program:
        return Program(inputs, [], self.calls, outputs, list(grads), [], [], Facts())


def alive() -> int:
    """How many objects of minidl there are."""
    return sum(isinstance(thing, (Tensor, Node, Slot, Call, Program, Dynamic)) for thing in gc.get_objects())


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Memory is counted with the garbage collector off: flat by reference counts alone. What was kept for reuse before
    is not at hand: nobody would see it taken."""
    gc.collect()
    gc.disable()
    try:
        tracemalloc.start()
        with mock.patch.object(parallel, "_kept", []):
            yield
    finally:
        tracemalloc.stop()
        gc.enable()


def placed(message: str, function: Callable[..., Any]) -> str:
    """The message with this file and the line of a function of one line."""
    code = function.__code__
    lines = {line for _, _, line in code.co_lines() if line}
    return message.replace("PLACE", rf"{re.escape(code.co_filename)}:({'|'.join(map(str, sorted(lines)))})")


def averaged_step(net: nn.Module, params: list[Any], sgd: optim.SGD, world: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """A training step whose gradients are averaged over a world, which may be a stand-in."""
    def step(x: Tensor, labels: Tensor) -> Tensor:
        sgd.zero_grad()
        loss = ops.cross_entropy(net(x), labels)
        loss.backward()
        distributed.average(params, None, world)
        sgd.step()
        return loss
    return step
