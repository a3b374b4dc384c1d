"""Gradients that are made in one array, where the mean over the ranks is formed: which may be, and what is computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace as with_
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

from checks.steps import Maker, averaged_step, zoo_model  # noqa: E402

import minidl  # noqa: E402
from minidl import Tensor, optim  # noqa: E402
from minidl.compiler.buckets import Buckets, averaged  # noqa: E402
from minidl.compiler.program import Program, replace  # noqa: E402
from minidl.compiler.replay import ByCalls  # noqa: E402
from minidl.distributed import World  # noqa: E402
from minidl.ops import cpu  # noqa: E402
from minidl.ops.common.ranks import laid_out  # noqa: E402


# ---------------------------------------------------------------- which may
def found(change: Callable[[Maker, Any, Any], Any] = lambda make, a, b: None, share: float | None = 0.5,
          size: int = 2) -> bool:
    """Whether the gradients a and b, of which a program forms the mean, are found; `change` may do more with both."""
    make = Maker()
    x = make.slot("input")
    a, b = make.call("neg", x), make.call("exp", x)
    given = change(make, a, b)
    outputs = x
    if isinstance(given, tuple):
        a, b = given
    elif given is not None:
        outputs = given
    means = make.call("rank_mean", (a, b), share, SimpleNamespace(size=size), results=2)
    make.call("sgd", (make.slot("outside"),) * 2, means, (None, None), 0.1, 0.0, 0.0, False, results=0)
    program = make.program([x], outputs)
    number = next(i for i, call in enumerate(program.calls) if call.name == "rank_mean")
    slots = averaged(program)
    assert slots in ({}, {number: (a, b)})
    return bool(slots)


def of_float64(make: Maker, a: Any, b: Any) -> None:
    b.dtype = np.dtype(np.float64)


def test_gradients_that_the_mean_alone_reads() -> None:
    assert found()
    assert found(share=1 / 49, size=49)
    assert found(lambda make, a, b: (make.call("mul", a, b), make.call("add", a, b)))


@pytest.mark.parametrize("change", [
    lambda make, a, b: a, lambda make, a, b: make.call("mul", b, b), lambda make, a, b: (a, a),
    lambda make, a, b: (a, make.call("reshape", b, (2,))), lambda make, a, b: (a, make.slot("outside")), of_float64,
    lambda make, a, b: make.call("setitem", a, 0, 1.0, results=0) or None],
    ids=["returned", "read", "twice", "a view", "from outside", "another dtype", "changed"])
def test_gradients_that_may_not(change: Callable[[Maker, Any, Any], Any]) -> None:
    assert not found(change)


@pytest.mark.parametrize("share", [None, 0.0, 0.25, 1.0])
def test_shares_that_are_not_those_of_all_alike(share: float | None) -> None:
    """None is a sum."""
    assert not found(share=share)


def test_all_ranks_lay_them_out_by_their_shapes_alone() -> None:
    flat, views = laid_out(np.empty, [(3, 5), (3,), (2, 2), (), (1, 1), (0, 1)], np.dtype(np.float32), 16)
    begins = [(view.ctypes.data - flat.ctypes.data) // 4 for view in views[:5]]
    assert (begins, flat.shape) == ([0, 15, 20, 24, 28], (32,))
    flat, _ = laid_out(np.empty, [(3, 5), (3,), (2, 2)], np.dtype(np.float32))
    assert flat.shape == (22,)


# ---------------------------------------------------------------- what is computed
class Memory:
    """In place of a device's: CuPy's arrays lie in it, of which only the addresses are used."""

    def __init__(self) -> None:
        self.bytes, self.used = np.full(1 << 24, 0xFF, np.uint8), 0

    def take(self, size: int) -> Any:
        from cupy.cuda import memory

        begin = self.used
        self.used += -(-size // 512) * 512
        assert self.used <= self.bytes.size
        return memory.MemoryPointer(memory.UnownedMemory(self.bytes.ctypes.data + begin, size, self.bytes, 0), 0)

    def seen(self, array: Any) -> Any:
        """An array of CuPy's as one of NumPy's; others as they are."""
        if not isinstance(array, cupy.ndarray):
            return array
        return np.ndarray(array.shape, array.dtype, self.bytes, array.data.ptr - self.bytes.ctypes.data
                          if array.size else 0, array.strides)


class Launchers:
    """The CPU's primitives, with results in that memory; how launchers of some name take it can be told."""

    def __init__(self, memory: Memory, how: dict[str, str]):
        self.memory, self.how, self.copies = memory, how, 0

    def __getattr__(self, name: str) -> Any:
        def primitive(*arguments: Any, **options: Any) -> Any:
            self.copies += name == "rank_mean"
            given = replace((arguments, options), self.memory.seen)
            made = getattr(cpu, name)(*given[0], **given[1])
            if made is None:
                return None
            results = self.taken([np.asarray(each) for each in (made if isinstance(made, tuple) else (made,))],
                                 self.how.get(name, ""))
            return tuple(results) if isinstance(made, tuple) else results[0]
        primitive.__name__ = name
        return primitive

    def taken(self, values: list[np.ndarray], how: str) -> list[Any]:
        empty = cupy.empty
        if how == "workspace":             # of the first result's size
            self.memory.seen(empty(values[0].shape, values[0].dtype))[...] = 7
        if how == "as one":                # a filter's and a bias's
            _, results = laid_out(empty, [value.shape for value in values], values[0].dtype)
        else:
            results = [empty(value.shape, value.dtype) for value in (values[::-1] if how == "backwards" else values)]
            results = results[::-1] if how == "backwards" else results
        if how == "in other order":
            results = [cupy.ndarray(each.shape, each.dtype, each.data, (4, 4 * len(each))) for each in results]
        for result, value in zip(results, values, strict=True):
            self.memory.seen(result)[...] = value
        return results


