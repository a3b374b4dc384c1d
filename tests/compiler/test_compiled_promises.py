"""A compiled step never lies: it is the plain function bit for bit, or it is refused by name and line.

Each scenario is a small function of a world (tests/twins.py). It is run twice from one seed, once with plain steps and
once with compiled ones, and changes something between calls that a step can read, or does something in a step that a
replay could forget. A verdict other than "either" is what must come out.
"""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import copy
import ctypes
import dataclasses
import datetime
import enum
import functools
import gc
import importlib
import itertools
import multiprocessing
import operator
import os
import pickle
import random
import sys
import threading
import time
import types
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from twins import CompileError, Refused, Verdict, World, compare

import minidl
from minidl import Tensor, data, init, nn, no_grad, ops, optim
from minidl.compiler.reads import facts
from minidl.core import rng
from minidl.ops.common.op import OPS, op
from minidl.training import fit


@dataclasses.dataclass
class Scenario:
    run: Callable[[World], None]
    verdict: str = "either"


SCENARIOS: dict[str, Scenario] = {}
CALLS = 7


def scenario(run: Any = None, *, verdict: str = "either") -> Any:
    """Enter a function of a world in the table."""
    if run is None:
        return functools.partial(scenario, verdict=verdict)
    name = run.__name__.strip("_").replace("_", " ")
    assert name not in SCENARIOS, name
    SCENARIOS[name] = Scenario(run, verdict)
    return run


equal, refused = functools.partial(scenario, verdict="equal"), functools.partial(scenario, verdict="refused")


# ---------------------------------------------------------------- what scenarios are made of
def numbers(*values: float, **options: Any) -> Tensor:
    return Tensor(np.array(values, np.float32), **options)


def weight(*values: float) -> Tensor:
    return numbers(*(values or (1, 2)), requires_grad=True)


def pair(i: int) -> Tensor:
    """The input of call i for steps on two numbers."""
    return numbers(1 + i, 0.5 - i)


def vectors(i: int, n: int = 4, features: int = 4) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng([i, n])
    return Tensor(rng.standard_normal((n, features), dtype=np.float32)), Tensor(rng.integers(0, 3, n))


def images(i: int, n: int = 2) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng([i, n, 1])
    return Tensor(rng.standard_normal((n, 1, 6, 6), dtype=np.float32)), Tensor(rng.integers(0, 3, n))


class Means(nn.Module):
    """(n, c, h, w) -> (n, c): so that what comes before may have any size."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(axis=(2, 3))


class Scale(nn.Module):
    """Numbers, words and containers of its own, all of which forward reads."""

    by: Any = 1.0
    klass: Any = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.factor = weight(1, 1.5, 2, 2.5, 3)
        self.deep, self.kind, self.list, self.dict = False, "tanh", [1.0, 2.0], {"by": 1.0, "then": [2.0]}
        self.pair, self.scalar, self.order = (1.0, 2.0), np.float32(1.5), np.arange(5)
        self.config = types.SimpleNamespace(by=1.0, inner=types.SimpleNamespace(by=1.0))
        self.buffer = numbers(1, 2, 3, 4, 5)
        self.extra: Any = None
        self.set, self.layers, self.function = {1, 2}, [nn.Tanh()], ops.tanh

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.factor * self.by * type(self).klass * self.list[0] * self.dict["by"] * self.dict["then"][0]
        x = x * self.pair[0] * float(self.scalar) * self.config.by * self.config.inner.by * float(len(self.set))
        x = getattr(ops, self.kind)(x[:, self.order] * self.buffer)
        for layer in self.layers:
            x = layer(x)
        x = self.function(x + x) if self.deep else self.function(x)
        return x if self.extra is None else x * self.extra


def dense(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), *(middle or (nn.Tanh(),)), nn.Linear(5, 3))


def conv(bias: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3, bias=bias), nn.ReLU(), nn.MaxPool2d(2), Means(), nn.Linear(2, 3))


def train_step(w: World, net: nn.Module, sgd: Any) -> Callable[..., Any]:
    """The step that most scenarios take."""
    def step(x: Tensor, labels: Tensor) -> Any:
        sgd.zero_grad()
        logits = net(x)
        loss = ops.cross_entropy(logits, labels)
        loss.backward()
        sgd.step()
        return loss, logits
    w.watch(net, sgd)
    return w.compile(step)


# ---------------------------------------------------------------- a change between two calls of the usual step
Change = Callable[[Any, Any, World], Any]


def changed(name: str, change: Change, net: Callable[[], nn.Module] = dense, *, verdict: str = "equal",
            batch: Callable[..., Any] = vectors, before: Change | None = None, at: tuple[int, ...] = (1, 4),
            **settings: Any) -> None:
    """A scenario for each place of one change: between the first two calls, or once there are replays."""
    for place in at:
        def run(w: World, place: int = place) -> None:
            model = net()
            sgd = optim.SGD(model.parameters(), **{"lr": 0.1, **settings})
            if before is not None:
                before(model, sgd, w)
            step = train_step(w, model, sgd)
            for i in range(CALLS + 1):
                if i == place:
                    change(model, sgd, w)
                    w.look(f"changed before call {i + 1}")
                step(*batch(i))
        SCENARIOS[f"{name}, before call {place + 1}"] = Scenario(run, verdict)


def put(path: str, value: Any) -> Change:
    """net.a.b = value(), by the path "a.b"."""
    def change(net: Any, sgd: Any, w: World) -> None:
        *parents, last = path.split(".")
        setattr(functools.reduce(getattr, parents, net), last, value())
    return change


def group(**values: Any) -> Change:
    return lambda net, sgd, w: sgd.groups[0].update(values)


def freeze(*paths: str, thaw: bool = False) -> Change:
    def change(net: Any, sgd: Any, w: World) -> None:
        for name, p in list(net.named_parameters()) + [(k, v) for k, v in FROZEN.get(id(net), {}).items()]:
            if name.startswith(paths):
                FROZEN.setdefault(id(net), {})[name] = p
                p.requires_grad = thaw
    return change


FROZEN: dict[int, dict[str, Tensor]] = {}              # parameters that are none at the moment


def shorten(net: Any, sgd: Any, w: World) -> None:
    del sgd.groups[0]["params"][0]


def extend(net: Any, sgd: Any, w: World) -> None:
    sgd.groups[0]["params"].append(net[0].weight)


def scaled_grads(net: Any, sgd: Any, w: World) -> None:
    for p in net.parameters():
        p.grad = p.grad * 0.5


def no_grads(net: Any, sgd: Any, w: World) -> None:
    for p in net.parameters():
        p.grad = None


def some_grads(net: Any, sgd: Any, w: World) -> None:
    (net[0].weight * net[0].weight).sum().backward()


def written(net: Any, sgd: Any, w: World) -> None:
    net[0].weight.data[...] *= -0.5
    net[0].weight.mark_changed()


def rebound_data(net: Any, sgd: Any, w: World) -> None:
    net[0].weight.data = net[0].weight.data * np.float32(-0.5)


changed("layer replaced and given to the optimizer", lambda net, sgd, w: (
    setattr(net, "2", nn.Linear(5, 3)), sgd.groups[0].update(params=list(net.parameters()))))
changed("activation replaced", put("1", nn.ReLU))
changed("bias taken away", put("0.bias", lambda: None))
changed("bias given", put("0.bias", lambda: numbers(5, 4, 3, 2, 1, requires_grad=True)),
        lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 3)))
changed("weight replaced", put("0.weight", lambda: Tensor(np.eye(5, 4, dtype=np.float32), requires_grad=True)))
changed("two layers share a weight from now on", lambda net, sgd, w: setattr(net[2], "weight", net[0].weight),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)))
changed("stride", put("0.stride", lambda: 2), conv, batch=images)
changed("pool replaced by another kind", put("2", lambda: nn.AvgPool2d(2)), conv, batch=images)
changed("axis of softmax", put("1.axis", lambda: 0), lambda: dense(nn.Softmax()))
changed("p of dropout", put("1.p", lambda: 0.1), lambda: dense(nn.Dropout(0.5)))
changed("evaluation", lambda net, sgd, w: net.eval(), lambda: dense(nn.Dropout(0.5)))
changed("training again", lambda net, sgd, w: net.train(), lambda: dense(nn.Dropout(0.5)),
        before=lambda net, sgd, w: net.eval())


def with_norms() -> nn.Sequential:
    return dense(nn.BatchNorm1d(5), nn.LayerNorm(5))


changed("eps of a normalisation", put("1.eps", lambda: 0.3), with_norms)
changed("evaluation by running values", lambda net, sgd, w: net.eval(), with_norms)
changed("one normalisation frozen", lambda net, sgd, w: net[1].eval(), with_norms, momentum=0.9)
changed("weight of a normalisation frozen", freeze("1.weight"), with_norms)
changed("running values written", lambda net, sgd, w: put_item(net[1].running_var, ..., 3.0), with_norms)
changed("running values of two layers are one from now on", lambda net, sgd, w: setattr(
    net[1], "running_mean", net[2].running_mean), lambda: dense(nn.BatchNorm1d(5), nn.BatchNorm1d(5)))
changed("a state of running values is loaded", lambda net, sgd, w: net.load_state_dict(with_norms().state_dict()),
        with_norms)
changed("first layer frozen", freeze("0."))
changed("thawed", freeze("0.", thaw=True), before=freeze("0."))
changed("convolution frozen", freeze("0."), conv, batch=images)
changed("rate", group(lr=0.01))
changed("rate of all", lambda net, sgd, w: setattr(sgd, "lr", 0.01))
changed("rate as a NumPy number", group(lr=np.float64(0.01)))
changed("momentum", group(momentum=0.5), momentum=0.9)
changed("momentum from none", group(momentum=0.5))
changed("decay", group(weight_decay=0.1))
changed("nesterov", group(nesterov=True), momentum=0.9)
changed("the optimizer's list extended", extend, before=shorten, verdict="either")
changed("the optimizer's list in another order", lambda net, sgd, w: sgd.groups[0]["params"].reverse(), momentum=0.5)
changed("one entry of the optimizer's list replaced", lambda net, sgd, w: operator.setitem(
    sgd.groups[0]["params"], 0, net[2].bias), before=lambda net, sgd, w: sgd.groups[0]["params"].pop(),
        verdict="either")
changed("a group more", lambda net, sgd, w: sgd.groups.append({**sgd.groups[0], "params": [net[0].weight], "lr": 1.0}),
        before=shorten, verdict="either")
changed("a group less", lambda net, sgd, w: sgd.groups.pop(0), before=lambda net, sgd, w: sgd.groups.append(
    {**sgd.groups[0], "params": [sgd.groups[0]["params"].pop()], "lr": 1.0}))
changed("a group replaced", lambda net, sgd, w: operator.setitem(sgd.groups, 0, {**sgd.groups[0], "lr": 1.0}))
changed("the list of groups replaced", lambda net, sgd, w: setattr(sgd, "groups", [
    {**sgd.groups[0], "weight_decay": 0.5}]))
changed("step of the optimizer's class replaced", lambda net, sgd, w: setattr(
    sgd, "step", lambda: init.constant_(net[0].bias, 1.0)), verdict="either")
changed("velocities forgotten", lambda net, sgd, w: sgd.forget(), momentum=0.9)
changed("a state is loaded", lambda net, sgd, w: net.load_state_dict(dense().state_dict()))
changed("data written in place", written)
changed("data rebound", rebound_data, momentum=0.9)
changed("data of two exchanged", lambda net, sgd, w: (
    held := net[0].weight.data, setattr(net[0].weight, "data", net[2].weight.data),
    setattr(net[2].weight, "data", held)),
    lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)))
changed("gradients removed", no_grads)
changed("gradients scaled", scaled_grads)
changed("gradients of another step are there", some_grads)
changed("random numbers restarted", lambda net, sgd, w: minidl.manual_seed(8), lambda: dense(nn.Dropout(0.5)))
changed("random numbers drawn elsewhere", lambda net, sgd, w: ops.dropout(pair(0)), lambda: dense(nn.Dropout(0.5)))
changed("precision", lambda net, sgd, w: minidl.set_precision("tf32"))
changed("a copy of the net takes its place", lambda net, sgd, w: [
    setattr(net, name, value) for name, value in vars(copy.deepcopy(net)).items()])
changed("a layer more", put("3", nn.Tanh))


def scale() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), Scale(), nn.Linear(5, 3))


changed("a Module's number", put("1.by", lambda: 2.0), scale)
changed("a Module's number that hides its class's, removed", lambda net, sgd, w: delattr(net[1], "by"), scale,
        before=put("1.by", lambda: 2.0))
changed("a Module's flag", put("1.deep", lambda: True), scale)
changed("a Module's list, in place", lambda net, sgd, w: operator.setitem(net[1].list, 0, 3.0), scale)
changed("a Module's list, replaced", put("1.list", lambda: [3.0]), scale)
changed("a Module's dict", lambda net, sgd, w: net[1].dict.update(by=3.0), scale)
changed("a list in a Module's dict", lambda net, sgd, w: operator.setitem(net[1].dict["then"], 0, 3.0), scale)
changed("a Module's index array, written", lambda net, sgd, w: net[1].order.__setitem__(slice(None), [4, 3, 2, 1, 0]),
        scale, verdict="either")
changed("a Module's index array, replaced", put("1.order", lambda: np.array([4, 3, 2, 1, 0])), scale)
changed("a Module's set", lambda net, sgd, w: net[1].set.add(3), scale)
changed("a Module's list of layers", lambda net, sgd, w: net[1].layers.append(nn.Sigmoid()), scale)
changed("a Module's function", put("1.function", lambda: ops.sigmoid), scale)
changed("a Module's None becomes a Tensor", put("1.extra", lambda: numbers(5, 4, 3, 2, 1)), scale)
changed("a Module's buffer, written", lambda net, sgd, w: init.constant_(net[1].buffer, 3.0), scale)
changed("a Module's buffer, replaced", put("1.buffer", lambda: numbers(5, 4, 3, 2, 1)), scale)
changed("a Module's buffer becomes a parameter", put("1.buffer.requires_grad", lambda: True), scale)
changed("a namespace of a Module", put("1.config.by", lambda: 3.0), scale, verdict="either")
changed("a namespace in a namespace of a Module", put("1.config.inner.by", lambda: 3.0), scale, verdict="either")
changed("forward of an object replaced", lambda net, sgd, w: setattr(net[1], "forward", ops.sigmoid))


@scenario
def number_of_a_class(w: World) -> None:
    net = scale()
    sgd = optim.SGD(net.parameters(), lr=0.1)
    step = train_step(w, net, sgd)
    try:
        for i in range(CALLS):
            Scale.klass = 1.0 if i < 3 else 2.0
            step(*vectors(i))
    finally:
        Scale.klass = 1.0


class Slots:
    """A config without a __dict__."""

    __slots__ = ("by",)


@dataclasses.dataclass
class Config:
    by: float = 1.0
    inner: Any = None


class Property:
    """What is read is computed from what is stored."""

    def __init__(self) -> None:
        self.log_by = 0.0

    @property
    def by(self) -> float:
        return 1.0 + self.log_by


class Dynamic:
    """Any name is an attribute."""

    def __init__(self) -> None:
        self.__dict__["values"] = {"by": 1.0}

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["values"][name]


def set_slots(held: Any, value: float) -> None:
    held.by = value


def goes(held: Any, value: float) -> None:
    """In turn: what is there is deleted, and what is not is set."""
    if hasattr(held, "by"):
        del held.by
    else:
        held.by = value


def by_or_one(held: Any) -> float:
    return getattr(held, "by", 1.0)


def set_first(held: Any, value: float) -> None:
    held.by[0] = value


class Special:
    """What Python calls by itself reads what no step mentions."""

    def __init__(self) -> None:
        self.by = 1.0

    def __float__(self) -> float:
        return self.by

    def __len__(self) -> int:
        return int(self.by)

    def __getitem__(self, name: object) -> float:
        return self.by

    def __call__(self) -> float:
        return self.by

    def __iter__(self) -> Iterator[float]:
        yield self.by

    def __contains__(self, value: object) -> bool:
        return self.by > 1

    def __neg__(self) -> float:
        return -self.by


class Table(list[float]):
    """Items, and an attribute beside them."""

    by = 1.0


class Words(dict[str, float]):
    by = 1.0


class Bag(set[float]):
    by = 1.0


class Row(tuple[float, ...]):
    by = 1.0


class Indirect:
    """What reads `by` is no plain function: Python's descriptors hold it, or Python calls it by itself."""

    values = [1.0]

    def __class_getitem__(cls, name: object) -> Any:
        return cls.values[0]

    def _times(self, factor: float) -> float:
        return factor * self.values[0]

    partial = functools.partialmethod(_times, 1.0)

    @functools.singledispatchmethod
    def dispatched(self, of: object) -> float:
        return self._times(1.0)

    @functools.cached_property
    def cached(self) -> float:
        return self._times(1.0)

    @staticmethod
    def __call__() -> float:               # type: ignore[override]
        return Indirect.values[0]

    @functools.lru_cache(1)                # noqa: B019
    def __len__(self) -> int:
        return int(self.values[0])


