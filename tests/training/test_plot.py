"""The pictures of a run: what they show, that nothing is clipped, and that the report is one safe file."""

from __future__ import annotations

import base64
import io
import json
import math
import pickle
import re
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiers import tiered

import minidl
from minidl import Tensor, data, nn, optim, zoo
from minidl.training import RunFolder, fit, machine

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.image import imread
from matplotlib.text import Text

from minidl import plot
from minidl.tools.plot import figures, page, run
from minidl.tools.plot.figures import DARK, LIGHT

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = '<script>alert(1)</script> $name $\\frac{ "quoted" \'too\' &amp; </table>\n\x00 https://example.org'
EPOCH = {"epoch": 1, "step": 8, "lr": 0.1, "train_loss": 2.0, "train_accuracy": 0.25, "test_loss": 1.5,
         "test_accuracy": 0.5, "seconds": 1.5, "images_per_second": 1234.5}


def epochs(count: int, **changed: Any) -> list[dict[str, Any]]:
    return [{**EPOCH, "epoch": i, "train_loss": 2.0 / i, **changed} for i in range(1, count + 1)]


def loader(classes: tuple[str, ...] = tuple("0123456789"), count: int = 64, **settings: Any) -> data.DataLoader:
    digits = data.load("synthetic-digits", "test", count=count)
    named = data.Dataset(digits.name, "test", digits.images, digits.labels, classes)
    return data.DataLoader(named, 32, shuffle=False, padding=2, **settings)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return trained(tmp_path)


def trained(place: Path) -> Path:
    """A run folder as train.py leaves it."""
    folder = RunFolder(place / "run")
    folder.write_config({"model": "lenet5", "data": "synthetic-digits", "epochs": 2, "device": "cpu", "lr": 0.1,
                         "load": None, "machine": machine(), "minidl": minidl.__version__, "data_dir": None})
    model = zoo.build("lenet5")
    train = loader(count=64)
    fit(model, optim.SGD(model.parameters(), 0.1), train, train, epochs=2, callbacks=folder.append_metrics)
    minidl.save(model, folder.weights)
    return folder.path


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], str, Parsed]:
    """The pictures of a run, and its report as a text and parsed."""
    made = plot.pictures(trained(tmp_path_factory.mktemp("drawn")), test=loader())
    html = made[-1].read_text(encoding="utf-8")
    return made, html, Parsed(html)


