"""Gradients of gradients: of every op against differences, of compiled steps, and what is refused."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from cases import CASES as PLAIN
from cases import LAYOUTS, Case, attended, attention, normal, positive
from tiers import tiered

import minidl
from minidl import Tensor, nn, ops, optim
from minidl.core.gradcheck import GradcheckError
from minidl.core.mode import recorded
from minidl.ops import second
from minidl.ops.common.geometry import PoolGeometry

# Cases of an op: in the fast tier; in the slow one, as many as show each planted fault; on CUDA
FEW, SOME, ON_CUDA = 2, 6, 12

# Closures that call what no gradient of minidl's own calls: k, gy, x -> the gradient
CLOSURES: dict[str, Callable[..., Any]] = {
    **{name: lambda k, gy, x, name=name: k.mul(gy, getattr(k, name)(x)) for name in (
        "abs", "ceil", "copy", "cos", "elu", "erf", "exp", "expm1", "floor", "gelu", "gelu_tanh", "hardsigmoid",
        "leaky_relu", "log", "log1p", "relu", "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "softplus", "sqrt",
        "tanh")},
    "remainder and floor_divide": lambda k, gy, x: k.mul(gy, k.add(k.remainder(x, 1), k.floor_divide(x, 0.3))),
    "tril and triu": lambda k, gy, x: k.mul(gy, k.add(k.tril(x, 0), k.mul(x, k.triu(x, 1)))),
    "sub and le": lambda k, gy, x: k.where(k.le(x, 1), k.sub(gy, x), k.mul(gy, x)),
    "maximum and ge": lambda k, gy, x: k.where(k.ge(x, 1), gy, k.maximum(gy, x)),
    "minimum and ne": lambda k, gy, x: k.where(k.ne(x, 1), k.minimum(gy, x), gy),
    "zeros_like": lambda k, gy, x: k.mul(gy, k.add(x, k.zeros_like(x))),
    "pow and ones_like": lambda k, gy, x: k.mul(gy, k.pow(x, k.mul(k.ones_like(x), 3))),
    "clip": lambda k, gy, x: k.mul(gy, k.clip(x, 0.7, 1.4)),
    "softmax": lambda k, gy, x: k.mul(gy, k.softmax(x, 1)),
    "log_softmax": lambda k, gy, x: k.mul(gy, k.log_softmax(x, 1)),
    "matmul": lambda k, gy, x: k.mul(gy, k.matmul(k.matmul(x, k.transpose(x, (1, 0))), x)),
    "linear": lambda k, gy, x: k.mul(gy, k.linear(k.linear(x, x, None), k.transpose(x, (1, 0)), k.mean(x, (0,)))),
    "sum and mean": lambda k, gy, x: k.mul(gy, k.add(k.sum(x, (0,), True), k.mean(x, (1,), True))),
    "cumsum": lambda k, gy, x: k.mul(gy, k.cumsum(x, 1)),
    "take_along": lambda k, gy, x: k.mul(gy, k.take_along(x, k.reshape(k.argmax(x, 1), (3, 1)), 1)),
    "avg_pool2d": lambda k, gy, x: k.mul(gy, k.reshape(k.interpolate(k.avg_pool2d(
        k.reshape(x, (1, 1, 3, 4)), PoolGeometry(1, 1, 3, 4, 1, 2, 3, 2, 1, 2, 0, 0, 0, 0)), (1, 2)), (3, 4))),
    "adaptive_avg_pool2d": lambda k, gy, x: k.mul(gy, k.reshape(k.adaptive_avg_pool2d(
        k.reshape(x, (1, 1, 3, 4)), (2, 1)), (2, 1, 1))),
    "dropout": lambda k, gy, x: k.mul(gy, k.dropout(x, 0.4, (1, 2))),
}


def with_closure(gradient: Callable[..., Any]) -> Callable[..., Tensor]:
    """x, of (3, 4), with a gradient that is none of it: its own gradient is what counts."""
    def body(k, x: Tensor):
        return k.copy(x), lambda gy, need: (k.sum_to(gradient(k, gy, x), (3, 4)) if len(gy.shape) == 2 else gy,)
    return minidl.op(body)


CASES = {name: [case for case in cases if name != "prod" or case.arrays()[0].size < 4000]          # refused, see below
         for name, cases in PLAIN.items() if cases[0].differentiable} | {
    f"a closure of {name}": [Case(name, with_closure(gradient), np.copy, ((3, 4),), {}, positive)]
    for name, gradient in CLOSURES.items()}
# A mask of one column changes nothing.
CASES["scaled_dot_product_attention"].insert(0, Case("scaled_dot_product_attention", attended, attention, (
    (3, 4), (5, 4), (5, 2), (3, 5)), {}, normal))


def problem(case: Case, layout: str = "contiguous") -> str | None:
    """What is wrong with second derivatives of a case: the gradients that are recorded are the plain ones, and their
    own gradients are what differences say."""
    store, view = LAYOUTS[layout]

    def fn(*stored: Tensor) -> Tensor:
        return case.call(*map(view, stored), **case.options)

    xs = [Tensor(store(x), requires_grad=True) for x in case.arrays()]
    y = fn(*xs)
    if not y.requires_grad:
        return None
    gy = Tensor(np.random.default_rng(0).standard_normal(y.shape))
    plain = minidl.grad(y, xs, gy, retain_graph=True, allow_unused=True)
    taped = minidl.grad(y, xs, gy, create_graph=True, allow_unused=True)
    for i, (a, b) in enumerate(zip(plain, taped, strict=True)):
        if a is None or b is None:
            if a is not b:
                return f"input {i}: {a} and {b}"
        elif not np.allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-11, equal_nan=True):
            return f"input {i}: gradients differ by {np.abs(a.numpy() - b.numpy()).max():.3g}"
    try:
        minidl.gradgradcheck(fn, xs, max_jacobian=100, directions=2, atol=1e-5, rtol=1e-5)
    except GradcheckError as error:
        return str(error)
    return None


def spread(cases: list[Case], count: int) -> list[Case]:
    """So many, drawn: sizes of 0 come at equal distances. The first that has all inputs is among them."""
    drawn = random.Random(str(cases[0])).sample(cases, min(count, len(cases)))
    return [max(cases, key=lambda case: len(case.shapes)), *drawn[1:]]


def problems(cases: Iterable[Case]) -> list[str]:
    found = []
    for case, layout in zip(cases, itertools.cycle(LAYOUTS)):
        try:
            wrong = problem(case, layout)
        except Exception as error:
            wrong = repr(error)
        if wrong:
            found.append(f"{case} {layout}: {wrong}")
    return found


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("count", tiered([FEW, SOME, 10**6], fast=1, slow=1))
@pytest.mark.parametrize("op", CASES)
def test_op(op: str, count: int) -> None:
    assert not problems(spread(CASES[op], count))


# ---------------------------------------------------------------- on a GPU
def orders(case: Case, where: str) -> list[np.ndarray]:
    """The gradients, and those of their squares' sum; 0 where there are none."""
    xs = [Tensor(x, requires_grad=True, device=where) for x in case.arrays()]
    y = case.call(*xs, **case.options)
    gy = Tensor(np.random.default_rng(0).standard_normal(y.shape), device=where)
    first = minidl.grad(y, xs, gy, create_graph=True, allow_unused=True)
    again = [(g * g).sum() for g in first if g is not None and g.requires_grad]
    second = minidl.grad(again, xs, [None] * len(again), allow_unused=True) if again else []
    found = [*zip(xs, first), *zip(xs, second)]
    assert all(g is None or g.device == where for _, g in found)
    return [np.zeros(x.shape) if g is None else g.detach().numpy() for x, g in found]


