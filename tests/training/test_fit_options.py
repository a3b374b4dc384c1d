"""What fit is told beside losses and callbacks: each alone, together with others, and in a run that goes on."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, data, nn, ops, optim, training
from minidl.core import rng
from minidl.core.host import install
from minidl.training import EarlyStop, SaveBest, WholeSet, evaluate, find_rate, fit, loop

both = pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
QUIET: dict[str, Any] = {"progress": False, "say": None}
COUNT = 45                                 # of which the last batch, of 8, has 5
per_image = functools.partial(ops.cross_entropy, reduction="none")


def numbers(history: list[Any]) -> list[Any]:
    return [{name: value for name, value in metrics.items() if name not in ("seconds", "images_per_second")}
            for metrics in history]


def weights(model: nn.Module) -> list[bytes]:
    return [array.tobytes() for array in model.state_dict().values()]


def arrays(seed: int = 0, count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.standard_normal((count, 6)), random.integers(0, 3, count)


def net(drop: float = 0.0) -> nn.Module:
    minidl.manual_seed(2)
    made = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(drop), nn.Linear(5, 3))
    return made.to(dtype="float64")


def sgd(model: nn.Module, lr: float = 0.5) -> optim.SGD:
    return optim.SGD([{"params": list(model[0].parameters())}, {"params": list(model[3].parameters()), "lr": lr / 2}],
                     lr, momentum=0.9)


def loader(*parts: Any, batch: int = 8, **options: Any) -> data.DataLoader:
    return data.DataLoader(parts, batch, **{"shuffle": False, **options})


class Two(nn.Module):
    """A net of two inputs of unlike shapes, with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        minidl.manual_seed(4)
        self.rows, self.ids, self.drop = nn.Linear(6, 4), nn.Embedding(9, 4), nn.Dropout(0.2)
        self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, rows: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.drop((self.rows(rows) + self.ids(ids)).tanh())
        return self.one(hidden), self.other(hidden)


def of_two(outputs: Any, targets: Any) -> Tensor:
    labels, values = targets.values() if isinstance(targets, dict) else targets
    return ops.cross_entropy(outputs[0], labels) + ops.mse_loss(outputs[1], values)


class Scaled(nn.Module):
    """A loss that is trained, with a running mean and dropout of its own; it may share a layer with the net."""

    def __init__(self, shared: nn.Module | None = None) -> None:
        super().__init__()
        self.shared = shared
        self.scale, self.norm, self.drop = Tensor([1.0], requires_grad=True), nn.BatchNorm1d(3), nn.Dropout(0.2)
        self.to(dtype="float64")

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return ops.cross_entropy(self.drop(self.norm(outputs)) * self.scale, labels)


def several(named: bool) -> tuple[Any, Any]:
    random = np.random.default_rng(5)
    rows, ids = random.standard_normal((COUNT, 6)).astype(np.float32), random.integers(0, 9, COUNT)
    labels, values = random.integers(0, 3, COUNT), random.standard_normal((COUNT, 2)).astype(np.float32)
    if named:
        return {"ids": ids, "rows": rows}, {"labels": labels, "values": values}
    return (rows, ids), (labels, values)


# ---------------------------------------------------------------- early end
@both
def test_a_training_ends_when_a_metric_gets_no_better(compiled: bool) -> None:
    model, (x, y) = net(), arrays()
    found: list[float] = []
    history = fit(model, optim.SGD(model.parameters(), 0.0), loader(x, y), loader(x, y), epochs=9, compiled=compiled,
                  callbacks=[EarlyStop(patience=3), lambda metrics: found.append(metrics["epoch"])], **QUIET)
    assert len(history) == len(found) == 4             # the first, which is better than nothing, and three that are not


def test_a_stop_begins_anew_with_each_training(tmp_path: Path) -> None:
    """The second training ended after an epoch. One that goes on, from a checkpoint or a state, has waited already. The
    others keep their best."""
    model, (x, y) = net(), arrays()
    optimizer, stop = optim.SGD(model.parameters(), 0.0), EarlyStop(patience=3)

    def epochs(*callbacks: Any, most: int = 9, **options: Any) -> int:
        return len(fit(model, optimizer, loader(x, y), loader(x, y), epochs=most, callbacks=list(callbacks), **options,
                       **QUIET))
    assert [epochs(stop) for _ in range(3)] == [4, 4, 4]
    stop.load_state_dict({**stop.state_dict(), "waited": 1})
    assert [epochs(stop) for _ in range(2)] == [2, 4]
    vars(stop).pop("_loaded", None)                    # as a pickle of an earlier version
    assert epochs(stop) == 4
    goes_on: dict[str, Any] = {"checkpoints": tmp_path / "a", "resume": True}
    assert [epochs(EarlyStop(patience=3), most=most, **goes_on) for most in (3, 9)] == [3, 4]
    best, plateau = SaveBest(model, tmp_path / "best.h5", "test_loss"), optim.Plateau(optimizer, patience=4)
    epochs(best, plateau, most=3)
    first = (tmp_path / "best.h5").stat().st_mtime_ns
    epochs(best, plateau, most=2)
    assert ((tmp_path / "best.h5").stat().st_mtime_ns, plateau.waited) == (first, 4)


def test_a_training_that_a_callback_ended_says_so(tmp_path: Path) -> None:
    """It said that it goes on, and did not."""
    said: list[str] = []
    for epochs in (9, 9, 20):
        model, (x, y) = net(), arrays()
        said.clear()
        history = fit(model, optim.SGD(model.parameters(), 0.0), loader(x, y), loader(x, y), epochs=epochs,
                      say=said.append, progress=False, callbacks=EarlyStop(patience=1), checkpoints=tmp_path,
                      resume=True)
        assert len(history) == 2
    assert said == ["nothing is left of 20 epochs: a callback ended this training after epoch 2; to train on, begin "
                    "another with its weights, in another folder"]


def test_what_is_better_and_by_how_much() -> None:
    stop = EarlyStop("test_f1", 1, "max", better_by=0.1)
    assert [stop.on_epoch_end({"test_f1": each}) for each in (0.5, 0.7, 0.75)] == [False, False, True]
    for wrong, said in (({"patience": 0}, "patience is 0 but must be an int of at least 1"),
                        ({"patience": 1.5}, "patience is 1.5 but must be an int"),
                        ({"better_by": -1}, "better_by is -1 but must be a number of at least 0"),
                        ({"patience": True}, "patience is True but must be an int of at least 1"),
                        ({"metric": "test_f1"}, "the name of metric 'test_f1' does not say what is better")):
        with pytest.raises(ValueError, match=rf"^EarlyStop: {said}"):
            EarlyStop(**wrong)  # type: ignore[arg-type]  # of several kinds
    with pytest.raises(ValueError, match=r"^EarlyStop: metric is 'test_loss' but an epoch has epoch"):
        EarlyStop().on_epoch_end({"epoch": 1})


# ---------------------------------------------------------------- divergence
@both
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_that_diverges_says_in_which_step(compiled: bool, accumulate: int) -> None:
    model, (x, y) = net(), arrays()
    x[8 * 3 + 1] = np.nan                  # of the fourth batch
    before, train = weights(model), loader(np.zeros_like(x), y)

    def poison(metrics: Any) -> None:
        train.stored[0][...] = x
    with pytest.raises(training.Diverged, match=rf"^training: diverged in step {6 // accumulate + 4 // accumulate} "
                       r"\(epoch 2\): the loss is nan \(learning rate 0.5\); use a smaller learning rate, as one that "
                       r"training.find_rate finds, a warm-up, or clip=1.0; if the losses before did not grow, look for "
                       "NaN in the inputs and targets$"):
        fit(model, sgd(model), train, loader(np.zeros_like(x), y), epochs=3, compiled=compiled, accumulate=accumulate,
            callbacks=poison, **QUIET)
    assert weights(model) != before


