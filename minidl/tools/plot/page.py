"""report.html: what is known of a run, as one page that needs no other file, no network and no script."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...nn.table import Summary
from . import figures
from .svg import MAX_SERIES, WIDTH, bars, chart, png, ridges, scatter, series, text_at

T = TypeVar("T")

MAX_PAIRS = 10                             # of classes that are most often mistaken
MAX_SHOWN = 200                            # characters of a setting
MAX_OPEN = 12                              # epochs whose table is not folded
MAX_RIDGES = 6                             # epochs whose histograms are drawn: of more, some
MAX_PIXELS = 80_000                        # of a section's test images together: more, and they are made smaller
MAX_POINTS = 2000                          # of a regression that are drawn
VERSIONS = ("minidl", "python", "numpy", "cupy", "cuda", "driver")
ORIGIN = ("started", "command", "commit")
MACHINE = ("device", "system", "processor", "cores", "gpu", "ranks", *VERSIONS)
NOT_GIVEN: tuple[Any, ...] = (None, False, {}, [], "none", "")
# Of the figures' series, in both themes, and of histograms.
PALETTE = (("#0072b2", "#56b4e9"), ("#c44e00", "#f0a13a"), ("#00795a", "#3fc79a"), ("#8f4aa8", "#c995dd"),
           ("#7a6000", "#e0cb53"), ("#a8324a", "#f08ca0"), ("#3d5a80", "#9db8dc"), ("#59636e", "#a3adb8"))


class Mistake(NamedTuple):
    """A test image (h,w,3), uint8 or None, its class, the class that was predicted, and their probabilities."""

    image: np.ndarray | None
    label: int
    prediction: int
    of_label: float
    of_prediction: float


class Answers(NamedTuple):
    """A net's answers on a test set: how often each class (a row) was predicted as which (a column), the names of the
    classes, the shape of an input, the worst mistakes, the least probable class first, and what is counted."""

    counts: np.ndarray
    classes: list[str]
    shape: tuple[int, ...]
    worst: list[Mistake]
    items: str = "images"


class Pairs(NamedTuple):
    """What is shown side by side: names of the columns, and for each example its error and its pictures (h,w,3)."""

    columns: tuple[str, ...]
    rows: list[tuple[float, list[np.ndarray | None]]]
    error: str


class Numbers(NamedTuple):
    """Targets of a regression and what was predicted, (n, outputs) both."""

    targets: np.ndarray
    predictions: np.ndarray


class Labels(NamedTuple):
    """Which labels test items have, and which were predicted, both bool (n, labels), and the names of the labels."""

    targets: np.ndarray
    predictions: np.ndarray
    names: list[str]


class Run(NamedTuple):
    """What is known of a run. silent: by the path of a layer and the number of its call, from 0, its units that have
    the same output for each test item, and how many it has."""

    folder: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    statistics: list[dict[str, Any]]
    notes: list[str]
    filters: np.ndarray | None = None
    answers: Answers | None = None
    pairs: Pairs | None = None
    numbers: Numbers | None = None
    labels: Labels | None = None
    layers: Summary | None = None
    silent: Mapping[tuple[str, int], tuple[int, int]] = {}
    profile: Mapping[str, Any] = {}


# Every $name is a piece of HTML, in which each text that came from a file is escaped. The policy forbids what the
# page does not need: scripts, and anything from elsewhere.
PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
$refresh<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
:root { $light; --desk: #f6f8fa }
@media screen and (prefers-color-scheme: dark) { :root { $dark; --desk: #0d1117 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--desk); color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
main { max-width: 1120px; margin: 0 auto; padding: 24px 12px }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 8px; overflow-wrap: anywhere }
h2 { font-size: 18px; margin: 0 0 8px }
h3 { font-size: 14px; margin: 12px 0 0; overflow-wrap: anywhere }
p { margin: 0 0 8px; overflow-wrap: anywhere }
.faint, dt, summary { color: var(--faint); font-size: 14px }
.note { border-left: 4px solid var(--s1); padding-left: 12px }
dl { display: flex; flex-wrap: wrap; gap: 8px 32px; margin: 16px 0 }
dd { margin: 0; font-size: 22px; font-weight: 600 }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: 16px; min-width: 0 }
.cards { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr));
         grid-auto-flow: dense }
.wide { grid-column: 1 / -1 }
.small { display: grid; gap: 8px 16px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 300px), 1fr)) }
@media (max-width: 600px) { main { padding: 16px 4px } header { padding: 0 8px } section { padding: 12px 8px } }
figure { margin: 0 auto; max-width: 520px }
svg { display: block; width: 100%; height: auto; overflow: visible }
svg text { font-size: 12px; fill: var(--ink) }
svg text.count { font-size: 10px } svg text.in { fill: #fff } svg text.mark { fill: var(--faint) }
svg image { image-rendering: pixelated }
.grid, .axis, .mark, .line { fill: none }
.grid { stroke: var(--line); stroke-width: .6 } .axis { stroke: var(--faint) }
path.mark { stroke: var(--faint); stroke-dasharray: 3 3 }
.line { stroke-width: 1.6; stroke-linejoin: round }
.raw { opacity: .35; stroke-width: 1 }
.dots { stroke-width: 5; stroke-linecap: round }
.cloud { stroke-width: 3; stroke-linecap: round; opacity: .5 }
.area { stroke: none; opacity: .75 }
.hit { fill: transparent }
.seen { visibility: hidden; pointer-events: none } .at:hover .seen { visibility: visible }
.seen rect { fill: var(--paper); stroke: var(--line) }
figcaption { display: flex; flex-wrap: wrap; gap: 0 16px; font-size: 13px; overflow-wrap: anywhere }
figcaption i { display: inline-block; width: 14px; height: 3px; margin: 0 5px 4px 0; background: currentColor }
figcaption .raw { opacity: 1 } figcaption .raw i { opacity: .35 }
$colours
.pictures { display: grid; gap: 16px 12px; grid-template-columns: repeat(auto-fill, minmax(160px, 1fr));
            list-style: none; margin: 16px 0 0; padding: 0 }
img { display: inline-block; width: 96px; height: 96px; object-fit: contain; image-rendering: pixelated }
.many { grid-template-columns: repeat(auto-fill, minmax(min(100%, 310px), 1fr)) }
.pictures span { display: block; font-size: 14px; overflow-wrap: anywhere }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: 14px; width: 100% }
td { overflow-wrap: anywhere }
th, td { text-align: left; vertical-align: top; padding: 4px 8px 4px 0; border-top: 1px solid var(--line) }
.facts { table-layout: fixed; overflow-wrap: anywhere }
.facts th { font-weight: normal; color: var(--faint); width: 40% }
.numbers th, .numbers td { text-align: right; white-space: nowrap; padding: 4px 8px }
.numbers th:first-child, .numbers td:first-child { text-align: left; white-space: pre }
.best td { font-weight: 600 }
.source td, .source th { border: 0; padding: 0 8px; text-align: right; white-space: pre }
.source th { text-align: center } .source td { font: 13px/1.5 ui-monospace, monospace }
.source .code { text-align: left; white-space: pre-wrap; min-width: clamp(30ch, 55vw, 72ch) }
.source .fault .code { color: var(--s5); font-weight: 600 }
.moved { fill: var(--line) }
@media print { body { background: none } main { max-width: none; padding: 0 } .scroll { overflow: visible }
               .cards { grid-template-columns: 1fr 1fr } section, li, .small > div { break-inside: avoid }
               .wide { break-inside: auto } h2, h3 { break-after: avoid }
               .numbers th, .numbers td { white-space: normal; font-size: 11px; padding: 2px 4px } }
</style>
</head>
<body>
<main>
<header>
<h1>$title</h1>
$notes
<dl>$facts</dl>
</header>
<div class="cards">
$sections
</div>
</main>
</body>
</html>
""")