class Parsed(HTMLParser):
    """The tags, attributes and texts of a page."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        self.text = " ".join(self.texts)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, text: str) -> None:
        self.texts.append(text)


def pixels(png: bytes) -> np.ndarray:
    return imread(io.BytesIO(png))


# ---------------------------------------------------------------- a run's pictures
@pytest.mark.slow
def test_a_run_has_all_four_pictures(drawn: tuple[list[Path], str, Parsed]) -> None:
    made, _, report = drawn
    assert [path.name for path in made] == ["curves.png", "filters.png", "confusion.png", "report.html"]
    for path in made[:3]:
        height, width, _ = imread(path).shape
        assert width == figures.WIDTH * figures.DOTS_PER_INCH
        assert 500 < height < 2000
    for told in ("lenet5 on synthetic-digits", "2 of 2", "not given", "Loss", "Error", "Confusion matrix", "Epochs",
                 "predicted", "test images are right", machine()["processor"], minidl.__version__):
        assert told in report.text
    images = [value for name, value in report.attributes if name in ("src", "href")]
    assert len(images) == 2 + min(run.MAX_MISTAKES, report.tags.count("li"))           # two of figures
    assert len(report.text) + sum(map(len, images)) < 400_000


@pytest.mark.deep
def test_the_report_alone_is_the_same_file(finished: Path) -> None:
    plot.pictures(finished, test=loader())
    before = (finished / "report.html").read_bytes()
    (finished / "curves.png").unlink()
    assert plot.report(finished, test=loader()) == finished / "report.html"
    assert (finished / "report.html").read_bytes() == before
    assert not (finished / "curves.png").exists()


@pytest.mark.slow
def test_the_report_needs_no_network(drawn: tuple[list[Path], str, Parsed]) -> None:
    _, html, report = drawn
    assert not {"script", "link", "iframe", "object", "embed", "base", "a", "form"} & set(report.tags)
    for name, value in report.attributes:
        assert name not in ("action", "style", "background", "data", "srcset")
        assert not name.startswith("on")
        if name in ("src", "href"):
            kind, encoded = value.split(",")
            assert kind == "data:image/png;base64"
            pixels(base64.b64decode(encoded, validate=True))
    rest = re.sub(r'"data:image/png;base64,[^"]*"', '""', html)
    assert not re.search(r"https?:|url\(|@import|//", rest)
    assert len(rest) < 200_000
    assert ("http-equiv", "Content-Security-Policy") in report.attributes


@pytest.mark.slow
def test_texts_of_files_are_escaped(finished: Path) -> None:
    harmless = set(Parsed(plot.report(finished, test=loader()).read_text(encoding="utf-8")).tags)
    config = json.loads((finished / "config.json").read_text())
    (finished / "config.json").write_text(json.dumps(
        {**config, "model": HOSTILE, "data": HOSTILE, "data_note": HOSTILE, "epochs": HOSTILE, "device": HOSTILE,
         "machine": {HOSTILE: HOSTILE}, HOSTILE: [HOSTILE, {HOSTILE: 1}], "numpy": HOSTILE}))
    with open(finished / "metrics.jsonl", "a") as file:
        file.write(json.dumps({**EPOCH, "epoch": 3, HOSTILE: 1.0, "train_" + HOSTILE: 2.0, "note": HOSTILE}) + "\n")
    html = plot.report(finished, test=loader(classes=tuple(HOSTILE + str(i) for i in range(10)))).read_text(
        encoding="utf-8")
    report = Parsed(html)
    assert "<script" not in html
    assert set(report.tags) <= harmless
    assert figures.short(HOSTILE + " on " + HOSTILE, page.MAX_SHOWN) in report.text           # the title
    assert html.count("<table") == html.count("</table>")


@pytest.mark.slow
def test_a_run_that_is_not_finished_shows_what_there_is(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert [path.name for path in plot.pictures(folder.path)] == ["report.html"]
    folder.write_config({"model": "lenet5", "data": "mnist", "epochs": 10})
    folder.append_metrics(EPOCH)
    with open(folder.path / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 2, "train')
    assert [path.name for path in plot.pictures(folder.path, test=loader())] == ["curves.png", "report.html"]
    text = Parsed((folder.path / "report.html").read_text(encoding="utf-8")).text
    assert "There is no weights.h5: the run is not finished" in text
    assert "1 of 10" in text


@pytest.mark.slow
def test_a_net_that_is_given_needs_no_file(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.append_metrics(EPOCH)
    made = plot.pictures(folder.path, zoo.build("lenet5"), loader())
    assert [path.name for path in made] == ["curves.png", "filters.png", "confusion.png", "report.html"]
    assert "weights.h5" not in made[-1].read_text(encoding="utf-8")


@pytest.mark.deep
def test_the_test_set_is_found_by_what_the_run_says(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = minidl.weights.read_metadata(finished / "weights.h5")
    monkeypatch.setattr(run.weights, "read_metadata", lambda path: {**known, "preprocessing": {
        "mean": [0.5], "std": [0.5], "padding": 2}})
    report = plot.report(finished).read_text(encoding="utf-8")
    assert re.search(r"[\d,]+ of 2,000 test images are right", report)
    config = json.loads((finished / "config.json").read_text())
    (finished / "config.json").write_text(json.dumps({**config, "data": "cifar10"}))
    for name in ("HOME", "XDG_CACHE_HOME", "MINIDL_CACHE"):
        monkeypatch.setenv(name, str(finished))
    monkeypatch.delenv("MINIDL_DATA", raising=False)
    monkeypatch.chdir(finished)
    assert "The test set is not on this machine" in plot.report(finished).read_text(encoding="utf-8")


@pytest.mark.deep
def test_a_run_of_another_net_says_what_is_lacking(finished: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32, 10))
    minidl.save(net, finished / "weights.h5")
    with pytest.warns(UserWarning, match=r"was saved from 'Sequential', which is not one of the zoo's"):
        assert [path.name for path in plot.pictures(finished, test=loader())] == ["curves.png", "report.html"]
    html = (finished / "report.html").read_text(encoding="utf-8")
    assert "was saved from &#x27;Sequential&#x27;, which is not one of the zoo" in html
    made = plot.pictures(finished, net, loader())
    assert [path.name for path in made] == ["curves.png", "filters.png", "confusion.png", "report.html"]


def test_a_report_says_that_there_was_a_transform(tmp_path: Path) -> None:
    """Of stored weights: what the net answers is asked without it."""
    folder = RunFolder(tmp_path / "run")
    folder.write_config({"model": "perceptron", "data": "synthetic-digits", "limit_test": 20})
    digits = data.load("synthetic-digits", "test", count=20)
    for transform, counts in ((None, 0), (lambda image, label: (255 - image, label), 1)):
        minidl.save(zoo.build("perceptron"), folder.path / "weights.h5",
                    data=data.DataLoader(digits, 5, padding=2, transform=transform))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            text = Parsed(plot.report(folder.path).read_text(encoding="utf-8")).text
        assert "of 20 test images are right" in text
        assert text.count("In the training items went through a transform, which the weights' file cannot") == counts
        assert sum("weights.h5 was trained through the transform of a DataLoader" in str(warning.message)
                   for warning in told) == counts


def test_what_is_no_run_folder_or_damaged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"'.*nothing' is not a run folder: it has neither config.json nor"):
        plot.pictures(tmp_path / "nothing")
    for damaged in ("[1]", "{", "[" * 100_000):
        (tmp_path / "config.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"config.json is damaged: it must be an object of JSON; copy it again"):
            plot.report(tmp_path)


@pytest.mark.slow
def test_a_picture_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: Any) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "curves.png").write_bytes(b"before")
    monkeypatch.setattr(figures.os, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        plot.curves(epochs(9), tmp_path / "curves.png")
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]
    assert (tmp_path / "curves.png").read_bytes() == b"before"


# ---------------------------------------------------------------- nothing is clipped
LONG = ["the class whose name is as long as a sentence " + str(i) for i in range(100)]
NAN = math.nan
CURVES: dict[str, list[dict[str, Any]]] = {
    "one epoch": [EPOCH], "two": epochs(2), "two hundred": epochs(200), "all NaN": epochs(3, test_loss=NAN),
    "nearly all NaN": [EPOCH, *epochs(1000, test_loss=NAN, train_loss=NAN)],
    "some infinite": [*epochs(2), {**EPOCH, "epoch": 3, "train_loss": math.inf, "test_accuracy": NAN}],
    "null": epochs(2, test_loss=None), "huge": epochs(3, train_loss=1e30, lr=1e-30), "a late metric":
    [EPOCH, {**EPOCH, "epoch": 2, "test_top5_accuracy": 0.9, "a_metric_with_quite_a_long_name_of_its_own": 3.0}],
    "hostile": epochs(2, **{HOSTILE: 1.0}), "no epoch's number": [{"train_loss": 1.0}, {"train_loss": 0.5}],
    "not all numbers": [EPOCH, {"epoch": NAN, "train_loss": 10**400, "test_loss": "low", "lr": True, "step": None}]}
FILTERS = [(64, 3, 8, 8), (1, 1, 1, 1), (6, 1, 5, 5), (10, 1, 32, 32), (16, 6, 5, 5), (500, 3, 3, 3), (64, 64, 3, 3),
           (2, 3, 1, 9), (2, 3, 9, 1), (1000, 1, 2, 2), (1, 2, 3, 3), (3, 4, 1, 1)]
CLASSES = [["only"], ["no", "yes"], list("0123456789"), LONG[:2], LONG[:10], LONG[:12], LONG[:13], LONG[:20], LONG[:21],
           LONG, ["WWWWWWWWWWWWWWWWWW"] * 10, [HOSTILE] * 3]


def every_figure() -> Iterator[Any]:
    for name, metrics in CURVES.items():
        yield pytest.param(figures.curves_figure, (metrics,), id=f"curves-{name}")
    for shape in FILTERS:
        weights = np.random.default_rng(0).normal(size=shape)
        yield pytest.param(figures.filters_figure, (weights,), id=f"filters-{shape}")
    for classes in CLASSES:
        counts = np.full((len(classes),) * 2, 12_345)
        yield pytest.param(figures.confusion_figure, (counts, classes), id=f"confusion-{len(classes)}-{classes[0][:9]}")


def extents(figure: Any) -> list[tuple[Text, Any]]:
    """All texts that are seen, with the rectangles that they fill, in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return [(text, text.get_window_extent(canvas.get_renderer())) for text in figure.findobj(Text)
            if text.get_visible() and text.get_text().strip()]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("draw", "arguments"), tiered(every_figure(), slow=6))
