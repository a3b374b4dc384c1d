"""report.html: what is known of a run, as one page that needs no other file and no network."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np

from .figures import DARK, LIGHT, Metrics, is_number, short

MAX_PAIRS = 10                             # of classes that are most often mistaken
MAX_SHOWN = 200                            # characters of a setting
VERSIONS = ("minidl", "python", "numpy", "cupy", "cuda", "driver")


class Picture(NamedTuple):
    """A figure in both themes, as the bytes of PNG files."""

    light: bytes
    dark: bytes


class Mistake(NamedTuple):
    """A test image (h,w,3), uint8 or None, its class, the class that was predicted, and their probabilities."""

    image: np.ndarray | None
    label: int
    prediction: int
    of_label: float
    of_prediction: float


class Answers(NamedTuple):
    """A net's answers on a test set: how often each class (a row) was predicted as which (a column), the names of the
    classes, the shape of an input, and the worst mistakes, the least probable class first."""

    counts: np.ndarray
    classes: list[str]
    shape: tuple[int, ...]
    worst: list[Mistake]


class Run(NamedTuple):
    """What is known of a run."""

    folder: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    filters: np.ndarray | None
    answers: Answers | None
    notes: list[str]


# Every $name is a piece of HTML, in which each text that came from a file is escaped. The policy forbids what the
# page does not need: scripts, and anything from elsewhere.
PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
:root { --ink: $ink; --faint: $faint; --line: $line; --paper: $paper; --desk: #f6f8fa;
        --right: $right; --wrong: $wrong }
@media (prefers-color-scheme: dark) {
  :root { --ink: $dark_ink; --faint: $dark_faint; --line: $dark_line; --paper: $dark_paper; --desk: #0d1117;
          --right: $dark_right; --wrong: $dark_wrong }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--desk); color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
main { max-width: 1080px; margin: 0 auto; padding: 24px 12px }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 8px; overflow-wrap: anywhere }
h2 { font-size: 18px; margin: 0 0 8px }
p { margin: 0 0 8px; overflow-wrap: anywhere }
.faint, dt { color: var(--faint); font-size: 14px }
.note { border-left: 4px solid var(--wrong); padding-left: 12px }
dl { display: flex; flex-wrap: wrap; gap: 8px 32px; margin: 16px 0 }
dd { margin: 0; font-size: 22px; font-weight: 600 }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: 16px; min-width: 0 }
.cards { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)) }
.wide { grid-column: 1 / -1 }
@media (max-width: 600px) { main { padding: 16px 4px } header { padding: 0 8px } section { padding: 12px 8px } }
picture img { display: block; width: 100%; max-width: 480px; height: auto; margin: 0 auto }
.mistakes { display: grid; gap: 16px 12px; grid-template-columns: repeat(auto-fill, minmax(160px, 1fr));
            list-style: none; margin: 16px 0 0; padding: 0 }
.mistakes img { display: block; width: 96px; height: 96px; object-fit: contain; image-rendering: pixelated }
.mistakes span { display: block; font-size: 14px; overflow-wrap: anywhere }
.right { color: var(--right) }
.wrong { color: var(--wrong) }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: 14px; width: 100% }
td { overflow-wrap: anywhere }
th, td { text-align: left; vertical-align: top; padding: 4px 8px 4px 0; border-top: 1px solid var(--line) }
.facts { table-layout: fixed; overflow-wrap: anywhere }
.facts th { font-weight: normal; color: var(--faint); width: 40% }
.numbers th, .numbers td { text-align: right; white-space: nowrap; padding: 4px 8px }
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


def page(run: Run, drawn: Mapping[str, Picture]) -> str:
    """The report's HTML, with a run's pictures by the names "curves", "filters" and "confusion"."""
    config, colours = run.config, dict[str, str]()
    for name, theme in (("", LIGHT), ("dark_", DARK)):
        colours |= {f"{name}ink": theme.ink, f"{name}faint": theme.faint, f"{name}line": theme.line,
                    f"{name}paper": theme.paper, f"{name}right": theme.series["train"],
                    f"{name}wrong": theme.series["test"]}
    data = Path(str(config.get("data")))                   # a set's name, or a folder's path
    title = (f"{config['model']} on {data.name if data.is_absolute() else config['data']}"
             if {"model", "data"} <= config.keys() else run.folder.name)
    title = short(title, MAX_SHOWN)
    machine = config.get("machine")
    about: dict[str, Any] = {"device": config.get("device"),
                             **(machine if isinstance(machine, dict) else {"machine": machine}),
                             **{name: config[name] for name in VERSIONS if name in config}}
    elsewhere = {"machine", "device", "data_note", *VERSIONS}
    settings = {name: value for name, value in config.items() if name not in elsewhere}
    no_answers = "No test set was given, or no net."
    sections = [
        _section("Curves", _picture(drawn.get("curves"), "Curves over the epochs"), "No epoch is finished yet."),
        _section("Confusion matrix", _picture(drawn.get("confusion"), "Confusion matrix"), no_answers),
        _section("First layer's filters", _picture(drawn.get("filters"), "Filters as small images"),
                 "There is no net, or its first layer does not read images."),
        _section("Settings", _table(settings), "There is no config.json."),
        _section("Most frequent mistakes", _pairs(run.answers), no_answers),
        _section("Machine and versions", _table({name: value for name, value in about.items() if value is not None}),
                 "config.json does not name them."),
        _section("Test rows" if _items(run.answers) == "rows" else "Test images that the net got most wrong",
                 _mistakes(run.answers), no_answers, "wide"),
        _section("Epochs", _epochs(run.metrics), "No epoch is finished yet.", "wide")]
    return PAGE.substitute(
        colours, title=escape(title), sections="\n".join(sections),
        notes="\n".join(f'<p class="note">{escape(note)}</p>' for note in run.notes),
        facts="".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in _facts(run)))


def _facts(run: Run) -> Iterable[tuple[str, str]]:
    """The numbers at the top."""
    last = run.metrics[-1] if run.metrics else {}
    for name, label in (("test_accuracy", "test accuracy"), ("train_accuracy", "training accuracy")):
        if is_number(last.get(name)):
            yield label, f"{100 * last[name]:.2f} %"
    if is_number(last.get("test_loss")):
        yield "test loss", f"{last['test_loss']:.4g}"
    asked = run.config.get("epochs")
    yield "epochs", f"{len(run.metrics)} of {asked}" if is_number(asked) else str(len(run.metrics))
    seconds = [epoch["seconds"] for epoch in run.metrics if is_number(epoch.get("seconds"))]
    if seconds:
        yield "time", f"{sum(seconds):.1f} s"
    if is_number(last.get("images_per_second")):
        yield "training speed, last epoch", f"{last['images_per_second']:,.0f} images/s"


def _section(title: str, content: str, missing: str, kind: str = "") -> str:
    return f'<section class="{kind}">\n<h2>{title}</h2>\n{content or f"<p>{missing}</p>"}\n</section>'


def _data(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _picture(picture: Picture | None, alt: str) -> str:
    if picture is None:
        return ""
    return (f'<picture><source media="(prefers-color-scheme: dark)" srcset="{_data(picture.dark)}">'
            f'<img src="{_data(picture.light)}" alt="{alt}"></picture>')


def _table(facts: Mapping[str, Any]) -> str:
    rows = (f'<tr><th scope="row">{escape(str(name).replace("_", " "))}</th><td>{escape(_shown(value))}</td></tr>'
            for name, value in facts.items())
    return f'<table class="facts">{"".join(rows)}</table>' if facts else ""


def _shown(value: object) -> str:
    """A value of config.json, as a reader writes it."""
    if isinstance(value, bool) or value is None:
        return "not given" if value is None else "yes" if value else "no"
    return short(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), MAX_SHOWN)


def _items(answers: Answers | None) -> str:
    """What the test set counts."""
    return "rows" if answers and len(answers.shape) == 1 else "images"


def _pairs(answers: Answers | None) -> str:
    """The classes that are most often mistaken, which a large matrix does not tell."""
    if answers is None:
        return ""
    wrong = answers.counts * (1 - np.eye(len(answers.counts), dtype=int))
    most = np.argsort(-wrong, axis=None, kind="stable")[:MAX_PAIRS]
    name = [escape(short(name, 40)) for name in answers.classes]
    rows = [f'<tr><td>{name[label]}</td><td>{name[prediction]}</td><td>{wrong[label, prediction]}</td>'
            f'<td>{100 * wrong[label, prediction] / answers.counts[label].sum():.1f} %</td></tr>'
            for label, prediction in zip(*np.unravel_index(most, wrong.shape)) if wrong[label, prediction]]
    return (f'<table><tr><th>class</th><th>predicted</th><th>{_items(answers)}</th>'
            f'<th>of the class</th></tr>{"".join(rows)}</table>') if rows else "<p>There is no mistake.</p>"


def _mistakes(answers: Answers | None) -> str:
    if answers is None:
        return ""
    right, count = int(np.trace(answers.counts)), int(answers.counts.sum())
    counted = f"{right:,} of {count:,} test {_items(answers)} are right, {count - right:,} are wrong."
    if _items(answers) == "rows":          # which have no picture
        return f'<p class="faint">{counted}</p>'
    name = [escape(short(name, 40)) for name in answers.classes]
    items = (f'<li>{_image(mistake.image)}<span>is <b class="right">{name[mistake.label]}</b> '
             f'{_percent(mistake.of_label)}</span><span>predicted <b class="wrong">{name[mistake.prediction]}</b> '
             f'{_percent(mistake.of_prediction)}</span></li>' for mistake in answers.worst)
    return (f'<p class="faint">{counted} Here are the '
            f'{len(answers.worst)} whose true class got the smallest probability, the smallest first. In brackets: the '
            f'probability of the class.</p><ul class="mistakes">{"".join(items)}</ul>')


def _percent(share: float) -> str:
    return f"({100 * share:.2f}&nbsp;%)" if share >= 0.0001 else "(below&nbsp;0.01&nbsp;%)"


def _image(image: np.ndarray | None) -> str:
    """A test image, (h,w,3) uint8; nothing where it is not an image."""
    if image is None:
        return ""
    from matplotlib.image import imsave

    file, nothing = io.BytesIO(), dict[str, Any](Software=None)
    imsave(file, image, format="png", metadata=nothing)
    return f'<img src="{_data(file.getvalue())}" alt="test image">'


def _epochs(metrics: list[Metrics] | list[dict[str, Any]]) -> str:
    names = [name for name in dict.fromkeys(name for epoch in metrics for name in epoch)
             if any(is_number(epoch.get(name)) for epoch in metrics)]
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in names)
    rows = ("".join(f"<td>{escape(f'{v:.5g}' if is_number(v := epoch.get(name)) else '')}</td>" for name in names)
            for epoch in metrics)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    table = f'<div class="scroll" tabindex="0"><table class="numbers"><tr>{head}</tr>{body}</table></div>'
    return table if metrics else ""
