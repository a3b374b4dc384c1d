"""Steps that need nothing from the host: batches, rates and metrics on the device, compiled and not."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, data, nn, ops, optim, zoo
from minidl.compiler import step as compiled_steps
from minidl.compiler.graph import AsGraph
from minidl.compiler.plan.streams import side_streams_of
from minidl.compiler.record import CompileError, record
from minidl.training import RunningMetrics, fit
from minidl.training.loop import _Compiled, _Plain

LOADERS: dict[str, dict[str, Any]] = {
    "odd last": {}, "even": {"batch_size": 5}, "one batch": {"batch_size": 30}, "more than all": {"batch_size": 31},
    "ones": {"batch_size": 1}, "in order": {"shuffle": False}, "dropped last": {"drop_last": True},
    "padded": {"padding": 2, "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7]}, "float64": {"dtype": "float64"}}


def loader(device: str = "cpu", **options: Any) -> data.DataLoader:
    """Batches of 30 images (3,5,4): by 8, so that the last has 6."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (30, 3, 5, 4), np.uint8)
    return data.DataLoader(data.Dataset("mine", "train", images, rng.integers(0, 4, 30)),
                           **{"batch_size": 8, "seed": 3, "device": device, **options})


def taking(batches: data.DeviceBatches, compiled: bool) -> Any:
    """A step that gives what it took."""
    def step(size: int) -> Any:
        return batches.next(size)
    return minidl.compile(step) if compiled else step


def assert_batches_are_the_loaders(device: str, compiled: bool, options: dict[str, Any]) -> None:
    """For three epochs; and a compiled step is recorded twice for each size."""
    batches, plain = data.DeviceBatches(loader(device, **options)), loader(device, **options)
    step = taking(batches, compiled)
    for _ in range(3):
        taken = [step(size) for size in batches]
        expected = list(plain)
        assert len(taken) == len(expected)
        for mine, theirs in zip(taken, expected, strict=True):
            for t, array in zip(mine, theirs, strict=True):
                assert (t.device, t.dtype, t.shape) == (device, array.dtype, array.shape)
                assert t.numpy().tobytes() == Tensor(array).numpy().tobytes()
    if compiled:
        assert step.recordings == sum(min(2, 3 * batches.sizes.count(size)) for size in set(batches.sizes))


# ---------------------------------------------------------------- batches
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("case", LOADERS)
def test_batches_are_the_loaders(case: str, compiled: bool) -> None:
    assert_batches_are_the_loaders("cpu", compiled, LOADERS[case])


def test_epochs_are_the_loaders_and_may_be_given_up() -> None:
    source = loader()
    batches = data.DeviceBatches(source)
    step = taking(batches, True)
    source.set_epoch(7)
    for size in batches:
        step(size)
        break
    for epoch in (8, 9):
        labels = np.concatenate([step(size)[1].numpy() for size in batches])
        np.testing.assert_array_equal(labels, source.dataset.labels[source.order(epoch)])
    assert [len(labels) for _, labels in source] == batches.sizes      # the loader itself goes on behind them


def assert_an_epoch_may_start_in_the_middle(device: str, compiled: bool) -> None:
    """Of a loader that skips: what is left is taken by the same programs."""
    source = loader(device)
    batches = data.DeviceBatches(source)
    step = taking(batches, compiled)
    whole = [[step(size)[1].tolist() for size in batches] for _ in range(3)]
    for epoch, skipped in ((2, 0), (0, 1), (1, 3), (2, 4)):
        source.set_epoch(epoch)
        source.skip(skipped)
        assert [step(size)[1].tolist() for size in batches] == whole[epoch][skipped:]
    assert list(batches) == [8, 8, 8, 6]
    if compiled:
        assert step.recordings == 4


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_an_epoch_may_start_in_the_middle(compiled: bool) -> None:
    assert_an_epoch_may_start_in_the_middle("cpu", compiled)


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_a_step_may_take_several(compiled: bool) -> None:
    """Calls that look the same are other batches."""
    batches, source = data.DeviceBatches(loader(batch_size=5)), loader(batch_size=5)
    step = taking(batches, False)

    def both(size: int) -> Any:
        return step(size), step(size)
    run = minidl.compile(both) if compiled else both
    for _ in range(2):
        taken = [labels.tolist() for size, _ in zip(batches, range(3)) for _, labels in run(size)]
        assert taken == [labels.tolist() for _, labels in source]