def page(run: Run, live: int = 0) -> str:
    """The report's HTML. live: seconds after which a browser reads it again; 0: never."""
    config = {**run.statistics[0].get("origin", {}), **run.config} if run.statistics else run.config
    data = Path(str(config.get("data")))                   # a set's name, or a folder's path
    title = (f"{config['model']} on {data.name if data.is_absolute() else config['data']}"
             if {"model", "data"} <= config.keys() else run.folder.name)
    machine = config.get("machine")
    about: dict[str, Any] = {**config, **(machine if isinstance(machine, dict) else {})}
    elsewhere = {"machine", "data_note", "program", "code", *ORIGIN, *MACHINE}
    settings = {name: value for name, value in config.items() if name not in elsewhere}
    known = {name: about[name] for name in (*ORIGIN, "code", *MACHINE) if about.get(name) is not None}
    sections = [
        ("Loss", _losses(run), ""), ("Error", _errors(run), ""),
        *((figures.short(name.replace("_", " ")).capitalize(), _metric(run, name), "")
          for name in figures.panels(run.metrics)
          if name not in ("loss", "accuracy", "lr")),
        ("Learning rate", _rates(run), ""),
        ("Speed", _time(run, "images_per_second", "training images per second"), ""),
        ("Time", _time(run, "seconds", "seconds, with evaluation"), ""),
        ("Gradients", _norms(run, "gradients", "norm of the gradient"), ""),
        ("Updates", _norms(run, "updates", "update / weight"), ""),
        ("Confusion matrix", _of(run.answers, _confusion), ""), ("Classes", _of(run.answers, _classes), ""),
        ("Most frequent mistakes", _of(run.answers, _mistaken), ""),
        ("First layer's filters", _of(run.filters, _filters), ""),
        ("Labels", _of(run.labels, _labels), ""),
        ("Predictions", _of(run.numbers, _scatter), ""), ("Residuals", _of(run.numbers, _residuals), ""),
        ("Layers", _layers(run), "wide"),
        ("Weights over the epochs", _ridges(run, "weights", "weight"), "wide"),
        ("Updates of an epoch's first step", _ridges(run, "updates", "update"), "wide"),
        ("Right and wrong", _of(run.answers, _mistakes), "wide"),
        ("Test images and answers", _of(run.pairs, _beside), "wide"),
        ("Where a step's time goes", _profile(run.profile), "wide"),
        ("Settings", _settings(settings), ""), ("Run and machine", _table(known), ""),
        ("Epochs", _epochs(run), "wide")]
    return document(title, sections, (*run.notes, *_ended(run)), _facts(run), live)


