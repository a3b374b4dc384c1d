"""What fit is told: losses, metrics and callbacks; plain steps and compiled ones do the same."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, data, nn, ops, optim
from minidl.core import rng
from minidl.training import RunningMetrics, SaveBest, Step, Views, evaluate, fit, top_k_accuracy, train_step

both = pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
QUIET: dict[str, Any] = {"progress": False, "say": None}


def loader(count: int, targets: Any = None, **options: Any) -> data.DataLoader:
    """Batches of 8 images (1,3,3), with other targets than their classes if these are given."""
    random = np.random.default_rng(count)
    images = random.integers(0, 256, (count, 1, 3, 3), np.uint8)
    made = data.DataLoader(data.Dataset("mine", "train", images, random.integers(0, 4, count)), 8, **options)
    if targets is not None:
        made.stored = made.stored._replace(labels=targets)
    return made


def net(outputs: int = 4) -> nn.Module:
    minidl.manual_seed(2)
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 6), nn.Tanh(), nn.Linear(6, outputs))


def numbers(history: list[Any]) -> list[Any]:
    return [{name: value for name, value in metrics.items() if name not in ("seconds", "images_per_second")}
            for metrics in history]


def weights(model: nn.Module) -> list[bytes]:
    return [array.tobytes() for array in model.state_dict().values()]


def trained(model: nn.Module, optimizer: Any = None, **options: Any) -> list[Any]:
    """What fit gives, of one epoch if not told, and without a word."""
    given = {"train": loader(20), "test": loader(9), "epochs": 1, **QUIET, **options}
    return fit(model, optimizer or optim.SGD(model.parameters(), 0.1), **given)


# ---------------------------------------------------------------- batches
@both
@pytest.mark.parametrize(("source", "found"), [
    (np.zeros((200, 5, 3), np.float32), r"of type \w+"),
    ({"x": np.zeros((4, 3), np.float32), "y": np.zeros(4)}, "of type dict"),
    ((np.zeros((4, 3), np.float32),) * 4, "4 things")], ids=["array", "dict", "four"])
def test_batches_that_are_no_pairs_are_refused(source: Any, found: str, compiled: bool) -> None:
    """A batch of two items of one array could be unpacked, and trained on."""
    batches, model = data.DataLoader(source, 2), nn.Linear(3, 3)
    with pytest.raises(TypeError, match=rf"^training: a batch is {found} but must be \(inputs, targets\), or these "):
        fit(model, optim.SGD(model.parameters(), 0.1), batches, batches, epochs=1, loss=ops.mse_loss,
            compiled=compiled, **QUIET)
    with pytest.raises(TypeError, match=rf"^training: a batch is {found} but must be"):
        evaluate(model, batches)


WAYS: dict[str, Any] = {"arrays": np.asarray, "Tensors": Tensor, "lists": lambda array: array.tolist()}


@pytest.mark.parametrize("labels", WAYS)
@pytest.mark.parametrize("images", WAYS)
def test_batches_are_of_tensors_or_arrays(images: str, labels: str) -> None:
    """Those of train_step, of evaluate, of a loader with batches of its own, and those that are drawn as a picture."""
    pairs = [(WAYS[images](x.astype(np.float32)), WAYS[labels](y)) for x, y in loader(20, shuffle=False)]
    plain = [(x, y) for x, y in loader(20, shuffle=False)]

    class Own(data.DataLoader):
        def __iter__(self) -> Iterator[Any]:
            return iter(self.given)

    def results(batches: list[Any]) -> Any:
        model = net()
        sgd = optim.SGD(model.parameters(), 0.1)
        own = Own(loader(20).dataset, 8)
        own.given = batches
        steps = [train_step(model, sgd, *batch) for batch in batches]
        found = evaluate(model, batches, metrics={"top": top_k_accuracy(2)})
        history = fit(model, sgd, own, own, epochs=1, **QUIET)
        return steps, found, numbers(history), weights(model)
    assert results(pairs) == results(plain)


# ---------------------------------------------------------------- losses and metrics
@both
def test_the_loss_is_what_is_trained_and_reported(compiled: bool) -> None:
    loss = functools.partial(ops.cross_entropy, label_smoothing=0.2)
    model, hand = net(), net()
    history = trained(model, test=loader(9, shuffle=False), epochs=2, loss=loss, compiled=compiled)
    sgd, total = optim.SGD(hand.parameters(), 0.1), 0.0
    for images, labels in [*(batches := loader(20)), *batches]:
        sgd.zero_grad()
        value = loss(hand(Tensor(images)), labels)
        value.backward()
        sgd.step()
        total += value.item() * len(labels)
    assert weights(model) == weights(hand)
    assert (history[0]["train_loss"] + history[1]["train_loss"]) * 20 == pytest.approx(total)
    assert (history[1]["test_loss"], history[1]["test_accuracy"]) == evaluate(hand, loader(9, shuffle=False), loss=loss)


def regression(compiled: bool) -> tuple[list[Any], list[bytes], nn.Module]:
    """A net of two outputs with targets that are numbers, and two metrics."""
    random = np.random.default_rng(0)
    train, test = loader(20, random.random((20, 2), np.float32)), loader(9, random.random((9, 2), np.float32))
    model = net(2)

    def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
        difference = outputs - targets
        return ops.sqrt(difference * difference).mean()
    history = fit(model, optim.SGD(model.parameters(), 0.1, momentum=0.5), train, test, epochs=3, loss=ops.mse_loss,
                  metrics={"absolute": absolute, "largest": lambda outputs, _: outputs.max()}, compiled=compiled,
                  **QUIET)
    return numbers(history), weights(model), model


def test_targets_may_be_numbers_and_metrics_are_means_over_images() -> None:
    history, _, model = regression(False)
    assert list(history[0]) == ["epoch", "step", "lr", "train_loss", "train_absolute", "train_largest", "test_loss",
                                "test_absolute", "test_largest"]
    random = np.random.default_rng(0)
    random.random((20, 2), np.float32)
    targets = random.random((9, 2), np.float32)
    batches = loader(9, targets)
    batches.set_epoch(2)                   # the order of a test set is its epoch's, too
    (x, y), (x1, y1) = batches
    model.eval()
    outputs = [model(Tensor(each)).numpy().astype(float) for each in (x, x1)]
    absolute = np.abs(np.concatenate(outputs) - np.concatenate([y, y1])).mean()
    assert history[-1]["test_absolute"] == pytest.approx(absolute, rel=1e-5)
    assert history[-1]["test_largest"] == pytest.approx((outputs[0].max() * 8 + outputs[1].max()) / 9, rel=1e-5)
    assert history[-1]["train_loss"] < history[0]["train_loss"]
    loss, share = evaluate(model, loader(9, targets, shuffle=False), loss=ops.mse_loss)
    assert loss == pytest.approx(history[-1]["test_loss"], rel=1e-6)
    assert math.isnan(share)


def test_a_regression_is_the_same_compiled() -> None:
    assert regression(True)[:2] == regression(False)[:2]


class Batches:
    """Batches of one's own: no DataLoader."""

    device, images_per_epoch = "cpu", 12

    def __len__(self) -> int:
        return 3

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for i in range(3):
            x = np.random.default_rng((self.epoch, i)).random((4, 9), np.float32)
            yield x, x.sum(axis=1, keepdims=True)