def test_a_compiled_run_that_diverges_ends_before_the_epoch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LOOK_EVERY", 0.0)
    model, (x, y) = net(), arrays()
    x[8] = np.inf
    seen: list[int] = []

    class Watch:
        def on_step_end(self, step: training.Step) -> None:
            seen.append(step.step)
    with np.errstate(all="ignore"), pytest.raises(training.Diverged, match=r"^training: diverged in step 2 "):
        fit(model, sgd(model), loader(x, y), loader(x, y), epochs=1, compiled=True, callbacks=Watch(), **QUIET)
    assert seen == [1, 2]


@both
def test_a_run_that_goes_on_counts_its_steps_from_the_start(compiled: bool, tmp_path: Path) -> None:
    def run(**options: Any) -> None:
        model, (x, y) = net(), arrays()
        x[8 * 3] = np.nan
        fit(model, sgd(model), loader(x, y), loader(x, y), epochs=1, compiled=compiled, checkpoints=tmp_path, **options,
            **QUIET)
    with pytest.raises(training.Interrupted):
        run(callbacks=Stop(2))
    with pytest.raises(training.Diverged, match=r"^training: diverged in step 4 \(epoch 1\): the loss is nan"):
        run(resume=True)


# ---------------------------------------------------------------- steps of several batches
@both
@pytest.mark.parametrize("case", ["plain", "weights", "ignored", "clip", "all ignored in one"])
def test_steps_of_several_batches_are_those_of_one_with_all_images(case: str, compiled: bool) -> None:
    (x, y), loss, more = arrays(), ops.cross_entropy, []
    if case == "weights":
        loss, more = per_image, [np.random.default_rng(1).random(COUNT)]
    elif case != "plain":
        y[np.random.default_rng(1).random(COUNT) < 0.4] = 2
        y[8:16] = 2 if case == "all ignored in one" else y[8:16]
        loss = functools.partial(ops.cross_entropy, ignore_index=2)

    def run(batch: int, accumulate: int, compiled: bool) -> tuple[Any, ...]:
        model = net()
        options = {"clip": 0.1} if case == "clip" else {}
        batches = loader(x, y, *more, batch=batch)
        history = fit(model, sgd(model), batches, loader(x, y, *more), epochs=3, accumulate=accumulate, loss=loss,
                      schedule=optim.cosine(6), compiled=compiled, **options, **QUIET)
        return history, model
    history, model = run(8, 3, compiled)
    large, whole = run(24, 1, False)       # 24 and 21 images: 8 + 8 + 8, and 8 + 8 + 5
    for name, array in whole.state_dict().items():
        np.testing.assert_allclose(model.state_dict()[name], array, rtol=1e-9, atol=1e-12)
    assert [line["step"] for line in history] == [2, 4, 6]
    assert [line["lr"] for line in history] == [line["lr"] for line in large]
    np.testing.assert_allclose([line["train_loss"] for line in history], [line["train_loss"] for line in large])
    again, same = run(8, 3, not compiled)
    assert (weights(same), numbers(again)) == (weights(model), numbers(history))


