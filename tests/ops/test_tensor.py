"""Tensor and tape: what is recorded, what runs backward, what is kept, and what a Tensor looks like."""

from __future__ import annotations

import gc
import inspect
import math
import threading
import tracemalloc
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiers import tiered

import minidl
from minidl import Tensor, data, gradcheck, nn, no_grad, ops, optim
from minidl.core.tensor import Node, wrap
from minidl.ops.common import backend as _backend


def leaf(*values: float, dtype: str = "float64") -> Tensor:
    return Tensor(np.array(values, dtype), requires_grad=True)


def grad(t: Tensor) -> list[float]:
    assert t.grad is not None
    return t.grad.tolist()


def alive() -> int:
    """How many Tensors and Nodes there are."""
    return sum(isinstance(thing, (Tensor, Node)) for thing in gc.get_objects())


# ---------------------------------------------------------------- making one
def test_python_floats_become_float32_and_arrays_keep_their_dtype() -> None:
    assert Tensor([1.0, 2.0]).dtype == np.float32
    assert Tensor(1.5).dtype == np.float32
    assert Tensor([1, 2]).dtype == np.int64
    assert Tensor([True]).dtype == np.bool
    assert Tensor(np.ones(2)).dtype == np.float64
    assert Tensor(np.float64(1)).dtype == np.float64
    assert Tensor([1.0], dtype="float64").dtype == np.float64


def test_an_array_is_shared_unless_an_optimizer_may_change_it() -> None:
    a = np.ones(2, np.float32)
    shared, own = Tensor(a), Tensor(a, requires_grad=True)
    a[0] = 7
    assert (shared.tolist(), own.tolist()) == ([7, 1], [1, 1])


def test_repr_has_shape_dtype_device_and_gradient_state() -> None:
    x = leaf(1, 2)
    assert repr(Tensor([1.0])) == "Tensor([1.], shape=(1,), dtype=float32, device=cpu)"
    assert repr(x) == "Tensor([1., 2.], shape=(2,), dtype=float64, device=cpu, requires_grad=True, grad=None)"
    y = (x * 2).sum()
    assert repr(y) == "Tensor(6., shape=(), dtype=float64, device=cpu, requires_grad=True, made_by=sum)"
    y.backward()
    assert repr(x).endswith("requires_grad=True, grad=set)")
    assert len(repr(Tensor(np.zeros((100, 100))))) < 1000


def test_into_python_and_numpy() -> None:
    x = Tensor([[1.5, 2.0]])
    assert (x.shape, x.ndim, x.size, len(x), x.device, x.is_leaf) == ((1, 2), 2, 2, 1, "cpu", True)
    assert x.numpy() is x.data
    assert x[0, 0].item() == 1.5
    assert (float(x[0, 0]), int(x[0, 1]), bool(x[0, 1]), bool(x[0, 0] < 1)) == (1.5, 2, True, False)
    assert [row.tolist() for row in x] == [[1.5, 2.0]]
    np.testing.assert_array_equal(np.asarray(x), [[1.5, 2.0]])
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert np.shares_memory(np.asarray(x), x.numpy())
    assert not np.shares_memory(np.array(x), x.numpy())
    assert len({x, x, Tensor(1.0)}) == 2                                 # a Tensor can stand in sets and dicts


def test_to_makes_a_leaf_of_another_dtype_and_is_itself_where_nothing_changes() -> None:
    x = Tensor([1.0], requires_grad=True)
    with pytest.raises(ValueError, match=r"^to: the Tensor .* requires a gradient, which would not flow back"):
        x.to(dtype="float64")
    with pytest.raises(ValueError, match="which would not flow back"):
        x.double()
    with minidl.no_grad():
        y = x.to(dtype="float64")
    assert (y.dtype, y.requires_grad, y.is_leaf) == (np.float64, True, True)
    assert x.to("cpu") is x
    assert x.to("auto", "float32") is x


# ---------------------------------------------------------------- operators
X, Y = np.array([[1.0, -2.0, 3.0]]), np.array([[2.0], [0.5]])


@pytest.mark.parametrize(("name", "fn"), [
    ("+", lambda x, y: x + y), ("-", lambda x, y: x - y), ("*", lambda x, y: x * y), ("/", lambda x, y: x / y),
    ("@", lambda x, y: y @ x), ("neg", lambda x, y: -x), (">", lambda x, y: x > y), (">=", lambda x, y: x >= y),
    ("<", lambda x, y: x < y), ("<=", lambda x, y: x <= y), ("==", lambda x, y: x == y),
    ("!=", lambda x, y: x != y), ("0<", lambda x, y: 0 < x),  # noqa: SIM300
    ("1+", lambda x, y: 1 + x), ("1-", lambda x, y: 1 - x), ("2*", lambda x, y: 2 * x), ("1/", lambda x, y: 1 / x),
    ("2**", lambda x, y: 2 ** x), ("**2", lambda x, y: x ** 2), ("+1", lambda x, y: x + 1),
    ("sum", lambda x, y: x.sum(1)), ("mean", lambda x, y: x.mean(axis=0)), ("max", lambda x, y: x.max()),
    ("argmax", lambda x, y: x.argmax(1)), ("reshape", lambda x, y: x.reshape(3, -1)), ("T", lambda x, y: x.T),
    ("reshape tuple", lambda x, y: x.reshape((3, 1))), ("transpose", lambda x, y: x.transpose(1, 0)),
    ("transpose tuple", lambda x, y: x.transpose((1, 0))), ("transpose all", lambda x, y: x.transpose()),
    ("flatten", lambda x, y: x.flatten()), ("index", lambda x, y: x[0, 1:]),
])
def test_operators_and_methods_are_numpys(name: str, fn: Any) -> None:
    result = fn(Tensor(X), Tensor(Y))
    expected = np.asarray(fn(X, Y))
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize(("method", "function"), [("exp", np.exp), ("log", np.log), ("sqrt", np.sqrt),
                                                  ("tanh", np.tanh)])