def _of(part: T | None, drawn: Callable[[T], str]) -> str:
    """The section of what may not be known of a run."""
    return "" if part is None else drawn(part)


def document(title: str, sections: Iterable[tuple[str, str, str]], notes: Iterable[str] = (),
             facts: Iterable[tuple[str, str]] = (), live: int = 0) -> str:
    """A page of sections (title, HTML, class); those without content are left out."""
    title = escape(figures.short(title, MAX_SHOWN))
    return PAGE.substitute(
        title=title, light=variables(figures.LIGHT, 0), dark=variables(figures.DARK, 1),
        colours="\n".join(f".{name} {{ stroke: var(--{name}); color: var(--{name}) }} .area.{name} {{ fill: "
                          f"var(--{name}) }}" for name in (*(f"s{i}" for i in range(MAX_SERIES)), "train", "test",
                                                            "own")),
        refresh=f'<meta http-equiv="refresh" content="{live}">\n' if live else "",
        notes="\n".join(f'<p class="note">{escape(note)}</p>' for note in notes),
        facts="".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts),
        sections="\n".join(f'<section class="{kind}">\n<h2>{escape(name)}</h2>\n{content}\n</section>'
                           for name, content, kind in sections if content))


def variables(theme: figures.Theme, column: int) -> str:
    """The page's variables of a theme."""
    named = {"ink": theme.ink, "faint": theme.faint, "line": theme.line, "paper": theme.paper,
             "train": theme.series["train"], "test": theme.series["test"], "own": theme.series[""],
             **{f"s{i}": colours[column] for i, colours in enumerate(PALETTE)}}
    return "; ".join(f"--{name}: {colour}" for name, colour in named.items())


