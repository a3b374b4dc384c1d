"""In place means in place: what `op=`, `x[i] = ...` and `.data` change and refuse, and what a graph then says."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, init, nn, no_grad, ops, optim

Array = np.ndarray
UPDATES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "iadd": (operator.iadd, operator.add), "isub": (operator.isub, operator.sub), "imul": (operator.imul, operator.mul),
    "itruediv": (operator.itruediv, operator.truediv), "ipow": (operator.ipow, operator.pow)}


def leaf(*values: float) -> Tensor:
    return Tensor(np.array(values, np.float32), requires_grad=True)


def plain(*values: float) -> Tensor:
    return Tensor(np.array(values, np.float32))


# ---------------------------------------------------------------- views on the tape
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "row": lambda h: h[0], "column": lambda h: h[:, 1], "reshape": lambda h: h.reshape(6), "T": lambda h: h.T,
    "detach": lambda h: h.detach(), "flatten": lambda h: h.flatten()}


@pytest.mark.parametrize("changed", ["view", "base"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_change_in_place_that_a_view_would_not_see_is_refused(view: str, changed: str) -> None:
    """The tape changes one Tensor alone, and off the tape both change."""
    w = Tensor(np.zeros((2, 3), np.float32), requires_grad=True)
    base = w * 1
    part = VIEWS[view](base)
    if (view, changed) == ("detach", "view"):              # which no tape records
        part += 1
        np.testing.assert_array_equal(base.numpy(), 1)
        return
    one = part if changed == "view" else base
    with pytest.raises(ValueError, match=r"^imul: the Tensor .* shares its memory with another, by an index, a"):
        one *= 2.0
    with pytest.raises(ValueError, match=r"^iadd: the Tensor .* shares its memory"):
        one.add_(1.0)
    with no_grad():
        one += 1.0
    np.testing.assert_array_equal(base.numpy(), VIEWS[view](base).numpy().max() * (base.numpy() != 0))


@pytest.mark.parametrize("view", [
    lambda x: x[0, 1], lambda x: x[-2][1], lambda x: x.select(0, 0)[1], lambda x: x[0].unbind()[1],
    lambda x: [*x[0]][1]], ids=["index", "of a row", "of select", "of unbind", "of a loop"])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool])
def test_one_element_is_a_view_as_a_row_is(view: Callable[[Tensor], Tensor], dtype: type) -> None:
    x = Tensor(np.zeros((2, 3), dtype))
    one = view(x)
    with no_grad():
        one.fill_(True)
    want = np.zeros((2, 3), dtype)
    want[0, 1] = True
    np.testing.assert_array_equal(x.numpy(), want)
    x[0, 1] = False
    assert not one.item()


def test_a_view_alone_and_a_copy_are_changed_on_the_tape() -> None:
    w = Tensor(np.zeros((2, 3), np.float32), requires_grad=True)
    for make in (lambda h: (h * 1).reshape(6), lambda h: (h * 1)[0], lambda h: h[np.array([0, 1])],
                 lambda h: (h * 1).T.reshape(-1)):
        y = make(w)
        y += 1.0
        w.grad = None
        y.sum().backward()
        assert (y == 1).all()
        assert w.grad.sum().item() == y.size  # type: ignore[union-attr]
    base = w * 1
    for i in range(2):
        assert base[i].tolist() == [0.0] * 3               # these views have ended
    rows = [base[i] for i in range(2) for _ in range(500)]
    with pytest.raises(ValueError, match="shares its memory"):
        base += 1.0
    assert len(base.changed[1]) == 1001
    del rows
    assert len(base.changed[1]) == 1                       # each leaves by itself, without a look at the others
    base += 1.0
    assert (base == 1).all()


# ---------------------------------------------------------------- the update that every course writes
def test_p_minus_equals_rate_times_gradient() -> None:
    w = leaf(1, 2)
    (w * w).sum().backward()
    memory = w.data
    with no_grad():
        for p in [w]:
            p -= 0.1 * p.grad
    assert w.data is memory
    np.testing.assert_allclose(w.tolist(), [0.8, 1.6], rtol=1e-6)
    assert (w.requires_grad, w.is_leaf) == (True, True)


OTHERS: dict[str, Callable[[Array], Any]] = {
    "a number": lambda x: 2.5, "an int": lambda x: 3, "one in NumPy's form": lambda x: np.float64(1.5),
    "of its shape": lambda x: x * x + 1, "a row": lambda x: x[0] + 3, "a column": lambda x: x[:, :1] + 3,
    "itself": lambda x: x, "its reverse": lambda x: x[::-1, ::-1], "of a view": lambda x: x.T[:, :1],
}


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [3, 70])
def test_an_update_is_the_op_written_into_place(name: str, other: str, dtype: type, n: int) -> None:
    """Also where what it reads lies in the memory that it writes, and whatever the layout."""
    values = np.random.default_rng(2).uniform(0.5, 1.5, (n, n)).astype(dtype)
    for layout in (values, values.T, np.repeat(values, 2, 1)[:, ::2]):
        memory = layout.copy(order="K") if layout is not values.T else values.copy().T
        x = Tensor(memory)
        y = OTHERS[other](memory)
        update, plain_op = UPDATES[name]
        want = plain_op(Tensor(memory.copy()), Tensor(y.copy()) if isinstance(y, np.ndarray) else y).numpy()
        assert update(x, Tensor(y) if isinstance(y, np.ndarray) else y) is x
        assert x.data is memory
        np.testing.assert_allclose(memory, want, rtol=1e-6)


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.5), (None, 0.5), (-0.5, None), (0, 1)], ids=str)
@pytest.mark.parametrize("n", [3, 70])
def test_bounds_in_place_are_those_of_clip(low: float | None, high: float | None, n: int) -> None:
    memory = np.random.default_rng(2).standard_normal((n, n)).astype(np.float32)
    memory[1, 1] = np.nan
    before = memory.copy()
    x = Tensor(memory)
    x.clamp_(low, high)
    assert x.data is memory
    np.testing.assert_array_equal(memory, np.clip(before, low, high))
    whole = Tensor(np.arange(4))
    whole.clamp_(1, 2)
    assert whole.tolist() == [1, 1, 2, 2]


def test_data_minus_equals_a_tensor() -> None:
    w = leaf(1, 2)
    (w * w).sum().backward()
    memory, y = w.data, w * 3
    w.data -= 0.1 * w.grad
    assert w.data is memory
    np.testing.assert_allclose(w.tolist(), [0.8, 1.6], rtol=1e-6)
    with pytest.raises(ValueError, match="changed in place after the operation was recorded"):
        y.sum().backward()


@pytest.mark.parametrize("other", [2.0, plain(3, 4)], ids=["number", "Tensor"])
@pytest.mark.parametrize("name", UPDATES)
def test_operators_change_the_memory(name: str, other: Any) -> None:
    update, function = UPDATES[name]
    x = plain(5, 7)
    alias, memory, expected = x, x.data, function(plain(5, 7), other).tolist()
    x = update(x, other)
    assert x is alias
    assert x.data is memory
    assert x.tolist() == expected


def test_matmul_in_place() -> None:
    x = plain(1, 2, 3, 4).reshape(2, 2).detach()
    memory = x.data
    x @= plain(0, 1, 1, 0).reshape(2, 2)
    assert x.data is memory
    assert x.tolist() == [[2, 1], [4, 3]]


@pytest.mark.parametrize("name", UPDATES)
def test_refused_on_a_leaf_that_is_recorded(name: str) -> None:
    w = leaf(1, 2)
    with pytest.raises(ValueError, match=rf"^{name}: the Tensor \(shape \(2,\)\) requires a gradient and the tape"):
        UPDATES[name][0](w, 2.0)
    assert w.tolist() == [1, 2]


def test_on_the_tape_a_result_becomes_the_new_one() -> None:
    """For all who hold the Tensor, and with its gradient; what earlier operations saved stays as it was."""
    w, x = leaf(2, 3), leaf(5, 7)
    h = w * w
    held = h
    h += x
    h *= 2.0
    held.sum().backward()
    assert held is h
    assert h.tolist() == [18, 32]
    assert (w.grad.tolist(), x.grad.tolist()) == ([8, 12], [2, 2])


def test_a_total_of_losses() -> None:
    w, total = leaf(2), plain(0)
    seen = total
    for i in range(3):
        total += w * i
    total.backward()
    assert seen is total
    assert (total.tolist(), w.grad.tolist()) == ([6], [3])


# ---------------------------------------------------------------- items
@pytest.mark.parametrize(("index", "value"), [
    (0, 9.0), (slice(1, None), 9), ((slice(None), 1), plain(7, 8)), (..., 1.5), ([1, 0], plain(1, 2, 3)),
    (np.array([True, False]), 0.0), (plain(0).to(dtype="int64"), 4.0)], ids=str)
def test_items_are_set(index: Any, value: Any) -> None:
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    expected, memory = x.numpy().copy(), x.data
    with no_grad():
        x[index] = value
    expected[index.numpy() if isinstance(index, Tensor) else index] = \
        value.numpy() if isinstance(value, Tensor) else value
    assert x.data is memory
    np.testing.assert_array_equal(x.numpy(), expected)


def test_items_of_a_tensor_set_from_itself() -> None:
    x = plain(1, 2, 3, 4)
    x[1:] = x[:-1]
    assert x.tolist() == [1, 1, 2, 3]


def test_items_of_another_dtype_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^setitem: inputs have dtypes float32 and float64; convert them"):
        plain(1)[0] = Tensor(np.ones(()))


# ---------------------------------------------------------------- what a graph says
@pytest.mark.parametrize("change", [
    lambda c: init.constant_(c, 5.0), lambda c: c.__imul__(2.0), lambda c: c.__setitem__(0, 9.0),
    lambda c: c.detach().__iadd__(1.0), lambda c: c[:1].__iadd__(1.0), lambda c: c.reshape(1, 2).__iadd__(1.0),
    lambda c: c.T.__iadd__(1.0), lambda c: c.flatten().__iadd__(1.0),
    lambda c: setattr(c, "data", np.ones(2, np.float32))],
    ids=["init", "imul", "setitem", "detached", "view", "reshaped", "transposed",
         "flattened", "data"])
def test_a_constant_changed_after_it_was_recorded_is_refused(change: Callable[[Tensor], Any]) -> None:
    x, c = leaf(1, 1), plain(2, 3)
    y = (x * c).sum()
    change(c)
    with pytest.raises(ValueError, match=r"^backward: an input of 'mul' .*was changed in place after the operation"):
        y.backward()
    (x * c).sum().backward()                                             # a new graph is good
    assert x.grad.tolist() == c.tolist()


def test_a_change_before_the_graph_is_none_of_its() -> None:
    x, c = leaf(1, 1), plain(2, 3)
    c *= 2.0
    y = (x * c).sum()
    other = plain(1)
    other += 1.0
    y.backward()
    assert x.grad.tolist() == [4, 6]


def test_a_result_changed_in_place_is_refused() -> None:
    x = leaf(1, 2)
    y = ops.exp(x)
    z = (y * 2).sum()
    with no_grad():
        y += 1
    with pytest.raises(ValueError, match=r"an input of 'mul' \(made by 'exp'\) was changed in place"):
        z.backward()


# ---------------------------------------------------------------- updates that are cut short
class Stopped(Exception):
    pass


def test_a_torn_update_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update that ends in the middle has changed its parameters: graphs from before refuse backward."""
    a, b = leaf(1, 2), leaf(3, 4)
    sgd = optim.SGD([a, b], lr=0.1)
    (a * b).sum().backward()
    y = (a * b).sum()

    def torn(params: list[Any], *_: Any) -> None:
        params[0] -= 1
        raise Stopped

    monkeypatch.setattr("minidl.ops.cpu.sgd", torn)
    with pytest.raises(Stopped):
        sgd.step()
    assert a.tolist() == [0, 1]
    with pytest.raises(ValueError, match="changed in place"):
        y.backward()


