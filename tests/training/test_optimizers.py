"""Adam, AdamW, RMSprop and Muon beside PyTorch's, plain and compiled; clipped gradients, averaged weights, plateaus."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.steps import assert_same_bits, bits, dense, names, vectors

import minidl
from minidl import Tensor, data, nn, ops, optim, training
from minidl.ops import cpu
from minidl.optim.muon import orthogonal

SHAPES = [(4, 3), (5,), (2, 3, 3, 2), ()]
MATRICES = [(4, 3), (3, 7), (4, 3), (5, 2, 3, 1)]
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "Adam": [{}, {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3}, {"weight_decay": 0.1}],
    "AdamW": [{}, {"lr": 0.1, "weight_decay": 0.0}, {"weight_decay": 0.5, "betas": (0.0, 0.99)}],
    "RMSprop": [{}, {"momentum": 0.9}, {"centered": True, "alpha": 0.9}, {"weight_decay": 0.1, "eps": 1e-3},
                {"lr": 0.1, "momentum": 0.5, "centered": True, "weight_decay": 0.1}],
    "Muon": [{}, {"lr": 0.1, "nesterov": False}, {"weight_decay": 0.0, "momentum": 0.5},
             {"ns_steps": 3, "momentum": 0.6}]}
EACH = [(name, settings) for name, several in SETTINGS.items() for settings in several]


def parameters(name: str, dtype: Any = np.float64) -> list[Tensor]:
    rng = np.random.default_rng(0)
    return [Tensor(np.array(rng.standard_normal(shape), dtype), requires_grad=True)
            for shape in (MATRICES if name == "Muon" else SHAPES)]


def give_gradients(params: list[Tensor], step: int) -> list[np.ndarray | None]:
    """One parameter has none each fifth step."""
    rng = np.random.default_rng([1, step])
    grads = [None if step % 5 == 3 and i == 1 else np.array(rng.standard_normal(p.shape)) for i, p in enumerate(params)]
    for p, g in zip(params, grads, strict=True):
        p.grad = None if g is None else Tensor(g.astype(p.dtype))
    return grads


# ---------------------------------------------------------------- beside PyTorch
@pytest.mark.torch
@pytest.mark.parametrize(("name", "settings"), EACH, ids=str)
def test_a_hundred_steps_are_pytorchs(name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, with a rate that changes. PyTorch's Muon knows matrices alone, and would round them to bfloat16."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, name):
        pytest.skip(f"this PyTorch has no {name}")
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.clone())
    params = parameters(name)
    flat = [(len(p), -1) if name == "Muon" else p.shape for p in params]
    twins = [torch.tensor(p.numpy().reshape(shape).copy(), requires_grad=True)
             for p, shape in zip(params, flat, strict=True)]
    ours, theirs = (getattr(place, name)(given, **settings) for place, given in ((optim, params),
                                                                                (torch.optim, twins)))
    lr = ours.lr
    assert all(theirs.param_groups[0][each] == ours.groups[0][each] for each in ours.numbers if each != "normalized")
    for step in range(100):
        for twin, g, shape in zip(twins, give_gradients(params, step), flat, strict=True):
            twin.grad = None if g is None else torch.tensor(g.reshape(shape))
        ours.lr = theirs.param_groups[0]["lr"] = lr / (1 + step % 7)
        ours.step()
        theirs.step()
    for p, twin in zip(params, twins, strict=True):
        np.testing.assert_allclose(p.numpy().ravel(), twin.detach().numpy().ravel(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", [(3, 4, 4), (2, 7, 3), (1, 3, 9), (1, 1, 1)])
def test_orthogonal_keeps_the_singular_vectors(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape)
    y = orthogonal(cpu, x)
    u, _, vt = np.linalg.svd(x, full_matrices=False)
    values = u.swapaxes(1, 2) @ y @ vt.swapaxes(1, 2)
    diagonal = np.diagonal(values, axis1=1, axis2=2)
    np.testing.assert_allclose(values, diagonal[..., None] * np.eye(min(shape[1:])), atol=1e-10)
    assert ((diagonal > 0.3) & (diagonal < 1.3)).all()


def test_a_matrix_of_zeros_stays() -> None:
    np.testing.assert_array_equal(orthogonal(cpu, np.zeros((2, 3, 4))), 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normalized_parameters_have_the_length_of_their_rows_before_an_update(dtype: Any) -> None:
    """By the definition of airbench94_muon: first the length, then the step; all by NumPy."""
    params = parameters("Muon", dtype)
    muon = optim.Muon(params, lr=0.1, weight_decay=0.0, momentum=0.6, ns_steps=3, normalized=True)
    values, means = [p.numpy().astype(float) for p in params], [np.zeros(p.shape) for p in params]
    for step in range(4):
        grads = give_gradients(params, step)
        muon.step()
        for i, g in enumerate(grads):
            if g is None:
                continue
            means[i] = 0.6 * means[i] + 0.4 * g
            matrix = (0.4 * g + 0.6 * means[i]).reshape(1, len(g), -1)
            update = max(1, matrix.shape[1] / matrix.shape[2]) ** 0.5 * orthogonal(cpu, matrix, 3)
            values[i] = values[i] * (len(g) ** 0.5 / np.linalg.norm(values[i])) - 0.1 * update.reshape(g.shape)
    for p, value in zip(params, values, strict=True):
        np.testing.assert_allclose(p.numpy(), value, rtol=0, atol=100 * np.finfo(dtype).eps)
    for p in params:
        p.grad = Tensor(np.zeros(p.shape, dtype))
        muon._array("means", p)[...] = 0
    muon.step()
    assert [float(np.linalg.norm(p.numpy())) for p in params] == pytest.approx([len(p) ** 0.5 for p in params])


@pytest.mark.parametrize(("settings", "iterations", "updates"), [
    ({}, 5, 1), ({"ns_steps": 3, "normalized": True}, 3, 2)])
def test_matrices_of_one_shape_go_together(settings: dict[str, Any], iterations: int, updates: int) -> None:
    params = parameters("Muon", np.float32)
    muon = optim.Muon(params, **settings)

    def step() -> None:
        muon.zero_grad()
        sum((p * p).sum() for p in params).backward()       # type: ignore[union-attr]
        muon.step()

    compiled = minidl.compile(step)
    for _ in range(2):
        compiled()
    counts = names(compiled.recorded)
    products = sum(name.startswith("matmul") for name in counts)
    assert products == 3 * iterations * 3                                # three shapes
    assert (counts.count("ema"), counts.count("sgd")) == (1, updates)


def launches_of(shapes: list[tuple[int, ...]]) -> int:
    """Calls of a compiled step of airbench's Muon that compute something; on CUDA each is a launch, or two."""
    params = [Tensor(np.ones(shape, np.float32), requires_grad=True) for shape in shapes]
    muon = optim.Muon(params, weight_decay=0.0, momentum=0.6, ns_steps=3, normalized=True)
    for p in params:
        p.grad = Tensor(np.random.default_rng(0).standard_normal(p.shape).astype(np.float32))
    step: Any = minidl.compile(muon.step)
    for _ in range(3):
        step()
    return sum(not call.known.shares for call in step.program.calls)


def test_launches_do_not_grow_with_the_number_of_filters() -> None:
    """Nor is there more than one for each product of an iteration."""
    assert launches_of([(4, 3, 3, 3)]) == 27
    assert launches_of([(4, 3, 3, 3)] * 2) == launches_of([(4, 3, 3, 3)] * 5) == 30
    assert launches_of([(4, 3, 3, 3)] * 2 + [(5, 7)] * 3) == 57


# ---------------------------------------------------------------- what all of them share
@pytest.mark.parametrize(("name", "settings"), EACH, ids=str)
def test_float32_stays_float32_in_place(name: str, settings: dict[str, Any]) -> None:
    params = parameters(name, np.float32)
    arrays = [p.data for p in params]
    optimizer = getattr(optim, name)(params, **settings)
    for step in range(3):
        give_gradients(params, step)
        optimizer.step()
    assert all(p.data is array and array.dtype == np.float32 for p, array in zip(params, arrays, strict=True))


@pytest.mark.parametrize(("name", "settings"), EACH, ids=str)
def test_a_state_goes_on_in_the_same_bits(name: str, settings: dict[str, Any]) -> None:
    """By state_dict, by pickle, by deepcopy, and after the model was moved to float64 and back."""
    def go(params: list[Tensor], optimizer: Any, steps: range) -> list[bytes]:
        for step in steps:
            give_gradients(params, step)
            optimizer.step()
        return [bits(p) for p in params]

    params = parameters(name, np.float32)
    optimizer = getattr(optim, name)(params, **settings)
    go(params, optimizer, range(4))
    twins = [copy.deepcopy((params, optimizer)), pickle.loads(pickle.dumps((params, optimizer)))]
    fresh = [Tensor(p.numpy().copy(), requires_grad=True) for p in params]
    other = type(optimizer)(fresh, lr=7.0)
    other.load_state_dict(optimizer.state_dict())
    expected = go(params, optimizer, range(4, 8))
    for twin in (*twins, (fresh, other)):
        assert go(*twin, range(4, 8)) == expected
    assert other.groups[0] == {**optimizer.groups[0], "params": fresh}


def swapped(state: Any) -> Any:
    """A state whose arrays are in the other byte order."""
    if isinstance(state, dict):
        return {name: swapped(each) for name, each in state.items()}
    if isinstance(state, list):
        return [swapped(each) for each in state]
    return state.astype(state.dtype.newbyteorder("S")) if isinstance(state, np.ndarray) else state


