"""Compiled steps do what the plain function does, are recorded anew when they must be, and refuse what they cannot.

On the CPU a replay gives the plain function's bits. On a CUDA device it does so where no call was fused.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import re
import threading
import tracemalloc
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import replace as with_
from typing import Any

import numpy as np
import pytest

import minidl
import zoo
from minidl import Tensor, init, nn, no_grad, ops, optim
from minidl.compile import passes
from minidl.compile.agree import Difference, compare
from minidl.compile.facts import Facts
from minidl.compile.plan import calls_aside
from minidl.compile.program import SHARING, Call, Dynamic, Program, Slot
from minidl.compile.record import CompileError
from minidl.compile.replay import Aside, ByCalls
from minidl.ops import cpu
from minidl.tensor import Node, mode

OPTIONS: dict[str, dict[str, Any]] = {"lenet5": {"in_channels": 1}, "krizhevsky2009": {"in_channels": 3},
                                      "mlp": {"in_channels": 3, "hidden": 20}, "perceptron": {"in_channels": 1}}
SETTINGS = [{}, {"momentum": 0.9}, {"momentum": 0.5, "nesterov": True}, {"weight_decay": 0.01},
            {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}]
FACTORS = optim.schedule("warmup-cosine", 300)


GROUP = {"lr": 0.1}


class Training:
    """A model with its optimizer and the step that trains it, plain or compiled, always from the same start."""

    def __init__(self, net: Callable[[], nn.Module], compiled: bool, device: str = "cpu", **settings: Any):
        minidl.manual_seed(3)
        self.net = net().to(device)
        self.sgd = optim.SGD(self.net.parameters(), **{"lr": 0.02, **settings})

        def step(x: Tensor, labels: Tensor) -> Tensor:
            self.sgd.zero_grad()
            loss = ops.cross_entropy(self.net(x), labels)
            loss.backward()
            self.sgd.step()
            return loss

        self.step: Any = minidl.compile(step) if compiled else step

    def arrays(self) -> dict[str, Any]:
        """Copies of all parameters, gradients and velocities."""
        found = {}
        for name, p in self.net.named_parameters():
            found |= {name: p.data.copy(), f"{name}.velocity": self.sgd._velocity(p).copy()}
            if p.grad is not None:
                found[f"{name}.grad"] = p.grad.data.copy()
        return found


def batch(name: str, n: int, seed: Any, device: str = "cpu") -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, OPTIONS[name]["in_channels"], 32, 32), dtype=np.float32)
    return Tensor(x, device=device), Tensor(rng.integers(0, 10, n), device=device)


def zoo_model(name: str) -> Callable[[], nn.Module]:
    return lambda: zoo.build(name, **OPTIONS[name])


def dense(*middle: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A small net on vectors of 8 with 3 classes."""
    return lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), *(layer() for layer in middle), nn.Linear(16, 3))


def half() -> nn.Module:
    return nn.Dropout(0.5)


def two_dropouts() -> nn.Module:
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 16), nn.Dropout(0.3))


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


# ---------------------------------------------------------------- compiled equals plain
@pytest.mark.parametrize("name", OPTIONS)
def test_a_thousand_steps_of_a_zoo_model(name: str) -> None:
    """With a rate that changes at every step, momentum and decay, and every eighth batch an odd one."""
    assert zoo.MODELS.keys() == OPTIONS.keys()
    batches = [batch(name, 1 if i == 7 else 2, i) for i in range(8)]
    pair = [Training(zoo_model(name), compiled, momentum=0.9, weight_decay=5e-4) for compiled in (False, True)]
    for i in range(1000):
        for each in pair:
            each.sgd.lr = 0.02 * FACTORS(i % 300)
        plain, compiled = (each.step(*batches[i % 8]) for each in pair)
        assert bits(plain) == bits(compiled), i
        if i % 100 < 2 or i > 995:
            assert_same_bits(*(each.arrays() for each in pair))
    assert pair[1].step.recordings == 4                                  # two for each signature
    assert np.isfinite(plain.item())


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_optimizer_settings(settings: dict[str, Any]) -> None:
    pair = [Training(dense(), compiled, **settings) for compiled in (False, True)]
    for i in range(50):
        for each in pair:
            each.sgd.lr = 0.1 / (1 + i)
        losses = [bits(each.step(*vectors(3 + (i % 5 == 4), i))) for each in pair]
        assert losses[0] == losses[1]
    assert_same_bits(*(each.arrays() for each in pair))
    assert pair[1].step.recordings == 4


def test_groups_with_rates_of_their_own() -> None:
    pair = [Training(dense(), compiled) for compiled in (False, True)]
    for each in pair:
        first, second = each.net[0].parameters(), each.net[2].parameters()
        each.sgd = optim.SGD([{"params": first, "lr": 0.3}, {"params": second, "momentum": 0.9}], lr=0.1)
    for i in range(20):
        for each in pair:
            each.sgd.groups[0]["lr"], each.sgd.groups[1]["lr"] = 0.3 / (i + 1), 0.01 * i
            each.step(*vectors(seed=i))
    assert_same_bits(*(each.arrays() for each in pair))
    assert pair[1].step.recordings == 2
    assert names(pair[1].step.program).count("sgd") == 2


def test_float64() -> None:
    pair = [Training(lambda: dense()().to(dtype="float64"), compiled, momentum=0.9) for compiled in (False, True)]
    for i in range(20):
        x, labels = vectors(seed=i)
        assert bits(pair[0].step(x.to(dtype="float64"), labels)) == bits(pair[1].step(x.to(dtype="float64"), labels))
    assert_same_bits(*(each.arrays() for each in pair))


@pytest.mark.parametrize("name", OPTIONS)
def test_a_hundred_replays_from_one_state_give_the_same_bits(name: str) -> None:
    each = Training(zoo_model(name), True, momentum=0.9)
    given = batch(name, 3, 0)
    each.step(*given)
    state = each.net.state_dict()
    seen = set()
    for _ in range(100):
        each.net.load_state_dict(state)
        for p in each.net.parameters():
            each.sgd._velocity(p)[...] = 0
        loss = each.step(*given)
        seen.add((bits(loss), *(array.tobytes() for array in each.arrays().values())))
    assert len(seen) == 1
    assert each.step.recordings == 2


def test_inputs_that_are_views() -> None:
    """Replays do not count on the layout that was recorded."""
    w = numbers(*range(12)).reshape(3, 4)
    step = minidl.compile(lambda x: (x @ w, x.sum(axis=0), x * 2, x.reshape(-1)))
    rng = np.random.default_rng(0)
    for layout in (np.ascontiguousarray, np.asfortranarray, lambda a: np.repeat(a, 2, 0)[::2], lambda a: a[:, ::-1]):
        x = Tensor(layout(rng.standard_normal((2, 3), dtype=np.float32)))
        for mine, other in zip(step(x), step.step(x), strict=True):
            assert bits(mine) == bits(other)


def test_a_gradient_clipped_in_the_step() -> None:
    """.grad may be read and set in a step: what an op made of it is what the update uses."""
    pair = []
    for compiled in (False, True):
        w = numbers(1, 2, 3, requires_grad=True)
        sgd = optim.SGD([w], lr=0.1)

        def step(x: Tensor, w: Tensor = w, sgd: optim.SGD = sgd) -> None:
            sgd.zero_grad()
            (w * w * x).sum().backward()
            w.grad = w.grad * 0.5
            sgd.step()

        run = minidl.compile(step) if compiled else step
        for i in range(5):
            run(numbers(i, 1, 2))
        pair.append((w.tolist(), w.grad.tolist()))
    assert pair[0] == pair[1]