def test_no_text_is_clipped_and_no_labels_overlap(draw: Any, arguments: Any) -> None:
    figure = draw(*arguments, LIGHT)
    boxes = {id(text): box for text, box in extents(figure)}
    assert len(boxes) >= 4
    drawn = figure.get_tightbbox()                             # inches
    assert min(drawn.x0, drawn.y0) >= 0.02
    assert drawn.x1 <= figures.WIDTH - 0.02
    assert drawn.y1 <= figure.get_figheight() - 0.02 <= 20
    for axes in figure.axes:
        assert axes.get_xlabel() or axes.get_ylabel()
        for axis in (axes.xaxis, axes.yaxis):
            labels = [label for label in axis.get_ticklabels() if id(label) in boxes and label.get_rotation() % 90 == 0]
            shown = [boxes[id(label)].shrunk(0.9, 0.9) for label in labels]
            assert not any(a.overlaps(b) for a, b in pairwise(shown))


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_are_read_on_the_paper(theme: figures.Theme) -> None:
    for colour, least in ((theme.ink, 7), (theme.faint, 4.5), *((c, 4.5) for c in theme.series.values())):
        assert figures._contrast(theme.paper, colour) >= least
    for text, _ in extents(figures.curves_figure([EPOCH], theme)):
        assert to_hex(text.get_color()) == theme.ink
    counts = np.diag([5, 50, 500]) + np.array([[0, 2, 3], [1, 0, 1], [100, 300, 0]])
    figure = figures.confusion_figure(counts, "abc", theme)
    assert sorted(int(text.get_text()) for text in figure.axes[0].texts) == sorted(counts[counts > 0].tolist())
    cells = figure.axes[0].images[0].to_rgba(100 * counts / counts.sum(axis=1, keepdims=True))
    for text in figure.axes[0].texts:
        x, y = text.get_position()
        assert figures._contrast(cells[int(y), int(x)], text.get_color()) >= 3.5


