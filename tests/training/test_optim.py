"""SGD against its formula in plain NumPy, and the learning-rate schedules."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import numpy as np
import pytest

from minidl import Tensor, nn, ops, optim

SHAPES = [(3, 4), (5,), ()]


def parameters(seed: int = 0, dtype: Any = np.float64) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    return [Tensor(np.array(rng.standard_normal(shape), dtype), requires_grad=True) for shape in SHAPES]


def gradients(step: int) -> list[np.ndarray]:
    rng = np.random.default_rng([1, step])
    return [np.array(rng.standard_normal(shape)) for shape in SHAPES]


def take_step(sgd: optim.SGD, params: list[Tensor], grads: list[np.ndarray]) -> None:
    """A step with the given gradients, which must come through the tape and stay as they are."""
    sgd.zero_grad()
    for p, g in zip(params, grads, strict=True):
        (p * Tensor(g.astype(p.dtype))).sum().backward()
    held = [p.grad.numpy().copy() for p in params]
    sgd.step()
    for p, g in zip(params, held, strict=True):
        np.testing.assert_array_equal(p.grad.numpy(), g)


def formula(p: np.ndarray, grads: list[np.ndarray], lr: float, momentum: float = 0.0, weight_decay: float = 0.0,
            nesterov: bool = False) -> np.ndarray:
    """The updates of SGD's docstring, one after the other."""
    v = np.zeros_like(p)
    for g in grads:
        g = g + weight_decay * p
        v = momentum * v + g
        p = p - lr * (g + momentum * v if nesterov else v)
    return p


# ---------------------------------------------------------------- SGD
@pytest.mark.parametrize(("momentum", "nesterov", "weight_decay", "lr"), [
    (momentum, nesterov, decay, lr) for momentum, nesterov, decay, lr in
    itertools.product((0.0, 0.5, 0.9), (False, True), (0.0, 0.01), (0.0, 0.1)) if momentum or not nesterov])
def test_equals_the_formula(momentum: float, nesterov: bool, weight_decay: float, lr: float) -> None:
    params = parameters()
    start = [p.numpy().copy() for p in params]
    options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
    sgd = optim.SGD(params, **options)
    steps = [gradients(i) for i in range(6)]
    for grads in steps:
        take_step(sgd, params, grads)
    for p, begin, *grads in zip(params, start, *steps, strict=True):
        np.testing.assert_allclose(p.numpy(), formula(begin, grads, **options), rtol=1e-12, atol=1e-12)


def test_float32_stays_float32() -> None:
    params = parameters(dtype=np.float32)
    sgd = optim.SGD(params, lr=np.float64(0.1), momentum=0.9, weight_decay=0.1, nesterov=True)
    take_step(sgd, params, gradients(0))
    assert {p.dtype for p in params} == {np.dtype("float32")}


def test_updates_in_place() -> None:
    params = parameters()
    arrays = [p.data for p in params]
    sgd = optim.SGD(params, lr=0.1, momentum=0.9)
    take_step(sgd, params, gradients(0))
    assert all(p.data is array for p, array in zip(params, arrays, strict=True))


def test_groups_have_settings_of_their_own() -> None:
    params = parameters()
    start = [p.numpy().copy() for p in params]
    common = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": False}
    own = [{}, {"weight_decay": 0.0, "lr": 0.02}, {"momentum": 0.0, "weight_decay": 0.5}]
    sgd = optim.SGD([{"params": [p], **settings} for p, settings in zip(params, own, strict=True)], **common)
    steps = [gradients(i) for i in range(4)]
    for grads in steps:
        take_step(sgd, params, grads)
    for p, begin, settings, *grads in zip(params, start, own, *steps, strict=True):
        np.testing.assert_allclose(p.numpy(), formula(begin, grads, **{**common, **settings}), rtol=1e-12)


def test_groups_are_dicts_whose_entries_may_be_set_in_any_way() -> None:
    sgd = optim.SGD(parameters(), lr=0.1)
    group = sgd.groups[0]
    group |= {"lr": 0.2, "momentum": 0.5}
    assert group is sgd.groups[0]
    assert (sgd.lr, group["momentum"]) == (0.2, 0.5)
    with pytest.raises(ValueError, match=r"^SGD: lr is -1 but must be"):
        group |= {"lr": -1}