def test_functions_as_methods(method: str, function: Any) -> None:
    np.testing.assert_allclose(getattr(Tensor([1.0, 2.0]), method)().numpy(), function([1.0, 2.0]), rtol=1e-6)


@pytest.mark.parametrize(("x", "y"), [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((4, 2, 3), (3,)),
                                      ((3,), (4, 3, 2)), ((2, 3), (3, 2))])
def test_matmul_takes_vectors(x: tuple[int, ...], y: tuple[int, ...]) -> None:
    a, b = (np.random.default_rng(0).standard_normal(shape) for shape in (x, y))
    np.testing.assert_allclose((Tensor(a) @ Tensor(b)).numpy(), a @ b)
    assert (Tensor(a) @ Tensor(b)).shape == (a @ b).shape
    gradcheck(lambda a, b: a @ b, [Tensor(a, requires_grad=True), Tensor(b, requires_grad=True)])


@pytest.mark.parametrize(("x", "y"), [((2, 3), (3, 2)), ((4, 2, 3), (3, 2)), ((2, 3), (4, 3, 2))])
def test_the_product_of_matrices_is_one_op(x: tuple[int, ...], y: tuple[int, ...]) -> None:
    """Of vectors alone the shape changes before and after it."""
    a, b = (Tensor(np.ones(shape), requires_grad=True) for shape in (x, y))
    product = a @ b
    assert product.node is not None
    assert (product.node.name, product.node.inputs) == ("matmul", (a, b))


@pytest.mark.parametrize("name", ["sum", "mean", "max", "argmax"])
def test_a_reductions_method_has_its_name(name: str) -> None:
    assert getattr(Tensor, name).__name__ == name


@pytest.mark.parametrize("function", [ops.softmax, ops.log_softmax, nn.Softmax()], ids=["softmax", "log", "layer"])
def test_softmax_goes_along_the_last_axis_unless_told(function: Any) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    rows = function(Tensor(x.reshape(6, 4))).numpy()
    np.testing.assert_array_equal(function(Tensor(x)).numpy(), rows.reshape(x.shape))
    assert function(Tensor(x[0, 0])).shape == (4,)


@pytest.mark.parametrize("number", [2, 2.5, True, np.float64(2.5), np.float32(2.5), np.int64(2)])
@pytest.mark.parametrize("op", [lambda x, n: x + n, lambda x, n: n - x, lambda x, n: x * n, lambda x, n: n / x,
                                lambda x, n: x ** n, lambda x, n: n ** x])
def test_a_number_leaves_the_dtype_alone(op: Any, number: Any) -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = op(x, number)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y.numpy(), op(np.array([1.0, 2.0]), float(number)), rtol=1e-6)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == np.float32


def test_pow_at_its_limits() -> None:
    x, p = leaf(0, 0, 0, 2), leaf(0, 1, 2, 0)
    (x ** p).sum().backward()
    assert grad(x) == [0, 1, 0, 0]
    np.testing.assert_allclose(grad(p), [0, 0, 0, np.log(2)])
    negative = leaf(-2)
    (negative ** 3).sum().backward()
    assert grad(negative) == [12]


def test_equal_maxima_share_the_gradient_and_nan_wins() -> None:
    x = leaf(3, 1, 3, 3)
    x.max().backward()
    np.testing.assert_allclose(grad(x), [1 / 3, 0, 1 / 3, 1 / 3])
    x = leaf(3, np.nan, 1)
    y = x.max()
    y.backward()
    assert np.isnan(y.item())
    assert grad(x) == [0, 1, 0]


def test_relu_at_zero_and_nan() -> None:
    x = leaf(-1, 0, 2, np.nan)
    y = ops.relu(x)
    y.sum().backward()
    np.testing.assert_array_equal(y.numpy(), [0, 0, 2, np.nan])
    assert grad(x)[:3] == [0, 0, 1]


def test_an_index_that_takes_an_element_twice_adds_its_gradients() -> None:
    x = leaf(1, 2, 3)
    (x[Tensor(np.array([0, 2, 2]))] * Tensor(np.array([1.0, 10.0, 100.0]))).sum().backward()
    assert grad(x) == [1, 0, 110]
    x = leaf(1, 2, 3)
    x[x > 1].sum().backward()
    assert grad(x) == [0, 1, 1]


# ---------------------------------------------------------------- what is recorded
def test_recorded_only_when_needed() -> None:
    x, w = Tensor([1.0]), Tensor([2.0], requires_grad=True)
    assert (x * 2).node is None
    assert not (x * 2).requires_grad
    y = w * x
    assert y.requires_grad
    assert not y.is_leaf
    assert y.node is not None
    assert y.node.inputs[0] is w
    assert y.node.inputs[1] is x                                         # held: a change of x in place is refused
    assert y.node.need == (True, False)
    assert (w > 1).node is None
    assert not w.argmax().requires_grad


def test_no_grad_as_context_and_decorator() -> None:
    x = leaf(1)
    with no_grad():
        assert not (x * 2).requires_grad
        with no_grad():
            pass
        assert not (x * 2).requires_grad

    @no_grad()
    def twice(t: Tensor) -> Tensor:
        return t * 2

    assert not twice(x).requires_grad
    assert not twice(x).requires_grad
    assert (x * 2).requires_grad
    with pytest.raises(KeyError), no_grad():
        raise KeyError
    assert (x * 2).requires_grad