def test_loaders_of_ones_own_go_on_too(tmp_path: Path) -> None:
    def run(epochs: int, stop: int = 0, **options: Any) -> tuple[list[Any], list[bytes]]:
        minidl.manual_seed(0)
        model = nn.Linear(9, 1)
        history = fit(model, optim.SGD(model.parameters(), 0.05), Batches(), Batches(), epochs=epochs,  # type: ignore[arg-type]
                      loss=ops.mse_loss, callbacks=lambda metrics: metrics["epoch"] == stop, **QUIET, **options)
        return numbers(history), weights(model)
    expected = run(4)
    run(2, checkpoints=tmp_path)
    assert run(4, checkpoints=tmp_path, resume=True) == expected


class Twice(data.DataLoader):
    """Two views of each image; it says how many batches these are if it is told."""

    says: int | None = None

    def __len__(self) -> int:
        return self.says or super().__len__()

    def __iter__(self) -> Iterator[Any]:
        for images, labels in super().__iter__():
            yield from ((images, labels), (-images, labels))


@pytest.mark.parametrize(("says", "accumulate"), [(None, 1), (None, 2), (None, 3), (5, 1), (5, 3), (6, 1), (6, 4)])
def test_a_loader_that_gives_more_batches_than_it_says(says: int | None, accumulate: int) -> None:
    """They were left out."""
    batches, model, steps = Twice(loader(20).dataset, 8), net(), -(-6 // accumulate)
    batches.says = says
    said = f"fit: train is a Twice whose len\\(\\) is {says or 3} but it gives more batches; define __len__, "
    with contextlib.nullcontext() if says == 6 else pytest.raises(ValueError, match="^" + said):
        found = trained(model, train=batches, epochs=2, accumulate=accumulate)
    assert says != 6 or [metrics["step"] for metrics in found] == [steps, 2 * steps]


@both
def test_a_loader_that_has_fewer_batches_by_its_len(compiled: bool) -> None:
    """Compiled steps left the others out."""
    class Short(data.DataLoader):
        def __len__(self) -> int:
            return 2

    with pytest.raises(ValueError, match=r"^fit: train is a Short whose len\(\) is 2 but it gives more batches; "):
        trained(net(), train=Short(loader(20).dataset, 8), compiled=compiled)


@both
def test_the_means_of_a_part_that_the_user_set(compiled: bool) -> None:
    """Those of the images that it has; they were divided by the images of all parts."""
    half, model = loader(20, part=(1, 2)), net()
    found = trained(model, optim.SGD(model.parameters(), 1e-30), train=half, compiled=compiled)
    half.set_epoch(0)
    pairs = list(half)
    loss, accuracy = evaluate(net(), [(np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs]))])
    assert (found[0]["train_loss"], found[0]["train_accuracy"]) == (pytest.approx(loss), accuracy)


@both
@pytest.mark.parametrize("batch_size", [4, 10, 7])
def test_a_batch_size_that_a_callback_sets(batch_size: int, compiled: bool) -> None:
    """Half of the images were left out; compiled steps had the old size. Plain steps bear other sizes, if as many."""
    train = loader(20)

    def change(metrics: Any) -> None:
        train.batch_size = batch_size
    allowed = batch_size == 7 and not compiled
    said = "^(fit: train has [25] batches but had 3 before; |DeviceBatches: .* of other sizes )"
    with contextlib.nullcontext() if allowed else pytest.raises(ValueError, match=said):
        trained(net(), train=train, epochs=2, callbacks=change, compiled=compiled)


@pytest.mark.filterwarnings("ignore:compile. .* was recorded for the 10th time:RuntimeWarning")
@pytest.mark.parametrize("what", ["loss", "metric"])
def test_compiled_steps_see_what_a_function_reads(what: str) -> None:
    """A loss or metric that a callback changes: neither the first nor the last of them is replayed for the others."""
    def run(compiled: bool) -> tuple[list[Any], list[bytes]]:
        model, scale = net(), [1.0]
        scaled: dict[str, Any] = {
            "loss": {"loss": lambda o, t: ops.cross_entropy(o, t) * scale[0]},
            "metric": {"metrics": {"scale": lambda o, t: o.mean() * scale[0]}}}[what]

        def change(metrics: Any) -> None:
            scale[0] *= 0.5
        history = trained(model, test=loader(9, shuffle=False), epochs=4, callbacks=change, compiled=compiled, **scaled)
        return numbers(history), weights(model)
    assert run(True) == run(False)


@both
@pytest.mark.parametrize(("loss", "given"), [
    (lambda o, t: 1.0, "float"),
    (lambda o, t: o * o, r"Tensor of shape \(8, \d+\)")])
def test_a_loss_that_is_not_one_number_is_named(loss: Any, given: str, compiled: bool) -> None:
    model = net()
    with pytest.raises(TypeError, match=rf"^training: the loss is a {given} but must be a Tensor of one number, a batch"
                                        r"'s mean, or of one for each image; compute it with minidl's ops, and \.mean"):
        trained(model, loss=loss, compiled=compiled)


@both
@pytest.mark.parametrize(("metric", "given"), [
    (functools.partial(ops.cross_entropy, reduction="none"), r"a Tensor of shape \(8,\)"),
    (lambda o, t: np.ones(3), r"an array of shape \(3,\)"), (lambda o, t: None, "None"), (lambda o, t: [1.0], "a list"),
    (lambda o, t: "1", "a str")], ids=["tensor", "array", "none", "list", "text"])
def test_a_metric_that_is_not_one_number_is_named(metric: Any, given: str, compiled: bool) -> None:
    model, metrics = net(), {"right": lambda o, t: 1, "mine": metric}
    said = f"^training: metric 'mine' is {given} but must be one number, the batch's mean; reduce it, as by .mean"
    with pytest.raises(TypeError, match=said):
        trained(model, metrics=metrics, compiled=compiled)
    with pytest.raises(TypeError, match=said):
        evaluate(model, [next(iter(loader(8)))], metrics=metrics)
    with pytest.raises(TypeError, match=said):
        RunningMetrics("cpu", metrics).update(Tensor(1.0), Tensor(np.zeros((8, 3), "f4")), Tensor([0] * 8))