def test_lr_can_be_changed_between_steps() -> None:
    params = parameters()
    sgd = optim.SGD([{"params": params[:1], "lr": 0.3}, {"params": params[1:]}], lr=0.1)
    assert sgd.lr == 0.3
    with pytest.warns(UserWarning, match=r"^SGD: lr = 0.05 holds for all 2 groups now, which had 0.3, 0.1; to keep"):
        sgd.lr = 0.05
    assert [group["lr"] for group in sgd.groups] == [0.05, 0.05]
    before, grads = [p.numpy().copy() for p in params], gradients(0)
    take_step(sgd, params, grads)
    for p, begin, g in zip(params, before, grads, strict=True):
        np.testing.assert_allclose(p.numpy(), begin - 0.05 * g, rtol=1e-12)


def test_a_rate_that_is_halved_for_all_groups_is_said() -> None:
    """It is the first group's that is read; where groups have one rate, or shall have that of one, nothing is said."""
    w, b = parameters()[:2]
    both = optim.Together(optim.SGD([w], lr=0.1), optim.AdamW([b], lr=0.001))
    with pytest.warns(UserWarning, match=r"^Together: lr = 0.05 holds for all 2 groups now, which had 0.1, 0.001; .* "
                                         r"for group in opt.groups: group\['lr'\] = \.\.\.$") as said:
        both.lr *= 0.5
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both.lr *= 0.5
        both.groups[0]["lr"] = 0.1
        both.lr = 0.1
    assert [group["lr"] for group in both.groups] == [0.1, 0.1]


def test_parameters_without_gradient_are_left_alone() -> None:
    """They do not decay, and their velocity waits."""
    used, unused = parameters()[:2]
    sgd = optim.SGD([used, unused], lr=0.1, momentum=0.9, weight_decay=0.1)
    before = unused.numpy().copy()
    sgd.step()
    used_before = used.numpy().copy()
    (used * used).sum().backward()
    sgd.step()
    assert not np.array_equal(used.numpy(), used_before)
    np.testing.assert_array_equal(unused.numpy(), before)


def test_zero_grad_forgets() -> None:
    params = parameters()
    sgd = optim.SGD([{"params": params[:2]}, {"params": params[2:]}], lr=0.1)
    for p in params:
        (p * p).sum().backward()
    sgd.zero_grad()
    assert [p.grad for p in params] == [None] * 3


def test_a_step_makes_recorded_graphs_stale() -> None:
    w = parameters()[0]
    loss = (w * w).sum()
    (w * 3).sum().backward()
    optim.SGD([w], lr=0.1).step()
    with pytest.raises(ValueError, match="was changed in place after the operation was recorded"):
        loss.backward()


def test_velocity_follows_a_model_that_is_converted() -> None:
    net = nn.Linear(3, 2)
    sgd = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    expected = net.weight.numpy().astype(np.float64)
    grads = [np.random.default_rng(i).standard_normal((2, 3)).astype(np.float32) for i in range(3)]
    for i, g in enumerate(grads):
        if i == 1:
            net.to(dtype="float64")
        net.weight.grad = Tensor(g.astype(net.weight.dtype))
        sgd.step()
    assert net.weight.dtype == np.float64
    np.testing.assert_allclose(net.weight.numpy(), formula(expected, grads, 0.1, 0.9), rtol=1e-6)
    assert sgd._array("velocities", net.weight).dtype == np.float64


def test_minimises() -> None:
    """Least squares, to the solution of the normal equations."""
    rng = np.random.default_rng(0)
    x, target = rng.standard_normal((40, 3)), rng.standard_normal((40, 1))
    w = Tensor(np.zeros((3, 1)), requires_grad=True)
    sgd = optim.SGD([w], lr=0.05, momentum=0.9, nesterov=True)
    for _ in range(300):
        sgd.zero_grad()
        ops.mse_loss(Tensor(x) @ w, Tensor(target)).backward()
        sgd.step()
    np.testing.assert_allclose(w.numpy(), np.linalg.lstsq(x, target)[0], atol=1e-8)