@pytest.mark.gpu
@pytest.mark.parametrize("op", CASES)
def test_gpu_op(op: str) -> None:
    """The CPU's numbers, in float64."""
    for case in spread(CASES[op], ON_CUDA):
        for got, want in zip(orders(case, "cuda"), orders(case, "cpu"), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-9 * np.abs(want).max(initial=1), err_msg=str(case))


# ---------------------------------------------------------------- planted faults
RULES_OF: dict[str, list[str]] = {}        # a rule: the ops whose gradients call it, found by running each


def users_of_rules() -> dict[str, list[str]]:
    def noted(name: str, rule: Callable[..., Any], called: set[str]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            called.add(name)
            return rule(*given)
        return call
    if not RULES_OF:
        rules = dict(second.RULES)
        for op in CASES:
            called: set[str] = set()
            second.RULES.update({name: noted(name, rule, called) for name, rule in rules.items()})
            try:
                problems(spread(CASES[op], SOME))
            finally:
                second.RULES.update(rules)
            for name in called:
                RULES_OF.setdefault(name, []).append(op)
    return RULES_OF


def doubled(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A result that is wrong by one part in 10,000."""
    def wrong(*given: Any) -> Any:
        result = rule(*given)
        if isinstance(result, tuple):
            return tuple(each if each is None else each * 1.0001 for each in result)
        return result * 1.0001 if result.dtype.kind == "f" else result
    return wrong


def cut(rule: Callable[..., Any], at: int) -> Callable[..., Any]:
    """The right result, which does not depend on one argument any more."""
    def wrong(*given: Any) -> Any:
        return rule(*(each.detach() if i == at and isinstance(each, Tensor) and type(each) is Tensor else each
                      for i, each in enumerate(given)))
    return wrong


# Rules whose results do not depend on these arguments but by what they decide: (rule, argument)
DECIDE = {(name, 1) for name in ("relu_grad_x", "leaky_relu_grad_x", "hardsigmoid_grad_x", "clip_grad_x")} | {
    ("where", 0), ("max_grad_x", 1), ("max_grad_x", 2)} | {
    (name, 0) for name in ("ones_like", "zeros_like", "sign", "round", "floor", "ceil")} | {
    (name, at) for name in ("gt", "ge", "lt", "le", "eq", "ne", "argmax", "argmin", "floor_divide") for at in (0, 1)}
TRUTHS = {"gt", "ge", "lt", "le", "eq", "ne", "argmax", "argmin"}            # which are no floating numbers


def faults() -> Iterable[tuple[str, str, Callable[..., Any]]]:
    for name, rule in second.RULES.items():
        if name not in TRUTHS:
            yield name, "one part in 10,000", doubled(rule)
        for at in range(5):
            if (name, at) not in DECIDE:
                yield name, f"cut at {at}", cut(rule, at)


@pytest.mark.deep
def test_wrong_rules_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least 95 in 100 of those that change a number that any case computes."""
    users, found, missed = users_of_rules(), [], []
    for name, what, wrong in faults():
        if name not in users:
            continue
        changed = False

        def watched(*given: Any, wrong=wrong, right=second.RULES[name], at=what) -> Any:
            nonlocal changed
            result = wrong(*given)
            if at.startswith("cut"):
                each = given[int(at.split()[-1])] if len(given) > int(at.split()[-1]) else None
                changed |= type(each) is Tensor and each.requires_grad
            else:
                changed = True
            return result
        with monkeypatch.context() as patch:
            patch.setitem(second.RULES, name, watched)
            seen = any(problems(spread(CASES[op], SOME)) for op in users[name])
        if seen:
            found.append(f"{name}: {what}")
        elif changed:
            missed.append(f"{name}: {what}")
    print(f"{len(found)} found, {len(missed)} missed: {missed}; rules that no case calls: "
          f"{sorted(second.RULES.keys() - users.keys())}")
    assert len(found) > 100
    assert len(missed) <= 0.05 * (len(found) + len(missed)), missed


# ---------------------------------------------------------------- higher orders, and where gradients are kept
def vector(*values: float) -> Tensor:
    return Tensor(np.array(values), requires_grad=True)


OF_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mul": lambda x, y: x * y, "div": lambda x, y: x / y, "pow": lambda x, y: x ** y, "matmul": lambda x, y: x @ y,
    "linear": ops.linear, "maximum": lambda x, y: minidl.maximum(x * x, y), "mse_loss": ops.mse_loss,
    "binary_cross_entropy": lambda x, y: ops.binary_cross_entropy_with_logits(x, y),
    "attention": lambda x, y: ops.scaled_dot_product_attention(x, y, x),
    "where": lambda x, y: minidl.where(Tensor(np.eye(2) > 0), x * x, y), "conv2d": lambda x, y: ops.conv2d(
        x.reshape(1, 1, 2, 2), y.reshape(1, 1, 2, 2), padding=1)}


@pytest.mark.parametrize("name", OF_TWO)
def test_what_is_detached_is_another_input(name: str) -> None:
    """Second derivatives of f(x, x.detach()), and the other way round, are those of f by a copy of x."""
    start = np.array([[0.5, 1.0], [1.5, 0.7]])

    def second(f: Callable[[Tensor], Tensor]) -> np.ndarray:
        x = Tensor(start, requires_grad=True)
        g, = minidl.grad((f(x) * Tensor([[2.0]], dtype="float64")).sum(), x, create_graph=True)
        return minidl.grad((g * g).sum() + 0 * x.sum(), x)[0].numpy()
    f, copy = OF_TWO[name], Tensor(start)
    np.testing.assert_array_equal(second(lambda x: f(x, x.detach())), second(lambda x: f(x, copy)))
    np.testing.assert_array_equal(second(lambda x: f(x.detach(), x)), second(lambda x: f(copy, x)))
    around = Tensor(start)
    np.testing.assert_array_equal(minidl.hessian(lambda x: f(x, around).sum(), around).numpy(),
                                  minidl.hessian(lambda x: f(x, copy).sum(), around).numpy())


def test_any_order() -> None:
    x = vector(0.3, 0.7)
    y, orders = (x ** 4).sum(), []
    for _ in range(4):
        y, = minidl.grad(y, x, create_graph=True)
        orders.append(y.tolist())
        y = y.sum()
    powers = np.array([0.3, 0.7])
    for order, (factor, left) in zip(orders, ((4, 3), (12, 2), (24, 1), (24, 0)), strict=True):
        np.testing.assert_allclose(order, factor * powers ** left, rtol=1e-12)


@pytest.mark.parametrize("normalized", [
    lambda x: ops.batch_norm(x, training=True, eps=0.1), lambda x: ops.layer_norm(x, (2, 3), eps=0.1),
    lambda x: ops.group_norm(x, 2, eps=0.1)])
def test_third_derivatives_of_normalisations(normalized: Callable[[Tensor], Tensor]) -> None:
    """By differences: PyTorch 2.13's are others."""
    rng = np.random.default_rng(0)
    x, by = Tensor(rng.standard_normal((3, 4, 2, 3)), requires_grad=True), Tensor(rng.standard_normal((3, 4, 2, 3)))

    @recorded()
    def first(x: Tensor) -> Tensor:
        if not x.requires_grad:
            x.requires_grad = True
        return minidl.grad((normalized(x) ** 3 * by).sum(), x, create_graph=True)[0]
    assert minidl.gradgradcheck(first, [x], max_jacobian=100, directions=3, atol=1e-5, rtol=1e-5).mode == "direction"


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("kind", "gates", "states"), [("lstm", 4, 2), ("gru", 3, 1), ("tanh", 1, 1)])
def test_third_derivatives_of_recurrences(kind: str, gates: int, states: int, reverse: bool) -> None:
    """By each input, along directions."""
    rng = np.random.default_rng(0)
    xs = [Tensor(rng.standard_normal(shape), requires_grad=True) for shape in (
        (3, 2, 2 * gates), (2 * gates, 2), (states, 2, 2), (2 * gates,))]
    by = Tensor(rng.standard_normal((states, 3, 2, 2)))

    @recorded()
    def first(*xs: Tensor) -> Tensor:
        for x in xs:
            if not x.requires_grad:
                x.requires_grad = True
        y = ops.recurrence(*xs, kind=kind, reverse=reverse)
        return ops.concatenate([g.flatten() for g in minidl.grad((y ** 2 * by).sum(), xs, create_graph=True)], 0)
    assert minidl.gradgradcheck(first, xs, max_jacobian=100, directions=2, atol=1e-5, rtol=1e-5).mode == "direction"


