"""What people write in `forward`, in a loss or in a metric: `fit` with compiled steps gives the bits of the plain one,
or refuses it with a way out, of which the first is compiled=False."""

from __future__ import annotations

import datetime
import functools
import logging
import math
import random
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from tiers import tiered

import minidl
from minidl import Tensor, data, nn, ops, optim, training

ROWS, COLUMNS, CLASSES = 24, 4, 3
RUNS = [0]                                 # of forwards, that some of them count
SEEN: list[Any] = []                       # what some of them keep
SCALES = [1.0, 2.0]
START = datetime.datetime(2024, 1, 1)
EYE, DRAWN = np.eye(COLUMNS, dtype=np.float32), np.random.default_rng(0)


class Pair(NamedTuple):
    first: Any
    second: Any


class Net(nn.Module):
    """What a forward may use: layers, a buffer, a count, numbers, arrays and containers of its own."""

    def __init__(self, forward: Callable[..., Any]):
        super().__init__()
        self.own, self.hidden, self.out = forward, nn.Linear(COLUMNS, COLUMNS), nn.Linear(COLUMNS, CLASSES)
        self.position, self.drop = nn.Embedding(8, COLUMNS), nn.Dropout(0.5)
        self.lstm, self.attention = nn.LSTM(1, 3, batch_first=True), nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm, self.experts = nn.BatchNorm1d(COLUMNS), nn.ModuleList([nn.Linear(COLUMNS, COLUMNS) for _ in "ab"])
        self.register_buffer("mean", minidl.zeros(COLUMNS))
        self.register_buffer("count", minidl.zeros(1, dtype="int64"))
        self.scale, self.calls, self.table, self.state = 0.5, 0, np.arange(4.0, dtype=np.float32), None
        self.options = {"scale": 2.0, "order": [3, 2, 1, 0]}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.own(self, *inputs, **named)