def test_forget_is_as_before_the_first_step() -> None:
    one, other = parameters(), parameters()
    sgd, fresh = (optim.SGD(params, lr=0.1, momentum=0.9) for params in (one, other))
    take_step(sgd, one, gradients(0))
    velocities = [array for _, array in sgd._kept["velocities"].pairs()]
    sgd.forget()
    for p, q in zip(one, other, strict=True):
        p.data[...] = q.data
    for optimizer, params in ((sgd, one), (fresh, other)):
        take_step(optimizer, params, gradients(1))
    for p, q in zip(one, other, strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())
    assert all(now is before for now, before in zip(
        (array for _, array in sgd._kept["velocities"].pairs()), velocities, strict=True))


W = Tensor([1.0], requires_grad=True)
GROUP_KEYS = "must have 'params' and may have name, lr, momentum, weight_decay, nesterov$"


@pytest.mark.parametrize(("params", "options", "error", "message"), [
    ([], {}, ValueError, r"SGD: got 0 parameters but needs at least 1; pass model\.parameters\(\)$"),
    ([{"params": []}], {}, ValueError, "SGD: got 0 parameters but needs at least 1"),
    ([W, W], {}, ValueError, "SGD: 2 parameters were given but only 1 are different; name each once$"),
    ([{"params": [W]}, {"params": [W]}], {}, ValueError, "SGD: 2 parameters were given but only 1 are different"),
    ([W], {"lr": -0.1}, ValueError, r"SGD: lr is -0\.1 but must be a finite number of at least 0$"),
    ([W], {"lr": "0.1"}, ValueError, r"SGD: lr is '0\.1' but must be a finite number of at least 0$"),
    ([W], {"lr": math.nan}, ValueError, "SGD: lr is nan but must be a finite number"),
    ([W], {"lr": math.inf}, ValueError, "SGD: lr is inf but must be a finite number"),
    ([W], {"momentum": -1}, ValueError, "SGD: momentum is -1 but must be a finite number of at least 0$"),
    ([W], {"weight_decay": -1}, ValueError, "SGD: weight_decay is -1 but must be a finite number of at least 0$"),
    ([{"params": [W], "lr": None}], {}, ValueError, "SGD: lr is None but must be a finite number"),
    ([W], {"nesterov": True}, ValueError,
     "SGD: nesterov=True needs a momentum but momentum is 0; set momentum above 0$"),
    ([{"params": [W], "rate": 1}], {}, ValueError,
     rf"SGD: a parameter group has keys \['params', 'rate'\] but {GROUP_KEYS}"),
    ([{"lr": 1}], {}, ValueError, rf"SGD: a parameter group has keys \['lr'\] but {GROUP_KEYS}"),
    ([np.ones(1)], {}, TypeError, r"SGD: a parameter is a ndarray; pass model\.parameters\(\)$"),
    ([W, {"params": [W]}], {}, TypeError, "SGD: a parameter is a dict; pass"),
    ([{"params": [W]}, W], {}, TypeError, "SGD: a parameter is a dict; pass"),
    ([Tensor([1.0])], {}, TypeError, "SGD: a parameter is a Tensor that is not a leaf with requires_grad=True; pass"),
    ([W * 2], {}, TypeError, "SGD: a parameter is a Tensor that is not a leaf with requires_grad=True; pass"),
    (nn.Sequential(nn.ReLU()), {}, TypeError, r"SGD: a parameter is a ReLU; pass model\.parameters\(\)$"),
])
def test_sgd_refuses(params: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        optim.SGD(params, **{"lr": 0.1, **options})


# ---------------------------------------------------------------- schedules: step -> factor
@pytest.mark.parametrize(("schedule", "expected"), [
    (optim.constant(), [1, 1, 1, 1, 1, 1, 1]),
    (optim.step(3), [1, 1, 1, 0.1, 0.1, 0.1, 0.01]),
    (optim.step(2, gamma=0.5), [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125]),
    (optim.linear(4), [1, 0.75, 0.5, 0.25, 0, 0, 0]),
    (optim.linear(2, end=0.5), [1, 0.75, 0.5, 0.5, 0.5, 0.5, 0.5]),
    (optim.cosine(4), [1, 0.5 + 0.5 ** 1.5, 0.5, 0.5 - 0.5 ** 1.5, 0, 0, 0]),
    (optim.cosine(2, end=0.2), [1, 0.6, 0.2, 0.2, 0.2, 0.2, 0.2]),
    (optim.warmup(4, optim.linear(2)), [0.25, 0.5, 0.75, 1, 1, 0.5, 0]),
    (optim.warmup(1, optim.constant()), [1, 1, 1, 1, 1, 1, 1]),
    (optim.schedule("constant", 9), [1, 1, 1, 1, 1, 1, 1]),
    (optim.schedule("step", 6), [1, 1, 0.1, 0.1, 0.01, 0.01, 0.001]),
    (optim.schedule("linear", 4), [1, 0.75, 0.5, 0.25, 0, 0, 0]),
    (optim.schedule("cosine", 2), [1, 0.5, 0, 0, 0, 0, 0]),
    (optim.schedule("warmup-cosine", 3), [1, 1, 0.5, 0, 0, 0, 0]),
    (optim.schedule("linear", 0), [1, 0, 0, 0, 0, 0, 0]),
])
def test_schedule(schedule: optim.Schedule, expected: list[float]) -> None:
    np.testing.assert_allclose([schedule(i) for i in range(7)], expected, atol=1e-12)
    assert all(isinstance(schedule(i), float) for i in range(7))


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32])
@pytest.mark.parametrize("name", optim.SCHEDULES)
def test_schedules_take_numpys_integers(name: str, kind: Any) -> None:
    mine, wanted = optim.schedule(name, kind(40)), optim.schedule(name, 40)
    assert [mine(i) for i in range(300)] == [wanted(i) for i in range(300)]
    assert optim.warmup(kind(2), optim.step(kind(3)))(6) == optim.warmup(2, optim.step(3))(6)