def test_backward_adds_gradients_that_have_a_graph() -> None:
    x = vector(2.0)
    (x ** 3).sum().backward(create_graph=True)
    first, x.grad = x.grad, None
    assert (first.tolist(), first.requires_grad) == ([12.0], True)
    first.sum().backward()
    assert (x.grad.tolist(), x.grad.requires_grad) == ([12.0], False)
    (x ** 3).sum().backward(create_graph=True)
    assert x.grad.tolist() == [24.0]       # 12 from before


def test_each_grad_has_memory_of_its_own() -> None:
    x, y = vector(1.0, 2.0), vector(3.0, 4.0)
    (x + y).sum().backward(create_graph=True)
    x.grad.data[0] = 5                     # a sum's gradient is one number, spread
    assert y.grad.tolist() == [1.0, 1.0]


WHERE = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(("shape", "given"), [((), False), ((1,), False), ((), True), ((2,), True)])
def test_each_gradient_has_memory_of_its_own(where: str, create_graph: bool, shape: tuple[int, ...], given: bool
                                             ) -> None:
    """Who changes one changes no other, nor the gradient that was given, nor the 1 that later passes begin with."""
    u, v = (Tensor(np.ones(shape, np.float32), requires_grad=True, device=where) for _ in range(2))
    seed = Tensor(np.ones(shape, np.float32), device=where) if given else None
    for _ in range(2):
        y = u + v if given else (u + v).reshape(())
        first, second = minidl.grad(y, (u, v), seed, create_graph=create_graph)
        with minidl.no_grad():
            first[...] = 5.0
        assert second.tolist() == np.ones(shape).tolist()
        assert seed is None or seed.tolist() == np.ones(seed.shape).tolist()
        (u + v).sum().backward(create_graph=create_graph)
        with minidl.no_grad():
            u.grad[...] = 5.0
        assert v.grad.tolist() == np.ones(shape).tolist()
        u.grad = v.grad = None