@both
def test_a_loss_by_image_and_one_with_an_axis_are_means(compiled: bool) -> None:
    """Also of a last batch of one image."""
    def run(loss: Any) -> Any:
        minidl.manual_seed(1)
        model = net()
        fit(model, optim.SGD(model.parameters(), 0.1), loader(17), loader(9, shuffle=False), epochs=2, loss=loss,
            compiled=compiled, **QUIET)
        return weights(model)
    mean = run(ops.cross_entropy)
    assert run(lambda o, t: ops.cross_entropy(o, t).reshape(1)) == mean
    by_image = run(lambda o, t: ops.cross_entropy(o, t, reduction="none"))
    np.testing.assert_allclose(*(np.concatenate([np.ravel(np.frombuffer(each, np.float32)) for each in found])
                                 for found in (by_image, mean)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_what_cannot_be_compiled_names_the_option_first(training: bool) -> None:
    """Then what it is, and what else to do; and the option is a way out."""
    class Reads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.mean().item() if self.training == training else x

    model = nn.Sequential(Reads(), net())
    with pytest.raises(minidl.CompileError, match=r"^fit: pass compiled=False \(--no-compile\), or change this: compile"
                                                  r": .* reads a Tensor's .* at .*test_fit\.py:\d+, which a replay"):
        trained(model, compiled=True)
    assert len(trained(model, compiled=False)) > 0


@pytest.mark.parametrize("name", ["loss", "accuracy", "epoch", "step", "lr", "seconds", "images_per_second"])
@pytest.mark.parametrize("where", ["fit", "fit, compiled", "evaluate", "RunningMetrics"])
def test_a_metric_cannot_take_a_name_that_is_taken(where: str, name: str) -> None:
    model, metrics = net(), {"mine": lambda o, t: 1.0, name: lambda o, t: 5.0}
    before = weights(model)
    calls: dict[str, Any] = {
        "evaluate": lambda: evaluate(model, loader(9), metrics=metrics),
        "RunningMetrics": lambda: RunningMetrics("cpu", metrics),
        "fit": lambda: trained(model, metrics=metrics, compiled=False),
        "fit, compiled": lambda: trained(model, metrics=metrics, compiled=True)}
    with pytest.raises(ValueError, match=f"^training: a metric has the name '{name}', which a number of each epoch has "
                                         f"already; choose another, as 'own_{name}'$"):
        calls[where]()
    assert weights(model) == before


def test_a_metric_may_have_any_other_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of options of the bar's method."""
    monkeypatch.setattr("tqdm.std.tqdm.display", lambda *_, **__: None)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    model, names = net(), ["refresh", "ordered_dict", "self", "test_loss", "own loss"]
    history = fit(model, optim.SGD(model.parameters(), 0.1), loader(20), loader(9), epochs=1, say=None,
                  metrics={name: lambda o, t: Tensor(5.0) for name in names})
    assert [history[0][f"test_{name}"] for name in names] == [5.0] * 5


# ---------------------------------------------------------------- an optimizer of this net
class Centres(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Tensor([1.0], requires_grad=True)

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return ops.cross_entropy(outputs * self.scale, labels)


def replaced(model: Any) -> Any:
    """An optimizer of a net whose last layer is another since."""
    model[1].requires_grad_(False)
    sgd = optim.SGD(model.parameters(), 0.1)
    setattr(model, "3", nn.Linear(6, 4))
    return sgd


OPTIMIZERS: dict[str, tuple[Any, bool]] = {
    "another net's": (lambda model: optim.SGD(net().parameters(), 0.1), False),
    "Adam of another net's": (lambda model: optim.Adam(net().parameters()), False),
    "two of another net's": (lambda model: optim.Together(
        optim.SGD(list(net().parameters())[:1], 0.1), optim.AdamW(list(net().parameters())[1:])), False),
    "groups of another net's": (lambda model: optim.SGD([{"params": [p]} for p in net().parameters()], 0.1), False),
    "a net's that was copied": (lambda model: optim.SGD(copy.deepcopy(model).parameters(), 0.1), False),
    "a layer's that was replaced": (replaced, False),
    "the net's": (lambda model: optim.SGD(model.parameters(), 0.1), True),
    "some of the net's": (lambda model: optim.SGD([*list(net().parameters())[:1], model[1].bias], 0.1), True),
    "a second group of the net's": (lambda model: optim.Together(
        optim.SGD(net().parameters(), 0.1), optim.AdamW([model[3].weight])), True)}


@both
@pytest.mark.filterwarnings("ignore:fit. . parameters require a gradient but are in no group:UserWarning")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_of_another_net_is_refused(name: str, compiled: bool) -> None:
    model: Any = net()
    make, taken = OPTIMIZERS[name]
    optimizer = make(model)
    said = r"^fit: the optimizer holds \d+ parameters but none of the 4 Tensors of the Sequential; make it of model\.p"
    with contextlib.nullcontext() if taken else pytest.raises(ValueError, match=said):
        trained(model, optimizer, compiled=compiled)


def test_an_optimizer_may_hold_frozen_layers_and_a_losss_parameters() -> None:
    model, loss = net(), Centres()
    sgd = optim.SGD([*model.parameters(), *loss.parameters()], 0.1)
    model.requires_grad_(False)
    trained(Views(model), optim.SGD(loss.parameters(), 0.1), loss=loss)
    trained(Views(model), sgd, loss=loss, callbacks=lambda _: model.requires_grad_(True) and None)
    assert loss.scale.item() != 1.0


@both
def test_what_no_step_changes_is_said_once(compiled: bool) -> None:
    """An optimizer that was made while the body was frozen did not train it, and nothing said so."""
    said = (r"^fit: 2 parameters require a gradient but are in no group of the optimizer, so no step changes them: "
            r"1\.weight, 1\.bias; make the optimizer before layers are frozen, or ")

    def train(model: Any, optimizer: optim.Optimizer, *callbacks: Any) -> list[Any]:
        return trained(model, optimizer, epochs=3, compiled=compiled, callbacks=callbacks)
    for late in (False, True):
        model: Any = net()
        model[1].requires_grad_(False)
        sgd = optim.SGD(model.parameters(), 0.1)
        train(model, sgd)                  # frozen: nothing is said
        model[1].requires_grad_(not late)
        with pytest.warns(UserWarning, match=said) as warned:
            train(model, sgd, lambda metrics, layer=model[1], late=late: late and layer.requires_grad_(True) and None)
        assert [each.filename for each in warned] == [__file__]
    train(model, optim.SGD(model.parameters(), 0.1))


# ---------------------------------------------------------------- nobody to talk to
def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("names", [("stderr",), ("stdout",), ("stdout", "stderr")])
@pytest.mark.parametrize("gone", [lambda: None, closed], ids=["none", "closed"])
def test_a_training_goes_on_without_streams(gone: Any, names: tuple[str, ...], compiled: bool,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(sys, name, gone())
        history = fit(model, optim.SGD(model.parameters(), 0.1), loader(20), loader(9), epochs=2, compiled=compiled)
    assert len(history) == 2


def test_running_metrics_come_back() -> None:
    metrics = RunningMetrics("cpu", {"mean": lambda outputs, _: outputs.mean(), "one": lambda *_: 1})
    x, labels = Tensor([[1.0, 2.0], [3.0, 0.0]]), Tensor([1, 1])
    assert metrics.update(ops.cross_entropy(x, labels), x, labels)
    totals = metrics.totals()
    assert totals[1:] == [1.0, 3.0, 2.0, *[0.0] * 4]
    assert metrics.means(2) == {"loss": totals[0] / 2, "accuracy": 0.5, "mean": 1.5, "one": 1.0}
    metrics.reset()
    assert metrics.totals() == [0.0] * 8
    metrics.reset(totals)
    assert metrics.totals() == totals


# ---------------------------------------------------------------- what counts
def ignored(share: float, by: int = -100, dtype: str = "int64", count: int = 40) -> np.ndarray:
    """Labels of which about so many are ignored, those of the second batch all."""
    random = np.random.default_rng(3)
    labels = np.where(random.random(count) < share, by, random.integers(0, 4, count)).astype(dtype)
    labels[8:16] = by
    return labels


def factors(*numbers: float) -> Tensor:
    return Tensor(np.array(numbers, np.float32))


def own(outputs: Tensor, labels: Tensor) -> Tensor:
    """A mean that says itself what counts: labels but for 3."""
    counts = ops.where(labels != 3, 1.0, 0.0)
    losses = ops.cross_entropy(outputs, labels, reduction="none")
    loss = (losses * counts).sum() / ops.maximum(counts.sum(), 1.0)
    loss.weights = counts
    return loss


def nll(outputs: Tensor, labels: Tensor, **options: Any) -> Tensor:
    return ops.nll_loss(ops.log_softmax(outputs, axis=1), labels, **options)


FACTORS = factors(0.25, 3, 1e-6, 1)
COUNTED: dict[str, tuple[Any, np.ndarray]] = {      # a loss, and labels
    "half ignored": (functools.partial(ops.cross_entropy, ignore_index=-100), ignored(0.5)),
    "a class ignored": (functools.partial(ops.cross_entropy, ignore_index=0), ignored(0.7, 0)),
    "small integers": (functools.partial(ops.cross_entropy, ignore_index=255), ignored(0.3, 255, "uint8")),
    "layer": (nn.CrossEntropyLoss(ignore_index=2), ignored(0.1, 2, "int32")),
    "weights": (functools.partial(ops.cross_entropy, weight=factors(0.25, 3, 1e-6, 1)), ignored(0.0, 1)),
    "a weight of 0": (functools.partial(ops.cross_entropy, weight=factors(1, 2, 0, 4)), ignored(0.2, 2)),
    "ignored, weights, smoothing": (functools.partial(
        ops.cross_entropy, weight=factors(1, 2, 3, 4), ignore_index=-1, label_smoothing=0.1), ignored(0.6, -1)),
    "log probabilities": (functools.partial(nll, ignore_index=7), ignored(0.5, 7)),
    "weighted log probabilities": (functools.partial(nll, weight=factors(1, 0.5, 2, 1), ignore_index=7),
                                   ignored(0.5, 7)),
    "own": (own, ignored(0.5, 3)),
    "an expression": (lambda o, t: 1.0 - ops.cross_entropy(o, t, FACTORS) * -0.5, ignored(0.0, 1)),
    "beside a constant": (lambda o, t: (ops.cross_entropy(o, t, ignore_index=0) + FACTORS.mean()).mean() / 3.0,
                          ignored(0.7, 0)),
    "two of the same labels": (lambda o, t: ops.cross_entropy(o, t, ignore_index=0) + 0.4 * ops.cross_entropy(
        o * 0.5, t, ignore_index=0), ignored(0.7, 0)),
    "two of the same labels and weights": (lambda o, t: ops.cross_entropy(o, t, FACTORS, ignore_index=2) * 0.5 + nll(
        o, t, weight=FACTORS, ignore_index=2), ignored(0.4, 2)),
    "one in the last batch": (functools.partial(ops.cross_entropy, ignore_index=9), ignored(0.4, 9, count=33))}


@both
@pytest.mark.parametrize("case", COUNTED)
def test_means_are_over_what_counts(case: str, compiled: bool) -> None:
    """One batch of all images, whose mean the loss itself forms, says what the means of batches are to be."""
    (loss, labels), model = COUNTED[case], net()
    batches = loader(len(labels), labels, shuffle=False)
    history = fit(model, optim.SGD(model.parameters(), 0.0), batches, batches, epochs=1, loss=loss,
                  metrics={"again": loss, "images": lambda o, t: o.mean()}, compiled=compiled, **QUIET)
    outputs = model(Tensor(np.concatenate([x for x, _ in batches])))
    whole = loss(outputs, Tensor(labels))
    right = (outputs.argmax(axis=1).numpy() == labels)[whole.weights.numpy() > 0].mean()
    for name in ("train", "test"):
        np.testing.assert_allclose([history[0][f"{name}_{what}"] for what in ("loss", "again", "accuracy", "images")],
                                   [whole.item(), whole.item(), right, outputs.mean().item()], rtol=1e-5)
    assert evaluate(model, batches, loss=loss)[0] == history[0]["test_loss"]


def test_what_is_computed_of_a_weighted_mean_counts_as_it() -> None:
    """One number; of means with different weights there is none that both have, and it counts as a batch's images."""
    x, labels = Tensor(np.eye(3)), np.array([0, 1, 2])
    one, other = (ops.cross_entropy(x, labels, ignore_index=i) for i in (0, 1))
    for value in (one * 2.0, 0.5 - one, one / 3.0, one.exp(), one.detach(), one + x.mean(), one.reshape(()).sum(),
                  one * one):
        assert value.weights is one.weights
    scaled = one * 1.0
    scaled *= 2.0
    assert scaled.weights is one.weights
    for value in (one.reshape(1), one[None], ops.stack([one, 0 * one]).sum(), ops.concatenate([one.reshape(1)]).mean(),
                  one.to(dtype="float32"), (one * x).mean()):          # of other shapes on the way
        assert value.weights is one.weights
    for value in (one + other, ops.stack([one, other]).sum(), x.mean(), ops.cross_entropy(x, labels) * 2.0,
                  ops.cross_entropy(x, labels, ignore_index=0, reduction="none").mean()):
        assert value.weights is None
    assert (one + ops.cross_entropy(x * 2.0, labels, ignore_index=0)).weights is not None
    pixels = labels.reshape(1, 3)
    of_pixels, again = (ops.cross_entropy(x.reshape(1, 3, 3), pixels, ignore_index=0) for _ in range(2))
    assert (of_pixels + again).weights.tolist() == [0, 1, 1]
    other_labels = ops.cross_entropy(x, labels.copy(), ignore_index=0)
    assert (one + other_labels).weights is None
    for value in ((one + other) + one, one + (one + other), 2.0 * (one + other) - other):
        assert value.weights is None


@both
def test_a_loss_of_sequences_counts_their_labels(compiled: bool) -> None:
    """(n,t) labels of which some are padding: the mean is over the others, of which images have different numbers."""
    labels = ignored(0.6, 0, count=120).reshape(40, 3)
    model, batches = net(12), loader(40, labels, shuffle=False)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return ops.cross_entropy(outputs.reshape(-1, 4), targets.reshape(-1), ignore_index=0)
    history = fit(model, optim.SGD(model.parameters(), 0.0), batches, batches, epochs=1, loss=loss, compiled=compiled,
                  **QUIET)
    whole = loss(model(Tensor(np.concatenate([x for x, _ in batches]))), Tensor(labels)).item()
    np.testing.assert_allclose([history[0]["train_loss"], history[0]["test_loss"]], whole, rtol=1e-5)


@pytest.mark.parametrize("optimizer", [
    lambda params: optim.SGD(params, 0.1, momentum=0.9), lambda params: optim.Adam(params, 0.01),
    lambda params: optim.AdamW(params, 0.01, weight_decay=0.1)], ids=["sgd", "adam", "adamw"])
@pytest.mark.parametrize("case", ["half ignored", "a weight of 0", "ignored, weights, smoothing", "own"])
def test_a_batch_that_does_not_count_is_a_step_of_gradients_0(case: str, optimizer: Any) -> None:
    """As in PyTorch: momentum and decay act."""
    loss, labels = COUNTED[case]
    nets, histories = [net(), net(), net()], []
    for model, compiled in zip(nets, (False, True), strict=False):
        histories.append(fit(model, optimizer(model.parameters()), loader(40, labels, shuffle=False),
                             loader(40, labels), epochs=2, loss=loss, compiled=compiled, **QUIET))
    hand = optimizer(nets[2].parameters())
    for images, targets in [*(batches := loader(40, labels, shuffle=False)), *batches]:
        hand.zero_grad()
        value = loss(nets[2](Tensor(images)), Tensor(targets))
        value.backward()
        if not value.weights.numpy().any():
            assert all(not p.grad.numpy().any() for p in nets[2].parameters() if p.grad is not None)
        hand.step()
    assert weights(nets[0]) == weights(nets[1]) == weights(nets[2])
    assert numbers(histories[0]) == numbers(histories[1])


def test_a_weight_of_0_and_smoothing_leave_no_nan_in_gradients() -> None:
    x = Tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    loss = ops.cross_entropy(x, [0], factors(0, 1, 1), label_smoothing=0.5)
    loss.backward()
    assert math.isnan(loss.item())
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0, 0.0, 0.0]]


@both
def test_labels_that_are_all_ignored_are_an_error(compiled: bool) -> None:
    """In a whole epoch, or a test set; a rank or a batch may have none."""
    loss, none, some = functools.partial(ops.cross_entropy, ignore_index=0), np.zeros(9, int), ignored(0.5, 0)
    for train, test, where in ((none, some, "fit: epoch 1"), (some, none, "evaluate")):
        model = net()
        with pytest.raises(ValueError, match=f"^{where}: none of 9 images counts: the weights of their labels add up "
                                             "to 0; look at the loss's ignore_index and weight"):
            fit(model, optim.SGD(model.parameters(), 0.1), loader(len(train), train), loader(len(test), test),
                epochs=1, loss=loss, compiled=compiled, **QUIET)


def test_the_means_of_a_step_in_which_nothing_counts_are_nan() -> None:
    seen: list[float] = []

    class Watch:
        def on_step_end(self, step: Step) -> None:
            seen.append(step.means()["loss"])
    model, labels = net(), np.roll(ignored(0.3), -8)
    fit(model, optim.SGD(model.parameters(), 0.1), loader(40, labels, shuffle=False), loader(40, labels), epochs=1,
        loss=functools.partial(ops.cross_entropy, ignore_index=-100), callbacks=Watch(), **QUIET)
    assert [math.isnan(mean) for mean in seen] == [True, False, False, False, False]


@both
def test_what_counts_goes_on_with_a_checkpoint(compiled: bool, tmp_path: Path) -> None:
    loss, labels = COUNTED["ignored, weights, smoothing"]

    class Stop:
        def on_step_end(self, step: Step) -> bool:
            return step.step == 8

    def run(**options: Any) -> tuple[list[bytes], list[Any]]:
        model = net()
        history = fit(model, optim.Adam(model.parameters(), 0.01), loader(40, labels, seed=4), loader(40, labels),
                      epochs=3, loss=loss, compiled=compiled, **QUIET, **options)
        return weights(model), numbers(history)
    run(checkpoints=tmp_path, save_every=7, callbacks=Stop())
    assert run(resume=tmp_path / "checkpoint-previous.h5") == run()


# ---------------------------------------------------------------- what the making of batches draws
class Mixed(data.DataLoader):
    """Mixup in an __iter__ of its own."""

    def __iter__(self) -> Iterator[Any]:
        return (data.mixup(images, labels, 4, 1.0) for images, labels in super().__iter__())


class Listed(data.DataLoader):
    """All batches at once, and noise beside that of the items."""

    def __iter__(self) -> Iterator[Any]:
        noise = np.float32(rng.generator().random())
        return iter([(images + noise, labels) for images, labels in super().__iter__()])


def soft(outputs: Tensor, targets: Tensor) -> Tensor:
    return -(targets * ops.log_softmax(outputs, axis=1)).sum(axis=1).mean()


def jittered(image: np.ndarray, label: int) -> Any:
    return (image * rng.generator().random()).astype(np.uint8), label


MAKING: dict[str, Any] = {
    "mixup": (Mixed, soft, {}), "mixup without a thread": (Mixed, soft, {"prefetch": 0}),
    "a list": (Listed, ops.cross_entropy, {}),
    "transform": (data.DataLoader, ops.cross_entropy, {"transform": jittered}),
    "transform without a thread": (data.DataLoader, ops.cross_entropy, {"transform": jittered, "prefetch": 0}),
    "transform and mixup": (Mixed, soft, {"transform": jittered})}


@pytest.mark.parametrize("case", MAKING)
def test_batches_that_draw_are_the_same_in_a_training_that_goes_on(case: str, tmp_path: Path) -> None:
    """Beside dropout, which draws, too; stopped in the middle of an epoch. The test set's batches draw as well."""
    kind, loss, how = MAKING[case]

    def run(epochs: int = 3, callbacks: Any = (), seed: int = 6, **options: Any) -> Any:
        minidl.manual_seed(2)
        model = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(9, 4))
        batches = [kind(loader(count).dataset, 8, seed=seed, **how) for count in (40, 17)]
        history = fit(model, optim.SGD(model.parameters(), 0.1), *batches, epochs=epochs, loss=loss, compiled=False,
                      callbacks=callbacks, **QUIET, **options)
        return weights(model), numbers(history), rng.get_state()

    class Stop:
        def on_step_end(self, step: Step) -> bool:
            return step.step == 8
    whole = run()
    assert run() == whole != run(seed=7)
    run(callbacks=Stop(), checkpoints=tmp_path, save_every=7)
    rng.set_state((9, 9))
    assert run(resume=tmp_path / "checkpoint-previous.h5") == whole


# ---------------------------------------------------------------- modes
def frozen(root: bool = True, norm: bool = False, drop: bool = True) -> nn.Module:
    """A net of a batch norm and a dropout, each in training or evaluation."""
    minidl.manual_seed(2)
    model = nn.Sequential(nn.Flatten(), norm=nn.BatchNorm1d(9), body=nn.Sequential(drop=nn.Dropout(0.5)),
                          output=nn.Linear(9, 4))
    model.train(root)
    model.norm.training, model.body.drop.training = norm, drop
    return model


def modes(model: nn.Module) -> dict[str, bool]:
    return {path: module.training for path, module in model.named_modules()}


def failing(_: object) -> None:
    raise OSError("full")


MODES: dict[str, Any] = {
    "evaluate": lambda model: evaluate(model, loader(9)),
    "evaluate, which fails": lambda model: evaluate(model, loader(9), loss=lambda o, t: o.mean() / 0.0),
    "fit": lambda model: trained(model, compiled=False),
    "fit, compiled": lambda model: trained(model, compiled=True),
    "fit, whose loss fails": lambda model: trained(model, loss=lambda o, t: o.mean() / 0.0),
    "fit, whose callback fails": lambda model: trained(model, callbacks=failing),
    "views": lambda model: Views(model),
    "fit of views": lambda model: trained(Views(model, flip=True)),
    "summary": lambda model: nn.summary(model, (1, 3, 3))}


@pytest.mark.filterwarnings("ignore:.*(divide by zero|invalid value):RuntimeWarning")
@pytest.mark.parametrize("found", [(True, False, True), (True, False, False), (False, False, True),
                                   (False, True, False), (False, False, False)])
@pytest.mark.parametrize("name", MODES)
def test_each_layer_is_left_in_the_mode_in_which_it_was(name: str, found: tuple[bool, bool, bool]) -> None:
    model = frozen(*found)
    before = modes(model)
    with contextlib.suppress(FloatingPointError, OSError):
        MODES[name](model)
    assert modes(model) == before


@both
@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "views"])
def test_a_batch_norm_in_evaluation_stays_so_while_others_train(compiled: bool, wrapped: bool) -> None:
    """Its running values are neither those of these batches, nor replaced by them."""
    model, seen = frozen(), []
    model.norm.running_mean.data[...], model.norm.running_var.data[...] = 0.25, 4.0
    trained(Views(model) if wrapped else model, epochs=2, compiled=compiled,
            callbacks=lambda _: seen.append(modes(model)))
    assert model.norm.running_mean.tolist() == [0.25] * 9
    assert model.norm.running_var.tolist() == [4.0] * 9
    assert seen == [modes(frozen())] * 2


