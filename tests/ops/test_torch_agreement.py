"""PyTorch as a third opinion: every op's result and gradients, and ten training steps of both nets, float64.

The problems are those of tests/cases.py that have values, and some with values that no difference could tell: equal
ones, large ones, zeros.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import ALGORITHMS, CASES, Case, edges, few_values, normal, of_classes, with_a_number
from tiers import marks

import minidl
from minidl import Tensor, init, nn, ops, optim, zoo

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
F = torch.nn.functional
torch.set_num_threads(1)                   # its threads would wait for each other on tiny arrays
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import torch_nets  # noqa: E402  # PyTorch and the folder first

RANDOM_BY_DESIGN = {"dropout", "dropout2d"}            # its mask is minidl's own
NO_GRADIENT = {"gt", "ge", "lt", "le", "eq", "ne", "argmax", "argmin", "argsort", "floor_divide", "one_hot", "unique"}
COMPARED = [name for name in CASES if name not in RANDOM_BY_DESIGN | NO_GRADIENT]


# ---------------------------------------------------------------- what PyTorch calls it
def axes_of(x: Any, axis: Any) -> tuple[int, ...]:
    return (*range(x.ndim),) if axis is None else axis if isinstance(axis, tuple) else (axis,)


def reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis, keepdims, **options: function(x, dim=axes_of(x, axis), keepdim=keepdims, **options)


def prod(x: Any, axis: Any, keepdims: bool) -> Any:
    """Of several axes, the last first."""
    for at in sorted((at % x.ndim for at in axes_of(x, axis)), reverse=True):
        x = torch.prod(x, at, keepdims)
    return x


def padded(x: Any, padding: Any, fill: float = 0.0) -> Any:
    """PyTorch's ops pad all sides of an axis alike, and poolings at most half a window; its `pad` has no limit."""
    top, bottom, left, right = edges(padding)
    return F.pad(x, (left, right, top, bottom), value=fill)


def conv2d(x: Any, *wb: Any, padding: Any = 0, algorithm: str = "auto", **options: Any) -> Any:
    return F.conv2d(padded(x, padding), *wb, **options)


def conv1d(x: Any, *wb: Any, padding: Any, algorithm: str, **options: Any) -> Any:
    return F.conv1d(F.pad(x, padding if isinstance(padding, tuple) else (padding, padding)), *wb, **options)


def conv3d(*xwb: Any, algorithm: str = "auto", **options: Any) -> Any:
    return F.conv3d(*xwb, **options)


def conv_transpose2d(*xwb: Any, stride: Any, padding: Any, output_padding: Any, algorithm: str = "auto") -> Any:
    """Where padding differs by side, it is cut off."""
    top, bottom, left, right = edges(padding)
    if (top, left) == (bottom, right):
        return F.conv_transpose2d(*xwb, stride=stride, padding=(top, left), output_padding=output_padding)
    y = F.conv_transpose2d(*xwb, stride=stride, output_padding=output_padding)
    return y[:, :, top:y.shape[2] - bottom, left:y.shape[3] - right]


def pooling(function: Callable[..., Any], fill: float) -> Callable[..., Any]:
    """Padding is PyTorch's own where it takes it, else `pad`."""
    def pooled(x: Any, *, size: Any, stride: Any = None, padding: Any = 0) -> Any:
        top, bottom, left, right = edges(padding)
        kh, kw = size if isinstance(size, tuple) else (size, size)
        if top == bottom <= kh // 2 and left == right <= kw // 2:
            return function(x, size, stride, (top, left))
        return function(padded(x, padding, fill), size, stride)
    return pooled


def batch_norm(x: Any, *affine: Any, eps: float = 1e-5, moments: Any = None) -> Any:
    mean, var = (None, None) if moments is None else (torch.tensor(each, dtype=torch.float64) for each in moments)
    return F.batch_norm(x, mean, var, *affine, training=moments is None, eps=eps)


def layer_norm(x: Any, *affine: Any, normalized_shape: Any, eps: float) -> Any:
    return F.layer_norm(x, normalized_shape if isinstance(normalized_shape, tuple) else (normalized_shape,), *affine,
                        eps=eps)