@pytest.mark.parametrize("accumulate", [1, 2, 5, 99])
def test_plain_and_compiled_steps_end_in_the_same_bits(accumulate: int) -> None:
    """With what changes in each batch, dropout and running means, and what does in each step, an average."""
    def run(compiled: bool) -> tuple[Any, ...]:
        minidl.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.4), nn.Linear(5, 3))
        flat, wide = ([p for p in model.parameters() if (p.ndim > 1) is whether] for whether in (False, True))
        (x, y), ema = arrays(), optim.EMA(model)
        parts = x.astype(np.float32), y, np.arange(COUNT) % 3
        history = fit(model, optim.Together(optim.Muon(wide, 0.02), optim.AdamW(flat, 0.01)),
                      loader(*parts, shuffle=True), loader(*parts), epochs=4, loss=per_image, callbacks=ema,
                      accumulate=accumulate, clip=0.1, compiled=compiled, **QUIET)
        return weights(model), numbers(history), [array.tobytes() for array in ema.state_dict()["averages"]]
    plain = run(False)
    assert plain == run(True)
    assert plain[1][-1]["step"] == 4 * -(-6 // accumulate)


def test_a_signal_within_a_step_is_obeyed_after_it(tmp_path: Path) -> None:
    def run(folder: str, at: int = 0, **options: Any) -> list[bytes]:
        (x, y), model, seen = arrays(), net(0.3), []

        def loss(outputs: Tensor, labels: Tensor) -> Tensor:
            seen.append(len(labels))
            if len(seen) == at:
                os.kill(os.getpid(), signal.SIGTERM)
            return ops.cross_entropy(outputs, labels)
        fit(model, sgd(model), loader(x, y, shuffle=True), loader(x, y), epochs=3, accumulate=3, loss=loss,
            checkpoints=tmp_path / folder, **options, **QUIET)
        return weights(model)
    with pytest.raises(training.Interrupted, match="stopped it after step 1;"):
        run("part", at=2)
    assert run("part", resume=True) == run("whole")


@pytest.mark.parametrize("wrong", [0, 1.5, -1, "2"])
def test_numbers_that_cannot_be_are_refused(wrong: Any) -> None:
    model, (x, y) = net(), arrays()
    given: dict[str, Any] = {"accumulate": wrong} if wrong != 1.5 else {"clip": -1.5}
    with pytest.raises(ValueError, match=rf"^fit: (accumulate is {re.escape(repr(wrong))} but must be an int of at "
                                         r"least 1|clip is -1.5 but must be a number above 0)$"):
        fit(model, sgd(model), loader(x, y), loader(x, y), epochs=1, **given, **QUIET)


# ---------------------------------------------------------------- clipped gradients
@both
@pytest.mark.parametrize("kind", ["groups", "together", "frozen"])
def test_gradients_are_clipped_as_one_vector(kind: str, compiled: bool) -> None:
    """Of all groups, and of all optimizers, after they are averaged."""
    def made() -> tuple[nn.Module, optim.Optimizer]:
        model = net()
        if kind == "together":
            return model, optim.Together(optim.SGD(model[0].parameters(), 0.5), optim.Adam(model[3].parameters(), 0.1))
        optimizer = sgd(model)
        if kind == "frozen":
            model[0].requires_grad_(False)
        return model, optimizer
    (model, optimizer), (hand, own), (x, y) = made(), made(), arrays()
    fit(model, optimizer, loader(x, y), loader(x, y), epochs=2, clip=0.05, compiled=compiled, **QUIET)
    for images, labels in [*loader(x, y), *loader(x, y)]:
        own.zero_grad()
        ops.cross_entropy(hand(Tensor(images)), labels).backward()
        assert optim.clip_grad_norm(hand.parameters(), 0.05).item() > 0.05
        own.step()
    assert weights(model) == weights(hand)


# ---------------------------------------------------------------- several inputs and targets
@both
@pytest.mark.parametrize("named", [False, True], ids=["tuples", "dicts"])
def test_several_inputs_and_targets(named: bool, compiled: bool) -> None:
    model, hand, (inputs, targets) = Two(), Two(), several(named)
    rows, ids = several(False)[0]
    labels, values = several(False)[1]
    minidl.manual_seed(7)
    test = loader(inputs, targets)
    history = fit(model, optim.Adam(model.parameters(), 0.01), loader(inputs, targets), test, epochs=2, loss=of_two,
                  metrics={"right": lambda o, t: (o[0].argmax(axis=1) == (t["labels"] if named else t[0])).mean()},
                  compiled=compiled, **QUIET)
    minidl.manual_seed(7)
    own = optim.Adam(hand.parameters(), 0.01)
    for _ in range(2):
        for i in range(0, COUNT, 8):
            own.zero_grad()
            at = slice(i, i + 8)
            of_two(hand(Tensor(rows[at]), Tensor(ids[at])), (Tensor(labels[at]), Tensor(values[at]))).backward()
            own.step()
    assert weights(model) == weights(hand)
    assert "test_accuracy" not in history[1]
    assert 0 <= history[1]["test_right"] <= 1
    assert evaluate(model, test, loss=of_two)[0] == history[1]["test_loss"]


def test_several_inputs_with_a_transform_threads_and_mixup() -> None:
    """Items are changed part by part; a loader of one's own mixes a batch as it likes."""
    (rows, ids), targets = several(False)

    def change(inputs: Any, goals: Any) -> Any:
        return (inputs[0] * 2 + minidl.rand(6).numpy(), inputs[1]), goals

    class Mixing(data.DataLoader):
        def __iter__(self) -> Iterator[Any]:
            for (many, which), (labels, values) in super().__iter__():
                blends, shares = data.mixup(many, labels, 3)
                yield (blends, which), (shares, values)

    def soft(outputs: Any, goals: Any) -> Tensor:
        return -(goals[0] * ops.log_softmax(outputs[0], axis=1)).sum(axis=1).mean() + ops.mse_loss(outputs[1], goals[1])
    for kind, loss in ((data.DataLoader, of_two), (Mixing, soft)):
        found = []
        for prefetch in (0, 3):
            model = Two()
            train = kind(((rows, ids), targets), 8, transform=change, prefetch=prefetch, seed=3)
            history = fit(model, optim.SGD(model.parameters(), 0.1), train, train, epochs=2, loss=loss, **QUIET)
            found.append((weights(model), numbers(history)))
        assert found[0] == found[1]


def test_batches_of_unlike_parts_are_refused() -> None:
    model = net()
    for batch, said in ((((np.zeros((4, 6)), np.zeros((4, 2))), (np.zeros(4), np.zeros(3))), "the targets of a batch"),
                        ((np.zeros((4, 6)), np.zeros(4), np.zeros((4, 2))), "the third part of a batch has shape "),
                        ((np.zeros((4, 6)), np.zeros(4), (np.ones(4), np.ones(4))), "the third part of a batch has ")):
        with pytest.raises(ValueError, match=f"^training: {said}"):
            evaluate(model, [batch])


@both
def test_no_number_in_the_data_is_not_said_to_be_the_rate(compiled: bool) -> None:
    model, (x, y) = net(), arrays()
    wrong = np.array(x)
    wrong[:] = np.nan
    with pytest.raises(training.Diverged, match=r"step 1 \(epoch 1\): the loss is nan \(learning rate 0.5\); no rate "
                       "has changed the net yet; look for NaN and large numbers in the inputs and targets"):
        fit(model, sgd(model), loader(wrong, y), loader(x, y), epochs=1, compiled=compiled, **QUIET)
    model = net()
    with pytest.raises(FloatingPointError, match=r"a smaller learning rate, or the test set holds NaN$"):
        fit(model, sgd(model), loader(x, y), loader(wrong, y), epochs=1, compiled=compiled, **QUIET)


def test_a_metric_that_is_no_number_is_said() -> None:
    """It counts as no better: a training would end for a reason that nobody sees."""
    model, (x, y) = net(), arrays()
    stop = EarlyStop("test_spread", patience=2, mode="max")
    with pytest.warns(UserWarning, match="^EarlyStop: test_spread is nan, which counts as no better than before; see "):
        fit(model, sgd(model), loader(x, y), loader(x, y), epochs=3, callbacks=stop,
            metrics={"spread": WholeSet(lambda outputs, targets: float("nan"))}, **QUIET)


# ---------------------------------------------------------------- weights of images
@both
def test_an_image_of_weight_2_counts_as_two(compiled: bool) -> None:
    (x, y), counts = arrays(count=40), np.random.default_rng(1).integers(0, 3, 40)
    twice = np.repeat(np.arange(40), counts)

    def run(train: data.DataLoader, loss: Any, compiled: bool) -> tuple[Any, nn.Module]:
        model = net()
        return fit(model, sgd(model), train, train, epochs=3, loss=loss, compiled=compiled, **QUIET), model
    history, model = run(loader(x, y, counts, batch=40), per_image, compiled)
    expected, other = run(loader(x[twice], y[twice], batch=99), ops.cross_entropy, False)
    for name, array in other.state_dict().items():
        np.testing.assert_allclose(model.state_dict()[name], array, rtol=1e-9)
    for line, want in zip(history, expected, strict=True):
        np.testing.assert_allclose([line["train_loss"], line["test_loss"]], [want["train_loss"], want["test_loss"]])
    outputs = model(Tensor(x)).argmax(axis=1).numpy()  # right answers are over the images that count
    assert history[-1]["test_accuracy"] == np.mean((outputs == y)[counts > 0])


@both
@pytest.mark.parametrize("then", [lambda loss: loss, lambda loss: 2 * loss - loss, lambda loss: loss ** 1 + 0.0 * loss],
                         ids=["", "doubled", "powers"])
def test_weights_of_images_and_ignored_labels(then: Any, compiled: bool) -> None:
    """The mean is over what both leave, in batches of which one has nothing. What is computed of losses counts as they
    do."""
    (x, y), w = arrays(), np.random.default_rng(1).random(COUNT)
    y[::3], w[1::4], w[8:16] = 2, 0.0, 0.0
    factors = Tensor(np.array([0.5, 2.0, 1.0]))
    model = net()

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return then(per_image(outputs, y, weight=factors, ignore_index=2))
    history = fit(model, optim.SGD(model.parameters(), 0.0), loader(x, y, w), loader(x, y, w), epochs=1, loss=loss,
                  compiled=compiled, **QUIET)
    own = w * np.where(y == 2, 0.0, factors.numpy()[y])
    values = ops.cross_entropy(model(Tensor(x)), y, reduction="none").numpy()
    want = np.sum(own * values) / np.sum(own)
    np.testing.assert_allclose([history[0]["train_loss"], history[0]["test_loss"]], want)


@both
def test_a_mean_does_not_go_with_weights(compiled: bool) -> None:
    model, (x, y) = net(), arrays()
    with pytest.raises(TypeError, match=r"^training: the loss is a Tensor of shape \(\) but must be a Tensor of one "
                       r"number per image, of shape \(8,\), since the batches have weights; pass loss=partial\("
                       r"ops.cross_entropy, reduction='none'\)$"):
        fit(model, sgd(model), loader(x, y, np.ones(COUNT)), loader(x, y), epochs=1, compiled=compiled, **QUIET)


@both
@pytest.mark.parametrize("weight", [-1, -1e-9, float("nan"), float("inf")])
def test_weights_below_0_are_refused(weight: float, compiled: bool) -> None:
    """All of -1 would train as all of 1: the mean divides by their sum."""
    model, (x, y) = net(), arrays()
    own, right = np.ones(COUNT), np.ones(COUNT)
    own[11] = weight
    said = rf"^training: an image's weight is {weight:g} but must be a number of at least 0; leave an image out by"
    before = weights(model)
    for train, test in ((own, right), (right, own)):
        with pytest.raises(ValueError, match=said):
            fit(model, optim.SGD(model.parameters(), 0.0), loader(x, y, train), loader(x, y, test), epochs=1,
                loss=per_image, compiled=compiled, **QUIET)
    with pytest.raises(ValueError, match=said):
        evaluate(model, loader(x, y, own), loss=per_image)
    with pytest.raises(ValueError, match=said):
        find_rate(model, sgd(model), loader(x, y, own), loss=per_image)
    assert weights(model) == before


def test_losses_that_are_not_reduced_are_a_mean_of_images_again() -> None:
    """They know their weights; a mean over all of them, of ignored ones too, counts as much as there are images."""
    loss = ops.cross_entropy(Tensor(np.eye(3)), [0, 1, 2], ignore_index=1, reduction="none")
    assert loss.weights.tolist() == [1, 0, 1]
    assert loss.mean().weights is None
    assert ops.cross_entropy(Tensor(np.eye(3)), [0, 1, 2], ignore_index=1, reduction="sum").weights is None


# ---------------------------------------------------------------- metrics of the whole set
@both
def test_a_metric_of_the_whole_set(compiled: bool, tmp_path: Path) -> None:
    (x, y), model = arrays(), net()
    seen: list[tuple[Any, Any]] = []

    def spread(outputs: Any, targets: Any) -> float:
        seen.append((outputs, targets))
        return float(np.median(outputs[:, 0]))
    best = SaveBest(model, tmp_path / "best.h5", "test_spread", "max")
    history = fit(model, sgd(model), loader(x, y), loader(x, y), epochs=2, compiled=compiled, callbacks=best,
                  metrics={"spread": WholeSet(spread), "first": lambda o, t: o[:, 0].mean()}, **QUIET)
    assert "train_spread" not in history[0]
    assert best.best == max(line["test_spread"] for line in history)
    with minidl.no_grad():
        outputs = model(Tensor(x)).numpy()
    np.testing.assert_allclose(seen[1][0], outputs, rtol=1e-12)
    np.testing.assert_array_equal(seen[1][1], y)
    loss, accuracy, more = evaluate(model, loader(x, y), metrics={"spread": WholeSet(spread)})
    assert (loss, accuracy, more["spread"]) == tuple(history[1][f"test_{name}"] for name in (
        "loss", "accuracy", "spread"))
    with pytest.raises(ValueError, match=r"^training: a metric has the name 'accuracy'"):
        evaluate(model, loader(x, y), metrics={"accuracy": WholeSet(spread)})


def test_f1_and_the_area_under_the_curve_are_scikit_learns() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    (x, y), model = arrays(), net()
    found = evaluate(model, loader(x, y), metrics={
        "f1": training.f1_score(), "auc": training.roc_auc_score(), "two": training.f1_score("micro", ignore_index=0)})
    with minidl.no_grad():
        logits = model(Tensor(x)).numpy()
    shares, guess = ops.softmax(Tensor(logits), axis=1).numpy(), logits.argmax(axis=1)
    want = {"f1": metrics.f1_score(y, guess, average="macro"),
            "auc": metrics.roc_auc_score(y, shares, multi_class="ovr"),
            "two": metrics.f1_score(y[y != 0], guess[y != 0], average="micro")}
    assert found[2] == pytest.approx(want)
    binary = training.roc_auc_score()(logits[:, :2], y % 2)
    assert binary == pytest.approx(metrics.roc_auc_score(y % 2, logits[:, 1] - logits[:, 0]))


@pytest.mark.parametrize("average", ["macro", "weighted", "micro"])
def test_the_area_under_the_curve_of_large_logits(average: str) -> None:
    """Probabilities that round to 1 were ties: 0.5 for logits in the right order."""
    metrics = pytest.importorskip("sklearn.metrics")
    assert training.roc_auc_score()(np.array([[50.0], [60.0], [70.0], [80.0]], "f"), np.array([0, 0, 1, 1])) == 1.0
    random = np.random.default_rng(3)
    labels = random.integers(0, 3, 200)
    logits = (random.standard_normal((200, 3)) + 0.5 * np.eye(3)[labels]).astype(np.float32)
    score = training.roc_auc_score(average)
    powers = np.exp(logits.astype(float))
    shares = powers / powers.sum(1, keepdims=True)
    assert score(logits, labels) == pytest.approx(metrics.roc_auc_score(labels, shares, multi_class="ovr",
                                                                        average=average))
    best = logits.argmax(1)
    large = 100 * np.eye(3)[best] + random.standard_normal((200, 3))       # none beside another by 37 ties
    one = [metrics.roc_auc_score(best == i, large[:, i] - np.delete(large, i, 1).max(1)) for i in range(3)]
    assert score(large, best) == pytest.approx(np.mean(one), abs=1e-3) == 1.0


def test_one_logit_is_of_two_classes() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(7)
    logits, labels = random.standard_normal(40).astype(np.float32), random.integers(0, 2, 40).astype(np.float32)
    for shape in ((40,), (40, 1)):
        given = logits.reshape(shape), labels.reshape(shape)
        assert training.f1_score()(*given) == metrics.f1_score(labels, logits > 0, average="macro")
        assert training.roc_auc_score()(*given) == metrics.roc_auc_score(labels, logits)
    with pytest.raises(ValueError, match=r"^training.f1_score: outputs have shape \(4, 2, 3\) and labels \(4,\) but"):
        training.f1_score()(np.zeros((4, 2, 3)), np.zeros(4))


@pytest.mark.parametrize(("value", "said"), [
    (np.ones(3), r"an array of shape \(3,\)"), (None, "None"), ("x", "a str")], ids=str)
def test_a_metric_of_the_whole_set_is_one_number(value: Any, said: str) -> None:
    model, (x, y) = net(), arrays()
    with pytest.raises(TypeError, match=f"^training: metric 'mine' is {said} but a WholeSet's function must give one"):
        evaluate(model, loader(x, y), metrics={"mine": WholeSet(lambda outputs, targets: value)})
    with pytest.raises(TypeError, match=r"^WholeSet: function is None but must be a function of"):
        WholeSet(None)  # type: ignore[arg-type]


@both
def test_answers_that_are_not_arrays_of_items_are_named(compiled: bool) -> None:
    """Of a list NumPy said that it has no attribute, of a number that it cannot be concatenated."""
    class Net(nn.Module):
        def __init__(self, kind: Any) -> None:
            super().__init__()
            self.layer, self.kind = nn.Linear(6, 3).to(dtype="float64"), kind

        def forward(self, x: Tensor) -> Any:
            return self.kind((self.layer(x), self.layer(x).mean()))
    x, y = arrays()
    given: dict[str, Any] = {"loss": lambda outputs, labels: ops.cross_entropy(outputs[0], labels),
                             "metrics": {"mine": WholeSet(lambda outputs, labels: 1.0)}}
    for kind, error, said in (
            (list, TypeError, "the model answers with a list but must with Tensors, one or a tuple or dict of them; "),
            (tuple, ValueError, r"the model answers with one number, of shape \(\), to a batch, but each of its answ")):
        model: Any = Net(kind)
        with pytest.raises(error, match=f"^WholeSet: {said}"):
            evaluate(model, loader(x, y), **given)
        with pytest.raises(error, match=f"^WholeSet: {said}"):
            fit(model, optim.SGD(model.parameters(), 0.1), loader(x, y), loader(x, y), epochs=1, compiled=compiled,
                **given, **QUIET)
    with pytest.raises(TypeError, match=r"^predict: the model answers with a list but must with Tensors"):
        training.predict(Net(list), x)


@pytest.mark.parametrize(("inputs", "said"), [
    ((np.ones((8, 6)), np.ones((8, 6))), r"2 inputs but Sequential.forward takes \(x\): too many"),
    ({"rows": np.ones((8, 6))}, r"inputs named rows but Sequential.forward takes \(x\): missing"),
], ids=["tuple", "dict"])
def test_inputs_that_a_model_does_not_take_are_named(inputs: Any, said: str) -> None:
    given = loader(inputs, np.zeros(8, int))
    with pytest.raises(TypeError, match=f"^training: a batch has {said}"):
        evaluate(net(), given)


def test_mistakes_with_names_and_numbers_are_named() -> None:
    for wrong, words in ((lambda: EarlyStop(3), "EarlyStop: metric is 3 but must be a metric's name"),  # type: ignore[arg-type]
                         (lambda: EarlyStop(min_delta=1), "EarlyStop: .* in place of min_delta: better_by="),  # type: ignore[call-arg]
                         (lambda: nn.CrossEntropyLoss([1.0, 2.0])(Tensor([[1.0, 2.0]]), [0]),  # type: ignore[arg-type]
                          "cross_entropy: weight is a list but must be a Tensor"),
                         (lambda: ops.cross_entropy(Tensor([[1.0, 2.0]]), [0], Tensor([1, 2])),
                          "cross_entropy: weight has dtype int64 but logits float32"),
                         (lambda: nn.Sequential({"a": nn.ReLU()}), "Sequential: .* by name"),  # type: ignore[arg-type]
                         (lambda: nn.Sequential(nn.ReLU()).__setitem__(slice(1), nn.ReLU()),  # type: ignore[arg-type]
                          "Sequential: slice.* is several places")):
        with pytest.raises(TypeError, match=f"^{words}"):
            wrong()


@pytest.mark.parametrize("make", [training.f1_score, training.roc_auc_score])
def test_without_scikit_learn_the_extra_is_named(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    said = f"training.{make.__name__}: scikit-learn is not installed; run {install('metrics')}"
    with pytest.raises(ImportError, match=f"^{re.escape(said)}$"):
        make()


# ---------------------------------------------------------------- a rate that is searched
def test_a_search_for_a_rate_leaves_all_as_it_was() -> None:
    def run(search: bool) -> tuple[Any, ...]:
        model, (x, y) = net(0.3), arrays()
        optimizer, train = sgd(model), loader(x, y, shuffle=True)
        if search:
            found = training.find_rate(model, optimizer, train, steps=40)
            assert found.rate == found.rates[int(np.argmin(found.losses))] / 10
            assert 1e-3 < found.rate < 10
            assert model.training
            assert all(p.grad is None for p in model.parameters())
        history = fit(model, optimizer, train, loader(x, y), epochs=2, **QUIET)
        return weights(model), numbers(history), rng.get_state()
    assert run(True) == run(False)


@pytest.mark.parametrize("before", [None, 3.0])
def test_a_search_leaves_gradients_as_they_were(before: float | None) -> None:
    """Also those of parameters that the optimizer does not hold, to which a backward pass adds in place."""
    model, (x, y) = net(), arrays()
    for p in model.parameters():
        p.grad = None if before is None else Tensor(np.full(p.shape, before))
    held = [p.grad for p in model.parameters()]
    find_rate(model, optim.SGD(model[3].parameters(), 0.1), loader(x, y), steps=10)
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), held, strict=True))
    assert all((gradient.numpy() == before).all() for gradient in held if gradient is not None)


