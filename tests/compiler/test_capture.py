"""Streams beside the main one, and compiled steps on a GPU, where a program is captured as a graph.

There a replay gives the plain function's bits where no call was fused.
"""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checks.steps import (
    FACTORS,
    OPTIONS,
    SETTINGS,
    Training,
    alive,
    batch,
    bits,
    dense,
    half,
    names,
    no_collections,
    normalising,
    placed,
    regularised,
    two_dropouts,
    vectors,
    zoo_model,
)

import minidl
from minidl import Tensor, nn, no_grad, ops, optim
from minidl.compiler.graph import SideStreams
from minidl.compiler.plan.streams import side_streams_of
from minidl.compiler.record import CompileError


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
    named = zip((call.name for call in program.calls), side_streams_of(program), strict=True)
    side = {name for name, waiting in named if waiting is not None}
    assert side
    assert side <= {"linear_grad_w", "linear_grad_b"}

    FakeStream.log = []
    streams = SideStreams(FakeStream("main"), [FakeStream("a"), FakeStream("b")], FakeStream("last"))

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


def test_side_streams_take_turns() -> None:
    FakeStream.log = []
    streams = SideStreams(FakeStream("main"), [FakeStream(name) for name in "abc"], FakeStream("last"))

    def grad() -> None:
        FakeStream.log.append(FakeStream.current[-1])

    def update_metrics() -> None:
        grad()

    for number, primitive in enumerate((grad, grad, update_metrics, grad, grad, grad)):
        streams.run(number, 10, primitive, [], {})
    assert [entry for entry in FakeStream.log if isinstance(entry, str)] == ["a", "b", "last", "c", "a", "b"]
    FakeStream.log = []
    streams.join(9)
    assert FakeStream.log == []
    streams.join(10)
    assert sorted(FakeStream.log) == [("main", name) for name in ("a", "b", "c", "last")]


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


# Nets of relu or max pooling: of two runs that round otherwise one takes another maximum some day, and from there they
# part. A start moved by 1e-6 moves cifar10-quick's velocities by 0.07 in 50 steps (float32, CPU).
PARTING = ("airbench", "alexnet", "cifar10-quick", "cifar10-18", "ece408", "resnet", "resnet-224")


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPTIONS)
def test_gpu_fifty_steps_of_a_zoo_model(name: str) -> None:
    """Odd last batches among them, and a rate that changes at every step; in float64 where float32's runs part."""
    dtype = "float64" if name in PARTING else "float32"
    batches = [(x.to(dtype=dtype), labels) for x, labels in (batch(name, 5 if i == 3 else 16, i, "cuda")
                                                             for i in range(4))]
    pair = [Training(lambda: zoo_model(name)().to(dtype=dtype), compiled, "cuda", momentum=0.9, weight_decay=5e-4)
            for compiled in (False, True)]
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
    both = [(p, q) for (_, p), (_, q) in zip(*(each.net.named_tensors() for each in pair), strict=True)]
    for i in range(1000):
        for p, q in both:
            q.data[...] = p.data
            if p.requires_grad:
                pair[1].sgd._array("velocities", q)[...] = pair[0].sgd._array("velocities", p)
        for each in pair:
            each.sgd.lr = 0.02 * FACTORS(i % 300)
        assert_near(pair[1].step, *({"loss": each.step(*batches[i % 8]).data} for each in reversed(pair)))
        if i % 50 < 2:
            assert_near(pair[1].step, *(each.arrays() for each in pair))
    assert pair[1].step.recordings == 4
    assert np.isfinite(float(pair[1].step(*batches[0])))


@pytest.mark.gpu
def test_gpu_arguments_in_one_memory() -> None:
    """A change of one is seen in the other; a graph would read a copy of it from before."""
    def step(a: Tensor, b: Tensor) -> Tensor:
        with minidl.no_grad():
            a.add_(1.0)
        return b * 2
    import cupy

    def apart(x: Tensor) -> Tensor:
        return x.clone()

    windows = (lambda x: Tensor(cupy.lib.stride_tricks.as_strided(x.data, (3, 2), (4, 4))),    # no view of x's array
               lambda x: Tensor(cupy.ndarray(3, np.float32, x.data.data + 4)))
    for others in ([lambda x: x.detach(), lambda x: x[1:]], *([window, apart, window] for window in windows)):
        call = minidl.compile(step)
        for other in others:
            for i in range(5):
                x = Tensor(np.arange(4.0) + i, device="cuda")
                y = other(x)
                assert call(x, y).tolist() == (2 * y).tolist()