def overlay(folder: str, runs: Mapping[str, Run], table: tuple[Sequence[str], Sequence[Sequence[str]]]) -> str:
    """A page of several runs, by their names: their table, and their curves over one another."""
    some = list(runs.items())[:MAX_SERIES]
    drawn = []
    for key in dict.fromkeys(key for run in runs.values() for m in run.metrics for key in m
                             if key.startswith(("test_", "train_"))):
        lines = [series(figures.short(name, 30), f"s{i}", *_of_epochs(run, key)) for i, (name, run) in enumerate(some)]
        name = key.replace("_", " ")
        drawn.append((figures.short(name).capitalize(),
                      chart(lines, "epoch", figures.short(name, 28), log=key.endswith("loss")), ""))
    notes = [f"Curves are those of the first {MAX_SERIES} of {len(runs)} runs."] if len(runs) > MAX_SERIES else []
    return document(folder, [("Runs", number_table(*table), "wide"), *drawn], notes)


# ---------------------------------------------------------------- the head
def best(run: Run) -> tuple[int, str] | None:
    """The number of the best epoch, from 0, and by which metric; None without one."""
    for name, sign in (("test_accuracy", -1), ("test_loss", 1)):
        values = [sign * m[name] if _finite(m.get(name)) else math.inf for m in run.metrics]
        if values and min(values) < math.inf:
            return values.index(min(values)), name
    return None


def _finite(value: object) -> bool:
    return figures.is_number(value) and math.isfinite(value)   # type: ignore[arg-type]  # a number


def _facts(run: Run) -> Iterable[tuple[str, str]]:
    """The numbers at the top."""
    last, found = run.metrics[-1] if run.metrics else {}, best(run)
    if found and len(run.metrics) > 1:
        value = run.metrics[found[0]][found[1]]
        yield (f"best {found[1].replace('_', ' ')}, epoch {found[0] + 1}",
               f"{100 * value:.2f} %" if found[1] == "test_accuracy" else f"{value:.4g}")
    for name, label in (("test_accuracy", "test accuracy"), ("train_accuracy", "training accuracy")):
        if figures.is_number(last.get(name)):
            yield label, f"{100 * last[name]:.2f} %"
    if figures.is_number(last.get("test_loss")):
        yield "test loss", f"{last['test_loss']:.4g}"
    asked = run.config.get("epochs")
    yield "epochs", f"{len(run.metrics)} of {asked}" if figures.is_number(asked) else str(len(run.metrics))
    seconds = [epoch["seconds"] for epoch in run.metrics if figures.is_number(epoch.get("seconds"))]
    if seconds:
        yield "time", f"{sum(seconds):.1f} s"
    if figures.is_number(last.get("images_per_second")):
        yield "training speed, last epoch", f"{last['images_per_second']:,.0f} images/s"
    if run.layers:
        yield "parameters", f"{run.layers.parameters:,}"


def _ended(run: Run) -> Iterable[str]:
    """How the last epoch was cut short."""
    line = run.statistics[-1] if run.statistics else {}
    if "ended" in line:
        yield f"The run ended in epoch {line.get('epoch')}: {line['ended']}"


# ---------------------------------------------------------------- curves
def _of_steps(run: Run, name: str) -> tuple[list[Any], list[Any]]:
    """(steps, values) of all epochs."""
    lines = [line for line in run.statistics if isinstance(line.get("step"), list) and isinstance(line.get(name), list)]
    pairs = [pair for line in lines for pair in zip(line["step"], line[name])
             if all(each is None or figures.is_number(each) for each in pair) and pair[0] is not None]
    return [step for step, _ in pairs], [value for _, value in pairs]


def _of_epochs(run: Run, key: str, over: str = "epoch", scale: float = 1.0) -> tuple[list[float], list[Any]]:
    """(epochs or steps, values) of a metric."""
    known = all(_finite(m.get(over)) for m in run.metrics)
    return ([m[over] if known else i for i, m in enumerate(run.metrics, 1)],
            [scale * m[key] if _finite(m.get(key)) else None for m in run.metrics])


def _mark(run: Run, over: str = "epoch") -> tuple[float, str] | None:
    """Where the best epoch is."""
    found = best(run) if len(run.metrics) > 1 else None
    return None if found is None else (_of_epochs(run, found[1], over)[0][found[0]], f"best: epoch {found[0] + 1}")