@pytest.mark.parametrize("name", ["SGD", *SETTINGS, "EMA"])
def test_a_state_in_another_byte_order_is_taken_in_the_machines(name: str) -> None:
    """As a checkpoint of another machine, or another library, may have it."""
    def make() -> tuple[list[Tensor], Any]:
        params = parameters(name, np.float32)
        return params, getattr(optim, name)(params, **({"momentum": 0.9, "lr": 0.1} if name == "SGD" else {}))

    ends = []
    for change in (lambda state: state, swapped):
        params, first = make()
        give_gradients(params, 0)
        (first.update if name == "EMA" else first.step)()
        params, second = make()
        params[0].data[...] += 1
        second.load_state_dict(change(first.state_dict()))
        give_gradients(params, 1)
        (second.update if name == "EMA" else second.step)()
        ends.append((second.state_dict(), [p.numpy() for p in params]))
    (plain, values), (from_swapped, other) = ends
    np.testing.assert_equal(from_swapped, plain)
    np.testing.assert_equal(other, values)
    kept = plain["averages"] if name == "EMA" else [each for one in from_swapped["groups"] for part in one.values()
                                                    if isinstance(part, list) for each in part]
    assert all(each.dtype.isnative for each in kept if isinstance(each, np.ndarray))


@pytest.mark.parametrize("name", SETTINGS)
def test_forget_is_as_before_the_first_step(name: str) -> None:
    found = []
    for forget in (False, True):
        params = parameters(name)
        optimizer = getattr(optim, name)(params, lr=0.1)
        if forget:
            before = [p.numpy().copy() for p in params]
            give_gradients(params, 0)
            optimizer.step()
            optimizer.forget()
            for p, values in zip(params, before, strict=True):
                p.data[...] = values
        give_gradients(params, 1)
        optimizer.step()
        found.append([bits(p) for p in params])
    assert found[0] == found[1]


def test_a_recipes_muon_is_for_matrices_and_adamw_for_the_rest() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    make, numbers = optim.OPTIMIZERS["muon"]
    matrices, others = make(net.parameters(), **numbers).groups
    assert [[p.ndim for p in group["params"]] for group in (matrices, others)] == [[4, 2], [1, 1]]
    assert (matrices["lr"], matrices["momentum"], matrices["weight_decay"]) == (0.02, 0.95, 1e-2)
    assert (others["lr"], others["weight_decay"]) == (0.001, 0.0)


def test_a_recipes_muon_takes_a_net_of_one_kind() -> None:
    make, numbers = optim.OPTIMIZERS["muon"]
    for net, kind in ((nn.Linear(3, 2, bias=False), optim.Muon), (nn.LayerNorm(3), optim.AdamW)):
        made, = make(net.parameters(), **numbers).optimizers   # type: ignore[attr-defined]  # it is a Together
        assert isinstance(made, kind)
        assert [id(p) for group in made.groups for p in group["params"]] == [id(p) for p in net.parameters()]
    with pytest.raises(ValueError, match=r"^Muon: got 0 parameters"):
        make([], **numbers)


def test_steps_are_counted_of_each_parameter() -> None:
    params = parameters("Adam")
    adam = optim.Adam(params)
    for step in range(5):
        give_gradients(params, step)
        adam.step()
    steps = adam.state_dict()["groups"][0]["steps"]
    assert [each.tolist() for each in steps] == [[5], [4], [5], [5]]
    assert {(each.dtype, each.shape) for each in steps} == {(np.dtype(np.int64), (1,))}


def test_a_model_that_is_converted_keeps_its_averages() -> None:
    net = nn.Linear(3, 2)
    adam = optim.Adam(net.parameters())
    for dtype in ("float32", "float64"):
        net.to(dtype=dtype)
        for p in net.parameters():
            p.grad = Tensor(np.ones(p.shape, dtype))
        adam.step()
    state = adam.state_dict()["groups"][0]
    assert {array.dtype.name for array in state["means"] + state["squares"]} == {"float64"}
    assert [array.tolist() for array in state["steps"]] == [[2], [2]]


def test_groups_are_found_by_their_names() -> None:
    params = parameters("Adam")
    adam = optim.AdamW([{"params": params[:2], "name": "decay", "weight_decay": 0.1},
                        {"params": params[2:], "weight_decay": 0.0}], lr=0.1)
    assert adam.group("decay") is adam.groups[0]
    adam.group("decay")["lr"] = 0.5
    assert [group["lr"] for group in adam.groups] == [0.5, 0.1]
    with pytest.raises(ValueError, match=re.escape(
            "AdamW.group: there is no 'bias' among the groups' names ['decay', None]; give it with the group, {")):
        adam.group("bias")
    assert [group["name"] for group in adam.state_dict()["groups"]] == ["decay", None]