@both
def test_a_callback_may_put_a_layer_into_evaluation(compiled: bool) -> None:
    model, means = frozen(norm=True), []

    def freeze(metrics: Any) -> None:
        means.append(model.norm.running_mean.tolist())
        model.norm.eval()
    history = trained(model, epochs=2, compiled=compiled, callbacks=freeze)
    assert len(history) == 2
    assert means[0] == means[1] != [0.0] * 9


@both
def test_a_run_that_goes_on_keeps_its_layers_modes(compiled: bool, tmp_path: Path) -> None:
    def go_on(epochs: int, folder: Path) -> list[bytes]:
        model = frozen()
        trained(model, epochs=epochs, compiled=compiled, checkpoints=folder, resume=True)
        assert modes(model) == modes(frozen())
        return weights(model)
    go_on(1, tmp_path / "a")
    assert go_on(3, tmp_path / "a") == go_on(3, tmp_path / "b")


# ---------------------------------------------------------------- callbacks
class Noted:
    """Notes what it is told; sets the rate after some steps, and stops after one."""

    def __init__(self, sgd: optim.SGD, rates: dict[int, float] | None = None, stop: int = 0):
        self.sgd, self.rates, self.stop, self.seen = sgd, rates or {}, stop, list[Any]()

    def on_step_end(self, step: Step) -> bool | None:
        self.seen.append((step.epoch, step.step, step.batch, step.means()))
        if step.step in self.rates:
            self.sgd.lr = self.rates[step.step]
        return True if step.step == self.stop else None

    def on_epoch_end(self, metrics: Any) -> None:
        self.seen.append(metrics["epoch"])