# ---------------------------------------------------------------- curves
def test_curves_pair_training_and_test() -> None:
    figure = figures.curves_figure([*epochs(2), {**EPOCH, "epoch": 3, "test_loss": NAN}], LIGHT)
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss per image", "accuracy (%)", "learning rate"]
    loss, accuracy, _ = figure.axes
    assert [line.get_label() for line in loss.lines] == ["train, last 2", "test, last 1.5, 1 not finite"]
    assert [line.get_label() for line in accuracy.lines] == ["train, last 25", "test, last 50"]
    assert loss.lines[0].get_ydata().tolist() == [2, 1, 2]
    assert len({line.get_marker() for line in loss.lines}) == 2
    assert figure.axes[-1].get_xlabel() == "epoch (passes over the training set)"


def test_curves_need_an_epoch(tmp_path: Path) -> None:
    for nothing in ([], [{"epoch": 1, "note": "a"}]):
        with pytest.raises(ValueError, match=rf"curves: metrics has {len(nothing)} epochs with no number to draw but"):
            plot.curves(nothing, tmp_path / "curves.png")
    with pytest.raises(ValueError, match=r"plot: 'curves.txt' must end in .png, .svg or .pdf; rename it"):
        plot.curves([EPOCH], "curves.txt")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.PDF", b"%PDF")])