W = Tensor([1.0], requires_grad=True)
M = Tensor([[1.0]], requires_grad=True)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: optim.Adam([W], lr=-1), r"Adam: lr is -1 but must be a finite number of at least 0$"),
    (lambda: optim.Adam([W], betas=0.9), r"Adam: betas is 0\.9 but must be two numbers from 0 to below 1$"),  # type: ignore[arg-type]
    (lambda: optim.Adam([W], betas=(0.9, 1.0)), r"Adam: betas is \(0\.9, 1\.0\) but must be two numbers from 0 to"),
    (lambda: optim.AdamW([W], betas=(0.9,)), r"AdamW: betas is \(0\.9,\) but must be two numbers"),  # type: ignore[arg-type]
    (lambda: optim.AdamW([W], eps=-1), r"AdamW: eps is -1 but must be a finite number of at least 0$"),
    (lambda: optim.RMSprop([W], alpha=1), r"RMSprop: alpha is 1 but must be a number from 0 to below 1$"),
    (lambda: optim.RMSprop([]), r"RMSprop: got 0 parameters but needs at least 1; pass model\.parameters\(\)$"),
    (lambda: optim.Muon([W]), r"Muon: a parameter has shape \(1,\) but must be a matrix or filters; give biases and"),
    (lambda: optim.Muon([M], momentum=1), r"Muon: momentum is 1 but must be below 1$"),
    (lambda: optim.Muon([M], ns_steps=0), r"Muon: ns_steps is 0 but must be an int of at least 1$"),
    (lambda: optim.Adam([{"params": [W], "momentum": 1}]),
     r"Adam: a parameter group has keys \['momentum', 'params'\] but must have 'params' and may have name, lr, betas,"),
    (lambda: optim.clip_grad_norm([W], 0), r"clip_grad_norm: max_norm is 0 but must be a number above 0$"),
    (lambda: optim.clip_grad_value([W], "1"), r"clip_grad_value: value is '1' but must be a number above 0$"),  # type: ignore[arg-type]
    (lambda: optim.clip_grad_norm([M], 1), r"clip_grad_norm: none of 1 parameters has a gradient and is not frozen;"),
    (lambda: optim.EMA([W], decay=1.0), r"EMA: decay is 1\.0 but must be a number from 0 to below 1$"),
    (lambda: optim.EMA([]), r"EMA: got 0 parameters but needs at least 1; pass a Module, or Tensors$"),
    (lambda: optim.EMA([W, M, W]), "EMA: 3 parameters were given but only 2 are different; name each once$"),
    (lambda: optim.EMA([("a", W), ("b", W)]), "EMA: 2 parameters were given but only 1 are different; name each once$"),
    (lambda: optim.EMA([W]).load_state_dict({}), r"EMA\.load_state_dict: the state is a dict but must be what"),
    (lambda: optim.EMA([W]).load_state_dict({"decay": 0.9, "averages": [np.ones(2)]}),
     r"EMA\.load_state_dict: the averages are \(2,\) float64 but the parameters are \(1,\) float32; build the EMA"),
    (lambda: optim.Plateau(optim.SGD([W], 0.1), factor=1.0),
     r"Plateau: factor is 1\.0 but must be a number of at least 0 and below 1$"),
    (lambda: optim.Plateau(optim.SGD([W], 0.1), min_lr=-1),
     r"Plateau: min_lr is -1 but must be a number of at least 0$"),
    (lambda: optim.Plateau(optim.SGD([W], 0.1), patience=1.5),  # type: ignore[arg-type]
     r"Plateau: patience is 1\.5 but must be an int of at least 0$"),
    (lambda: optim.Plateau(optim.SGD([W], 0.1), metric="loss").on_epoch_end({"epoch": 1}),
     r"Plateau: metric is 'loss' but an epoch has epoch$"),
    (lambda: optim.step(2, gamma=-1), "step: gamma is -1 but must be a finite number of at least 0$"),
    (lambda: optim.linear(3, end=-1.0), r"linear: end is -1\.0 but must be a finite number of at least 0$"),
    (lambda: optim.cosine(3, end=float("nan")), "cosine: end is nan but must be a finite number of at least 0$"),
    (lambda: optim.one_cycle(3, start=-0.1), r"one_cycle: start is -0\.1 but must be a finite number of at least 0$"),
    (lambda: optim.one_cycle(3, end=-0.1), r"one_cycle: end is -0\.1 but must be a finite number of at least 0$"),
    (lambda: optim.linear(3, end="0"), "linear: end is '0' but must be a finite number of at least 0$"),  # type: ignore[arg-type]
    (lambda: optim.one_cycle(0), r"one_cycle: total is 0 but must be an int of at least 1$"),
    (lambda: optim.one_cycle(9, rise=2), r"one_cycle: rise is 2 but must be a share from 0 to 1$"),
])
def test_refuses(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


def set_to(make: Callable[[], Any], name: str, value: object, how: str) -> Any:
    """Set a number of the first group in one of all ways; the optimizer."""
    optimizer = make()
    group = optimizer.groups[0]
    if how == "attribute":
        setattr(optimizer, name, value)
    elif how == "entry":
        group[name] = value
    elif how == "update":
        group.update({name: value})
    elif how == "|=":
        group |= {name: value}
    elif how == "setdefault":
        group.pop(name, None)
        group.setdefault(name, value)
    else:
        state = optimizer.state_dict()
        state["groups"][0][name] = value
        optimizer.load_state_dict(state)
    return optimizer


SGD, NESTEROV = lambda: optim.SGD([W], 0.1, momentum=0.9), lambda: optim.SGD([W], 0.1, 0.9, nesterov=True)


@pytest.mark.parametrize("how", ["attribute", "entry", "update", "|=", "state"])
@pytest.mark.parametrize(("make", "name", "value", "message"), [
    (lambda: optim.Muon([M]), "ns_steps", 0, "Muon: ns_steps is 0 but must be an int of at least 1"),
    (lambda: optim.Muon([M]), "ns_steps", 2.5, "Muon: ns_steps is 2.5 but must be an int of at least 1"),
    (lambda: optim.Muon([M]), "momentum", 1.5, "Muon: momentum is 1.5 but must be below 1"),
    (lambda: optim.Together(optim.Muon([M]), SGD()), "momentum", 1.5, "Muon: momentum is 1.5 but must be below 1"),
    (SGD, "momentum", -0.1, "SGD: momentum is -0.1 but must be a finite number of at least 0"),
    (SGD, "lr", float("nan"), "SGD: lr is nan but must be a finite number of at least 0"),
    (NESTEROV, "momentum", 0, "SGD: nesterov=True needs a momentum but momentum is 0; set momentum above 0"),
    (lambda: optim.SGD([W], 0.1), "nesterov", True, "SGD: nesterov=True needs a momentum but momentum is 0; set"),
    (lambda: optim.Adam([W]), "betas", (0.9, 1.0), "Adam: betas is (0.9, 1.0) but must be two numbers from 0 to below"),
    (lambda: optim.RMSprop([W]), "alpha", 1.0, "RMSprop: alpha is 1.0 but must be a number from 0 to below 1"),
])
def test_numbers_that_cannot_be_are_refused_wherever_they_are_set(
        make: Callable[[], Any], name: str, value: object, message: str, how: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        set_to(make, name, value, how)
    optimizer = make()
    before = [dict(group) for group in optimizer.groups]
    with pytest.raises(ValueError, match="but"):
        set_to(lambda: optimizer, name, value, how)
    assert [dict(group) for group in optimizer.groups] == before


@pytest.mark.parametrize("how", ["entry", "update", "|=", "setdefault"])
@pytest.mark.parametrize(("name", "value"), [("weightdecay", 0.1), ("learning_rate", 1.0), ("betas", (0.9, 0.99)),
                                             ("initial_lr", 0.1), (0, 1), ("Momentum", 0.9)])
def test_a_number_that_no_update_reads_is_refused(name: str, value: object, how: str) -> None:
    with pytest.raises(ValueError, match=rf"^SGD: a group has no {name!r} but lr, momentum, weight_decay, nesterov,"):
        set_to(SGD, name, value, how)


@pytest.mark.parametrize(("make", "name", "numbers"), [
    (SGD, "learning_rate", "lr, momentum, weight_decay, nesterov"), (SGD, "weightdecay", "lr, momentum"),
    (SGD, "dampening", "lr"), (lambda: optim.Adam([W]), "amsgrad", "lr, betas, eps, weight_decay"),
    (lambda: optim.Together(SGD(), optim.AdamW([M])), "learning_rate", "lr, .*, nesterov, betas, eps")])
def test_an_attribute_that_no_update_reads_is_refused(make: Callable[[], Any], name: str, numbers: str) -> None:
    """It was taken, and did nothing. A subclass may have attributes of its own."""
    optimizer = make()
    title = type(optimizer).__name__
    with pytest.raises(AttributeError, match=rf"^{title}: updates read {numbers}.* but no {name}; set one of these"):
        setattr(optimizer, name, 0.1)
    assert not hasattr(optimizer, name)
    own: Any = type("Own", (optim.SGD,), {})([W], 0.1)
    own.learning_rate = 0.1
    for each in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        each.lr = 0.5
        assert {group["lr"] for group in each.groups} == {0.5}


@pytest.mark.parametrize("value", [5e-4, 1, "yes", None])
@pytest.mark.parametrize(("make", "name"), [
    (lambda **options: optim.SGD([W], 0.1, 0.9, **options), "nesterov"), (lambda **options: optim.Muon([M], **options),
                                                                         "nesterov"),
    (lambda **options: optim.RMSprop([W], **options), "centered"),
    (lambda **options: optim.Muon([M], **options), "normalized")])
def test_flags_are_true_or_false(make: Callable[..., Any], name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^(SGD|Muon|RMSprop): {name} is {value!r} but must be True or False$"):
        make(**{name: value})
    for flag in (True, False, np.bool_(True)):
        optimizer = make()
        optimizer.groups[0][name] = flag
        assert getattr(optimizer, name) is flag


@pytest.mark.parametrize("own", [False, True], ids=["in a group", "as a group"])
def test_parameters_that_are_added_leave_what_is_kept(own: bool) -> None:
    """An optimizer that is made of another's groups begins anew."""
    net, added = nn.Linear(2, 1), nn.Linear(1, 1)
    adam = optim.Adam(net.parameters(), 0.1)

    def steps() -> list[Any]:
        adam.zero_grad()
        added(net(minidl.ones(1, 2))).sum().backward()
        adam.step()
        return [count.item() for group in adam.state_dict()["groups"] for count in group["steps"]]
    assert steps() == [1, 1]
    if own:
        adam.groups.append(optim.Group({**adam.groups[0], "params": list(added.parameters()), "lr": 0.5}, optim.Adam))
    else:
        adam.groups[0]["params"] += added.parameters()
    assert (steps(), [group["lr"] for group in adam.groups]) == ([2, 2, 1, 1], [0.1, 0.5] if own else [0.1])
    again = optim.Adam(adam.groups)
    assert [count for group in again.state_dict()["groups"] for count in group["steps"]] == [None] * 4


def test_a_numbers_name_is_an_attribute_of_all_groups_that_have_it() -> None:
    net = nn.Linear(3, 2)
    both = optim.Together(optim.SGD([{"params": [net.weight]}], 0.1), optim.AdamW([net.bias], lr=0.2))
    both.weight_decay, both.momentum, both.lr = 0.3, 0.9, 0.5
    assert [group["weight_decay"] for group in both.groups] == [0.3, 0.3]
    assert (both.groups[0]["momentum"], both.momentum, both.lr) == (0.9, 0.9, 0.5)
    assert "momentum" not in both.groups[1]
    with pytest.raises(AttributeError, match=r"^SGD: its groups have no betas; give an attribute of your own another"):
        both.optimizers[0].betas = 0.9, 0.99
    with pytest.raises(AttributeError, match="'AdamW' object has no attribute 'momentum'"):
        _ = both.optimizers[1].momentum


@pytest.mark.parametrize("compiled", [False, True])
def test_a_momentum_that_is_set_later_has_an_effect(compiled: bool) -> None:
    w = Tensor([1.0], requires_grad=True)
    sgd = optim.SGD([w], 0.125)

    def one() -> None:
        sgd.zero_grad()
        (w * 1.0).sum().backward()
        sgd.step()
    step = minidl.compile(one) if compiled else one
    for _ in range(3):
        step()
    sgd.momentum = 0.5
    for _ in range(3):
        step()
    assert w.item() == 1 - 3 * 0.125 - 0.125 * (1 + 1.5 + 1.75)


def test_numbers_that_go_together_are_set_together() -> None:
    sgd = NESTEROV()
    sgd.groups[0].update(momentum=0.0, nesterov=False)
    sgd.groups[0].update(nesterov=True, momentum=0.5)
    sgd.groups[0]["name"] = "all"
    twins = copy.deepcopy(sgd), pickle.loads(pickle.dumps(sgd))
    for twin in twins:
        assert {**twin.groups[0], "params": 0} == {**sgd.groups[0], "params": 0}
        with pytest.raises(ValueError, match="SGD: a group has no 'weightdecay'"):
            twin.groups[0]["weightdecay"] = 1


@pytest.mark.parametrize(("name", "value", "message"), [
    ("decay", 2, "EMA: decay is 2 but must be a number from 0 to below 1"),
    ("decay", "0.9", "EMA: decay is '0.9' but must be a number from 0 to below 1"),
    ("factor", 1.5, "Plateau: factor is 1.5 but must be a number of at least 0 and below 1"),
    ("patience", -1, "Plateau: patience is -1 but must be an int of at least 0"),
    ("threshold", -1.0, "Plateau: threshold is -1.0 but must be a number of at least 0"),
    ("min_lr", float("inf"), "Plateau: min_lr is inf but must be a number of at least 0")])
def test_numbers_of_averages_and_plateaus_are_refused_later(name: str, value: object, message: str) -> None:
    owner: Any = optim.EMA([W]) if name == "decay" else optim.Plateau(SGD())
    before = dict(vars(owner))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        setattr(owner, name, value)
    assert vars(owner) == before
    if name == "decay":
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            owner.load_state_dict({**owner.state_dict(), "decay": value})


@pytest.mark.parametrize("make", [lambda: optim.clip_grad_norm([1.0], 1), lambda: optim.EMA([1.0])])  # type: ignore[list-item]
def test_refuses_what_is_not_a_tensor(make: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"^(clip_grad_norm|EMA): a parameter is a float; pass "):
        make()


def test_another_state_is_refused() -> None:
    adam, sgd = optim.Adam([W]), optim.SGD([W], 0.1)
    with pytest.raises(ValueError, match=r"^Adam\.load_state_dict: the groups' optimizers are Adam here but SGD in"):
        adam.load_state_dict(sgd.state_dict())
    with pytest.raises(ValueError, match=r"^Adam\.load_state_dict: the state is a dict but must be what state_dict"):
        adam.load_state_dict({"groups": [{"lr": 0.1, "velocities": [None]}]})
    state = adam.state_dict()
    state["groups"][0]["steps"] = [np.array([1.0])]
    with pytest.raises(ValueError, match=r"^Adam\.load_state_dict: step 0 of group 0 is \(1,\) float64 but its"):
        adam.load_state_dict(state)


# ---------------------------------------------------------------- what is kept, belongs to a parameter
def at_the_address(of: list[Tensor], place: int, values: np.ndarray) -> Tensor:
    """A new Tensor where one that only this list holds lay, whose place it takes. Others are made until it lies there:
    nothing else is, of which it might be the memory."""
    address, others = id(of[place]), []
    del of[place]
    while id(p := Tensor(values, requires_grad=True)) != address and len(others) < 1000:
        others.append(p)
    of.insert(place, p)
    return p


@pytest.mark.parametrize(("name", "settings"), [("SGD", {"lr": 0.1, "momentum": 0.9}), *EACH], ids=str)
def test_a_new_parameter_does_not_inherit(name: str, settings: dict[str, Any]) -> None:
    """Nothing that is kept of the one that lay at its address; its step is that of a new optimizer."""
    optimizer = getattr(optim, name)(parameters(name), **settings)
    params = optimizer.groups[0]["params"]
    give_gradients(params, 0)
    optimizer.step()
    optimizer.zero_grad()
    new = at_the_address(params, 0, np.ones(params[0].shape))
    group = optimizer.state_dict()["groups"][0]
    assert all(group[each][0] is None for each in optimizer.kept)
    twin = Tensor(new.numpy().copy(), requires_grad=True)
    fresh = getattr(optim, name)([twin], **settings)
    for p in (new, twin):
        p.grad = Tensor(np.full(p.shape, 0.5))
    optimizer.step()
    fresh.step()
    assert bits(new) == bits(twin)


def test_a_head_of_another_shape_at_an_old_address_trains() -> None:
    """It was refused for the shape of a mean that another parameter had."""
    adam = optim.Adam([Tensor(np.ones(2), requires_grad=True)])
    params = adam.groups[0]["params"]
    for size in range(3, 20):
        p = at_the_address(params, 0, np.ones(size))
        p.grad = Tensor(np.ones(size))
        adam.step()
        assert adam.state_dict()["groups"][0]["steps"][0].tolist() == [1]
        adam.zero_grad()
        del p


@pytest.mark.parametrize("several", [False, True])
def test_what_is_kept_goes_with_its_parameter(several: bool) -> None:
    params = parameters("Adam")
    adam = optim.Adam(params)
    optimizer = optim.Together(adam) if several else adam
    give_gradients(params, 0)
    optimizer.step()
    assert [len(adam._kept[name].pairs()) for name in adam.kept] == [4, 4, 4]
    del adam.groups[0]["params"][1:], params[1:]
    assert [len(adam._kept[name].pairs()) for name in adam.kept] == [1, 1, 1]
    copied = pickle.loads(pickle.dumps(adam))
    assert [len(copied._kept[name].pairs()) for name in adam.kept] == [1, 1, 1]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_parameter_that_left_and_comes_back_goes_on(compiled: bool) -> None:
    """As in PyTorch, whose state is the Tensor's; the arrays stay the same."""
    params = parameters("Adam", np.float32)[:2]
    adam = optim.Adam(params, lr=0.1)

    def one() -> None:
        adam.zero_grad()
        sum((p * p).sum() for p in params).backward()                    # type: ignore[union-attr]
        adam.step()
    step = minidl.compile(one) if compiled else one
    for _ in range(3):
        step()
    mean = adam._kept["means"].get(params[1])
    del adam.groups[0]["params"][1]
    step()
    adam.groups[0]["params"].append(params[1])
    for _ in range(3):
        step()
    assert adam._kept["means"].get(params[1]) is mean
    assert [each.tolist() for each in adam.state_dict()["groups"][0]["steps"]] == [[7], [6]]


@pytest.mark.parametrize("room", ["optimizer", "averages"])
def test_what_is_kept_of_a_parameter_is_made_where_it_lasts(room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, in a pool of its own (core/pools.py): made, or moved after the parameter, within a step."""
    beside: list[Any] = []

    @contextlib.contextmanager
    def lasting(array: Any) -> Iterator[None]:
        beside.append(array)
        yield
    monkeypatch.setattr(f"minidl.optim.{room}.lasting", lasting)
    net = nn.Linear(2, 1, bias=False)
    sgd, ema = optim.SGD(net.parameters(), lr=0.1, momentum=0.9), optim.EMA(net, 0.9)

    def step() -> None:
        net.weight.grad = net.weight.detach()
        (sgd.step if room == "optimizer" else ema.update)()
    step()
    made = len(beside)
    step()
    net.to("float64")
    step()
    step()
    assert (made, len(beside)) == ((1, 2) if room == "optimizer" else (0, 1))
    assert beside[-1] is net.weight.data


def test_an_average_belongs_to_its_parameter() -> None:
    params = [Tensor(np.full(2, value), requires_grad=True) for value in (1.0, 2.0, 3.0)]
    ema = optim.EMA(params, 0.5)
    ema.params.reverse()
    ema.update()
    np.testing.assert_array_equal(ema.state_dict()["averages"], [[3, 3], [2, 2], [1, 1]])
    ema.params[0] = Tensor(np.full(3, 7.0), requires_grad=True)
    ema.update()
    assert [average.tolist() for average in ema.state_dict()["averages"]] == [[7, 7, 7], [2, 2], [1, 1]]
    params[0].data[...] = 5.0
    twin, ours = copy.deepcopy((ema, params[0]))
    for each, p in ((ema, params[0]), (twin, ours)):
        each.update()
        with each.applied():
            assert p.tolist() == [3, 3]
        assert p.tolist() == [5, 5]


# ---------------------------------------------------------------- states by names
class Two(nn.Module):
    """Two equal layers beside each other, defined in an order that may change."""

    def __init__(self, order: str = "ab"):
        super().__init__()
        minidl.manual_seed(2)
        layers = {name: nn.Linear(3, 3) for name in "ab"}
        for name in order:
            setattr(self, name, layers[name])

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) - (self.b(x) * 2.0).tanh()


def two(order: str, make: Callable[[nn.Module], Any]) -> tuple[Two, Any, Callable[[int], None]]:
    net = Two(order)
    optimizer = make(net)

    def step(i: int) -> None:
        x, _ = vectors(seed=i)
        optimizer.zero_grad()
        net(Tensor(x.numpy()[:, :3].copy())).square().mean().backward()
        optimizer.step()
    return net, optimizer, step


def named_groups(order: list[str]) -> Callable[[nn.Module], Any]:
    """Groups with names and rates of their own, whose parameters have none; equal shapes."""
    return lambda net: optim.SGD([{"params": [getattr(net, name[0]).weight, getattr(net, name[0]).bias], "name": name}
                                  for name in order], 0.1, momentum=0.9)


def by_name(net: nn.Module) -> Any:
    return optim.AdamW([{"params": [(name, p)], "lr": 0.1 if p.ndim > 1 else 0.2}
                        for name, p in net.named_parameters()])


def both_named(net: nn.Module) -> Any:
    named = dict(net.named_parameters())
    muon = optim.Muon([(name, p) for name, p in named.items() if p.ndim > 1])
    adam = optim.Adam([(name, p) for name, p in named.items() if p.ndim < 2])
    return optim.Together(*([muon, adam] if next(iter(named)) == "a.weight" else [adam, muon]))


SAME: dict[str, tuple[Callable[[nn.Module], Any], Callable[[nn.Module], Any]]] = {     # before; after, in another order
    **{f"{name} of named parameters": (make, make) for name, make in {
        "SGD": lambda net: optim.SGD(net.named_parameters(), 0.1, momentum=0.9),
        "Adam": lambda net: optim.Adam(net.named_parameters()),
        "RMSprop": lambda net: optim.RMSprop([{"params": net.named_parameters()}], momentum=0.5, centered=True),
        "Muon": lambda net: optim.Muon((name, p) for name, p in net.named_parameters() if p.ndim > 1)}.items()},
    "groups with names": (named_groups(["a1", "b1"]), named_groups(["b1", "a1"])),
    "groups of named parameters": (by_name, by_name),
    "several, in another order": (both_named, both_named)}


@pytest.mark.parametrize("case", SAME)
def test_a_state_goes_by_names(case: str) -> None:
    net, optimizer, step = two("ab", SAME[case][0])
    for i, group in enumerate(optimizer.groups):
        group["lr"] = 0.01 * (i + 1)
    for i in range(3):
        step(i)
    other_net, other, other_step = two("ba", SAME[case][1])
    other_net.load_state_dict(net.state_dict())
    other.load_state_dict(optimizer.state_dict())
    for i in range(3, 6):
        step(i)
        other_step(i)
    assert_same_bits(net.state_dict(), {name: other_net.state_dict()[name] for name in net.state_dict()})


def test_a_state_of_before_goes_by_place() -> None:
    """Those of minidl 0.2 have no names, and say nothing of the optimizer's kind; groups without names go on, too."""
    net, optimizer, step = two("ab", lambda net: optim.SGD(net.named_parameters(), 0.1, momentum=0.9))
    ema = optim.EMA(net)
    step(0)
    state, averages = optimizer.state_dict(), ema.state_dict()
    for name in ("kind", "name", "params"):
        del state["groups"][0][name]
    del averages["params"]
    for given in (state, optim.SGD(list(net.parameters()), 0.1).state_dict(), optimizer.state_dict()):
        _, other, _ = two("ba", lambda net: optim.SGD(net.parameters(), 0.2))
        other.load_state_dict(given)
        for mine, theirs in zip(other.state_dict()["groups"][0]["velocities"], given["groups"][0]["velocities"],
                                strict=True):
            np.testing.assert_array_equal(mine, theirs)
    ema.load_state_dict(averages)


def test_averages_go_by_names() -> None:
    net, other = Two("ab"), Two("ba")
    ema, theirs = optim.EMA(net, 0.5), optim.EMA(other.named_parameters(), 0.5)
    net.a.weight.data[...] += 1
    ema.update()
    theirs.load_state_dict(ema.state_dict())
    with ema.applied(), theirs.applied():
        np.testing.assert_array_equal(net.a.weight.numpy(), other.a.weight.numpy())
        np.testing.assert_array_equal(net.b.weight.numpy(), other.b.weight.numpy())


TWICE: dict[str, Callable[[Any, Any], Any]] = {
    "a group": lambda a, b: optim.SGD([*a.named_parameters(), *b.named_parameters()], 0.1),
    "groups": lambda a, b: optim.SGD([{"params": each.named_parameters()} for each in (a, b)], 0.1),
    "several": lambda a, b: optim.Together(*(optim.SGD(each.named_parameters(), 0.1) for each in (a, b))),
    "averages": lambda a, b: optim.EMA([*a.named_parameters(), *b.named_parameters()])}


@pytest.mark.parametrize("case", TWICE)
def test_two_parameters_of_one_name_have_no_state(case: str) -> None:
    """Made of both nets in another order, each got what belongs to the other."""
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    owner = TWICE[case](a, b)
    said = rf"^{type(owner).__name__}: two parameters have the name 'weight', by which a state would be loaded; pass t"
    with pytest.raises(ValueError, match=said):
        owner.state_dict()
    owner.learn_names((f"b.{name}", p) for name, p in b.named_parameters())
    owner.load_state_dict(owner.state_dict())
    with pytest.raises(ValueError, match=said):
        TWICE[case](a, b).load_state_dict(owner.state_dict())


def test_names_count_within_a_group_that_has_one() -> None:
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)

    def made(nets: dict[str, Any]) -> Any:
        return optim.SGD([{"params": net.named_parameters(), "name": name, "lr": i} for i, (name, net) in
                          enumerate(nets.items())], 0.1, momentum=0.9)
    sgd, other = made({"a": a, "b": b}), made({"b": b, "a": a})
    (a.weight.sum() + a.bias.sum()).backward()
    sgd.step()
    other.load_state_dict(sgd.state_dict())
    assert [group["velocities"][0] is None for group in other.state_dict()["groups"]] == [True, False]


def renamed(net: nn.Module, **names: str) -> list[tuple[str, Tensor]]:
    return [(names.get(name[0], name[0]) + name[1:], p) for name, p in net.named_parameters()]


OTHER: dict[str, tuple[Callable[[nn.Module], Any], Callable[[nn.Module], Any], str]] = {
    "kind": (lambda net: optim.AdamW(net.parameters()), lambda net: optim.Adam(net.parameters()),
             "AdamW.load_state_dict: the groups' optimizers are AdamW here but Adam in the state; build the optimizer"),
    "kinds of several": (
        lambda net: optim.Together(optim.AdamW(net.a.parameters()), optim.Adam(net.b.parameters())),
        lambda net: optim.Together(optim.AdamW(net.a.parameters()), optim.AdamW(net.b.parameters())),
        "Together.load_state_dict: the groups' optimizers are Adam here but AdamW, AdamW in the state; build the"),
    "group": (named_groups(["a1", "b1"]), named_groups(["a1", "b2"]),
              "SGD.load_state_dict: the groups' names are b1 here but b2 in the state; build the optimizer that the"),
    "parameter": (lambda net: optim.Adam(net.named_parameters()), lambda net: optim.Adam(renamed(net, a="c")),
                  "Adam.load_state_dict: the groups' parameters are a.weight, a.bias here but c.weight, c.bias in the"),
    "a group's parameters": (
        lambda net: optim.Adam([{"params": net.named_parameters()}]),
        lambda net: optim.Adam([{"params": [*net.named_parameters()][:2]}]),
        "Adam.load_state_dict: the groups' parameters are b.weight, b.bias here but a.weight, a.bias in the state"),
    "exchanged among groups": (
        lambda net: optim.Adam([{"params": renamed(net.a, w="a.w"), "name": "one"},
                                {"params": renamed(net.b, w="b.w"), "name": "two"}]),
        lambda net: optim.Adam([{"params": renamed(net.a, w="b.w"), "name": "one"},
                                {"params": renamed(net.b, w="a.w"), "name": "two"}]),
        "Adam.load_state_dict: the groups' parameters are a.weight, bias, b.weight, bias here but b.weight, bias, a"),
    "one without a name": (lambda net: optim.Adam([*renamed(net.a), *net.b.parameters()]),
                           lambda net: optim.Adam([*renamed(net.a), *renamed(net.b, w="b.w", b="b.b")]),
                           "Adam.load_state_dict: the groups' parameters are None, None here but b.weight, b.bias in "),
    "average": (lambda net: optim.EMA(net), lambda net: optim.EMA(renamed(net, b="d")),
                "EMA.load_state_dict: the parameters are b.weight, b.bias here but d.weight, d.bias in the state"),
}


@pytest.mark.parametrize("case", OTHER)
def test_a_state_of_other_names_changes_nothing(case: str) -> None:
    make, other, message = OTHER[case]
    net = Two()
    optimizer = make(net)
    before = pickle.dumps(optimizer.state_dict())
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        optimizer.load_state_dict(other(net).state_dict())
    assert pickle.dumps(optimizer.state_dict()) == before


# ---------------------------------------------------------------- frozen parameters
FREEZE: dict[str, Callable[[nn.Module, bool], object]] = {
    "attribute": lambda net, flag: [setattr(p, "requires_grad", flag) for p in (net[0].weight, net[0].bias)],
    "Tensor": lambda net, flag: [p.requires_grad_(flag) for p in (net[0].weight, net[0].bias)],
    "Module": lambda net, flag: net[0].requires_grad_(flag),
    "one of two": lambda net, flag: net[0].weight.requires_grad_(flag)}


def optimized(name: str) -> tuple[nn.Module, optim.Optimizer]:
    """A net of two layers, and an optimizer of all its parameters (Muon: of its matrices)."""
    minidl.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    matrices, others = ([p for p in net.parameters() if (p.ndim > 1) is matrix] for matrix in (True, False))
    if name == "Together":
        return net, optim.Together(optim.Muon(matrices), optim.AdamW(others))
    settings: dict[str, Any] = {"SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
                                "RMSprop": {"momentum": 0.5, "centered": True}}.get(name, {})
    return net, getattr(optim, name)(matrices if name == "Muon" else list(net.parameters()), **settings)


def fifteen_steps(name: str, clear: str, by: str, compiled: bool, freeze: bool) -> list[list[bytes]]:
    """The first layer before steps in which it is frozen, after them, and all at the end. freeze=False: in these steps
    its gradients are taken away before the update."""
    net, optimizer = optimized(name)
    params = list(net.parameters())
    first = params[:1 if by == "one of two" else 2]
    x = Tensor(np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32))
    without: list[Tensor] = []

    def step() -> None:
        if clear == "net":
            net.zero_grad()
        for p in params if clear == "loop" else ():
            if p.requires_grad:
                p.grad = None
        net(x).square().sum().backward()
        kept = [p.grad for p in without]
        for p in without:
            p.grad = None
        optim.clip_grad_norm(params, 1.0)
        optimizer.step()
        for p, grad in zip(without, kept, strict=True):
            p.grad = grad
    run: Any = minidl.compile(step) if compiled else step
    found = []
    for frozen in (False, True, False):
        if freeze:
            FREEZE[by](net, not frozen)
        else:
            without[:] = first * frozen
        for p in first:                    # the same in both worlds when they are thawed
            if not frozen:
                p.grad = None
        for _ in range(5):
            run()
        found.append([bits(p) for p in first])
    return [*found, [bits(p) for p in params]]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("by", FREEZE)
@pytest.mark.parametrize(("name", "clear"), [("SGD", "loop"), ("Adam", "net"), ("AdamW", "keep"), ("RMSprop", "keep"),
                                             ("Muon", "loop"), ("Together", "net")])
def test_a_frozen_parameter_stays(name: str, clear: str, by: str, compiled: bool) -> None:
    """Whoever holds its gradient still, and whatever decays; beside it all is as if it had none. Thawed, it goes on
    with what was kept of it."""
    found = fifteen_steps(name, clear, by, compiled, freeze=True)
    assert found[1] == found[0] != found[2]
    assert found == fifteen_steps(name, clear, by, False, freeze=False)


def test_a_frozen_parameter_that_a_step_does_not_read_is_looked_at() -> None:
    """Its gradient is from outside: nothing but the optimizer knows of it."""
    w, alone = Tensor([1.0, 2.0], requires_grad=True), Tensor([1.0], requires_grad=True)
    sgd = optim.SGD([w, alone], lr=0.5)
    alone.grad = Tensor([1.0])

    def step() -> None:
        w.grad = None
        (w * w).sum().backward()
        sgd.step()
    compiled: Any = minidl.compile(step)
    for frozen, expected in ((False, 0.5), (True, 0.5), (True, 0.5), (True, 0.5), (False, 0.0), (False, -0.5)):
        alone.requires_grad = not frozen
        compiled()
        assert alone.item() == expected


def tied() -> tuple[list[Tensor], list[Tensor]]:
    """The parameters of two layers that share a weight, put together, and each of them once; with gradients."""
    first, second = nn.Linear(2, 3), nn.Linear(2, 3)
    second.weight = first.weight
    x = Tensor(np.ones((4, 2), np.float32))
    (first(x) * 2 + second(x)).sum().backward()
    return [*first.parameters(), *second.parameters()], [*nn.Sequential(first, second).parameters()]


@pytest.mark.parametrize(("total", "left"), [(4.0, 0.5), (1.0, 2.0), (0.0, 2.0)])
@pytest.mark.parametrize("kind", [float, Tensor])
def test_gradients_divided_by_a_number_which_may_be_0(total: float, left: float, kind: Any) -> None:
    p = Tensor([1.0], requires_grad=True)
    p.grad = Tensor([2.0])
    optim.clip.divide([p], kind(total))
    assert p.grad.tolist() == [left]


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("limit", [1e-3, 1.0, 1e9])
def test_a_weight_that_is_listed_twice_is_clipped_once(limit: float, compiled: bool) -> None:
    """It counted twice in the norm, and all gradients became too small."""
    (listed, _), (_, once) = tied(), tied()
    assert (len(listed), len(once)) == (4, 3)
    clip = minidl.compile(lambda: optim.clip_grad_norm(listed, limit)) if compiled else \
        lambda: optim.clip_grad_norm(listed, limit)
    assert clip().item() == optim.clip_grad_norm(once, limit).item()
    for p, q in zip({id(p): p for p in listed}.values(), once, strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert p.grad.tolist() == q.grad.tolist()


@pytest.mark.parametrize("make", [lambda p: optim.SGD(p, 0.1), lambda p: optim.SGD(p, 0.1, 0.9), optim.Adam,
                                  optim.AdamW, optim.RMSprop])
def test_a_parameter_that_a_group_has_twice_moves_once(make: Callable[..., Any]) -> None:
    """One may be put into a group's list later; a constructor refuses it."""
    found = []
    for times in (0, 1, 2):
        w = Tensor([1.0, -2.0], requires_grad=True)
        optimizer = make([w])
        optimizer.groups[0]["params"] += [w] * times
        for _ in range(3):
            w.grad = Tensor([0.5, 0.25])
            optimizer.step()
        found.append(w.tolist())
    assert found[1:] == found[:1] * 2


@pytest.mark.parametrize("clip", [optim.clip_grad_norm, optim.clip_grad_value])
def test_a_frozen_parameters_gradient_is_not_clipped(clip: Callable[..., Any]) -> None:
    w, frozen = (Tensor([3.0, 4.0], requires_grad=True) for _ in range(2))
    for p in (w, frozen):
        p.grad = Tensor([3.0, 4.0])
    frozen.requires_grad_(False)
    norm = clip([w, frozen], 2.5)
    assert norm is None or norm.item() == 5.0
    np.testing.assert_allclose(w.grad.numpy(), [1.5, 2.0] if norm is not None else [2.5, 2.5], rtol=1e-5)
    assert frozen.grad.tolist() == [3.0, 4.0]
    w.requires_grad_(False)
    with pytest.raises(ValueError, match="none of 2 parameters has a gradient and is not frozen; call it between"):
        clip([w, frozen], 2.5)


def test_zero_grad_forgets_those_of_frozen_parameters() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm2d(2))
    sgd = optim.SGD(net.parameters(), 0.1)
    params = list(net.parameters())
    for forget in (net.zero_grad, sgd.zero_grad):
        for p in params:
            p.grad = Tensor(np.ones(p.shape, np.float32))
        for p in params[1:3]:
            p.requires_grad = False
        forget()
        assert [p.grad for p in params] == [None] * 4


# ---------------------------------------------------------------- in a compiled step
def both_kinds(name: str, settings: dict[str, Any], device: str = "cpu", clip: bool = True, average: bool = True,
               dtype: str = "float32") -> list[Any]:
    """Two trainings, plain and compiled: (step, the net, what else changes)."""
    found = []
    for kind in (lambda step: step, minidl.compile):
        minidl.manual_seed(3)
        net = dense()().to(device, dtype)
        groups = [[p for p in net.parameters() if (p.ndim > 1) is matrix] for matrix in (True, False)]
        optimizers = [getattr(optim, name)(groups[0] if name == "Muon" else list(net.parameters()), **settings)]
        if name == "Muon":
            optimizers.append(optim.AdamW(groups[1]))
        ema = optim.EMA(net, 0.9)

        def step(x: Tensor, labels: Tensor, net: nn.Module = net, optimizers: list[Any] = optimizers,
                 ema: optim.EMA = ema) -> tuple[Tensor, Tensor]:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = ops.cross_entropy(net(x), labels)
            loss.backward()
            norm = optim.clip_grad_norm(net.parameters(), 0.5) if clip else loss
            if clip:
                optim.clip_grad_value(net.parameters(), 0.1)
            for optimizer in optimizers:
                optimizer.step()
            if average:
                ema.update()
            return loss, norm
        found.append((kind(step), net, optimizers, ema))
    return found


def state_of(net: nn.Module, optimizers: list[Any], ema: optim.EMA) -> dict[str, np.ndarray]:
    kept = {f"{i} {name} {place}": array for i, each in enumerate(optimizers) for group in each.state_dict()["groups"]
            for name in each.kept for place, array in enumerate(group[name]) if array is not None}
    return {**net.state_dict(), **kept, **{f"average {i}": a for i, a in enumerate(ema.state_dict()["averages"])}}


@pytest.mark.parametrize(("name", "settings"), EACH, ids=str)
def test_compiled_steps_give_the_plain_bits(name: str, settings: dict[str, Any]) -> None:
    pair = both_kinds(name, settings)
    for i in range(30):
        results = []
        for step, _, optimizers, _ in pair:
            optimizers[0].lr = 0.01 / (1 + i % 9)
            results.append([bits(t) for t in step(*vectors(seed=i))])
        assert results[0] == results[1], i
    assert_same_bits(*(state_of(*rest) for _, *rest in pair))
    assert pair[1][0].recordings == 2


@pytest.mark.gpu
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(("name", "settings"), EACH, ids=str)
def test_gpu_a_hundred_captured_steps(name: str, settings: dict[str, Any], clip: bool) -> None:
    """One graph each; within rounding, because layers are fused."""
    pair = both_kinds(name, settings, "cuda", clip, dtype="float64")
    for i in range(100):
        for step, _, optimizers, _ in pair:
            optimizers[0].lr = 0.01 / (1 + i % 9)
            x, labels = vectors(seed=i, device="cuda")
            step(x.to(dtype="float64"), labels)
    plain, compiled = (state_of(*rest) for _, *rest in pair)
    for key, values in plain.items():
        np.testing.assert_allclose(compiled[key], values, rtol=1e-6, atol=1e-8, err_msg=key)
    assert pair[1][0].recordings == 2
    assert not any("call by call" in note for note in pair[1][0].program.notes)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "settings"), EACH, ids=str)
