"""The report's parts: charts, what a run folder writes for them, and what is shown of nets of each kind."""

from __future__ import annotations

import json
import math
import re
import struct
import zlib
from base64 import b64decode
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, data, nn, ops, optim, plot, training
from minidl.tools.plot import page, run, svg
from minidl.training import RunFolder, fit, read_statistics, record

NAN = math.nan


def lines(*values: float | None, **options: Any) -> str:
    return svg.chart([svg.series("loss", "train", range(1, 1 + len(values)), values)], "step", "loss", **options)


def path_of(drawn: str, look: str = "") -> str:
    found = re.search(rf'class="line train {look}" d="([^"]*)"', drawn)
    assert found
    return found[1]


class Balanced(HTMLParser):
    """Fails where tags do not close."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


# ---------------------------------------------------------------- charts
def test_a_line_goes_through_its_values() -> None:
    points = [tuple(map(float, point.split())) for point in re.split("[ML]", path_of(lines(1, 3, 2)))[1:]]
    assert [x for x, _ in points] == [svg.LEFT, (svg.LEFT + svg.RIGHT) / 2, svg.RIGHT]
    (_, first), (_, second), (_, third) = points
    assert second < third < first                              # up is less
    assert third == pytest.approx((first + second) / 2, abs=0.1)
    logs = [float(point.split()[1]) for point in re.split("[ML]", path_of(lines(0.01, 0.1, 1, log=True)))[1:]]
    assert logs[0] - logs[1] == pytest.approx(logs[1] - logs[2], abs=0.2)


def test_a_value_that_is_not_a_number_breaks_the_line_and_is_counted() -> None:
    drawn = lines(1, NAN, 2, None, 0, 3, log=True)
    assert path_of(drawn).count("M") == 3
    assert "loss (2 not finite, 1 not above 0)" in drawn
    assert lines(NAN, None) == ""
    assert "nan" not in lines(1e308, -1e308, 1e-320)


def test_a_long_line_keeps_its_peaks() -> None:
    values = np.sin(np.arange(10_000.0))
    values[4321] = 50
    drawn = svg.chart([svg.series("loss", "train", np.arange(10_000), values, "raw")], "step", "loss")
    places = [float(point.split()[1]) for point in re.split("[ML]", path_of(drawn, "raw"))[1:]]
    assert len(places) <= svg.MAX_DRAWN
    assert min(places) < svg.TOP + 10 < sorted(places)[1]
    assert len(drawn) < 30_000


def test_values_are_told_at_the_pointer() -> None:
    drawn = svg.chart([svg.series("training", "train", [1, 2, 3], [5, 0.25, 7]),
                       svg.series("<test>", "test", [2], [0.5])], "epoch (all data)", "loss")
    column = drawn.split('<g class="at">')[2]
    assert re.findall("<tspan[^>]*>([^<]*)", column) == ["epoch 2", "training: 0.25", "&lt;test&gt;: 0.5"]
    assert drawn.count('class="at"') == 3
    Balanced(drawn)


def test_the_pointer_finds_a_place_everywhere() -> None:
    drawn = lines(*range(1, 1001))
    edges = [tuple(map(float, each)) for each in re.findall(r'class="hit" d="M([\d.]+) [\d.]+H([\d.]+)V', drawn)]
    assert len(edges) == svg.MAX_COLUMNS
    assert edges[0][0] == svg.LEFT
    assert edges[-1][1] == svg.RIGHT
    assert all(a[1] == b[0] for a, b in pairwise(edges))


@pytest.mark.parametrize(("low", "high", "log", "whole", "ticks"), [
    (0, 10, False, False, [0, 2, 4, 6, 8, 10]), (1, 2, False, True, [1, 2]), (1e-6, 1, True, False, None),
    (0.2, 3, True, False, [0.2, 0.5, 1, 2]), (5, 5, False, False, None), (0, 0, False, False, None),
    (-3e21, 5e21, False, False, None), (0.3, 0.4, True, False, None)])
def test_ticks_are_round_and_few(low: float, high: float, log: bool, whole: bool, ticks: list[float] | None) -> None:
    axis = svg.Axis(low, high, 0, 100, log, whole=whole)
    found = axis.ticks()
    assert 2 <= len(found) <= 9
    assert all(-1e-6 <= axis.place(tick) <= 100 + 1e-6 for tick in found)
    if ticks is not None:
        assert found == pytest.approx(ticks)


def test_every_axis_has_a_name_and_a_best_epoch_a_mark() -> None:
    for drawn in (lines(1, 2, mark=(2, "best: epoch 2")), svg.scatter(np.arange(3.0), np.arange(3.0), "x", "y"),
                  svg.bars([1, 2], 0, 1, "x", "y"), svg.ridges([("0", [1, 2], 0, 1), ("9", [3], 2, 2)], "x", "y")):
        assert drawn.count('class="name"') == 2
        Balanced(drawn)
    assert "best: epoch 2" in lines(1, 2, mark=(2, "best: epoch 2"))


@pytest.mark.parametrize("channels", [3, 4])
def test_a_png_holds_its_pixels(channels: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (3, 5, channels), np.uint8)
    file = b64decode(svg.png(image).partition(",")[2])
    assert file.startswith(b"\x89PNG\r\n\x1a\n")
    found, at = {}, 8
    while at < len(file):
        size, = struct.unpack_from(">I", file, at)
        kind, content = file[at + 4:at + 8], file[at + 8:at + 8 + size]
        assert struct.unpack_from(">I", file, at + 8 + size) == (zlib.crc32(kind + content),)
        found[kind], at = content, at + 12 + size
    assert struct.unpack(">IIBB", found[b"IHDR"][:10]) == (5, 3, 8, {3: 2, 4: 6}[channels])
    rows = np.frombuffer(zlib.decompress(found[b"IDAT"]), np.uint8).reshape(3, -1)
    assert rows[:, 1:].reshape(image.shape).tolist() == image.tolist()


def test_smoothing_is_a_mean_of_neighbours() -> None:
    values = [*[1.0] * 300, None, *[3.0] * 300]
    found = page.smoothed(values)
    assert found[0] == 1
    assert found[-1] == 3
    assert math.isnan(found[300])
    assert 1 < found[299] < found[301] < 3


# ---------------------------------------------------------------- what is recorded
def trained(place: Path, epochs: int = 2, lr: float = 0.1, steps: int = 4, watched: bool = True, **options: Any
            ) -> tuple[nn.Module, data.DataLoader]:
    """A run of a small regression in a folder."""
    minidl.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(steps * 8, 3)).astype(np.float32)
    loader = data.DataLoader((x, x[:, :1] * 2), 8, shuffle=False)
    net = nn.Sequential(fc1=nn.Linear(3, 5), act1=nn.ReLU(), fc2=nn.Linear(5, 1))
    with RunFolder(place, net if watched else None, loader, loader) as folder:
        fit(net, optim.SGD(net.parameters(), lr), loader, loader, epochs=epochs, loss=ops.mse_loss, say=None,
            callbacks=folder, **options)
    return net, loader


@pytest.fixture
def each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "PAUSE", 0.0)
    monkeypatch.setattr(record, "ALLOWED", math.inf)           # or a busy machine would leave some out


@pytest.mark.usefixtures("each_step")
@pytest.mark.parametrize("compiled", [False, True])
def test_losses_and_rates_are_those_of_the_steps(tmp_path: Path, compiled: bool) -> None:
    net, _ = trained(tmp_path / "a", compiled=compiled, schedule=lambda step: 1 / (step + 1))
    first, *epochs = read_statistics(tmp_path / "a")
    assert first["epoch"] == 0
    assert {"command", "started"} <= first["origin"].keys()
    metrics = training.read_metrics(tmp_path / "a")
    for line, epoch in zip(epochs, metrics, strict=True):
        assert line["epoch"] == epoch["epoch"]
        assert line["step"] == [4 * line["epoch"] - i for i in (3, 2, 1, 0)]
        assert np.mean(line["loss"]) == pytest.approx(epoch["train_loss"], rel=1e-3)
        assert line["lr"] == pytest.approx([0.1 / step for step in line["step"]], rel=1e-4)
        assert line["gradients"].keys() == line["updates"].keys() == {"fc1.weight", "fc2.weight"}
    counts = epochs[-1]["weights"]["fc1.weight"]
    assert sum(counts["counts"]) == 15
    assert counts["low"] == pytest.approx(float(net.fc1.weight.numpy().min()), rel=1e-4)


@pytest.mark.usefixtures("each_step")
def test_an_update_of_plain_descent_is_rate_times_gradient(tmp_path: Path) -> None:
    minidl.manual_seed(0)
    before = np.linalg.norm(nn.Sequential(fc1=nn.Linear(3, 5), act1=nn.ReLU(), fc2=nn.Linear(5, 1)).fc1.weight.numpy())
    trained(tmp_path / "a", epochs=1)
    line = read_statistics(tmp_path / "a")[1]
    share = line["updates"]["fc1.weight"]["share"]
    assert share * before == pytest.approx(0.1 * line["gradients"]["fc1.weight"], rel=1e-3)


def test_a_training_that_is_recorded_has_the_same_bits(tmp_path: Path) -> None:
    with_, without = (trained(tmp_path / str(watched), watched=watched)[0] for watched in (True, False))
    for name, p in with_.named_parameters():
        assert p.numpy().tobytes() == dict(without.named_parameters())[name].numpy().tobytes()


@pytest.mark.usefixtures("each_step")
def test_a_second_fit_goes_on_counting(tmp_path: Path) -> None:
    """It removed the lines of the first one; a training that resumes has the numbers of its checkpoint."""
    x = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
    loader, net = data.DataLoader((x, x[:, :1]), 8), nn.Linear(3, 1)

    def train(folder: RunFolder, epochs: int, **options: Any) -> None:
        fit(net, optim.SGD(net.parameters(), 0.1), loader, loader, epochs=epochs, loss=ops.mse_loss, say=None,
            callbacks=folder, **options)

    with RunFolder(tmp_path / "a", net, loader, loader) as folder:
        train(folder, 2)
        train(folder, 1)
    assert [(line["epoch"], line["step"]) for line in training.read_metrics(tmp_path / "a")] == [
        (1, 4), (2, 8), (3, 12)]
    found = read_statistics(tmp_path / "a")
    assert [(line["epoch"], line.get("step")) for line in found] == [
        (0, None), (1, [1, 2, 3, 4]), (2, [5, 6, 7, 8]), (3, [9, 10, 11, 12])]
    assert all(line["updates"] for line in found[1:])
    with RunFolder(tmp_path / "b", net, loader, loader) as folder:
        train(folder, 1, checkpoints=tmp_path / "kept")
        train(folder, 3, checkpoints=tmp_path / "kept", resume=True)
    with RunFolder(tmp_path / "b", net, loader, loader, resume=True) as folder:
        train(folder, 3, checkpoints=tmp_path / "more", resume=tmp_path / "kept" / "checkpoint-previous.h5")
    assert [(line["epoch"], line["step"]) for line in training.read_metrics(tmp_path / "b")] == [
        (1, 4), (2, 8), (3, 12)]


def test_the_losses_of_an_epochs_last_steps_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs that are shorter than the pause between two looks had no point."""
    monkeypatch.setattr(record, "PAUSE", math.inf)
    trained(tmp_path / "a", schedule=lambda step: 1 / (step + 1))
    for line, epoch in zip(read_statistics(tmp_path / "a")[1:], training.read_metrics(tmp_path / "a"), strict=True):
        assert line["step"] == [epoch["step"]]
        assert line["loss"] == pytest.approx([epoch["train_loss"]], rel=1e-4)
        assert line["lr"] == pytest.approx([epoch["lr"]], rel=1e-4)