def test_a_torn_replay_is_marked() -> None:
    a, b = leaf(1, 2), leaf(3, 4)
    sgd = optim.SGD([a, b], lr=0.1)

    @minidl.compile
    def step(x: Tensor) -> None:
        sgd.zero_grad()
        (a * b * x).sum().backward()
        sgd.step()

    for i in range(3):
        step(plain(i, 1))
    y = (a * b).sum()
    replay = step._last.replay                                           # type: ignore[union-attr]
    number = next(i for i, call in enumerate(step.program.calls) if call.name == "sgd")

    def torn(*_: Any, **__: Any) -> None:
        raise Stopped
    replay.steps[number] = (torn, *replay.steps[number][1:])
    with pytest.raises(Stopped):
        step(plain(4, 1))
    with pytest.raises(ValueError, match="changed in place"):
        y.backward()


def test_a_gradient_that_does_not_fit_is_refused_before_the_first_write() -> None:
    a, b = leaf(1, 2), leaf(3, 4)
    sgd = optim.SGD([a, b], lr=0.1)
    (a * b).sum().backward()
    b.data = np.ones(3, np.float32)
    with pytest.raises(ValueError, match=r"^SGD: a parameter has shape \(3,\) but its gradient \(2,\); call zero_grad"):
        sgd.step()
    assert a.tolist() == [1, 2]


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0, "fast", None])
def test_rates_that_no_update_can_use_are_refused_wherever_they_are_set(rate: Any) -> None:
    sgd = optim.SGD([leaf(1)], lr=0.1)
    ways: list[Callable[[], Any]] = [
        lambda: setattr(sgd, "lr", rate), lambda: sgd.groups[0].__setitem__("lr", rate),
        lambda: sgd.groups[0].update(lr=rate), lambda: sgd.groups[0].__ior__({"lr": rate}),
        lambda: optim.SGD([leaf(1)], lr=rate)]
    for way in ways:
        with pytest.raises(ValueError, match=r"^SGD: lr is .* but must be a finite number of at least 0$"):
            way()
        assert sgd.lr == 0.1