def test_gpu_a_hundred_steps_are_the_cpus(name: str, settings: dict[str, Any]) -> None:
    found = []
    for device in ("cpu", "cuda"):
        params = [Tensor(p.numpy(), requires_grad=True, device=device) for p in parameters(name)]
        optimizer = getattr(optim, name)(params, **settings)
        for step in range(100):
            for p, g in zip(params, give_gradients(parameters(name), step), strict=True):
                p.grad = None if g is None else Tensor(g, device=device)
            optimizer.step()
        found.append([p.numpy() for p in params])
    for cpus, gpus in zip(*found, strict=True):
        np.testing.assert_allclose(gpus, cpus, rtol=1e-10, atol=1e-10)


def test_a_rate_and_numbers_that_change_are_seen() -> None:
    pair = both_kinds("Adam", {}, clip=False, average=False)
    for i in range(12):
        for step, _, (adam,), _ in pair:
            adam.groups[0]["betas"] = (0.9, 0.99) if i < 6 else (0.5, 0.9)
            step(*vectors(seed=i))
    assert_same_bits(*(state_of(*rest) for _, *rest in pair))
    assert pair[1][0].recordings == 4


# ---------------------------------------------------------------- several as one
def together(net: nn.Module) -> optim.Together:
    first, *others = net.parameters()
    return optim.Together(optim.Muon([first], lr=0.02), optim.AdamW([{"params": others[:1], "name": "bias"},
                                                                   {"params": others[1:], "lr": 0.01}]))