def test_a_gradient_that_is_kept_has_a_graph() -> None:
    """Of what an op made, by backward; grad() leaves it alone."""
    x = vector(2.0)
    y = x * x
    y.retain_grad()
    z = (y ** 2).sum()
    assert minidl.grad(z, x, retain_graph=True)[0].tolist() == [32.0]
    assert y.grad is None
    z.backward(create_graph=True)
    assert (y.grad.tolist(), minidl.grad(y.grad.sum(), x)[0].tolist()) == ([8.0], [8.0])


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{kind.__name__: (lambda kind=kind: kind(3, 2, num_layers=2, bidirectional=True), (3, 2, 3))
       for kind in (nn.RNN, nn.LSTM, nn.GRU)},
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2, batch_first=True), (2, 3, 4)),
    "Conv3d": (lambda: nn.Conv3d(2, 2, 2, padding="same"), (1, 2, 3, 2, 3)),
    "Dropout2d": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding="same"), nn.Tanh(), nn.Dropout2d(0.0)),
                  (1, 2, 4, 3)),
}


@pytest.mark.parametrize("layer", tiered(LAYERS, slow=4, fast=2))
def test_layers_of_several_ops(layer: str) -> None:
    minidl.manual_seed(1)
    make, shape = LAYERS[layer]
    net = make().to("float64")

    def fn(x: Tensor) -> Tensor:
        y = net(*[x] * 3) if layer == "MultiheadAttention" else net(x)
        return y[0] if isinstance(y, tuple) else y
    x = Tensor(np.random.default_rng(0).standard_normal(shape), requires_grad=True)
    assert minidl.gradgradcheck(fn, [x], max_jacobian=100, directions=2, atol=1e-5, rtol=1e-5)