def test_no_grad_decorates_a_generator() -> None:
    """As in PyTorch: it holds within the body at each step, and not in between; whatever ends the generator."""
    x, ends = leaf(1), []

    @no_grad()
    def steps(t: Tensor) -> Generator[Any, Any, str]:
        """Steps."""
        try:
            given = yield (t * 2).requires_grad
            ends.append(given)
            try:
                yield (t * given).requires_grad
            except KeyError:
                yield (t * 3).requires_grad
        finally:
            ends.append((t * 4).requires_grad)
        return "the end"

    @no_grad()
    def outer() -> Generator[Any, Any, str]:
        return (yield from steps(x))

    for generator in (steps(x), outer()):
        ends.clear()
        assert next(generator) is False
        assert (x * 2).requires_grad
        assert generator.send(2.0) is False
        assert (x * 2).requires_grad
        assert generator.throw(KeyError()) is False
        assert (x * 2).requires_grad
        with pytest.raises(StopIteration, match="the end"):
            next(generator)
        assert ends == [2.0, False]
        assert (x * 2).requires_grad
    closed = steps(x)
    next(closed)
    closed.close()
    assert ends == [2.0, False, False]
    assert (x * 2).requires_grad
    assert steps.__doc__ == "Steps."


def test_no_grad_refuses_what_is_async() -> None:
    async def waits() -> None:
        pass

    async def gives() -> AsyncIterator[int]:
        yield 1

    for function in (waits, gives):
        with pytest.raises(TypeError, match=r"^no_grad: test_\S*\.\w+ is async but a decorated function must run"):
            no_grad()(function)


def test_no_grad_holds_in_its_own_thread_only() -> None:
    x, inside, seen = leaf(1), threading.Event(), []

    def other() -> None:
        assert inside.wait(100)            # more is a deadlock
        seen.append((x * 2).requires_grad)

    thread = threading.Thread(target=other)
    thread.start()
    with no_grad():
        inside.set()
        thread.join(100)
    assert seen == [True]


def test_detach_shares_values_and_stops_the_gradient() -> None:
    x = leaf(3)
    y = x * x
    assert np.may_share_memory(y.detach().data, y.data)
    assert not y.detach().requires_grad
    (y.detach() * x).sum().backward()
    assert grad(x) == [9]


# ---------------------------------------------------------------- backward
def test_gradients_accumulate_on_leaves() -> None:
    x = leaf(1, 2)
    for times in (1, 2, 3):
        (x * x).sum().backward()
        assert grad(x) == [2 * times, 4 * times]
    x.grad = None
    (x * 5).sum().backward()
    assert grad(x) == [5, 5]


def test_shared_subexpressions_and_diamonds() -> None:
    x = leaf(2)
    y = x * 3
    (y * y + y * x + x).sum().backward()                                 # 9x^2 + 3x^2 + x
    assert grad(x) == [24 * 2 + 1]
    x = leaf(1)
    y = x
    for _ in range(60):                                                  # 2^60 paths, each Node visited once
        y = y + y
    y.backward()
    assert grad(x) == [2.0 ** 60]


def test_a_leaf_alone_runs_backward() -> None:
    x = leaf(5)
    x.backward()
    x.backward(Tensor(np.array([10.0])))
    assert grad(x) == [11]


def test_a_given_gradient_is_the_start() -> None:
    x = leaf(1, 2)
    (x * x).backward(Tensor(np.array([1.0, 100.0])))
    assert grad(x) == [2, 400]


def test_each_grad_owns_its_memory() -> None:
    """An optimizer or a clipping may change a gradient in place; no other array may follow."""
    x, y, z, seed = leaf(1, 2), leaf(3, 4), leaf(5, 6), Tensor(np.ones(2))
    (x + y + z.reshape(2, 1).reshape(2)).backward(seed)
    z.sum().backward()
    x.backward(seed)
    w = leaf(7, 8)
    w.backward(seed)
    u = leaf(1, 2)
    u.sum().backward()
    owned = [t.grad.data for t in (x, y, z, w, u) if t.grad is not None] + [seed.data]
    assert len(owned) == 6
    for i, changed in enumerate(owned):
        changed[...] = -i
    assert [array.tolist() for array in owned] == [[-i, -i] for i in range(6)]


SHARING: dict[str, Callable[..., Tensor]] = {
    "transposed": lambda x, y: x.mT, "reshaped": lambda x, y: (x * 2.0).reshape(-1), "joined": lambda x, y:
    ops.concatenate([x, y, x]), "stacked": lambda x, y: ops.stack([x, y]), "cloned": lambda x, y: ops.clone(x) + y,
    "flipped": lambda x, y: ops.flip(x) - y, "two transposed": lambda x, y: x.mT + y.mT,
    "a sum and its view": lambda x, y: (x + y).mT + x.mT, "one of two shapes": lambda x, y: x + y.reshape(3, 2).reshape(
        2, 3), "repeated": lambda x, y: ops.expand(x, (4, 2, 3)), "summed": lambda x, y: ops.cumsum(x, 1) * y,
    "joined twice": lambda x, y: ops.concatenate([x, y]) + ops.concatenate([y, x]),
    "parts": lambda x, y: ops.concatenate(ops.split(x + y, 1)[::-1]), "a product": lambda x, y: x @ y.mT}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("name", SHARING)
def test_no_gradient_changes_with_another(name: str, given: bool, device: str) -> None:
    """Nor with what a leaf holds, a given gradient, or a second backward of a graph that is kept."""
    x, y = (Tensor(np.arange(6.0).reshape(2, 3) + i, requires_grad=True, device=device) for i in range(2))
    z = SHARING[name](x, y)
    seed = Tensor(np.arange(float(math.prod(z.shape))).reshape(z.shape), device=device)

    def backward() -> None:
        if given:
            z.backward(seed, retain_graph=True)
        else:
            (z * seed).sum().backward(retain_graph=True)
    backward()
    first = [t.grad.tolist() for t in (x, y) if t.grad is not None]
    held = [t for t in (x.grad, y.grad, x, y, seed) if t is not None]
    for changed in held:
        before = [t.tolist() for t in held]
        kept = changed.data.copy()
        changed.data[...] = -7
        assert [t.tolist() for t in held if t is not changed] == [
            b for t, b in zip(held, before, strict=True) if t is not changed]
        changed.data[...] = kept
    backward()
    assert [t.grad.tolist() for t in (x, y) if t.grad is not None] == [(2 * np.array(g)).tolist() for g in first]