def test_a_search_puts_parameters_that_the_net_does_not_hold_back() -> None:
    model, (x, y), s = net(), arrays(), Tensor(np.zeros(1), requires_grad=True)
    find_rate(model, optim.SGD([*model.parameters(), s], 0.1), loader(x, y), steps=10,
              loss=lambda outputs, labels: ops.cross_entropy(outputs, labels) * (-s[0]).exp() + s[0])
    assert s.tolist() == [0.0]


@pytest.mark.parametrize("together", [False, True])
def test_a_search_with_parameters_of_one_name_leaves_all_as_it_was(together: bool) -> None:
    """Those of two nets, of which no state could be loaded by names."""
    model, (x, y) = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).to(dtype="float64"), arrays()
    one, other = ([*layer.named_parameters()] for layer in model)
    optimizer = (optim.Together(*(optim.SGD(each, 0.1, momentum=0.9) for each in (one, other))) if together else
                 optim.SGD([*one, *other], 0.1, momentum=0.9))
    training.train_step(model, optimizer, x, y)
    parts = optimizer.optimizers if isinstance(optimizer, optim.Together) else [optimizer]

    def kept() -> list[Any]:
        return [(group["lr"], part._names.get(p), p.numpy().tobytes(), part._kept["velocities"].get(p).tobytes())
                for part in parts for group in part.groups for p in group["params"]]
    before = kept()
    find_rate(model, optimizer, loader(x, y), steps=10)
    assert kept() == before
    assert [name for _, name, *_ in before] == ["weight", "bias"] * 2