@both
def test_callbacks_are_told_of_steps_and_epochs_in_order(compiled: bool) -> None:
    model = net()
    sgd = optim.SGD(model.parameters(), 0.1)
    first, second = Noted(sgd), []
    history = trained(model, sgd, epochs=2, callbacks=[first, lambda m: second.append(m) or 1], compiled=compiled)
    assert [seen if isinstance(seen, int) else seen[:3] for seen in first.seen] == [
        (1, 1, 1), (1, 2, 2), (1, 3, 3), 1, (2, 4, 1), (2, 5, 2), (2, 6, 3), 2]
    assert second == history
    assert first.seen[6][3] == {"loss": history[1]["train_loss"], "accuracy": history[1]["train_accuracy"]}


@both
def test_a_rate_that_is_set_after_a_step_holds_from_the_next(compiled: bool) -> None:
    model, hand = net(), net()
    sgd = optim.SGD(model.parameters(), 0.2)
    history = trained(model, sgd, epochs=2, schedule=optim.linear(6), callbacks=Noted(sgd, {2: 0.5, 3: 0.25, 5: 0.1}),
                      compiled=compiled)
    own = optim.SGD(hand.parameters(), 0.2)
    batches = loader(20)
    for i, (images, labels) in enumerate([*batches, *batches]):
        own.lr = [0.2, 0.2, 0.5, 0.25, 0.25, 0.1][i] * (1 - i / 6)
        train_step(hand, own, Tensor(images), labels)
    assert weights(model) == weights(hand)
    assert [metrics["lr"] for metrics in history] == [0.5 * (1 - 2 / 6), pytest.approx(0.1 / 6)]