def test_the_ending_says_the_format_and_the_bytes_are_fixed(name: str, start: bytes, tmp_path: Path) -> None:
    plot.curves([EPOCH], tmp_path / name)
    before = (tmp_path / name).read_bytes()
    assert before.startswith(start)
    if start == b"\x89PNG":
        plot.curves([EPOCH], str(tmp_path / name))
        assert (tmp_path / name).read_bytes() == before
        assert b"http" not in before


DRAWN = {"filters": ([[[[1.0]]]],), "curves": ([EPOCH],), "confusion": ([0, 1], [1, 1])}


@pytest.mark.parametrize("name", tiered(DRAWN, fast=1, slow=0))
def test_a_figure_is_returned_which_a_notebook_shows_and_a_path_writes_it(name: str, tmp_path: Path,
                                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """By IPython's protocol: it would show a figure of its own accord only where pyplot is imported."""
    monkeypatch.chdir(tmp_path)
    figure = getattr(plot, name)(*DRAWN[name])
    pixels, shown = figure._repr_png_()
    assert pixels.startswith(b"\x89PNG")
    assert shown["width"] == 384
    assert imread(io.BytesIO(pixels)).shape[1] == 960           # which a dense screen needs
    assert list(tmp_path.iterdir()) == []
    getattr(plot, name)(*DRAWN[name], path="a.png")
    assert (tmp_path / "a.png").read_bytes() == pixels
    assert pickle.loads(pickle.dumps(figure))._repr_png_()[1] == shown


# ---------------------------------------------------------------- filters
def tiles(weights: np.ndarray) -> np.ndarray:
    """The image that filters_figure shows, one value (RGBA) per pixel."""
    return np.asarray(figures.filters_figure(weights, LIGHT).axes[0].images[0].get_array())


def test_a_colour_filter_is_scaled_over_all_its_channels() -> None:
    weights = np.zeros((2, 3, 1, 1))
    weights[0, :, 0, 0] = 2, -1, 0
    weights[1, :, 0, 0] = 0.1, 0.1, -0.05                      # has its own scale
    image = tiles(weights)
    assert image[0, 0].tolist() == [1, 0.25, 0.5, 1]
    assert image[0, -1].tolist() == [1, 1, 0.25, 1]
    assert (image[:, 48:-48, 3] == 0).all()                    # the gap


def test_filters_of_other_channels_are_grey_one_row_each() -> None:
    weights = np.arange(-6.0, 6).reshape(2, 6, 1, 1)
    image = tiles(weights)
    assert image.shape == (2 * 48 + 4, 6 * 48 + 5 * 4, 4)
    rows = image[::52, ::52, 0]
    assert rows == pytest.approx(0.5 + weights[:, :, 0, 0] / np.array([[12], [10]]))
    assert (image[..., 0] == image[..., 2]).all()


def test_weights_that_are_0_or_not_finite_are_drawn() -> None:
    weights = np.zeros((3, 1, 1, 2))
    weights[1] = NAN, 1
    weights[2] = math.inf, -1
    assert tiles(weights)[::52, :96:24, 0].tolist()[0][:2] == [0.5, 0.5]
    assert figures.filters_caption(weights, weights).endswith("2 weights are not finite")
    assert np.isfinite(tiles(weights)).all()


def test_many_filters_are_cut_and_that_is_said() -> None:
    texts = [text.get_text() for text, _ in extents(figures.filters_figure(np.ones((300, 3, 2, 2)), LIGHT))]
    assert texts[-1].startswith("256 of 300 filters 2x2 (red, green, blue)\neach scaled over all its channels")


@pytest.mark.parametrize("shape", [(3, 8, 8), (0, 3, 8, 8), (2, 3, 0, 1)])
def test_filters_of_another_shape_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"filters: weights has shape {re.escape(str(shape))} but must be"):
        plot.filters(np.zeros(shape), tmp_path / "filters.png")