@pytest.mark.parametrize("compiled", [False, True])
def test_several_optimizers_step_as_each_of_them(compiled: bool) -> None:
    """By rates of their own, and by those of a schedule, a row per group."""
    nets = [dense()() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    both, apart = together(nets[0]), together(nets[1]).optimizers
    rates = optim.Rates(Tensor(np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])), Tensor(np.array([1])))

    def one(x: Tensor, labels: Tensor, scheduled: bool) -> None:
        both.zero_grad()
        ops.cross_entropy(nets[0](x), labels).backward()
        both.step(rates if scheduled else None)
    step = minidl.compile(one) if compiled else one
    for i in range(8):
        x, labels = vectors(seed=i)
        step(x, labels, i >= 4)
        if i >= 4:
            apart[0].lr, apart[1].groups[0]["lr"], apart[1].groups[1]["lr"] = 0.2, 0.4, 0.6
        for each in apart:
            each.zero_grad()
        ops.cross_entropy(nets[1](x), labels).backward()
        for each in apart:
            each.step()
    assert_same_bits(*(net.state_dict() for net in nets))
    assert both.group("bias") is both.groups[1]


def test_several_optimizers_step_all_or_not_at_all() -> None:
    a, b = (Tensor([1.0], requires_grad=True) for _ in range(2))
    both = optim.Together(optim.SGD([a], 0.1), optim.Adam([b]))
    for p in (a, b):
        p.grad = Tensor([1.0])
    b.data = np.ones(2, np.float32)
    with pytest.raises(ValueError, match=r"^Adam: a parameter has shape \(2,\) but its gradient \(1,\); call zero"):
        both.step()
    assert a.tolist() == [1.0]