def test_gradients_of_two_losses_add_up_within_a_step() -> None:
    w = numbers(1, 2, requires_grad=True)
    sgd = optim.SGD([w], lr=0.5)

    @minidl.compile
    def step(x: Tensor) -> None:
        sgd.zero_grad()
        (w * x).sum().backward()
        (w * x * x).sum().backward()

    for i in range(3):
        step(numbers(i, 2))
        assert w.grad.tolist() == [i + i * i, 6]


def test_gradients_are_seen_after_each_replay() -> None:
    """As arrays of the run's own: what was held before is not overwritten."""
    each = Training(dense(), True)
    held, copies = [], []
    for i in range(5):
        each.step(*vectors(seed=i))
        held.append([p.grad for p in each.net.parameters()])
        copies.append([bits(p.grad) for p in each.net.parameters()])
    assert [[bits(g) for g in gradients] for gradients in held] == copies
    assert len({g[0] for g in copies}) == 5


@pytest.mark.parametrize(("loss", "copies"), [
    (lambda p, q, x: p + q + x, 1), (lambda p, q, x: (p + q) * x, 1), (lambda p, q, x: p * x + q * x, 0)],
    ids=["one array for both", "one product for both", "equal products"])
def test_gradients_own_their_memory(loss: Callable[..., Tensor], copies: int) -> None:
    """Two that are equal are still two arrays: either may be changed in place."""
    p, q = numbers(1, 2, requires_grad=True), numbers(3, 4, requires_grad=True)
    sgd = optim.SGD([p, q], lr=0.1)

    @minidl.compile
    def step(x: Tensor) -> None:
        sgd.zero_grad()
        (loss(p, q, x) * x).sum().backward()
        sgd.step()

    for i in range(3):
        step(numbers(i, 1))
        one = numbers(0, 0, requires_grad=True)
        (loss(one, numbers(0, 0), numbers(i, 1)) * numbers(i, 1)).sum().backward()
        assert p.grad.tolist() == q.grad.tolist() == one.grad.tolist()
        assert not np.shares_memory(p.grad.data, q.grad.data)
    assert names(step.program).count("copy") == copies


def test_zero_grad_without_a_new_gradient_is_replayed() -> None:
    """A parameter that the step does not use has no gradient afterwards, whatever another step left there."""
    p, q = numbers(1, 2, requires_grad=True), numbers(3, 4, requires_grad=True)
    sgd = optim.SGD([p, q], lr=0.1)

    @minidl.compile
    def step(x: Tensor, both: bool) -> None:
        sgd.zero_grad()
        ((p * q if both else p) * x).sum().backward()

    for both in (False, True, False, True, False):
        step(numbers(1, 1), both)
        assert (q.grad is not None) == both


# ---------------------------------------------------------------- what steps take and return
@pytest.mark.parametrize("build", [
    lambda y: None, lambda y: y, lambda y: (y, y * 2), lambda y: [y], lambda y: {"loss": y, "n": 3},
    lambda y: {"a": (y, [y + 1, {"b": y - 1}]), "c": None}, lambda y: (), lambda y: ("text", 1.5, True, None)],
    ids=["nothing", "one", "tuple", "list", "dict", "nested", "empty", "plain values"])
def test_what_a_step_returns(build: Callable[[Tensor], Any]) -> None:
    def listed(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(map(listed, value))
        if isinstance(value, dict):
            return {name: listed(item) for name, item in value.items()}
        return ("Tensor", value.tolist(), value.requires_grad) if isinstance(value, Tensor) else value

    def step(x: Tensor) -> Any:
        return build(x * x)

    compiled = minidl.compile(step)
    for i in range(3):
        x = numbers(i, i + 1)
        assert listed(compiled(x)) == listed(step(x))


def test_returned_tensors_are_off_the_tape() -> None:
    w = numbers(2, requires_grad=True)
    step = minidl.compile(lambda x: x * w)
    for _ in range(3):
        assert not step(numbers(3)).requires_grad
    with pytest.raises(ValueError, match="does not require a gradient"):
        step(numbers(3)).backward()


def test_a_returned_loss_is_not_overwritten() -> None:
    each = Training(dense(), True)
    losses = [each.step(*vectors(seed=i)) for i in range(10)]
    assert len({bits(loss) for loss in losses}) == 10
    plain = Training(dense(), False)
    assert [plain.step(*vectors(seed=i)).item() for i in range(10)] == [loss.item() for loss in losses]


def test_inputs_by_name_and_plain_values() -> None:
    @minidl.compile
    def step(x: Tensor, *, y: Tensor, power: int = 1, name: str = "") -> Tensor:
        return x ** power - y if name else x ** power + y

    for _ in range(2):
        a, b = numbers(2, 3), numbers(10, 20)
        assert step(a, y=b).tolist() == [12, 23]
        assert step(y=b, x=a).tolist() == [12, 23]
        assert step(a, y=b, power=3).tolist() == [18, 47]
        assert step(a, y=b, power=3, name="minus").tolist() == [-2, 7]
        assert step(b, y=a).tolist() == [12, 23]


def test_equal_numbers_of_different_types_are_different_arguments() -> None:
    step = minidl.compile(lambda x, n: x * 2 if n is True else x * 3)
    assert [step(numbers(1), n).item() for n in (1, True, 1.0, True, 1)] == [3, 2, 3, 2, 3]


def test_the_same_tensor_twice_is_another_signature_than_two() -> None:
    step = minidl.compile(lambda x, y: x * y)
    a, b = numbers(2), numbers(5)
    for _ in range(2):
        assert [step(a, a).item(), step(a, b).item(), step(b, a).item(), step(b, b).item()] == [4, 10, 10, 25]


def test_an_argument_with_a_gradient_of_its_own() -> None:
    """Each gets its own gradient, not the one that was recorded."""
    step = minidl.compile(lambda w: (w * w).sum().backward())
    u, v = numbers(1, requires_grad=True), numbers(3, requires_grad=True)
    for _ in range(3):
        u.grad = v.grad = None
        step(u)
        assert u.grad.tolist() == [2]
        assert v.grad is None
        u.grad = None
        step(v)
        assert v.grad.tolist() == [6]
        assert u.grad is None


def test_numpy_arrays_are_inputs_too() -> None:
    step = minidl.compile(lambda x, i: (x * 2)[i])
    for i in (0, 1, 2):
        assert step(numbers(1, 2, 3), np.array([i])).tolist() == [2 * i + 2]
    assert step.program.inputs[1].dtype == np.int64


def test_inference_without_backward() -> None:
    net = dense(half)().eval()

    @minidl.compile
    def logits(x: Tensor) -> Tensor:
        with no_grad():
            return net(x)

    for i in range(4):
        x, _ = vectors(2 + i % 2, i)
        assert bits(logits(x)) == bits(net(x))
    assert all(p.grad is None for p in net.parameters())
    assert not logits.program.grads


def test_no_grad_around_the_call_is_another_signature() -> None:
    w = numbers(2, requires_grad=True)

    @minidl.compile
    def step(x: Tensor) -> Tensor:
        y = (x * w).sum()
        if y.requires_grad:
            y.backward()
        return y

    for _ in range(2):
        w.grad = None
        with no_grad():
            step(numbers(3))
        assert w.grad is None
        step(numbers(3))
        assert w.grad.tolist() == [3]


def test_a_compiled_step_within_another() -> None:
    inner = minidl.compile(lambda x: x * x)
    outer = minidl.compile(lambda x: inner(x) + inner(x + 1))
    for i in range(3):
        assert outer(numbers(i)).tolist() == [i * i + (i + 1) ** 2]
    assert names(outer.recorded).count("mul") == 2
    assert inner.program is None
    assert inner(numbers(3)).tolist() == [9]


def test_looks_like_its_function() -> None:
    def train(x: Tensor) -> Tensor:
        """One step."""
        return x

    step = minidl.compile(train)
    assert (step.__name__, step.__doc__, step.step) == ("train", "One step.", train)


def test_two_threads_with_a_step_each() -> None:
    """Neither sees the other's recording, nor its results."""
    expected = []
    for seed in range(2):
        plain = Training(dense(), False, momentum=0.9)
        expected.append([bits(plain.step(*vectors(seed=[seed, i]))) for i in range(200)])
    trained = [Training(dense(), True, momentum=0.9) for _ in range(2)]
    found: dict[int, Any] = {}
    together = threading.Barrier(2)

    def run(seed: int) -> None:
        together.wait()
        try:
            found[seed] = [bits(trained[seed].step(*vectors(seed=[seed, i]))) for i in range(200)]
        except Exception as error:
            found[seed] = error

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[0], found[1]] == expected