def test_a_search_ends_where_the_loss_does() -> None:
    model, (x, y) = net(), arrays()
    with np.errstate(all="ignore"):
        found = training.find_rate(model, sgd(model), loader(x, y), low=1e-3, high=1e30, steps=30)
    assert len(found.rates) == len(found.losses) < 30
    for wrong, said in (({"low": 2.0, "high": 1.0}, "low is 2.0 and high 1.0"), ({"steps": 9}, "steps is 9 but must")):
        with pytest.raises(ValueError, match=f"^find_rate: {said}"):
            training.find_rate(model, sgd(model), loader(x, y), **wrong)  # type: ignore[arg-type]  # of several kinds
    with pytest.raises(ValueError, match=r"^find_rate: the rate of the first group is 0"):
        training.find_rate(model, sgd(model, 0.0), loader(x, y))
    with pytest.raises(ValueError, match=r"^find_rate: the loss at the first rate, 1e-06, is not finite"):
        training.find_rate(model, sgd(model), loader(x * np.nan, y))
    assert len(training.find_rate(model, sgd(model), loader(x, y), steps=np.int64(10)).rates) == 10


@pytest.mark.parametrize(("kind", "words", "change"), [
    (ValueError, "the optimizer holds 4 parameters but none of the 4 Tensors of the Sequential; make it of",
     {"optimizer": sgd(net())}),
    (TypeError, "optimizer is a DataLoader but must be one of minidl.optim", {"optimizer": loader(*arrays())}),
    (TypeError, "train is a tuple but must be a data.DataLoader", {"train": arrays()}),
    (TypeError, "loss is 'mse' but must be a function of", {"loss": "mse"}),
    (ValueError, "clip is 0 but must be a number above 0", {"clip": 0}),
    (TypeError, "got an unexpected keyword argument 'num_iter'; it takes model, optimizer", {"num_iter": 9}),
])
def test_a_search_refuses_what_fit_refuses(kind: type[Exception], words: str, change: dict[str, Any]) -> None:
    """With the optimizer of another net no loss moves, and any rate looks best."""
    model = net()
    given = {"model": model, "optimizer": sgd(model), "train": loader(*arrays()), **change}
    with pytest.raises(kind, match=f"^find_rate: {words}"):
        training.find_rate(**given)


# ---------------------------------------------------------------- answers
def test_predictions() -> None:
    (x, _), model, two = arrays(), net(0.5), Two()
    with minidl.no_grad():
        want = model.eval()(Tensor(x)).numpy()
    model.train()
    for given in (x, Tensor(x), loader(x, np.zeros(COUNT)), data.DataLoader(x, 7, shuffle=False),
                  [x[:20], Tensor(x[20:])], [(x,)]):
        np.testing.assert_allclose(training.predict(model, given), want, rtol=1e-12)
    assert model.training
    inputs, targets = several(True)
    one, other = training.predict(two, loader(inputs, targets))
    assert (one.shape, other.shape) == ((COUNT, 3), (COUNT, 2))
    for whole in (inputs, (inputs["rows"], inputs["ids"])):        # all inputs at once
        np.testing.assert_allclose(training.predict(two, whole)[0], one, rtol=1e-6)
    with pytest.raises(TypeError, match=r"^predict: the inputs are a tuple of list but must be arrays with an axis"):
        training.predict(two, ([1.0],))
    for lists in ([[1.0, -2.0], [3.0, -4.0]], [[[1.0, 2.0], [3.0, 4.0]]], [3.0], [x[0, 0]], [[]]):
        with pytest.raises(TypeError, match=r"^predict: the inputs are a \w+ of .* but must be arrays with an axis"):
            training.predict(nn.ReLU(), lists)
    with pytest.raises(ValueError, match=r"^predict: the model answers with shape \(2,\) to a batch of 3 items but "):
        training.predict(nn.Linear(3, 2), [np.ones(3, np.float32)])
    for given, said in ((loader(x, x, shuffle=True), "the loader shuffles"), ([], "got 0 batch")):
        with pytest.raises(ValueError, match=f"^predict: {said}"):
            training.predict(model, given)


# ---------------------------------------------------------------- checkpoints of one's own loop
def own_loop(file: Path, begin: int, end: int) -> tuple[Any, ...]:
    model, (x, y) = net(0.3), arrays()
    optimizer = optim.Adam(model.parameters(), 0.05)
    ema = optim.EMA(model, decay=0.9)
    checkpoint = training.Checkpoint(net=model, adam=optimizer, ema=ema)
    facts: dict[str, Any] = {"epoch": 0, "losses": []}
    if begin:
        facts = checkpoint.load(file)
        assert facts["epoch"] == begin
    train = loader(x, y, shuffle=True)
    for epoch in range(facts["epoch"], end):
        train.set_epoch(epoch)
        for images, labels in train:
            facts["losses"].append(training.train_step(model, optimizer, images, labels)[0])
            ema.update()
        checkpoint.save(file, epoch=epoch + 1, losses=facts["losses"])
    averages = [array.tobytes() for array in ema.state_dict()["averages"]]
    return weights(model), averages, facts["losses"], rng.get_state()