@pytest.mark.parametrize("name", optim.SCHEDULES)
@pytest.mark.parametrize("total", [1, 2, 3, 19, 20, 21, 1000])
def test_named_schedules_stay_between_0_and_1(name: str, total: int) -> None:
    factors = [optim.schedule(name, total)(i) for i in range(total)]
    assert all(0 <= factor <= 1 for factor in factors)
    assert max(factors) == 1 or (name == "one-cycle" and 3 * total % 10)     # whose peak lies between two steps


@pytest.mark.parametrize(("build", "message"), [
    (lambda: optim.step(0), "step: every is 0 but must be an int of at least 1$"),
    (lambda: optim.linear(-3), "linear: total is -3 but must be an int of at least 1$"),
    (lambda: optim.cosine(1.5), r"cosine: total is 1\.5 but must be an int of at least 1$"),
    (lambda: optim.warmup(0, optim.constant()), "warmup: steps is 0 but must be an int of at least 1$"),
    (lambda: optim.schedule("exponential", 10),
     "schedule: 'exponential' is not one of constant, step, linear, cosine, warmup-cosine, one-cycle$"),
])
def test_schedules_refuse(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        build()


# ---------------------------------------------------------------- beside PyTorch's, by its formulas
def one_cycle_of_pytorch(total: int, rise: float, div: float, final: float) -> list[float]:
    """torch.optim.lr_scheduler.OneCycleLR(max_lr=1, cycle_momentum=False, ...): two phases, each a cosine."""
    found, phases = [], [(float(rise * total) - 1, 1 / div, 1.0), (total - 1, 1.0, 1 / div / final)]
    for number in range(total):
        begin: float = 0
        for end, first, last in phases:
            if number <= end or end == total - 1:
                part = (number - begin) / (end - begin)
                found.append(last + (first - last) / 2 * (1 + math.cos(math.pi * part)))
                break
            begin = end
    return found


@pytest.mark.parametrize(("rise", "div", "final"), [(0.3, 25, 1e4), (0.25, 10, 100), (0.1, 25, 1e4), (0.99, 2, 5)])
@pytest.mark.parametrize("total", [1, 2, 3, 5, 11, 25, 33, 100, 469, 1001])
def test_one_cycle_is_pytorchs_formula(total: int, rise: float, div: float, final: float) -> None:
    expected, schedule = one_cycle_of_pytorch(total, rise, div, final), optim.one_cycle(total, rise, 1 / div,
                                                                                       1 / div / final)
    np.testing.assert_allclose([schedule(i) for i in range(total)], expected, rtol=1e-10, atol=1e-12)
    assert schedule(total + 7) == pytest.approx(expected[-1], abs=1e-12)


def test_one_cycle_by_hand() -> None:
    """Of 25 steps the peak lies at 6.5, of 11 at 2.3."""
    assert optim.one_cycle(25)(6) == pytest.approx(1 + (0.04 - 1) * (1 + math.cos(math.pi * 6 / 6.5)) / 2)
    assert optim.one_cycle(11)(3) == pytest.approx(4e-6 + (1 - 4e-6) * (1 + math.cos(math.pi * 0.7 / 7.7)) / 2)
    assert optim.one_cycle(10, rise=0.1)(0) == 1.0                       # at once, where PyTorch divides by 0
    assert optim.one_cycle(1, rise=1.0)(0) == 1.0


@pytest.mark.parametrize("total", [1, 7, 25, 469])
def test_other_schedules_are_pytorchs_recursions(total: int) -> None:
    """PyTorch's chainable forms multiply the rate step by step: StepLR, LinearLR, CosineAnnealingLR, warm-up."""
    rate, end = 1.0, 0.1
    for i in range(1, total + 1):
        rate *= 1 + (end - 1.0) / (total + (i - 1) * (end - 1.0))
        assert optim.linear(total, end)(i) == pytest.approx(rate)
    rate = 1.0
    for i in range(1, total + 1):
        rate = (1 + math.cos(math.pi * i / total)) / (1 + math.cos(math.pi * (i - 1) / total)) * (rate - end) + end
        assert optim.cosine(total, end)(i) == pytest.approx(rate)
    rate = 1.0
    for i in range(1, 3 * total):
        rate *= 0.5 if i % total == 0 else 1.0
        assert optim.step(total, 0.5)(i) == pytest.approx(rate)
    rise = optim.warmup(total, optim.constant())
    for i in range(total + 3):             # LinearLR(start_factor=1 / total, total_iters=total - 1)
        factor = 1 / total
        assert rise(i) == pytest.approx(factor + (1 - factor) * min(i, total - 1) / max(1, total - 1) if total > 1
                                        else 1.0)


# ---------------------------------------------------------------- the named schedules' corners
@pytest.mark.parametrize(("total", "rise"), [(1000, 50), (1019, 50), (1020, 51), (40, 2), (39, 1), (2, 1)])
def test_warmup_cosine_rises_over_a_twentieth_and_falls_over_the_rest(total: int, rise: int) -> None:
    schedule = optim.schedule("warmup-cosine", total)
    np.testing.assert_allclose([schedule(i) for i in range(rise)], [(i + 1) / rise for i in range(rise)])
    fall = total - rise
    np.testing.assert_allclose([schedule(rise + i) for i in range(fall)],
                               [(1 + math.cos(math.pi * i / fall)) / 2 for i in range(fall)], atol=1e-12)
    np.testing.assert_allclose([schedule(total), schedule(total + 1)], 0, atol=1e-12)


@pytest.mark.parametrize(("total", "third"), [(1000, 334), (999, 333), (7, 3), (3, 1), (2, 1), (1, 1)])
def test_step_divides_by_10_after_each_third(total: int, third: int) -> None:
    schedule = optim.schedule("step", total)
    np.testing.assert_allclose([schedule(i) for i in range(3 * third)],
                               [1] * third + [0.1] * third + [0.01] * third)