BAD: dict[str, Any] = {
    "negative": (lambda i: -1, "step 0", "-1"), "nan": (lambda i: math.nan, "step 0", "nan"),
    "inf later": (lambda i: math.inf if i == 4 else 1.0, "step 4", "inf"),
    "none in the second epoch": (lambda i: None if i == 3 else 1, "step 3", "None"),
    "text": (lambda i: "0.1", "step 0", "'0.1'"), "nothing": (lambda i: [], "step 0", r"\[\]"),
    "below -0": (lambda i: np.float32(-1e-9), "step 0", r"np.float32\(-1e-09\)|-1e-09"),
    "after a warm-up": (optim.warmup(2, lambda i: 1 - i), "step 4", "-1"),
    "of the second group": ([optim.constant(), lambda i: complex(i)], "step 0", "0j")}


@both
@pytest.mark.parametrize("case", BAD)
def test_a_schedule_that_gives_no_rate_is_refused(case: str, compiled: bool) -> None:
    """By the step's number, of all epochs, before any step of that epoch; also behind a callback that set the rate."""
    (schedule, step, value), model = BAD[case], net()
    sgd = optim.SGD([{"params": model[1].parameters()}, {"params": model[3].parameters()}], 0.0)

    class Set:
        def on_step_end(self, step: Step) -> None:
            sgd.groups[0]["lr"] = 1e-30 * step.step
    with pytest.raises(ValueError, match=rf"^schedule, {step}: factor of the rate is ({value}) but must be a finite "
                                         "number of at least 0"):
        fit(model, sgd, loader(24), loader(9), epochs=2, schedule=schedule, compiled=compiled, callbacks=Set(), **QUIET)


@pytest.mark.parametrize("factor", [0, 1, np.float32(0.5), np.int64(2), True])
def test_a_schedule_may_give_any_number(factor: Any) -> None:
    model = net()
    history = trained(model, train=loader(9), schedule=lambda i: factor)
    assert history[0]["lr"] == 0.1 * factor


@both
def test_each_group_has_a_schedule(compiled: bool) -> None:
    model, hand = net(), net()
    first, second = ([{"params": [p for p in each.parameters() if p.ndim == axes]} for axes in (2, 1)]
                     for each in (model, hand))
    trained(model, optim.SGD(first, 0.2), epochs=2, compiled=compiled, schedule=[optim.linear(6), optim.linear(3)])
    own, batches = optim.SGD(second, 0.2), loader(20)
    for i, (images, labels) in enumerate([*batches, *batches]):
        own.groups[0]["lr"], own.groups[1]["lr"] = 0.2 * (1 - i / 6), 0.2 * (1 - min(i / 3, 1))
        train_step(hand, own, Tensor(images), labels)
    assert weights(model) == weights(hand)