class Pair(tuple[float, ...]):
    def __new__(cls, first: float, second: float | None = None) -> Any:
        return super().__new__(cls, (first, Indirect.values[0] if second is None else second))


class Choice(enum.Enum):
    A = 1

    @property
    def by(self) -> float:
        return Indirect.values[0]


class Real(float):
    def half(self) -> float:
        return self * Indirect.values[0]


class Mangled:
    """Slots by the name that the code says, and a single one."""

    __slots__ = ("__by",)

    def __init__(self) -> None:
        self.__by = 1.0

    def set(self, value: float) -> None:
        self.__by = value

    def get(self) -> float:
        return self.__by


class OneSlot:
    __slots__ = "by"                       # a text is one name


def matched(held: Any) -> float:
    match held:
        case types.SimpleNamespace(by=1.0):
            return 1.0
    return 2.0


def sorted_by_values(held: Any) -> float:
    return sorted([3.0, 2.0], key=held)[0]


def set_values(held: Any, value: float) -> None:
    Indirect.values[0] = value


def fresh(make: Any) -> Any:
    def made() -> Any:
        Indirect.values[0] = 1.0
        return make()
    return made


class Methods:
    values = [1.0]

    @staticmethod
    def static() -> float:
        return Methods.values[0]

    @classmethod
    def of_class(cls) -> float:
        return cls.values[0]


def set_method(held: Any, value: float) -> None:
    Methods.values = [value]


def fresh_methods() -> Any:
    Methods.values = [1.0]
    return Methods()


CONFIGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any, float], None]]] = {
    # what holds a number, how a step reads it, how it is changed between calls
    "namespace": (lambda: types.SimpleNamespace(by=1.0), lambda c: c.by, set_slots),
    "namespace in a namespace": (lambda: types.SimpleNamespace(inner=types.SimpleNamespace(by=1.0)),
                                 lambda c: c.inner.by, lambda c, v: set_slots(c.inner, v)),
    "dataclass": (Config, lambda c: c.by, set_slots),
    "dataclass in a list": (lambda: [Config()], lambda c: c[0].by, lambda c, v: set_slots(c[0], v)),
    "class attribute": (lambda: type("C", (), {"by": 1.0}), lambda c: c.by, set_slots),
    "class attribute by an object": (lambda: type("C", (), {"by": 1.0})(), lambda c: c.by,
                                     lambda c, v: setattr(type(c), "by", v)),
    "slots": (lambda: [s := Slots(), set_slots(s, 1.0)][0], lambda c: c.by, set_slots),
    "list in slots": (lambda: [s := Slots(), set_slots(s, [1.0])][0], lambda c: c.by[0], set_first),
    "list of a class": (lambda: type("C", (), {"by": [1.0]}), lambda c: c.by[0], set_first),
    "list of a class by an object": (lambda: type("C", (), {"by": [1.0]})(), lambda c: c.by[0], set_first),
    "list in a module": (lambda: [m := types.ModuleType("m"), set_slots(m, [1.0])][0], lambda c: c.by[0], set_first),
    "list in a namespace": (lambda: types.SimpleNamespace(by=[1.0]), lambda c: c.by[0], set_first),
    **{f"{kind.__name__}'s attribute": (kind, lambda c: c.by, set_slots) for kind in (Table, Words, Bag, Row)},
    **{f"{kind.__name__}'s attribute in a list": (lambda kind=kind: [kind()], lambda c: c[0].by,
                                                  lambda c, v: set_slots(c[0], v)) for kind in (Table, Row)},
    "float of an object": (Special, float, set_slots),
    "length of an object": (Special, lambda c: float(len(c)), set_slots),
    "item of an object": (Special, lambda c: c[0], set_slots),
    "call of an object": (Special, lambda c: c(), set_slots),
    "loop over an object": (Special, sum, set_slots),
    "membership in an object": (Special, lambda c: 2.0 if 0 in c else 1.0, set_slots),
    "negative of an object": (Special, operator.neg, set_slots),
    "static method": (fresh_methods, lambda c: c.static(), set_method),
    "class method": (fresh_methods, lambda c: c.of_class(), set_method),
    "property": (Property, lambda c: c.by, lambda c, v: setattr(c, "log_by", v)),
    "getattr hook": (Dynamic, lambda c: c.by, lambda c, v: c.values.update(by=v)),
    "list": (lambda: [1.0], lambda c: c[0], lambda c, v: operator.setitem(c, 0, v)),
    "list of lists": (lambda: [[1.0]], lambda c: c[0][0], lambda c, v: operator.setitem(c[0], 0, v)),
    "list's length": (lambda: [0], lambda c: float(len(c)), lambda c, v: c.append(v)),
    "dict": (lambda: {"by": 1.0}, lambda c: c["by"], lambda c, v: c.update(by=v)),
    "dict of dicts": (lambda: {"a": {"by": 1.0}}, lambda c: c["a"]["by"], lambda c, v: c["a"].update(by=v)),
    "dict's default": (dict, lambda c: c.get("by", 1.0), lambda c, v: c.update(by=v)),
    "set": (lambda: {1}, lambda c: float(len(c)), lambda c, v: c.add(v)),
    "membership": (set, lambda c: 2.0 if "a" in c else 1.0, lambda c, v: c.add("a")),
    "module": (lambda: [m := types.ModuleType("m"), set_slots(m, 1.0)][0], lambda c: c.by, set_slots),
    "bytearray": (lambda: bytearray(b"\1"), lambda c: float(c[0]), lambda c, v: operator.setitem(c, 0, int(v))),
    "array of one number": (lambda: np.array([1.0]), lambda c: float(c[0]), lambda c, v: operator.setitem(c, 0, v)),
    "context variable": (lambda: contextvars.ContextVar("c", default=1.0), lambda c: c.get(),
                         lambda c, v: c.set(v) and None),
    "list of functions": (lambda: [lambda: 1.0], lambda c: c[0](), lambda c, v: operator.setitem(c, 0, lambda: v)),
    "function's attribute": (lambda: [f := (lambda: f.by), set_slots(f, 1.0)][0],
                             lambda c: c(), set_slots),
    "attrgetter": (lambda: types.SimpleNamespace(by=1.0), operator.attrgetter("by"), set_slots),
    # What holds no value itself, but code that reads one
    **{f"{name}": (fresh(make), read, set_values) for name, make, read in (
        ("partial method", Indirect, lambda c: c.partial()),
        ("method by a class", Indirect, lambda c: c.dispatched(1)),
        ("cached property of a new object", lambda: Indirect, lambda c: c().cached),
        ("item of a class", lambda: Indirect, lambda c: c[0]),
        ("call without self", Indirect, lambda c: c()),
        ("length of a new object", lambda: Indirect, lambda c: float(len(c()))),
        ("__new__", lambda: Pair, lambda c: c(1.0)[1]),
        ("property of an Enum", lambda: Choice.A, lambda c: c.by),
        ("method of a float", lambda: Real(1.0), lambda c: c.half()),
        ("key of a sort", lambda: functools.cmp_to_key(lambda a, b: (a - b) * (3 - 2 * Indirect.values[0])),
         sorted_by_values),
        ("vectorized function", lambda: np.vectorize(lambda x: x * Indirect.values[0]), lambda c: float(c(1.0))),
        ("key of a dict", lambda: {(lambda: Indirect.values[0]): 1.0}, lambda c: next(iter(c))()),
        ("default of a dict", lambda: defaultdict(lambda: Indirect.values[0]), lambda c: c.default_factory()),
        ("function in a context", lambda: contextvars.ContextVar("c", default=lambda: Indirect.values[0]),
         lambda c: c.get()()))},
    "mangled slot": (Mangled, lambda c: c.get(), lambda c, v: c.set(v)),
    "single slot": (lambda: [s := OneSlot(), set_slots(s, 1.0)][0], lambda c: c.by, set_slots),
    "pattern": (lambda: types.SimpleNamespace(by=1.0), matched, set_slots),
    "dotted attrgetter": (lambda: types.SimpleNamespace(inner=types.SimpleNamespace(by=1.0)),
                          lambda c: operator.attrgetter("inner.by")(c), lambda c, v: set_slots(c.inner, v)),
    "field of a text": (lambda: types.SimpleNamespace(by=1.0), lambda c: float("{c.by}".format(c=c)),      # noqa: UP032
                        set_slots),
    "class of an object": (lambda: Special(), lambda c: float(c.by if type(c) is Special else 3.0),
                           lambda c, v: setattr(c, "__class__", Methods)),
    "order in memory": (lambda: [np.ones((2, 2))], lambda c: 1.0 if c[0].flags.c_contiguous else 2.0,
                        lambda c, v: operator.setitem(c, 0, np.ones((2, 2), order="F"))),
    "thread's own": (threading.local, by_or_one, set_slots),
    # What is not there any more, and what comes later
    "slot that goes": (lambda: [s := Slots(), set_slots(s, 2.0)][0], by_or_one, goes),
    "slot that comes": (Slots, by_or_one, set_slots),
    "attribute that goes": (lambda: types.SimpleNamespace(by=2.0), by_or_one, goes),
    "attribute that comes": (types.SimpleNamespace, by_or_one, set_slots),
    "class attribute that goes": (lambda: type("C", (), {"by": 2.0}), by_or_one, goes),
    "class attribute that comes": (lambda: type("C", (), {}), by_or_one, set_slots),
    "module's attribute that goes": (lambda: [m := types.ModuleType("m"), set_slots(m, 2.0)][0], by_or_one, goes),
    "module's attribute that comes": (lambda: types.ModuleType("m"), by_or_one, set_slots),
    "function's attribute that goes": (lambda: [f := (lambda: 0), set_slots(f, 2.0)][0], by_or_one, goes),
    "function's attribute that comes": (lambda: (lambda: 0), by_or_one, set_slots),
    "entry that goes": (lambda: {"by": 2.0}, lambda c: c.get("by", 1.0), lambda c, v: c.pop("by", None) and None),
    "iterator": (lambda: itertools.cycle([1.0, 1.0, 1.0, 2.0]), next, lambda c, v: None),
    "generator": (lambda: iter([1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 1.0, 1.0]), next, lambda c, v: None),
    "counter": (itertools.count, lambda c: float(next(c)), lambda c, v: None),
    "counter of threes": (itertools.count, lambda c: 2.0 if next(c) % 3 == 2 else 1.0, lambda c, v: None),
    "counter of fives": (itertools.count, lambda c: 2.0 if next(c) % 5 == 4 else 1.0, lambda c, v: None),
    "counter in a list": (lambda: [0], lambda c: [c.append(0), float(len(c))][1], lambda c, v: None),
    "counter of threes in a dict": (lambda: {"n": 0}, lambda c: [c.update(n=c["n"] + 1), 2.0 if c["n"] % 3 == 0 else
                                                                 1.0][1], lambda c, v: None),
    "counter of threes in an object": (Config, lambda c: [set_slots(c, c.by + 1), 2.0 if c.by % 3 == 0 else 1.0][1],
                                       lambda c, v: None),
    "random generator": (lambda: np.random.default_rng(0), lambda c: float(c.random()), lambda c, v: None),
    "random integers, mostly equal": (lambda: np.random.default_rng(1), lambda c: float(c.integers(9) // 8),
                                      lambda c, v: None),
}


def by_config(name: str) -> Callable[[World], None]:
    def run(w: World) -> None:
        make, read, change = CONFIGS[name]
        held, factor = make(), weight(1, 2)

        def step(x: Tensor) -> Tensor:
            return x * factor * read(held)
        call = w.compile(step)
        for i in range(CALLS):
            if i == 3:
                change(held, 2.0)
            if i == 5:
                change(held, 5.0)
            call(pair(i))
    return run


for name in CONFIGS:
    must = "refused" if name in ("counter", "counter in a list", "random generator") else "either"
    SCENARIOS[f"a number in a {name}"] = Scenario(by_config(name), must)


# ---------------------------------------------------------------- names: globals, cells, defaults, functions
NUMBER, TENSOR, LIST = 1.0, numbers(1, 2), [1.0]


def HELPER(x: Tensor) -> Tensor:       # a global name that is bound anew
    return x * 2


@contextlib.contextmanager
def global_names() -> Iterator[None]:
    names = ("NUMBER", "TENSOR", "LIST", "HELPER")
    before = {name: globals()[name] for name in names}
    try:
        yield
    finally:
        globals().update(before)


def by_global(how: str, name: str, value: Callable[[], Any], step: Callable[[Tensor], Any]) -> None:
    def run(w: World) -> None:
        with global_names():
            call = w.compile(step)
            for i in range(CALLS):
                if i in (3, 5):
                    globals()[name] = value() if i == 3 else copy.copy(value())
                call(pair(i))
    SCENARIOS[f"a global {how} bound anew"] = Scenario(run)


by_global("number", "NUMBER", lambda: 2.0, lambda x: x * NUMBER)
by_global("number that decides", "NUMBER", lambda: -1.0, lambda x: x * 2 if NUMBER > 0 else x * 3)
by_global("number by globals()", "NUMBER", lambda: 2.0, lambda x: x * globals()["NUMBER"])
by_global("number by its module", "NUMBER", lambda: 2.0, lambda x: x * sys.modules[__name__].NUMBER)
by_global("number in a comprehension", "NUMBER", lambda: 2.0, lambda x: [x * NUMBER for _ in range(2)])
by_global("number in an inner function", "NUMBER", lambda: 2.0, lambda x: (lambda: x * NUMBER)())
by_global("Tensor", "TENSOR", lambda: numbers(5, 6), lambda x: x * TENSOR)
by_global("Tensor that is returned", "TENSOR", lambda: numbers(5, 6), lambda x: (x * 2, TENSOR))
by_global("list", "LIST", lambda: [3.0], lambda x: x * LIST[0])
by_global("function", "HELPER", lambda: lambda x: x * 3, lambda x: HELPER(x))


def deeper(x: Tensor) -> Tensor:
    return x * NUMBER


by_global("number of a helper", "NUMBER", lambda: 2.0, lambda x: deeper(x))


def with_cell(name: str, values: Callable[[], list[Any]], use: Callable[[Tensor, Any], Any]) -> None:
    """A nonlocal name that the world binds anew between calls."""
    def run(w: World) -> None:
        first, second, third = values()
        held = first

        def step(x: Tensor) -> Any:
            return use(x, held)
        call = w.compile(step)
        for i in range(CALLS):
            if i == 3:
                held = second
            if i == 5:
                held = third
            call(pair(i))
    SCENARIOS[f"a nonlocal {name} bound anew"] = Scenario(run)


with_cell("number", lambda: [1.0, 2.0, 1.0], lambda x, h: x * h)
with_cell("flag", lambda: [True, False, True], lambda x, h: x * 2 if h else x * 3)
with_cell("Tensor", lambda: [numbers(1, 2), numbers(3, 4), numbers(5, 6)], lambda x, h: x * h)
with_cell("list", lambda: [[1.0], [2.0], [1.0]], lambda x, h: x * h[0])
with_cell("function", lambda: [ops.tanh, ops.sigmoid, ops.tanh], lambda x, h: h(x))
with_cell("layer", lambda: [nn.Tanh(), nn.Sigmoid(), nn.ReLU()], lambda x, h: h(x))
with_cell("slice", lambda: [slice(0, 1), slice(1, 2), slice(0, 2)], lambda x, h: x[h])
with_cell("index", lambda: [0, 1, -1], lambda x, h: x[h])
with_cell("index array", lambda: [np.array([0, 1]), np.array([1, 0]), np.array([1, 1])], lambda x, h: x[h])
with_cell("mask", lambda: [np.array([True, False]), np.array([False, True]), np.array([True, False])],
          lambda x, h: x[h])
with_cell("index Tensor", lambda: [Tensor([0, 1]), Tensor([1, 0]), Tensor([1, 1])], lambda x, h: x[h])
with_cell("axis", lambda: [0, None, 0], lambda x, h: x.reshape(1, 2).sum(axis=h))
with_cell("shape", lambda: [(2, 1), (1, 2), (2,)], lambda x, h: x.reshape(h))
with_cell("tuple of Tensors", lambda: [(numbers(1, 2),), (numbers(3, 4),), (numbers(3, 4), numbers(1, 1))],
          lambda x, h: functools.reduce(operator.mul, h, x))


@scenario
def defaults_replaced(w: World) -> None:
    def step(x: Tensor, by: float = 1.0) -> Tensor:
        return x * by
    call = w.compile(step)
    for i in range(CALLS):
        if i == 3:
            step.__defaults__ = (3.0,)
        call(pair(i))


@scenario
def a_default_by_name_changed_in_place(w: World) -> None:
    def step(x: Tensor, *, by: float = 1.0) -> Tensor:
        return x * by
    call = w.compile(step)
    for i in range(CALLS):
        if i == 3:
            step.__kwdefaults__["by"] = 3.0
        call(pair(i))


@scenario
def code_of_a_helper_replaced(w: World) -> None:
    def helper(x: Tensor) -> Tensor:
        return x * 2

    def other(x: Tensor) -> Tensor:
        return x * 3

    def step(x: Tensor) -> Tensor:
        return helper(x)
    call = w.compile(step)
    for i in range(CALLS):
        if i == 3:
            helper.__code__ = other.__code__
        call(pair(i))


@scenario
def a_partial_of_a_list(w: World) -> None:
    held = [1.0]

    def step(by: list[float], x: Tensor) -> Tensor:
        return x * by[0]
    call = w.compile(functools.partial(step, held))
    for i in range(CALLS):
        if i == 3:
            held[0] = 2.0
        call(pair(i))


class Trainer:
    """A step as a method."""

    def __init__(self) -> None:
        self.net = dense()
        self.sgd = optim.SGD(self.net.parameters(), lr=0.1)
        self.by, self.steps, self.history = 1.0, 0, [0.0]

    def step(self, x: Tensor, labels: Tensor) -> Tensor:
        self.sgd.zero_grad()
        loss = ops.cross_entropy(self.net(x), labels) * self.by
        loss.backward()
        self.sgd.step()
        return loss

    def count(self, x: Tensor, labels: Tensor) -> Tensor:
        self.steps += 1
        return self.step(x, labels)

    __call__ = step


@scenario
def a_bound_method(w: World) -> None:
    t = Trainer()
    w.watch(t.net, t.sgd)
    call = w.compile(t.step)
    for i in range(CALLS):
        if i == 3:
            t.by = 2.0
        call(*vectors(i))


@scenario
def a_bound_method_that_counts(w: World) -> None:
    t = Trainer()
    w.watch(t.net, lambda: t.steps)
    call = w.compile(t.count)
    for i in range(CALLS):
        call(*vectors(i))


@scenario
def a_step_without_source(w: World) -> None:
    space: dict[str, Any] = {"K": 1.0}
    exec("def step(x):\n    return x * K", space)
    call = w.compile(space["step"])
    for i in range(CALLS):
        if i == 3:
            space["K"] = 2.0
        call(pair(i))


@scenario
def a_generator_in_the_step(w: World) -> None:
    def parts(x: Tensor) -> Any:
        yield x * 2
        yield x * 3

    def step(x: Tensor) -> Any:
        return list(parts(x))
    call = w.compile(step)
    for i in range(CALLS):
        call(pair(i))


# ---------------------------------------------------------------- the world outside
def outside(name: str, read: Callable[[], float], change: Callable[[int], Any] = lambda i: None,
            verdict: str = "either") -> None:
    def run(w: World) -> None:
        def step(x: Tensor) -> Tensor:
            return x * read()
        call = w.compile(step)
        change(0)
        for i in range(CALLS):
            if i == 4:
                change(i)
            call(pair(i))
        change(0)
    SCENARIOS[name] = Scenario(run, verdict)


outside("np.random", lambda: float(np.random.rand()), verdict="refused")
outside("Python's random", random.random, verdict="refused")
outside("Python's choice of two", lambda: random.choice([1.0, 2.0]))
outside("an environment variable", lambda: float(os.environ["MINIDL_TEST_BY"]),
        lambda i: os.environ.__setitem__("MINIDL_TEST_BY", str(1 + i)))
outside("a key of minidl's random numbers", lambda: float(minidl.core.rng.next_key()[1]), verdict="refused")
outside("a number of a NumPy array in a module", lambda: float(TABLE[0]), lambda i: TABLE.__setitem__(0, 1 + i))
TABLE = np.array([1.0])


# ---------------------------------------------------------------- index arrays
def indexed(name: str, index: Callable[[np.random.Generator, np.ndarray], Any],
            change: Callable[[np.ndarray], Any] = lambda held: None, verdict: str = "either") -> None:
    def run(w: World) -> None:
        rng, held, factor = np.random.default_rng(0), np.array([2, 0, 1]), weight(1, 2, 3, 4)
        sgd = optim.SGD([factor], lr=0.1)
        w.watch(factor)

        def step(x: Tensor) -> Any:
            sgd.zero_grad()
            picked = (x * factor)[index(rng, held)]
            (picked * picked).sum().backward()
            return picked
        call = w.compile(step)
        for i in range(CALLS):
            if i in (1, 4):
                change(held)
            call(numbers(1, 2, 3, 4 + i))
    SCENARIOS[f"an index: {name}"] = Scenario(run, verdict)


indexed("a permutation drawn in the step", lambda rng, held: rng.permutation(4), verdict="refused")
indexed("a list made in the step", lambda rng, held: [0, 2, 2])
indexed("an array made in the step", lambda rng, held: np.array([0, 2, 2]))
indexed("an outside array, written between calls", lambda rng, held: held, lambda held: held.sort())
indexed("an outside array, shuffled in the step", lambda rng, held: [rng.shuffle(held), held][1])
indexed("a view of an outside array, written between calls", lambda rng, held: held[1:], lambda held: held.sort())
indexed("a slice by an outside array", lambda rng, held: slice(int(held[0])), lambda held: held.sort())
indexed("an int of an outside array", lambda rng, held: int(held[0]), lambda held: held.sort())


def by_tensor(name: str, change: Callable[[Tensor], Any], use: Callable[..., Any]) -> None:
    """An index that is a Tensor from outside, which is changed between calls."""
    def run(w: World) -> None:
        held, kept, factor = Tensor(np.array([2, 0, 1])), numbers(0, 0, 0, 0), weight(1, 2, 3, 4)

        def step(x: Tensor) -> Any:
            factor.grad = None
            return use(x, held, kept, factor)
        w.watch(kept, factor)
        call = w.compile(step)
        for i in range(CALLS):
            if i in (1, 4):
                change(held)
            call(numbers(1, 2, 3, 4 + i))
    SCENARIOS[f"an index Tensor {name}"] = Scenario(run, "equal")


for used, use in {
        "that reads": lambda x, at, kept, factor: x[at],
        "in a tuple": lambda x, at, kept, factor: x.reshape(4, 1)[at, 0],
        "in a tuple of one": lambda x, at, kept, factor: x[(at,)],
        "used twice": lambda x, at, kept, factor: (x[at], x.reshape(4, 1)[at]),
        "that writes": lambda x, at, kept, factor: put_item(kept, at, x[:3]),
        "that writes a number": lambda x, at, kept, factor: put_item(kept, (at,), 7.0),
        "of a gradient": lambda x, at, kept, factor: (x * factor)[at].sum().backward()}.items():
    by_tensor(f"{used}, written", lambda at: put_item(at, ..., Tensor(np.array([3, 3, 0]))), use)
    by_tensor(f"{used}, reversed", lambda at: setattr(at, "data", at.data[::-1].copy()), use)
    by_tensor(f"{used}, bound to other data", lambda at: setattr(at, "data", np.array([3, 1, 1])), use)


# ---------------------------------------------------------------- dropout's key
def keyed(name: str, key: Callable[[Any], Any], verdict: str = "either") -> None:
    def run(w: World) -> None:
        counter = itertools.count()

        def step(x: Tensor) -> Tensor:
            return ops.dropout(x, 0.5, key=key(counter))
        call = w.compile(step)
        for _ in range(CALLS):
            call(numbers(*range(1, 9)))
    SCENARIOS[f"dropout's key: {name}"] = Scenario(run, verdict)


keyed("none", lambda c: None, verdict="equal")
keyed("fixed", lambda c: (1, 2))
keyed("counted", lambda c: (1, next(c)))
keyed("of minidl", lambda c: minidl.core.rng.next_key())
keyed("every third another", lambda c: (1, next(c) // 3))


@scenario
def dropout_keys_as_arguments(w: World) -> None:
    call = w.compile(lambda x, key: ops.dropout(x, 0.5, key=key))
    for i in range(CALLS):
        call(numbers(*range(1, 9)), (1, i // 2))


# ---------------------------------------------------------------- identity of arguments


@equal
def a_parameter_itself_as_argument(w: World) -> None:
    net = nn.Linear(4, 4)
    other = Tensor(np.ones((4, 4), np.float32), requires_grad=True)
    sgd = optim.SGD([*net.parameters(), other], lr=0.1)
    w.watch(net, other, sgd)

    def step(x: Tensor) -> Tensor:
        sgd.zero_grad()
        loss = (net(x) * x).sum()
        loss.backward()
        sgd.step()
        return loss
    call = w.compile(step)
    for i in range(CALLS + 1):
        call(net.weight if i % 4 < 2 else other)


@equal
def leaves_of_a_steps_own_and_gradients_that_are_kept(w: World) -> None:
    """An input as a leaf, and in turns one that is not; what an op made, changed in place; two of one memory."""
    net = dense()
    w.watch(net)

    def step(x: Tensor, flag: bool) -> Any:
        leaf, other = x.detach().requires_grad_(), x.detach().requires_grad_(flag)
        middle = leaf * other
        middle.retain_grad()
        middle += 1
        hidden = net[0](middle)
        hidden.retain_grad()
        (net[1:](hidden) ** 2).sum().backward()
        return leaf.grad, other.grad if flag else x, middle.grad, hidden.grad
    call = w.compile(step)
    for i in range(2 * CALLS):
        for p in net.parameters():
            p.grad = None
        call(vectors(i)[0], i % 5 < 3)


@equal
def the_same_tensor_twice(w: World) -> None:
    call = w.compile(lambda x, y: (x * y, x - y, x @ y))
    for i in range(CALLS + 2):
        x, y = pair(i), numbers(3, 4)
        call(x, x if i % 3 else y)


@refused
def values_by_a_mask(w: World) -> None:
    """As many in the first calls, and another number later."""
    mask = Tensor(np.array([True, False]))
    call = w.compile(lambda x, i: x[mask].mean() if i % 2 else x[x > 0].mean())
    for i in range(CALLS):
        call(pair(0) if i < 3 else numbers(1, 2), i % 2)


def at_a_time(w: World, step: Callable[[Tensor], Tensor]) -> None:
    """The same in two recordings, and another one an hour later."""
    call = w.compile(step)
    for _ in range(3):
        call(numbers(1, 2))


@refused
def the_hour_of_now(w: World) -> None:
    at_a_time(w, lambda x: x * (datetime.datetime.now().hour + 1))


@refused
def the_hour_of_the_clock(w: World) -> None:
    at_a_time(w, lambda x: x * (time.localtime().tm_hour + 1))


@refused
def a_date_that_the_step_imports(w: World) -> None:
    def step(x: Tensor) -> Tensor:
        from datetime import date

        return x * date.today().day
    at_a_time(w, step)


FACTORS = np.ones(2)
TEXT = "float(FACTORS[0])"
CODE, evaluated = compile(TEXT, "text", "eval"), eval


@equal
def a_global_that_a_text_names(w: World) -> None:
    in_a_closure = "FACTORS[1] + 1"

    def step(x: Tensor) -> Tensor:
        found: dict[str, float] = {}
        exec("found['factor'] = FACTORS.sum()", globals(), {"found": found})
        return x * eval("FACTORS[0]") + eval(TEXT) + float(eval(in_a_closure)) * found["factor"]
    with_other_factors(w, step)


def with_other_factors(w: World, step: Callable[..., Tensor], *more: str) -> None:
    """In calls of a step, values of a global array change, and then the array."""
    global FACTORS
    FACTORS, call = np.ones(2), w.compile(step)
    for i in range(3 * CALLS):
        call(numbers(1, i), *more)
        if i % 3 == 2:
            FACTORS[i % 2] += 1
        if i == CALLS:
            FACTORS = np.full(2, 5.0)


@equal
def what_texts_name_that_are_run_in_other_ways(w: World) -> None:
    for step in (lambda x: x * builtins.eval(TEXT), lambda x: x * evaluated(TEXT), lambda x: x * eval(CODE),
                 lambda x: x * (lambda way: way("FACTORS[1]"))(eval),
                 lambda x: x * eval(compile(TEXT, "text", "eval"))):
        with_other_factors(w, step)
    with_other_factors(w, lambda x, text: x * eval(text), TEXT)


@refused
def how_many_classes_are_of_a_kind(w: World) -> None:
    class Base:
        pass
    call = w.compile(lambda x: x * (1 + len(Base.__subclasses__())))
    for i in range(CALLS):
        call(numbers(1, i))


@equal
def a_net_that_is_set_to_evaluation_within(w: World) -> None:
    net = nn.Sequential(nn.Dropout(0.5))

    def step(x: Tensor) -> Tensor:
        net.eval()
        return net(x)
    call = w.compile(step)
    for i in range(CALLS):
        call(numbers(1, i))


@equal
def a_clock_for_its_own_sake(w: World) -> None:
    start = datetime.datetime(2024, 1, 1)

    def step(x: Tensor) -> Tensor:
        begin = time.perf_counter()
        y = x * start.year / (start + datetime.timedelta(days=365)).year
        assert time.perf_counter() >= begin
        return y
    call = w.compile(step)
    for i in range(CALLS):
        call(numbers(1, i))


@equal
def a_numpy_array_that_is_also_held(w: World) -> None:
    array = np.ones(2, np.float32)
    held = Tensor(array)
    call = w.compile(lambda x: held * 2 + held * 3 if x is array else held * x.sum())
    for i in range(CALLS):
        call(array)
        array += i


# How a step reads values of an array among its arguments: Python's ways and NumPy's
READS: dict[str, Callable[[Any], Any]] = {
    "an element": lambda k: float(k[0]), "its largest": lambda k: int(k.max()), "item": lambda k: k.sum().item(),
    "tolist": lambda k: k.tolist()[0], "whether any": lambda k: 3 if (k > 1).any() else 2,
    "in": lambda k: 2 if 2 in k else 5, "truth": lambda k: 3 if k[:1] == 2 else 4, "iteration": sum,
    "a list": lambda k: list(k)[-1], "unpacking": lambda k: [*k][1], "a sum of NumPy": lambda k: float(np.sum(k)),
    "where": lambda k: float(np.where(k > 1, 5, 7)[0]), "asarray": lambda k: float(np.asarray(k)[0]),
    "array": lambda k: float(np.array(k)[0]), "an array within": lambda k: float(np.stack([k, k])[0, 0]),
    "a ufunc": lambda k: float(np.add(1, k)[0]),
    "into another": lambda k: float(np.multiply(k, 2, out=np.zeros(2, int))[0]),
    "a power of it": lambda k: float(2 ** k[0]), "reflected": lambda k: float((1 - k)[0]),
    "a copy": lambda k: float(k.copy()[0]), "a view": lambda k: float(k[1:][0]),
    "transposed": lambda k: float(k.T[0]), "its bytes": lambda k: float(k.tobytes()[0]),
    "as text": lambda k: float(f"{k[0]}"), "repr": lambda k: float(len(repr(k * 5 ** k[0]))),
    "pickled": lambda k: float(pickle.loads(pickle.dumps(k))[0]), "copied": lambda k: float(copy.deepcopy(k)[0]),
    "an index": lambda k: [2.0, 3.0, 5.0, 7.0, 11.0][k[0]], "a range": lambda k: float(len(range(k[0]))),
    "an own array of it": lambda k: float(np.ma.masked_less(k, 0).sum()),
    "rounded": lambda k: float(np.clip(k, 0, 1)[0]), "linear algebra": lambda k: float(np.linalg.norm(k)),
    "a set": lambda k: float(max({*k.tolist()})), "sorted": lambda k: float(sorted(k)[0]),
    "no value": lambda k: float(len(k) + k.shape[0] + k.ndim + k.size + (k.dtype == int) + isinstance(k, np.ndarray))}


def array_that_is_read(read: Callable[[Any], Any]) -> Callable[[World], None]:
    def run(w: World) -> None:
        call = w.compile(lambda x, k: x * read(k))
        for i in (1, 1, 1, 2, 2, 3, 1):
            call(numbers(1, 2), np.array([i, i]))
    return run


SCENARIOS.update({f"of an argument's array: {name}": Scenario(array_that_is_read(read), "equal")
                  for name, read in READS.items()})


@equal
def minus_zero_in_an_argument(w: World) -> None:
    call = w.compile(lambda x, k: x / float(k[0]))
    for zero in (0.0, 0.0, 0.0, -0.0, -0.0, np.nan, np.nan):
        call(numbers(1, 2), np.array([zero]))


@equal
def an_array_by_name_that_is_read(w: World) -> None:
    call = w.compile(lambda x, *, labels, weight: ops.cross_entropy(x, labels) * float(weight))
    for i in (1, 1, 1, 2, 2, 1, 0):
        call(Tensor([[1.0, 2.0, 3.0]]), labels=np.array([i]), weight=np.array(i / 2))


@equal
def a_tuple_of_tensors(w: World) -> None:
    call, first = w.compile(lambda pair: pair[0] * pair[1]), (numbers(1, 2), numbers(3, 4))
    for given in (first, first, first, (numbers(5, 6), first[1]), first, (first[1], first[0])):
        call(given)


class OwnArray(np.ndarray):
    pass


@equal
def arrays_of_a_class_of_ones_own(w: World) -> None:
    call = w.compile(lambda x, k: x * (2 if isinstance(k, OwnArray) else 3))
    for i in range(2 * CALLS):
        call(numbers(1, 2), np.ones(1).view(OwnArray if i % 3 else np.ndarray))


@equal
def the_type_of_an_argument(w: World) -> None:
    call = w.compile(lambda x, k: x * (2 if type(k) is np.ndarray else 3) * float(k[0]))
    for i in (1, 1, 1, 2, 2, 1):
        call(numbers(1, 2), np.array([i]))


@equal
def a_global_that_comes_later(w: World) -> None:
    space: dict[str, Any] = {}
    exec("def step(x):\n    try:\n        return x * rate\n    except NameError:\n        return x * abs(-2)", space)
    call = w.compile(space["step"])
    for i in range(CALLS):
        if i == 3:
            space["rate"] = 5.0
        if i == 5:
            del space["rate"]
            space["abs"] = lambda number: 7.0
        call(numbers(1, 2))


class Holding(nn.Module):
    def __init__(self, held: Any):
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        return x * float(self.held[0])


def held_by_an_argument(held: Callable[[], Any]) -> Callable[[World], None]:
    def run(w: World) -> None:
        net, call = Holding(held()), w.compile(lambda net, x: net(x))
        for _ in range(CALLS):
            call(net, numbers(1, 2))
    return run


SCENARIOS.update({f"held by a Module that is an argument: {name}": Scenario(held_by_an_argument(held), "refused")
                  for name, held in {"a memoryview": lambda: memoryview(np.ones(2)),
                                     "a large array": lambda: np.ones(2 ** 18)}.items()})


@refused
def an_argument_s_array_that_is_changed(w: World) -> None:
    def step(x: Tensor, k: np.ndarray) -> Tensor:
        k += 1
        return x * 2
    call = w.compile(step)
    for _ in range(CALLS):
        call(numbers(1, 2), np.ones(2))


@refused
def a_large_array_that_is_read(w: World) -> None:
    call = w.compile(lambda x, k: x * float(k[0]))
    for i in range(CALLS):
        call(numbers(1, 2), np.full(2 ** 18, i))


def module_that_is_imported(read: Callable[[Tensor], Tensor]) -> Callable[[World], None]:
    def run(w: World) -> None:
        settings = types.ModuleType("settings_of_a_step")
        sys.modules[settings.__name__] = settings
        try:
            call = w.compile(read)
            for i in (1, 1, 1, 2, 2, 3, 1):
                settings.rate = float(i)       # type: ignore[attr-defined]
                call(numbers(1, 2))
        finally:
            del sys.modules[settings.__name__]
    return run


def imports_it(x: Tensor) -> Tensor:
    import settings_of_a_step
    return x * settings_of_a_step.rate


def imports_a_name(x: Tensor) -> Tensor:
    from settings_of_a_step import rate
    return x * rate


def imports_within(x: Tensor) -> Tensor:
    def inner() -> float:
        import settings_of_a_step as other
        return getattr(other, "rate")      # noqa: B009
    return x * inner()


class Importing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        import settings_of_a_step
        return x * settings_of_a_step.rate


SCENARIOS.update({f"a module that the step imports: {name}": Scenario(module_that_is_imported(read), "equal")
                  for name, read in {
    "import": imports_it, "from": imports_a_name, "within": imports_within, "a Module": lambda x: Importing()(x),
    "by a function": lambda x: x * importlib.import_module("settings_of_a_step").rate,
    "by __import__": lambda x: x * __import__("settings_of_a_step").rate}.items()})


class Rated:
    rate = 1.0


class Metered(type):
    rate = 1.0

    @property
    def twice(cls) -> float:
        return 2 * cls.rate


def held_by(kind: str) -> Callable[[World], None]:
    """A number that the step reaches by a detour."""
    def run(w: World) -> None:
        held = Rated()
        weak, objects = weakref.ref(held), np.array([held, None], dtype=object)
        metered = Metered("metered", (), {})
        dispatched = functools.singledispatch(lambda value: 1.0)
        ways: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[float], object]]] = {
            "weak reference": (lambda x: x * weak().rate, lambda rate: setattr(held, "rate", rate)),
            "array of objects": (lambda x: x * objects[0].rate, lambda rate: setattr(held, "rate", rate)),
            "property of a metaclass": (lambda x: x * metered.twice, lambda rate: setattr(Metered, "rate", rate)),
            "dispatch by type": (lambda x: x * dispatched(1),
                                 lambda rate: dispatched.register(int, lambda value: rate))}
        read, change = ways[kind]
        call = w.compile(read)
        for i in (1, 1, 1, 2, 2, 3, 1):
            change(float(i))
            call(numbers(1, 2))
    return run


SCENARIOS.update({f"held by a {kind}": Scenario(held_by(kind), "equal") for kind in (
    "weak reference", "array of objects", "property of a metaclass", "dispatch by type")})


def memory_that_changes_unseen(kind: str) -> Callable[[World], None]:
    def run(w: World) -> None:
        array = np.ones(2)
        number, shared, view = ctypes.c_float(1.0), multiprocessing.Value("f", 1.0), memoryview(array)
        call = w.compile({"ctypes": lambda x: x * number.value, "processes": lambda x: x * shared.value,
                          "a memoryview": lambda x: x * view[0]}[kind])
        for _ in range(CALLS):
            call(numbers(1, 2))
    return run


SCENARIOS.update({f"memory that changes unseen: {kind}": Scenario(memory_that_changes_unseen(kind), "refused")
                  for kind in ("ctypes", "processes", "a memoryview")})


@scenario
def an_argument_that_is_compared_with_is(w: World) -> None:
    held = numbers(1, 2)
    call = w.compile(lambda x: x * 2 if x is held else x * 3)
    for i in range(CALLS):
        call(held if i % 2 else numbers(1, 2))


@scenario
def an_argument_in_a_dict_by_id(w: World) -> None:
    first, second = numbers(1, 2), numbers(3, 4)
    table = {id(first): 2.0, id(second): 3.0}
    call = w.compile(lambda x: x * table[id(x)])
    for i in (0, 0, 0, 1, 1, 1, 0):
        call((first, second)[i])


@scenario
def an_object_as_argument_whose_attribute_changes(w: World) -> None:
    class Held:
        by = 1.0
    held = Held()
    call = w.compile(lambda x, h: x * h.by)
    for i in range(CALLS):
        if i == 3:
            held.by = 2.0
        call(pair(i), held)


@scenario
def a_net_as_argument(w: World) -> None:
    nets = [dense(), dense(), scale()]
    call = w.compile(lambda net, x: net(x))
    for i in range(12):
        if i == 9:
            nets[2][1].by = 2.0
        call(nets[i % 3], vectors(i)[0])


@equal
def plain_arguments(w: World) -> None:
    call = w.compile(lambda x, by, flag=True, word="tanh": getattr(ops, word)(x * by) if flag else x)
    for i in range(20):
        call(pair(i), (1, 1.0, True, 2, float("inf"))[i % 5], flag=i % 3 > 0, word="relu" if i % 2 else "tanh")


@equal
def nan_as_argument(w: World) -> None:
    call = w.compile(lambda x, by: x * by)
    for i in range(CALLS):
        call(pair(i), float("nan"))


# ---------------------------------------------------------------- gradients of inputs


@scenario
def an_input_from_a_graph(w: World) -> None:
    factor, other = weight(1, 2), weight(3, 4)
    w.watch(factor, other)
    call = w.compile(lambda h: (h * other).sum().backward())
    for _ in range(CALLS):
        factor.grad = other.grad = None
        call(factor * 2)


@scenario
def a_graph_from_before_in_the_closure(w: World) -> None:
    factor, other = weight(1, 2), weight(3, 4)
    w.watch(factor, other)
    h = factor * 2
    call = w.compile(lambda: (h * other).sum().backward())
    for _ in range(CALLS):
        factor.grad = other.grad = None
        h = factor * 2
        call()


# ---------------------------------------------------------------- several optimizers, several steps


@equal
def rates_of_a_schedule_on_the_device(w: World) -> None:
    net = dense()
    sgd = optim.SGD(net.parameters(), lr=0.1)
    rates = optim.Rates(Tensor(np.linspace(0.1, 1, 10)[None]), Tensor(np.array([0])))
    w.watch(net, sgd)

    def step(x: Tensor, labels: Tensor) -> None:
        sgd.zero_grad()
        ops.cross_entropy(net(x), labels).backward()
        sgd.step(rates)
    call = w.compile(step)
    for i in range(CALLS):
        rates.position.data[...] = i
        if i == 4:
            rates.table.data[...] *= 0.5
        call(*vectors(i))


@equal
def train_and_eval_steps_share_a_net(w: World) -> None:
    net = dense(nn.Dropout(0.5))
    sgd = optim.SGD(net.parameters(), lr=0.1)
    step, look = train_step(w, net, sgd), w.compile(lambda x: net(x))
    for i in range(CALLS):
        net.train()
        step(*vectors(i))
        net.eval()
        with no_grad():
            look(vectors(i)[0])


@equal
def a_compiled_step_within_and_by_itself(w: World) -> None:
    net = dense()
    inner = minidl.compile(net.forward) if w.compiled else net.forward
    call = w.compile(lambda x: inner(x) * 2)
    for i in range(CALLS):
        call(vectors(i)[0])
        w.log.append(("by itself", {"is": inner(vectors(i)[0]).tolist()}))


@scenario
def a_stale_graph_after_a_call(w: World) -> None:
    """A parameter that a replay changed is marked: the graph from before is refused as in the plain world."""
    net = dense()
    step = train_step(w, net, optim.SGD(net.parameters(), lr=0.1))
    for i in range(CALLS):
        graph = (net[0].weight * net[0].weight).sum()
        step(*vectors(i))
        try:
            graph.backward()
            w.log.append(("a stale graph", {"is": "taken"}))
        except ValueError as error:
            w.log.append(("a stale graph", {"is": str(error)}))


# ---------------------------------------------------------------- what minidl changes in place
def in_place(name: str, change: Callable[[Any, Any, Tensor], Any], verdict: str = "either") -> None:
    """In the step, between an update and another forward pass."""
    def run(w: World) -> None:
        net = dense()
        sgd = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        state, other = dense().state_dict(), dense()

        def step(x: Tensor, labels: Tensor) -> Any:
            sgd.zero_grad()
            loss = ops.cross_entropy(net(x), labels)
            loss.backward()
            sgd.step()
            change(net, (state, other, sgd), x)
            return loss, net(x)
        w.watch(net, sgd)
        call = w.compile(step)
        for i in range(CALLS):
            call(*vectors(i))
    SCENARIOS[f"in the step: {name}"] = Scenario(run, verdict)


def minus(p: Tensor, by: Any) -> None:
    with no_grad():
        p -= by


def put_item(p: Tensor, index: Any, value: Any) -> None:
    with no_grad():
        p[index] = value  # type: ignore[index]


in_place("constant_", lambda net, held, x: init.constant_(net[0].bias, 1.0) and None)
in_place("load_state_dict", lambda net, held, x: net.load_state_dict(held[0]))
in_place("to float64 and back", lambda net, held, x: net.to(dtype="float64").to(dtype="float32"))
in_place("data rebound to an op's result", lambda net, held, x: setattr(net[0].bias, "data", (net[0].bias * 0.5).data))
in_place("data written by NumPy", lambda net, held, x: net[0].bias.data.__imul__(0.5) is None)
in_place("data of the input written", lambda net, held, x: x.data.__imul__(2) is None)
in_place("a number read from data", lambda net, held, x: net(x * float(net[0].bias.data[0])))
in_place("p -= by", lambda net, held, x: minus(net[0].bias, 0.5))
in_place("p[i] = Tensor", lambda net, held, x: put_item(net[0].weight, 1, x[0]))
in_place("x[i] = number", lambda net, held, x: put_item(x, 0, 0.5))
in_place("a layer added", lambda net, held, x: setattr(net, f"more{len(net)}", nn.Tanh()))
in_place("a layer replaced", lambda net, held, x: setattr(net, "1", nn.ReLU()))
in_place("an attribute counted", lambda net, held, x: setattr(net, "seen", getattr(net, "seen", 0) + 1))
in_place("an attribute set to a Tensor", lambda net, held, x: setattr(net, "seen", x.mean()))
in_place("an attribute set to a gradient", lambda net, held, x: setattr(net, "seen", net[0].bias.grad))
in_place("the seed set", lambda net, held, x: minidl.manual_seed(3))
in_place("the precision set", lambda net, held, x: minidl.set_precision("fp32"))


# ---------------------------------------------------------------- Tensors that outlive the step
@scenario
def an_average_in_a_list(w: World) -> None:
    ema = [numbers(0, 0)]

    def step(x: Tensor) -> Tensor:
        ema[0] = ema[0] * 0.9 + x
        return x.sum()
    w.watch(ema)
    call = w.compile(step)
    for i in range(CALLS):
        call(pair(i))


class Norm(nn.Module):
    """Batch normalisation as users write it."""

    def __init__(self, how: str):
        super().__init__()
        self.how, self.mean, self.gain = how, numbers(0, 0, 0, 0, 0), numbers(1, 1, 1, 1, 1, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(axis=0)
        if self.how == "data":
            self.mean.data = (self.mean * 0.9 + mean.detach() * 0.1).data
        elif self.how == "in place":
            self.mean.data[...] = 0.9 * self.mean.data + 0.1 * mean.data
        elif self.how == "item":
            with no_grad():
                self.mean[...] = self.mean * 0.9 + mean.detach() * 0.1  # type: ignore[index]
        elif self.how == "attribute":
            self.mean = (self.mean * 0.9 + mean * 0.1).detach()
        elif self.how == "graph":
            self.mean = self.mean * 0.9 + mean * 0.1
        elif self.how == "kept":
            self.last = mean
        elif self.how == "cached" and not hasattr(self, "first"):
            self.first = mean.detach()
        return (x - (self.first if self.how == "cached" else mean)) * self.gain


for how in ("data", "in place", "item", "attribute", "graph", "kept", "cached"):
    def normalised(w: World, how: str = how) -> None:
        net = dense(Norm(how))
        step = train_step(w, net, optim.SGD(net.parameters(), lr=0.1))
        for i in range(CALLS):
            step(*vectors(i))
    SCENARIOS[f"a running mean: {how}"] = Scenario(normalised)


@refused
def a_history_that_is_read(w: World) -> None:
    history: list[Tensor] = [numbers(0)]

    def step(x: Tensor) -> Tensor:
        history.append((x * x).sum() + history[-1] * 0.5)
        return history[-1] * len(history)
    call = w.compile(step)
    for i in range(CALLS):
        call(pair(i))


@scenario
def a_cached_function_of_tensors(w: World) -> None:
    @functools.lru_cache
    def twice(x: Tensor) -> Tensor:
        return x * 2
    held = numbers(1, 2)
    call = w.compile(lambda x: x * twice(held))
    for i in range(CALLS):
        if i == 4:
            twice.cache_clear()
            held.data[...] = 9
        call(pair(i))


# ---------------------------------------------------------------- ops of one's own
def own(name: str, body: Callable[..., Any], verdict: str = "either",
        change: Callable[[], Any] = lambda: None) -> None:
    """An op whose body is written here, in the middle of a step."""
    def run(w: World) -> None:
        function, factor = op(body), weight(0.5, 2)
        OPS.pop(body.__name__.strip("_"), None)
        sgd = optim.SGD([factor], lr=0.1)
        w.watch(factor)
        OWN.clear()
        OWN.update(by=2.0, array=np.array([1.0, 2.0], np.float32), held=[])

        def step(x: Tensor) -> Tensor:
            sgd.zero_grad()
            y = function(x * factor) * 2
            y.sum().backward()
            return y
        call = w.compile(step)
        for i in range(CALLS):
            if i == 4:
                change()
            call(pair(i))
    SCENARIOS[f"an op of one's own: {name}"] = Scenario(run, verdict)


OWN: dict[str, Any] = {}


def numpy_body(k, x):
    return np.logaddexp(0, x), lambda gy, need: (k.mul(gy, x),)


def numpy_in_the_closure(k, x):
    return k.exp(x), lambda gy, need: (k.mul(gy, np.exp(x)),)


def a_float(k, x):
    return k.mul(x, float(x[0])), lambda gy, need: (k.mul(gy, 2.0),)


def a_float_in_the_closure(k, x):
    return k.exp(x), lambda gy, need: (k.mul(gy, float(x[0])),)


def own_shape(k, x):
    return k.mul(x, x.shape[0]), lambda gy, need: (k.mul(gy, x.shape[0]),)


def primitives(k, x):
    y = k.exp(k.mul(x, 0.1))
    return y, lambda gy, need: (k.mul(k.mul(gy, y), 0.1),)


def a_global(k, x):
    return k.mul(x, OWN["by"]), lambda gy, need: (k.mul(gy, OWN["by"]),)


def a_global_array(k, x):
    return k.mul(x, OWN["array"]), lambda gy, need: (k.mul(gy, OWN["array"]),)


def a_written_input(k, x):
    x += 1
    return k.exp(x), lambda gy, need: (gy,)


def a_random_one(k, x):
    return k.mul(x, np.random.rand()), lambda gy, need: (gy,)


def a_held_result(k, x):
    OWN["held"].append(k.exp(x))
    return k.mul(OWN["held"][0], x), lambda gy, need: (gy,)


own("NumPy body", numpy_body, "refused")
own("NumPy for an argument in the closure", numpy_in_the_closure, "refused")
own("a float of the array", a_float)
own("a float of the array in the closure", a_float_in_the_closure)
own("its shape", own_shape, "equal")
own("primitives alone", primitives, "equal")
own("a global number", a_global, change=lambda: OWN.update(by=3.0))
own("a global array, written", a_global_array, change=lambda: OWN["array"].fill(3))
own("its input, written", a_written_input)
own("a random number", a_random_one)
own("what an earlier call left", a_held_result)


@scenario
def a_numpy_function_between_tensors(w: World) -> None:
    call = w.compile(lambda x: x * Tensor(np.exp(x.data)))
    for i in range(CALLS):
        call(pair(i))


@scenario
def a_detour_by_data(w: World) -> None:
    def step(x: Tensor) -> Tensor:
        y = x * 1
        y.data = np.exp(y.data)
        return y * 2
    call = w.compile(step)
    for i in range(CALLS):
        call(pair(i))


@scenario
def a_primitive_called_by_hand(w: World) -> None:
    from minidl.core.tensor import wrap
    from minidl.ops.common.backend import primitives_of
    call = w.compile(lambda x: wrap(primitives_of(x.data).exp(x.data)) * 2)
    for i in range(CALLS):
        call(pair(i))


# ---------------------------------------------------------------- what is returned
COUNTED = Tensor(np.array([0, -1, 1]))
ROWS = Tensor(np.arange(80, dtype=np.float32).reshape(20, 4))


def weighted(x: Tensor, reduction: str = "mean") -> Tensor:
    return ops.cross_entropy(minidl.stack([x, 2 * x, -x]), COUNTED, ignore_index=-1, reduction=reduction)


RETURNS: dict[str, tuple[Callable[..., Any], str]] = {
    "nothing": (lambda x, p, n: None, "equal"),
    "a tuple": (lambda x, p, n: (x * 2, p * x), "equal"),
    "a dict of lists": (lambda x, p, n: {"a": [x * 2, (p * x,)], "b": 3}, "equal"),
    "plain values": (lambda x, p, n: (x * 2, 1, "word", 2.5, None, True), "equal"),
    "the input": (lambda x, p, n: x, "either"),
    "a parameter": (lambda x, p, n: p, "either"),
    "a parameter and its square": (lambda x, p, n: (p, p * p), "either"),
    "the same twice": (lambda x, p, n: [y := x * p, (y, y)][1], "equal"),
    "equal ones": (lambda x, p, n: (x * p, x * p), "equal"),
    "a view of the input": (lambda x, p, n: x[1:], "equal"),
    "a view of a result": (lambda x, p, n: [y := x * p, (y, y[1:], y.reshape(2, 1))][1], "equal"),
    "the view alone": (lambda x, p, n: (x * p).reshape(2, 1), "equal"),
    "a view of a parameter": (lambda x, p, n: p[1:], "either"),
    "what was detached": (lambda x, p, n: (x * p).detach(), "equal"),
    "a shape": (lambda x, p, n: x.shape, "either"),
    "a dtype": (lambda x, p, n: str(x.dtype), "either"),
    "a count": (lambda x, p, n: next(n), "refused"),
    "a count beside a Tensor": (lambda x, p, n: (x * 2, next(n)), "refused"),
    "an array": (lambda x, p, n: (x * 2).data, "either"),
    "a weighted mean": (lambda x, p, n: weighted(x * p), "equal"),
    "two means of the same weights": (lambda x, p, n: (weighted(x * p), weighted(x + p)), "equal"),
    "losses of labels": (lambda x, p, n: weighted(x * p, "none"), "equal"),
    "a Module": (lambda x, p, n: (x * 2, nn.Tanh()), "either"),
    "a generator": (lambda x, p, n: (x * i for i in range(2)), "either"),
    "a set": (lambda x, p, n: {1, 2}, "either"),
    "a namespace": (lambda x, p, n: types.SimpleNamespace(loss=x * 2), "either"),
    "a dataclass": (lambda x, p, n: Config(inner=x * 2), "either"),
    "a function": (lambda x, p, n: lambda: x * 2, "either"),
}


def returning(name: str) -> Callable[[World], None]:
    def run(w: World) -> None:
        body, _ = RETURNS[name]
        p, n = weight(1, 2), itertools.count()
        sgd = optim.SGD([p], lr=0.1)

        def step(x: Tensor) -> Any:
            sgd.zero_grad()
            (p * x).sum().backward()
            sgd.step()
            return body(x, p, n)
        w.watch(p)
        call = w.compile(step)
        for i in range(CALLS):
            call(pair(i))
    return run


for name, (_, must) in RETURNS.items():
    SCENARIOS[f"returns {name}"] = Scenario(returning(name), must)


@equal
def the_sum_of_returned_means(w: World) -> None:
    """Means of the same labels' weights have them, also where a step returned both."""
    held: list[Any] = []
    call = w.compile(lambda x: (weighted(x), weighted(2 * x)))
    w.watch(held)
    for i in range(CALLS):
        one, other = call(pair(i))
        held[:] = [one + other]


@pytest.mark.parametrize("of", [
    lambda y: (y, y.reshape(2, 1)), lambda y: (y, y), lambda y: (y, y.detach()), lambda y: (y.reshape(2, 1), y)])
def test_returned_views_of_one_result_are_of_one_memory(of: Any) -> None:
    """A graph that kept one of them refuses to go on after the other was changed."""
    step, w = minidl.compile(lambda x: of(x * 2)), weight(1, 2)
    for i in range(CALLS):
        one, other = step(pair(i))
        z = (w * other.reshape(2)).sum()
        with no_grad():
            one.fill_(9.0)
        with pytest.raises(ValueError, match="changed in place"):
            z.backward()


@pytest.mark.parametrize("arguments", [
    lambda i: (ROWS[i], ROWS[i + 1]), lambda i: (ROWS[i:i + 3], ROWS[2 * i:2 * i + 3]),
    lambda i: ROWS.unbind()[i:i + 2], lambda i: (Tensor(ROWS.numpy()[i:i + 2]), Tensor(ROWS.numpy()[i + 2:i + 4]))])
def test_parts_of_one_array_are_one_signature(arguments: Any) -> None:
    step = minidl.compile(lambda a, b: (a * b).sum())
    for i in range(8):
        a, b = arguments(i)
        assert step(a, b).item() == (a * b).sum().item()
    assert step.recordings <= 4            # the same Tensors first


def test_what_a_step_looks_at_is_not_held() -> None:
    """By a weak reference: once the object is gone, the step does what the plain one does."""
    held = [Config(), weight(1, 2)]
    refs = [weakref.ref(each) for each in held]
    step = minidl.compile(lambda x: x * (3 if refs[0]() is None else 2) * (5 if refs[1]() is None else 1))
    for _ in range(4):
        assert step(numbers(1)).item() == 2
    held.clear()
    gc.collect()
    assert step(numbers(1)).item() == 15


def test_the_array_of_a_tensor_that_no_op_is_given_may_be_another() -> None:
    net = nn.Sequential(nn.Linear(2, 1))
    net.target = numbers(0)
    step = minidl.compile(lambda x: net(x))
    for i in range(8):
        step(pair(i))
        net.target.data = np.array([float(i)], np.float32)
    assert step.recordings == 2


@equal
def a_returned_view_is_changed(w: World) -> None:
    """It is one of the Tensor whose memory it has: a graph that kept the old values is refused."""
    p, said = weight(1, 2), [""]
    call = w.compile(lambda x: (p.detach(), x.reshape(2, 1)))
    w.watch(p, said)
    for i in range(CALLS):
        x = pair(i)
        for of, at in ((p, 0), (x.detach().requires_grad_(True) if i % 2 else x, 1)):
            old = (of * p).sum()
            with no_grad():
                call(x)[at].add_(1.0)
            try:
                old.backward()
            except ValueError as error:
                said[0] = str(error)


# ---------------------------------------------------------------- what decides what a program is for


@equal
def the_order_of_named_arguments(w: World) -> None:
    def step(x: Tensor, **more: Any) -> Any:
        for value in more.values():
            x = x * 2 + value
        return {name: value * x for name, value in more.items()}
    call = w.compile(step)
    for i in range(2 * CALLS):
        names = ("a", "b") if i < CALLS else ("b", "a")
        call(pair(i), **{name: numbers(ord(name)) for name in names})


@equal
def the_order_of_a_set(w: World) -> None:
    def step(x: Tensor, factors: frozenset[int]) -> Tensor:
        for factor in factors:
            x = x * 2 + factor
        return x
    call = w.compile(step)
    for i in range(2 * CALLS):
        call(pair(i), frozenset([0, 8] if i < CALLS else [8, 0]))


@refused
def a_loss_that_has_weights_later(w: World) -> None:
    """As an argument: what the step makes of it has them, too."""
    call = w.compile(lambda loss: loss * 2)
    for i in range(2 * CALLS):
        x = minidl.stack([pair(i)] * 3)
        call(ops.cross_entropy(x, Tensor([0, 1, 1])) if i < CALLS else ops.cross_entropy(x, COUNTED, ignore_index=-1))


@equal
def labels_that_are_views_of_one_array(w: World) -> None:
    """Losses of two heads count alike where they have the same labels; later they have other ones."""
    def step(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return ops.cross_entropy(x, a, ignore_index=-1) + ops.cross_entropy(2 * x, b, ignore_index=-1)
    call = w.compile(step)
    for i in range(2 * CALLS):
        both = np.array([0, -1, 1, 1, 0, -1])
        labels = Tensor(both)
        call(minidl.stack([pair(i)] * 3), labels[:3], labels[:3] if i < CALLS else labels[3:])


@equal
def what_a_tensor_that_no_op_is_given_is_like(w: World) -> None:
    p, q = weight(1, 2), weight(3)
    call = w.compile(lambda x: (x * p).sum() * (2 if q.requires_grad else 3) * len(q))
    for i in range(3 * CALLS):
        if i == CALLS:
            q.requires_grad_(False)
        if i == 2 * CALLS:
            q.data = np.ones(2, np.float32)
        call(pair(i))


@equal
def the_class_of_a_module(w: World) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    call = w.compile(lambda x: net(x))
    for i in range(2 * CALLS):
        if i == CALLS:
            net[1].__class__ = nn.Tanh
        call(pair(i))


@equal
def a_group_that_is_copied(w: World) -> None:
    sgd = optim.SGD([weight(1, 2)], lr=0.5)
    call = w.compile(lambda x: x * {**sgd.groups[0]}["lr"] * dict(sgd.groups[0].items())["lr"])
    for i in range(2 * CALLS):
        if i == CALLS:
            sgd.lr = 0.25
        call(pair(i))


def of_an_item() -> None:
    with rng.stream_of(1, 2):
        minidl.rand(1)


for name, seeds in {
        "manual seed": lambda: minidl.manual_seed(3), "a state": lambda: rng.set_state((3, 4)),
        "what is drawn next": rng.get_state, "numbers of an item": of_an_item}.items():
    def seeded(w: World, seeds: Callable[[], Any] = seeds) -> None:
        def step(x: Tensor) -> Tensor:
            seeds()
            return x * minidl.rand(2)
        call = w.compile(step)
        for i in range(CALLS):
            call(pair(i))
    SCENARIOS[f"random numbers by {name}"] = Scenario(seeded, "refused")


# ---------------------------------------------------------------- errors


@equal
def an_error_in_a_replay(w: World) -> None:
    """Parameters are those of the step before, and training goes on."""
    net = dense()
    sgd = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor, labels: Tensor) -> Tensor:
        sgd.zero_grad()
        loss = ops.cross_entropy(net(x), labels)
        loss.backward()
        sgd.step()
        return loss
    w.watch(lambda: [p.data for p in net.parameters()])
    call = w.compile(step)
    for i in range(CALLS):
        x, labels = vectors(i)
        call(x, Tensor([7] * 4) if i == 4 else labels)


@scenario
def an_error_by_a_flag(w: World) -> None:
    held = [False]
    p = weight(1, 2)
    sgd = optim.SGD([p], lr=0.1)

    def step(x: Tensor) -> None:
        sgd.zero_grad()
        (p * x).sum().backward()
        if held[0]:
            raise RuntimeError("no more")
        sgd.step()
    w.watch(p)
    call = w.compile(step)
    for i in range(CALLS + 1):
        held[0] = i == 4
        call(pair(i))


@equal
def an_error_in_the_first_call(w: World) -> None:
    p, fail = weight(1, 2), iter([True] + [False] * 20)

    def step(x: Tensor) -> Tensor:
        if x.shape == (3,):
            next(fail)
        return x * p
    call = w.compile(step)
    call(numbers(1, 2, 3))
    for i in range(CALLS):
        call(pair(i))


@scenario
def a_refusal_that_the_step_catches(w: World) -> None:
    def step(x: Tensor) -> Tensor:
        try:
            return x * float(x.data[0]) if x.item() else x
        except Exception:
            return x * 2
    call = w.compile(step)
    for i in range(CALLS):
        call(numbers(1, i))


# ---------------------------------------------------------------- branches, words, in-place Tensors outside


@equal
def only_prints(w: World) -> None:
    def step(x: Tensor) -> Tensor:
        print("a step on", x.shape)
        return x * 2
    call = w.compile(step)
    for i in range(CALLS):
        call(pair(i))


# ---------------------------------------------------------------- loaders and fit
def dataset(count: int = 20) -> data.Dataset:
    rng = np.random.default_rng(0)
    return data.Dataset("mine", "train", rng.integers(0, 256, (count, 1, 6, 6), np.uint8), rng.integers(0, 3, count))


def fitted(name: str, loader: Callable[[], Any], *, verdict: str = "equal", model: Callable[[], nn.Module] = conv,
           on_epoch: Callable[[Any, Any], Any] | None = None) -> None:
    """fit(compiled=True) and fit(compiled=False): equal weights, or a ValueError."""
    def run(w: World) -> None:
        net = model()
        sgd = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        w.watch(net)
        try:
            history = fit(net, sgd, loader(), data.DataLoader(dataset(), 8), epochs=3, compiled=w.compiled,
                          callbacks=(lambda m: on_epoch(net, sgd)) if on_epoch else ())
        except (ValueError, TypeError) as error:
            if not w.compiled:
                raise
            raise Refused(str(error)) from None
        w.look("after fit")
        w.log.append(("accuracies", {"are": [round(m["train_accuracy"], 6) for m in history]}))
    SCENARIOS[f"fit: {name}"] = Scenario(run, verdict)


class Black(data.DataLoader):
    def __iter__(self) -> Any:
        for x, y in super().__iter__():
            yield np.zeros_like(x), y


class Shifted(data.DataLoader):
    """Another batch, made where the loader makes it."""

    def _batch(self, indices: Any) -> Any:
        x, y = super()._batch(indices)
        return x[..., ::-1].copy(), y


fitted("dropout", lambda: data.DataLoader(dataset(), 8), model=lambda: nn.Sequential(
    nn.Flatten(), nn.Linear(36, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
fitted("a loader with another __iter__", lambda: Black(dataset(), 8), verdict="either")
fitted("a loader with another _batch", lambda: Shifted(dataset(), 8), verdict="either")
fitted("a layer frozen between epochs", lambda: data.DataLoader(dataset(), 8),
       on_epoch=lambda net, sgd: [setattr(p, "requires_grad", False) for p in net[0].parameters()])
fitted("momentum between epochs", lambda: data.DataLoader(dataset(), 8),
       on_epoch=lambda net, sgd: sgd.groups[0].update(momentum=0.1))


@scenario
def device_batches_of_a_loader_with_another_iter(w: World) -> None:
    try:
        batches = data.DeviceBatches(Black(dataset(), 8)) if w.compiled else Black(dataset(), 8)
    except (ValueError, TypeError) as error:
        raise Refused(str(error)) from None
    call = w.compile(lambda given: (batches.next(given)[0] if w.compiled else given) * 2)
    for given in batches:
        call(given if w.compiled else Tensor(given[0]))


@scenario
def device_batches_whose_loader_changes(w: World) -> None:
    loader = data.DataLoader(dataset(), 8, seed=4)
    batches = data.DeviceBatches(loader)
    call = w.compile(lambda size: batches.next(size))
    for epoch in range(4):
        if epoch == 1:
            loader.padding = 1
        if epoch == 2:
            loader.stored = loader.stored._replace(scale=(0.01, ) * len(loader.stored.scale))
        if epoch == 3:
            loader.stored = loader.stored._replace(images=loader.stored.images[::-1].copy())
        for size in batches:
            call(size)


# ---------------------------------------------------------------- the tests
RESULTS: dict[str, Verdict] = {}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Precision and hash-keyed helpers are as they were."""
    FROZEN.clear()
    yield
    minidl.set_precision("fp32")


def run(name: str) -> Verdict:
    if name not in RESULTS:
        def once(w: World) -> None:
            FROZEN.clear()
            minidl.set_precision("fp32")
            SCENARIOS[name].run(w)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            RESULTS[name] = compare(once)
    return RESULTS[name]


@pytest.mark.parametrize("name", SCENARIOS)
def test_equal_or_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = run(name)
    assert verdict.kind in ("equal", "refused"), f"{name}: {verdict.why}"
    assert SCENARIOS[name].verdict in ("either", verdict.kind), f"{name}: {verdict.kind} {verdict.why}"


def test_enough_was_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    """At least 100 scenarios, 40 per cent of them compared with a replay: a table of refusals shows nothing."""
    for name in SCENARIOS:
        run(name)
    compared = [name for name, verdict in RESULTS.items() if verdict.replays and verdict.kind != "refused"]
    assert len(RESULTS) >= 100
    assert len(compared) >= 0.4 * len(RESULTS), f"{len(compared)} of {len(RESULTS)} have seen a replay"


# ---------------------------------------------------------------- promises that are no comparison
def test_programs_are_bounded() -> None:
    """Over all signatures: a plain argument that never comes again keeps no program for ever."""
    step = minidl.compile(lambda x, by: x * by)

    def programs() -> int:
        gc.collect()
        return sum(type(thing).__name__ == "Program" for thing in gc.get_objects())
    before = programs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(300):
            step(pair(i), float(i))
            step(pair(i), float(i))
            step(pair(i), float(i))
    assert programs() - before <= 150


def test_an_input_with_a_gradient_replays_and_is_let_go() -> None:
    import weakref

    net = dense()

    def step(x: Tensor, labels: Tensor) -> Tensor:
        loss = ops.cross_entropy(net(x), labels)
        loss.backward()
        return loss
    call, held = minidl.compile(step), []
    for i in range(10):
        x, labels = vectors(i)
        x = Tensor(x.data, requires_grad=True)
        for p in net.parameters():
            p.grad = None
        call(x, labels)
        assert x.grad is not None
        held.append(weakref.ref(x))
    del x
    gc.collect()
    assert call.recordings <= 3
    assert sum(ref() is not None for ref in held) <= 3


def test_the_tenth_recording_is_said_once() -> None:
    step = minidl.compile(lambda x, by: x * by)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(40):
            step(pair(i), float(i))
    said = [str(w.message) for w in caught if "record" in str(w.message)]
    assert len(said) == 1, said
    assert "lambda" in said[0]
    assert {w.filename for w in caught} == {__file__}  # where the step is called


@pytest.mark.parametrize("change", ["a number", "a shape"])
def test_why_a_step_is_recorded_again_is_said(change: str) -> None:
    config, x = types.SimpleNamespace(by=0.0), pair(0)
    step = minidl.compile(lambda x: x * config.by)
    why = (r"this time since config\.by \(from 8\.0 to 9\.0\) changed" if change == "a number" else
           "this time since its arguments have other shapes, dtypes or plain values")

    def call(i: int) -> None:
        config.by = float(i) if change == "a number" else 1.0
        step(numbers(*range(i + 1)) if change == "a shape" else x)
    for i in range(9):
        call(i)
    with pytest.warns(RuntimeWarning, match=rf"<lambda> was recorded for the 10th time, .*; {why}\. Pass what changes"):
        call(9)


def test_a_difference_between_two_recordings_is_named() -> None:
    """By the step's name and the line that differs."""
    count = itertools.count(1)

    def counting(x: Tensor) -> Tensor:
        return x * float(next(count))
    step, line = minidl.compile(counting), counting.__code__.co_firstlineno + 1
    with pytest.raises(CompileError, match=rf"counting[\s\S]*{os.path.basename(__file__)}:{line}"):
        [step(pair(i)) for i in range(3)]


@pytest.mark.parametrize("between", ["another batch size", "eval mode"])
def test_a_change_that_a_step_makes_is_never_left_out(between: str) -> None:
    """Also where recordings that make it take turns with others: either refused, or made at each call."""
    def run(compiled: bool) -> list[float]:
        cfg, net, found = types.SimpleNamespace(sign=1.0), nn.Dropout(0.0), []

        def step(x: Tensor) -> Tensor:
            if net.training:
                cfg.sign = -cfg.sign
            return x * cfg.sign
        call = minidl.compile(step) if compiled else step
        for i in range(14):
            if between == "eval mode":
                net.train(i % 2 == 1)
            rows = 3 if between == "another batch size" and i in (1, 3) else 2
            try:
                found.append(call(Tensor(np.ones(rows, np.float32))).tolist()[0])
            except CompileError:
                break
        return found
    mine = run(True)
    assert len(mine) >= 5                                      # calls before a refusal, if there is one
    assert mine == run(False)[:len(mine)]


def test_a_returned_gradient_from_before_the_step_that_nothing_reads() -> None:
    p = Tensor([1.0, 2.0], requires_grad=True)
    step = minidl.compile(lambda x: (x * 2, p.grad))
    for i in range(4):
        p.grad = Tensor([float(i), 1.0])
        assert step(pair(i))[1].tolist() == [float(i), 1.0]
    assert step.recordings == 2


@pytest.mark.parametrize("rebound", [False, True])
def test_a_parameter_as_argument_that_the_step_knew_by_its_gradient_alone(rebound: bool) -> None:
    """Its optimizer leaves out a parameter without a gradient; as the argument, it gets one, and an update."""
    def run(compiled: bool) -> list[list[float]]:
        w, v = numbers(1.0, 2.0, requires_grad=True), numbers(0.5, 0.5, requires_grad=True)
        sgd = optim.SGD([w, v], lr=0.1)

        def training(x: Tensor) -> None:
            sgd.zero_grad()
            (x * v).sum().backward()
            sgd.step()
        step = minidl.compile(training) if compiled else training
        for _ in range(3):
            step(numbers(1.0, 1.0, requires_grad=True))
        if rebound:
            w.data = w.data + 1
        step(w)
        return [w.tolist(), v.tolist()]
    assert run(True) == run(False)


@pytest.mark.parametrize("change", ["taken out", "another list"])
def test_an_optimizers_list_counts_where_gradients_are_cleared_alone(change: str) -> None:
    """A step without an update, too, adds up the gradients of what the optimizer does not have any more."""
    def run(compiled: bool) -> list[list[float]]:
        w, v = numbers(1.0, 2.0, requires_grad=True), numbers(0.5, 0.5, requires_grad=True)
        sgd = optim.SGD([w, v], lr=0.1)

        def gradients(x: Tensor) -> None:
            sgd.zero_grad()
            (x * v * w).sum().backward()
        step = minidl.compile(gradients) if compiled else gradients
        for i in range(3):
            step(pair(i))
        if change == "taken out":
            sgd.groups[0]["params"].pop()
        else:
            sgd.groups[0]["params"] = [w]
        step(pair(3))
        return [w.grad.tolist(), v.grad.tolist()]
    assert run(True) == run(False)


def test_a_parameter_as_argument_whose_data_was_rebound_between_two_recordings() -> None:
    """The same Tensor with another array: that the step knows it by another name too cannot be ruled out."""
    w = numbers(1.0, 2.0, requires_grad=True)
    step = minidl.compile(lambda x: x * w)
    step(w)
    w.data = w.data * 0.5
    step(w)
    assert step(numbers(3.0, 5.0, requires_grad=True)).tolist() == [1.5, 5.0]


# ---------------------------------------------------------------- optimizers and arguments of one's own
class Own(optim.SGD):
    """An update rule with a number of its own."""

    factor = 2.0

    def step(self) -> None:                                              # type: ignore[override]
        with minidl.no_grad():
            for group in self.groups:
                for p in group["params"]:
                    p -= group["lr"] * self.factor * p.grad


@pytest.mark.parametrize("change", [lambda sgd: setattr(sgd, "lr", 0.0), lambda sgd: setattr(sgd, "factor", 0.5),
                                    lambda sgd: setattr(Own, "factor", 3.0),
                                    lambda sgd: sgd.groups[0].update(momentum=0.5)],
                         ids=["rate", "number", "number of the class", "momentum"])
def test_an_update_rule_of_ones_own(change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Own, "factor", 2.0)

    def run(compiled: bool) -> list[float]:
        Own.factor = 2.0
        w = numbers(1.0, 2.0, requires_grad=True)
        sgd = Own([w], lr=0.1)

        def training(x: Tensor) -> None:
            sgd.zero_grad()
            (x * w * sgd.groups[0]["momentum"] + x * w).sum().backward()
            sgd.step()
        step = minidl.compile(training) if compiled else training
        for i in range(7):
            if i == 4:
                change(sgd)
            step(pair(i))
        return w.tolist()
    assert run(True) == run(False)


@dataclasses.dataclass(frozen=True)
class Named:
    name: str
    by: float = dataclasses.field(default=1.0, compare=False)


@pytest.mark.parametrize(("one", "other"), [
    (Named("a", 2.0), Named("a", 3.0)), ((2,), (2.0,)), ((0.0,), (-0.0,)), ((1,), (True,))], ids=str)
def test_arguments_that_are_equal_but_not_the_same(one: Any, other: Any) -> None:
    def by(x: Tensor, k: Any) -> Tensor:
        return x * (k.by if isinstance(k, Named) else k[0])
    step = minidl.compile(by)
    x = Tensor(np.array([3, -4]))
    for k in (one, one, one, one, other, other, other, one):
        mine, theirs = step(x, k), by(x, k)
        assert (mine.dtype, mine.numpy().tobytes()) == (theirs.dtype, theirs.numpy().tobytes())


def test_a_compiled_method() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.by = nn.Linear(2, 2), 1.0

        @minidl.compile
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.by
    net = Net()
    twin = copy.deepcopy(net)
    for i in range(6):
        net.by = 1.0 if i < 4 else 2.0
        x = pair(i).reshape(1, 2)
        assert net(x).tolist() == (net.layer(x) * net.by).tolist()
        assert twin(x).tolist() == twin.layer(x).tolist()


@pytest.mark.parametrize("more", [1, 3 << 20])
def test_a_large_array_of_the_host_is_refused(more: int) -> None:
    """Of more than a megabyte, that is; one of so much is looked at."""
    table = np.zeros((1 << 20) + more, np.uint8)
    step = minidl.compile(lambda x: x * float(table[0]))
    with pytest.raises(CompileError, match=rf"reads the array 'table' of {len(table):,} bytes beside Tensors, of wh"):
        step(pair(0))
    table = np.zeros(1 << 20, np.uint8)
    for value in (1, 1, 1, 2, 2, 2):
        table[0] = value
        assert step(numbers(1)).item() == value


def test_attributes_are_looked_at_again_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of anything: which thing it was, the first look tells, and each Tensor is noted once."""
    net, looks, look = dense(), [], facts._attributes
    step = minidl.compile(lambda x: net(net[0](x)[:, :4]))
    for i in range(3):
        step(vectors(i)[0])
    noted = [id(t) for t in step.program.facts.tensors]
    assert len(noted) == len(set(noted)) == 4
    monkeypatch.setattr(facts, "_attributes", lambda value: looks.append(value) or look(value))
    for expected in (False, False, True, False, False):
        if expected:
            nn.Tanh().eval()
        looks.clear()
        step(vectors(0)[0])
        assert bool(looks) == expected
    assert step.recordings == 2


def test_facts_are_compared_by_value_only_where_an_object_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them at one look otherwise: of names, containers, closures, options and plain arguments."""
    config, looks, look = types.SimpleNamespace(by=float("1.5")), [], facts.Fact.changed
    held, more = [float("2.5")], float("3.5")
    step = minidl.compile(lambda x, by, *, labels: x * config.by * held[0] * more * by + labels)

    def call() -> tuple[float, int, bool]:
        looks.clear()
        return step(numbers(1), 1000.0, labels=numbers(2)).item(), step.recordings, bool(looks)
    monkeypatch.setattr(facts.Fact, "changed", lambda fact, given=(): looks.append(fact) or look(fact, given))
    call()
    call()
    assert call() == (13127, 2, False)
    config.by = float("1.5")
    assert call() == (13127, 2, True)
    held[0] = float("2.5")
    assert call() == (13127, 2, True)
    config.by = 3.0
    assert call() == (26252, 3, True)


def test_a_variable_that_was_deleted_is_looked_at() -> None:
    """It can no longer be read: the step says so, as the plain function would."""
    by, plain = 2.0, lambda x: x * by
    step = minidl.compile(plain)
    for _ in range(3):
        assert step(numbers(1)).item() == 2
    del by
    with pytest.raises(NameError, match="by"):
        step(numbers(1))
    by = 4.0
    assert step(numbers(1)).item() == 4


def test_the_program_that_was_not_used_for_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all signatures, and of the programs that one signature has."""
    monkeypatch.setattr("minidl.compiler.step.MAX_PROGRAMS", 3)
    config = types.SimpleNamespace(by=1.0)

    def is_recorded(number: float, by: float) -> bool:
        config.by, before = by, step.recordings
        assert step(numbers(3), number).item() == 3 * number * by
        return step.recordings > before

    step = minidl.compile(lambda x, number: x * number * config.by)
    assert all(is_recorded(number, 1) for number in (1, 2, 3) for _ in range(2))
    assert not is_recorded(1, 1)           # which the second was not, and so it goes
    assert is_recorded(4, 1)
    assert [is_recorded(number, 1) for number in (3, 1, 2, 5)] == [False, False, True, True]
    step = minidl.compile(lambda x, number: x * number * config.by)
    assert all(is_recorded(number, 1) for number in (1, 2, 3) for _ in range(2))
    assert [is_recorded(1, 2) for _ in range(3)] == [True, True, False]
    assert [is_recorded(number, 1) for number in (1, 3, 2)] == [False, False, True]
    step = minidl.compile(lambda x, number: x * number * config.by)
    assert all(is_recorded(1, by) for by in (1, 2, 3, 4) for _ in range(2))
    assert [is_recorded(1, by) for by in (2, 3, 4, 1)] == [False, False, False, True]


def test_after_a_difference_a_step_starts_anew(tmp_path: Path) -> None:
    """What the first of the two recordings did counts no more."""
    file = tmp_path / "by"
    step = minidl.compile(lambda x: x * float(file.read_text()))
    file.write_text("1")
    assert step(numbers(3)).item() == 3
    file.write_text("2")
    with pytest.raises(CompileError, match="did not do the same in two runs"):
        step(numbers(3))
    assert [step(numbers(i)).item() for i in range(4)] == [0, 2, 4, 6]
    assert step.recordings == 4