# ---------------------------------------------------------------- randomness
def test_dropout_draws_anew_and_as_the_plain_function() -> None:
    pair = [Training(dense(two_dropouts), compiled, momentum=0.9)
            for compiled in (False, True)]
    x, labels = vectors(8)
    losses = []
    for each in pair:
        minidl.manual_seed(11)
        losses.append([bits(each.step(x, labels)) for _ in range(40)])
    assert losses[0] == losses[1]
    assert_same_bits(*(each.arrays() for each in pair))
    assert pair[1].step.recordings == 2


def test_each_replay_draws_another_mask() -> None:
    step = minidl.compile(lambda x: ops.dropout(x, 0.5))
    x = Tensor(np.ones(64, np.float32))
    assert len({bits(step(x)) for _ in range(50)}) == 50
    minidl.manual_seed(5)
    first = [bits(step(x)) for _ in range(3)]
    minidl.manual_seed(5)
    assert [bits(step(x)) for _ in range(3)] == first
    minidl.manual_seed(5)
    assert [bits(ops.dropout(x, 0.5)) for _ in range(3)] == first


def test_two_draws_are_two() -> None:
    """Calls that look the same draw from other keys; a draw nobody reads still counts as one."""
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        a = ops.dropout(x, 0.5)
        ops.dropout(x, 0.5)
        return a, ops.dropout(x, 0.5)

    compiled, x = minidl.compile(step), Tensor(np.ones(64, np.float32))
    expected = []
    for run in (step, compiled):
        minidl.manual_seed(2)
        expected.append([tuple(map(bits, run(x))) for _ in range(3)])
    assert expected[0] == expected[1]
    assert len({mask for masks in expected[0] for mask in masks}) == 6
    assert names(compiled.program).count("dropout") == 2


def test_a_key_that_is_given_is_kept() -> None:
    step = minidl.compile(lambda x: ops.dropout(x, 0.5, key=(1, 2)))
    x = Tensor(np.ones(64, np.float32))
    assert len({bits(step(x)) for _ in range(5)}) == 1


@pytest.mark.parametrize("index", [[2, 0], ([1, 1], [0, 2]), np.array([True, False, True])], ids=str)
def test_an_index_that_is_made_in_the_step_may_be_another_array_of_the_same_values(index: Any) -> None:
    step = minidl.compile(lambda x: x[copy.deepcopy(index)] * 2)
    for i in range(4):
        x = Tensor(np.arange(9.0).reshape(3, 3) + i)
        np.testing.assert_array_equal(step(x).numpy(), x.numpy()[index] * 2)
    assert step.recordings == 2


def test_two_recordings_that_agree_are_one_program_which_nobody_changes() -> None:
    step = minidl.compile(lambda x: x * 2)
    for _ in range(3):
        step(numbers(1))
        assert [len(entries) for entries in step._programs.values()] == [1]
    with pytest.raises(AttributeError, match="name"):
        step.program.calls[0].name = "add"


@pytest.mark.parametrize(("reads", "same"), [
    ((GROUP.get, GROUP.get), True), ((GROUP.get, dict(GROUP).get), False), ((GROUP.keys, GROUP.get), False),
    ((len, len), True), ((len, functools.partial(len)), False),
    ((functools.partial(len, "lr"), functools.partial(len, "lr")), True),
    ((functools.partial(len, "lr"), functools.partial(len, "rl")), False)])
def test_a_number_that_is_read_elsewhere_is_another(reads: Any, same: bool) -> None:
    programs = []
    for read in reads:
        make = Maker()
        x = make.slot("input")
        programs.append(make.program([x], make.call("mul", x, Dynamic(0, read))))
    with contextlib.nullcontext() if same else pytest.raises(Difference, match=r"^it gave mul at"):
        compare(*programs)


# ---------------------------------------------------------------- recorded anew
def test_train_and_eval() -> None:
    """Each is recorded once; going back finds the program again."""
    pair, losses = [Training(dense(half), compiled) for compiled in (False, True)], []
    for each in pair:
        minidl.manual_seed(4)
        for i in range(12):
            each.net.train(i % 4 < 2)
            losses.append(bits(each.step(*vectors())))
            assert each is pair[0] or ("dropout" in names(each.step.program)) == (i % 4 < 2)
    assert losses[:12] == losses[12:]
    assert_same_bits(*(each.arrays() for each in pair))
    assert pair[1].step.recordings == 4


@pytest.mark.usefixtures("fp32")
def test_precision() -> None:
    each = Training(dense(), True)
    for i, precision in enumerate(["fp32", "fp32", "tf32", "tf32", "fp32", "tf32"]):
        minidl.set_precision(precision)
        each.step(*vectors())
        assert each.step.recordings == (1, 2, 3, 4, 4, 4)[i]


@pytest.mark.parametrize(("setting", "value"), [("momentum", 0.5), ("weight_decay", 0.3), ("nesterov", True)])
def test_an_optimizers_setting(setting: str, value: Any) -> None:
    pair = [Training(dense(), compiled, momentum=0.9) for compiled in (False, True)]
    for i in range(9):
        for each in pair:
            if i == 3:
                each.sgd.groups[0][setting] = value
            each.step(*vectors(seed=i))
    assert_same_bits(*(each.arrays() for each in pair))
    assert pair[1].step.recordings == 4


def test_a_model_that_is_converted() -> None:
    pair = [Training(dense(), compiled, momentum=0.9) for compiled in (False, True)]
    for i, dtype in enumerate(["float32", "float32", "float64", "float64", "float64", "float32", "float32"]):
        x, labels = vectors(seed=i)
        for each in pair:
            if each.net[0].weight.dtype != dtype:
                each.net.to(dtype=dtype)
            each.step(x.to(dtype=dtype), labels)
        assert_same_bits(*(each.arrays() for each in pair))
    assert pair[1].step.recordings == 6


def test_a_converted_constant() -> None:
    """A Tensor from outside whose array is another now: nothing reads the old one."""
    scale = numbers(2)
    step = minidl.compile(lambda x: x * scale)
    assert [step(numbers(3)).item(), step(numbers(4)).item()] == [6, 8]
    scale.data = np.array([5], np.float32)
    assert [step(numbers(3)).item(), step(numbers(4)).item()] == [15, 20]


def test_a_state_that_is_loaded_is_used_and_not_recorded_anew() -> None:
    pair = [Training(dense(), compiled, momentum=0.9) for compiled in (False, True)]
    state = pair[0].net.state_dict()
    for i in range(9):
        for each in pair:
            if i % 3 == 2:
                each.net.load_state_dict(state)
            each.step(*vectors(seed=i))
    assert_same_bits(*(each.arrays() for each in pair))
    assert pair[1].step.recordings == 2


@pytest.mark.parametrize("other", [
    lambda x: Tensor(np.ones((2, 2), np.float32)), lambda x: x.to(dtype="float64"),
    lambda x: Tensor(x.data, requires_grad=True)], ids=["shape", "dtype", "requires_grad"])
