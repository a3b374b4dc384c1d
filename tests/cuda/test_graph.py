"""Replays of captured graphs without a GPU: kernels are emulated, and a graph is the list of its launches.

Only steps whose every call is a kernel's can be replayed so: what NumPy computes in CuPy's place is not in the list.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from checks.compiler import needs_compiler
from emulator import Emulator, cupy

import minidl
from minidl import Tensor, no_grad, ops, optim
from minidl.compiler import graph as compiler_graph
from minidl.compiler.graph import AsGraph, Text
from minidl.compiler.program import Slot
from minidl.core.tensor import wrap
from minidl.lab.emulator import Memory
from minidl.ops import create
from minidl.ops.cuda import launch
from minidl.ops.cuda.launch import addresses, overlap
from minidl.ops.cuda.launch.addresses import Addresses, Results
from minidl.ops.cuda.launch.compiling import thread as launching

pytestmark = [pytest.mark.usefixtures("fp32"), needs_compiler]


# ---------------------------------------------------------------- stand-ins
class Graph:
    """Launches, in the order in which they were captured."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.interrupted: str | None = None            # where the next launch ends: "before" or "behind"
        self.graphExec = self

    def launch(self) -> None:
        where, self.interrupted = self.interrupted, None
        if where == "before":
            raise KeyboardInterrupt
        for call in self.calls:
            call()
        if where == "behind":
            raise KeyboardInterrupt


class Stream:
    """In place of CuPy's. All streams are one here, and everything has ended when it returns."""

    ptr = 0
    captured: Graph | None = None          # by all streams

    def __init__(self, non_blocking: bool = False):
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def record(self) -> None:
        pass

    def wait_event(self, event: object) -> None:
        pass

    def begin_capture(self) -> None:
        Stream.captured = Graph()

    def is_capturing(self) -> bool:
        return Stream.captured is not None

    def end_capture(self) -> Graph:
        graph, Stream.captured = Stream.captured, None
        assert graph is not None
        return graph


class Event:
    """In place of CuPy's. log: what was asked of all of them."""

    log: list[tuple[str, int]] = []

    def __init__(self, **options: bool):
        pass

    def record(self) -> None:
        self.log.append(("record", id(self)))

    def synchronize(self) -> None:
        self.log.append(("wait", id(self)))


class OwnMemory:
    """In place of GraphMemory."""

    bytes = 0

    def as_allocator(self) -> Any:
        return contextlib.nullcontext()

    @staticmethod
    def page(rows: int, columns: int) -> tuple[np.ndarray, Memory]:
        there = cupy.zeros((rows, columns), np.uint64)
        return there.view(np.ndarray), there


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulated"))