def ends(function: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """A forward of what a function makes of (net, x), rows of COLUMNS numbers."""
    return lambda net, x: net.out(function(net, net.hidden(x).tanh()))


def over_time(net: Any, x: Tensor) -> Tensor:
    h, outputs = minidl.zeros(x.shape[0], COLUMNS, device=x.device), []
    for t in range(x.shape[1]):
        h = (h * net.scale + x[:, t:t + 1]).tanh()
        outputs.append(h)
    return ops.stack(outputs).mean(axis=0)


def causal(net: Any, x: Tensor) -> Tensor:
    t = x.shape[1]
    scores = (x.unsqueeze(2) @ x.unsqueeze(1)).masked_fill(minidl.ones(t, t, device=x.device).tril() == 0, -math.inf)
    return (scores.softmax(dim=-1) @ x.unsqueeze(2)).squeeze(2)


def running(net: Any, x: Tensor) -> Tensor:
    if net.training:
        with minidl.no_grad():
            net.mean.mul_(0.9).add_(0.1 * x.mean(dim=0))
            net.count += 1
    return x - net.mean


def reassigned(net: Any, x: Tensor) -> Tensor:
    if net.training:
        net.mean = 0.9 * net.mean + 0.1 * x.detach().mean(axis=0)
    return x - net.mean


def in_place(net: Any, x: Tensor) -> Tensor:
    y = x.detach().clone()
    y[:, 0] = 0
    y += 1
    return x + y


def tried(net: Any, x: Tensor) -> Tensor:
    try:
        return x @ x                       # the shapes do not fit
    except ValueError:
        return x * 2


def tried_values(net: Any, x: Tensor) -> Tensor:
    try:
        return x * x.mean().item()
    except ValueError:
        return x


def keeps_state(net: Any, x: Tensor) -> Tensor:
    h = x if net.state is None or net.state.shape != x.shape else x + net.state
    net.state = h.detach()
    return h


def counts_calls(net: Any, x: Tensor) -> Tensor:
    net.calls += 1
    return x * (1 + 0.1 * net.calls)


def counts_globally(net: Any, x: Tensor) -> Tensor:
    RUNS[0] += 1
    return x * (1 + 0.1 * RUNS[0])


def appends(net: Any, x: Tensor) -> Tensor:
    SEEN.append(x.shape)
    return x * len(SEEN)


def closure() -> Callable[[Any, Tensor], Tensor]:
    seen: list[float] = []

    def function(net: Any, x: Tensor) -> Tensor:
        seen.append(1.0)
        return x * sum(seen)
    return function


def half(net: Any, x: Tensor) -> Tensor:
    return x.float() if x.detach().double().shape[0] > 1 else x


def timed(net: Any, x: Tensor) -> Tensor:
    begin = time.perf_counter()
    y = x * 2
    assert time.perf_counter() >= begin
    return y


def dated(net: Any, x: Tensor) -> Tensor:
    from datetime import date

    return x * date.today().day


def logged(net: Any, x: Tensor) -> Tensor:
    logging.getLogger("forwards").warning("the mean is %s", x.mean())
    return x


# A forward -> what it does.
EQUAL: dict[str, Callable[[Any, Tensor], Any]] = {
    "zeros": lambda net, x: x + minidl.zeros(x.shape[0], COLUMNS, device=x.device),
    "zeros_like": lambda net, x: x + minidl.zeros_like(x),
    "ones": lambda net, x: minidl.cat([x[:, 1:], minidl.ones(x.shape[0], 1, device=x.device)], dim=1),
    "full": lambda net, x: x * minidl.full((COLUMNS,), 0.5, device=x.device),
    "eye": lambda net, x: x @ (minidl.eye(COLUMNS, device=x.device) * 2),
    "arange": lambda net, x: x * minidl.arange(x.shape[1], dtype="float32", device=x.device),
    "linspace": lambda net, x: x + minidl.linspace(0, 1, COLUMNS, device=x.device),
    "one_hot": lambda net, x: ops.one_hot(x.argmax(dim=1), COLUMNS).float() + x,
    "rows of eye": lambda net, x: minidl.eye(COLUMNS, device=x.device)[x.argmax(dim=1)] + x,
    "a causal mask": causal,
    "randn_like": lambda net, x: x + 0.1 * minidl.randn_like(x),
    "rand": lambda net, x: x * minidl.rand(COLUMNS, device=x.device),
    "randint": lambda net, x: x * minidl.randint(0, 2, x.shape, device=x.device).float(),
    "randperm": lambda net, x: x + x[minidl.randperm(x.shape[0], device=x.device)],
    "a Bernoulli mask": lambda net, x: x * (minidl.rand(x.shape, device=x.device) < 0.5).float() * 2,
    "a branch that is drawn, and not read": lambda net, x: minidl.where(minidl.rand(1, device=x.device) < 0.5, x, -x),
    "a constant": lambda net, x: x * Tensor([1.0, 2.0, 0.5, 1.0], device=x.device),
    "a mean over a mask": lambda net, x: x * (x > 0) + (x * (x > 0)).sum() / (x > 0).float().sum(),
    "a mask as float": lambda net, x: (x > 0).float() * x,
    "a mask as dtype": lambda net, x: x * (x > 0).to(dtype=x.dtype),
    "a comparison": lambda net, x: minidl.where((x > 0.5) | (x < -0.5), x, 0.1 * x),
    "float64 and back": lambda net, x: x + x.detach().double().mean().float(),
    "a dtype that decides": half,
    "a number of NumPy's": lambda net, x: x * np.float32(0.5) + float(np.sqrt(2)),
    "an array of its own": lambda net, x: x * float(net.table[2]) * net.table.shape[0],
    "an index of NumPy's": lambda net, x: x[:, np.array([0, 0, 1, 2])],
    "an attribute": lambda net, x: x * net.scale,
    "options": lambda net, x: x[:, net.options["order"]] * net.options["scale"],
    "a global list": lambda net, x: x * SCALES[0] / SCALES[-1],
    "detach": lambda net, x: x - x.detach().mean(dim=0),
    "a size as a number": lambda net, x: x / float(x.shape[0]) * len(x) + x.size / 100,
    "a check of shapes": lambda net, x: x if x.ndim == 2 and x.shape[1] == COLUMNS else x.flatten(1),
    "training alone": lambda net, x: x * 2 if net.training else x,
    "over time": over_time,
    "positions": lambda net, x: x + net.position(minidl.arange(x.shape[1], device=x.device)).sum(dim=0),
    "a state that starts at 0": lambda net, x: x + net.lstm(x.unsqueeze(-1))[1][0][0].sum(dim=1, keepdim=True),
    "attention": lambda net, x: net.attention(*[x.unsqueeze(1)] * 3)[0].squeeze(1),
    "dropout": lambda net, x: net.drop(x),
    "functional dropout": lambda net, x: ops.dropout(x, 0.3) if net.training else x,
    "batch normalisation": lambda net, x: net.norm(x),
    "a buffer in place": running,
    "in place": in_place,
    "experts": lambda net, x: sum(gate * expert(x) for gate, expert in zip(
        x[:, :2].softmax(dim=1).chunk(2, dim=1), net.experts, strict=True)),
    "sorted": lambda net, x: x.sort(dim=1)[0] + x.topk(2, dim=1)[0].sum(dim=1, keepdim=True),
    "an error that was caught": tried,
    "chosen rows": lambda net, x: x[x.sum(dim=1).argsort()[:2]].sum() + x,
    "a date that is written down": lambda net, x: x * START.year / (START + datetime.timedelta(days=365)).year,
    "a clock for its own sake": timed,
    "a norm": lambda net, x: x / x.norm(dim=1, keepdim=True).clamp(min=1e-6),
    "a weight in the forward": lambda net, x: x @ (net.hidden.weight / net.hidden.weight.norm()).T,
}
READS, KEEPS = "return the Tensor and read it outside the step", "make it outside and use it here"
DIFFERS = "Pass what differs as an argument, make it once outside, or draw it with minidl"
OUTLIVES = "return it, or write t[...] = value under no_grad()"
TIMES = "pass what it is read for as an argument"
SIZES = "compute with all, as in (x * mask).sum() / mask.float().sum(), or index by integers"
# What is refused -> the way out that is named beside compiled=False.
REFUSED: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "a mean that is printed": (lambda net, x: print(f"{x.mean()}") or x, READS),
    "a mean that is logged": (logged, READS),
    "a branch by a value": (lambda net, x: x if x.sum() > 0 else -x, READS),
    "item": (lambda net, x: x * x.mean().item(), READS),
    "a value in try": (tried_values, READS),
    "numpy": (lambda net, x: x * float(x.detach().cpu().numpy().std()), READS),
    "tolist": (lambda net, x: x * max(x.detach().flatten().tolist()), READS),
    "a drawn number that is read": (lambda net, x: x if minidl.rand(1).item() < 0.5 else -x, READS),
    "an array of NumPy's": (lambda net, x: x @ Tensor(np.eye(COLUMNS, dtype=np.float32), device=x.device), KEEPS),
    "a global array": (lambda net, x: x @ Tensor(EYE, device=x.device), KEEPS),
    "noise of NumPy's": (
        lambda net, x: x + Tensor(np.random.randn(COLUMNS).astype(np.float32), device=x.device), KEEPS),
    "a random branch": (lambda net, x: x if random.random() < 0.5 else -x, DIFFERS),
    "a random number": (lambda net, x: x * random.random(), DIFFERS),
    "a generator of NumPy's": (lambda net, x: x * float(DRAWN.uniform(0.5, 1.5)), DIFFERS),
    "the time": (lambda net, x: x * (time.time() % 1), DIFFERS),
    "the date": (lambda net, x: x * datetime.datetime.now().microsecond, TIMES),
    "the hour": (lambda net, x: x * (datetime.datetime.now().hour + 1), TIMES),
    "the hour, otherwise": (lambda net, x: x * (time.localtime().tm_hour + 1), TIMES),
    "a date that is imported": (dated, TIMES),
    "a state that is kept": (keeps_state, OUTLIVES),
    "a buffer that is another": (reassigned, OUTLIVES),
    "calls that are counted": (counts_calls, DIFFERS),
    "a global count": (counts_globally, DIFFERS),
    "a global list that grows": (appends, DIFFERS),
    "a closure's list that grows": (closure(), DIFFERS),
    "values by a mask": (lambda net, x: x * x[x > 0].mean(), SIZES),
    "masked_select": (lambda net, x: x + x.masked_select(x > 0).sum(), SIZES),
    "unique": (lambda net, x: x * len((x > 0).long().unique()), "do it outside the step"),
}