def test_signatures(other: Callable[[Tensor], Tensor]) -> None:
    step = minidl.compile(lambda x: x * 2)
    x = numbers(1, 2)
    for _ in range(4):
        step(x)
    assert step.recordings == 2
    y = other(x)
    for _ in range(4):
        assert step(y).tolist() == (y.data * 2).tolist()
    assert step.recordings == 4


# ---------------------------------------------------------------- what is refused
W = numbers(1, 2, requires_grad=True)
X = numbers(3, 4)
HELD = numbers(1)
Pair = namedtuple("Pair", "a b")

REPEAT = r", which a replay could not repeat; "
READS = rf"<lambda> reads a Tensor's values at PLACE{REPEAT}return the Tensor and read it outside the step$"
MAKES = (rf"<lambda> makes a Tensor from data at PLACE{REPEAT}make it outside and use it here, or pass it as an "
         "argument$")
TAKES = rf"<lambda> takes a Tensor's array \(\.data\) at PLACE{REPEAT}compute with the Tensor$"
MOVES = rf"<lambda> moves or converts a Tensor with \.to\(\) at PLACE{REPEAT}do it outside the step$"

REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "item": (lambda x: x.sum().item(), READS),
    "float": (lambda x: float((x * x).sum()), READS),
    "int": (lambda x: int(x.sum()), READS),
    "control flow": (lambda x: x * 2 if x.sum() > 0 else x, READS),
    "a loop's bound": (lambda x: [x * 2 for _ in range(int(x.sum()))], READS),
    "numpy": (lambda x: x * x.numpy().max(), READS),
    "np.asarray": (lambda x: np.asarray(x), READS),
    "tolist": (lambda x: x.tolist(), READS),
    "print": (lambda x: print(x), READS),
    "repr": (lambda x: repr(x * 2), READS),
    "an f-string": (lambda x: f"{x}", READS),
    "a weight": (lambda x: x * W.detach().numpy()[0].item(), READS),
    "a Tensor of numbers": (lambda x: x * Tensor([1.0, 2.0]), MAKES),
    "a Tensor of an array": (lambda x: x * Tensor(np.ones(2, np.float32)), MAKES),
    "a Tensor of .data": (lambda x: x * Tensor(x.data + 1), TAKES),
    "labels of numbers": (lambda x: ops.cross_entropy(x.reshape(1, 2), [0]), MAKES),
    "a dtype": (lambda x: x.to(dtype="float64"), MOVES),
    "an array of no primitive": (lambda x: np.ones(2), r"<lambda> returns an array of shape \(2,\) that no primitive "
                                 r"made; return Tensors that it computed \(PLACE\)$"),
    "a tuple with one": (lambda x: (x * 2, [np.ones(2)]), r"<lambda> returns an array of shape \(2,\) that no"),
    "a named tuple": (lambda x: Pair(x * 2, x * 3), "<lambda> returns a Pair, which a replay could not make anew; "
                      r"return Tensors and plain values, in tuples, lists and dicts \(PLACE\)$"),
    "an object": (lambda x: [nn.ReLU()], "<lambda> returns a ReLU, which a replay could not make anew"),
    "a Tensor's .data set": (lambda x: setattr(W, "data", HELD),
                             rf"<lambda> sets a Tensor's array \(\.data\) at PLACE{REPEAT}"
                             r"write t\[\.\.\.\] = value under minidl\.no_grad\(\)$"),
    "an initialiser": (lambda x: init.zeros_(X),
                       rf"<lambda> initialises a Tensor at PLACE{REPEAT}do it outside the step$"),
    "velocities": (lambda x: SGD.forget(),
                   rf"<lambda> forgets an optimizer's velocities at PLACE{REPEAT}do it outside the step$"),
    "a rate": (lambda x: setattr(SGD, "lr", 0.5),
               rf"<lambda> sets an optimizer's lr at PLACE{REPEAT}set it outside the step$"),
    "an array in place": (lambda x: np.add(ARRAY, x, out=ARRAY), "<lambda> changes an array in place at PLACE"),
    "a sum on the tape": (lambda x: X.__iadd__(W), r"<lambda> adds in place, on the tape, to a Tensor from outside "
                          rf"\(shape \(2,\)\) at PLACE{REPEAT}write t = t \+ x, with another name$"),
    "an iterator": (lambda x: next(ITERATOR), r"<lambda> reads the iterator 'ITERATOR', which a replay could not "
                    r"advance; take from it outside, and pass what it gave as an argument \(PLACE\)$"),
    "a Tensor that is kept": (lambda x: KEPT.append(x * 2), r"<lambda> makes a Tensor \(shape \(2,\)\) at PLACE that "
                              "is kept after the step, where a replay would leave the old one; return it, or write "),
}
ARRAY, ITERATOR, KEPT = np.zeros(2, np.float32), (i for i in range(3)), list[Any]()
SGD = optim.SGD([numbers(1, requires_grad=True)], lr=0.1)


def placed(message: str, function: Callable[..., Any]) -> str:
    """The message with this file and the line of a function of one line."""
    code = function.__code__
    lines = {line for _, _, line in code.co_lines() if line}
    return message.replace("PLACE", rf"{re.escape(code.co_filename)}:({'|'.join(map(str, sorted(lines)))})")


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    """With the line that did it; nothing is left being recorded."""
    function, message = REFUSED[what]
    step = minidl.compile(function)
    for _ in range(2):
        with pytest.raises(CompileError, match=f"^compile: {placed(message, function)}"):
            step(X)
        assert mode.recorder is None
        KEPT.clear()
    assert step.program is None
    assert W.grad is None
    assert X.tolist() == [3, 4]
    assert isinstance(CompileError("of ValueError"), ValueError)


@pytest.mark.parametrize("convert", [
    lambda x: Tensor(x, dtype="float64") * 2, lambda x: Tensor(x, requires_grad=True) * 2], ids=["dtype", "copied"])
def test_an_input_converted_in_the_step_is_refused_or_right(convert: Callable[[Any], Tensor]) -> None:
    """A new Tensor of an input must not be the first call's."""
    step = minidl.compile(convert)
    for i in range(3):
        try:
            assert step(np.full(2, i, np.float32)).tolist() == [2 * i, 2 * i]
        except CompileError as error:
            assert re.search(placed("at PLACE", convert), str(error))           # noqa: PT017


def test_gradients_add_up_across_steps() -> None:
    """Where there is one from before the step it is added to, as in the plain function."""
    w = numbers(1, requires_grad=True)

    @minidl.compile
    def accumulate(x: Tensor) -> None:
        (w * x).sum().backward()

    for start in range(3):
        w.grad = None
        for i in range(6):
            accumulate(numbers(3 + start))
            assert w.grad.tolist() == [(3 + start) * (i + 1)]
    assert accumulate.recordings == 4                                    # two with a gradient before, two without


def test_an_update_before_the_gradient() -> None:
    """step(); zero_grad(); backward(): each update takes the gradients of the call before."""
    found = []
    for compiled in (False, True):
        w = numbers(1, 2, requires_grad=True)
        sgd = optim.SGD([w], lr=0.1, momentum=0.9)

        def step(x: Tensor, w: Tensor = w, sgd: optim.SGD = sgd) -> None:
            sgd.step()
            sgd.zero_grad()
            (w * w * x).sum().backward()

        run: Any = minidl.compile(step) if compiled else step
        for i in range(7):
            run(numbers(i, 1))
        found.append((w.tolist(), w.grad.tolist()))
        assert not compiled or run.recordings == 3
    assert found[0] == found[1]