# ---------------------------------------------------------------- views
class Told(nn.Module):
    """Logits that tell the views apart: a weighted sum of each image's pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Tensor(np.random.default_rng(0).standard_normal((2, 4, 5)), requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum(axis=(2, 3)) ** 2


@both
@pytest.mark.parametrize(("flip", "shift"), [(False, 0), (True, 0), (True, 1), (False, 2), (True, 3)])
def test_views_are_averaged_in_evaluation_alone(flip: bool, shift: int, compiled: bool) -> None:
    """By NumPy's own reflection."""
    net, x = Told(), np.random.default_rng(1).standard_normal((3, 2, 4, 5))
    views = Views(net, flip, shift)
    run: Any = minidl.compile(views) if compiled else views
    padded = np.pad(x, ((0, 0), (0, 0), (shift, shift), (shift, shift)), "reflect")
    seen = [(0.5, x), (0.25, padded[:, :, :4, :5]), (0.25, padded[:, :, 2 * shift:, 2 * shift:])] if shift else [(1, x)]
    each = [(share / 2, view[..., ::step]) for share, view in seen for step in (1, -1)] if flip else seen
    with minidl.no_grad():
        for _ in range(3):
            np.testing.assert_allclose(run(Tensor(x)).numpy(), net(Tensor(x)).numpy())
        views.eval()
        for _ in range(3):
            np.testing.assert_allclose(run(Tensor(x)).numpy(), sum(
                share * net(Tensor(view.copy())).numpy() for share, view in each))


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda: Views(4), TypeError, r"Views: net is a int but must be an nn\.Module$"),  # type: ignore[arg-type]
    (lambda: Views(Told(), shift=-1), ValueError, "Views: shift is -1 but must be an int of at least 0$"),
    (lambda: Views(Told(), shift=4).eval()(Tensor(np.zeros((3, 2, 4, 5)))), ValueError,
     "Views: images are 4x5 but must be larger than shift 4$")])