def of_labels(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *, labels, ignore_index=None, **options: function(
        x, labels, ignore_index=-100 if ignore_index is None else ignore_index, **options)


def attention(query: Any, *xs: Any, mask: Any = None, **options: Any) -> Any:
    """PyTorch broadcasts a mask to the leading axes of the query alone."""
    masked = () if mask is None else (torch.tensor(mask),)
    lead = torch.broadcast_shapes(*(x.shape[:-2] for x in (query, *xs)))
    return F.scaled_dot_product_attention(query.expand(*lead, *query.shape[-2:]), *xs, *masked, **options)


def recurrence(gx: Any, w: Any, state: Any, *b: Any, kind: str, reverse: bool = False) -> Any:
    """Its layers multiply inputs by weights: by 1, of inputs that are gx. They give the last c alone, so of an LSTM
    each step is a call."""
    if reverse:
        return recurrence(gx.flip(0), w, state, *b, kind=kind).flip(1)
    one = torch.eye(w.shape[0], dtype=gx.dtype)
    weights = [one, w, torch.zeros_like(b[0]), *b] if b else [one, w]
    how = bool(b), 1, 0.0, False, False, False         # layers, dropout, training, both directions, batch first
    if kind != "lstm":
        return {"gru": torch.gru, "tanh": torch.rnn_tanh}[kind](gx, state, weights, *how)[0][None]
    found, now = [], (state[:1], state[1:])
    for step in gx.split(1):
        now = torch.lstm(step, now, weights, *how)[1:]
        found.append(torch.stack(now))
    return torch.cat(found, 1)


def yes_or_no(x: Any, y: Any, *, reduction: str, positive: float | None) -> Any:
    factor = None if positive is None else torch.tensor(of_classes(positive, x.shape), dtype=x.dtype)
    return F.binary_cross_entropy_with_logits(x, y, reduction=reduction, pos_weight=factor)


#        op: PyTorch's, with minidl's options; of the others, the function of the same name
THEIRS: dict[str, Callable[..., Any]] = {
    **{name: reduction(function) for name, function in (
        ("sum", torch.sum), ("mean", torch.mean), ("max", torch.amax), ("min", torch.amin), ("var", torch.var),
        ("std", torch.std), ("norm", torch.linalg.vector_norm), ("logsumexp", torch.logsumexp))},
    "prod": prod,
    "transpose": lambda x, axes=None: x.permute((*range(x.ndim)[::-1],) if axes is None else axes),
    "flatten": lambda x, start: torch.flatten(x, start),
    "getitem": lambda x, index: x[index],
    "concatenate": lambda *xs, axis: torch.cat(xs, axis),
    "stack": lambda *xs, axis: torch.stack(xs, axis),
    "split": lambda x, sizes, axis: torch.cat(torch.split(x, sizes, axis)[::-1], axis),
    "squeeze": lambda x, axis=None: x.squeeze() if axis is None else x.squeeze(axis),
    "unsqueeze": lambda x, axis: x.unsqueeze(axis),
    "expand": lambda x, shape: x.expand(shape),
    "flip": lambda x, axis: x.flip(axes_of(x, axis)),
    "gather": lambda x, axis, index: torch.gather(x, axis, index),
    "cumsum": lambda x, axis: torch.cumsum(x, axis),
    "softmax": lambda x, axis: torch.softmax(x, axis),
    "log_softmax": lambda x, axis: torch.log_softmax(x, axis),
    "pad": lambda x, widths, value: F.pad(x, widths, value=value) if widths else x,
    "where": lambda x, y, condition: torch.where(condition, x, y),
    "clip": lambda x, low=None, high=None: torch.clamp(x, low, high),
    "einsum": lambda *xs, equation: torch.einsum(equation, *xs),
    "embedding": lambda w, ids, padding_idx=None: F.embedding(ids, w, padding_idx),
    # PyTorch's own has a gradient of 1/6 rounded to float32, of float64 values too.
    "hardsigmoid": lambda x: F.relu6(x + 3) / 6,
    "scaled_dot_product_attention": attention, "recurrence": recurrence,
    "conv2d": conv2d, "conv1d": conv1d, "conv3d": conv3d, "conv_transpose2d": conv_transpose2d,
    "avg_pool2d": pooling(F.avg_pool2d, 0.0), "max_pool2d": pooling(F.max_pool2d, -np.inf),
    "batch_norm": batch_norm, "layer_norm": layer_norm,
    "group_norm": lambda x, *affine, num_groups, eps: F.group_norm(x, num_groups, *affine, eps=eps),
    "cross_entropy": of_labels(F.cross_entropy), "nll_loss": of_labels(F.nll_loss),
    "binary_cross_entropy_with_logits": yes_or_no, "kl_div": F.kl_div,
}


def theirs(case: Case) -> Callable[..., Any]:
    """PyTorch's function of a case's Tensors."""
    call = THEIRS.get(case.op) or getattr(torch, case.op, None) or getattr(F, case.op)
    options = {name: torch.tensor(value) if isinstance(value, (np.ndarray, np.generic)) else value
               for name, value in case.options.items()}
    if options.keys() & {"first", "second"}:
        call, options = with_a_number(call), {place: torch.tensor(value, dtype=torch.float64)
                                              for place, value in options.items()}
    if case.op == "getitem":
        index = options["index"]
        options["index"] = tuple(torch.tensor(each) if isinstance(each, np.ndarray) else each for each in index
                                 ) if isinstance(index, tuple) else index
    return functools.partial(call, **options)


# ---------------------------------------------------------------- other values
def large(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """For functions that saturate."""
    return 100 * normal(rng, shape)


def halves(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values of which some are as far from one integer as from the next."""
    return np.asarray(rng.integers(-6, 7, shape) / 2)


def far(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return 100 + normal(rng, shape)


def equal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """No variance: the root has no slope."""
    return np.full(shape, 1.5)


def of_two_values(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, 2, shape).astype(float)


OTHER_VALUES: dict[str, Any] = {
    **dict.fromkeys((*ops.ACTIVATIONS, "silu", "sin", "cos", "softmax", "log_softmax", "logsumexp", "cross_entropy",
                     "l1_loss", "huber_loss", "binary_cross_entropy_with_logits"), large),
    **dict.fromkeys(("max", "min", "maximum", "minimum", "clip", "sign", "prod", "norm"), few_values),
    **dict.fromkeys(("round", "floor", "ceil"), halves), **dict.fromkeys(("var", "std"), equal), "batch_norm": far,
    "max_pool2d": of_two_values}


def some(case: Case) -> bool:
    """Whether there are values, and PyTorch takes the call: it has no steps back."""
    steps = case.options.get("index", ())
    return all(map(all, case.shapes)) and not any(
        isinstance(step, slice) and (step.step or 1) < 0 for step in (steps if isinstance(steps, tuple) else (steps,)))


def more(op: str) -> Iterable[Case]:
    """Cases that no reference in NumPy has."""
    if op == "matmul":
        for shapes in (((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((4, 2, 3), (3,)), ((3,), (4, 3, 2))):
            yield Case(op, lambda x, y: x @ y, None, shapes, {}, normal)
    elif op == "remainder":
        for place in ("first", "second"):
            yield Case(op, with_a_number(ops.remainder), None, ((3, 4),), {place: 0.7}, CASES[op][0].draw)
    elif op == "kl_div":
        for shape, log_target, reduction in itertools.product(
                [(5,), (3, 4), (2, 3, 4)], (False, True), ("mean", "sum", "none", "batchmean")):
            yield Case(op, ops.kl_div, None, (shape, shape), {"log_target": log_target, "reduction": reduction},
                       CASES[op][0].draw)
        yield Case(op, lambda x, *, target, **options: ops.kl_div(x, Tensor(target), **options), None, ((3, 4),),
                   {"target": np.tile([0.0, 0.25, 0.0, 0.75], (3, 1)), "reduction": "batchmean"}, normal)
    elif op == "embedding":
        for rows, ids in itertools.product((1, 3, 7), ((), (4,), (3, 2))):
            yield Case(op, lambda w, *, ids, padding_idx: ops.embedding(Tensor(ids), w, padding_idx=padding_idx), None,
                       ((rows, 4),), {"ids": np.arange(np.prod(ids, dtype=int)).reshape(ids) % rows,
                                      "padding_idx": rows // 2}, normal)
    elif op == "conv3d":
        for padding in ("same", "valid"):
            yield Case(op, ops.conv3d, None, ((2, 2, 5, 4, 6), (3, 2, 3, 2, 1), (3,)), {"padding": padding}, normal)


def cases_of(op: str) -> list[Case]:
    cases = [case for case in (*CASES[op], *more(op)) if some(case)]
    return cases + [dataclasses.replace(case, draw=OTHER_VALUES[op]) for case in cases if op in OTHER_VALUES]


def assert_close(ours: np.ndarray, theirs: np.ndarray, bound: float = 1e-10) -> None:
    """Equal to `bound` relative to max(1, |PyTorch's|)."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    error = np.abs(ours - theirs) / np.maximum(1, np.abs(theirs))
    worst = np.max(error, initial=0.0)
    assert worst <= bound, f"off by {worst:.3g}, {worst / bound:.3g} times the bound"


def check(case: Case) -> None:
    ours = [Tensor(x, requires_grad=True) for x in case.arrays()]
    twins = [torch.tensor(x, requires_grad=True) for x in case.arrays()]
    y, expected = case.call(*ours, **case.options), theirs(case)(*twins)
    assert_close(y.numpy(), expected.detach().numpy())
    gy = normal(np.random.default_rng(0), y.shape)
    y.backward(Tensor(gy))
    expected.backward(torch.tensor(gy))
    for x, z in zip(ours, twins, strict=True):
        assert_close(x.grad.numpy(), z.grad.numpy())


def each_case(cases: list[Case], check: Callable[[Case], None]) -> None:
    failures = []
    for case in cases:
        try:
            check(case)
        except Exception as error:
            failures.append(f"{case}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    assert not failures, f"{len(failures)} of {len(cases)} failed:\n" + "\n".join(failures)


@pytest.mark.parametrize("op", COMPARED)
def test_op(op: str) -> None:
    each_case(cases_of(op), check)


def test_every_differentiable_op_is_compared() -> None:
    """On shapes of all kinds; convolutions by each algorithm."""
    assert {*COMPARED} >= ops.OPS.keys() - NO_GRADIENT - RANDOM_BY_DESIGN
    for op in COMPARED:
        assert len({case.shapes for case in cases_of(op)}) >= 20, op
    assert {case.options["algorithm"] for case in cases_of("conv2d")} == {*ALGORITHMS}


@pytest.mark.parametrize("call", [
    lambda x: x.repeat(2, 1, 2, 1), lambda x: x.flip(0, 2), lambda x: x.swapaxes(0, 2), lambda x: x.movedim(0, -1),
    lambda x: x.permute(2, 0, 1), lambda x: x.squeeze(1), lambda x: x.unsqueeze(-2), lambda x: x.logsumexp((0, 2)),
    lambda x: x.topk(1, 2)[0], lambda x: x.narrow(1, 0, 1), lambda x: x.select(0, -1), lambda x: x.unbind(1)[0],
    lambda x: x.chunk(2, 2)[0], lambda x: x.mT, lambda x: x.clone(), lambda x: x.flatten(1), lambda x: x.square(),
    lambda x: x.sort(0, True)[0], lambda x: x.sort(2)[0], lambda x: x.sum(), lambda x: x.mean()])
def test_methods_of_several_ops(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(THEIRS, "methods", call)
    shapes = itertools.product((1, 4), (1, 3), (1, 3))
    each_case([Case("methods", call, None, (shape,), {}, normal) for shape in shapes], check)


# ---------------------------------------------------------------- running values
@pytest.mark.parametrize(("ours", "theirs", "sizes"), [
    ("BatchNorm2d", torch.nn.BatchNorm2d, (4, 3)), ("BatchNorm2d", torch.nn.BatchNorm2d, (1, 1)),
    ("BatchNorm1d", torch.nn.BatchNorm1d, ()), ("BatchNorm1d", torch.nn.BatchNorm1d, (5,))])
@pytest.mark.parametrize("momentum", [0.1, 0.0, 1.0])
def test_running_values(ours: str, theirs: Any, sizes: tuple[int, ...], momentum: float) -> None:
    """After each of five steps, on batches of any size, and what evaluation makes of them."""
    rng = np.random.default_rng(5)
    layer = getattr(nn, ours)(3, momentum=momentum).to(dtype="float64")
    twin = theirs(3, momentum=momentum, dtype=torch.float64)
    layer.load_state_dict(twin.state_dict())
    twin.load_state_dict({name: torch.tensor(values) for name, values in layer.state_dict().items()})
    for n in (4, 2, 7, 3, 16):
        x = 5 + 3 * normal(rng, (n, 3, *sizes))
        assert_close(layer.train()(Tensor(x)).numpy(), twin.train()(torch.tensor(x)).detach().numpy())
        for name in ("running_mean", "running_var"):
            assert_close(getattr(layer, name).numpy(), getattr(twin, name).numpy())
        assert_close(layer.eval()(Tensor(x)).numpy(), twin.eval()(torch.tensor(x)).detach().numpy())


@pytest.mark.parametrize("make", [
    lambda nn: nn.BatchNorm2d(4, affine=False), lambda nn: nn.BatchNorm2d(4, track_running_stats=False).eval(),
    lambda nn: nn.GroupNorm(2, 4, affine=False), lambda nn: nn.LayerNorm((3, 5), elementwise_affine=False),
    lambda nn: nn.LayerNorm(5, bias=False), lambda nn: nn.AdaptiveAvgPool2d((2, None)), lambda nn: nn.Identity(7)])
def test_layers_of_either_library(make: Callable[[Any], Any]) -> None:
    x, layer, twin = normal(np.random.default_rng(6), (2, 4, 3, 5)), make(nn), make(torch.nn)
    state = {name: values for name, values in twin.state_dict().items() if not name.endswith(COUNTS)}
    assert {name: values.shape for name, values in layer.state_dict().items()} == {
        name: tuple(values.shape) for name, values in state.items()}
    assert_close(layer.double()(Tensor(x)).numpy(), twin.double()(torch.tensor(x)).detach().numpy())


# ---------------------------------------------------------------- training
SETTINGS = {
    "momentum, weight decay": {"momentum": 0.9, "weight_decay": 5e-4},
    "nesterov": {"momentum": 0.9, "weight_decay": 5e-4, "nesterov": True},
    "plain": {},
}
NETS: dict[str, dict[str, int]] = {"lenet5": {}, "krizhevsky2009": {}, "cifar10-quick": {}, "cifar10-18": {},
                                   "alexnet": {"width": 6, "hidden": 20}, "resnet": {"depth": 14, "width": 4},
                                   "resnet-224": {"width": 4}, "autoencoder": {"width": 4, "code": 8},
                                   "table-mlp": {"classes": 10}, "airbench": {"width": 4}}
COUNTS = "num_batches_tracked"             # which PyTorch keeps beside running values


def without_dropout(net: Any) -> Any:
    """Its masks are minidl's own. What normalises by the batch goes on doing so."""
    for each in net.modules():
        if type(each).__name__ == "Dropout":
            each.eval()
    return net


def items_of(model: str, count: int, rng: np.random.Generator) -> np.ndarray:
    return normal(rng, (count, *zoo.MODELS[model].shape))


def test_weights_of_pytorch_load_as_they_are() -> None:
    """In evaluation: without dropout, whose masks are minidl's own, and by running values."""
    for model, options in NETS.items():
        net, twin = zoo.build(model, **options).eval(), torch_nets.build(model, **options).eval()
        net.load_state_dict(twin.state_dict())
        items = items_of(model, 4, np.random.default_rng(3)).astype(np.float32)
        np.testing.assert_allclose(net(Tensor(items)).numpy(), twin(torch.tensor(items)).detach().numpy(),
                                   rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("model", "setting"), [
    pytest.param(model, setting, marks=marks("slow" if setting == "nesterov" or model == "lenet5" else "deep"))
    for model in NETS for setting in SETTINGS])
def test_ten_training_steps(model: str, setting: str) -> None:
    minidl.manual_seed(1)
    net = zoo.build(model, **NETS[model])
    to_itself = zoo.MODELS[model].target == "image"
    if not to_itself:
        init.kaiming_uniform_(net.output.weight)           # at 0, as one starts, the first layers would hardly move
    without_dropout(net.to(dtype="float64"))
    twin = without_dropout(torch_nets.build(model, net.state_dict(), torch.float64, **NETS[model]))
    assert list(net.state_dict()) == [name for name in twin.state_dict() if not name.endswith(COUNTS)]
    before = net.state_dict()
    lr, count = (0.002, 2) if model == "alexnet" else (0.05, 3) if model == "resnet-224" else (0.1, 16)
    learning = {name for name, _ in net.named_parameters()} | {name for name in before if "running" in name}
    assert learning == {name for name, p in twin.named_parameters() if p.requires_grad} | {
        name for name in before if "running" in name}
    sgd = optim.SGD(net.parameters(), lr=lr, **SETTINGS[setting])
    twin_sgd = torch.optim.SGD(twin.parameters(), lr=lr, **SETTINGS[setting])
    rng = np.random.default_rng(2)
    losses = []
    for _ in range(10):
        items, labels = items_of(model, count, rng), rng.integers(0, 10, count)
        sgd.zero_grad()
        x, twin_x = Tensor(items), torch.tensor(items)
        loss = net.loss(net(x), x) if to_itself else ops.cross_entropy(net(x), labels)
        loss.backward()
        sgd.step()
        twin_sgd.zero_grad()
        twin_loss = (F.mse_loss(twin(twin_x), twin_x) if to_itself else
                     F.cross_entropy(twin(twin_x), torch.tensor(labels)))
        twin_loss.backward()
        twin_sgd.step()
        losses.append((loss.item(), twin_loss.item()))
    np.testing.assert_allclose(*np.array(losses).T, rtol=1e-8)
    for name, ours in net.state_dict().items():
        assert_close(ours, twin.state_dict()[name].numpy(), 1e-8)
        moved = np.abs(ours - before[name]).max()
        assert moved > 1e-4 if name in learning else moved == 0, f"{name} moved by {moved}"