@pytest.mark.usefixtures("each_step")
def test_a_run_that_diverges_leaves_its_losses(tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError, match="the loss is"), np.errstate(all="ignore"):
        trained(tmp_path / "a", lr=1e6, steps=40)
    line = read_statistics(tmp_path / "a")[-1]
    assert line["ended"].startswith("training: diverged in step")
    assert line["step"] == list(range(1, 1 + len(line["step"])))
    assert line["loss"][-1] > line["loss"][0]
    html = plot.report(tmp_path / "a").read_text(encoding="utf-8")
    assert "The run ended in epoch 1: training: diverged in step" in html
    assert "<h2>Loss</h2>" in html


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_error_is_told_whatever_else_fails(ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that has failed knows no loss, and other ranks, which have ended, are not asked for it."""
    asked = []

    def means() -> dict[str, float]:
        asked.append(True)
        raise RuntimeError("the device is lost")
    monkeypatch.setattr(record, "current", lambda: SimpleNamespace(size=ranks))
    folder = RunFolder(tmp_path / "a", nn.Linear(3, 1))
    folder.on_train_begin()
    monkeypatch.setattr(folder.record, "looked", math.inf)
    folder.on_step_end(training.Step(1, 1, 1, means, 8, lambda: 0.1))
    with pytest.raises(ZeroDivisionError, match="the first error"), folder:
        raise ZeroDivisionError("the first error")
    assert asked == [True] * (ranks == 1)
    assert read_statistics(tmp_path / "a")[-1]["ended"] == "the first error"


@pytest.mark.usefixtures("each_step")
def test_a_run_that_goes_on_drops_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    trained(tmp_path / "a", epochs=3)
    again = RunFolder(tmp_path / "a", nn.Linear(3, 1), resume=True)
    again.on_train_begin()                                     # does not write epoch 0 a second time
    assert [line["epoch"] for line in read_statistics(tmp_path / "a")] == [0, 1, 2, 3]
    step = training.Step(2, 5, 3, lambda: {"loss": 0.5}, 24, lambda: 0.1)
    again.on_step_end(step)
    again.on_epoch_end({"epoch": 2})
    assert [line["epoch"] for line in read_statistics(tmp_path / "a")] == [0, 1, 2]
    assert read_statistics(tmp_path / "a")[-1]["loss"] == []   # the mean of steps before is not that of this one


def test_large_weights_are_described_by_some() -> None:
    assert len(record._some(np.zeros((300, 700)))) <= record.MAX_VALUES
    values = np.ones((300, 700))
    assert np.linalg.norm(record._some(values)) * record._scale(values.size) == pytest.approx(np.linalg.norm(values))
    assert record._histogram(np.array([NAN, 1.0, 2.0]))["not_finite"] == 1
    assert sum(record._histogram(np.array([0, 5e-324]))["counts"]) == 2
    for value in (1e38, -1e8, 0.0, 1.0, -1e-30):       # all the same, or nearly: in the middle
        found = record._histogram(np.array([value, value, np.nextafter(np.float32(value), np.float32(9))], np.float32))
        assert (sum(found["counts"]), len(found["counts"])) == (3, record.BINS)
        assert found["low"] <= value <= found["high"]
    assert sum(record._histogram(np.array([1.7e308, -1.7e308]))["counts"]) == 2
    assert json.dumps(record._histogram(np.array([NAN])), allow_nan=False)


def test_many_losses_are_averaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "PAUSE", 0.0)
    monkeypatch.setattr(record, "MAX_POINTS", 3)
    trained(tmp_path / "a", epochs=1, steps=8)
    line = read_statistics(tmp_path / "a")[1]
    assert line["step"] == [3, 6, 8]
    assert len(line["loss"]) == len(line["lr"]) == 3


# ---------------------------------------------------------------- nets of each kind
class Same(nn.Module):
    """Gives its inputs back."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 1.0


def images(n: int = 6, c: int = 1) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, c, 4, 4)).astype(np.float32)