def test_groups_are_copied_and_pickled() -> None:
    sgd = optim.SGD([leaf(1)], lr=0.1)
    for twin in (copy.deepcopy(sgd), pickle.loads(pickle.dumps(sgd))):
        twin.lr = 0.2
        with pytest.raises(ValueError, match=r"^SGD: lr is -1"):
            twin.lr = -1
    assert sgd.lr == 0.1


# ---------------------------------------------------------------- what NumPy does with Tensors
def test_numpys_functions_of_tensors() -> None:
    t = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert (np.sum(t).item(), np.mean(t).item(), np.max(t).item(), np.argmax(t).item()) == (15, 2.5, 5, 5)
    assert np.mean(t, axis=1).tolist() == [1, 4]
    assert np.transpose(t).shape == (3, 2)
    assert np.exp(t).tolist() == t.exp().tolist()
    assert isinstance(np.exp(t), Tensor)
    assert (np.float32(2) * t).tolist() == (t * 2).tolist()
    assert (np.float64(2) * t).dtype == np.float32
    with pytest.raises(TypeError, match=r"must be a Tensor or a plain number; wrap it in minidl\.Tensor"):
        np.ones(3) + t
    with pytest.raises(TypeError, match=r"^np\.add\.reduce: is not computed on Tensors"):
        np.add.reduce(t)
    with pytest.raises(TypeError, match=r"^max: does not take initial; it takes axis, keepdims"):
        t.max(initial=0)
    assert t.sum(0, True).shape == (1, 3)
    with pytest.raises(TypeError, match=r"^sum: does not take 3;"):
        t.sum(0, True, 3)