def test_which_filters_a_net_has() -> None:
    shapes = {name: run.first_filters(zoo.build(name, **options)) for name, options in (
        ("lenet5", {}), ("krizhevsky2009", {}), ("perceptron", {}), ("mlp", {"hidden": 7}))}
    assert {name: found is not None and found.shape for name, found in shapes.items()} == {
        "lenet5": (6, 1, 5, 5), "krizhevsky2009": (64, 3, 8, 8), "perceptron": (10, 1, 32, 32), "mlp": (7, 3, 32, 32)}
    table = nn.Sequential(nn.Linear(64, 3))
    assert run.first_filters(table) is None
    assert run.first_filters(table, (64,)) is None
    assert run.first_filters(table, (1, 8, 9)) is None
    found = run.first_filters(table, (1, 8, 8))
    assert found is not None
    assert found.shape == (3, 1, 8, 8)
    assert run.first_filters(nn.Sequential(nn.Tanh())) is None


class Backwards(nn.Module):
    """Defines its last layer first."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.own = nn.Conv2d(6, 2, 1), nn.LocallyConnected2d(3, 3, (4, 4), 1)
        self.first = nn.ConvTranspose2d(3, 6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(self.own(x)))


def test_filters_are_those_of_the_layer_that_runs_first() -> None:
    """They were those of the layer defined first, and of a transposed convolution in the order (c,m,kh,kw)."""
    net = Backwards()
    found = run.first_filters(net, (3, 4, 4), nn.summary(net, (3, 4, 4)))
    assert found is not None
    np.testing.assert_array_equal(found, net.first.weight.numpy().swapaxes(0, 1))


# ---------------------------------------------------------------- confusion matrix
@pytest.mark.slow
def test_confusion_counts(tmp_path: Path) -> None:
    plot.confusion([0, 1, 1, 1], np.array([0, 1, 1, 0]), ["cat", "dog"], tmp_path / "confusion.png")
    assert figures.count_pairs([0, 1, 1, 1], [0, 1, 1, 0], 3).tolist() == [[1, 0, 0], [1, 2, 0], [0, 0, 0]]
    plot.confusion([0, 300], [300, 300], (), tmp_path / "numbers.png")


@pytest.mark.parametrize(("labels", "predictions", "message"), [
    ([0, 1], [0], r"labels are int64 \(2,\) and predictions int64 \(1,\) but both must be integers"),
    ([], [], "n at least 1"), ([0.5], [0], "labels are float64"), ([[0]], [[0]], r"\(1, 1\)"),
    ([0, 3], [0, 1], "classes 0 to 3 occur but there are 2, from 0; name all of them"),
    ([0, -1], [0, 1], "classes -1 to 1 occur"),
])
def test_labels_that_do_not_fit_are_refused(labels: Any, predictions: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plot.confusion(labels, predictions, ["a", "b"], "confusion.png")


# ---------------------------------------------------------------- what the net answers
class Known(nn.Module):
    """Logits that are its inputs, (n,k,1,1) -> (n,k)."""

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        return x.reshape((x.shape[0], -1))


def test_mistakes_are_sorted_by_the_probability_of_the_true_class() -> None:
    logits = np.log(np.array([[0.7, 0.2, 0.1], [0.9, 0.06, 0.04], [0.1, 0.1, 0.8], [0.6, 0.3, 0.1]]))
    batches = [(Tensor(logits[i:i + 2, :, None, None]), [1, 2, 2, 1][i:i + 2]) for i in (0, 2)]
    net = Known()
    net.below = nn.Dropout().eval()
    found = run.answer(net, batches, [])["answers"]
    assert [module.training for _, module in net.named_modules()] == [True, False]
    assert found.counts.tolist() == [[0, 0, 0], [2, 0, 0], [1, 0, 1]]
    assert found.classes == ["0", "1", "2"]
    assert [(m.label, m.prediction) for m in found.worst] == [(2, 0), (1, 0), (1, 0)]
    assert [m.of_label for m in found.worst] == pytest.approx([0.04, 0.2, 0.3])
    assert [m.of_prediction for m in found.worst] == pytest.approx([0.9, 0.7, 0.6])
    html = page._mistakes(found)
    assert "1 of 4 test images are right, 3 are wrong" in html
    assert "(4.00&nbsp;%)" in html


def test_a_label_without_an_output_is_refused() -> None:
    with pytest.raises(ValueError, match="classes 0 to 7 occur but there are 2"):
        run.answer(Known(), [(np.zeros((1, 2, 1, 1)), np.array([7]))], [])
    with pytest.raises(ValueError, match="plot: the test set has 0 images"):
        run.answer(Known(), [], [])


@pytest.mark.parametrize("targets", [np.array([0.5, 1.5]), np.zeros((2, 2), np.int64)], ids=["floats", "matrix"])
def test_without_classes_there_is_no_matrix(targets: np.ndarray) -> None:
    notes: list[str] = []
    found = run.answer(Known(), [(np.zeros((2, 3, 1, 1)), targets)], notes)
    assert found.keys() == {"example"}
    assert found["example"].shape == (1, 3, 1, 1)
    assert notes[0].startswith("The net's outputs and targets are none that are drawn")


def test_a_net_without_a_mistake(finished: Path) -> None:
    digits = data.load("synthetic-digits", "test", count=8)
    found = run.answer(Known(), [(np.eye(10)[digits.labels][:, :, None, None] * 9, digits.labels)], [])["answers"]
    assert found.worst == []
    assert "8 of 8 test images are right" in page._mistakes(found)
    assert page._mistaken(found) == "<p>There is no mistake.</p>"


@pytest.mark.parametrize("channels", [1, 3])
def test_the_images_shown_are_those_of_the_data_set(channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, channels, 6, 6), np.uint8)
    mean, std = [0.3, 0.4, 0.5][:channels], [0.2, 0.3, 0.1][:channels]
    batches = data.DataLoader(data.Dataset("mine", "test", images, np.arange(4)), 4, shuffle=False, mean=mean, std=std,
                              padding=2)
    (batch, _), = batches
    for image, original in zip(batch, images):
        shown = run.as_picture(image, {"mean": mean, "std": std, "padding": 2})
        assert shown is not None
        assert shown.tolist() == np.broadcast_to(original.transpose(1, 2, 0), (6, 6, 3)).tolist()
    assert run.as_picture(np.zeros(5)) is None
    flat = run.as_picture(np.full((2, 1, 1), NAN))
    assert flat is not None
    assert flat.tolist() == [[[0, 0, 0]]]


# ---------------------------------------------------------------- what is not there, and what is left alone
def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "metrics.jsonl").write_text(json.dumps(EPOCH) + "\n")
    with pytest.raises(ImportError, match=r"plot: matplotlib cannot be imported \(.*\); run pip install .*plot\]"):
        plot.curves([EPOCH], tmp_path / "curves.png")
    assert plot.report(tmp_path).stat().st_size > 5000         # which does without


@pytest.mark.slow
def test_nothing_of_matplotlib_is_imported_early_or_changed(tmp_path: Path) -> None:
    code = f"""