def test_a_regression_has_its_residuals(tmp_path: Path) -> None:
    net, loader = trained(tmp_path / "a")
    html = plot.report(tmp_path / "a", net, loader).read_text(encoding="utf-8")
    assert "R²" in html
    for title in ("Predictions", "Residuals", "Loss", "Layers", "Gradients", "Weights over the epochs",
                  "Run and machine"):
        assert f"<h2>{title}</h2>" in html
    for title in ("Confusion matrix", "Error", "Where a step"):        # no box without content
        assert f"<h2>{title}</h2>" not in html
    Balanced(html.partition("</head>")[2].removesuffix("</html>\n"))
    targets = np.array([[1.0], [2.0], [4.0]], np.float32)
    found = run.answer(Same(), [(targets, targets + 1)], [])["numbers"]
    assert (found.predictions - found.targets).tolist() == [[-1.0]] * 3
    assert "Root mean square error 1," in page._scatter(found)


def test_of_many_numbers_the_first_are_drawn_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_NUMBERS", 3)
    notes, three = list[str](), np.ones((3, 1), np.float32)
    assert len(run.answer(Same(), [(three, three + 1)] * 3, notes)["numbers"].targets) == 3
    assert notes == ["6 test items are left out: the others are enough."]


@pytest.mark.parametrize(("targets", "part"), [([1.5, NAN, 2.0], "numbers"), ([0.0, NAN, 1.0], "labels"),
                                               ([NAN] * 3, "")])