def test_grad_by_what_is_no_leaf_runs_no_other_closure() -> None:
    x, w = vector(2.0), vector(5.0)
    ran = []

    @minidl.op
    def watched(k, x: Tensor, w: Tensor):
        def backward(gy, need):
            ran.append(need)
            return k.mul(gy, w) if need[0] else None, k.mul(gy, x) if need[1] else None
        return k.mul(x, w), backward

    inner = watched(x, w)
    z = watched(inner, w).sum()
    assert [g.tolist() for g in minidl.grad(z, [inner, x], retain_graph=True)] == [[5.0], [25.0]]
    assert ran == [(True, False), (True, False)]
    assert minidl.grad(z, inner)[0].tolist() == [5.0]
    assert ran[2:] == [(True, False)]
    assert x.grad is w.grad is None


def test_several_outputs_and_an_output_that_is_an_input() -> None:
    x = vector(1.0, 3.0)
    y, z = x * 2, x * x
    assert minidl.grad([y, z], x, [Tensor(np.ones(2)), Tensor(np.full(2, 10.0))])[0].tolist() == [22.0, 62.0]
    assert minidl.grad(x, x, Tensor(np.array([4.0, 5.0])))[0].tolist() == [4.0, 5.0]
    y = x * 2
    assert minidl.grad([y, y.sum()], [y], [Tensor(np.ones(2)), None])[0].tolist() == [2.0, 2.0]