def test_a_subclass_of_tensor_is_a_tensor() -> None:
    class Named(Tensor):
        pass

    x = Named([1.0, 2.0], requires_grad=True)
    (ops.relu(x) * x).sum().backward()
    assert x.grad.tolist() == [2, 4]
    assert optim.SGD([x], lr=0.1).groups[0]["params"][0] is x


def test_copies_of_tensors() -> None:
    w = leaf(1, 2)
    (w * w).sum().backward()
    for twin in (copy.deepcopy(w), pickle.loads(pickle.dumps(w))):
        assert (twin.tolist(), twin.requires_grad, twin.grad.tolist()) == ([1, 2], True, [2, 4])
        assert not np.shares_memory(twin.data, w.data)
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].tied = net[0].weight
    net(plain(1, 2).reshape(1, 2)).sum().backward()
    twin_net = copy.deepcopy(net)
    assert twin_net[0].tied is twin_net[0].weight
    assert [t.grad for t in twin_net.parameters()] == [None, None]
    assert all(t.grad is not None for t in net.parameters())


# ---------------------------------------------------------------- what an optimizer holds
def test_copies_of_a_net_and_its_optimizer_keep_the_velocities() -> None:
    net = nn.Linear(2, 1)
    sgd = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x = plain(1, 2).reshape(1, 2)

    def step(net: nn.Module, sgd: optim.SGD) -> None:
        sgd.zero_grad()
        (net(x) * net(x)).sum().backward()
        sgd.step()
    for _ in range(3):
        step(net, sgd)
    twins = [copy.deepcopy((net, sgd)), pickle.loads(pickle.dumps((net, sgd)))]
    step(net, sgd)
    for twin in twins:
        step(*twin)
        assert twin[0].weight.tolist() == net.weight.tolist()