def batches(device: str, inputs: Callable[[np.ndarray], Any] = lambda x: x, *weights: np.ndarray) -> data.DataLoader:
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((ROWS, COLUMNS), dtype=np.float32), rng.integers(0, CLASSES, ROWS)
    return data.DataLoader((inputs(x), labels, *weights), 8, device=device)


Options = Callable[[Any, str], dict[str, Any]]         # of a net and a device: what else fit is given


def nothing(net: Any, device: str) -> dict[str, Any]:
    return {}


def trained(forward: Callable[..., Any], device: str, compiled: bool, options: Options) -> list[Any]:
    """Losses and other metrics of three epochs, then all parameters, buffers and the next random number."""
    net = fresh(forward).to(device)
    given = {"optimizer": optim.SGD(net.parameters(), lr=0.1, momentum=0.9), "train": batches(device),
             **options(net, device)}
    history = training.fit(net, test=given["train"], epochs=3, compiled=compiled, say=None, progress=False, **given)
    found: list[Any] = [value for metrics in history for name, value in metrics.items() if "sec" not in name]
    return [*found, *net.state_dict().values(), minidl.rand(1).item()]


def fresh(forward: Callable[..., Any]) -> Net:
    minidl.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    RUNS[0] = 0
    SEEN.clear()
    return Net(forward)