def test_a_state_of_several_goes_on() -> None:
    net = dense()()
    both = together(net)
    for p in net.parameters():
        p.grad = Tensor(np.ones(p.shape, np.float32))
    both.step()
    twin_net, twin = pickle.loads(pickle.dumps((net, both)))
    other_net = dense()()
    other_net.load_state_dict(net.state_dict())
    other = together(other_net)
    other.load_state_dict(both.state_dict())
    for model, optimizer in ((net, both), (twin_net, twin), (other_net, other)):
        for p in model.parameters():
            p.grad = Tensor(np.full(p.shape, 0.5, np.float32))
        optimizer.step()
        assert_same_bits(net.state_dict(), model.state_dict())
    state = both.state_dict()
    state["groups"][2]["lr"] = -1.0
    state["groups"][0]["lr"] = 7.0
    with pytest.raises(ValueError, match=r"^AdamW: lr is -1\.0"):
        both.load_state_dict(state)
    assert both.lr == 0.02                                              # nothing has changed
    with pytest.raises(ValueError, match=r"^Together\.load_state_dict: the state is a dict but must .* with 3 groups"):
        both.load_state_dict({"groups": []})
    both.forget()
    assert not any(array.any() for group in both.state_dict()["groups"] for name in ("means", "steps")
                   for array in group.get(name, []))


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda: optim.Together(), ValueError, r"Together: got 0 optimizers but needs at least 1; pass each as an"),
    (lambda: optim.Together([optim.SGD([W], 0.1)]), TypeError,  # type: ignore[arg-type]
     r"Together: an optimizer is a list but must be one of minidl\.optim$"),
    (lambda: optim.Together(optim.SGD([W], 0.1), optim.Adam([W])), ValueError,
     r"Together: the optimizers have 2 parameters but only 1 are different; give each to one optimizer$"),
])
def test_together_refuses(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        make()


# ---------------------------------------------------------------- clipped gradients
@pytest.mark.torch
@pytest.mark.parametrize("limit", [0.1, 2.0, 1e3])
def test_clipping_is_pytorchs(limit: float) -> None:
    torch = pytest.importorskip("torch")
    params = parameters("Adam")
    twins = [torch.tensor(p.numpy().copy(), requires_grad=True) for p in params]
    for by_norm in (True, False):
        for twin, g in zip(twins, give_gradients(params, 3), strict=True):
            twin.grad = None if g is None else torch.tensor(g)
        if by_norm:
            ours = optim.clip_grad_norm(params, limit)
            assert ours.shape == ()
            np.testing.assert_allclose(ours.item(), torch.nn.utils.clip_grad_norm_(twins, limit).item(), rtol=1e-12)
        else:
            optim.clip_grad_value(params, limit)
            torch.nn.utils.clip_grad_value_(twins, limit)
        for p, twin in zip(params, twins, strict=True):
            assert (p.grad is None) is (twin.grad is None)
            if p.grad is not None:
                np.testing.assert_allclose(p.grad.numpy(), twin.grad.numpy(), rtol=1e-12)


def test_clipping_keeps_each_dtype_and_takes_one_tensor() -> None:
    single, double = (Tensor(np.ones(2, dtype), requires_grad=True) for dtype in (np.float32, np.float64))
    (single * 3.0).sum().backward()
    (double * 4.0).sum().backward()
    norm = optim.clip_grad_norm([single, double], 1.0)
    np.testing.assert_allclose(norm.item(), 50 ** 0.5)
    assert [(p.grad.dtype.name, p.grad.shape) for p in (single, double)] == [("float32", (2,)), ("float64", (2,))]
    np.testing.assert_allclose(optim.clip_grad_norm(double, 1.0).item(), 32 ** 0.5 / 50 ** 0.5, rtol=1e-5)


# ---------------------------------------------------------------- averaged weights
@pytest.mark.torch
def test_an_average_is_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    swa = pytest.importorskip("torch.optim.swa_utils")
    net = nn.Linear(3, 2).to(dtype="float64")
    twin = torch.nn.Linear(3, 2).double()
    twin.load_state_dict({name: torch.tensor(values) for name, values in net.state_dict().items()})
    ema, theirs = optim.EMA(net, 0.9), swa.AveragedModel(twin, multi_avg_fn=swa.get_ema_multi_avg_fn(0.9))
    theirs.update_parameters(twin)                                       # its first is a copy
    for i in range(100):
        values = np.random.default_rng(i).standard_normal((2, 3))
        net.weight.data[...] = values
        twin.weight.data[...] = torch.tensor(values)
        ema.update()
        theirs.update_parameters(twin)
    with ema.applied():
        np.testing.assert_allclose(net.weight.numpy(), theirs.module.weight.detach().numpy(), rtol=1e-10)
    np.testing.assert_array_equal(net.weight.numpy(), values)


def test_an_average_has_parameters_that_are_frozen_when_it_is_made() -> None:
    """They were left out for ever, so that `applied` mixed averages with what was trained last."""
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    net[0].requires_grad_(False)
    ema = optim.EMA(net, 0.5)
    assert ema.state_dict()["params"] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    frozen = net[0].weight.numpy().copy()
    ema.update()
    with ema.applied():
        assert net[0].weight.numpy().tobytes() == frozen.tobytes()
    net.requires_grad_(True)
    net[0].weight.data[...] = frozen + 2
    ema.update()
    with ema.applied():
        np.testing.assert_allclose(net[0].weight.numpy(), frozen + 1, rtol=1e-6)


def test_applied_averages_decorate_a_generator() -> None:
    """They are applied while its body runs, and not while it waits."""
    p = Tensor([1.0], requires_grad=True)
    ema = optim.EMA([p], 0.5)
    p.data[...] = 3.0

    @ema.applied()
    def values() -> Iterator[float]:
        yield p.item()
        yield p.item()

    seen = []
    for value in values():
        seen.append((value, p.item()))
        p.data[...] += 1.0
    assert seen == [(1.0, 3.0), (1.0, 4.0)]


def test_applied_averages_are_in_place_and_given_back() -> None:
    net = nn.Linear(3, 2)
    ema = optim.EMA(net, 0.5)
    before, arrays = net.state_dict(), [p.data for p in net.parameters()]
    look = minidl.compile(lambda x: net(x))
    x = Tensor(np.ones((1, 3), np.float32))
    for p in net.parameters():
        p.data[...] += 1
    ema.update()
    changed = net.state_dict()
    for _ in range(3):
        outside = look(x).numpy()
        with ema.applied():
            np.testing.assert_allclose(net.weight.numpy(), before["weight"] + 0.5, rtol=1e-6)
            assert not np.allclose(look(x).numpy(), outside)
            with pytest.raises(ValueError, match=r"^EMA\.update: the averages are applied, in the parameters' place;"):
                ema.update()
            with pytest.raises(ValueError, match=r"^EMA\.applied: the averages are applied already; leave that"), \
                    ema.applied():
                pass
    assert look.recordings == 2
    with pytest.raises(KeyError), ema.applied():
        raise KeyError
    for name, values in net.state_dict().items():
        np.testing.assert_array_equal(values, changed[name])
    assert all(p.data is array for p, array in zip(net.parameters(), arrays, strict=True))


def test_an_average_goes_on_and_follows_its_model() -> None:
    net = nn.Linear(3, 2)
    ema = optim.EMA(net, 0.5)
    net.weight.data[...] += 1
    ema.update()
    other = optim.EMA(net, 0.7)
    other.load_state_dict(ema.state_dict())
    assert other.decay == 0.5
    net.to(dtype="float64")
    for each in (ema, other):
        each.update()
    for a, b in zip(ema.state_dict()["averages"], other.state_dict()["averages"], strict=True):
        assert a.dtype == np.float64
        np.testing.assert_array_equal(a, b)
    net.weight.data = np.zeros((4, 4))
    with pytest.raises(ValueError, match=r"^EMA: a parameter has shape \(4, 4\) but its average \(2, 3\); build"):
        ema.update()


def averaged(sizes: tuple[int, ...], seed: int = 0) -> tuple[list[Tensor], optim.EMA]:
    """Parameters that are not their averages."""
    rng = np.random.default_rng(seed)
    params = [Tensor(rng.standard_normal(size), requires_grad=True) for size in sizes]
    ema = optim.EMA(params, 0.5)
    for p in params:
        p.data[...] += 1.0
    ema.update()
    return params, ema


@pytest.mark.parametrize("every", ["line", "opcode"])
@pytest.mark.parametrize(("sizes", "leaves_by"), [
    ((3,), None), ((3, 2, 4), None), ((3, 2), KeyError), ((2, 2), KeyboardInterrupt), ((1,), GeneratorExit),
    ((2, 0, 5), SystemExit)])
def test_an_interrupt_at_any_line_puts_the_parameters_back(sizes: tuple[int, ...], leaves_by: Any, every: str) -> None:
    """At each of the file's lines, or operations, that run as averages are applied and put back, in turn."""
    params, ema = averaged(sizes)
    before, file = [bits(p) for p in params], optim.averages.__file__
    left = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != file:
            return None
        frame.f_trace_opcodes = every == "opcode"
        if event == every:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    sys._getframe().f_trace_opcodes = every == "opcode"    # Python 3.12 has none unless a frame asked before
    for count in itertools.count(1):
        left, outside = count, sys.gettrace()
        sys.settrace(trace)
        try:
            with ema.applied():
                if leaves_by is not None:
                    raise leaves_by
        except BaseException as error:
            assert isinstance(error, (KeyboardInterrupt, leaves_by or KeyboardInterrupt))   # noqa: PT017
        finally:
            sys.settrace(outside)
        assert [bits(p) for p in params] == before, count
        assert ema._applied is False
        if left > 0:                       # all were run through
            break
    assert count > 15
    with ema.applied():
        assert [bits(p) for p in params if p.size] != [each for each in before if each]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer signals")
def test_interrupts_by_signals_put_the_parameters_back() -> None:
    params, ema = averaged((20_000,) * 8)
    before, found = [bits(p) for p in params], 0

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt
    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        for i in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 * (i + 1))
                with ema.applied():
                    pass
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                found += 1
            assert [bits(p) for p in params] == before
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert found > 5