def test_a_velocity_that_does_not_fit_is_refused_before_the_first_write() -> None:
    a, b = leaf(1, 1), leaf(1, 1)
    sgd = optim.SGD([a, b], lr=0.1, momentum=0.9)
    (a * b).sum().backward()
    sgd.step()
    b.data, b.grad, before = np.ones(3, np.float32), None, a.tolist()
    b.grad = plain(1, 1, 1)
    with pytest.raises(ValueError, match=r"^SGD: a parameter has shape \(3,\) but its velocity \(2,\); build another"):
        sgd.step()
    assert a.tolist() == before


def test_a_group_that_sgd_did_not_make_is_refused() -> None:
    w = leaf(1)
    sgd = optim.SGD([w], lr=0.1)
    w.sum().backward()
    sgd.groups[0] = {"params": [w], "lr": float("nan")}                  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"^SGD: a group is a dict but must be one that SGD made; change the entries"):
        sgd.step()


@pytest.mark.parametrize("index", [np.array([0, 1]), np.array([True, True, False])], ids=["places", "mask"])
def test_an_index_changed_after_the_forward_is_the_old_one(index: np.ndarray) -> None:
    for i in (index.copy(), Tensor(index.copy())):
        x = leaf(1, 2, 3)
        y = x[i]
        held = i.data if isinstance(i, Tensor) else i
        held[...] = np.roll(held, 1)
        y.sum().backward()
        assert x.grad.tolist() == [1, 1, 0]


def test_an_option_that_an_op_does_not_take_is_named() -> None:
    with pytest.raises(TypeError, match=r"^sum: does not take order; it takes x, axis, keepdims$"):
        ops.sum(plain(1), order=0)