def test_views_refuse(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        make()


@both
def test_a_callback_that_returns_true_ends_the_training(compiled: bool) -> None:
    """After a step: its epoch is evaluated and reported as far as it went. After an epoch: there."""
    model = net()
    sgd = optim.SGD(model.parameters(), 0.1)
    history = trained(model, sgd, epochs=9, callbacks=Noted(sgd, stop=5), compiled=compiled)
    assert [(metrics["epoch"], metrics["step"]) for metrics in history] == [(1, 3), (2, 5)]
    assert history[1]["lr"] == 0.1
    assert history[1]["test_loss"] == evaluate(model, loader(9))[0]
    assert len(trained(model, sgd, epochs=9, callbacks=lambda metrics: metrics["epoch"] == 3, compiled=compiled)) == 3


@pytest.mark.parametrize(("returned", "epochs"), [(np.True_, 1), (np.False_, 3), (1, 3), ("yes", 3)])
def test_a_true_of_numpy_ends_the_training_too(returned: Any, epochs: int) -> None:
    """A comparison of NumPy's numbers gives one. What else a function happens to return does not."""
    model = net()
    assert len(trained(model, epochs=3, callbacks=lambda metrics: returned)) == epochs


def test_a_run_that_a_callback_ended_is_over_for_a_checkpoint_too(tmp_path: Path) -> None:
    lengths = []
    for _ in range(2):
        model = net()
        lengths.append(len(trained(model, epochs=5, resume=True, callbacks=lambda metrics: metrics["epoch"] == 2,
                                   checkpoints=tmp_path)))
    assert lengths == [2, 2]


def test_the_best_weights_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as an epoch is better than all before; a loss is better the lower it is."""
    model, path = net(), tmp_path / "best.h5"
    for metric, values, kept in (("test_accuracy", [0.5, 0.4, 0.5, 0.7], [0, 0, 0, 3]),
                                 ("test_loss", [0.5, 0.4, 0.6, 0.4], [0, 1, 1, 1])):
        best = SaveBest(model, path, metric)
        for epoch, value in enumerate(values):
            for parameter in model.parameters():
                parameter.data[...] = epoch
            best.on_epoch_end({metric: value})
            other = net()
            minidl.load(other, path)
            assert {float(p.numpy().min()) for p in other.parameters()} == {kept[epoch]}
        again = SaveBest(model, path, metric)
        again.load_state_dict(best.state_dict())
        assert again.best == best.best == values[kept[-1]]
    with pytest.raises(ValueError, match=r"^SaveBest: metric is 'accuracy' but an epoch has epoch, test_loss$"):
        SaveBest(model, path, "accuracy").on_epoch_end({"epoch": 1, "test_loss": 1.0})


JUDGES: dict[str, Any] = {"SaveBest": lambda metric, **mode: SaveBest(net(), "best.h5", metric, **mode),
                          "Plateau": lambda metric, **mode: optim.Plateau(optim.SGD(net().parameters(), 0.1),
                                                                          metric=metric, **mode)}


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize(("metric", "mode", "found"), [
    ("test_loss", None, "min"), ("train_accuracy", None, "max"), ("test_top5_accuracy", None, "max"),
    ("test_own_loss", None, "min"), ("test_error", "min", "min"), ("f1", "max", "max"), ("test_loss", "max", "max"),
    ("accuracy", "min", "min"), ("test_error", None, None), ("seconds", None, None), ("test_lossless", None, None),
    ("test_inaccuracy", None, None), ("", None, None), ("test_loss", "lowest", None), ("test_error", True, None)])
def test_what_is_better_is_known_or_asked_for(judge: str, metric: str, mode: Any, found: str | None) -> None:
    if found is None:
        what = f"mode is {mode!r}" if mode else f"the name of metric '{metric}' does not say what is better"
        with pytest.raises(ValueError, match=f"^{judge}: {what}; pass mode='min' if lower is better, else mode='max'$"):
            JUDGES[judge](metric, mode=mode)
        return
    assert JUDGES[judge](metric, mode=mode).best == (math.inf if found == "min" else -math.inf)


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize(("metric", "mode", "said"), [
    ("test_loss", None, "metric is 'test_loss' here but 'test_accuracy' in the state; build it with metric='test_acc"),
    ("test_accuracy", "min", "mode is 'min' here but 'max' in the state; build it with mode='max', or begin anew")])
def test_the_state_of_another_metric_is_refused(judge: str, metric: str, mode: str | None, said: str) -> None:
    """An accuracy of 0.9 was the best loss, and no epoch was better."""
    first, other = JUDGES[judge]("test_accuracy"), JUDGES[judge](metric, mode=mode)
    first.best = 0.9
    before = other.state_dict()
    with pytest.raises(ValueError, match=f"^{judge}: {said}"):
        other.load_state_dict(first.state_dict())
    assert other.state_dict() == before
    older = {name: value for name, value in first.state_dict().items() if name not in ("metric", "mode")}
    other.load_state_dict(older)                                         # of version 0.2
    assert other.best == 0.9


@both
def test_an_error_of_ones_own_falls(compiled: bool, tmp_path: Path) -> None:
    """What SaveBest and Plateau do with it goes on with a checkpoint."""
    def run(epochs: int, **options: Any) -> Any:
        model = net()
        sgd = optim.SGD(model.parameters(), 0.5)
        best = SaveBest(model, tmp_path / "best.h5", "test_error", mode="min")
        plateau = optim.Plateau(sgd, 0.5, 0, metric="test_error", mode="min")
        history = fit(model, sgd, loader(40), loader(9), epochs=epochs, compiled=compiled, callbacks=[best, plateau],
                      metrics={"error": lambda o, t: (o.argmax(axis=1) != t).mean()}, **QUIET, **options)
        return best.best, plateau.best, sgd.lr, [line["test_error"] for line in history]
    run(3, checkpoints=tmp_path)
    saved, plateau, rate, errors = run(6, checkpoints=tmp_path, resume=True)
    better = [error < min(errors[:i], default=math.inf) for i, error in enumerate(errors)]
    assert saved == plateau == min(errors)
    assert rate == 0.5 * 0.5 ** better.count(False)
    assert not all(better)


@both
def test_callbacks_are_told_that_a_training_begins(compiled: bool, tmp_path: Path) -> None:
    """Before its first step, with the parameters of the checkpoint; a training that is refused does not begin."""
    seen: list[Any] = []
    model = net()
    sgd = optim.SGD(model.parameters(), 0.1)

    class Watch:
        def on_train_begin(self) -> None:
            seen.append(weights(model))
            sgd.lr = 0.2

        def on_epoch_end(self, metrics: Any) -> None:
            seen.append(metrics["lr"])

    class Begins:
        def on_train_begin(self) -> bool:
            seen.append("begins")
            return True                    # stops nothing

    def run(epochs: int, **options: Any) -> None:
        trained(model, sgd, epochs=epochs, compiled=compiled, callbacks=[Watch(), Begins()], checkpoints=tmp_path,
                **options)
    first = weights(model)
    run(1)
    after = weights(model)
    assert seen == [first, "begins", 0.2]
    with pytest.raises(ValueError, match=f"^fit: '{tmp_path}' holds a checkpoint already"):
        run(2)
    for p in model.parameters():
        p.data[...] = 0.0
    run(2, resume=True)
    assert seen[3:] == [after, "begins", 0.2]


@pytest.mark.parametrize("wrong", [3, "best.h5", object()])
def test_what_is_no_callback_is_named(wrong: Any) -> None:
    model = net()
    with pytest.raises(TypeError, match=f"^fit: a callback is a {type(wrong).__name__} but must be a function of an "
                                        "epoch's metrics, or have a method on_train_begin, on_step_end or "
                                        "on_epoch_end$"):
        trained(model, callbacks=wrong)


def test_a_class_is_no_callback() -> None:
    with pytest.raises(TypeError, match=r"^fit: a callback is the class SaveBest but must be an object; make one, "
                                        r"SaveBest\(\.\.\.\)$"):
        trained(net(), callbacks=[SaveBest])  # type: ignore[list-item]


def test_a_number_of_steps_between_checkpoints_that_cannot_be(tmp_path: Path) -> None:
    model = net()
    with pytest.raises(ValueError, match=r"^checkpoints: every is -1 but must be an int of at least 0"):
        fit(model, optim.SGD(model.parameters(), 0.1), loader(20), loader(9), epochs=1, checkpoints=tmp_path,
            save_every=-1)


# ---------------------------------------------------------------- what is said
def test_a_line_per_epoch_is_printed_unless_told(capsys: pytest.CaptureFixture[str]) -> None:
    def run(**options: Any) -> str:
        model = net()
        fit(model, optim.SGD(model.parameters(), 0.1), loader(20), loader(9), epochs=2, **options)
        return capsys.readouterr().out
    first, second = run(metrics={"top": lambda outputs, targets: outputs.max()}).splitlines()
    assert first.startswith("epoch  1/2: loss ")
    for part in (", accuracy ", " %, top ", ", test loss ", ", test accuracy ", ", test top ", ", lr 0.1, "):
        assert part in second
    assert run(say=None) == ""
    said: list[str] = []
    assert run(say=said.append) == ""
    assert len(said) == 2


def test_a_run_that_goes_on_says_from_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(epochs: int) -> str:
        model = net()
        fit(model, optim.SGD(model.parameters(), 0.1), loader(20), loader(9), epochs=epochs, checkpoints=tmp_path,
            resume=True)
        return capsys.readouterr().out
    assert run(1).startswith("epoch  1/1: ")
    assert run(3).startswith("goes on in epoch 2/3, after step 3\nepoch  2/3: ")
    assert run(3) == ""


# ---------------------------------------------------------------- the k likeliest
def test_top_k_accuracy_counts_labels_among_the_largest() -> None:
    rng, compared = np.random.default_rng(0), 0
    for classes in (2, 5, 30):
        logits, labels = rng.standard_normal((20, classes)), rng.integers(0, classes, 20)
        for k in {1, classes // 2, classes - 1}:
            wanted = np.mean([label in np.argsort(-row)[:k] for row, label in zip(logits, labels, strict=True)])
            assert top_k_accuracy(k)(Tensor(logits), Tensor(labels)).item() == pytest.approx(wanted, abs=1e-6)
            compared += 1
    assert compared == 7


def test_top_k_accuracy_takes_no_tie_and_no_nan_for_right() -> None:
    """A net that says the same of all classes knows nothing."""
    for logits in ([1.0, 1.0, 1.0, 1.0], [np.nan] * 4, [0.0, np.nan, np.nan, 1.0], [np.nan, 0.0, 0.0, 0.0]):
        assert top_k_accuracy(2)(Tensor([logits]), Tensor([0])).item() == 0, logits
    assert top_k_accuracy(2)(Tensor([[1.0, np.nan, 0.0, 0.0]]), Tensor([0])).item() == 1


def test_top_k_accuracy_takes_no_label_beyond_the_classes_for_right() -> None:
    """As accuracy: -1 is not the last class."""
    logits, labels = Tensor([[0.0, 1.0, 2.0]] * 3), Tensor([-1, 3, 2])
    assert top_k_accuracy(2)(logits, labels).item() == pytest.approx(1 / 3)


@both
def test_top_k_accuracy_leaves_ignored_labels_out(compiled: bool) -> None:
    """As the accuracy does beside a loss that ignores them: they were counted as wrong."""
    for label in (-100, 2):
        model, labels = net(), ignored(0.5, label)
        batches = loader(len(labels), labels, shuffle=False)
        history = fit(model, optim.SGD(model.parameters(), 0.0), batches, batches, epochs=1, compiled=compiled,
                      loss=functools.partial(ops.cross_entropy, ignore_index=label),
                      metrics={"top1": top_k_accuracy(1, ignore_index=label)}, **QUIET)
        assert history[0]["test_top1"] == pytest.approx(history[0]["test_accuracy"])
        assert 0 < history[0]["test_top1"] < 1
        outputs = model(Tensor(np.concatenate([x for x, _ in batches])))
        right = (outputs.argmax(axis=1).numpy() == labels)[labels != label].mean()
        assert history[0]["train_top1"] == pytest.approx(right)


@pytest.mark.parametrize("k", [0, 3, 5, 1.0, None])
def test_top_k_accuracy_of_no_such_k_is_refused(k: Any) -> None:
    with pytest.raises(ValueError, match=rf"^top_k_accuracy: k is {k} but must be an int from 1 to 2, less than the "):
        top_k_accuracy(k)(Tensor(np.ones((2, 3))), Tensor([0, 1]))


@pytest.mark.slow
def test_top_k_accuracy_is_measured_by_fit_compiled_and_not() -> None:
    found = []
    for compiled in (False, True):
        minidl.manual_seed(1)
        model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))
        digits = data.load("synthetic-digits", "test", count=230)
        train, test = (data.DataLoader(part, 50) for part in (digits.first(100), digits[100:230]))
        history = fit(model, optim.SGD(model.parameters(), 0.05), train, test, epochs=2, compiled=compiled,
                      metrics={"top1_accuracy": top_k_accuracy(1), "top3_accuracy": top_k_accuracy(3)}, **QUIET)
        found.append(numbers(history))
        assert history[1]["test_top1_accuracy"] == pytest.approx(history[1]["test_accuracy"], abs=1e-6)
        assert history[1]["test_accuracy"] < history[1]["test_top3_accuracy"] < 1
    assert found[0] == found[1]