def test_items_that_are_not_finite_are_left_out_with_a_note(targets: list[float], part: str) -> None:
    """Their number was the only sign."""
    notes: list[str] = []
    found = run.answer(Same(), [(np.ones((3, 1), np.float32), np.array(targets, np.float32)[:, None])], notes)
    left_out = int(np.isnan(targets).sum())
    assert notes == [f"{left_out} test items are left out: their outputs or targets are not finite."]
    assert {"numbers", "labels"} & found.keys() == {part} - {""}
    assert not part or len(found[part].targets) == 3 - left_out


def test_an_autoencoder_has_its_pairs_the_worst_first() -> None:
    x, noise = images(), images() * 0
    noise[3] = 9
    found = run.answer(Same(), [(x, np.arange(6))], [])["pairs"]
    assert found.columns == ("input", "output")
    assert [len(pictures) for _, pictures in found.rows] == [2] * 6
    denoised = run.answer(Same(), [(x, x + noise)], [])["pairs"]
    assert denoised.columns == ("input", "target", "output")
    assert denoised.rows[0][0] == pytest.approx(81, rel=1e-4)
    assert page._beside(denoised).count("<img") == 18


@pytest.mark.parametrize(("shape", "small"), [((3, 32, 32), 32), ((3, 224, 224), 32), ((1, 1, 7), 1)])
def test_large_images_are_made_smaller(shape: tuple[int, ...], small: int) -> None:
    noise = np.random.default_rng(0).normal(size=(30, *shape)).astype(np.float32)
    found = run.answer(Same(), [(noise, noise * 2)], [])["pairs"]
    drawn = page._beside(found)
    assert len(drawn) < 500_000
    width, height = struct.unpack(">II", b64decode(drawn.partition("base64,")[2][:64])[16:24])
    assert (height, width) == (small, small * shape[2] // shape[1])


def test_masks_are_counted_by_pixels_and_shown() -> None:
    logits = images(2, 3)
    truth = logits.argmax(axis=1)
    truth[0, 0, 0] = (truth[0, 0, 0] + 1) % 3
    truth[1, 0, 0] = 255                                       # is ignored
    found = run.answer(Same(), [(logits, truth)], [])
    assert found["answers"].counts.sum() == 31
    assert np.trace(found["answers"].counts) == 30
    assert found["answers"].items == "pixels"
    assert [error for error, _ in found["pairs"].rows] == pytest.approx([1 / 16, 0])
    assert "30 of 31 test pixels are right" in page._mistakes(found["answers"])


def test_pixels_whose_outputs_are_nan_are_left_out_with_a_note() -> None:
    """They were counted as the first class, mostly the background, and so as right."""
    logits, notes = images(2, 3), list[str]()
    truth = logits.argmax(axis=1)
    logits[0, 1, :2] = NAN
    found = run.answer(Same(), [(logits, truth)], notes)["answers"]
    assert found.counts.sum() == np.trace(found.counts) == 32 - 8
    assert notes == ["8 test pixels are left out: the net's outputs are NaN."]


def test_probabilities_are_not_squashed_a_second_time() -> None:
    """Of a net that ends in a softmax."""
    shares = np.array([[0.25, 0.75], [0.9, 0.1]], np.float32)
    (worst,) = run.answer(Same(), [(shares, np.array([1, 1]))], [])["answers"].worst
    assert (worst.of_label, worst.of_prediction) == pytest.approx((0.1, 0.9))


def test_predictions_are_the_largest_logits() -> None:
    """Both probabilities were rounded to 1, and NaN was the first class."""
    logits, notes = np.array([[-200, 0, 1e-9], [NAN] * 3, [0, 1, 0]]), list[str]()
    found = run.answer(Same(), [(logits, np.array([2, 0, -100]))], notes)["answers"]
    assert found.counts.tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert notes == ["1 test rows are left out: the net's outputs are NaN."]
    assert "answers" not in run.answer(Same(), [(logits[2:], np.array([-100]))], [])


@pytest.mark.parametrize(("outputs", "limit"), [([[2, -1], [-0.5, 3], [1, 0.5]], "logits"),
                                                ([[0.9, 0.1], [0.4, 0.8], [0.7, 0.6]], "probabilities")])
def test_labels_of_0_and_1_are_counted(outputs: list[list[float]], limit: str) -> None:
    """They were drawn as a regression."""
    targets = np.array([[1, 0], [1, 1], [0, 1]], np.float32)
    found = run.answer(Same(), [(np.array(outputs, np.float32), targets)], [])
    assert "numbers" not in found
    rows = [re.findall("<td>([^<]*)", row) for row in page._labels(found["labels"]).split("<tr>")[2:]]
    assert rows == [["0", "2", "50.0", "50.0", "33.3"], ["1", "2", "100.0", "100.0", "100.0"]], limit


class Several(nn.Module):
    """Of numbers and token ids, by position or by name."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.output = nn.Embedding(10, 4), nn.Linear(7, 3)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return self.output(ops.concatenate([self.table(ids), x], 1))


class Heads(nn.Module):
    """Has two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(x), self.b(x)


X, IDS, KINDS = images(6)[:, 0, 0, :3], np.arange(6), np.array([0, 1, 2, 0, 1, 2])
PARTS = {
    "ids": (nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 3)), (IDS, KINDS), "6 test items are"),
    "tuple": (Several(), ((X, IDS), KINDS), "6 test rows are"),
    "dict": (Several(), ({"ids": IDS, "x": X}, KINDS), "6 test items are"),
    "weights": (nn.Linear(3, 3), (X, KINDS, np.array([1, 1, 1, 0, 0, 2], np.float32)), "4 test rows are"),
    "ignored": (nn.Linear(3, 3), (X, np.where(KINDS == 2, -100, KINDS)), "4 test rows are"),
    "targets": (Heads(), (X, (KINDS, X[:, :1])), "The net&#x27;s outputs and targets are none that are drawn")}