def test_a_program_with_its_batches_has_no_inputs() -> None:
    batches = data.DeviceBatches(loader())
    step: Any
    step = taking(batches, True)
    (size, *_) = batches
    step(size)
    assert step.program.inputs == []
    assert [call.name for call in step.program.calls] == ["next_batch", "advance"]
    assert step.program.calls[1].effect


def test_the_next_order_is_drawn_when_the_last_batch_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once an epoch, and again only where another epoch follows than the next one."""
    drawn: list[int] = []
    plain = data.DataLoader.order
    monkeypatch.setattr(data.DataLoader, "order", lambda self, epoch: drawn.append(epoch) or plain(self, epoch))
    source = loader()
    batches = data.DeviceBatches(source)
    for _ in batches:
        assert drawn == [0]
    assert drawn == [0, 1]
    for _ in batches:
        assert drawn == [0, 1]
    assert drawn == [0, 1, 2]
    source.set_epoch(7)
    assert [batches.next(size)[1].shape for size in batches] == [(8,), (8,), (8,), (6,)]
    assert drawn == [0, 1, 2, 7, 8]


@pytest.mark.parametrize("attribute", ["seed", "shuffle"])
def test_an_order_that_was_drawn_before_its_seed_changed_is_drawn_anew(attribute: str) -> None:
    source, value = loader(), {"seed": 4, "shuffle": False}[attribute]
    next(iter(data.DeviceBatches(source)))
    setattr(source, attribute, value)
    source.set_epoch(0)
    np.testing.assert_array_equal(source.next_order(), loader(**{attribute: value}).next_order())


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_beyond_the_epochs_end_there_is_no_batch(compiled: bool) -> None:
    """Nor before the first epoch starts."""
    batches = data.DeviceBatches(loader())
    step = taking(batches, compiled)
    said = r"^next_batch: 8 images were asked for but the epoch has 0 left; start the next one by iterating over the b"
    with pytest.raises(ValueError, match=said):
        step(8)
    for size in batches:
        step(size)
    with pytest.raises(ValueError, match=said):
        step(8)
    assert [step(size)[0].shape[0] for size in batches] == [8, 8, 8, 6]


def test_batches_are_the_parts_that_a_loader_gives() -> None:
    """Of a class with parts of its own, and of a part that was set; other sizes than before are refused."""
    class Reversed(data.DataLoader):
        def parts(self, order: Any) -> list[Any]:
            return [part[::-1] for part in super().parts(order)]

    made = loader()
    for source in (Reversed(made.dataset, 8), made):
        for part in ((0, 1), (1, 2)):
            source.part = part
            batches = data.DeviceBatches(source)
            taken = [batches.next(size)[1].tolist() for size in batches]
            source.set_epoch(0)
            assert taken == [labels.tolist() for _, labels in source]
            source.set_epoch(0)
    changed: dict[str, Any]
    for changed in ({"batch_size": 7}, {"batch_size": 15}, {"part": (0, 1)}):
        source = loader(part=(1, 2))
        batches = data.DeviceBatches(source)
        vars(source).update(changed)
        with pytest.raises(ValueError, match=r"^DeviceBatches: the DataLoader gives batches of other sizes than "):
            iter(batches)


def test_the_position_is_the_batch_that_was_last_taken() -> None:
    """Before the first epoch, that of the last there is."""
    batches = data.DeviceBatches(loader())
    seen = batches.position.tolist()
    for size in batches:
        seen += batches.position.tolist()
        batches.next(size)
    assert seen + batches.position.tolist() == [3, -1, 0, 1, 2, 3]


@pytest.mark.parametrize("size", [0, -1, 9, 7, 8.5, None])
def test_a_size_that_is_no_batchs_is_refused(size: Any) -> None:
    batches = data.DeviceBatches(loader())
    with pytest.raises(ValueError, match=rf"^DeviceBatches: size is {size} but must be 8, or 6 for the last batch; "
                                         "pass what iterating over the batches gives$"):
        batches.next(size)


# ---------------------------------------------------------------- rates
def update(device: str, compiled: bool, stored: bool) -> list[bytes]:
    """The parameters after each of five steps, two groups with rates of their own: stored on the device or set."""
    table = np.array([[0.0, 0.3, 0.1, 0.2, 0.0, 0.7], [0.0, 1e-3, 1.0, 1 / 3, 0.5, 0.25]])
    p, q = (Tensor(np.array(v, np.float32), requires_grad=True, device=device) for v in ([1, 2, 3], [4.5]))
    sgd = optim.SGD([{"params": [p]}, {"params": [q], "momentum": 0.5}], lr=9)
    rates = optim.Rates(Tensor(table, device=device), Tensor(np.zeros(1, np.int64), device=device))

    def step() -> None:
        sgd.zero_grad()
        (p * p * q).sum().backward()
        if stored:
            sgd.step(rates)
        else:
            sgd.step()
    run, seen = minidl.compile(step) if compiled else step, []
    for i in range(1, 6):
        rates.position.data[0] = i
        for group, lr in zip(sgd.groups, table[:, i].tolist()):
            group["lr"] = lr
        run()
        seen += [p.numpy().tobytes(), q.numpy().tobytes()]
    return seen


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_stored_rates_are_set_ones(compiled: bool) -> None:
    assert update("cpu", compiled, True) == update("cpu", False, False)


def test_other_rates_are_recorded_anew() -> None:
    """A table whose array is another now: nothing reads the old one."""
    w = Tensor([0.0], requires_grad=True)
    sgd, rates = optim.SGD([w], lr=9), optim.Rates(Tensor(np.ones((1, 2))), Tensor(np.array([1])))

    @minidl.compile
    def step() -> None:
        sgd.zero_grad()
        w.sum().backward()
        sgd.step(rates)
    seen = []
    for i in range(6):
        if i == 3:
            rates.table.data = np.full((1, 2), 10.0)
        if i == 5:
            rates.position.data = np.array([0])
            rates.table.data[0, 0] = 100
        step()
        seen.append(w.item())
    assert seen == [-1, -2, -3, -13, -23, -123]


def test_of_several_positions_the_first_says_the_rate() -> None:
    w = Tensor([0.0], requires_grad=True)
    w.grad = Tensor([1.0])
    optim.SGD([w], lr=9).step(optim.Rates(Tensor(np.array([[1.0, 10.0, 100.0]])), Tensor(np.array([1, 2]))))
    assert w.item() == -10


TABLE, PLACE = Tensor(np.ones((1, 3))), Tensor(np.array([1]))
RATES: dict[str, tuple[Any, type[Exception], str]] = {
    "a Tensor": (TABLE, TypeError, "rates is a Tensor but must be an optim.Rates(table, position); for a "
                 "number, set lr"),
    "a number": (0.1, TypeError, "rates is a float but must be an optim.Rates"),
    **{name: (optim.Rates(table, position), ValueError, f"the rates' {said}") for name, (table, position, said) in {
        "no position": (TABLE, None, "position is a NoneType but must be a Tensor of int64: table (groups, steps), "
                        "position (1 or more,)"),
        "floats": (Tensor([[0.1]]), PLACE, "table is float32 of shape (1, 1) but must be a Tensor of float64"),
        "one axis": (Tensor(np.ones(3)), PLACE, "table is float64 of shape (3,) but must be"),
        "an array": (np.ones((1, 3)), PLACE, "table is a ndarray but must be"),
        "a place of floats": (TABLE, Tensor([1.0]), "position is float32 of shape (1,) but must be a Tensor of int64"),
        "no place": (TABLE, Tensor(np.zeros(0, np.int64)), "position is int64 of shape (0,) but must be"),
        "a row too many": (Tensor(np.ones((2, 3))), PLACE, "table has shape (2, 3) but there are 1 parameter groups; "
                           "give a row to each")}.items()}}


@pytest.mark.parametrize("case", RATES)
def test_rates_are_refused(case: str) -> None:
    rates, kind, said = RATES[case]
    w = Tensor([1.0], requires_grad=True)
    (w * w).sum().backward()
    with pytest.raises(kind, match=f"^SGD.step: {re.escape(said)}"):
        optim.SGD([w], 0.1).step(rates)
    assert w.tolist() == [1]


# ---------------------------------------------------------------- metrics
def assert_metrics_are_the_sums(device: str, compiled: bool) -> None:
    """Of a loss an image and of right answers; with equal logits and NaN among them, as argmax has it."""
    metrics = RunningMetrics(device)

    def update(logits: Tensor, labels: Tensor) -> None:
        metrics.update(ops.cross_entropy(logits, labels), logits, labels)
    run = minidl.compile(update) if compiled else update
    for seed in range(3):
        total, right, rng = 0.0, 0, np.random.default_rng(seed)
        for n in (8, 8, 5, 8, 1, 300):
            x, labels = np.round(rng.standard_normal((n, 4), np.float32)), rng.integers(0, 4, n)
            logits, t = Tensor(x, device=device), Tensor(labels, device=device)
            run(logits, t)
            total += ops.cross_entropy(logits, t).item() * n
            right += int(np.sum(np.argmax(x, axis=1) == labels))
        assert metrics.read() == (total, right)
        assert metrics.read() == (0, 0)
    x = np.array([[1, np.nan, 2, np.nan], [0, np.inf, 1, 2], [0, 0, 0, 0]], np.float32)
    for labels, right in (([1, 1, 0], 3), ([3, 1, 1], 1), ([2, 3, 2], 0)):
        run(Tensor(x, device=device), Tensor(np.array(labels), device=device))
        total, counted = metrics.read()
        assert np.isnan(total)
        assert counted == right


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_metrics_are_the_sums(compiled: bool) -> None:
    assert_metrics_are_the_sums("cpu", compiled)


@pytest.mark.parametrize(("loss", "logits", "labels", "kind", "said"), [
    ((2,), (2, 3), (2,), TypeError, "training: the loss is a Tensor of shape (2,) but must be a Tensor of one number, "
                                    "a batch's mean, or of one for each image; compute it with minidl's ops, and "
                                    ".mean()"),
    ((), (), (2,), ValueError, "RunningMetrics: outputs and targets have shapes () and (2,) but must be (n, ...) and "
                               "(n, ...); give one target per image"),
    ((), (2, 3), (3,), ValueError, "RunningMetrics: outputs and targets have shapes (2, 3) and (3,) but must be (n, "
                                   "...) and (n, ...); give one target per image")])
def test_metrics_of_other_shapes_are_refused(loss: Any, logits: Any, labels: Any, kind: Any, said: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(said)}$"):
        RunningMetrics("cpu").update(*(Tensor(np.zeros(shape)) for shape in (loss, logits, labels)))


def test_metrics_are_not_read_in_a_step() -> None:
    metrics = RunningMetrics("cpu")
    with pytest.raises(CompileError, match="reads a Tensor's values"):
        minidl.compile(lambda: metrics.read())()


def test_metrics_go_aside_and_nothing_that_they_read_does() -> None:
    """On CUDA gradients that only the update reads are computed on other streams; a loss that metrics read is not.
    Metrics themselves are added up beside the update; without one there is nothing to do meanwhile."""
    metrics, run = RunningMetrics("cpu"), compiled_fit("cpu")
    (size, *_) = run.batches
    run.step(size)
    program = run.step.program
    named = list(zip((call.name for call in program.calls), side_streams_of(program), strict=True))
    side = {name for name, waiting in named if waiting is not None}
    assert {"linear_grad_w", "linear_grad_b", "update_metrics", "advance"} <= side
    assert not {"next_batch", "cross_entropy_with_grad", "sgd"} & side
    assert dict(named)["update_metrics"] == len(program.calls)             # beside the update, which does not wait
    assert {program.calls[dict(named)[name]].name for name in ("linear_grad_w", "advance")} == {"sgd"}

    x, labels = Tensor(np.ones((2, 3), np.float32)), Tensor(np.array([0, 1]))
    evaluate = minidl.compile(lambda x, labels: metrics.update(ops.cross_entropy(x * 2, labels), x, labels))
    evaluate(x, labels)
    assert set(side_streams_of(evaluate.program)) == {None}


def test_metrics_may_come_before_the_backward_pass() -> None:
    """The program is the same, and the loss is fused with its gradient."""
    def program(early: bool) -> str:
        minidl.manual_seed(0)
        net, metrics = small_net(), RunningMetrics("cpu")
        sgd = optimizer_of(net)
        x, labels = Tensor(np.ones((2, 60), np.float32)), Tensor(np.array([0, 1]))

        @minidl.compile
        def step() -> None:
            sgd.zero_grad()
            logits = net(x)
            loss = ops.cross_entropy(logits, labels)
            if early:
                metrics.update(loss, logits, labels)
            loss.backward()
            if not early:
                metrics.update(loss, logits, labels)
            sgd.step()
        step()
        return re.sub(r"[%@]\d+", "", repr(step.program))
    assert program(True) == program(False)
    assert "cross_entropy_with_grad" in program(True)


@pytest.mark.parametrize("moves", ["an effect", "the total", "a view of the total"])
def test_counters_go_no_further_than(moves: str) -> None:
    """Where they could be seen to be late."""
    metrics, w = RunningMetrics("cpu"), Tensor(np.zeros(2))
    x, labels = Tensor(np.ones((2, 3), np.float32)), Tensor(np.array([0, 1]))
    view = metrics.sums.reshape(1, 3)

    def step() -> Tensor:
        metrics.update(ops.cross_entropy(x, labels), x, labels)
        if moves == "an effect":
            with minidl.no_grad():
                w[0] = 1.0
        return {"an effect": x * 2, "the total": metrics.sums * 2, "a view of the total": view * 2}[moves].exp()
    run = minidl.compile(step)
    run()
    names = [call.name for call in run.program.calls]
    assert names.index("update_metrics") < names.index({"an effect": "setitem"}.get(moves, "mul"))


@pytest.mark.parametrize("case", ["alone", "the sums are read", "a parameter", "a view of a parameter"])
def test_metrics_stay_where_they_could_be_overtaken(case: str) -> None:
    """By an update of what they read, or by a call that reads what they add to."""
    metrics, w = RunningMetrics("cpu"), Tensor(np.ones((2, 3), np.float32), requires_grad=True)
    sgd, labels = optim.SGD([w], lr=0.1), Tensor(np.array([0, 1]))

    @minidl.compile
    def step() -> Tensor | None:
        sgd.zero_grad()
        logits = w if case == "a parameter" else w.reshape(2, 3) if case == "a view of a parameter" else w * 2
        loss = ops.cross_entropy(logits, labels)
        loss.backward()
        metrics.update(loss, logits, labels)
        twice = metrics.sums * 2 if case == "the sums are read" else None
        sgd.step()
        return twice

    step()
    waiting = dict(zip((call.name for call in step.program.calls), side_streams_of(step.program), strict=True))
    assert waiting["update_metrics"] == (len(step.program.calls) if case == "alone" else None)


@pytest.mark.parametrize("case", ["alone", "nothing else aside", "taken twice", "a view in the step", "a view outside",
                                  "a reader aside"])
def test_advance_goes_aside_unless_that_could_change_what_is_read(case: str) -> None:
    """The position may be read by another name, or by a call that is aside itself."""
    batches, metrics = data.DeviceBatches(loader()), RunningMetrics("cpu")
    w, position = Tensor(np.ones((60, 4), np.float32), requires_grad=True), batches.position
    rates = optim.Rates(Tensor(np.full((1, 9), 0.1)), position.reshape(1) if case == "a view outside" else position)
    sgd, kept = optim.SGD([w], lr=0.1), Tensor(np.zeros(1))

    @minidl.compile
    def step(size: int) -> Any:
        sgd.zero_grad()
        seen = position.reshape(1, 1) if case == "a view in the step" else None
        before = position.to(dtype="float64") if case == "a reader aside" else None
        images, labels = batches.next(size)
        if case == "taken twice":
            batches.next(size)
        outputs = ops.flatten(images, 1) @ w
        loss = ops.cross_entropy(outputs, labels)
        if case != "nothing else aside":
            metrics.update(loss, outputs, labels)
        result = None if seen is None else seen * 1
        loss.backward()
        sgd.step(rates) if case != "nothing else aside" else None
        if before is not None:
            with minidl.no_grad():
                kept[...] = before
        return result
    size = next(iter(batches))
    step(size)
    calls, side = step.program.calls, side_streams_of(step.program)
    waits = [place and calls[place].name for call, place in zip(calls, side, strict=True) if call.name == "advance"]
    assert waits == {"nothing else aside": [None], "taken twice": [None, "sgd"], "a view in the step": ["mul"]}.get(
        case, ["sgd"])
    assert {call.name: place for call, place in zip(calls, side, strict=True)}.get("cast") is None


# ---------------------------------------------------------------- fit
def small_net() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(60, 16), nn.Tanh(), nn.Linear(16, 4))


def optimizer_of(model: nn.Sequential) -> optim.SGD:
    first, second = model[1].parameters(), model[3].parameters()
    return optim.SGD([{"params": first, "lr": 0.2}, {"params": second, "momentum": 0.5}], lr=0.1, momentum=0.9)


def compiled_fit(device: str) -> _Compiled:
    minidl.manual_seed(0)
    model = small_net()
    model.to(device)
    return _Compiled(model, optimizer_of(model), loader(device), loader(device, shuffle=False))


@pytest.mark.parametrize("kind", [_Plain, _Compiled])
def test_each_step_takes_its_own_rate(kind: type[_Plain]) -> None:
    """The table has a row for each group and a column for each step, the first at position 0; where its rate is 0 a
    step leaves the parameters as they are."""
    minidl.manual_seed(0)
    model = small_net()
    run = kind(model, optimizer_of(model), loader(), loader(shuffle=False))
    for i in range(len(run.train)):
        factors = [float(step == i) for step in range(len(run.train))]
        run.begin(factors)
        np.testing.assert_array_equal(run.rates.table.numpy(), np.outer([0.2, 0.1], factors))
        before, moved, places = model.state_dict(), [], []
        for _ in run.epoch():
            now = model.state_dict()
            moved.append([not np.array_equal(now[name], array) for name, array in before.items()])
            places += run.rates.position.tolist()
            before = now
        assert moved == [[step == i] * len(before) for step in range(len(factors))]
        assert places == list(range(len(factors)))


def trained(device: str, compiled: bool | None) -> tuple[list[Any], dict[str, np.ndarray], int]:
    """(metrics, parameters, recordings) of four epochs with two groups and a changing rate."""
    count = 0

    def counted(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return record(*arguments)
    minidl.manual_seed(0)
    model = small_net()
    model.to(device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_steps, "record", counted)
        history = fit(model, optimizer_of(model), loader(device), loader(device, shuffle=False), epochs=4,
                      schedule=optim.warmup(3, optim.cosine(13)), compiled=compiled)
    return history, model.state_dict(), count


def test_fit_is_the_same_compiled() -> None:
    """To the bit on the CPU, metrics too; recorded twice for each size, in training and in evaluation."""
    (plain, expected, none), (history, state, recorded) = trained("cpu", False), trained("cpu", True)
    for metrics in (*plain, *history):
        for time in ("seconds", "images_per_second"):
            del metrics[time]
    assert history == plain
    assert (none, recorded) == (0, 8)
    for name in expected:
        np.testing.assert_array_equal(state[name], expected[name])


@pytest.mark.parametrize("which", ["train", "test"])
def test_fit_compiled_refuses_batches_that_no_device_can_pick(which: str) -> None:
    own = loader(transform=lambda image, label: (image, label))
    model, loaders = small_net(), {"train": loader(), "test": loader()} | {which: own}
    assert fit(model, optimizer_of(model), **loaders, epochs=1)[0]["step"] == 4
    said = f"^fit: {which} is a DataLoader with a transform of its own, which compiled steps would not run; pass c"
    with pytest.raises(CompileError, match=said):
        fit(model, optimizer_of(model), **loaders, epochs=1, compiled=True)


def test_fit_compiles_on_a_gpu_alone_unless_told() -> None:
    assert trained("cpu", None)[2] == 0


# ---------------------------------------------------------------- on a GPU
@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("case", LOADERS)
def test_gpu_batches_are_the_loaders(case: str, compiled: bool) -> None:
    assert_batches_are_the_loaders("cuda", compiled, LOADERS[case])
    on_cpu, on_cuda = (data.DeviceBatches(loader(device, **LOADERS[case])) for device in ("cpu", "cuda"))
    for sizes in zip(on_cpu, on_cuda, strict=True):
        for mine, theirs in zip(on_cpu.next(sizes[0]), on_cuda.next(sizes[1]), strict=True):
            np.testing.assert_array_equal(theirs.numpy(), mine.numpy())


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_gpu_an_epoch_may_start_in_the_middle(compiled: bool) -> None:
    assert_an_epoch_may_start_in_the_middle("cuda", compiled)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_gpu_beyond_the_epochs_end_is_nan(compiled: bool) -> None:
    batches = data.DeviceBatches(loader("cuda"))
    step = taking(batches, compiled)
    for _ in range(2):
        for size in batches:
            images, labels = step(size)
            assert np.isfinite(images.numpy()).all()
            assert (labels.numpy() >= 0).all()
        for size in (8, 6):
            images, labels = step(size)
            assert np.isnan(images.numpy()).all()
            assert (labels.numpy() == -1).all()


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_gpu_stored_rates_are_set_ones(compiled: bool) -> None:
    assert update("cuda", compiled, True) == update("cuda", compiled, False)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_gpu_metrics_are_the_sums(compiled: bool) -> None:
    assert_metrics_are_the_sums("cuda", compiled)


@pytest.mark.gpu
def test_gpu_fit_is_the_same_compiled() -> None:
    """Within float32's rounding where calls were fused; compiled, which is the default there."""
    (plain, expected, none), (history, state, recorded) = trained("cuda", False), trained("cuda", None)
    assert (none, recorded) == (0, 8)
    for one, other in zip(plain, history, strict=True):
        assert (one["step"], one["lr"]) == (other["step"], other["lr"])
        np.testing.assert_allclose([other["train_loss"], other["test_loss"]], [one["train_loss"], one["test_loss"]],
                                   rtol=1e-4)
    for name in expected:
        np.testing.assert_allclose(state[name], expected[name], rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_gpu_fit_is_plain_where_no_device_can_pick_the_batches() -> None:
    """Of one of the two."""
    plain, own = loader("cuda"), loader("cuda", transform=lambda image, label: (image, label))
    for train, test in ((plain, own), (own, plain)):
        model = small_net()
        model.to("cuda")
        (metrics,) = fit(model, optimizer_of(model), train, test, epochs=1)
        assert metrics["step"] == 4
        with pytest.raises(CompileError, match=r"a DataLoader with a transform of its own, which compiled steps"):
            fit(model, optimizer_of(model), train, test, epochs=1, compiled=True)


@contextlib.contextmanager
def nobody_waits() -> Iterator[None]:
    """The device is kept busy, for half a second at least: longer than what is done here takes unless it waits."""
    import cupy

    spin = cupy.RawKernel('extern "C" __global__ void spin(long long ticks) '
                          "{ for (long long start = clock64(); clock64() - start < ticks;); }", "spin")
    cupy.cuda.Device().synchronize()
    spin((1,), (1,), (10**9,))
    busy = cupy.cuda.Event(disable_timing=True)
    busy.record()
    yield
    waited = busy.done
    cupy.cuda.Device().synchronize()
    assert not waited


@pytest.mark.gpu
def test_gpu_an_epoch_is_queued_without_waiting() -> None:
    """Nor does a plain compiled step wait where its rate changes."""
    run = compiled_fit("cuda")
    for _ in range(3):
        run.begin([1.0] * 4)
        assert len(list(run.epoch())) == 4                     # records twice, then captures
    for _ in range(3):
        run.evaluate()
    for compiled in (run.step, run.look):
        entries = [entry for found in compiled._programs.values() for entry in found]
        assert [type(entry.replay) for entry in entries] == [AsGraph, AsGraph]
    iter(run.batches)
    with nobody_waits():
        for given in run.given:                                # as in an epoch
            run.step(*given)
    assert np.isfinite(run.metrics.read()[0])

    w = Tensor([1.0, 2.0], requires_grad=True, device="cuda")
    sgd = optim.SGD([w], lr=1.0)

    @minidl.compile
    def step() -> None:
        sgd.zero_grad()
        w.sum().backward()
        sgd.step()
    for _ in range(3):                                         # records twice, then captures
        step()
    with nobody_waits():
        for lr in (0.5, 0.25, 0.0, 2.0):
            sgd.lr = lr
            step()
    assert w.tolist() == [1 - 5.75, 2 - 5.75]


@pytest.mark.gpu
def test_gpu_two_trainings_end_in_the_same_bits() -> None:
    states = []
    for _ in range(2):
        minidl.manual_seed(1)
        model = zoo.build("lenet5").to("cuda")
        train = data.DataLoader(data.load("synthetic-digits", "train").first(300), 128, padding=2, device="cuda")
        fit(model, optim.SGD(model.parameters(), 0.05, momentum=0.9), train, train, epochs=3)
        states.append(model.state_dict())
    for name in states[0]:
        np.testing.assert_array_equal(states[0][name], states[1][name])