@pytest.mark.gpu
def test_gpu_an_argument_in_a_parameters_memory() -> None:
    """That is no view of it: it is read after the update, as the plain function reads it."""
    import cupy

    def trained(compiled: bool) -> list[list[float]]:
        w = Tensor(np.ones(3, np.float32), requires_grad=True, device="cuda")
        sgd = optim.SGD([w], lr=0.5)

        def step(x: Tensor) -> Tensor:
            sgd.zero_grad()
            (w * w).sum().backward()
            sgd.step()
            return x * 2
        call = minidl.compile(step) if compiled else step
        return [call(Tensor(cupy.ndarray(3, np.float32, w.data.data))).tolist() for _ in range(5)]
    assert trained(True) == trained(False)


@pytest.mark.gpu
def test_gpu_normalisation() -> None:
    """The captured graph moves the running values in place; odd batches, and evaluation between, in which they go into
    the filters."""
    pair = [Training(normalising, compiled, "cuda", momentum=0.9) for compiled in (False, True)]
    look = minidl.compile(pair[1].net)
    for i in range(200):
        state = {name: t.data.get() for name, t in pair[0].net.named_tensors()}
        pair[1].set_back(state)
        pair[0].sgd.forget()
        given = vectors(5 if i % 8 == 7 else 8, i, "cuda")
        assert_near(pair[1].step, *({"loss": each.step(*given).data} for each in reversed(pair)))
        if i % 20 < 2:
            assert_near(pair[1].step, *(each.arrays() for each in pair))
            pair[1].net.eval()
            with no_grad():
                np.testing.assert_allclose(look(given[0]).numpy(), pair[1].net(given[0]).numpy(), rtol=1e-5, atol=1e-6)
            pair[1].net.train()
    assert pair[1].step.recordings == 4


@pytest.mark.gpu
def test_gpu_a_thousand_steps_of_normalisation_and_dropout() -> None:
    """Odd batches among them. Each five steps the compiled one goes on from where the plain one is: on the CPU, where
    every parameter moves by its last bit at each step, five steps make 0.02 of the tolerance, and twenty all of it."""
    pair = [Training(regularised, compiled, "cuda", momentum=0.9, weight_decay=5e-4) for compiled in (False, True)]
    for i in range(1000):
        if i % 5 == 0:
            pair[1].follow(pair[0])
        given, losses = vectors(5 if i % 8 == 7 else 8, i, "cuda"), []
        for each in pair:
            minidl.manual_seed(i)          # both draw from one generator
            each.sgd.lr = 0.02 * FACTORS(i % 300)
            losses.append({"loss": each.step(*given).data})
        assert_near(pair[1].step, *losses)
        assert_near(pair[1].step, *(each.arrays() for each in pair))
    assert pair[1].step.recordings == 4


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
        each.set_back(state)
        loss = each.step(*given)
        seen.add((bits(loss), *(array.get().tobytes() for array in each.arrays().values())))
    assert len(seen) == 1
    assert each.step.recordings == 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPTIONS)