def test_the_parameters_of_a_net_are_inputs() -> None:
    """As `parameters()` gives them, which can be gone through once."""
    net = nn.Linear(2, 1)
    y = net(Tensor([[3.0, 5.0]])).sum()
    assert [g.tolist() for g in minidl.grad(y, net.parameters())] == [[[3.0, 5.0]], [1.0]]


def test_a_function_is_recorded_within_no_grad() -> None:
    """As in PyTorch; without it, its derivatives would be 0 in silence."""
    x = Tensor(np.array([2.0]))
    with minidl.no_grad():
        assert minidl.jacobian(lambda x: x * x, x).tolist() == [[4.0]]
        assert minidl.hessian(lambda x: (x ** 3).sum(), x).tolist() == [[12.0]]
        assert [each.tolist() for each in minidl.hvp(lambda x: (x ** 3).sum(), x, x)] == [8.0, [24.0]]
        assert not (minidl.Tensor([1.0], requires_grad=True) * 2).requires_grad


def test_create_graph_takes_inputs_that_require_no_gradient() -> None:
    a, b = Tensor(np.array([2.0])), vector(3.0)
    by_a, by_b = minidl.jacobian(lambda a, b: a * a * b, (a, b), create_graph=True)
    assert (by_a.tolist(), by_b.tolist(), a.requires_grad) == ([[12.0]], [[4.0]], False)
    assert minidl.grad(by_a.sum(), b)[0].tolist() == [4.0]


def test_jacobian_hessian_and_hvp_of_several_inputs() -> None:
    a, b = np.array([1.0, 2.0]), np.array([[3.0, 5.0]])

    def scalar(x: Tensor, y: Tensor) -> Tensor:
        return (x ** 2 * y[0] ** 3).sum()
    h = minidl.hessian(scalar, (Tensor(a), Tensor(b)))
    np.testing.assert_allclose(h[0][0].numpy(), np.diag(2 * b[0] ** 3))
    np.testing.assert_allclose(h[0][1].numpy()[:, 0], np.diag(6 * a * b[0] ** 2))
    np.testing.assert_allclose(h[1][1].numpy()[0, :, 0], np.diag(6 * a ** 2 * b[0]))
    v = (Tensor(np.array([1.0, -1.0])), Tensor(np.array([[0.5, 2.0]])))
    value, product = minidl.hvp(scalar, (Tensor(a), Tensor(b)), v)
    assert (value.item(), value.requires_grad) == (scalar(Tensor(a), Tensor(b)).item(), False)
    np.testing.assert_allclose(product[0].numpy(), 2 * b[0] ** 3 * v[0].numpy() + 6 * a * b[0] ** 2 * v[1].numpy()[0])
    j = minidl.jacobian(lambda x: (x.sum(), x * 2), Tensor(a))
    assert [each.tolist() for each in j] == [[1.0, 1.0], [[2.0, 0.0], [0.0, 2.0]]]
    outside = vector(3.0)
    j = minidl.jacobian(lambda x: x * outside, outside, create_graph=True)
    assert minidl.grad(j.sum(), outside)[0].tolist() == [1.0]
    assert minidl.jacobian(lambda x: x.detach(), Tensor(a)).tolist() == [[0.0, 0.0]] * 2