import sys
import warnings
from minidl import plot
assert "matplotlib" not in sys.modules and "tensorboardX" not in sys.modules
import matplotlib
before = matplotlib.rcParams.copy()                # dict() would ask for the backend, which imports pyplot
plot.curves([{EPOCH}], r"{tmp_path}/curves.png")
plot.confusion([0, 1], [1, 1], ["a", "b"], r"{tmp_path}/confusion.png")
plot.filters([[[[1.0]]]], r"{tmp_path}/filters.png")
assert "matplotlib.pyplot" not in sys.modules
assert matplotlib.rcParams.copy() == before
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_numbers_of_float32_are_numbers_without_a_warning() -> None:
    """They were compared with the largest float64, which overflows in float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert figures.is_number(np.float32(1))
        assert figures.is_number(np.float32(np.inf))


# ---------------------------------------------------------------- TensorBoard
def events(folder: Path) -> list[tuple[int, str, float]]:
    """(step, tag, value) of all scalars in a folder's event files: records of length, checksum, content, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for file in sorted(folder.iterdir()):
        content, at = file.read_bytes(), 0
        while at < len(content):
            size, = struct.unpack_from("<Q", content, at)
            event = Event.FromString(content[at + 12:at + 12 + size])
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            at += size + 16
    return found


