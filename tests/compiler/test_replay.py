"""Compiled steps do what the plain function does: replays on the CPU give its bits, and leave no memory behind."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from checks.steps import (
    FACTORS,
    OPTIONS,
    SETTINGS,
    Training,
    alive,
    assert_same_bits,
    batch,
    bits,
    dense,
    half,
    names,
    no_collections,
    normalising,
    numbers,
    regularised,
    two_dropouts,
    vectors,
    zoo_model,
)
from tiers import tiered

import minidl
from minidl import Tensor, nn, no_grad, ops, optim, zoo
from minidl.core.mode import changes

# ---------------------------------------------------------------- compiled equals plain
LONG = tiered([12, 1000], slow=1)          # steps


@pytest.mark.parametrize("count", LONG)
@pytest.mark.parametrize("name", OPTIONS)
def test_many_steps_of_a_zoo_model(name: str, count: int) -> None:
    """With a rate that changes at every step, momentum and decay, and every fourth batch an odd one. Fewer steps where
    images are large."""
    assert zoo.MODELS.keys() == OPTIONS.keys()
    batches = [batch(name, 1 if i % 4 == 3 else 2, i) for i in range(8)]
    pair = [Training(zoo_model(name), compiled, momentum=0.9, weight_decay=5e-4) for compiled in (False, True)]
    count = count if zoo.MODELS[name].image_size == 32 else 12
    for i in range(count):
        for each in pair:
            each.sgd.lr = 0.02 * FACTORS(i % 300)
        plain, compiled = (each.step(*batches[i % 8]) for each in pair)
        assert bits(plain) == bits(compiled), i
        if i % 100 < 2 or i > count - 5:
            assert_same_bits(*(each.arrays() for each in pair))
    assert pair[1].step.recordings == 4                                  # two for each signature
    assert np.isfinite(plain.item())


@pytest.mark.parametrize("count", tiered([50, 1000], slow=1))
def test_many_steps_of_normalisation(count: int) -> None:
    """The running values are the program's, too: the same bits after each step, with odd batches, evaluation between,
    and steps that train a frozen normalisation."""
    pair = [Training(normalising, compiled, momentum=0.9, weight_decay=5e-4) for compiled in (False, True)]
    looks = [minidl.compile(pair[1].net), pair[0].net]
    for i in range(count):
        given = vectors(5 if i % 8 == 7 else 8, i)
        frozen = i % 100 > 89              # by its running values, which stay
        for each in pair:
            each.sgd.lr = 0.02 * FACTORS(i % 300)
            each.net.train()
            each.net.twice.train(not frozen)
        before = pair[1].net.twice.running_var.numpy().copy()
        plain, compiled = (each.step(*given) for each in pair)
        assert bits(plain) == bits(compiled), i
        assert np.array_equal(before, pair[1].net.twice.running_var.numpy()) == frozen
        assert_same_bits(*(each.arrays() for each in pair))
        if i % 50 == 0:
            for each in pair:
                each.net.eval()
            with no_grad():
                assert bits(looks[0](given[0])) == bits(looks[1](given[0]))
            assert_same_bits(*(each.arrays() for each in pair))
    assert "batch_norm" in names(pair[1].step.program)


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


@pytest.mark.parametrize("count", tiered([5, 100], slow=1))
@pytest.mark.parametrize("name", OPTIONS)
def test_replays_from_one_state_give_the_same_bits(name: str, count: int) -> None:
    each = Training(zoo_model(name), True, momentum=0.9)
    given = batch(name, 3, 0)
    each.step(*given)
    state = each.net.state_dict()
    seen = set()
    for _ in range(count):
        each.set_back(state)
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


def test_a_loop_that_sets_rates_and_modes_costs_no_second_look() -> None:
    """Where `changes` has moved, a replay looks at all attributes of all that is watched, which takes longer than the
    rest."""
    class Own(nn.Module):
        @property
        def scale(self) -> float:
            return 2.0

        @scale.setter
        def scale(self, value: float) -> None:
            self.__dict__["scale"] = value             # which no one else notes

    net, own = dense()(), Own()
    own.scale = 1.0
    sgd = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    both = optim.Together(sgd, optim.Adam([numbers(1, requires_grad=True)], 0.1))

    def moved(act: Callable[[], object]) -> bool:
        before = changes[0]
        act()
        return changes[0] != before

    assert not moved(lambda: setattr(sgd, "lr", 0.2))
    assert not moved(lambda: setattr(both, "lr", 0.3))
    assert sgd.lr == both.lr == 0.3
    assert not moved(net.train)
    assert moved(net.eval)
    assert moved(lambda: setattr(sgd, "momentum", 0.5))
    assert moved(lambda: setattr(own, "scale", 1.0))   # a property, whose setter may do anything


def test_a_warning_of_several_rates_names_the_line_that_sets_one() -> None:
    sgd = optim.SGD([{"params": [numbers(1, requires_grad=True)], "lr": rate} for rate in (0.1, 0.2)], 0.1)
    with pytest.warns(UserWarning, match="holds for all 2 groups now") as caught:
        sgd.lr = 0.05
    assert [each.filename for each in caught] == [__file__]


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


@pytest.mark.parametrize("count", LONG)
def test_many_steps_of_normalisation_and_dropout(count: int) -> None:
    """Masks, losses and running values: the same bits after each step, with an odd batch at the end of each four."""
    pair, runs = [Training(regularised, compiled, momentum=0.9, weight_decay=5e-4) for compiled in (False, True)], []
    for each in pair:                      # one after the other: both draw from one generator
        minidl.manual_seed(11)
        runs.append([])
        for i in range(count):
            each.sgd.lr = 0.02 * FACTORS(i % 300)
            loss = each.step(*vectors(5 if i % 4 == 3 else 8, i))
            runs[-1].append((bits(loss), {name: hash(array.tobytes()) for name, array in each.arrays().items()}))
    for i, (plain, compiled) in enumerate(zip(*runs, strict=True)):
        assert plain == compiled, i
    assert_same_bits(*(each.arrays() for each in pair))
    assert {"batch_norm", "dropout"} <= {*names(pair[1].step.program)}
    assert pair[1].step.recordings == 4    # two for each size of a batch


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


@pytest.mark.parametrize("cleared", ["before", "after", "never"])
def test_a_replay_that_raises_leaves_what_the_plain_step_does(cleared: str) -> None:
    """Gradients and draws: an error in the middle of a step, which is caught."""
    def told(compiled: bool) -> list[Any]:
        minidl.manual_seed(3)
        w, found = Tensor([1.0, 2.0, 3.0], requires_grad=True), []
        sgd = optim.SGD([w], 0.1)

        def step(labels: Tensor) -> None:
            if cleared == "before":
                sgd.zero_grad()
            logits = ops.dropout(minidl.ones(2, 3), 0.5) * w
            (ops.cross_entropy(logits, labels) * minidl.rand(1).sum()).backward()
            sgd.step()
            if cleared == "after":
                sgd.zero_grad()
        run = minidl.compile(step) if compiled else step
        for i in range(6):
            with pytest.raises(ValueError, match="label") if i == 4 else nullcontext():
                run(Tensor(np.array([i % 3, 9 if i == 4 else 0])))
            found.append((w.tolist(), None if w.grad is None else w.grad.tolist(), minidl.core.rng.get_state()))
        return found
    assert told(True) == told(False)


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


# ---------------------------------------------------------------- memory
@pytest.mark.parametrize(("warm_up", "count", "most"), tiered(
    [(100, 400, 80_000), (6_000, 10_000, 20_000)], slow=1, several=True))     # 2,000 tuples of each size are kept
def test_memory_of_replays_is_flat(warm_up: int, count: int, most: int) -> None:
    each = Training(dense(half), True, momentum=0.9)
    x, labels = vectors()

    def steps(count: int) -> None:
        for i in range(count):
            each.sgd.lr = 0.1 / (1 + i)
            each.step(x, labels)

    steps(20)
    with no_collections():
        objects = alive()
        steps(warm_up)
        before = tracemalloc.get_traced_memory()[0]
        steps(count)
        after = tracemalloc.get_traced_memory()[0]
        assert alive() == objects
        assert after - before < most


def test_recorded_calls_take_the_memory_of_the_plain_step() -> None:
    """Gradients of a chain are let go of as it is walked: in 20 values and few more; all of them would be 40."""
    def step(x: Tensor) -> None:
        y, w.grad = x * w, None
        for _ in range(20):
            y = ops.sigmoid(y)
        y.sum().backward()

    w, x = (Tensor(np.ones(1 << 18, np.float32), requires_grad=needs) for needs in (True, False))
    compiled, peaks = minidl.compile(step), []
    with no_collections():
        for each in (step, compiled, compiled, compiled):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            each(x)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    assert compiled.recordings == 2
    assert 20 << 20 < peaks[0] < 26 << 20
    assert max(peaks[1:]) < 1.05 * peaks[0]


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