class Two(World):
    """A world whose mean is three times what this rank has."""

    rank, size = 0, 2

    def __init__(self, memory: Memory):
        self.memory = memory
        self.means: list[int] = []         # the sizes of arrays of which one was formed in place

    def sum(self, flat: np.ndarray) -> None:
        flat *= 2 if flat.dtype == np.float64 else 6   # numbers to agree on; each gradient times its share, a half

    def mean(self, flat: Any) -> None:
        self.means.append(flat.size)
        there = self.memory.seen(flat)
        there *= 3


class OneStream:
    """In place of SideStreams."""

    def run(self, number: int, waiting: int | None, primitive: Callable[..., Any], arguments: list[Any],
            options: dict[str, Any]) -> Any:
        return primitive(*arguments, **options)


def trained(how: dict[str, str]) -> tuple[list[int], int, bool]:
    """(the sizes of means in place, how many others, whether a step of LeNet-5 gives the same bits as call by call)."""
    minidl.manual_seed(1)
    memory, net = Memory(), zoo_model("lenet5")()
    world, params = Two(memory), list(net.parameters())
    sgd, random = optim.SGD(params, 0.1), np.random.default_rng(0)

    step = minidl.compile(averaged_step(net, params, sgd, world))
    arrays = [random.standard_normal((3, 1, 32, 32), np.float32), random.integers(0, 10, 3)]
    for _ in range(3):
        step(*map(Tensor, arrays))
    program, start = step.program, [p.numpy().copy() for p in params]
    assert isinstance(program, Program)

    def after(run: Callable[[], Any]) -> list[np.ndarray]:
        for p, value in zip(params, start, strict=True):
            p.data[...] = value
        run()
        return [p.numpy().copy() for p in params]
    wanted = after(lambda: ByCalls(program).values(arrays, [0.1]))
    launchers = Launchers(memory, how)
    backend: Any = launchers
    there = with_(program, calls=[with_(call, backend=backend) for call in program.calls])
    streams: Any = OneStream()
    with cupy.cuda.using_allocator(memory.take):
        got = after(lambda: ByCalls(there, streams=True).values(arrays, [0.1], Buckets(there, streams)))
    same = all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True))
    return world.means, launchers.copies, same and not np.array_equal(got[0], start[0])


FILTERS = "conv2d_act_pool_grad_wb"
SHAPES = [(6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 16, 5, 5), (120,), (84, 120), (84,), (10, 84), (10,)]
SIZE = sum(map(math.prod, SHAPES))


@pytest.mark.parametrize("how", [{}, {FILTERS: "as one"}, {FILTERS: "backwards"}], ids=str)
def test_gradients_of_lenet5_are_made_where_the_mean_is_formed(how: dict[str, str]) -> None:
    (size,), copies, same = trained(how)
    assert SIZE <= size < SIZE + 3 * 5                 # filters begin on 16 bytes
    assert (copies, same) == (0, True)


@pytest.mark.parametrize("how", [{"linear_grad_w": "workspace"}, {FILTERS: "workspace"},
                                 {"linear_grad_w": "in other order"}], ids=str)
def test_where_a_launcher_took_the_memory_for_something_else_all_are_copied(how: dict[str, str]) -> None:
    assert trained(how) == ([], 1, True)


def test_results_of_one_size_that_took_each_others_memory_are_copied() -> None:
    make, memory = Maker(), Memory()
    world, copies = Two(memory), list[Any]()
    x, y = make.slot("input"), make.slot("input")
    make.call("rank_mean", make.call("maximum", x, y, results=2), 0.5, world, results=2)

    def two(x: Any, y: Any) -> Any:
        second, first = cupy.empty((2,), np.float32), cupy.empty((2,), np.float32)
        return first, second

    def rank_mean(arrays: Any, share: float, world: Any) -> Any:
        copies.extend(arrays)
        return arrays
    backend: Any = SimpleNamespace(maximum=two, rank_mean=rank_mean)
    program, streams = make.program([x, y], x), OneStream()
    assert averaged(program)
    program = with_(program, calls=[with_(call, backend=backend) for call in program.calls])
    with cupy.cuda.using_allocator(memory.take):
        ByCalls(program).values([None, None], [], Buckets(program, streams))  # type: ignore[arg-type]
    assert (len(copies), world.means) == (2, [])