@pytest.mark.parametrize("what", ["applied", "load_state_dict"])
def test_what_a_step_may_not_do_with_averages(what: str) -> None:
    ema = optim.EMA([W])

    def step() -> None:
        if what == "applied":
            with ema.applied():
                pass
        else:
            ema.load_state_dict(ema.state_dict())
    with pytest.raises(minidl.CompileError, match=r"averaged weights at .*; do it outside the step"):
        minidl.compile(step)()


# ---------------------------------------------------------------- training.fit
def fitted(folder: Path | None, epochs: int, compiled: bool, name: str, settings: dict[str, Any]) -> list[bytes]:
    """What a training ends in: parameters, averages, what Plateau knows."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 8)).astype(np.float32), rng.integers(0, 3, 40)
    minidl.manual_seed(5)
    net = nn.Sequential(nn.Linear(8, 3, bias=False))
    loaders = data.DataLoader((x, y), 8), data.DataLoader((x, y), 20, shuffle=False)
    optimizer = getattr(optim, name)(net.parameters(), **settings)
    ema, plateau = optim.EMA(net, 0.9), optim.Plateau(optimizer, patience=0, threshold=0.5)
    training.fit(net, optimizer, *loaders, epochs=epochs, schedule=optim.one_cycle(20), callbacks=[ema, plateau],
                 compiled=compiled, say=None, checkpoints=folder, resume=folder is not None)
    return [*(bits(p) for p in net.parameters()), *(a.tobytes() for a in ema.state_dict()["averages"]),
            repr((plateau.state_dict(), optimizer.lr)).encode()]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_training_goes_on_in_the_same_bits(name: str, compiled: bool, tmp_path: Path) -> None:
    settings = SETTINGS[name][-1]
    expected = fitted(None, 4, compiled, name, settings)
    fitted(tmp_path, 2, compiled, name, settings)
    assert fitted(tmp_path, 4, compiled, name, settings) == expected


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    fitted(tmp_path, 1, False, "Adam", {})
    with pytest.raises(ValueError, match="does not fit this training"):
        fitted(tmp_path, 2, False, "RMSprop", {})


def resumed(folder: Path, epochs: int, order: str, make: Callable[[nn.Module], Any],
            compiled: bool) -> dict[str, np.ndarray]:
    """What a training ends in: parameters and averages, by name."""
    net = Two(order)
    optimizer, ema = make(net), optim.EMA(net.parameters(), 0.9)
    rng = np.random.default_rng(0)
    arrays = rng.standard_normal((12, 3)).astype(np.float32), rng.integers(0, 3, 12)
    loaders = data.DataLoader(arrays, 4), data.DataLoader(arrays, 12, shuffle=False)
    training.fit(net, optimizer, *loaders, epochs=epochs, say=None, checkpoints=folder, resume=True, compiled=compiled,
                 callbacks=ema)
    ends = net.state_dict()
    with ema.applied():
        ends |= {f"average of {name}": array for name, array in net.state_dict().items()}
    return dict(sorted(ends.items()))


TRAINED: dict[str, Callable[[nn.Module], Any]] = {
    "SGD": lambda net: optim.SGD(net.parameters(), 0.1, momentum=0.9), "Adam": lambda net: optim.Adam(net.parameters()),
    "groups": lambda net: optim.SGD([{"params": layer.parameters(), "lr": 0.2 if layer is net.a else 0.1}
                                     for layer in net.children()], 0.1, 0.9),
    "several": lambda net: optim.Together(*(optim.Muon([p for p in net.parameters() if p.ndim > 1]),
                                            optim.AdamW([p for p in net.parameters() if p.ndim < 2])))}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("make", TRAINED)
def test_layers_that_change_places_go_on_in_the_same_bits(make: str, compiled: bool, tmp_path: Path) -> None:
    """The optimizer and the averages are given parameters alone: fit knows the names."""
    ends = []
    for order in ("ab", "ba"):
        resumed(tmp_path / order, 2, "ab", TRAINED[make], compiled)
        ends.append(resumed(tmp_path / order, 4, order, TRAINED[make], compiled))
    assert_same_bits(*ends)


def test_a_checkpoint_of_before_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By place: minidl 0.2 wrote no names."""
    make = TRAINED["Adam"]
    expected = resumed(tmp_path / "now", 4, "ab", make, False)
    with monkeypatch.context() as before:
        before.setattr("minidl.optim.state.facts_of", lambda optimizer: [{} for _ in optimizer.groups])
        before.setattr(optim.EMA, "state_dict", lambda self: {"decay": self.decay, "averages": [
            np.array(average) for average in self._where_parameters_are()]})
        resumed(tmp_path / "old", 2, "ab", make, False)
    assert_same_bits(resumed(tmp_path / "old", 4, "ab", make, False), expected)