def smoothed(values: Sequence[Any]) -> np.ndarray:
    """The mean over a window of a fiftieth of all values, of those that are numbers; NaN for a value that is none.

    >>> smoothed([1.0, 2.0, None]).tolist()
    [1.0, 2.0, nan]
    """
    found = np.array([math.nan if value is None else value for value in values], np.float64)
    half = len(found) // 100
    known, sums = np.isfinite(found), np.nan_to_num(found, posinf=0, neginf=0)
    at = np.arange(len(found))
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(found))
    total, count = (np.concatenate([[0.0], np.cumsum(each)]) for each in (np.where(known, sums, 0), known))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(known, (total[high] - total[low]) / (count[high] - count[low]), math.nan)


def _losses(run: Run) -> str:
    steps, losses = _of_steps(run, "loss")
    if not steps:
        return _metric(run, "loss", log=True)
    many = len(steps) > 100
    lines = [series("training, each step", "train", steps, losses, "raw" if many else "")]
    if many:
        lines.append(series("training, smoothed", "train", steps, smoothed(losses)))
    lines.append(series("test, each epoch", "test", *_of_epochs(run, "test_loss", "step")))
    return chart(lines, "step (updates of the weights)", "loss", log=True, mark=_mark(run, "step"))


def _errors(run: Run) -> str:
    lines = []
    for which, name in (("train", "training"), ("test", "test")):
        epochs, values = _of_epochs(run, f"{which}_accuracy")
        lines.append(series(name, which, epochs, [None if v is None else 100 * (1 - v) for v in values]))
    return chart(lines, "epoch", "wrong answers (%)", log=all((line.y[np.isfinite(line.y)] > 0).all()
                                                              for line in lines), mark=_mark(run))


def _metric(run: Run, name: str, log: bool = False) -> str:
    scale, of = (100.0, " (%)") if name.endswith("accuracy") else (1.0, "")
    names = {"train": f"train_{name}", "test": f"test_{name}", "": name}
    lines = [series({"train": "training", "": figures.short(name)}.get(which, which), which or "own",
                    *_of_epochs(run, names[which], scale=scale)) for which in figures.panels(run.metrics).get(name, {})]
    return chart(lines, "epoch", figures.short(name.replace("_", " "), 28) + of, log=log,
                 mark=_mark(run))


def _rates(run: Run) -> str:
    steps, rates = _of_steps(run, "lr")
    over = "step" if steps else "epoch"
    line = series("learning rate", "own", *((steps, rates) if steps else _of_epochs(run, "lr")))
    known = line.y[np.isfinite(line.y) & (line.y > 0)]
    return chart([line], over, "learning rate", log=bool(known.size) and known.max() > 20 * known.min())


def _time(run: Run, key: str, name: str) -> str:
    return chart([series(name, "own", *_of_epochs(run, key))], "epoch", name, zero=True)


def _norms(run: Run, kind: str, label: str) -> str:
    """Of gradients or updates at each epoch's first step."""
    names = _some(list(dict.fromkeys(name for line in run.statistics for name in _dict(line, "gradients"))), MAX_SERIES)
    lines = []
    for i, name in enumerate(names):
        found = [(line["epoch"], _dict(line, kind)[name]) for line in run.statistics
                 if name in _dict(line, kind) and figures.is_number(line.get("epoch"))]
        values = [value.get("share") if isinstance(value, dict) else value for _, value in found]
        lines.append(series(figures.short(name, 30), f"s{i}", [epoch for epoch, _ in found],
                            [value if figures.is_number(value) else None for value in values]))
    return chart(lines, "epoch (its first step)", label, log=True)


def _dict(line: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = line.get(name)
    return found if isinstance(found, dict) else {}


def _some(values: list[Any], most: int) -> list[Any]:
    """At most `most` values, from the first to the last."""
    places = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)
    return [values[i] for i in dict.fromkeys(places.tolist())]


def _ridges(run: Run, kind: str, label: str) -> str:
    """The histograms of each layer, an epoch above the next."""
    names = dict.fromkeys(name for line in run.statistics for name in _dict(line, kind))
    drawn = []
    for name in names:
        rows = [(str(line.get("epoch")), h["counts"], h["low"], h["high"]) for line in run.statistics
                if isinstance(h := _dict(line, kind).get(name), dict) and isinstance(h.get("counts"), list)
                and _finite(h.get("low")) and _finite(h.get("high")) and all(map(figures.is_number, h["counts"]))]
        if rows:
            drawn.append(f'<div><h3>{escape(figures.short(name, 40))}</h3>'
                         f'{ridges(_some(rows, MAX_RIDGES), label, "epoch")}</div>')
    return f'<div class="small">{"".join(drawn)}</div>' if drawn else ""