def test_a_loop_of_ones_own_goes_on_in_the_same_bits(tmp_path: Path) -> None:
    own_loop(tmp_path / "mine.h5", 0, 2)
    assert own_loop(tmp_path / "mine.h5", 2, 5) == own_loop(tmp_path / "whole.h5", 0, 5)


def test_a_checkpoint_holds_what_is_frozen_and_in_evaluation(tmp_path: Path) -> None:
    """A loop that has frozen a layer goes on with it frozen."""
    def made() -> tuple[nn.Module, optim.Optimizer]:
        model = net()
        return model, optim.SGD(model.named_parameters(), 0.5)
    (model, optimizer), (again, other) = made(), made()
    model[0].requires_grad_(False)
    model[2].eval()
    training.Checkpoint(model=model, optimizer=optimizer).save(tmp_path / "a.h5")
    training.Checkpoint(model=again, optimizer=other).load(tmp_path / "a.h5")
    assert [name for name, _ in again.named_parameters()] == ["3.weight", "3.bias"]
    assert [each.training for each in again] == [True, True, False, True]
    before = weights(again[0])
    training.train_step(again, other, *arrays())
    assert weights(again[0]) == before


class Interrupts:
    """Ctrl-C at a step."""

    def __init__(self, at: int):
        self.at = at

    def on_step_end(self, step: training.Step) -> None:
        if step.step == self.at:
            signal.raise_signal(signal.SIGINT)


class Modes:
    """Sets modes of a net at a step or at the end of an epoch."""

    def __init__(self, net: nn.Module, step: int, epoch: int, change: Callable[[nn.Module], object]):
        self.net, self.step, self.epoch, self.change = net, step, epoch, change

    def on_step_end(self, step: training.Step) -> None:
        if step.step == self.step:
            self.change(self.net)

    def on_epoch_end(self, metrics: dict[str, Any]) -> None:
        if metrics["epoch"] == self.epoch:
            self.change(self.net)


@pytest.mark.parametrize("stop", [1, 3, 4, 6])
@pytest.mark.parametrize("step", [0, 2, 4])            # 0: at the end of the first epoch
@pytest.mark.parametrize(("first", "change"), [
    (lambda net: net[1].eval(), lambda net: net.eval()), (lambda net: net.eval(), lambda net: net[1].eval()),
    (lambda net: net.eval(), lambda net: (net.train(), net[1].eval())), (lambda net: None, lambda net: net.eval())],
    ids=["a layer, then the net", "the net, then a layer", "the net, then all but a layer", "the net"])
def test_a_training_goes_on_in_the_modes_that_it_had(tmp_path: Path, first: Any, change: Any, step: int, stop: int
                                                     ) -> None:
    """Also within an epoch that trains a net in evaluation as a whole, and leaves it there."""
    def trained(folder: Path, stops: int = 0, **options: Any) -> Any:
        minidl.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 4)).to(dtype="float64")
        first(model)
        callbacks = [Modes(model, step, 0 if step else 1, change), *[Interrupts(stops)] * bool(stops)]
        with contextlib.suppress(KeyboardInterrupt):
            fit(model, optim.SGD(model.parameters(), 0.5), loader(*arrays(count=32)), loader(*arrays(count=32)),
                epochs=3, callbacks=callbacks, checkpoints=folder, compiled=False, **options, **QUIET)
        return weights(model), [each.training for _, each in model.named_modules()]
    trained(tmp_path / "a", stop)
    assert trained(tmp_path / "a", resume=True) == trained(tmp_path / "b")


def test_a_file_without_the_modes_after_an_epoch_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of earlier versions: a net in evaluation is in it again after an epoch that trains it."""
    def trained(folder: Path, stops: int = 0) -> Any:
        model = net(0.3)
        model.eval()
        with contextlib.suppress(KeyboardInterrupt):
            fit(model, sgd(model), loader(*arrays()), loader(*arrays()), epochs=2, checkpoints=folder, resume=True,
                callbacks=[Interrupts(stops)] * bool(stops), **QUIET)
        return weights(model), model.training
    with monkeypatch.context() as earlier:
        earlier.setattr(training.checkpoint, "write_state", without_before(training.checkpoint.write_state))
        trained(tmp_path / "a", 3)
    assert trained(tmp_path / "a") == trained(tmp_path / "b")
    assert not trained(tmp_path / "c")[1]


def without_before(write: Callable[..., Any]) -> Callable[..., Any]:
    def written(path: Path, state: dict[str, Any], **options: Any) -> Any:
        del state["layers"]["before"]
        return write(path, state, **options)
    return written


class Running(nn.Module):
    """A metric with a state: the share of right answers, over all batches that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.share = Tensor(np.zeros(1))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        right = (outputs.argmax(axis=1) == targets).to(dtype="float64").mean()
        with minidl.no_grad():
            self.share[...] = self.share * 0.9 + right * 0.1
        return self.share.sum()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_metric_with_a_state_goes_on(tmp_path: Path, compiled: bool) -> None:
    def trained(folder: Path, stops: int = 0, **options: Any) -> Any:
        model = net()
        with contextlib.suppress(KeyboardInterrupt):
            history = fit(model, sgd(model), loader(*arrays(count=32)), loader(*arrays(count=32)), epochs=3,
                          metrics={"share": Running()}, callbacks=[Interrupts(stops)] * bool(stops), checkpoints=folder,
                          compiled=compiled, **options, **QUIET)
            return [(metrics["train_share"], metrics["test_share"]) for metrics in history]
    whole = trained(tmp_path / "whole")
    for stop in (2, 6):
        trained(folder := tmp_path / str(stop), stop)
        assert trained(folder, resume=True) == whole


def test_a_rate_of_float32_goes_on_in_the_same_bits(tmp_path: Path) -> None:
    """It came back as a float, of which callbacks then made other rates."""
    def trained(folder: Path, epochs: int, **options: Any) -> Any:
        model = net()
        optimizer = optim.SGD(model.parameters(), lr=np.float32(0.1))

        def decay(metrics: dict[str, Any]) -> None:
            optimizer.lr = optimizer.lr * 0.93
        fit(model, optimizer, loader(*arrays()), loader(*arrays()), epochs=epochs, callbacks=decay, checkpoints=folder,
            **options, **QUIET)
        return weights(model)
    trained(tmp_path / "a", 2)
    assert trained(tmp_path / "a", 4, resume=True) == trained(tmp_path / "b", 4)


def test_a_compiled_training_that_a_callback_ended_is_resumed_without_a_step(tmp_path: Path) -> None:
    """Steps that were never done were run to record them, and here the last one is refused."""
    for resume in (False, True):
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).to(dtype="float64")
        batches = [loader(*arrays(count=17)) for _ in range(2)]          # 8, 8 and 1
        fit(model, optim.SGD(model.parameters(), 0.1), *batches, epochs=2, callbacks=[Ends()], checkpoints=tmp_path,
            resume=resume, compiled=True, **QUIET)


class Ends:
    """At the first step."""

    def on_step_end(self, step: training.Step) -> bool:
        return True


@pytest.mark.parametrize("compiled", [False, True])
def test_a_loss_that_is_not_finite_is_said_with_the_rate_of_its_step(compiled: bool) -> None:
    """A compiled one is seen at the epoch's end."""
    (inputs, labels), model, schedule = arrays(), net(), optim.cosine(6)
    inputs[17] = np.nan                    # in the third batch
    with pytest.raises(training.Diverged) as error:
        fit(model, sgd(model), loader(inputs, labels), loader(*arrays()), epochs=1, schedule=schedule,
            compiled=compiled, **QUIET)
    assert (error.value.step, error.value.lr) == (3, 0.5 * schedule(2))