def test_a_checkpoint_of_adam_is_not_adamws(tmp_path: Path) -> None:
    resumed(tmp_path, 1, "ab", lambda net: optim.Adam(net.parameters()), False)
    with pytest.raises(ValueError, match=r"^AdamW\.load_state_dict: the groups' optimizers are AdamW here but Adam in"):
        resumed(tmp_path, 2, "ab", lambda net: optim.AdamW(net.parameters()), False)


# ---------------------------------------------------------------- rates
@pytest.mark.torch
@pytest.mark.parametrize("total", [10, 11, 25, 50, 100, 469, 1000])
def test_one_cycle_is_pytorchs(total: int) -> None:
    torch = pytest.importorskip("torch")
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(sgd, max_lr=1.0, total_steps=total, cycle_momentum=False)
    schedule = optim.one_cycle(total)
    for i in range(total):
        assert schedule(i) == pytest.approx(theirs.get_last_lr()[0], rel=1e-10, abs=1e-12), i
        sgd.step()
        if i + 1 < total:
            theirs.step()
    assert schedule(total + 5) == schedule(total - 1)


def reduced(rate: float, factor: float, min_lr: float) -> float:
    """By ReduceLROnPlateau."""
    lower = max(rate * factor, min_lr)
    return lower if rate - lower > 1e-8 else rate


@pytest.mark.parametrize(("rates", "factor", "min_lr", "expected"), [
    ((0.125, 0.001), 0.25, 0.03125, (0.03125, 0.001)), ((0.1,), 0.1, 0.5, (0.1,)),
    ((0.5, 0.1, 0.0), 0.5, 0.2, (0.25, 0.1, 0.0)),
    ((0.1,), 0.0, 0.0, (0.0,)), ((0.1, 0.2), 0.0, 0.1, (0.1, 0.1)), ((1e-8,), 0.5, 0.0, (1e-8,)),
    ((0.3, 0.3), 0.5, 0.3, (0.3, 0.3)), ((1.0, 4.0), 0.5, 0.75, (0.75, 2.0))])
@pytest.mark.parametrize("several", [False, True])
def test_a_plateau_raises_no_rate(rates: tuple[float, ...], factor: float, min_lr: float,
                                  expected: tuple[float, ...], several: bool) -> None:
    groups = [{"params": [Tensor([1.0], requires_grad=True)], "lr": rate} for rate in rates]
    optimizer: optim.Optimizer = optim.SGD(groups, 1.0)
    if several:
        optimizer = optim.Together(*(optim.Adam([group]) for group in groups))
    plateau = optim.Plateau(optimizer, factor=factor, patience=0, min_lr=min_lr)
    assert plateau.observe(1.0) is False
    assert plateau.observe(1.0) is (rates != expected)
    assert tuple(group["lr"] for group in optimizer.groups) == expected == tuple(
        reduced(rate, factor, min_lr) for rate in rates)


@pytest.mark.parametrize(("metric", "threshold", "values", "better"), [
    ("test_loss", 0.1, [-1.0, -0.95, -0.86, -0.78, -0.70], [True, True, True, True, False]),     # as it is in PyTorch
    ("test_loss", 0.1, [1.0, 0.95, 0.89, 0.0, 0.0, -0.1], [True, False, True, True, False, True]),
    ("test_loss", 0.0, [-1.0, -1.0, -1.1], [True, False, True]),
    ("test_accuracy", 0.1, [-1.0, -1.05, -1.09, -1.2], [True, True, True, False]),
    ("test_accuracy", 0.1, [0.5, 0.54, 0.56, 0.0], [True, False, True, False]),
    ("test_loss", 1.0, [2.0, 0.5, -0.1], [True, False, True]),
    ("test_loss", 0.1, [float("nan"), 1.0, float("nan"), 0.5], [False, True, False, True]),
    ("test_loss", 0.1, [float("-inf"), -1.0], [True, False])])
def test_what_is_better_for_a_plateau(metric: str, threshold: float, values: list[float], better: list[bool]) -> None:
    """a < best * (1 - threshold), or a > best * (1 + threshold): also below 0."""
    plateau = optim.Plateau(optim.SGD([W], 0.1), patience=100, threshold=threshold, metric=metric)
    found = []
    for value in values:
        before = plateau.waited
        plateau.observe(value)
        found.append(plateau.waited <= before and plateau.best == value)
    assert found == better


@pytest.mark.torch
@pytest.mark.parametrize("metric", ["test_loss", "test_accuracy"])
@pytest.mark.parametrize("below", [0.0, 1.0, 5.0])
def test_a_plateau_is_pytorchs(metric: str, below: float) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    ours = optim.SGD([W], lr=1.0)
    twin = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, "min" if metric == "test_loss" else "max", factor=0.5,
                                                      patience=2, threshold=0.05, min_lr=1e-3)
    plateau = optim.Plateau(ours, factor=0.5, patience=2, threshold=0.05, min_lr=1e-3, metric=metric)
    rng = np.random.default_rng(0)
    for i in range(60):
        value = float(rng.uniform(0.5, 1.5) + (1 / (i + 1) if i < 10 else 0)) - below
        plateau.on_epoch_end({metric: value})
        twin.step(value)
        assert ours.lr == theirs.param_groups[0]["lr"]
    assert ours.lr < 0.1 or below