@pytest.fixture
def device(compiler: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """Emulated, with streams that capture."""
    run = launch.Kernel._start

    def capture(self: launch.Kernel, *arguments: Any) -> None:
        graph = Stream.captured
        if graph is None or launch.is_dry():
            run(self, *arguments)
        else:
            graph.calls.append(functools.partial(run, self, *arguments))

    with compiler.running() as running:
        monkeypatch.setattr(launch.Kernel, "_start", capture)
        monkeypatch.setattr(cupy.cuda, "Stream", Stream)
        monkeypatch.setattr(cupy.cuda, "Event", Event)
        monkeypatch.setattr(cupy.cuda, "Device", lambda: SimpleNamespace(id=0, synchronize=lambda: None))
        monkeypatch.setattr(cupy, "empty", running.memory.empty)
        monkeypatch.setattr(cupy.cuda, "get_current_stream", Stream)
        monkeypatch.setattr(addresses, "_graph_launch", lambda: lambda graph, stream: graph.launch())
        monkeypatch.setattr(overlap, "overlapping", contextlib.nullcontext)
        monkeypatch.setattr(compiler_graph, "GraphMemory", OwnMemory)
        monkeypatch.setattr(compiler_graph, "free_if_much", lambda: None)
        monkeypatch.setattr(Memory, "set", lambda self, array: self.__setitem__(..., array), raising=False)
        yield running
    Stream.captured = None


def there(array: Any, requires_grad: bool = False) -> Tensor:
    tensor = wrap(cupy.asarray(np.asarray(array)))
    tensor.requires_grad = requires_grad
    return tensor


def random(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def numbers(value: Any) -> Any:
    return np.array(value._data if isinstance(value, Tensor) else value, subok=False)


# ---------------------------------------------------------------- launches that overlap
@pytest.mark.parametrize(("capability", "driver", "can"), [
    (90, 12030, True), (120, 13000, True), (89, 13000, False), (90, 12020, False)])
def test_launches_overlap_if_device_and_driver_can(capability: int, driver: int, can: bool,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "compute_capability", lambda: capability)
    monkeypatch.setattr(overlap.cupy.cuda.runtime, "driverGetVersion", lambda: driver)
    with overlap.overlapping(0):
        assert isinstance(launching.launch, overlap.Overlapping) == can
    assert launching.launch is None


def test_a_launch_that_overlaps_is_given_to_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its structs are, of 56 and 72 bytes; an error of the driver is said."""
    seen, status = [], [0]

    def start(config: Any, function: Any, arguments: Any, extra: Any) -> int:
        each = ctypes.cast(config, ctypes.POINTER(overlap._Config)).contents
        attribute = each.attributes[0]
        seen.append((*each.sizes, each.stream, each.count, attribute.id, attribute.value[0], function.value,
                     arguments.value, extra))
        return status[0]
    monkeypatch.setattr(overlap, "driver", lambda: SimpleNamespace(cuLaunchKernelEx=start))
    given = overlap.Overlapping(8)
    given(11, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0)
    assert seen == [(1, 2, 3, 4, 5, 6, 7, 8, 1, 6, 1, 11, 9, None)]
    assert (ctypes.sizeof(overlap._Config), ctypes.sizeof(overlap._Attribute)) == (56, 72)
    status[0] = 1
    with pytest.raises(RuntimeError, match=r"refuses a launch of \[1, 2, 3\] blocks of \[4, 5, 6\] threads"):
        given(11, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0)


MAIN, LEFT, RIGHT = 1, 2, 3


@pytest.mark.parametrize(("launches", "apart"), [
    ([(MAIN, 200), (MAIN, 200)], []),
    ([(MAIN, 200), (LEFT, 200), (MAIN, 200), (MAIN, 200)], [2]),       # 200 of 264 places
    ([(MAIN, 200), (LEFT, 263), (MAIN, 9)], [2]),
    ([(MAIN, 200), (LEFT, 264), (MAIN, 9)], []),
    ([(MAIN, 200), (LEFT, 1), (MAIN, 9)], []),
    ([(MAIN, 200), (LEFT, 264), (LEFT, 9), (MAIN, 9)], []),            # which waits for the one before it on its stream
    ([(LEFT, 200), (RIGHT, 264), (MAIN, 9), (LEFT, 264), (MAIN, 9)], [2])])
def test_no_launch_overlaps_beside_one_that_few_multiprocessors_would_get(
        launches: list[tuple[int, int]], apart: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """On the main stream, next to one on a side stream of which two blocks fit on each of 132 multiprocessors."""
    seen: list[bool] = []

    def blocks(found: Any, function: Any, threads: int, shared: Any) -> int:
        ctypes.cast(found, ctypes.POINTER(ctypes.c_int)).contents.value = 2 if threads == 64 else 1
        return 0
    monkeypatch.setattr(overlap, "driver", lambda: SimpleNamespace(cuOccupancyMaxActiveBlocksPerMultiprocessor=blocks))
    monkeypatch.setattr(overlap, "multiprocessors", lambda: 132)
    monkeypatch.setattr(overlap, "_launch", lambda *given: seen.append(given[-1]))
    overlap._most_blocks.cache_clear()
    for threads in (64, 65):
        start, seen[:] = overlap.Overlapping(MAIN), []
        for stream, grid in launches:
            start(5, grid, 1, 1, threads, 1, 1, 0, stream, 0, 0)
        assert [i for i, overlaps in enumerate(seen) if not overlaps] == (apart if threads == 64 else [])
    overlap._most_blocks.cache_clear()


# ---------------------------------------------------------------- addresses
def copying(inputs: list[Any], results: list[Any], numbers: list[Any] | None = None) -> tuple[Addresses, Graph]:
    """A graph that copies from what it is given to numbers and inputs, and from results."""
    numbers = numbers or []
    codes = ["QQ" if number.dtype == np.uint64 else "d" for number in numbers]
    made, stream = Addresses(OwnMemory.page, len(inputs), len(results), codes), Stream()
    stream.begin_capture()
    made.take(numbers, inputs)
    made.give(results)
    graph = stream.end_capture()
    made.captured(graph)
    return made, graph


def start(each: Addresses, arrays: list[Any], rates: list[float] | None = None) -> None:
    each.start(*(array.data.ptr for array in arrays), *(rates or ()))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "dtype", "offset"), [
    (0, "float32", 0), (1, "float32", 0), (4096, "float32", 0), (4099, "float32", 1), (33, "int64", 0),
    (6000, "uint8", 0), (6001, "uint8", 3), (300_000, "float64", 0)])
def test_a_graph_copies_what_it_is_given(size: int, dtype: str, offset: int, device: Emulator) -> None:
    """By words of every size; the two directions, each with another array of another size beside it."""
    def array(seed: int, count: int) -> Any:
        return cupy.asarray(np.random.default_rng(seed).integers(0, 100, count + offset).astype(dtype))[offset:]
    mine, results = [array(0, size), array(1, 7)], [array(2, 5), array(3, size)]
    rates = [cupy.zeros(1), cupy.zeros(2, np.uint64), cupy.zeros(1)]
    each, _ = copying(mine, results, rates)
    for seed in range(2):
        given, taken = [array(10 + seed, size), array(20 + seed, 7)], [array(5, 5), array(6, size)]
        start(each, [*given, *taken], [0.1 * seed, 2 ** 64 - 1 - seed, seed, 7.0])
        assert [rate.tolist() for rate in rates] == [[0.1 * seed], [2 ** 64 - 1 - seed, seed], [7.0]]
        for a, b in zip([*mine, *taken], [*given, *results], strict=True):
            np.testing.assert_array_equal(numbers(a), numbers(b))


@pytest.mark.slow
def test_rows_are_written_again_behind_an_event(device: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "ROWS", 4)
    monkeypatch.setattr(addresses, "HALF", 2)
    mine, given = cupy.zeros(3, np.float32), [cupy.asarray(random((3,), seed)) for seed in range(11)]
    each, _ = copying([mine], [])
    monkeypatch.setattr(Event, "log", log := [])
    for i, array in enumerate(given):
        start(each, [array])
        np.testing.assert_array_equal(mine, array)
        assert each.turn == (i + 1) % 4
    first, second = map(id, each._events)
    halves = [("record", first), ("wait", second)], [("record", second), ("wait", first)]
    assert log == [*halves[0], *halves[1], *halves[0], *halves[1], *halves[0]]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before", "behind"])
def test_a_start_that_is_interrupted_leaves_no_row_behind(where: str, device: Emulator) -> None:
    """Nobody knows then whether the device has counted it."""
    mine, result = cupy.zeros(3, np.float32), cupy.asarray(random((2,), 9))
    each, graph = copying([mine], [result])
    for i in range(5):
        given, taken = cupy.asarray(random((3,), i)), cupy.zeros(2, np.float32)
        if i in (2, 3):
            graph.interrupted = where
            with pytest.raises(KeyboardInterrupt):
                start(each, [cupy.zeros(3, np.float32), taken])
            assert each.turn is None
        start(each, [given, taken])
        np.testing.assert_array_equal(mine, given)
        np.testing.assert_array_equal(taken, result)


@pytest.mark.slow
def test_a_start_that_the_driver_refuses_is_cupys(device: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a thread that has no context yet: CuPy gives it one, or raises."""
    invalid_context = 201
    monkeypatch.setattr(addresses, "_graph_launch", lambda: lambda graph, stream: invalid_context)
    mine, given = cupy.zeros(3, np.float32), cupy.asarray(random((3,), 0))
    each, graph = copying([mine], [])
    start(each, [given])
    np.testing.assert_array_equal(mine, given)
    graph.interrupted = "before"
    with pytest.raises(KeyboardInterrupt):
        start(each, [given])


@pytest.mark.slow
def test_a_start_within_a_start_is_refused(device: Emulator) -> None:
    mine = cupy.zeros(3, np.float32)
    each, graph = copying([mine], [])
    given = cupy.asarray(random((3,), 0))
    graph.calls.insert(0, lambda: start(each, [given]))
    with pytest.raises(RuntimeError, match="a step was called while a call of it was being started"):
        start(each, [given])
    del graph.calls[0]
    start(each, [given])
    np.testing.assert_array_equal(mine, given)


def test_results_are_handed_out_in_turn_and_never_twice(device: Emulator) -> None:
    results = Results(cupy.zeros((), np.float32))
    held = [results.take() for _ in range(20)]
    assert len(set(map(id, held))) == 20
    last = held[-Results.KEPT:]
    view = last[0][...]
    addresses_of_last = list(map(id, last))
    del held, last
    again = [id(results.take()) for _ in range(2 * Results.KEPT)]
    assert again[1:Results.KEPT] == addresses_of_last[1:]
    assert view.base is not None
    assert addresses_of_last[0] not in again           # a view holds it
    assert all(a != b for a, b in itertools.pairwise(again))


def test_large_results_and_those_of_other_streams_are_not_kept(
        device: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(launch.memory, "_new", lambda shape, dtype: made.append(shape) or cupy.zeros(shape, dtype))
    large = Results(cupy.zeros(1 + Results.MAX_BYTES // 4, np.float32))
    for _ in range(10):
        large.take()
    assert len(made) == 10
    small = Results(cupy.zeros(3, np.float32))
    monkeypatch.setattr(launch.memory, "_current_stream", lambda: SimpleNamespace(ptr=7))
    for _ in range(10):
        small.take()
    assert len(made) == 20


# ---------------------------------------------------------------- what a step returns
@pytest.mark.parametrize("value", [
    None, "$", ("$", "$"), {"a": "$", "b": [1, ("$", None)]}, ["$", {"c": ()}]], ids=str)
def test_nested_results(value: Any) -> None:
    names: list[str] = []

    def with_slots(value: Any, leaf: Callable[[], Any]) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(with_slots(each, leaf) for each in value)
        if isinstance(value, dict):
            return {name: with_slots(each, leaf) for name, each in value.items()}
        return leaf() if value == "$" else value

    def named() -> str:
        names.append(f"made {len(names)}")
        return names[-1]
    expected = with_slots(value, named)
    made = {f"made{i}": name for i, name in enumerate(names)}
    slots: dict[Slot, str] = {}

    def slot() -> Slot:
        one = Slot(0, "result", (1,), np.dtype(float))
        slots[one] = f"made{len(slots)}"
        return one
    outputs = with_slots(value, slot)
    text = Text(slots, wrap=lambda each: each, lock=contextlib.nullcontext(), **made)
    text.add(f"return {text.nested(outputs)}")
    found = text.function()([])
    assert found == expected
    assert type(found) is type(expected)


# ---------------------------------------------------------------- steps
class Net:
    """A linear layer with a compiled step, on the emulated GPU or, plain, on the CPU."""

    def __init__(self, compiled: bool):
        self.to = there if compiled else lambda array, requires_grad=False: Tensor(array, requires_grad=requires_grad)
        self.w, self.b = self.to(random((3, 4), 0), True), self.to(random((3,), 1), True)
        self.sgd = optim.SGD([self.w, self.b], lr=0.1, momentum=0.9)
        self.step: Any = minidl.compile(self.run) if compiled else self.run

    def run(self, x: Tensor, labels: Tensor) -> Tensor:
        self.sgd.zero_grad()
        loss = ops.cross_entropy(ops.linear(x, self.w, self.b), labels)
        loss.backward()
        self.sgd.step()
        return loss


def batch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    return random((5, 4), seed), np.random.default_rng(seed).integers(0, 3, 5)


def near(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(numbers(found), numbers(expected), rtol=1e-4, atol=1e-5)


def replay_of(step: Any) -> AsGraph:
    replay = step._last.replay
    assert isinstance(replay, AsGraph), step.program
    return replay


@pytest.mark.slow
def test_replays_train_and_held_results_do_not_change(device: Emulator) -> None:
    mine, plain = Net(True), Net(False)
    held, expected, gradients = [], [], []
    for seed in range(12):
        mine.sgd.lr = plain.sgd.lr = 0.1 / (1 + seed // 2)
        held.append(mine.step(*map(there, batch(seed))))
        expected.append(plain.step(*map(Tensor, batch(seed))))
        gradients.append(mine.w.grad)
        near(mine.w.grad, plain.w.grad)
    for a, b in zip([*held, mine.w, mine.b], [*expected, plain.w, plain.b], strict=True):
        near(a, b)
    assert mine.step.recordings == 2
    assert replay_of(mine.step).copied == [0, 1]
    assert len({id(t._data) for t in held}) == 12
    assert gradients[-1] is gradients[-2]


@pytest.mark.slow
def test_a_graph_does_without_its_first_chunk_if_there_is_no_room(device: Emulator,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = cupy.empty, []

    def empty(shape: Any, dtype: Any) -> Any:
        if dtype is np.uint8:
            refused.append(shape)
            raise cupy.cuda.memory.OutOfMemoryError(1, 1)
        return real(shape, dtype)
    monkeypatch.setattr(cupy, "empty", empty)
    mine, plain = Net(True), Net(False)
    for seed in range(4):
        near(mine.step(*map(there, batch(seed))), plain.step(*map(Tensor, batch(seed))))
    assert refused == [(replay_of(mine.step).program.peak,)]


@pytest.mark.slow
@pytest.mark.parametrize("same", ["Tensors", "arrays", "none"])
def test_arguments_changed_in_place_give_new_results(same: str, device: Emulator) -> None:
    """Read where they lie, if they were the same at each recording, or copied anew each time."""
    mine, plain = Net(True), Net(False)
    x, labels = map(there, batch(0))
    for seed in range(8):
        array, targets = batch(seed)
        if same == "none" and seed < 2:
            x, labels = there(array), there(targets)
        with no_grad():
            x._data[...], labels._data[...] = array, targets
        given = (x, labels) if same != "arrays" or not seed else (wrap(x._data), wrap(labels._data))
        near(mine.step(*given), plain.step(Tensor(array), Tensor(targets)))
    assert replay_of(mine.step).copied == ([0, 1] if same == "none" else [])
    near(mine.w, plain.w)


@pytest.mark.slow
def test_arguments_with_gaps_and_in_another_order(device: Emulator) -> None:
    mine, plain = Net(True), Net(False)
    views: list[Callable[[Any], Any]] = [lambda a: a, lambda a: a[::2], lambda a: a[:, ::-1], lambda a: a.T]
    for seed in range(10):
        whole = random([(5, 4), (10, 4), (5, 4), (4, 5)][seed % 4], seed)
        x, labels = views[seed % 4](cupy.asarray(whole)), batch(seed)[1]
        near(mine.step(wrap(x), there(labels)), plain.step(Tensor(views[seed % 4](whole).copy()), Tensor(labels)))
    assert mine.step.recordings == 2


@pytest.mark.slow
@pytest.mark.parametrize("gaps", [False, True])
def test_an_argument_that_the_step_changes(gaps: bool, device: Emulator) -> None:
    """The new values are in the argument's own memory, whatever its order: running values of other nets in turn."""
    every = 2 if gaps else 1

    @minidl.compile
    def step(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return ops.batch_norm(x, mean, var, training=True)
    running = [tuple(random((3 * every,), 10 * i + j) ** 2 for j in range(2)) for i in range(3)]
    mine = [tuple(cupy.asarray(array) for array in pair) for pair in running]
    for seed in range(2):                              # eager kernels write no array with gaps
        step(there(random((4, 3, 2), seed)), *(there(random((3,), seed) ** 2) for _ in range(2)))
    for seed in range(9):
        x = random((4, 3, 2), seed)
        y = step(there(x), *(wrap(array[::every]) for array in mine[seed % 3]))
        near(y, ops.batch_norm(Tensor(x), *(Tensor(array[::every]) for array in running[seed % 3]), training=True))
    replay = replay_of(step)
    assert (step.recordings, replay.copied, replay.back) == (2, [0, 1, 2], [1, 2])
    for found, expected in zip(mine, running, strict=True):
        for a, b in zip(found, expected, strict=True):
            near(a, b)


@pytest.mark.slow
def test_gradients_of_arguments_are_each_calls_own(device: Emulator) -> None:
    w = random((3, 4), 0)
    held = []

    @minidl.compile
    def step(x: Tensor, b: Tensor) -> Tensor:
        loss = ops.cross_entropy(ops.linear(x, weight, b), labels)
        loss.backward()
        return loss
    weight, labels, expected = there(w), there(batch(0)[1]), []
    for seed in range(8):
        for to, into in ((there, held), (Tensor, expected)):
            x = to(random((5, 4), seed))
            x.requires_grad = True
            b = to(np.zeros(3, np.float32))
            if to is there:
                step(x, b)
            else:
                ops.cross_entropy(ops.linear(x, Tensor(w), b), Tensor(batch(0)[1])).backward()
            into.append(x.grad)
    assert isinstance(replay_of(step), AsGraph)
    for mine, plain in zip(held, expected, strict=True):
        near(mine, plain)


@pytest.mark.slow
def test_threads_replay_one_step(device: Emulator) -> None:
    """Each gets the results of its own arguments."""
    w = there(random((3, 4), 0))

    @minidl.compile
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        y = ops.linear(x, w)
        return y, ops.tanh(y)
    for seed in range(3):
        step(there(random((5, 4), seed)))
    replay_of(step)
    right: list[int] = []

    def work(first: int) -> None:
        for seed in range(first, first + 25):
            x = random((5, 4), seed)
            y = x @ random((3, 4), 0).T
            for found, expected in zip(step(there(x)), (y, np.tanh(y)), strict=True):
                near(found, expected)
            right.append(seed)
    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(right) == [100 * i + k for i in range(4) for k in range(25)]
    assert step.recordings == 2


@pytest.mark.slow
def test_each_replay_draws_anew_what_is_dropped(device: Emulator) -> None:
    """The same elements as the plain step drops, forward and backward."""
    def step(x: Tensor, gradient: Tensor) -> Tensor:
        x.grad = None
        y = ops.dropout(x, 0.4)
        y.backward(gradient)
        return y
    compiled, found, expected = minidl.compile(step), list[Any](), list[Any]()
    for to, run, out in ((there, compiled, found), (lambda a, grad: Tensor(a, requires_grad=grad), step, expected)):
        minidl.manual_seed(5)
        x, gradient = to(random((7, 50), 0), True), to(random((7, 50), 1), False)
        for _ in range(5):
            out += [numbers(run(x, gradient)).copy(), numbers(x.grad).copy()]
    replay_of(compiled)
    for mine, its in zip(found, expected, strict=True):
        near(mine, its)
    assert len({each.tobytes() for each in found}) == len(found)


@pytest.mark.slow
def test_each_replay_draws_other_random_numbers(device: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the plain step draws on the CPU."""
    def step(x: Tensor) -> tuple[Tensor, ...]:
        return (x + minidl.randn_like(x), x[minidl.randperm(7)], minidl.randint(-5, 5, (9,)), ops.dropout(x, 0.5),
                x * minidl.rand_like(x))
    compiled, found = minidl.compile(step), []
    for to, run, made in ((there, compiled, cupy.asarray), (Tensor, step, np.asarray)):
        minidl.manual_seed(5)
        monkeypatch.setattr(create, "to_device", lambda array, _, made=made: made(array))
        x = to(random((7, 50), 0))
        found.append([numbers(y).copy() for _ in range(5) for y in run(x)])
    replay_of(compiled)
    for mine, its in zip(*found, strict=True):
        near(mine, its)
    assert len({each.tobytes() for each in found[0]}) == len(found[0])