def test_a_graph_is_used_once_unless_retained() -> None:
    x = leaf(3)
    y = x * x
    z = y.sum()
    z.backward(retain_graph=True)
    z.backward()
    assert grad(x) == [12]
    with pytest.raises(ValueError, match="already used by an earlier"):
        z.backward()
    with pytest.raises(ValueError, match="the graph through 'mul' was already used"):
        (y * 2).backward()
    assert grad(x) == [12]                                               # a refused backward adds nothing


def test_a_leaf_changed_in_place_between_forward_and_backward_is_refused() -> None:
    w = leaf(1, 2)
    sgd = optim.SGD([w], lr=0.5)
    y = (w * w).sum()
    (w * 1).sum().backward()
    sgd.step()
    with pytest.raises(ValueError, match="changed in place after the operation was recorded"):
        y.backward()
    sgd.zero_grad()
    (w * w).sum().backward()
    assert grad(w) == [1, 3]


@pytest.mark.slow
def test_a_chain_of_20000_ops_runs_backward_and_is_freed() -> None:
    x = leaf(1)
    y = x
    for _ in range(20_000):
        y = y + 0.0
    y.backward()
    assert grad(x) == [1]
    before, y = alive(), x
    for _ in range(20_000):
        y = y + 0.0
    assert alive() > before + 19_000
    y = x                                                                # nobody ran it: freed without recursion
    assert alive() < before + 10


def test_a_closure_may_answer_none() -> None:
    x = leaf(3)
    y = x * 2
    stop = Node("stop", _backend.primitives_of(y.data), (y.node,), (True,), lambda gy, need: (None,))
    wrap(y.data, stop).backward()
    assert x.grad is None


def test_a_subclass_of_a_known_array_is_served_as_that() -> None:
    class Image(np.ndarray):
        """Some user's array."""

    assert _backend.primitives_of(np.zeros(2).view(Image)) is _backend.BACKENDS[np.ndarray]


# ---------------------------------------------------------------- memory
def test_closures_drop_their_arrays_after_backward() -> None:
    x, held = leaf(1, 2, 3), np.array([4.0, 5.0, 6.0])
    watch = weakref.ref(held)
    y = (x * Tensor(held)).sum()
    del held
    gc.collect()
    assert watch() is not None
    y.backward()
    gc.collect()
    assert watch() is None
    assert y.node is not None
    assert y.node.backward is None
    assert y.node.inputs == ()


def test_an_intermediate_array_lives_only_while_a_closure_needs_it() -> None:
    x = leaf(1, 2)
    y = x + 1
    watch = weakref.ref(y)
    z = y + 1                                                            # the gradient of a sum needs no values
    del y
    assert watch() is None
    z.sum().backward()
    assert grad(x) == [1, 1]


@pytest.mark.parametrize("count", tiered([50, 1000], slow=1))
def test_memory_of_a_training_loop_is_flat(count: int) -> None:
    rng = np.random.default_rng(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    sgd = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, labels = Tensor(rng.standard_normal((4, 8)).astype(np.float32)), np.array([0, 1, 2, 0])

    def steps(count: int) -> None:
        for _ in range(count):
            sgd.zero_grad()
            ops.cross_entropy(model(x), labels).backward()
            sgd.step()

    def held() -> int:
        """Bytes that were asked for from within minidl; threads of pytest-xdist ask for others."""
        gc.freeze()                                                      # a collection that leaves cycles alone, and
        gc.collect()                                                     # frees the interpreter's thousands of spare
        gc.unfreeze()                                                    # objects
        ours = tracemalloc.Filter(True, f"{Path(minidl.__file__).parent}/*", all_frames=True)
        return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([ours]).traces)

    gc.unfreeze()                                                        # what collection made, as `held` does
    steps(20)
    gc.collect()
    gc.disable()                                                         # flat by reference counts alone
    try:
        tracemalloc.start(6)
        steps(count)
        objects, growth = alive(), []
        for _ in range(3):                                               # caches grow once
            before = held()
            steps(count)
            growth.append(held() - before)
        assert alive() == objects
    finally:
        tracemalloc.stop()
        gc.enable()
        gc.freeze()
    assert min(growth) < count                                           # a byte per step: no object is that small