def test_a_graph_from_before_the_step_is_refused() -> None:
    w, v = numbers(2, requires_grad=True), numbers(3, requires_grad=True)

    def through(h: Tensor) -> None:
        (h * v).sum().backward()

    step = minidl.compile(through)
    for graph in (lambda: w * 1, lambda: w + 1):
        w.grad = v.grad = None
        with pytest.raises(CompileError, match="through goes backward through what was computed before the step"):
            step(graph())
    w.grad = v.grad = None
    for _ in range(2):
        v.grad = None
        step((w * 1).detach())
        assert v.grad.tolist() == [2]
        assert w.grad is None


@pytest.mark.parametrize("argument", [[X], {"x": X}, {1, 2}, bytearray(1)], ids=lambda value: type(value).__name__)
def test_unhashable_arguments_are_refused(argument: Any) -> None:
    step = minidl.compile(lambda x, option=None: X * 2)
    message = (rf"^compile: an argument is a {type(argument).__name__}, which cannot be told from another; pass "
               "Tensors, arrays and plain values, and use other objects from outside the step$")
    with pytest.raises(TypeError, match=message):
        step(argument)
    with pytest.raises(TypeError, match=message):
        step(X, option=argument)


def test_outside_a_step_nothing_is_refused() -> None:
    step = minidl.compile(lambda x: x * 2)
    y = step(X)
    assert (y.sum().item(), float(y[0]), y.to(dtype="float64").dtype) == (14, 6, np.float64)


@pytest.mark.parametrize("wrong", [3, -1])
def test_a_label_out_of_range(wrong: int) -> None:
    """The plain function's error, also from a replay; parameters are as they were, and the next step works."""
    pair = [Training(dense(), compiled, momentum=0.9) for compiled in (False, True)]
    for each in pair:
        for i in range(3):
            each.step(*vectors(seed=i))
    x, _ = vectors()
    bad = Tensor(np.array([0, 1, wrong, 2]))
    messages = []
    before = [{name: array for name, array in each.arrays().items() if "grad" not in name} for each in pair]
    for each in pair:
        with pytest.raises(ValueError, match="label") as caught:
            each.step(x, bad)
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]
    for each, held in zip(pair, before, strict=True):
        assert_same_bits({name: array for name, array in each.arrays().items() if "grad" not in name}, held)
        each.step(*vectors(seed=9))
    assert_same_bits(*(each.arrays() for each in pair))
    assert pair[1].step.recordings == 2


def test_an_error_of_the_function_passes_and_nothing_is_kept() -> None:
    each = Training(dense(), True)
    with pytest.raises(ValueError, match="label"):
        each.step(vectors()[0], Tensor(np.array([0, 1, 7, 2])))
    assert mode.recorder is None
    assert each.step.program is None
    plain = Training(dense(), False)
    assert bits(each.step(*vectors())) == bits(plain.step(*vectors()))


def test_a_refusal_that_the_step_catches_is_raised_all_the_same() -> None:
    """The plain function meets no error there, and goes another way."""
    def step(x: Tensor) -> Tensor:
        try:
            factor = float(x.sum())
        except Exception:
            factor = 100.0
        return x * factor
    compiled = minidl.compile(step)
    for _ in range(3):
        with pytest.raises(CompileError, match="reads a Tensor's values at"):
            compiled(numbers(2))


def test_an_error_that_was_caught_and_kept_holds_no_tensors() -> None:
    """Its frames do, of functions that have ended: no step sees these again."""
    errors = []

    def fails(h: Tensor) -> None:
        k = h * 2
        raise ZeroDivisionError(f"{k.shape}")

    def step(x: Tensor) -> Tensor:
        h = x * 3
        try:
            fails(h)
        except ZeroDivisionError as error:
            if not errors:
                errors.append(error)
        return h + 1
    compiled = minidl.compile(step)
    for i in range(5):
        assert compiled(numbers(i)).item() == 3 * i + 1


# ---------------------------------------------------------------- streams
class FakeStream:
    """Notes what a stream is given: waits as (self, other), calls by name."""

    log: list[Any] = []
    current: list[str] = ["main"]

    def __init__(self, name: str):
        self.name = name

    def record(self) -> str:
        return self.name

    def wait_event(self, event: str) -> None:
        self.log.append((self.name, event))

    def __enter__(self) -> None:
        self.current.append(self.name)

    def __exit__(self, *error: object) -> None:
        self.current.pop()


def test_gradients_that_only_the_update_reads_go_aside_and_are_waited_for() -> None:
    each = Training(dense(half), True)
    each.step(*vectors())
    program = each.step.program
    named = zip((call.name for call in program.calls), calls_aside(program), strict=True)
    aside = {name for name, waiting in named if waiting is not None}
    assert aside
    assert aside <= {"linear_grad_w", "linear_grad_b"}

    FakeStream.log = []
    streams = Aside(FakeStream("main"), [FakeStream("a"), FakeStream("b")], FakeStream("last"))

    def primitive(name: str) -> Callable[[], None]:
        def call() -> None:
            FakeStream.log.append(f"{name} on {FakeStream.current[-1]}")
        call.__name__ = name
        return call

    for number, (name, waiting) in enumerate((("first", None), ("grad", 4), ("second", None), ("update_metrics", 6),
                                              ("sgd", None), ("next", None))):
        streams.run(number, waiting, primitive(name), [], {})
    streams.join(6)
    assert FakeStream.log == ["first on main", ("a", "main"), "grad on a", "second on main", ("last", "main"),
                              "update_metrics on last", ("main", "a"), "sgd on main", "next on main",
                              ("main", "last")]        # nobody waits for b, which had no work


# ---------------------------------------------------------------- memory
def alive() -> int:
    """How many objects of minidl there are."""
    return sum(isinstance(thing, (Tensor, Node, Slot, Call, Program, Dynamic)) for thing in gc.get_objects())


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Memory is counted with the garbage collector off: flat by reference counts alone."""
    gc.collect()
    gc.disable()
    try:
        tracemalloc.start()
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


def test_memory_of_replays_is_flat() -> None:
    each = Training(dense(half), True, momentum=0.9)
    x, labels = vectors()

    def steps(count: int) -> None:
        for i in range(count):
            each.sgd.lr = 0.1 / (1 + i)
            each.step(x, labels)

    steps(20)
    with no_collections():
        objects = alive()
        steps(6000)                                          # until the interpreter keeps its 2,000 tuples of each size
        before = tracemalloc.get_traced_memory()[0]
        steps(10_000)
        after = tracemalloc.get_traced_memory()[0]
        assert alive() == objects
        assert after - before < 20_000


def test_recording_keeps_no_values() -> None:
    """A program knows shapes; of a run's arrays only those from outside live on."""
    step = minidl.compile(lambda x: ((x * 2) * 3).sum())
    gc.collect()
    tracemalloc.start()
    try:
        step(Tensor(np.ones(1 << 20, np.float32)))
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- passes
class Maker:
    """Programs by hand: values are float32 numbers in arrays of 2."""

    def __init__(self) -> None:
        self.count, self.calls = 0, list[Call]()

    def slot(self, kind: str = "result") -> Slot:
        self.count += 1
        return Slot(self.count - 1, kind, np.zeros(2, np.float32))

    def call(self, name: str, *arguments: Any, results: int = 1, **options: Any) -> Any:
        slots = tuple(self.slot() for _ in range(results))
        self.calls.append(Call(cpu, name, arguments, options, slots, results > 1))
        return slots[0] if len(slots) == 1 else slots

    def program(self, inputs: list[Slot], outputs: Any, grads: Any = ()) -> Program:
        return Program(inputs, [], self.calls, outputs, list(grads), [], [], Facts())