def test_gpu_launches_that_overlap_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As launches of which each waits for the one before it. Steps follow each other without a look at a result."""
    from minidl.ops.cuda.launch import compute_capability, overlap

    if compute_capability() < overlap.MIN_CAPABILITY:
        pytest.skip("launches overlap from compute capability 9.0 on")
    given, found = batch(name, 16, 0, "cuda"), []
    for overlaps in (True, False):
        launched, run = [], overlap._launch
        with monkeypatch.context() as patch:
            patch.setattr(overlap, "_launch", lambda *sizes, run=run, all_=launched: (all_.append(sizes), run(*sizes)))
            if not overlaps:
                patch.setattr(overlap, "overlapping", contextlib.nullcontext)
            minidl.manual_seed(0)
            each = Training(zoo_model(name), True, "cuda", momentum=0.9)
            for _ in range(50):
                each.step(*given)
            found.append([array.get().tobytes() for array in each.arrays().values()])
        assert bool(launched) == overlaps
    assert found[0] == found[1]


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
    """Its key comes from the host at each replay, into the captured graph."""
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
    assert pair[1].step._last.replay.addresses.graph is not None


@pytest.mark.gpu
def test_gpu_random_numbers() -> None:
    """Of the captured graph, of the plain step, and of the CPU: by the key that the host gives each replay."""
    def step(x: Tensor) -> tuple[Tensor, ...]:
        return (x + minidl.randn_like(x), x[minidl.randperm(64, device=x.device)], x * minidl.rand_like(x),
                x * (minidl.rand(64, device=x.device) < 0.5).float(), minidl.randint(-9, 9, 64, device=x.device))
    compiled, found = minidl.compile(step), []
    for run, where in ((step, "cpu"), (step, "cuda"), (compiled, "cuda")):
        minidl.manual_seed(3)
        x = Tensor(np.linspace(0, 1, 64, dtype=np.float32), device=where)
        found.append([y.numpy() for _ in range(6) for y in run(x)])
    for on_cpu, plain, replayed in zip(*found, strict=True):
        np.testing.assert_allclose(plain, on_cpu, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(replayed, plain)
    assert len({y.tobytes() for y in found[2]}) == len(found[2])
    assert compiled._last.replay.addresses.graph is not None


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
@pytest.mark.parametrize("streams", [1, 2])
def test_gpu_held_results_do_not_change(streams: int) -> None:
    """As Tensors, as arrays and as views of these, over more replays than the host may be ahead; on several streams in
    turn, too."""
    import cupy

    step = minidl.compile(lambda x: {"sums": x.sum(axis=0), "mean": x.mean()})
    held: list[tuple[np.ndarray, Any, Any, Any]] = []
    every = [cupy.cuda.Stream.null, *(cupy.cuda.Stream() for _ in range(streams - 1))]         # these wait for null
    for i in range(1200):
        x = np.random.default_rng(i).standard_normal((4, 6), dtype=np.float32)
        with every[i % streams]:
            found = step(Tensor(x, device="cuda"))
        if i % 3 == 0:
            held.append((x, found["sums"], found["sums"].data[1:], found["mean"].data))
    assert step.recordings == 2
    for x, sums, part, mean in held:
        np.testing.assert_allclose(sums.numpy(), x.sum(axis=0), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(part.get(), x.sum(axis=0)[1:], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(mean.get(), x.mean(), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("same", [False, True])
def test_gpu_arguments_changed_in_place_give_new_results(same: bool) -> None:
    """Between two calls, which do not wait for each other; the same arrays as when it was recorded, or others."""
    import cupy

    step = minidl.compile(lambda x, y: (x * y).sum())
    x, y = (Tensor(np.ones(1 << 20, np.float32), device="cuda") for _ in range(2))
    found = []
    for i in range(600):
        if i == 2 and not same:
            x, y = (Tensor(cupy.ones(1 << 20, np.float32)) for _ in range(2))
        elif i < 2 and not same:
            found.append(step(*(Tensor(cupy.full(1 << 20, value, np.float32)) for value in (i, 2))))
            continue
        x.data[...], y.data[...] = i, 2
        found.append(step(x, y))
    assert [each.item() for each in found] == [2.0 * i * (1 << 20) for i in range(600)]
    assert step.recordings == 2


@pytest.mark.gpu
def test_gpu_arguments_with_gaps_or_at_odd_addresses() -> None:
    import cupy

    step = minidl.compile(lambda x, labels: ops.cross_entropy(x, labels))
    for i in range(8):
        x = np.random.default_rng(i).standard_normal((7, 9), dtype=np.float32)
        labels = np.random.default_rng(i).integers(0, 9, 7)
        wide, flat = cupy.zeros((7, 18), np.float32), cupy.zeros(64, np.float32)
        wide[:, ::2], flat[1:] = cupy.asarray(x), cupy.asarray(x.ravel())
        given = (cupy.asarray(x), wide[:, ::2], cupy.asfortranarray(cupy.asarray(x)), flat[1:].reshape(7, 9))[i % 4]
        np.testing.assert_allclose(step(Tensor(given), Tensor(labels, device="cuda")).item(),
                                   ops.cross_entropy(Tensor(x), Tensor(labels)).item(), rtol=1e-5)
    assert step.recordings == 2


@pytest.mark.gpu
def test_gpu_an_argument_that_the_step_changes() -> None:
    """Running values of three nets in turn: contiguous ones, and every second number of others."""
    import cupy

    step = minidl.compile(lambda x, mean, var: ops.batch_norm(x, mean, var, training=True))
    random = np.random.default_rng(0)
    plain = [[random.random(6, np.float32) for _ in range(2)] for _ in range(3)]
    mine = [[cupy.asarray(array) for array in pair] for pair in plain]
    for i in range(12):
        x, every = random.standard_normal((4, 3, 5), np.float32), slice(None, 3) if i < 6 else slice(None, None, 2)
        found = step(Tensor(x, device="cuda"), *(Tensor(array[every]) for array in mine[i % 3]))
        expected = ops.batch_norm(Tensor(x), *(Tensor(array[every]) for array in plain[i % 3]), training=True)
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)
    for a, b in zip(mine, plain, strict=True):
        for found, expected in zip(a, b, strict=True):
            np.testing.assert_allclose(found.get(), expected, rtol=1e-5, atol=1e-6)
    assert step.recordings == 2


@pytest.mark.gpu
def test_gpu_threads_replay_one_step() -> None:
    """Each gets the results of its own arguments."""
    step = minidl.compile(lambda x: ((x * x).sum(), x * 2))

    def sums(first: int) -> list[bool]:
        right = []
        for i in range(first, first + 300):
            x = np.full(256, i % 181, np.float32)      # whose sums float32 holds, in any order
            total, double = step(Tensor(x, device="cuda"))
            right.append(total.item() == float((x * x).sum()) and (double.numpy() == 2 * x).all())
        return right
    sums(0)
    with ThreadPoolExecutor(4) as pool:
        assert all(map(all, pool.map(sums, (1, 401, 801, 1201))))
    assert step.recordings == 2


@pytest.mark.gpu
def test_gpu_threads_capture_one_after_the_other() -> None:
    """Each with a net and a stream of its own: none waits for the device while another captures."""
    import cupy

    x, labels = np.random.default_rng(0).standard_normal((16, 1, 12, 12)).astype(np.float32), np.arange(16) % 4

    def net(seed: int) -> nn.Module:
        minidl.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                             nn.Linear(200, 4)).to("cuda")

    def train(model: nn.Module) -> bytes:
        sgd = optim.SGD(model.parameters(), 0.1)

        @minidl.compile
        def step(x: Tensor, labels: Tensor) -> Tensor:
            sgd.zero_grad()
            loss = ops.cross_entropy(model(x), labels)
            loss.backward()
            sgd.step()
            return loss
        with cupy.cuda.Stream(non_blocking=True) as stream:
            given = Tensor(x, device="cuda"), Tensor(labels, device="cuda")
            for _ in range(8):
                step(*given)
            stream.synchronize()
            return b"".join(p.numpy().tobytes() for p in model.parameters())
    alone = [train(net(seed)) for seed in range(6)]
    for _ in range(3):
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(train, list(map(net, range(6))))) == alone


@pytest.mark.gpu
def test_gpu_an_interrupted_start_leaves_no_row_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the graph was started or not."""
    step = minidl.compile(lambda x: x * 2)
    for i in range(30):
        if i % 10 == 5:
            replay = step._last.replay
            graph = replay.addresses.graph

            def launch(graph: Any = graph, started: bool = i > 10) -> None:
                if started:
                    graph.launch()
                raise KeyboardInterrupt
            replay.addresses.graph = SimpleNamespace(launch=launch, graphExec=0)
            with monkeypatch.context() as patch:
                patch.setattr("minidl.ops.cuda.launch.addresses._graph_launch", lambda: lambda *_: 1)
                with pytest.raises(KeyboardInterrupt):
                    step(Tensor(np.full(5, -1, np.float32), device="cuda"))
            replay.addresses.graph = graph
        assert step(Tensor(np.full(5, i, np.float32), device="cuda")).tolist() == [2.0 * i] * 5


@pytest.mark.gpu
def test_gpu_a_step_that_ends_while_it_runs() -> None:
    """The host's memory that its graph reads serves nobody else before that has ended."""
    for turn in range(6):
        step = minidl.compile(lambda x: (x * 2).sum())
        found = [step(Tensor(np.full(1 << 16, i, np.float32), device="cuda")) for i in range(200)]
        del step
        gc.collect()
        assert [each.item() for each in found] == [float(i << 17) for i in range(200)], turn


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
    """CuPy lets no cuBLAS be captured, here in a primitive of one's own; the next step, which can be, is a graph."""
    import cupy

    @minidl.primitive(cuda=lambda x: cupy.matmul(x.T, x))
    def gram(x: Any) -> Any:
        return x.T @ x

    @minidl.op
    def gram_of(k: Any, x: Tensor) -> Any:
        return k.gram(x), None
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3), device="cuda")
    product, double = minidl.compile(gram_of), minidl.compile(lambda x: x * 2)
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