def compare(forward: Callable[..., Any], device: str, options: Options = nothing) -> None:
    """That both kinds of steps give the same: to the bit on the CPU, to rounding on a GPU."""
    plain, compiled = (trained(forward, device, way, options) for way in (False, True))
    for one, other in zip(plain, compiled, strict=True):
        np.testing.assert_allclose(other, one, *((0, 0) if device == "cpu" else (1e-3, 1e-4)))


def refused(forward: Callable[..., Any], device: str, way_out: str, options: Options = nothing) -> None:
    """That the plain steps run, and compiled ones are refused with both ways out."""
    trained(forward, device, False, options)
    with pytest.raises(minidl.CompileError, match=rf"^fit: pass compiled=False .*{re.escape(way_out)}"):
        trained(forward, device, True, options)


@pytest.mark.parametrize("what", tiered(EQUAL, fast=10))
def test_a_forward_is_compiled(what: str) -> None:
    compare(ends(EQUAL[what]), "cpu")


@pytest.mark.parametrize("what", tiered(REFUSED, fast=6))
def test_a_forward_is_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)         # it goes on where a message cannot be made
    function, way_out = REFUSED[what]
    refused(ends(function), "cpu", way_out)


@pytest.mark.gpu
@pytest.mark.parametrize("what", EQUAL)
def test_gpu_a_forward_is_compiled(what: str) -> None:
    compare(ends(EQUAL[what]), "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("what", REFUSED)
def test_gpu_a_forward_is_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    function, way_out = REFUSED[what]
    refused(ends(function), "cuda", way_out)


# ---------------------------------------------------------------- batches, losses, metrics and options of fit
def plain(net: Any, x: Tensor) -> Tensor:
    return net.out(net.hidden(x).tanh())


def both(net: Any, first: Tensor, second: Tensor) -> Tensor:
    return net.out(net.hidden(first) + net.position(second))


def ids(x: np.ndarray) -> np.ndarray:
    return np.arange(len(x)) % 8


def smoothed(outputs: Any, labels: Tensor) -> Tensor:
    logits = outputs if isinstance(outputs, Tensor) else outputs["logits" if isinstance(outputs, dict) else 0]
    hot = ops.one_hot(labels, CLASSES).float() * 0.9 + 0.1 / CLASSES
    return -(hot * logits.log_softmax(dim=1)).sum(dim=1).mean()


def right(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == labels).float().mean()


def right_by_numpy(outputs: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(outputs.argmax(axis=1) == labels))


class Cooled:
    """A callback that changes a number which the forward reads."""

    def __init__(self, net: Any):
        self.net = net

    def on_epoch_end(self, metrics: Any) -> None:
        self.net.scale *= 0.5


by_image = functools.partial(ops.cross_entropy, reduction="none")
WEIGHTS = np.linspace(0, 2, ROWS, dtype=np.float32)
# A forward, and what else fit is given.
OPTIONS: dict[str, tuple[Callable[..., Any], Options]] = {
    "one-hot labels in the loss": (plain, lambda net, device: {"loss": smoothed}),
    "a list of outputs": (lambda net, x: [plain(net, x), x], lambda net, device: {"loss": smoothed}),
    "a dict of outputs": (lambda net, x: {"logits": plain(net, x)}, lambda net, device: {"loss": smoothed}),
    "a named tuple of outputs": (lambda net, x: Pair(plain(net, x), x), lambda net, device: {"loss": smoothed}),
    "two inputs": (both, lambda net, device: {"train": batches(device, lambda x: (x, ids(x)))}),
    "inputs by name": (both, lambda net, device: {"train": batches(device, lambda x: {"second": ids(x), "first": x})}),
    "a weight for each image": (plain, lambda net, device: {
        "train": batches(device, lambda x: x, WEIGHTS), "loss": by_image}),
    "a loss by image": (plain, lambda net, device: {"loss": by_image}),
    "a metric": (plain, lambda net, device: {"metrics": {"right": right}}),
    "a metric of the whole set": (plain, lambda net, device: {"metrics": {"right": training.WholeSet(right_by_numpy)}}),
    "several batches a step": (plain, lambda net, device: {"accumulate": 2}),
    "clipping": (plain, lambda net, device: {"clip": 0.05}),
    "two optimizers": (plain, lambda net, device: {"optimizer": optim.Together(
        optim.SGD(net.hidden.parameters(), lr=0.1), optim.Adam(net.out.parameters(), lr=0.01))}),
    "a number that changes after each epoch": (ends(EQUAL["an attribute"]), lambda net, device: {
        "callbacks": Cooled(net)}),
    "all together": (lambda net, first, second: {"logits": net.drop(both(net, first, second))}, lambda net, device: {
        "train": batches(device, lambda x: (x, ids(x)), WEIGHTS), "accumulate": 2, "clip": 0.1,
        "loss": lambda outputs, labels: by_image(outputs["logits"], labels), "callbacks": Cooled(net)})}
NUMPY = {"metrics": {"own": lambda outputs, labels: right_by_numpy(outputs.detach().cpu().numpy(),
                                                                   labels.cpu().numpy())}}


@pytest.mark.parametrize("what", tiered(OPTIONS, fast=5))
def test_what_fit_is_given_is_compiled(what: str) -> None:
    compare(OPTIONS[what][0], "cpu", OPTIONS[what][1])


@pytest.mark.gpu
@pytest.mark.parametrize("what", OPTIONS)
def test_gpu_what_fit_is_given_is_compiled(what: str) -> None:
    compare(OPTIONS[what][0], "cuda", OPTIONS[what][1])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_metric_in_numpy_is_refused(device: str) -> None:
    refused(plain, device, READS, lambda net, device: NUMPY)