def test_dead_code() -> None:
    make = Maker()
    x = make.slot("input")
    y = make.call("mul", x, x)
    make.call("add", make.call("neg", x), x)                             # neither of the two is read
    z = make.call("exp", y)
    g = make.call("tanh", x)
    make.call("sgd", (x,), (y,), None, 0.1, 0.0, 0.0, False, results=0)
    program = make.program([x], {"z": [z]}, [(W, g)])
    small = passes.dead_code(program)
    assert names(small) == ["mul", "exp", "tanh", "sgd"]
    assert small.notes == ["dead code: 2 calls fewer"]
    assert names(program) == ["mul", "neg", "add", "exp", "tanh", "sgd"]  # as it was
    assert names(passes.dead_code(small)) == names(small)


def test_dead_code_keeps_a_call_for_one_of_its_results() -> None:
    make = Maker()
    x = make.slot("input")
    _, second = make.call("cross_entropy", x, x, results=2)
    make.call("check_labels", x, 10, results=0)
    assert names(passes.dead_code(make.program([x], second))) == ["cross_entropy", "check_labels"]


def test_common_subexpressions() -> None:
    make = Maker()
    x, y = make.slot("input"), make.slot("input")
    first, second = make.call("mul", x, x), make.call("mul", x, x)
    other, deep = make.call("mul", x, y), [make.call("exp", first), make.call("exp", second)]
    last = make.call("add", deep[1], other)
    small = passes.common_subexpressions(make.program([x, y], (first, [last]), [(W, last), (X, None)]))
    assert names(small) == ["mul", "mul", "exp", "add"]
    assert small.outputs == (first, [last])
    assert small.grads == [(W, last), (X, None)]
    assert small.calls[-1].arguments == (deep[0], other)
    assert small.notes == ["common subexpressions: 2 calls fewer"]


def test_equal_gradients_are_computed_twice() -> None:
    """Each leaf's gradient is an array of its own; so is each result of the step."""
    make = Maker()
    x = make.slot("input")
    g, h, y, z = (make.call("exp", x) for _ in range(4))
    make.call("tanh", make.call("exp", x))
    small = passes.common_subexpressions(make.program([x], (y, z), [(W, g), (X, h)]))
    assert names(small) == ["exp"] * 4 + ["tanh"]
    assert (small.grads, small.outputs) == ([(W, g), (X, h)], (y, z))
    assert small.calls[-1].arguments == (y,)


# ---------------------------------------------------------------- copies
def test_copy_elision() -> None:
    """A copy of what has memory of its own, and which nobody else looks at: a gradient, and the update's."""
    make = Maker()
    x, w = make.slot("input"), make.slot("outside")
    g, both = make.call("exp", x), make.call("cross_entropy", x, x, results=2)
    copies = [make.call("copy", value) for value in (g, *both)]
    again = make.call("copy", copies[1])
    make.call("sgd", (w, w), (copies[0], again), None, 0.1, 0.0, 0.0, False, results=0)
    program = make.program([x], {"y": [copies[2]]}, [(W, copies[0]), (X, again)])
    small = passes.copy_elision(program)
    assert names(small) == ["exp", "cross_entropy", "sgd"]
    assert small.calls[-1].arguments[:2] == ((w, w), (g, both[0]))
    assert small.outputs == {"y": [both[1]]}
    assert small.grads == [(W, g), (X, both[0])]
    assert small.notes == ["copy elision: 4 calls fewer"]
    assert names(program).count("copy") == 4                             # as it was


def a_view(make: Maker, x: Slot, name: str) -> Program:
    """What others hold, of memory that others read."""
    g = make.call("exp", x)
    return make.program([x], make.call("neg", g), [(W, make.call("copy", make.call(name, g, (2,))))])


def a_view_alone(make: Maker, x: Slot) -> Program:
    """Of memory that nobody else reads: it could have gaps, or the same element in two places."""
    return make.program([x], None, [(W, make.call("copy", make.call("spread", make.call("exp", x), (2,), (), False)))])


def read_before(make: Maker, x: Slot) -> Program:
    g = make.call("exp", x)
    return make.program([x], make.call("reshape", g, (2, 1)), [(W, make.call("copy", g))])


def read_after(make: Maker, x: Slot) -> Program:
    g = make.call("exp", x)
    c = make.call("copy", g)
    return make.program([x], make.call("reshape", g, (2, 1)), [(W, c)])


def copied_twice(make: Maker, x: Slot) -> Program:
    g = make.call("exp", x)
    return make.program([x], None, [(W, make.call("copy", g)), (X, make.call("copy", g))])


def returned(make: Maker, x: Slot) -> Program:
    g = make.call("exp", x)
    return make.program([x], [g], [(W, make.call("copy", g))])


def anothers_gradient(make: Maker, x: Slot) -> Program:
    g = make.call("exp", x)
    return make.program([x], None, [(W, g), (X, make.call("copy", g))])


def an_input(make: Maker, x: Slot) -> Program:
    return make.program([x], None, [(W, make.call("copy", x))])


def an_array_from_outside(make: Maker, x: Slot) -> Program:
    return make.program([x], None, [(W, make.call("copy", make.slot("outside")))])


def an_input_given_back(make: Maker, x: Slot) -> Program:
    make.call("sum_to", x, (2,))
    make.calls[-1] = with_(make.calls[-1], results=(x,))
    return make.program([], None, [(W, make.call("copy", x))])


def given_back(make: Maker, x: Slot) -> Program:
    g = make.call("exp", x)
    make.call("sum_to", g, (2,))
    make.calls[-1] = with_(make.calls[-1], results=(g,))
    return make.program([x], None, [(W, make.call("copy", g))])


@pytest.mark.parametrize("build", [
    *(functools.partial(a_view, name=name) for name in sorted(SHARING)), a_view_alone, read_before, read_after,
    copied_twice, returned, anothers_gradient, an_input, an_array_from_outside, an_input_given_back, given_back],
    ids=lambda build: build.keywords["name"] if isinstance(build, functools.partial) else build.__name__)
def test_copies_that_are_needed(build: Callable[..., Program]) -> None:
    make = Maker()
    program = build(make, make.slot("input"))
    small = passes.copy_elision(program)
    assert small.calls == program.calls
    assert (small.outputs, small.grads) == (program.outputs, program.grads)


def test_the_recorded_copies_of_lenet5_go_and_the_bits_stay() -> None:
    each = Training(zoo_model("lenet5"), True, momentum=0.9)
    x, labels = batch("lenet5", 3, 0)
    state = each.net.state_dict()
    each.step(x, labels)
    recorded, found = each.step.recorded, []
    small = passes.copy_elision(recorded)
    assert "copy" in names(recorded)
    assert "copy" not in names(small)
    for program in (recorded, small):
        each.net.load_state_dict(state)
        for p in each.net.parameters():
            each.sgd._velocity(p)[...] = 0
        loss = ByCalls(program).run([x.data, labels.data])
        found.append({"loss": loss.data, **each.arrays()})
    assert_same_bits(*found)


@pytest.mark.parametrize(("one", "two"), [
    (((2,),), ((3,),)), ((1,), (True,)), ((1,), (1.0,)), ((((1,), 2),), (((1, 2),),)), (((1,), (2, 3)), ((1, 2), (3,))),
    ((Dynamic(0, int),), (Dynamic(1, int),)), ((np.zeros(2),), (np.zeros(2),)), ((slice(1),), (slice(2),))], ids=repr)