# ---------------------------------------------------------------- nets, in steps
class Critic(nn.Module):
    def __init__(self, norm: bool):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4) if norm else nn.Identity(), nn.LeakyReLU(0.2),
            nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.SiLU(), nn.AvgPool2d(2))
        self.head = nn.Linear(8 * 2 * 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


def penalty_step(tied: bool, frozen: bool, norm: bool,
                 device: str = "cpu") -> tuple[Callable[[Tensor], Tensor], nn.Module]:
    """A gradient penalty whose gradient two optimizers take, clipped, over two backward passes."""
    minidl.manual_seed(3)
    critic = Critic(norm).to(device)
    if frozen:
        critic.features[0].requires_grad_(False)
    if tied:
        critic.again = critic.head
    parameters = [p for p in critic.parameters() if p.requires_grad]
    one, two = optim.Adam(parameters[:2], lr=1e-2), optim.SGD(parameters[2:], lr=1e-2, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        one.zero_grad()
        two.zero_grad()
        x = (x * 1.0).detach()
        x.requires_grad = True
        for part in (x[:3], x[3:]):        # accumulated
            g, = minidl.grad(critic(part).sum(), part, create_graph=True)
            penalty = ((ops.norm(g.flatten(1), axis=1) - 1) ** 2).mean()
            penalty.backward()
        optim.clip_grad_norm(parameters, 1.0)
        one.step()
        two.step()
        return penalty
    return step, critic


@pytest.mark.parametrize(("tied", "frozen", "norm"), tiered(
    [(False, False, False), (True, True, False), (False, False, True)], fast=1, several=True))
def test_a_compiled_gradient_penalty_is_the_plain_one(tied: bool, frozen: bool, norm: bool) -> None:
    xs = np.random.default_rng(0).standard_normal((5, 6, 1, 8, 8)).astype(np.float32)
    plain, net = penalty_step(tied, frozen, norm)
    step, twin = penalty_step(tied, frozen, norm)
    compiled = minidl.compile(step)
    for x in xs:
        assert plain(Tensor(x)).item() == compiled(Tensor(x)).item()
    assert compiled.program is not None
    for (name, a), b in zip(net.state_dict().items(), twin.state_dict().values(), strict=True):
        np.testing.assert_array_equal(a.numpy() if isinstance(a, Tensor) else a,
                                      b.numpy() if isinstance(b, Tensor) else b, err_msg=name)


@pytest.mark.gpu
def test_gpu_a_compiled_gradient_penalty_is_the_plain_one(fp32: None) -> None:
    """As a graph; to rounding, since compiled steps fuse calls."""
    xs = np.random.default_rng(0).standard_normal((5, 6, 1, 8, 8)).astype(np.float32)
    found = []
    for compiled in (False, True):
        step, net = penalty_step(False, False, True, "cuda")
        step = minidl.compile(step) if compiled else step
        losses = [step(Tensor(x, device="cuda")).item() for x in xs]
        found.append([*losses, *(value.sum() for value in net.state_dict().values())])
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-4)


# ---------------------------------------------------------------- what is refused
def over_ranks() -> tuple[Tensor | None, ...]:
    """Of a batch normalisation by the images of all ranks, which here are one."""
    x = Tensor(np.arange(12.0).reshape(4, 3), requires_grad=True)
    y = ops.batch_norm(x, training=True, world=minidl.distributed.current())
    return minidl.grad((y ** 3).sum(), x, create_graph=True)


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "batch normalisation over ranks": (
        over_ranks, ValueError, "backward: create_graph=True: the gradient of 'batch_norm' calls 'normalize_by', "),
    "an array as output": (lambda: minidl.grad(np.ones(1), vector(1.0)), TypeError,
                           "grad: output 0 is a ndarray but must be a Tensor"),
    "an array as input": (lambda: minidl.grad(vector(1.0), np.ones(1)), TypeError,
                          "grad: input 0 is a ndarray but must be a Tensor"),
    "an output off the tape": (lambda: minidl.grad(Tensor([1.0]), vector(1.0)), ValueError,
                               r"grad: output 0 \(shape \(1,\)\) does not require a gradient; compute it"),
    "an input without": (lambda: minidl.grad(vector(1.0).sum(), Tensor([1.0])), ValueError,
                         r"grad: input 0 \(shape \(1,\)\) does not require a gradient; set requires_grad"),
    "an input that is not used": (lambda: minidl.grad(vector(1.0).sum(), vector(1.0)), ValueError,
                                  r"grad: input 0 \(shape \(1,\)\) was not used for the outputs.*allow_unused=True"),
    "fewer grad_outputs": (lambda: minidl.grad([vector(1.0).sum()] * 2, vector(1.0), [None]), ValueError,
                           "grad: got 1 grad_outputs for 2 outputs"),
    "a missing grad_output": (lambda: minidl.grad(vector(1.0, 2.0) * 2, vector(1.0)), ValueError,
                              r"grad: the Tensor has 2 values \(shape \(2,\)\), so its gradient must be given"),
    "a hessian of a vector": (lambda: minidl.hessian(lambda x: x * x, vector(1.0, 2.0)), ValueError,
                              r"hessian: func returned a Tensor of shape \(2,\) but must return one number"),
    "a hessian of a number": (lambda: minidl.hessian(lambda x: 1.0, vector(1.0)), ValueError,
                              "hessian: func returned a float but must return one number"),
    "hvp without v": (lambda: minidl.hvp(lambda x: x.sum(), vector(1.0, 2.0)), ValueError,
                      "hvp: v is None but inputs have 2 elements"),
    "hvp with another v": (lambda: minidl.hvp(lambda x: (x * x).sum(), vector(1.0, 2.0), vector(1.0)), ValueError,
                           r"hvp: gradient has shape \(1,\) but the Tensor has shape \(2,\)"),
    "hvp with too many": (lambda: minidl.hvp(lambda x: (x * x).sum(), vector(1.0), (vector(1.0), vector(1.0))),
                          ValueError, "hvp: got 2 Tensors as v for 1 inputs"),
    "a jacobian of numbers": (lambda: minidl.jacobian(lambda x: 1.0, vector(1.0)), TypeError,
                              "jacobian: output 0 is a float but must be a Tensor"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    call, kind, message = REFUSED[what]
    with pytest.raises(kind, match=message):
        call()


def test_an_op_of_ones_own_owes_nothing() -> None:
    """Whose closure calls primitives that have rules, on inputs and the result."""
    @minidl.op
    def cubed_exp(k, x: Tensor):
        y = k.exp(k.mul(x, k.mul(x, x)))
        return y, lambda gy, need: (k.mul(gy, k.mul(y, k.mul(3, k.mul(x, x)))),)
    assert minidl.gradgradcheck(cubed_exp, [vector(0.3, -0.5)]).checked


def test_nothing_is_imported_before_a_second_derivative() -> None:
    import subprocess
    import sys

    code = "import sys, minidl; print('minidl.ops.second' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_derivatives_by_what_is_not_used_are_zero_whatever_it_is(value: float) -> None:
    x, unused = Tensor([1.0]), Tensor([value, 1.0])
    assert minidl.jacobian(lambda a, b: a * 2, (x, unused))[1].tolist() == [[0.0, 0.0]]
    assert minidl.hessian(lambda a: (a * 2).sum(), unused).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert minidl.hvp(lambda a: (a * 2).sum(), unused, Tensor([1.0, 1.0]))[1].tolist() == [0.0, 0.0]
    assert minidl.jacobian(lambda a: Tensor([1.0]), unused).tolist() == [[0.0, 0.0]]
