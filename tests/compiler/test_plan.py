"""How long values are needed, and that memory which is let go of then is not missed: also beside streams."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Callable
from copy import copy
from dataclasses import replace as with_
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cases import CASES
from checks.agrees import replay_results
from checks.fused import STEPS, recorded
from checks.nhwc import SHAPES, form_agrees, joined_agree, layer_norm_agrees
from checks.steps import OPTIONS, Maker, Training, batch, bits, dense, names, numbers, vectors, zoo_model

import minidl
from minidl import Tensor, nn, no_grad, ops, optim
from minidl.compiler import replay
from minidl.compiler.graph import AsGraph, SideStreams
from minidl.compiler.passes import fuse
from minidl.compiler.plan import ALIGNMENT, Schedule, _peak, can_be_captured, plan
from minidl.compiler.program import Dynamic, Program, Slot, leaves, replace
from minidl.compiler.replay import ByCalls
from minidl.core import pools
from minidl.distributed.world import One
from minidl.ops import cpu
from minidl.ops.common.geometry import conv_geometry, pool_geometry
from minidl.ops.common.geometry.nhwc import FORMS
from minidl.ops.common.primitives import PRIMITIVES, known
from minidl.ops.layers.norm import batch_geometry
from minidl.training import RunningMetrics

SIZE = ALIGNMENT                           # of the values of a Maker


def ended(program: Program, streams: bool) -> list[set[Slot]]:
    return list(map(set, plan(program, streams).ends))


# ---------------------------------------------------------------- what a graph can hold
class Elsewhere:
    """As an array of a CUDA device, of which only the type is looked at."""

    shape, dtype = (2,), np.dtype(np.float32)


def test_a_program_can_be_captured_where_all_is_on_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minidl.compiler.plan.is_cuda", lambda array: isinstance(array, Elsewhere))
    cuda = SimpleNamespace(__name__="minidl.ops.cuda")

    def captured(outside: Any, backend: Any = cuda, name: str = "sgd", rate: Any = 0.1, calls: int = 2) -> bool:
        make = Maker()
        x, w = make.slot("input"), Slot(100, "outside", outside.shape, outside.dtype, outside)
        y = make.call("mul", x, w)
        make.call(name, (w,), (y,), None, rate, 0.0, 0.0, False, results=0)
        program = make.program([x], y)
        last = with_(program.calls[1], backend=backend)
        return can_be_captured(with_(program, calls=[with_(program.calls[0], backend=cuda), last][:calls]))

    assert captured(Elsewhere())
    assert captured(Elsewhere(), rate=Dynamic(0, lambda: 0.1))           # which sgd reads there
    assert not captured(Elsewhere(), name="mul", rate=Dynamic(0, lambda: 0.1))
    assert not captured(np.zeros(2, np.float32))
    assert not captured(Elsewhere(), backend=cpu)
    assert not captured(Elsewhere(), calls=0)


# ---------------------------------------------------------------- lifetimes
def test_a_value_ends_with_its_last_reader() -> None:
    make = Maker()
    x = make.slot("input")
    a = make.call("exp", x)
    b = make.call("exp", a)
    c = make.call("mul", a, b)
    program = make.program([x], c)
    assert ended(program, False) == ended(program, True) == [set(), set(), {a, b}]
    assert plan(program, False).peak == 3 * SIZE


def test_inputs_and_what_is_kept_never_end() -> None:
    make = Maker()
    x, w = make.slot("input"), make.slot("outside")
    a = make.call("mul", x, w)
    g = make.call("exp", a)
    make.call("sgd", (w,), (g,), None, 0.1, 0.0, 0.0, False, results=0)
    program = make.program([x], a, [(numbers(1), g)])
    assert ended(program, False) == ended(program, True) == [set(), set(), set()]


def test_a_result_that_nobody_reads_ends_at_once() -> None:
    make = Maker()
    x = make.slot("input")
    first, second = make.call("cross_entropy", x, x, results=2)
    assert ended(make.program([x], second), False) == [{first}]


def updated() -> tuple[Program, dict[str, Slot]]:
    """Two updates; da and db are made on side streams, db after the first one."""
    make = Maker()
    x, w = make.slot("input"), make.slot("outside")
    a = make.call("exp", x)
    da = make.call("neg", a)                                             # on a side stream: it reads a
    b = make.call("exp", a)
    c = make.call("exp", b)
    make.call("sgd", (w,), (da,), None, 0.1, 0.0, 0.0, False, results=0)
    db = make.call("neg", c)
    make.call("sgd", (w,), (db,), None, 0.1, 0.0, 0.0, False, results=0)
    d = make.call("exp", x)
    return make.program([x], d), {"a": a, "b": b, "c": c, "da": da, "db": db}


def test_what_a_call_aside_touches_ends_with_the_update_that_waits() -> None:
    program, v = updated()
    assert plan(program, True).side == [None, 4, None, None, None, 6, None, None]
    assert ended(program, True) == [set(), set(), set(), {v["b"]}, {v["da"], v["a"]}, set(), {v["db"], v["c"]}, set()]
    assert plan(program, False).side == [None] * 8
    assert ended(program, False) == [set(), set(), {v["a"]}, {v["b"]}, {v["da"]}, {v["c"]}, {v["db"]}, set()]
    assert (plan(program, True).peak, plan(program, False).peak) == (4 * SIZE, 3 * SIZE)


def test_a_counter_is_on_a_side_stream_until_what_waits_for_it_writes() -> None:
    """That update waits for the counter itself, so it may change what the counter reads; one in between may not."""
    for between, expected in (("exp", 3), ("setitem", None)):
        make = Maker()
        x, total = make.slot("input"), make.slot("outside")
        a = make.call("exp", x)
        make.call("update_metrics", total, a, results=0)
        make.call(between, a, results=int(between == "exp"))
        make.call("setitem", total, a, results=0)
        assert plan(make.program([x], a), True).side == [None, expected, None, None]


def test_a_view_needs_its_sources_memory_and_none_of_its_own() -> None:
    make = Maker()
    x = make.slot("input")
    a = make.call("exp", x)
    view = make.call("reshape", a, (2, 1))
    b = make.call("exp", x)                                              # a has ended, its memory has not
    c = make.call("mul", view, b)
    d = make.call("exp", c)
    program = make.program([x], d)
    assert ended(program, False) == [set(), {a}, set(), {view, b}, {c}]
    assert plan(program, False).peak == 3 * SIZE                                        # a's, b and c


def test_a_view_of_an_input_needs_nothing() -> None:
    make = Maker()
    x = make.slot("input")
    y = make.call("exp", make.call("transpose", make.call("reshape", x, (2,)), (0,)))
    assert plan(make.program([x], y), False).peak == SIZE


def test_what_indices_pick_has_memory_of_its_own() -> None:
    make = Maker()
    x, i = make.slot("input"), make.slot("input")
    for index, expected in ((slice(1), 0), (np.array([0]), SIZE), (i, SIZE)):
        make.calls = []
        assert plan(make.program([x, i], make.call("getitem", x, index)), False).peak == expected


def test_a_primitive_that_gives_back_its_argument() -> None:
    """One value, made twice: it is counted once, and ends once."""
    make = Maker()
    x = make.slot("input")
    a = make.call("exp", x)
    make.call("sum_to", a, (2,))
    make.calls[-1] = with_(make.calls[-1], results=(a,))
    b = make.call("exp", a)
    program = make.program([x], b)
    assert ended(program, False) == [set(), set(), {a}]
    assert plan(program, False).peak == 2 * SIZE


def test_a_printed_program_says_what_memory_its_results_need() -> None:
    """20 rounded up to 512, for each of the two that are alive at once, whatever the number of calls."""
    step = minidl.compile(lambda x: x.tanh().tanh().tanh().tanh())
    step(numbers(1, 2, 3, 4, 5))
    assert step.program.peak == 1024
    assert repr(step.program).endswith("\n  # memory: 1,024 bytes for results")
    assert step.recorded.peak is None


# ---------------------------------------------------------------- who shares memory
def checked_primitives(monkeypatch: pytest.MonkeyPatch, called: set[str]) -> None:
    """Let every primitive of the CPU see that what it gives, but for those that share, lies in memory of its own."""
    def checked(name: str, primitive: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = primitive(*arguments, **options)
            results = [r for r in leaves(result) if isinstance(r, np.ndarray)]
            given = [a for a in leaves((arguments, options)) if isinstance(a, np.ndarray)]
            called.add(name)
            if not known(name).shares:
                for i, r in enumerate(results):
                    assert not any(np.shares_memory(r, other) for other in results[:i]), name
                    assert not any(np.shares_memory(r, a) for a in given if a is not r), name
            return result
        call.__name__ = name
        return call

    cpu.linear_act  # noqa: B018  # what is made of patterns is there from when one of it is named
    for name, primitive in vars(cpu).items():
        if isinstance(primitive, FunctionType) and not name.startswith(("_", "can_")):     # typing.Any is callable
            monkeypatch.setattr(cpu, name, checked(name, primitive))


@pytest.mark.deep
def test_only_sharing_primitives_give_memory_that_others_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every op's cases, forward and backward, in the steps of the zoo's models as they are fused, and in updates."""
    called: set[str] = set()
    checked_primitives(monkeypatch, called)
    for case in (case for cases in CASES.values() for case in cases):
        xs = [Tensor(x, requires_grad=case.differentiable and x.dtype.kind == "f") for x in case.arrays()]
        y = case.call(*xs, **case.options)
        if y.requires_grad:
            y.backward(Tensor(np.ones(y.shape, y.dtype)))
    assert (Tensor([1, 2]) / 2).dtype == np.float32                          # by a cast
    for name in OPTIONS:
        each = Training(zoo_model(name), True, momentum=0.9)
        for _ in range(3):
            each.step(*batch(name, 3, 0))
    for name in FORMS:
        form_agrees(name, SHAPES[0], 0, "float32")
    joined_agree(SHAPES[0], 0, "float32")
    x, filters = np.ones((2, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
    g, pooling = conv_geometry(x.shape, filters.shape, None, 1, 1, "gemm"), pool_geometry("", (2, 4, 8, 8), 2, None, 0)
    half, averages = cpu.conv2d_act_pool_half(x, filters, None, g, "tanh", pooling)
    cpu.conv2d_act_pool_half_grad_wb(averages, half, x, g, "tanh", pooling)
    image, ones = np.ones((2, 8, 8, 3), np.float32), np.ones(3, np.float32)
    made = cpu.conv2d_nhwc(image, filters, None, g, None, "tf32")
    cpu.conv2d_max_pool_nhwc(image, filters, None, g, None, "tf32", pooling)
    cpu.conv2d_grad_x_act_b_nhwc(made, filters, g, "tf32", None, image, "relu")
    sets = batch_geometry(x.shape, (3,), (3,), None, None, True)
    cpu.conv2d_grad_x_norm_nhwc(made, filters, g, "tf32", None, image, image, None, ones, ones, sets, "gelu")
    cpu.normalize_again_act_grad_nhwc(image, None, image, None, None, ones, ones, sets, "gelu")
    cpu.conv2d_transposed_nhwc(made, filters, ones[:, None, None], g, "relu", "tf32")
    layer_norm_agrees(70, 24, "float32")
    heads = np.random.default_rng(0).standard_normal((2, 3, 5, 8), np.float32)
    o, sums = cpu.attention_stored(heads, heads + 1, heads + 2, None, True, 0.5)
    cpu.attention_grad_stored(o + 1, heads, heads + 1, heads + 2, None, o, sums, True, 0.5)
    for draw in (minidl.rand, minidl.randn, lambda *shape: minidl.randint(0, 9, shape)):
        assert draw(2, 3).shape == (2, 3)
    w = Tensor(np.ones((2, 3)), requires_grad=True)
    for optimizer in (optim.Adam, optim.RMSprop, optim.Muon):
        w.grad = Tensor(np.ones((2, 3)))
        optim.clip_grad_norm([w], 1.0)
        optimizer([w]).step()
    assert len(cpu.rank_mean([np.ones((2, 3)), np.ones(4)], 1.0, One())) == 2
    public = {name for name, value in vars(cpu).items() if isinstance(value, FunctionType)
              and not name.startswith(("_", "can_"))}
    for name in STEPS:
        found, *run = recorded(name)
        replay_results(fuse(found), *run)
    assert called >= {name for name, known in PRIMITIVES.items() if known.shares}
    assert public - called <= {"advance", "gather", "next_batch", "next_rows", "update_metrics", "region_step",
                               "annotations", "setitem"}


def test_primitives_change_what_their_rows_say_and_nothing_else() -> None:
    x, labels = np.array([[1.0, 2.0]]), np.array([1])
    given: dict[str, list[Any]] = {
        "sgd": [[x.copy()], [x.copy()], [x.copy()], 0.1, 0.9, 0.1, True],
        "adam": [*([each.copy()] for each in (x, x, 2 * x, x, labels)), 0.1, (0.9, 0.9), 1e-8, 0.0, False],
        "rmsprop": [*([i * x] for i in range(1, 6)), 0.1, 0.9, 1e-8, 0.0, 0.9],
        "ema": [[x.copy()], [2 * x], 0.9], "setitem": [x.copy(), 0, 3 * x],
        "advance": [labels.copy()], "update_metrics": [np.zeros(3), np.array(0.5), x.copy(), labels.copy()],
        "check_labels": [labels.copy(), 2], "rank_mean": [[x.copy()], 1.0, One()],
        "batch_norm": [np.array([[1.0], [2.0]]), None, None, np.zeros(1), np.ones(1), 0.1, 0.0,
                       batch_geometry((2, 1), None, None, None, None, True)]}
    given["batch_norm_act"] = [*given["batch_norm"][:1], None, *map(copy, given["batch_norm"][1:]), "relu"]
    given["batch_norm_nhwc"] = [np.array([[[[1.0]]], [[[2.0]]]]), None, *given["batch_norm"][1:7],
                                batch_geometry((2, 1, 1, 1), None, None, None, None, True), None]
    assert given.keys() == {name for name, known in PRIMITIVES.items() if known.effect or known.changes}
    for name, arguments in given.items():
        make, before = Maker(), list(map(repr, arguments))
        slots = [replace(a, lambda v, make=make: make.slot("input") if isinstance(v, np.ndarray) else v)
                 for a in arguments]
        make.call(name, *slots, results=0)
        getattr(cpu, name)(*arguments)
        changed = [slot for a, was, slot in zip(arguments, before, slots, strict=True) if repr(a) != was]
        assert make.program([], None).written() == set(leaves(changed)), name


# ---------------------------------------------------------------- memory that is handed out again
class Arena:
    """Memory as CuPy's pool hands it out: what is let go of serves the next fitting result on the same stream."""

    def __init__(self) -> None:
        self.blocks: list[bytearray] = []              # never given back
        self.free: dict[str, list[bytearray]] = {}
        self.now = self.most = 0

    @property
    def bytes(self) -> int:
        return sum(map(len, self.blocks))

    def empty(self, like: np.ndarray, stream: str) -> np.ndarray:
        size = -(-like.nbytes // ALIGNMENT) * ALIGNMENT
        free = self.free.setdefault(stream, [])
        block = min((block for block in free if len(block) >= size), key=len, default=None)
        if block is None:
            self.blocks.append(block := bytearray(size))
        else:
            free[:] = [other for other in free if other is not block]
        array = np.ndarray(like.shape, like.dtype, block)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(array, self.let_go, block, size, stream)
        return array

    def let_go(self, block: bytearray, size: int, stream: str) -> None:
        self.now -= size
        self.free[stream].append(block)


class Queue:
    """A stream: the main one does its work at once, the others do none before the main one waits for them."""

    current = ["main"]

    def __init__(self, name: str) -> None:
        self.name, self.work, self.done = name, deque[Callable[[], None]](), 0

    def record(self) -> tuple[Queue, int]:
        return self, self.done + len(self.work)

    def wait_event(self, event: tuple[Queue, int]) -> None:
        other, given = event
        while other.done < given:
            other.work.popleft()()
            other.done += 1

    def __enter__(self) -> None:
        self.current.append(self.name)

    def __exit__(self, *error: object) -> None:
        self.current.pop()


def borrowed(value: Any) -> Any:
    """An array's memory as a kernel has it: by its address, whether or not somebody holds it."""
    return np.asarray(SimpleNamespace(__array_interface__=value.__array_interface__)) if isinstance(
        value, np.ndarray) else value


class InArena:
    """A backend whose results lie in an arena, and whose calls wait in the queue of the stream that is current."""

    def __init__(self, arena: Arena, queues: dict[str, Queue]) -> None:
        self.arena, self.queues = arena, queues

    def __getattr__(self, name: str) -> Callable[..., Any]:
        primitive = getattr(cpu, name)

        def call(*arguments: Any, **options: Any) -> Any:
            stream, held = Queue.current[-1], [a for a in leaves(arguments) if isinstance(a, np.ndarray)]
            found = None if known(name).counter and stream != "main" else primitive(*arguments, **options)
            made = found if isinstance(found, tuple) else () if found is None else (np.asarray(found),)
            if any(np.may_share_memory(value, a) for value in made for a in held):
                return found                           # a view: no work
            results = tuple(self.arena.empty(value, stream) for value in made)
            if stream == "main":
                for result, value in zip(results, made, strict=True):
                    result[...] = value
            else:
                given, places = replace(list(arguments), borrowed), list(map(borrowed, results))

                def later() -> None:
                    value = primitive(*given, **options)
                    parts = value if isinstance(value, tuple) else () if value is None else (value,)
                    for place, part in zip(places, parts, strict=True):
                        place[...] = part
                self.queues[stream].work.append(later)
            return results if isinstance(found, tuple) else results[0] if results else None

        call.__name__ = name
        return call


def replayed(each: Training, given: tuple[Tensor, Tensor], state: Any, run: Callable[[Program, list[Any]], Any]) -> Any:
    """All that a replay of the step's program leaves behind, as bytes."""
    each.set_back(state)
    program = each.step.program
    values = run(program, [t.data for t in given])
    kept = sorted(program.kept(), key=lambda slot: slot.number)
    return [np.asarray(values[slot.number]).tobytes() for slot in kept] + [
        array.tobytes() for name, array in each.arrays().items() if not name.endswith(".grad")]


def in_arena(each: Training, given: tuple[Tensor, Tensor], state: Any, streams: bool,
             ends: Callable[[Program], list[list[Slot]]] | None = None) -> tuple[Any, Arena]:
    """ends: in place of the plan's."""
    arena, queues = Arena(), {name: Queue(name) for name in ("main", "a", "b", "last")}

    def run(program: Program, arrays: list[Any]) -> Any:
        backend: Any = InArena(arena, queues)
        calls = ByCalls(with_(program, calls=[with_(call, backend=backend) for call in program.calls]), streams)
        if ends:
            calls.steps = [(*step[:-1], [slot.number for slot in end])
                           for step, end in zip(calls.steps, ends(program), strict=True)]
        beside = SideStreams(queues["main"], [queues["a"], queues["b"]], queues["last"]) if streams else None
        values = calls.values(arrays, [each.sgd.lr] * len(program.dynamics), beside)
        if beside:
            beside.join(len(program.calls))
        return values

    return replayed(each, given, state, run), arena


def deep() -> nn.Module:
    """Values of one size, layer after layer: each fits where any other was."""
    return dense(*(part for _ in range(4) for part in (lambda: nn.Linear(16, 16), nn.Tanh)))()


NETS = ("deep", *OPTIONS)


def trained(name: str) -> tuple[Training, tuple[Tensor, Tensor], Any]:
    each = Training(deep if name == "deep" else zoo_model(name), True, momentum=0.9)
    given = vectors(16) if name == "deep" else batch(name, 3, 0)
    state = each.net.state_dict()
    each.step(*given)
    return each, given, state


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_memory_that_is_handed_out_again_is_missed_by_nobody(name: str) -> None:
    """Work on side streams is done as late as it may be, when what it reads could have been overwritten."""
    each, given, state = trained(name)
    expected = replayed(each, given, state, lambda program, arrays: ByCalls(program).values(
        arrays, [each.sgd.lr] * len(program.dynamics)))
    assert expected == in_arena(each, given, state, streams=True)[0]
    assert expected == in_arena(each, given, state, streams=False)[0]


def test_a_plan_without_streams_would_be_wrong_beside_streams() -> None:
    """So the test above can fail."""
    each, given, state = trained("deep")
    wrong = in_arena(each, given, state, True, lambda program: plan(program, False).ends)[0]
    assert in_arena(each, given, state, True)[0] != wrong


class Watched(Training):
    """A step that adds up metrics before its update."""

    def __init__(self) -> None:
        super().__init__(deep, True, momentum=0.9)
        self.metrics = RunningMetrics("cpu")

        @minidl.compile
        def step(x: Tensor, labels: Tensor) -> None:
            self.sgd.zero_grad()
            logits = self.net(x)
            loss = ops.cross_entropy(logits, labels)
            loss.backward()
            self.metrics.update(loss, logits, labels)
            self.sgd.step()
        self.step = step

    def arrays(self) -> dict[str, Any]:
        return {**super().arrays(), "metrics": self.metrics.sums.data.copy()}


def test_metrics_may_be_added_up_last_of_all() -> None:
    """After the update, and when what they read could have been overwritten."""
    each, given = Watched(), vectors(16)
    state = each.net.state_dict()
    each.step(*given)

    def once(run: Callable[[], Any]) -> Any:
        each.metrics.sums.data[...] = 0
        return run()

    expected = once(lambda: replayed(each, given, state, lambda program, arrays: ByCalls(program).values(
        arrays, [each.sgd.lr] * len(program.dynamics))))
    assert each.metrics.sums.tolist()[0] > 0
    assert expected == once(lambda: in_arena(each, given, state, streams=True)[0])
    wrong = once(lambda: in_arena(each, given, state, True, lambda program: plan(program, False).ends)[0])
    assert expected != wrong                           # so this test can fail


@pytest.mark.parametrize("name", NETS)
def test_the_peak_is_what_is_held(name: str) -> None:
    each, given, state = trained(name)
    arena = in_arena(each, given, state, streams=False)[1]
    assert arena.most == each.step.program.peak
    assert in_arena(each, given, state, streams=True)[1].most == plan(each.step.program, True).peak


def test_less_memory_than_without_a_plan() -> None:
    each, given, state = trained("lenet5")
    sizes = [in_arena(each, given, state, streams, ends)[1].bytes for streams, ends in (
        (True, lambda program: [[] for _ in program.calls]), (True, None), (False, None))]
    assert sizes[0] > sizes[1] > sizes[2] >= each.step.program.peak


def unplanned(program: Program, streams: bool) -> Schedule:
    """Nothing ends."""
    return plan(program, streams)._replace(ends=[[] for _ in program.calls])


def convolutions() -> nn.Module:
    """Whose gradients by x are read on the main stream alone."""
    return nn.Sequential(*(part for _ in range(4) for part in (nn.Conv2d(8, 8, 3, padding=1), nn.MaxPool2d(1))),
                         nn.Flatten(), nn.Linear(8 * 16 * 16, 10))


def images(device: str) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(0)
    return (Tensor(rng.standard_normal((32, 8, 16, 16), dtype=np.float32), device=device),
            Tensor(rng.integers(0, 10, 32), device=device))


def test_fewer_bytes_beside_streams_where_the_main_one_alone_reads() -> None:
    each = Training(convolutions, True)
    each.step(*images("cpu"))
    program = each.step.program
    everything = _peak(program, unplanned(program, True).ends)
    assert plan(program, False).peak < plan(program, True).peak < everything


# ---------------------------------------------------------------- on a GPU
def graph_of(step: Any) -> AsGraph:
    return next(entry.replay for entries in step._programs.values() for entry in entries)


@pytest.mark.gpu
@pytest.mark.parametrize("train", [False, True])
def test_gpu_a_graph_needs_less_memory_with_a_plan(train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And every replay gives the same bits as without, whatever becomes of the memory that is free in the pool."""
    import cupy

    x, labels = images("cuda")
    sizes, found = [], []
    for planned in (True, False):
        if not planned:
            monkeypatch.setattr(replay, "plan", unplanned)
        each = Training(convolutions, True, "cuda", momentum=0.9)

        @minidl.compile
        def infer(x: Tensor, net: nn.Module = each.net) -> Tensor:
            with no_grad():
                return net(x)

        for i in range(20):
            result = each.step(x, labels) if train else infer(x)
            if i == 10:
                graph = graph_of(each.step if train else infer)
                graph.memory.pool.free_all_blocks()
                cupy.full(graph.bytes, 255, np.uint8)
        assert can_be_captured(graph.program)
        sizes.append(graph.bytes)
        found.append((bits(result), *(array.get().tobytes() for array in each.arrays().values())))
    assert found[0] == found[1]
    assert sizes[0] < sizes[1]


@pytest.mark.gpu
def test_gpu_what_lives_on_keeps_no_larger_memory_of_a_recorded_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Velocities and tables are made while memory of results lies free."""
    import cupy

    monkeypatch.setattr(pools, "LITTLE", 0)
    x, labels = batch("alexnet", 32, 0, "cuda")
    pools.free_all_blocks()
    pool = cupy.get_default_memory_pool()
    before = pool.total_bytes() - pool.used_bytes()
    each = Training(zoo_model("alexnet"), True, "cuda", momentum=0.9)
    for _ in range(3):
        each.step(x, labels)
    assert isinstance(graph_of(each.step), AsGraph)
    assert pool.total_bytes() - pool.used_bytes() < before + (8 << 20)


@pytest.mark.gpu
def test_gpu_a_graph_can_take_what_the_recorded_run_left() -> None:
    """Two pools share the device: what one holds free, the other cannot have."""
    import cupy

    each = Training(zoo_model("lenet5"), True, "cuda")
    given = batch("lenet5", 16, 0, "cuda")
    for _ in range(2):
        each.step(*given)
    big = cupy.empty(1 << 30, np.uint8)
    del big
    assert cupy.get_default_memory_pool().free_bytes() >= 1 << 30
    each.step(*given)
    assert isinstance(graph_of(each.step), AsGraph)
    assert cupy.get_default_memory_pool().free_bytes() < 1 << 30


@pytest.mark.gpu
def test_gpu_a_graph_for_which_there_is_no_memory_takes_what_the_recorded_run_left(monkeypatch: pytest.MonkeyPatch
                                                                                  ) -> None:
    """Little is left to other pools, unless it is needed while a graph is captured."""
    import cupy

    def trained(full: bool) -> list[bytes]:
        each, given = Training(zoo_model("lenet5"), True, "cuda"), batch("lenet5", 16, 0, "cuda")
        for _ in range(2):
            each.step(*given)
        if full:
            rest = cupy.empty(1 << 26, np.uint8)
            del rest
            monkeypatch.setattr(cupy.cuda, "Memory", memory)
        each.step(*given)
        assert isinstance(graph_of(each.step), AsGraph)
        return [array.get().tobytes() for array in each.arrays().values()]

    def memory(size: int) -> Any:
        if cupy.cuda.get_current_stream().is_capturing() and pool.free_bytes() >= 1 << 26:
            refused.append(size)
            raise cupy.cuda.memory.OutOfMemoryError(size, 0, 0)
        return own(size)

    pool, own, refused = cupy.get_default_memory_pool(), cupy.cuda.Memory, list[int]()
    pools.free_all_blocks()
    expected = trained(full=False)
    assert trained(full=True) == expected
    assert len(refused) == 1
    assert pool.free_bytes() < 1 << 26


@pytest.mark.parametrize(("held", "frees"), [((pools.LITTLE, 0), False), ((pools.LITTLE, 1), True), ((0, 0), False)])
def test_little_that_other_pools_hold_is_left_to_them(held: tuple[int, int], frees: bool,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Of CuPy's own pool, and of graphs that have gone."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    freed = list[int]()

    class Pool:
        def __init__(self, size: int):
            self.total_bytes = lambda: size

        def free_all_blocks(self) -> None:
            freed.append(self.total_bytes())

    own, ended = map(Pool, held)
    monkeypatch.setattr(cupy, "get_default_memory_pool", lambda: own)
    monkeypatch.setattr(pools, "_ended", {ended})
    monkeypatch.setattr(pools, "_lasting", [])
    pools.free_if_much()
    assert bool(freed) == frees


def test_what_launchers_keep_goes_with_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
    from minidl.ops.cuda.launch import memory

    kept: list[int] = []
    pool = SimpleNamespace(free_all_blocks=lambda: kept.append(memory._kept.bytes), total_bytes=lambda: 0)
    monkeypatch.setattr(cupy, "get_default_memory_pool", lambda: pool)
    monkeypatch.setattr(pools, "_ended", set())
    monkeypatch.setattr(pools, "_lasting", [])
    memory._kept.add(("a key",), np.zeros(4))
    assert memory._kept.bytes == 32
    pools.free_all_blocks()
    assert kept == [0]
    assert not memory._kept.arrays


@pytest.mark.gpu
def test_gpu_nothing_that_launchers_kept_stays_beside_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    from minidl.ops.cuda.launch import memory

    monkeypatch.setattr(pools, "LITTLE", 0)
    each = Training(zoo_model("lenet5"), True, "cuda")
    for _ in range(3):
        each.step(*batch("lenet5", 16, 0, "cuda"))
    assert isinstance(graph_of(each.step), AsGraph)
    assert not memory._kept.arrays


@pytest.mark.gpu
def test_gpu_the_device_has_the_memory_of_a_graph_again() -> None:
    """When the graph has gone, and with it the arrays that it left: gradients lie in its memory."""
    each = Training(zoo_model("lenet5"), True, "cuda")
    given = batch("lenet5", 16, 0, "cuda")
    for _ in range(3):
        each.step(*given)
    pool = graph_of(each.step).memory.pool
    gradients = {name: p.grad.numpy() for name, p in each.net.named_parameters()}
    pools.free_all_blocks()
    held = pool.total_bytes()
    each.step = None
    gc.collect()
    pools.free_all_blocks()
    assert 0 < pool.total_bytes() < held
    assert all((p.grad.numpy() == gradients[name]).all() for name, p in each.net.named_parameters())
    each.sgd.zero_grad()
    pools.free_all_blocks()
    assert not pool.total_bytes()
    assert pool not in pools._ended


@pytest.mark.gpu
def test_gpu_a_graph_keeps_its_memory_while_it_lives() -> None:
    """What is free in its pool, too: its kernels write there at every replay."""
    import cupy

    def kind_at(address: int) -> int:
        return cupy.cuda.runtime.pointerGetAttributes(address).type

    memory = pools.GraphMemory()
    with memory.as_allocator():
        address = cupy.empty(1 << 20, np.uint8).data.ptr
    for give_back in (memory.pool.free_all_blocks, pools.free_all_blocks):
        give_back()
        assert memory.bytes == 1 << 20
        assert kind_at(address) == cupy.cuda.runtime.memoryTypeDevice
    del memory
    pools.free_all_blocks()
    assert kind_at(address) == cupy.cuda.runtime.memoryTypeUnregistered


@pytest.mark.gpu
def test_gpu_a_gradient_is_not_copied() -> None:
    """Whichever algorithm made it: no `copy` is recorded but of what two parameters share."""
    each = Training(zoo_model("lenet5"), True, "cuda")
    each.step(*batch("lenet5", 16, 0, "cuda"))
    assert "copy" not in names(each.step.recorded)
    assert "copy" not in names(each.step.program)


@pytest.mark.gpu
def test_gpu_gradients_own_their_memory() -> None:
    """Also where a fused primitive leaves a filter's and a bias's side by side: either may be changed in place."""
    for name in ("lenet5", "krizhevsky2009"):
        each = Training(zoo_model(name), True, "cuda")
        for _ in range(3):
            each.step(*batch(name, 16, 0, "cuda"))
        gradients = [p.grad.data for p in each.net.parameters()]
        for i, g in enumerate(gradients):
            g[...] = i
        for i, g in enumerate(gradients):
            assert g.min() == g.max() == i