def test_calls_that_differ_are_two(one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
    make = Maker()
    x = make.slot("input")
    a, b, c = make.call("reshape", x, *one), make.call("reshape", x, *two), make.call("reshape", x, *one)
    small = passes.common_subexpressions(make.program([x], make.call("concatenate", (a, b, c), 0)))
    assert small.calls[-1].arguments[0] == (a, b, a)


def test_options_and_names_count() -> None:
    make = Maker()
    x = make.slot("input")
    made = (make.call("sum", x, axis=0), make.call("sum", x, axis=1), make.call("max", x, axis=0),
            make.call("sum", x, axis=0), make.call("sum", x, keepdims=0))
    last = make.call("concatenate", made, 0)
    small = passes.common_subexpressions(make.program([x], last))
    assert small.calls[-1].arguments[0] == (made[0], made[1], made[2], made[0], made[4])


def test_not_across_an_update() -> None:
    make = Maker()
    x = make.slot("input")
    before = make.call("mul", x, x)
    for _ in range(2):
        make.call("sgd", (x,), (before,), None, 0.1, 0.0, 0.0, False, results=0)
    after, again = make.call("mul", x, x), make.call("mul", x, x)
    last = make.call("add", after, again)
    small = passes.common_subexpressions(make.program([x], (before, last)))
    assert names(small) == ["mul", "sgd", "sgd", "mul", "add"]
    assert small.calls[-1].arguments == (after, after)


def test_what_is_changed_in_place_is_computed_by_itself() -> None:
    """Two equal values of which one, or a view of one, is changed later are two."""
    make = Maker()
    x = make.slot("input")
    first, second, third = (make.call("mul", x, x) for _ in range(3))
    view = make.call("reshape", second, (2, 1))
    make.call("setitem", view, ..., 0.0, results=0)
    last = make.call("add", make.call("add", first, third), second)
    small = passes.common_subexpressions(make.program([x], last))
    assert names(small) == ["mul", "mul", "reshape", "setitem", "add", "add"]
    assert small.calls[-1].arguments[1] is second


def test_equal_results_of_a_step_are_two_arrays() -> None:
    step = minidl.compile(lambda x: (x + 1, x + 1))
    for _ in range(4):
        a, b = step(numbers(1))
        a.data[...] = 7
        assert b.tolist() == [2]


def test_a_recorded_square_is_computed_once() -> None:
    step = minidl.compile(lambda x: (x * x, (x * x).exp(), (x + 1).sum() * 0 + x.sum()))
    for i in range(3):
        a, b, c = step(numbers(i, 2))
        assert (a.tolist(), b.tolist(), c.item()) == ([i * i, 4], np.exp(np.float32([i * i, 4])).tolist(), i + 2)
    assert names(step.recorded).count("mul") == 3
    assert names(step.program).count("mul") == 2
    assert names(passes.common_subexpressions(step.recorded)).count("mul") == 2


def test_a_recorded_result_that_nobody_reads_is_dropped() -> None:
    @minidl.compile
    def step(x: Tensor) -> Tensor:
        x.exp().log().tanh()
        return x * 2

    assert [step(numbers(i)).item() for i in range(3)] == [0, 2, 4]
    assert names(step.recorded) == ["exp", "log", "tanh", "mul"]
    assert names(step.program) == ["mul"]


def test_the_gradient_of_what_needs_none_is_not_computed() -> None:
    """And what was computed before an update is computed again after it."""
    w = numbers(1, 2, requires_grad=True)
    sgd = optim.SGD([w], lr=0.5)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        sgd.zero_grad()
        before = (w * x).sum()
        before.backward()
        sgd.step()
        return before, (w * x).sum()

    compiled = minidl.compile(step)
    for _ in range(3):
        state = w.numpy().copy()
        expected = [t.item() for t in step(numbers(1, 3))]
        w.data[...] = state
        assert [t.item() for t in compiled(numbers(1, 3))] == expected
    assert expected[0] != expected[1]
    assert names(compiled.program).count("sgd") == 1


# ---------------------------------------------------------------- how programs look
def test_a_printed_program_shows_each_call() -> None:
    each = Training(dense(half), True, momentum=0.9)
    each.step(*vectors())
    for program in (each.step.program, each.step.recorded):
        lines = repr(program).splitlines()
        assert lines[0] == f"program of {len(program.calls)} calls; inputs $0 float32[4, 8], $1 int64[4]"
        for call, line in zip(program.calls, lines[1:], strict=False):
            assert re.fullmatch(rf"  ((%\d+ \w+\[[\d, ]*\](, )?)+ = )?{call.name}\(.*\)", line), line
        assert lines[1 + len(program.calls)].startswith("  return %")
    assert re.search(r"sgd\(.*, \?\d+, 0\.9, 0\.0, False\)", repr(each.step.program))       # its rate is read anew
    assert "dead code" in repr(each.step.program)
    assert "dead code" not in repr(each.step.recorded)


def test_a_drawn_program_names_each_call() -> None:
    each = Training(dense(half), True, momentum=0.9)
    each.step(*vectors())
    program = each.step.program
    lines = program.to_dot().splitlines()
    assert (lines[0], lines[-1]) == ("digraph program {", "}")
    labels = [re.fullmatch(r'  (\w+) \[label="([^"]*)"(, shape=ellipse)?\];', line) for line in lines]
    nodes = {found[1]: found[2] for found in labels if found}
    assert [nodes[f"c{i}"] for i in range(len(program.calls))] == names(program)
    edges = [re.fullmatch(r'  (\w+) -> (\w+) \[label="\[[\d, ]*\]"\];', line) for line in lines]
    assert all(found[1] in nodes and found[2] in nodes for found in edges if found)
    assert sum(map(bool, edges)) == sum(len(list(call.reads())) for call in program.calls)
    assert sum(map(bool, [*labels, *edges])) == len(lines) - 3


# ---------------------------------------------------------------- on a GPU
def fused(step: Any) -> bool:
    """Whether a pass put calls together into primitives that were not recorded."""
    return not set(names(step.program)) <= set(names(step.recorded))


def assert_near(step: Any, mine: Any, other: Any, rtol: float = 1e-3, atol: float = 1e-4) -> None:
    """Equal bits where nothing was fused, else within what many steps make of float32's rounding."""
    assert mine.keys() == other.keys()
    for name in mine:
        a, b = (np.asarray(value.get()) if hasattr(value, "get") else value for value in (mine[name], other[name]))
        if fused(step):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=name)
        else:
            np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPTIONS)
def test_gpu_fifty_steps_of_a_zoo_model(name: str) -> None:
    """Odd last batches among them, and a rate that changes at every step."""
    batches = [batch(name, 5 if i == 3 else 16, i, "cuda") for i in range(4)]
    pair = [Training(zoo_model(name), compiled, "cuda", momentum=0.9, weight_decay=5e-4) for compiled in (False, True)]
    for i in range(50):
        losses = []
        for each in pair:
            each.sgd.lr = 0.01 * FACTORS(i)
            losses.append({"loss": each.step(*batches[i % 4]).data})
        assert_near(pair[1].step, *losses)
        if i % 10 == 9 or i < 3:
            assert_near(pair[1].step, *(each.arrays() for each in pair))
    assert pair[1].step.recordings == 4
    assert all(p.device == "cuda" for p in pair[1].net.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPTIONS)
def test_gpu_a_thousand_steps_of_a_zoo_model(name: str) -> None:
    """Each from where the plain step starts, so that rounding does not build up; every eighth batch is an odd one."""
    batches = [batch(name, 5 if i == 7 else 16, i, "cuda") for i in range(8)]
    pair = [Training(zoo_model(name), compiled, "cuda", momentum=0.9, weight_decay=5e-4) for compiled in (False, True)]
    both = list(zip(*(each.net.parameters() for each in pair), strict=True))
    for i in range(1000):
        for p, q in both:
            q.data[...] = p.data
            pair[1].sgd._velocity(q)[...] = pair[0].sgd._velocity(p)
        for each in pair:
            each.sgd.lr = 0.02 * FACTORS(i % 300)
        assert_near(pair[1].step, *({"loss": each.step(*batches[i % 8]).data} for each in reversed(pair)))
        if i % 50 < 2:
            assert_near(pair[1].step, *(each.arrays() for each in pair))
    assert pair[1].step.recordings == 4
    assert np.isfinite(float(pair[1].step(*batches[0])))