# ---------------------------------------------------------------- the net
def _layers(run: Run) -> str:
    if run.layers is None:
        return ""
    silent = "same output for all" if run.silent else ""
    lines, calls = [], Counter[str]()
    for row in run.layers.rows:
        dead, units = run.silent.get((row.path, calls[row.path]), (0, 0))
        calls[row.path] += 1
        shapes = ", ".join("x".join(map(str, shape[1:])) or "1" for shape in row.shapes)
        held = "as above" if row.again else f"{row.parameters:,}" if row.parameters else ""
        lines.append(["  " * row.depth + (row.path.rpartition(".")[2] or "net"), row.kind, shapes, held,
                      f"{row.multiply_adds:,}" if row.multiply_adds else "",
                      *([f"{dead} of {units}" if units else ""] if silent else [])])
    lines.append(["all", "", "", f"{run.layers.parameters:,}", f"{run.layers.multiply_adds:,}", *[""] * bool(silent)])
    head = ["layer", "kind", "output", "parameters", "multiply-adds", *[silent] * bool(silent)]
    return number_table(head, lines) + (
        '<p class="faint">The last column counts the units of activations that give the same output for every test '
        'item: dead where it is 0.</p>' if silent else "")


def number_table(head: Sequence[str], lines: Iterable[Sequence[str]], marked: int = -1) -> str:
    """A table of numbers, with names in its first column; one line may be marked."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f'<tr{" class=best" * (i == marked)}>{"".join(f"<td>{escape(cell)}</td>" for cell in line)}</tr>'
                   for i, line in enumerate(lines))
    return f'<div class="scroll" tabindex="0"><table class="numbers"><tr>{top}</tr>{body}</table></div>'


def _filters(weights: np.ndarray) -> str:
    if weights.ndim != 4 or not weights.size:
        return ""
    shown, mosaic = figures.filters_mosaic(weights)
    height, width = mosaic.shape[:2]
    scale = min(388 / width, 70 / 52)                  # a tile is 48 pixels and a gap, in the mosaic
    return (f'<figure><svg viewBox="0 0 400 {height * scale:.0f}" role="img" aria-label="filters"><image href="'
            f'{png(np.round(255 * mosaic).astype(np.uint8))}" width="{width * scale:.0f}" '
            f'height="{height * scale:.0f}"/></svg></figure><p class="faint">'
            f'{escape(figures.filters_caption(weights, shown).replace(chr(10), "; "))}</p>')


def _profile(found: Mapping[str, Any]) -> str:
    if not found:
        return ""
    from ...lab.profile import HEAD, cells

    table = number_table(HEAD, cells(found["rows"], found["limits"]))
    return f'<p class="faint">{escape(figures.short(found["title"], MAX_SHOWN))}</p>' + (
        table if len(found["rows"]) <= 2 * MAX_OPEN else folded(f'{len(found["rows"])} calls', table))


# ---------------------------------------------------------------- answers
def _confusion(answers: Answers) -> str:
    counts, k = answers.counts, len(answers.counts)
    shares = np.sqrt(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))
    pixels = np.empty((k, k, 4), np.uint8)
    pixels[..., :3] = [int(PALETTE[0][0][i:i + 2], 16) for i in (1, 3, 5)]
    pixels[..., 3] = np.round(255 * shares)
    every = -(-k // figures.MAX_NAMED_CLASSES)
    names = [figures.short(name, 12) for name in answers.classes]
    left = 36 + 6.6 * max(map(len, names[::every]))
    side = WIDTH - 6 - left
    cell, foot = side / k, 12 + side
    parts = [f'<image href="{png(pixels)}" x="{left:.1f}" y="12" width="{side:.1f}" height="{side:.1f}"/>']
    for i in range(0, k, every):
        at = (i + 0.5) * cell
        parts += [text_at(left - 5, at + 16, names[i], "end"),
                  text_at(left + at + 4, foot + 6, names[i], "end", upward=True)]
    if k <= figures.MAX_COUNTED_CLASSES:
        parts += [text_at(left + (column + 0.5) * cell, (row + 0.5) * cell + 16, _short_count(int(count)),
                        kind="count in" if shares[row, column] > 0.8 else "count")
                  for (row, column), count in np.ndenumerate(counts) if count]
    height = foot + left - 10
    parts += [text_at(left + side / 2, height - 4, "predicted class", kind="name"),
              text_at(13, 12 + side / 2, "true class", kind="name", upward=True)]
    return (f'<figure><svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="confusion matrix">'
            f'{"".join(parts)}</svg></figure><p class="faint">Colour: the square root of the share of the true class, '
            'so that rare mistakes are seen.</p>')


def _short_count(count: int) -> str:
    return str(count) if count < 10_000 else f"{count / 1000:.0f}k" if count < 1_000_000 else f"{count / 1e6:.0f}M"


def _classes(answers: Answers) -> str:
    """For each class: how many there are, and how many of them, and of those predicted as it, are right."""
    right, true, called = np.diag(answers.counts), answers.counts.sum(axis=1), answers.counts.sum(axis=0)
    lines = [[figures.short(name, 40), f"{true[i]:,}", _share(right[i], called[i]), _share(right[i], true[i]),
              _share(2 * right[i], true[i] + called[i])] for i, name in enumerate(answers.classes)]
    lines.append(["all", f"{true.sum():,}", "", _share(right.sum(), true.sum()), ""])
    table = number_table(["class", answers.items, "precision (%)", "recall (%)", "F1 (%)"], lines)
    return table if len(lines) <= 2 * figures.MAX_NAMED_CLASSES else folded(f"{len(lines) - 1} classes", table)


def _labels(labels: Labels) -> str:
    """For each label: how many items have it, and how many of them, of those predicted, and of all are right."""
    t, p = labels.targets, labels.predictions
    both, true, called, right = (each.sum(axis=0) for each in (t & p, t, p, t == p))
    names = labels.names if len(labels.names) == len(true) else range(len(true))
    lines = [[figures.short(name, 40), f"{true[i]:,}", _share(both[i], called[i]), _share(both[i], true[i]),
              _share(right[i], len(t))] for i, name in enumerate(names)]
    table = number_table(["label", "items", "precision (%)", "recall (%)", "accuracy (%)"], lines)
    return (f'<p class="faint">Of {len(t):,} test items. A label is predicted if its logit is above 0, or its '
            f'probability above a half.</p>{table}')


def _share(part: np.integer, whole: int | np.integer) -> str:
    return f"{100 * part / whole:.1f}" if whole else "none"


def _scatter(numbers: Numbers) -> str:
    y, p = (each.ravel() for each in numbers)
    spread = float(((y - y.mean()) ** 2).sum())
    error = float(((y - p) ** 2).mean())
    told = f"Root mean square error {math.sqrt(error):.4g}, mean absolute error {np.abs(y - p).mean():.4g}" + (
        f", R² {1 - error * y.size / spread:.4g}" if spread else "")
    every = -(-y.size // MAX_POINTS)
    return scatter(y[::every], p[::every], "target", "prediction") + (
        f'<p class="faint">{told}, over {y.size:,} values. The dashed line: prediction = target.</p>')


def _residuals(numbers: Numbers) -> str:
    rest = (numbers.predictions - numbers.targets).ravel()
    counts, edges = np.histogram(rest, 30)
    return bars(counts.tolist(), float(edges[0]), float(edges[-1]), "prediction - target", "test values")


def _beside(pairs: Pairs) -> str:
    if not pairs.rows:
        return ""
    among = len(pairs.rows) * len(pairs.columns)
    rows = "".join(f'<li>{"".join(_image(image, name, among) for image, name in zip(images, pairs.columns))}'
                   f'<span>{escape(pairs.error)} {error:.4g}</span></li>' for error, images in pairs.rows)
    return (f'<p class="faint">From the left: {escape(", ".join(pairs.columns))}. The '
            f'{len(pairs.rows)} with the largest {escape(pairs.error)}.</p><ul class="pictures many">{rows}</ul>')


# ---------------------------------------------------------------- tables
def _settings(settings: Mapping[str, Any]) -> str:
    """Those that were given, and behind a fold those that were not."""
    given = {name: value for name, value in settings.items() if not any(value is each or (
        type(value) is type(each) and value == each) for each in NOT_GIVEN)}
    rest = {name: value for name, value in settings.items() if name not in given}
    return _table(given) + (folded(f"{len(rest)} more, which were not given", _table(rest)) if rest else "")


def folded(title: str, content: str, is_open: bool = False) -> str:
    """What is seen when its title is clicked."""
    return f"<details{' open' * is_open}><summary>{title}</summary>{content}</details>"


def _table(facts: Mapping[str, Any]) -> str:
    rows = (f'<tr><th scope="row">{escape(str(name).replace("_", " "))}</th><td>{escape(_shown(value))}</td></tr>'
            for name, value in facts.items())
    return f'<table class="facts">{"".join(rows)}</table>' if facts else ""


def _shown(value: object) -> str:
    """A value of config.json, as a reader writes it."""
    if isinstance(value, bool) or value is None:
        return "not given" if value is None else "yes" if value else "no"
    return figures.short(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), MAX_SHOWN)


def _mistaken(answers: Answers) -> str:
    """The classes that are most often mistaken, which a large matrix does not tell."""
    wrong = answers.counts * (1 - np.eye(len(answers.counts), dtype=int))
    most = np.argsort(-wrong, axis=None, kind="stable")[:MAX_PAIRS]
    name = [figures.short(name, 40) for name in answers.classes]
    lines = [[name[label], name[prediction], f"{wrong[label, prediction]:,}",
              _share(wrong[label, prediction], answers.counts[label].sum())]
             for label, prediction in zip(*np.unravel_index(most, wrong.shape)) if wrong[label, prediction]]
    head = ["class", "predicted", answers.items, "of the class (%)"]
    return number_table(head, lines) if lines else "<p>There is no mistake.</p>"


def _mistakes(answers: Answers) -> str:
    right, count = int(np.trace(answers.counts)), int(answers.counts.sum())
    counted = f"{right:,} of {count:,} test {answers.items} are right, {count - right:,} are wrong."
    if not any(mistake.image is not None for mistake in answers.worst):        # of rows, and of pixels
        return f'<p class="faint">{counted}</p>'
    name = [escape(figures.short(name, 40)) for name in answers.classes]
    among = len(answers.worst)
    items = (f'<li>{_image(mistake.image, "test image", among)}<span>is <b class="train">{name[mistake.label]}</b> '
             f'{_percent(mistake.of_label)}</span><span>predicted <b class="test">{name[mistake.prediction]}</b> '
             f'{_percent(mistake.of_prediction)}</span></li>' for mistake in answers.worst)
    return (f'<p class="faint">{counted} Here are the {among} that the net got most wrong: their true '
            'class got the smallest probability, the smallest first. In brackets: the probability of the class.</p>'
            f'<ul class="pictures">{"".join(items)}</ul>')


def _percent(share: float) -> str:
    return f"({100 * share:.2f}&nbsp;%)" if share >= 0.0001 else "(below&nbsp;0.01&nbsp;%)"


def _image(image: np.ndarray | None, name: str, among: int) -> str:
    """A test image, (h,w,3) uint8, one of `among` images, which are all made as small as the page needs; nothing if it
    is not an image."""
    if image is None:
        return ""
    h, w, _ = image.shape
    k = min(math.ceil(math.sqrt(h * w * among / MAX_PIXELS)), h, w)
    small = image[:h // k * k, :w // k * k].reshape(h // k, k, w // k, k, 3).mean(axis=(1, 3))     # (h/k, w/k, 3)
    return f'<img src="{png(np.round(small).astype(np.uint8))}" alt="{escape(name)}" title="{escape(name)}">'


def _epochs(run: Run) -> str:
    names = [name for name in dict.fromkeys(name for epoch in run.metrics for name in epoch)
             if any(figures.is_number(epoch.get(name)) for epoch in run.metrics)]
    lines = [[f"{v:.5g}" if figures.is_number(v := epoch.get(name)) else "" for name in names] for epoch in run.metrics]
    found = best(run)
    table = number_table([name.replace("_", " ") for name in names], lines, found[0] if found else -1)
    return "" if not lines else table if len(lines) <= MAX_OPEN else folded(f"{len(lines)} epochs", table)