@pytest.mark.parametrize("kind", PARTS)
def test_a_report_shows_what_it_can_of_batches_of_any_kind(tmp_path: Path, kind: str) -> None:
    """It raised an error, and wrote nothing."""
    net, batch, told = PARTS[kind]
    RunFolder(tmp_path / "a").append_metrics({"epoch": 1, "train_loss": 1.0})
    html = plot.report(tmp_path / "a", net, [batch]).read_text(encoding="utf-8")
    for title in ("Loss", "Layers"):
        assert f"<h2>{title}</h2>" in html
    assert told in html


def test_a_net_that_fails_leaves_the_curves(tmp_path: Path) -> None:
    RunFolder(tmp_path / "a").append_metrics({"epoch": 1, "train_loss": 1.0})
    html = plot.report(tmp_path / "a", nn.Linear(2, 3), [(X, KINDS)]).read_text(encoding="utf-8")
    assert "<h2>Loss</h2>" in html
    assert "The net&#x27;s answers are left out: ValueError: linear: x" in html


def test_units_that_never_change_are_counted() -> None:
    net = nn.Sequential(fc=nn.Linear(2, 3), act=nn.ReLU(), out=nn.Linear(3, 2))
    net.fc.weight.data[...] = 1
    net.fc.bias.data[...] = np.array([0, -1000, 5])
    found = run.answer(net, [(np.ones((4, 2), np.float32) * i, np.zeros(4, np.int64)) for i in (1, 2)], [])
    assert found["silent"] == {("act", 0): (1, 3)}
    assert "forward" not in vars(net.act)