@pytest.mark.gpu
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_gpu_optimizer_settings(settings: dict[str, Any]) -> None:
    pair = [Training(dense(), compiled, "cuda", **settings) for compiled in (False, True)]
    for i in range(20):
        for each in pair:
            each.sgd.lr = 0.1 / (1 + i)
            each.step(*vectors(3 + (i % 5 == 4), i, "cuda"))
    assert_near(pair[1].step, *(each.arrays() for each in pair))


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPTIONS)
def test_gpu_a_hundred_replays_give_the_same_bits(name: str) -> None:
    each = Training(zoo_model(name), True, "cuda", momentum=0.9)
    given = batch(name, 16, 0, "cuda")
    for _ in range(2):
        each.step(*given)                                                # recorded; replays may round otherwise
    state, seen = each.net.state_dict(), set()
    for _ in range(100):
        each.net.load_state_dict(state)
        for p in each.net.parameters():
            each.sgd._velocity(p)[...] = 0
        loss = each.step(*given)
        seen.add((bits(loss), *(array.get().tobytes() for array in each.arrays().values())))
    assert len(seen) == 1
    assert each.step.recordings == 2


@pytest.mark.gpu
def test_gpu_memory_of_replays_is_flat() -> None:
    import cupy

    each = Training(zoo_model("perceptron"), True, "cuda")
    given = batch("perceptron", 128, 0, "cuda")
    pool = cupy.get_default_memory_pool()

    def steps(count: int) -> None:
        for i in range(count):
            each.sgd.lr = 0.1 / (1 + i)
            each.step(*given)
        cupy.cuda.Device().synchronize()

    steps(100)
    with no_collections():
        objects = alive()
        steps(6000)
        traced = tracemalloc.get_traced_memory()[0]
        used, held = pool.used_bytes(), pool.total_bytes()
        steps(10_000)
        after = tracemalloc.get_traced_memory()[0]
        assert (pool.used_bytes(), pool.total_bytes()) == (used, held)
        assert after - traced < 50_000
        assert alive() == objects


@pytest.mark.gpu
def test_gpu_dropout() -> None:
    """Its key comes from the host at each replay: such a program is not captured, and right all the same."""
    pair = [Training(dense(two_dropouts), compiled, "cuda", momentum=0.9)
            for compiled in (False, True)]
    losses = []
    for each in pair:
        minidl.manual_seed(11)
        losses.append({str(i): each.step(*vectors(8, 0, "cuda")).data for i in range(30)})
    assert_near(pair[1].step, *losses)
    assert_near(pair[1].step, *(each.arrays() for each in pair))
    assert len({float(loss) for loss in losses[1].values()}) == 30
    assert pair[1].step.recordings == 2


@pytest.mark.gpu
def test_gpu_train_and_eval() -> None:
    pair = [Training(dense(half), compiled, "cuda") for compiled in (False, True)]
    for each in pair:
        minidl.manual_seed(4)
        for i in range(12):
            each.net.train(i % 4 < 2)
            each.step(*vectors(seed=i, device="cuda"))
    assert_near(pair[1].step, *(each.arrays() for each in pair))
    assert pair[1].step.recordings == 4


@pytest.mark.gpu
def test_gpu_a_returned_loss_is_not_overwritten() -> None:
    pair = [Training(dense(), compiled, "cuda") for compiled in (False, True)]
    losses = [{str(i): each.step(*vectors(seed=i, device="cuda")) for i in range(10)} for each in pair]
    read = [{name: loss.numpy() for name, loss in each.items()} for each in losses]
    assert_near(pair[1].step, *read)
    assert len({loss.item() for loss in read[1].values()}) == 10


@pytest.mark.gpu
def test_gpu_returned_views() -> None:
    """A result with gaps between its values, or in another order, is returned as what it is."""
    def step(x: Tensor) -> dict[str, Tensor]:
        y = x * 2
        return {"T": y.T, "steps": y[:, ::2], "back": y[::-1], "part": y[1:, 1:3], "input": x, "flat": y.reshape(-1)}

    compiled = minidl.compile(step)
    for i in range(4):
        x = Tensor(np.random.default_rng(i).standard_normal((4, 6), dtype=np.float32), device="cuda")
        for name, mine in compiled(x).items():
            np.testing.assert_array_equal(mine.numpy(), step(x)[name].numpy(), err_msg=name)


@pytest.mark.gpu
def test_gpu_inputs_that_are_views() -> None:
    import cupy

    step = minidl.compile(lambda x: (x * 2, x.sum(axis=0)))
    for i in range(6):
        whole = cupy.asarray(np.random.default_rng(i).standard_normal((4, 6), dtype=np.float32))
        x = Tensor((whole, whole[::-1], whole[:, ::-1])[i % 3])
        for mine, other in zip(step(x), step.step(x), strict=True):
            np.testing.assert_array_equal(mine.numpy(), other.numpy())


@pytest.mark.gpu
@pytest.mark.parametrize("move", [
    pytest.param(lambda x, labels: Tensor(x, device="cuda") * 2, id="Tensor"),
    pytest.param(lambda x, labels: Tensor(x).to("cuda") * 2, id="to"),
    pytest.param(lambda x, labels: Tensor(labels).to("cuda"), id="labels")])
def test_gpu_a_numpy_batch_moved_in_the_step_is_refused(move: Callable[..., Any]) -> None:
    step = minidl.compile(move)
    for _ in range(2):
        with pytest.raises(CompileError, match=placed("at PLACE, which a replay could not repeat", move)):
            step(np.ones((2, 3), np.float32), np.array([0, 1]))


@pytest.mark.gpu
def test_gpu_a_label_out_of_range_leaves_the_parameters_readable() -> None:
    """Whether the replay says so at once or the labels were looked at before."""
    each = Training(dense(), True, "cuda")
    for i in range(3):
        each.step(*vectors(seed=i, device="cuda"))
    with contextlib.suppress(ValueError):
        each.step(vectors(device="cuda")[0], Tensor(np.array([0, 1, 3, 2]), device="cuda"))
    assert all(p.numpy().shape == p.shape for p in each.net.parameters())


@pytest.mark.gpu
def test_gpu_a_model_that_moves() -> None:
    pair = [Training(dense(), compiled, "cuda", momentum=0.9) for compiled in (False, True)]
    for i, device in enumerate(["cuda", "cuda", "cpu", "cpu", "cuda", "cuda"]):
        for each in pair:
            if each.net[0].weight.device != device:
                each.net.to(device)
            each.step(*vectors(seed=i, device=device))
        assert_near(pair[1].step, *(each.arrays() for each in pair))


@pytest.mark.gpu
def test_gpu_what_no_graph_can_hold_is_replayed_call_by_call() -> None:
    """cuBLAS refuses to be captured; the next step, which can be, is a graph again."""
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3), device="cuda")
    product, double = minidl.compile(lambda x: x.T @ x), minidl.compile(lambda x: x * 2)
    for i in range(4):
        for step in (product, double):
            y = x * float(i)
            np.testing.assert_allclose(step(y).numpy(), step.step(y).numpy(), rtol=1e-6)
    assert (product.recordings, double.recordings) == (2, 2)
    assert any(note.startswith("call by call, not as a graph: NotImplementedError") for note in product.program.notes)


@pytest.mark.gpu
def test_gpu_a_draw_that_nobody_reads_counts() -> None:
    x = Tensor(np.ones(64, np.float32), device="cuda")

    def step(x: Tensor) -> Tensor:
        ops.dropout(x, 0.5)
        return x * 2
    found = []
    for run in (step, minidl.compile(step)):
        minidl.manual_seed(3)
        for _ in range(5):
            run(x)
        found.append(bits(ops.dropout(x, 0.5)))
    assert found[0] == found[1]