def test_names_of_several_models_are_theirs(tmp_path: Path) -> None:
    """What belonged to one net went to the other if an optimizer was made of both in another order."""
    def made(order: str) -> Any:
        nets = {name: nn.Linear(2, 2) for name in "ab"}
        params = [p for name in order for p in nets[name].parameters()]
        one = optim.SGD(nets["b"].parameters(), 0.1)
        return nets, optim.SGD(params, 0.1, momentum=0.9), optim.EMA(params, 0.5), one
    (nets, *ours), (others, *theirs) = made("ab"), made("ba")
    for name, value in (("a", 1.0), ("b", 2.0)):
        nets[name].weight.grad = Tensor(np.full((2, 2), value, np.float32))
    ours[0].step()
    ours[1].update()
    training.Checkpoint(**nets, both=ours[0], ema=ours[1], one=ours[2]).save(tmp_path / "a.h5")
    training.Checkpoint(**others, both=theirs[0], ema=theirs[1], one=theirs[2]).load(tmp_path / "a.h5")
    for name, value in (("a", 1.0), ("b", 2.0)):
        assert (theirs[0]._kept["velocities"].get(others[name].weight) == value).all()
        with ours[1].applied(), theirs[1].applied():
            assert weights(nets[name]) == weights(others[name])
    assert ours[0].state_dict()["groups"][0]["params"] == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert ours[2].state_dict()["groups"][0]["params"] == ["weight", "bias"]           # as in files of earlier versions


def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    own_loop(file := tmp_path / "mine.h5", 0, 1)
    other, model = nn.Linear(6, 2), net()
    before, drawn = weights(model), rng.get_state()
    cases: dict[str, dict[str, Any]] = {
        "does not fit this training": {"net": other, "adam": optim.Adam(model.parameters())},
        "'parts.ema.averages.0' is missing here": {"net": model, "adam": optim.Adam(model.parameters())},
        "'parts.adam.groups.0.means.0' is missing here": {
            "net": model, "adam": optim.SGD(model.parameters(), 0.1), "ema": optim.EMA(model)}}
    for said, parts in cases.items():
        with pytest.raises(ValueError, match=said):
            training.Checkpoint(**parts).load(file)
    assert (weights(model), rng.get_state()) == (before, drawn)
    with pytest.raises(TypeError, match=r"^Checkpoint: step is a int but must have a state_dict"):
        training.Checkpoint(step=3)
    with pytest.raises(ValueError, match=r"^Checkpoint: 'a\.pt' would hold HDF5, whatever its ending says; choose"):
        training.Checkpoint().save("a.pt")
    with pytest.raises(ValueError, match=r"does not fit this training: 'model.0.weight' is"):
        fit(model, sgd(model), loader(*arrays()), loader(*arrays()), epochs=1, resume=file, **QUIET)


# ---------------------------------------------------------------- all of it, in a run that goes on
class Stop:
    """A callback that sends this process a signal after a step."""

    def __init__(self, at: int):
        self.at = at

    def on_step_end(self, step: training.Step) -> None:
        if step.step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


def median(outputs: Any, targets: Any) -> float:
    return float(np.median(outputs))


OPTIONS: dict[str, dict[str, Any]] = {
    "accumulate": {"accumulate": 4}, "clip": {"clip": 0.05}, "both": {"accumulate": 2, "clip": 0.05},
    "weights": {"loss": per_image, "accumulate": 2}, "whole set": {"metrics": {"median": WholeSet(median)}},
    "early stop": {}, "trained loss": {}, "shared": {}, "several": {"loss": of_two, "accumulate": 2, "clip": 0.1}}


@both
@pytest.mark.parametrize("late", [False, True], ids=["first epoch", "later"])
@pytest.mark.parametrize("case", OPTIONS)
def test_a_run_that_goes_on_ends_in_the_same_bits(case: str, late: bool, compiled: bool, tmp_path: Path) -> None:
    """Stopped by a signal between two steps, of which an epoch has from two to six; EarlyStop has then waited."""
    def run(folder: str, *more: Any, **options: Any) -> tuple[Any, ...]:
        model: nn.Module = Two() if case == "several" else net(0.3)
        parts = several(False) if case == "several" else arrays()
        if case == "weights":
            parts = *parts, np.random.default_rng(1).random(COUNT)
        loss = Scaled(model[3] if case == "shared" else None)
        own: dict[str, Any] = {"loss": loss} if case in ("trained loss", "shared") else OPTIONS[case]
        trained = [loss.scale, *loss.norm.parameters()] if own.get("loss") is loss else []
        optimizer = optim.Adam([*model.parameters(), *trained], 0.05)
        stop = EarlyStop(patience=2, better_by=0.5 if case == "early stop" else 0.0)
        history = fit(model, optimizer, loader(*parts, shuffle=True, seed=1), loader(*parts), epochs=5,
                      compiled=compiled, checkpoints=tmp_path / folder, callbacks=[stop, *more],
                      schedule=optim.cosine(30), **own, **options, **QUIET)
        return weights(model), weights(loss), numbers(history), rng.get_state(), stop.state_dict()
    whole = run("whole")
    with pytest.raises(training.Interrupted):
        run("part", Stop(2 if not late else 14 if case == "early stop" else 5))
    assert run("part", resume=True) == whole
    assert (len(whole[2]) < 5) == (case == "early stop")


@both
def test_a_loss_that_is_a_module_does_not_learn_from_the_test_set(compiled: bool) -> None:
    """It is in evaluation then, and afterwards as before; so is one that is a layer of the model."""
    model, loss, (x, y) = net(), Scaled(), arrays()

    def learned(within: Any, **options: Any) -> list[bytes]:
        within(model, loss=loss, **options)
        assert all(module.training for _, module in (*model.named_modules(), *loss.named_modules()))
        return [*weights(loss), np.array(evaluate(model, loader(x, y), loss=loss)).tobytes()]
    before = learned(evaluate, batches=loader(x, y))
    given = {"train": loader(x, y), "test": loader(x, y), "epochs": 1, "compiled": compiled, **QUIET,
             "optimizer": optim.SGD([*model.parameters(), *loss.parameters()], 0.0)}
    after = learned(fit, **given)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, True, False, False, False]
    model[1].loss = loss
    assert learned(evaluate, batches=loader(x, y)) == after


@both
def test_a_loss_in_evaluation_stays_so_while_the_net_trains(compiled: bool) -> None:
    """As a net that only measures. A net in evaluation trains as a whole."""
    model, loss, (x, y), seen = net().eval(), Scaled(), arrays(), set()

    def watched(outputs: Tensor, labels: Tensor) -> Tensor:
        seen.add((model.training, loss.training, loss.norm.training))
        return Scaled.forward(loss, outputs, labels)
    loss.requires_grad_(False).eval().forward = watched  # type: ignore[method-assign]
    before, optimizer = weights(loss), optim.SGD(model.parameters(), 0.1)
    find_rate(model, optimizer, loader(x, y), steps=10, loss=loss)
    assert seen == {(True, False, False)}
    fit(model, optimizer, loader(x, y), loader(x, y), epochs=1, loss=loss, compiled=compiled, **QUIET)
    assert seen == {(True, False, False), (False, False, False)}
    assert (weights(loss), model.training, loss.training) == (before, False, False)