def test_tensorboard_has_each_epochs_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    board = plot.TensorBoard(tmp_path)
    train = loader(count=32)
    model = zoo.build("perceptron")
    history = fit(model, optim.SGD(model.parameters(), 0.1), train, train, epochs=2, callbacks=board)
    found = events(tmp_path)                                   # on disk before it is closed
    board.close()
    assert [(step, value) for step, tag, value in found if tag == "loss/test"] == [
        (m["step"], pytest.approx(m["test_loss"])) for m in history]
    assert {tag for _, tag, _ in found} == {"loss/train", "loss/test", "accuracy/train", "accuracy/test", "lr",
                                            "seconds", "images_per_second"}


def test_two_runs_of_one_second_are_both_in_a_folder(tmp_path: Path) -> None:
    """The second one replaced the file of the first."""
    pytest.importorskip("tensorboardX")
    for step in (1, 2):
        board = plot.TensorBoard(tmp_path)
        board({"step": step, "lr": 0.5})
        board.close()
    assert sorted(events(tmp_path)) == [(1, "lr", 0.5), (2, "lr", 0.5)]


def test_tensorboard_leaves_out_what_is_no_number(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    board = plot.TensorBoard(tmp_path)
    board({"epoch": 3, "train_loss": NAN, "model": "lenet5", "train_": 1.0})
    board.close()
    (first, second) = events(tmp_path)
    assert first[:2] == (3, "loss/train")
    assert math.isnan(first[2])
    assert second == (3, "train_", 1.0)


def test_without_tensorboardx_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorboardX", "tensorboardX.event_file_writer"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"TensorBoard: tensorboardX cannot be imported \(.*\); run pip install"):
        plot.TensorBoard(tmp_path)


def test_the_machine_is_told_as_json() -> None:
    found = machine()
    assert found["cores"] >= 1
    assert all(found[name] for name in ("system", "processor"))
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("options", ['{"hidden": 2147483647}', '{"classes": 2147483647}', '{"hidden": "x"}',
                                     '{"unknown": 1}'])
def test_a_report_builds_no_net_larger_than_its_weights(tmp_path: Path, options: str) -> None:
    net = zoo.build("perceptron", in_channels=1)
    net.model_name, net.model_args = "mlp", json.loads(options)
    minidl.save(net, tmp_path / "weights.h5")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"^load: '.*weights\.h5' was saved from 'mlp'"):
        minidl.plot.report(tmp_path)