@pytest.mark.parametrize(("net", "shape", "silent"), [
    (nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Flatten(), nn.Linear(30, 2)), (5, 3), {("1", 0): (4, 6)}),
    (nn.Sequential(nn.Conv1d(3, 6, 2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)), (3, 5), {("1", 0): (4, 6)}),
    (nn.Sequential(nn.Conv2d(3, 6, 2), nn.ReLU(), nn.Flatten(), nn.Linear(96, 2)), (3, 5, 5), {("1", 0): (4, 6)})])
def test_units_are_channels_or_the_last_axis(net: nn.Module, shape: tuple[int, ...], silent: dict[Any, Any]) -> None:
    """Of rows in sequences (n,t,units), the second axis was counted."""
    layer = next(module for _, module in net.named_modules() if hasattr(module, "weight"))
    layer.bias.data[:4] = -1000
    x = np.random.default_rng(0).normal(size=(8, *shape)).astype(np.float32)
    assert run.answer(net, [(x, np.zeros(8, np.int64))], [])["silent"] == silent


class Twice(nn.Module):
    """Calls one activation after each of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, 3, batch_first=True)
        self.fc1, self.act, self.fc2 = nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.fc2(self.act(self.fc1(self.rnn(x)[0][:, -1]))))


def test_each_call_of_an_activation_has_its_units() -> None:
    """Both lines had the sums; an LSTM showed its gates at each step as units."""
    net, x = Twice(), np.ones((4, 5, 3), np.float32) * np.arange(4)[:, None, None].astype(np.float32)
    net.fc2.bias.data[0] = -1000
    found = run.answer(net, [(x, np.zeros(4, np.int64))], [])["silent"]
    assert {call: units for call, (_, units) in found.items()} == {("act", 0): 4, ("act", 1): 2}
    assert found["act", 1][0] >= 1
    of = page.Run(Path("run"), {}, [], [], [], layers=nn.summary(net, (5, 3)), silent={("act", 0): (1, 4),
                                                                                       ("act", 1): (2, 2)})
    assert re.findall(r"\d of \d", page._layers(of)) == ["1 of 4", "2 of 2"]


def test_precision_and_recall_of_each_class() -> None:
    answers = page.Answers(np.array([[6, 2, 0], [1, 3, 0], [0, 0, 0]]), ["a", "b", "c"], (1, 4, 4), [])
    rows = [re.findall("<td>([^<]*)", row) for row in page._classes(answers).split("<tr>")[2:]]
    assert rows == [["a", "8", "85.7", "75.0", "80.0"], ["b", "4", "60.0", "75.0", "66.7"],
                    ["c", "0", "none", "none", "none"], ["all", "12", "", "75.0", ""]]


def test_settings_that_were_not_given_are_folded() -> None:
    shown, _, folded = page._settings({"lr": 0.1, "load": None, "seed": 0, "option": {}, "tta": "none"}).partition(
        "<details>")
    assert "lr" in shown
    assert "seed" in shown
    for name in ("load", "option", "tta"):
        assert name not in shown
        assert name in folded
    assert "3 more, which were not given" in folded


def test_the_best_epoch_is_marked() -> None:
    metrics = [{"epoch": i, "step": 4 * i, "train_loss": 1.0, "test_loss": loss, "test_accuracy": share}
               for i, loss, share in ((1, 0.5, 0.5), (2, 0.9, 0.75), (3, 0.7, 0.7))]
    of = page.Run(Path("run"), {}, metrics, [], [])
    assert page.best(of) == (1, "test_accuracy")
    assert page._mark(of, "step") == (8, "best: epoch 2")
    assert page._epochs(of).count("class=best") == 1
    assert ("best test accuracy, epoch 2", "75.00 %") in list(page._facts(of))
    assert page.best(of._replace(metrics=[{"epoch": 1, "train_loss": 2.0}])) is None


def test_a_live_report_is_read_again(tmp_path: Path) -> None:
    RunFolder(tmp_path / "a").close()
    assert '<meta http-equiv="refresh" content="5">' in plot.report(tmp_path / "a", live=5).read_text(encoding="utf-8")
    assert "refresh" not in plot.report(tmp_path / "a").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", [
    {"epoch": "<b>", "step": ["<b>"], "loss": [1]}, {"epoch": 1, "step": 3, "loss": None},
    {"step": [1, 2], "loss": [1]}, {"origin": {"command": "<script>"}, "ended": "<script>"},
    {"epoch": 1, "weights": {"<script>": {"counts": ["<b>"], "low": 0, "high": 1}}},
    {"weights": {"<script>": {"counts": [1], "low": 0, "high": 1}}},
    {"epoch": 1, "gradients": {"<script>": "<b>"}, "updates": []}])
def test_a_strange_file_of_statistics_is_harmless(tmp_path: Path, line: dict[str, Any]) -> None:
    RunFolder(tmp_path / "a").close()
    (tmp_path / "a" / record.FILE).write_text(json.dumps(line) + "\n")
    html = plot.report(tmp_path / "a").read_text(encoding="utf-8")
    assert "<script" not in html
    assert "<b>" not in html