# ---------------------------------------------------------------- what backward computes
@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each primitive of the CPU was called."""
    counted: Counter[str] = Counter()

    def spy(name: str, primitive: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            counted[name] += 1
            return primitive(*args, **options)
        return call

    primitives = vars(_backend.BACKENDS[np.ndarray])
    spies = {name: spy(name, primitive) for name, primitive in primitives.items() if callable(primitive)}
    monkeypatch.setitem(_backend.BACKENDS, np.ndarray, SimpleNamespace(**spies))
    return counted


def test_the_first_layer_never_computes_its_dx(calls: Counter[str]) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    x = Tensor(np.ones((1, 1, 6, 6), np.float32))
    ops.cross_entropy(net(x), [1]).backward()
    assert (calls["conv2d"], calls["conv2d_grad_x"], calls["conv2d_grad_w"]) == (2, 1, 2)
    assert (calls["linear"], calls["linear_grad_x"], calls["linear_grad_w"]) == (1, 1, 1)


def test_a_constant_operand_costs_no_gradient(calls: Counter[str]) -> None:
    x, constant = leaf(1, 2), Tensor(np.array([3.0, 4.0]))
    (x * constant).sum().backward()
    assert calls["mul"] == 2
    ops.matmul(x.reshape(1, 2), constant.reshape(2, 1)).backward()
    assert (calls["matmul_grad_x"], calls["matmul_grad_y"]) == (1, 0)


def test_without_gradients_no_gradient_primitive_is_called(calls: Counter[str]) -> None:
    with no_grad():
        (leaf(1, 2) * leaf(3, 4)).sum()
    assert set(calls) == {"mul", "sum"}


def test_dtypes_are_compared_by_value() -> None:
    """NumPy may hold one dtype as several objects: after unpickling, or with metadata."""
    other = np.dtype("float32", metadata={"from": "elsewhere"})
    x, y = Tensor(np.ones(2, other)), Tensor(np.ones(2, np.float32))
    assert x.dtype is not y.dtype
    assert (x + y).tolist() == [2, 2]


@pytest.mark.parametrize("product", [lambda x: x @ 2.0, lambda x: 2.0 @ x, lambda x: x[0] @ [1.0, 2.0]])
def test_a_product_with_what_is_no_tensor_is_refused(product: Any) -> None:
    with pytest.raises(TypeError, match=r"^matmul: an input is a builtins\.(float|list) but must be a Tensor"):
        product(leaf(1, 2, 3, 4).reshape(2, 2))


def test_a_detached_tensor_can_become_a_leaf() -> None:
    x = leaf(1, 2).detach()
    x.requires_grad = True
    (x * x).sum().backward()
    assert grad(x) == [2, 4]


@pytest.mark.parametrize("sign", ["+", "-", "*", "/", "**", ">", ">=", "<", "<=", "==", "!="])
def test_a_plain_number_may_stand_on_either_side(sign: str) -> None:
    x, values = leaf(1, 2, 3), np.array([1.0, 2.0, 3.0])
    for expression in (f"x {sign} 2", f"2 {sign} x", f"x {sign} 2.0"):
        got, expected = eval(expression, {"x": x}), eval(expression, {"x": values})
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-15)


# ---------------------------------------------------------------- axes
AXES = ("axis", "axes", "start", "source", "destination", "first", "second")      # parameters that name an axis
# what the callables with an axis need beside it; {} by default
BESIDE: dict[str, dict[str, Any]] = {
    "gather": {"index": np.zeros((2, 3, 4), np.int64)}, "index_select": {"index": np.zeros(1, np.int64)},
    "select": {"index": 0}, "narrow": {"start": 0, "length": 1}, "split": {"sizes": 1}, "chunk": {"count": 1},
    "topk": {"k": 1}, "movedim": {"source": 0, "destination": 0}, "moveaxis": {"source": 0, "destination": 0},
    "swapaxes": {"first": 0, "second": 0}, "swapdims": {"first": 0, "second": 0},
}
# the name in the message, where it is not the method's own
ALIASES = {"moveaxis": "movedim", "swapdims": "swapaxes", "amax": "max", "amin": "min", "permute": "transpose"}


def takers() -> dict[str, tuple[Any, str]]:
    """Each function of ops, method of Tensor and layer with a parameter that is an axis, and that parameter."""
    things = {**{f"ops.{name}": getattr(ops, name) for name in dir(ops)},
              **{f"Tensor.{name}": getattr(Tensor, name) for name in dir(Tensor)},
              **{f"nn.{name}": getattr(nn, name) for name in dir(nn)}}
    return {f"{name} {parameter}": (thing, parameter) for name, thing in things.items()
            if callable(thing) and not name.split(".")[1].startswith("_")
            for parameter in _parameters(thing)
            if parameter in AXES and not (name.endswith(".narrow") and parameter == "start")}


def _parameters(thing: Any) -> list[str]:
    try:
        return list(inspect.signature(thing).parameters)
    except ValueError:
        return []


def _along(name: str, thing: Any, parameter: str, axis: Any) -> Any:
    """The call of a thing of three axes, 2 x 3 x 4, with an axis."""
    beside = BESIDE.get(name.split()[0].split(".")[1], {})
    x = Tensor(np.arange(24, dtype="float32").reshape(2, 3, 4))
    kind = inspect.signature(thing).parameters[parameter].kind
    if name.startswith("nn."):
        return thing(**{parameter: axis})(x)
    given: Any = [x] * 2 if name.startswith(("ops.concatenate", "ops.stack")) else x
    if kind is inspect.Parameter.VAR_POSITIONAL:
        return thing(given, axis)
    if parameter == "axes":
        axis = (axis, 1, 2)
    return thing(given, **{**beside, parameter: axis})


def test_the_takers_of_an_axis_are_found() -> None:
    found = takers()
    assert len(found) > 60
    assert {"ops.sum axis", "Tensor.select axis", "Tensor.movedim source", "nn.Softmax axis", "Tensor.max axis",
            "ops.flatten start", "Tensor.flip axis", "ops.transpose axes", "Tensor.topk axis"} <= found.keys()


@pytest.mark.parametrize("name", takers())
def test_an_axis_that_is_not_there_is_an_error(name: str) -> None:
    """One behind the last and one before the first, of a Tensor of three axes, or four where an axis is added."""
    thing, parameter = takers()[name]
    ndim = 4 if name.split()[0].split(".")[1] in ("stack", "unsqueeze") else 3
    for axis in (ndim, -ndim - 1, ndim + 4, 1.0, True, "1"):
        with pytest.raises((ValueError, TypeError)) as caught:
            _along(name, thing, parameter, axis)
        assert ": axis" in str(caught.value) or ": axes" in str(caught.value), f"{axis!r}: {caught.value}"
        word = name.split()[0].split(".")[1].lower()
        assert str(caught.value).split(":")[0] in (word, ALIASES.get(word)), f"{axis!r}: {caught.value}"
    if "axes" not in name:
        for axis in (0, -ndim, np.int64(0)):
            _along(name, thing, parameter, axis)


@pytest.mark.parametrize(("call", "words"), [
    (lambda x: x.narrow(1, 1, 9), "narrow: start 1 and length 9 leave axis 1"),
    (lambda x: x.narrow(0, -3, 1), "narrow: start -3"), (lambda x: x.narrow(0, 3, 0), "narrow: start 3"),
    (lambda x: x.narrow(-1, 2, -1), "narrow: start 2 and length -1"),
    (lambda x: x.narrow(2, -2, 3), "narrow: start -2 and length 3"),
    (lambda x: x.topk(5), "topk: k is 5"), (lambda x: x.topk(3, 0), "topk: k is 3"),
    (lambda x: x.topk(-1), "topk: k is -1"), (lambda x: x.sort(1)[0].topk(4, 1, False), "topk: k is 4"),
    (lambda x: x.chunk(0), "chunk: count is 0"), (lambda x: x.chunk(-2, 1), "chunk: count is -2"),
    (lambda x: x.size(3), "size: axis 3"), (lambda x: x.size(-4), "size: axis -4"),
    (lambda x: Tensor(1.0).flatten(1), "flatten: axis 1"), (lambda x: Tensor(1.0).select(0, 0), "select: axis 0"),
])
def test_a_range_that_leaves_an_axis_is_an_error(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}"):
        call(Tensor(np.arange(24, dtype="float32").reshape(2, 3, 4)))


@pytest.mark.parametrize(("call", "want"), [
    (lambda x: x.narrow(1, -2, 2), lambda a: a[:, 1:]), (lambda x: x.narrow(1, 3, 0), lambda a: a[:, :0]),
    (lambda x: x.narrow(-1, 0, 4), lambda a: a), (lambda x: x.select(-1, -1), lambda a: a[..., -1]),
    (lambda x: x.movedim(-1, 0), lambda a: np.moveaxis(a, -1, 0)),
    (lambda x: x.movedim(0, 1), lambda a: a.swapaxes(0, 1)),
    (lambda x: x.index_select(-2, [0, 0]), lambda a: a[:, [0, 0]]), (lambda x: x.topk(0)[0], lambda a: a[..., :0]),
    (lambda x: x.topk(4)[0], lambda a: a[..., ::-1]), (lambda x: x.swapdims(-1, 0), lambda a: a.swapaxes(-1, 0)),
])
def test_ranges_within_an_axis(call: Any, want: Any) -> None:
    a = np.arange(24, dtype="float32").reshape(2, 3, 4)
    x = Tensor(a, requires_grad=True)
    np.testing.assert_array_equal(call(x).numpy(), want(a))
    np.testing.assert_array_equal(minidl.compile(call)(x).numpy(), want(a))
    call(x).sum().backward()


# ---------------------------------------------------------------- sums of integers
INTEGERS = ["bool", "uint8", "uint16", "uint32", "int8", "int16", "int32", "int64"]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(("call", "want"), [
    (lambda x: x.sum(), lambda a: a.sum()), (lambda x: -x.sum(), lambda a: -a.sum()),
    (lambda x: x.sum() - 100, lambda a: a.sum() - 100), (lambda x: x.sum(0, True) - 1, lambda a: a.sum(0)[None] - 1),
    (lambda x: x.cumsum(1) - 1000, lambda a: a.cumsum(1) - 1000), (lambda x: x.flip(1).cumsum(0),
     lambda a: a[:, ::-1].cumsum(0)),
    (lambda x: x @ x.T, lambda a: a @ a.T), (lambda x: x[0] @ x[1] - 5, lambda a: a[0] @ a[1] - 5),
    (lambda x: ops.einsum("ij,kj->ik", x, x), lambda a: a @ a.T), (lambda x: ops.einsum("ij,k->i", x, x[0]),
     lambda a: a.sum(1) * a[0].sum()),
    (lambda x: ops.einsum("ij->j", x), lambda a: a.sum(0)), (lambda x: ops.einsum("ij,ij,ij->", x, x, x),
     lambda a: (a ** 3).sum()),
    (lambda x: (x != 0).sum(1) - 7, lambda a: (a != 0).sum(1) - 7), (lambda x: (x.sum(0) * x.sum(0)).sum(),
     lambda a: (a.sum(0) ** 2).sum()),
])
def test_sums_of_integers_are_int64(call: Any, want: Any, dtype: str) -> None:
    a = np.array([[0, 1, 100, 127], [127, 126, 5, 1]]).astype(dtype)
    x, right = Tensor(a), want(a.astype(np.int64))
    compiled = minidl.compile(call)
    for y in (call(x), compiled(x), compiled(x)):
        assert y.dtype == np.int64
        np.testing.assert_array_equal(y.numpy(), right)


@pytest.mark.parametrize("call", [ops.var, ops.std])
def test_a_correction_of_numpy_leaves_the_dtype_alone(call: Any) -> None:
    x = Tensor(np.arange(4, dtype=np.float32), requires_grad=True)
    y = call(x, correction=np.float64(1))
    y.backward()
    assert x.grad is not None
    assert y.dtype == x.grad.dtype == np.float32


@pytest.mark.parametrize("call", [lambda x: x.sum(), lambda x: x.cumsum(0), lambda x: x @ x,
                                  lambda x: ops.einsum("i,i->", x, x), lambda x: np.sum(x)])
def test_sums_of_uint64_are_refused(call: Any) -> None:
    x = Tensor(np.array([1, 2**63], np.uint64))
    with pytest.raises(TypeError, match=r"^(sum|cumsum|matmul): the input has dtype uint64, whose sums int64 may not"):
        call(x)
    assert x.to(dtype="float64").sum().item() == 2.0**63
    assert (x.max().item(), x.argmin().item()) == (2**63, 0)


# ---------------------------------------------------------------- what NumPy makes of Tensors
@pytest.mark.parametrize("call", [
    np.linalg.norm, np.asarray, np.median, np.round, np.sort, np.nansum, np.ascontiguousarray, lambda x: np.dot(x, x),
    lambda x: np.concatenate([x, x]), lambda x: np.stack([x, x]), lambda x: np.where([True, False], x, 0),
    lambda x: np.outer(x, x), lambda x: np.array([x, x]), lambda x: np.testing.assert_allclose(x, [3, 4]),
    lambda x: np.concatenate([x.numpy(), x]), lambda x: np.linalg.norm(x * 2),
    lambda x: np.zeros(2).__setitem__(..., x)])
def test_numpy_takes_no_tensor_off_the_tape(call: Any) -> None:
    x = Tensor([3.0, 4.0], requires_grad=True)
    with pytest.raises(TypeError, match=r"^numpy: a Tensor that requires a gradient"):
        call(x)
    call(x.detach())
    with no_grad():
        call(x)


def test_numpys_functions_that_are_methods_stay_on_the_tape() -> None:
    x = Tensor([3.0, 4.0], requires_grad=True)
    for call in (np.sum, np.mean, np.var, np.std, np.max, np.amin, np.prod, np.squeeze, np.transpose, np.exp,
                 lambda x: np.reshape(x, (2, 1)), lambda x: np.clip(x, 0, 1), lambda x: np.maximum(x, 2)):
        assert call(x).requires_grad
        np.testing.assert_allclose(call(x).numpy(), call(x.numpy()), rtol=1e-6)
    for compare in (np.allclose, np.array_equal, np.array_equiv):
        assert compare(x, x) is True
        assert compare(x, [3, 5]) is False
    assert (np.shape(x), np.ndim(x), np.size(x)) == ((2,), 1, 2)


# ---------------------------------------------------------------- byte orders
@pytest.mark.parametrize("order", [">", "<", "="])
def test_byte_orders_are_the_machines(order: str) -> None:
    labels, ids = np.array([1, 0], f"{order}i4"), np.array([1], f"{order}u2")
    x, table = Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([[1.0], [2.0]])
    assert ops.cross_entropy(x, labels).item() == ops.cross_entropy(x, [1, 0]).item()
    assert ops.nll_loss(x, Tensor(labels)).item() == ops.nll_loss(x, [1, 0]).item()
    assert ops.embedding(ids, table).tolist() == table[ids].tolist() == [[2.0]]
    assert (Tensor(np.array([1.5], f"{order}f4")) + Tensor([1.5])).tolist() == [3.0]
    assert Tensor(np.array([1.5], f"{order}f8")).dtype == np.float64
    for t in (Tensor([1.5], dtype=f"{order}f8"), Tensor([1.5]).to(dtype=f"{order}f8"),
              minidl.zeros(2, dtype=f"{order}i8")):
        assert t.dtype.isnative
        assert t.dtype.itemsize == 8
    net = nn.Linear(2, 1)
    state = {name: a.astype(f"{order}f4") for name, a in net.state_dict().items()}
    net.load_state_dict(state)
    assert all(p.dtype.isnative for p in net.parameters())
    assert net.weight.tolist() == state["weight"].tolist()
    for images, numbers in data.DataLoader((np.arange(6, dtype=f"{order}f4"), np.arange(6, dtype=f"{order}i2")), 3):
        assert images.dtype.isnative
        assert images.tolist() == numbers.tolist()


# ---------------------------------------------------------------- equal values
TIES = {
    "all equal": [2.0] * 40, "two largest": [1.0, 3.0, 0.0, 3.0], "two smallest": [0.0, 3.0, 0.0, 1.0],
    "zeros of both signs": [-0.0, 0.0, -0.0, -1.0], "infinities": [np.inf, 1.0, np.inf, -np.inf, -np.inf],
    "many": [float(i * 7 % 5) for i in range(60)], "one": [4.0],
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool"])
@pytest.mark.parametrize("name", TIES)
def test_of_equal_values_the_first_comes_first(name: str, dtype: str) -> None:
    with np.errstate(invalid="ignore"):
        a = np.array(TIES[name]).astype(dtype)
    x, falling = Tensor(a), sorted(range(len(a)), key=lambda i: (-float(a[i]), i))
    rising = sorted(range(len(a)), key=lambda i: (float(a[i]), i))
    for t, axis in ((x, 0), (ops.stack([x, x], 1), 0), (ops.stack([x, x]), -1)):
        last = (-1,) if axis else (..., -1) if t.ndim > 1 else ...       # one of the two rows or columns
        for order, want in ((t.argsort(axis, descending=True), falling), (t.sort(axis, True)[1], falling),
                            (t.topk(len(a), axis)[1], falling), (t.argsort(axis), rising),
                            (t.topk(len(a), axis, largest=False)[1], rising)):
            assert order[last].tolist() == want
        assert t.topk(1, axis)[1].select(axis, 0).tolist() == t.argmax(axis).tolist()
        assert t.topk(1, axis, largest=False)[1].select(axis, 0).tolist() == t.argmin(axis).tolist()


def test_falling_order_of_nans_and_its_gradient_compiled() -> None:
    a = np.array([1.0, np.nan, 3.0, np.nan, 3.0])
    assert Tensor(a).argsort(descending=True).tolist() == [1, 3, 2, 4, 0]
    assert Tensor(a).topk(2)[1].tolist() == [1, 3] == [Tensor(a).argmax().item(), 3]
    x = leaf(5, 1, 5, 5)

    def step() -> Tensor:
        x.grad = None
        values, places = x.topk(2)
        (values * values).sum().backward()
        return places
    for run in (step, minidl.compile(step)):
        for _ in range(3):
            assert run().tolist() == [0, 2]
            assert grad(x) == [10, 0, 10, 0]


def test_a_square_has_the_dtype_that_pytorchs_has() -> None:
    for values, dtype in (([True, False], np.int64), (np.array([3], np.int8), np.int8), ([0.5], np.float32)):
        y = Tensor(values).square()
        assert y.dtype == dtype
        np.testing.assert_array_equal(y.numpy(), np.square(np.array(values, dtype)))


def test_an_array_takes_no_values_that_the_tape_would_lose() -> None:
    w, total = Tensor(np.array([3.0, 4.0]), requires_grad=True), np.zeros(2)
    for change in (lambda: np.add(w, 1, out=total), lambda: np.multiply(total, w * w, out=total)):
        with pytest.raises(TypeError, match=r"^np.(add|multiply): an array would take the values of a Tensor that "
                                            r"requires a gradient, which the tape would not see; add Tensors, total ="):
            change()
    assert not total.any()
    total += w.detach()
    with minidl.no_grad():
        total += w
    np.testing.assert_array_equal(total, [6.0, 8.0])


# ---------------------------------------------------------------- memory, masks, dtypes of lists
@pytest.mark.parametrize("call", [
    lambda x: x.flip(0), lambda x: x.flip((0, 1)), lambda x: x.flip(()), lambda x: x.repeat(1, 1),
    lambda x: x.repeat(2, 1), lambda x: x[:1].repeat(3, 1), lambda x: x[:, :1].repeat(1, 2),
    lambda x: ops.pixel_shuffle(x.reshape(1, 1, 2, 3), 1)])
def test_what_is_no_view_in_pytorch_has_memory_of_its_own(call: Any) -> None:
    """A change of the result would change x, and one of a repeated row all of them."""
    x = Tensor(np.arange(6.0).reshape(2, 3))
    y = call(x)
    y[...] = -1.0
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    leaf = Tensor(np.ones((2, 3)), requires_grad=True)
    call(leaf).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.shape == (2, 3)


@pytest.mark.parametrize(("values", "filled"), [
    ([True, True, False], 0), ([True, True, False], False), ([1, 2, 3], -4), ([1.5, 2.0, 3.0], 4)], ids=str)
def test_filling_by_a_mask_keeps_the_dtype(values: list[Any], filled: float) -> None:
    x, mask = Tensor(values), Tensor([True, False, False])
    for of in (lambda x: x.masked_fill(mask, filled), minidl.compile(lambda x: x.masked_fill(mask, filled))):
        for _ in range(3):
            y = of(x)
            assert (y.dtype, y.tolist()) == (x.dtype, [filled, *values[1:]])


@pytest.mark.parametrize("none", [(), []], ids=str)
def test_no_axes_are_none_and_not_all(none: Any) -> None:
    """As a list of axes to flip at random may be empty."""
    x = Tensor(np.arange(6.0).reshape(1, 2, 3))
    assert x.flip(none).tolist() == x.flip(*none, 0).tolist() == x.tolist()
    assert x.flip().tolist() == [[[5, 4, 3], [2, 1, 0]]]
    with pytest.raises(ValueError, match=r"^transpose: axes \(\) are not a permutation of the 3 axes of shape"):
        x.transpose(none)
    assert Tensor(1.0).transpose(none).tolist() == 1
    assert x.transpose().shape == x.transpose(None).shape == (3, 2, 1)


def test_a_selection_by_a_mask_is_one_row() -> None:
    """As in PyTorch, where x[mask] keeps the axes that the mask has not."""
    x = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert x.masked_select(Tensor([True, False, True])).tolist() == [1, 3, 4, 6]
    assert x.masked_select(Tensor([[False], [True]])).tolist() == [4, 5, 6]
    assert x[0].masked_select(x > 2).tolist() == [3, 1, 2, 3]
    assert x.masked_select(x > 9).shape == (0,)
    assert x.index_select(1, Tensor([2, 0])).tolist() == [[3, 1], [6, 4]]
    assert x.index_select(0, [1]).tolist() == [[4, 5, 6]]  # type: ignore[arg-type]


def test_any_and_all_of_nothing() -> None:
    x = Tensor(np.zeros((0, 3))) > 1
    assert (x.any().item(), x.all().item()) == (False, True)
    assert (x.any(0).tolist(), x.all(0).tolist()) == ([False] * 3, [True] * 3)
    assert (x.any(1).shape, x.all(0, keepdims=True).shape) == ((0,), (1, 3))
    assert (x.any().dtype, x.all().dtype) == (np.bool_, np.bool_)


def test_the_slope_of_a_zeroth_power_is_zero_everywhere() -> None:
    for p in (0, Tensor(np.zeros(5))):
        x = Tensor(np.array([np.inf, -np.inf, np.nan, 0.0, 2.0]), requires_grad=True)
        (x ** p).sum().backward(create_graph=True)
        assert x.grad is not None
        assert x.grad.tolist() == [0] * 5
        (x.grad.sum()).backward()
        assert x.grad.tolist() == [0] * 5


def test_lists_of_float64_are_float64() -> None:
    """Python's floats have no dtype, NumPy's have; 16777217 is no float32."""
    large = np.float64(16777217)
    for given in ([large], [np.array([large])], [[1.0, large]], ([np.array(large)],), [1, large]):
        assert Tensor(given).dtype == np.float64
        assert np.max(Tensor(given).numpy()) == large
    assert minidl.tensor([np.array([0.1])]).dtype == np.float64
    for plain in ([1.0, 2], [np.float32(1), 2.0], [np.int64(1), 0.5], [[1.0]], []):
        assert Tensor(plain).dtype == np.float32