def test_what_a_checkpoint_would_not_hold_is_refused(tmp_path: Path) -> None:
    """A parameter that began anew after it, with the momentum of before."""
    model, (x, y), s = net(), arrays(), Tensor(np.zeros(1), requires_grad=True)

    def run(loss: Any, *more: Any, **options: Any) -> None:
        fit(model, optim.SGD([*model.parameters(), *more], 0.1), loader(x, y), loader(x, y), epochs=1, loss=loss,
            **QUIET, **options)

    def own(outputs: Tensor, labels: Tensor) -> Tensor:
        return ops.cross_entropy(outputs, labels) + s.sum()
    run(own, s)
    said = (r"^fit: checkpoints hold the Tensors of the model but 1 of the optimizer's parameters are none of these, "
            r"the first of shape \(1,\); make them attributes of the model, or of a loss")
    for options in ({"checkpoints": tmp_path / "new"}, {"resume": tmp_path / "old"}):
        with pytest.raises(ValueError, match=said):
            run(own, s, **options)
    run(ops.cross_entropy, checkpoints=tmp_path / "old")               # as files of earlier versions, with no loss
    constant, trained = nn.CrossEntropyLoss(weight=Tensor(np.array([1.0, 2.0, 3.0]))), Scaled()
    run(trained, resume=tmp_path / "old")              # which no step trains
    run(Scaled(model[3]), resume=tmp_path / "old")     # of which the file has what is trained
    run(constant, checkpoints=tmp_path / "old", resume=True)
    with pytest.raises(ValueError, match=r"does not fit this training: .*'loss.scale' is .* here but missing in the f"):
        run(trained, trained.scale, resume=tmp_path / "old")


def test_a_run_goes_on_with_as_many_batches_to_a_step(tmp_path: Path) -> None:
    def run(accumulate: int, **options: Any) -> None:
        model, (x, y) = net(), arrays()
        fit(model, sgd(model), loader(x, y), loader(x, y), epochs=2, accumulate=accumulate, checkpoints=tmp_path,
            **options, **QUIET)
    run(2)
    with pytest.raises(ValueError, match="is from other batches: accumulate is 3 here but 2 there"):
        run(3, resume=True)


# ---------------------------------------------------------------- what is of another run, or of another net
@both
def test_sums_of_other_metrics_are_not_gone_on_with(compiled: bool, tmp_path: Path) -> None:
    """They are held by place, so that two metrics that changed places would take each other's sums."""
    class Ends:
        def on_step_end(self, step: Any) -> bool:
            return step.step == 3
    two = {"a": lambda outputs, targets: outputs.mean() * 0 + 100, "b": lambda outputs, targets: outputs.mean() * 0 + 1}
    model, (x, y) = net(), arrays()
    fit(model, sgd(model), loader(x, y), loader(x, y), epochs=1, checkpoints=tmp_path, metrics=two, callbacks=Ends(),
        compiled=compiled, **QUIET)
    for other in ({"b": two["b"], "a": two["a"]}, {"a": two["a"], "c": two["b"]}):
        said = re.escape(f"has sums of the metrics ['a', 'b'] but here are {list(other)}; pass")
        with pytest.raises(ValueError, match=said):
            fit(model, sgd(model), loader(x, y), loader(x, y), epochs=1, checkpoints=tmp_path, metrics=other,
                resume=True, compiled=compiled, **QUIET)


def test_callbacks_of_another_net_or_in_another_order_are_refused(tmp_path: Path) -> None:
    model, other, (x, y) = net(), net(), arrays()

    def run(epochs: int, *callbacks: Any, resume: bool = False) -> Any:
        return fit(model, sgd_, loader(x, y), loader(x, y), epochs=epochs, callbacks=callbacks, checkpoints=tmp_path,
                   resume=resume, **QUIET)
    sgd_ = sgd(model)
    with pytest.raises(ValueError, match=r"^fit: a Plateau is of another optimizer than the one that trains; make it"):
        run(1, optim.Plateau(sgd(other)))
    with pytest.raises(ValueError, match=r"^fit: an EMA holds none of the net's parameters; make it of the net that"):
        run(1, optim.EMA(other))
    with pytest.warns(UserWarning, match=r"^fit: a SaveBest is of a net that has no parameter of the one") as said:
        fit(model, sgd_, loader(x, y), loader(x, y), epochs=1, callbacks=training.SaveBest(other, tmp_path / "best.h5"),
            **QUIET)
    assert said[0].filename == __file__
    with pytest.raises(ValueError, match=r"^train_step: the optimizer holds 4 parameters but none of the 4 Tensors"):
        training.train_step(model, sgd(other), x, y)
    run(1, optim.EMA(model, 0.5), optim.EMA(model, 0.9))
    with pytest.raises(ValueError, match=r"^fit: an EMA has decay 0.9 but the checkpoint's in its place 0.5; pass the"):
        run(2, optim.EMA(model, 0.9), optim.EMA(model, 0.5), resume=True)
    assert len(run(2, optim.EMA(model, 0.5), optim.EMA(model, 0.9), resume=True)) == 2


def test_methods_that_are_never_called_are_said() -> None:
    """As of Keras and Lightning, but not what a class has for itself."""
    class Told:
        on_cpu = True
        def on_epoch_end(self, metrics: Any) -> None: ...
        def on_new_best(self) -> None: ...
        def on_train_end(self) -> None: ...
    model, (x, y) = net(), arrays()
    with pytest.warns(UserWarning, match=r"^fit: a callback, Told, has on_train_end, which fit never calls; it calls "
                                         "on_train_begin, on_step_end, on_epoch_end$") as said:
        fit(model, sgd(model), loader(x, y), loader(x, y), epochs=1, callbacks=Told(), **QUIET)
    assert said[0].filename == __file__


def test_predict_refuses_a_loader_that_leaves_images_out() -> None:
    model, (x, y) = net(), arrays()
    with pytest.raises(ValueError, match=r"^predict: the loader leaves out the images of a last batch that is not "):
        training.predict(model, loader(x, y, shuffle=False, drop_last=True))


@pytest.mark.parametrize(("who", "run"), [
    ("evaluate: the", lambda model, batches: training.evaluate(model, batches)),
    ("fit: the test", lambda model, batches: fit(model, optim.SGD(model.parameters(), 0.1), batches, batches, epochs=1,
                                                **QUIET)),
    ("predict: the", lambda model, batches: training.predict(model, batches))])
@pytest.mark.parametrize(("options", "what"), [
    ({"drop_last": True}, "leaves out 2 of 30 items; pass drop_last=False"),
    ({"augment": data.Augment(flip=True)}, r"changes images at random, by Augment\(.*\); pass augment=None")])
def test_measured_items_that_are_other_ones_are_said(who: str, run: Any, options: dict[str, Any], what: str) -> None:
    images = data.Dataset("mine", "test", np.zeros((30, 1, 2, 2), np.uint8), np.arange(30) % 2)
    batches = data.DataLoader(images, 7, shuffle=False, **options)
    if who == "predict: the" and batches.drop_last:
        return                             # refused, see above
    with pytest.warns(UserWarning, match=rf"^{who} loader {what}$") as caught:
        run(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), batches)
    assert caught[0].filename == __file__


# ---------------------------------------------------------------- names of the two sets
def table(columns: tuple[str, ...] = ("a", "b"), classes: tuple[str, ...] = ("ash", "birch", "cedar")) -> data.Table:
    x = np.random.default_rng(1).standard_normal((30, 2))
    return data.Table("trees", "train", x, np.arange(30) % 2, columns=columns, classes=classes)


@pytest.mark.parametrize(("other", "said"), [
    (table(classes=("ash", "cedar")), "classes ash, birch, cedar but the test data has ash, cedar"),
    (table(columns=("b", "a")), "columns a, b but the test data has b, a"),
    (data.Subset(table(classes=("birch", "ash", "cedar")), [0, 1]), "classes .* but the test data has birch, ash")])
def test_training_and_test_have_the_same_names(other: Any, said: str) -> None:
    """A label of 1 was birch here and cedar there, and the accuracy wrong without a word."""
    model = nn.Linear(2, 3)
    given = [data.DataLoader(each, 10) for each in (table(), other)]
    with pytest.raises(ValueError, match=f"^fit: the training data has the {said}.*; give both the same, in one order"):
        fit(model, optim.SGD(model.parameters(), 0.1), *given, epochs=1, **QUIET)


def test_names_that_a_file_does_not_have_are_not_compared() -> None:
    model = nn.Linear(2, 3)
    for other in (table(("column 1", "column 2")), table(classes=())):
        fit(model, optim.SGD(model.parameters(), 0.1), data.DataLoader(table(), 10), data.DataLoader(other, 10),
            epochs=1, **QUIET)
