"""The figures: curves, filters, confusion matrix. Each is drawn for a theme, light or dark, at one width."""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...core.host import install
from ...nn.weights.files import replace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Metrics = Mapping[str, Any]
Path_ = str | os.PathLike[str]

WIDTH = 4.0                                # inches: 384 pixels of a screen, so that a telephone shows it unscaled
DOTS_PER_INCH = 240
MAX_FILTERS = 256                          # more are too small to be seen
MAX_ROWS, MAX_CHANNELS = 32, 16            # of filters that are not grey or colour images
GAP = 4                                    # pixels between two filters
MAX_NAMED_CLASSES = 20                     # of more, some are named
MAX_COUNTED_CLASSES = 12                   # of more, the counts do not fit their cells
MAX_FLOAT = sys.float_info.max
MAX_NAME = 16                              # characters


class Theme(NamedTuple):
    """Colours of a page and its figures. The series' are from Okabe and Ito's set, which colour-blind readers can
    distinguish; in addition each has its own marker."""

    ink: str
    faint: str
    line: str
    paper: str
    series: dict[str, str]


LIGHT = Theme("#1f2328", "#59636e", "#d1d9e0", "#ffffff", {"train": "#0072b2", "test": "#c44e00", "": "#00795a"})
DARK = Theme("#e6edf3", "#a3adb8", "#3d444d", "#151b23", {"train": "#56b4e9", "test": "#f0a13a", "": "#3fc79a"})

MARKERS = {"train": "o", "test": "s", "": "^"}
LABELS = {"loss": "loss per image", "lr": "learning rate"}
NOT_DRAWN = {"epoch", "step", "seconds", "images_per_second"}


# ---------------------------------------------------------------- for a user
def curves(metrics: Sequence[Metrics], path: Path_ | None = None) -> Figure:
    """Draw what `training.fit` returned, or `training.read_metrics` read, over the epochs: a panel for the loss, one
    for each other metric, one for the learning rate. Returns the figure, which a notebook shows.

    `train_x` and `test_x` share panel x; an accuracy is drawn in percent. What is not a finite number is left out, and
    the legend counts it. path: a file to write, too: .png, .svg or .pdf. Raises ValueError without an epoch,
    ImportError without matplotlib.
    """
    return _shown(curves_figure(metrics, LIGHT), path)


def filters(weights: np.ndarray, path: Path_ | None = None) -> Figure:
    """Draw a layer's filters (m,c,kh,kw) as small images, as Fig. 13 of Krizhevsky's report of 2009: in colour if c is
    3, grey if it is 1; for any other c each channel is a grey image of its own, one row per filter. Returns the figure,
    which a notebook shows.

    Each filter is scaled over all its channels: a weight of 0 is mid-grey, the largest |weight| of the filter is at the
    end of the scale. path: a file to write, too: .png, .svg or .pdf. Raises ValueError for another shape, ImportError
    without matplotlib.
    """
    return _shown(filters_figure(weights, LIGHT), path)


def confusion(labels: Sequence[int] | np.ndarray, predictions: Sequence[int] | np.ndarray, classes: Sequence[str] = (),
              path: Path_ | None = None) -> Figure:
    """Draw how many images of each class (a row) were predicted as which (a column): labels (n,), predictions (n,).
    Returns the figure, which a notebook shows.

    classes: their names; () for numbers. path: a file to write, too: .png, .svg or .pdf. Raises ValueError for other
    shapes or a label that has no class, ImportError without matplotlib.
    """
    counts = count_pairs(labels, predictions, len(classes))
    return _shown(confusion_figure(counts, classes or range(len(counts)), LIGHT), path)


def count_pairs(labels: Sequence[int] | np.ndarray, predictions: Sequence[int] | np.ndarray,
                classes: int = 0) -> np.ndarray:
    """How often each label (n,) was predicted as each class: (classes, classes); 0 classes for as many as occur.

    >>> count_pairs([0, 0, 1], [0, 1, 1]).tolist()
    [[1, 1], [0, 1]]
    """
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if labels.ndim != 1 or labels.shape != predictions.shape or not labels.size \
            or labels.dtype.kind not in "iu" or predictions.dtype.kind not in "iu":
        raise ValueError(f"confusion: labels are {labels.dtype} {labels.shape} and predictions {predictions.dtype} "
                         f"{predictions.shape} but both must be integers (n,), n at least 1; pass classes, such as "
                         "logits.argmax(axis=1)")
    both = np.concatenate([labels, predictions]).astype(np.int64)
    classes = classes or int(both.max()) + 1
    if both.min() < 0 or both.max() >= classes:
        raise ValueError(f"confusion: classes {both.min()} to {both.max()} occur but there are {classes}, from 0; name "
                         "all of them")
    return np.bincount(both[:labels.size] * classes + both[labels.size:], minlength=classes**2).reshape(classes, -1)


# ---------------------------------------------------------------- what they share
def new_figure(theme: Theme, height: float) -> Figure:
    """An empty figure of the common width, with nothing of pyplot's."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"plot: matplotlib cannot be imported ({error}); run {install('plot')}") from None
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Figure((WIDTH, height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08), facecolor=theme.paper)


def style(axes: Axes, theme: Theme) -> None:
    """Give axes the theme's colours and the common sizes."""
    axes.set_facecolor(theme.paper)
    axes.tick_params(colors=theme.ink, labelcolor=theme.ink, color=theme.line, labelsize=9)
    for spine in axes.spines.values():
        spine.set_color(theme.line)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=theme.ink, fontsize=9, parse_math=False)


def rendered(figure: Figure, kind: str = "png") -> bytes:
    """A figure as a file's bytes, which name no program and no time."""
    file, nothing = io.BytesIO(), {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    figure.savefig(file, format=kind, dpi=DOTS_PER_INCH, metadata=nothing[kind])
    return file.getvalue()


def write(path: Path, content: bytes) -> Path:
    """Write a file, whole or not at all."""
    replace(path, content)
    return path


def _shown(figure: Figure, path: Path_ | None) -> Figure:
    """The figure that a function returns, in a file too if it has a path. A notebook shows figures by `_repr_png_`, or
    only those of pyplot."""
    if path is not None:
        kind = Path(path).suffix[1:].lower()
        if kind not in ("png", "svg", "pdf"):
            raise ValueError(f"plot: '{path}' must end in .png, .svg or .pdf; rename it")
        write(Path(path), rendered(figure, kind))
    vars(figure)["_repr_png_"] = partial(in_a_notebook, figure)
    return figure


def in_a_notebook(figure: Figure) -> tuple[bytes, dict[str, int]]:
    """A figure's pixels, and the size at which a notebook shows them, as IPython asks for it."""
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return rendered(figure), {"width": width, "height": height}


def short(name: object, most: int = MAX_NAME) -> str:
    """A name of a file on one line: what cannot be printed is a "?", and a long one is cut in its middle.

    >>> short("red\\nfox"), short("a class with a long name, 17")
    ('red?fox', 'a class …ame, 17')
    """
    text = "".join(letter if letter.isprintable() else "?" for letter in str(name))
    return text if len(text) <= most else f"{text[:most // 2]}…{text[len(text) + 1 - (most + 1) // 2:]}"


# ---------------------------------------------------------------- curves
def panels(metrics: Sequence[Metrics]) -> dict[str, dict[str, np.ndarray]]:
    """{"loss": {"train": (epochs,), "test": (epochs,)}, ..., "lr": {"": (epochs,)}}: pairs first, NaN for no number."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for key in dict.fromkeys(key for epoch in metrics for key, value in epoch.items() if is_number(value)):
        if key not in NOT_DRAWN:
            which, _, name = key.partition("_") if key.startswith(("train_", "test_")) else ("", "", key)
            values: list[Any] = [epoch.get(key) for epoch in metrics]
            found.setdefault(name, {})[which] = np.array(
                [value if is_number(value) and math.isfinite(value) else math.nan for value in values], np.float64)
    return {name: dict(sorted(series.items(), reverse=True))           # training before test
            for name, series in sorted(found.items(), key=lambda panel: "" in panel[1])}


def is_number(value: object) -> bool:
    """Whether a metric is a number that a float can be, NaN and infinity among them."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    size: Any = abs(value)
    return isinstance(size, (float, np.floating)) or bool(size <= MAX_FLOAT)


def curves_figure(metrics: Sequence[Metrics], theme: Theme) -> Figure:
    """As `curves`, for a theme."""
    found = panels(metrics)
    if not found:
        raise ValueError(f"curves: metrics has {len(metrics)} epochs with no number to draw but needs at least 1; "
                         "train for an epoch")
    known = all(is_number(m.get("epoch")) and math.isfinite(m["epoch"]) for m in metrics)
    epochs = np.array([m["epoch"] if known else i for i, m in enumerate(metrics, 1)], np.float64)
    figure = new_figure(theme, 0.5 + 1.5 * len(found))
    from matplotlib.ticker import MaxNLocator

    for axes, (name, series) in zip(figure.subplots(len(found), sharex=True, squeeze=False)[:, 0], found.items()):
        percent = 100 if name.endswith("accuracy") else 1
        complete = all(np.isfinite(values).all() for values in series.values())
        for which, values in series.items():
            finite = np.isfinite(values)
            last = f"last {percent * values[finite][-1]:.4g}" if finite.any() else ""
            left_out = "" if finite.all() else f"{np.sum(~finite)} not finite"
            axes.plot(epochs, percent * values, color=theme.series[which], marker=MARKERS[which], linewidth=1.6,
                      markersize=4 if len(epochs) <= 40 else 0 if finite.all() else 2,
                      label=", ".join(filter(None, [which, last, left_out])))
        axes.set_ylabel(LABELS.get(name, short(name.replace("_", " "))) + (" (%)" if percent == 100 else ""))
        axes.grid(color=theme.line, linewidth=0.6, alpha=0.7)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2 if complete else 1, frameon=False,
                    borderaxespad=0, fontsize=9, labelcolor=theme.ink, handlelength=1.5, handletextpad=0.5,
                    columnspacing=1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        style(axes, theme)
    axes.set_xlim(epochs.min() - 0.5, epochs.max() + 0.5)
    axes.set_xlabel("epoch (passes over the training set)")
    return figure


# ---------------------------------------------------------------- filters
def filters_mosaic(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the filters of weights (m,c,kh,kw) that are shown, all of them as one RGBA image (height,width,4) of 0 to 1)."""
    weights = np.asarray(weights, np.float64)
    if weights.ndim != 4 or not weights.size:
        raise ValueError(f"filters: weights has shape {weights.shape} but must be (m,c,kh,kw), none of them 0; pass a "
                         "convolution's weight, or a linear one's reshaped to images")
    _, c, kh, kw = weights.shape
    images = c in (1, 3)                               # a filter is one image; else each of its channels is
    shown = weights[:MAX_FILTERS] if images else weights[:MAX_ROWS, :MAX_CHANNELS]
    peaks = np.nan_to_num(np.abs(shown), nan=0, posinf=0).max(axis=(1, 2, 3), keepdims=True)
    tiles = np.nan_to_num(0.5 + 0.5 * shown / np.where(peaks > 0, peaks, 1), nan=0, posinf=1, neginf=0).clip(0, 1)
    tiles = tiles if images else tiles.reshape(-1, 1, kh, kw)
    columns = _columns(shown)
    rows = -(-len(tiles) // columns)

    enlarge = -(-48 // max(kh, kw))                    # so that the gap is thin
    height, width = kh * enlarge, kw * enlarge
    mosaic = np.zeros((rows * (height + GAP), columns * (width + GAP), 4))              # RGBA: the paper is seen
    for i, tile in enumerate(tiles):
        y, x = i // columns * (height + GAP), i % columns * (width + GAP)
        mosaic[y:y + height, x:x + width, :3] = tile.repeat(enlarge, 1).repeat(enlarge, 2).transpose(1, 2, 0)
        mosaic[y:y + height, x:x + width, 3] = 1
    return shown, mosaic[:-GAP, :-GAP]


def _columns(shown: np.ndarray) -> int:
    return math.ceil(math.sqrt(len(shown))) if shown.shape[1] in (1, 3) else shown.shape[1]


def filters_figure(weights: np.ndarray, theme: Theme) -> Figure:
    """As `filters`, for a theme."""
    weights = np.asarray(weights)
    shown, mosaic = filters_mosaic(weights)
    columns, images = _columns(shown), shown.shape[1] in (1, 3)
    rows = -(-len(shown) // columns) if images else len(shown)
    height, width = ((mosaic.shape[i] + GAP) // n - GAP for i, n in ((0, rows), (1, columns)))

    inches = min((WIDTH - 0.7) / columns, 1.0, width / height)                          # width of a tile
    figure = new_figure(theme, max(1.3 + inches * rows * (height + GAP) / (width + GAP), 2.4))
    figure.suptitle(filters_caption(weights, shown), x=0.02, ha="left", fontsize=9, color=theme.ink)
    axes = figure.subplots()
    axes.imshow(mosaic, interpolation="nearest")
    x_step, y_step = (-(-count // 16) for count in (columns, rows))
    axes.set_xticks([x * (width + GAP) + width / 2 for x in range(0, columns, x_step)],
                    [str(x) for x in range(0, columns, x_step)])
    axes.set_yticks([y * (height + GAP) + height / 2 for y in range(0, rows, y_step)],
                    [str(y * columns if images else y) for y in range(0, rows, y_step)])
    axes.set_xlabel("filter of the row" if images else "channel of the filter")
    axes.set_ylabel("first filter of the row" if images else "filter")
    style(axes, theme)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_anchor("N")
    return figure


def filters_caption(weights: np.ndarray, shown: np.ndarray) -> str:
    """What is shown of weights."""
    m, c, kh, kw = weights.shape
    counts = [f"{len(shown)} of {m}" if len(shown) < m else f"{m}", "filter" if m == 1 else "filters", f"{kh}x{kw}",
              {1: "(grey)", 3: "(red, green, blue)"}.get(c, f"of {c} channels")]
    lines = [" ".join(counts), "each scaled over all its channels: weight 0 is mid-grey"]
    wrong = weights.size - np.count_nonzero(np.isfinite(weights))
    return "\n".join([*lines, f"{wrong} weights are not finite"] if wrong else lines)


# ---------------------------------------------------------------- confusion matrix
def confusion_figure(counts: np.ndarray, classes: Sequence[object], theme: Theme) -> Figure:
    """As `confusion`, for a theme: counts (classes, classes), a row per true class."""
    figure = new_figure(theme, WIDTH + 0.35)
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    colours = LinearSegmentedColormap.from_list("shares", [theme.paper, theme.series["train"]])
    axes = figure.subplots()
    image = axes.imshow(shares, cmap=colours, norm=PowerNorm(0.5, 0, 100), interpolation="nearest")
    every = -(-len(classes) // MAX_NAMED_CLASSES)
    ticks = range(0, len(classes), every)
    names = [short(classes[i]) for i in ticks]
    crowded = len(ticks) > 12
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(ticks, names, parse_math=False,
                    **({"rotation": 90} if crowded else turned if max(map(len, names)) > 2 else {}))
    axes.set_yticks(ticks, names, parse_math=False)
    style(axes, theme)
    axes.tick_params(labelsize=7 if crowded else 9)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    if len(classes) <= MAX_COUNTED_CLASSES:
        width, cells = len(str(counts.max())), image.to_rgba(shares)
        for (row, column), count in np.ndenumerate(counts):
            if count:
                axes.text(column, row, str(count), ha="center", va="center",
                          fontsize=min(9, 300 / len(classes) / width),
                          color=max(theme.ink, theme.paper, key=partial(_contrast, cells[row, column])))
    bar = figure.colorbar(image, ax=axes, location="top", aspect=40, pad=0.02, ticks=[0, 1, 5, 20, 50, 100])
    bar.outline.set_visible(False)
    bar.set_label("share of the true class (%)")
    style(bar.ax, theme)
    return figure


def _contrast(background: Any, text: str) -> float:
    """How well a colour is read on another, from 1 to 21, as WCAG defines it."""
    from matplotlib.colors import to_rgb

    light, dark = sorted((np.dot(np.array(to_rgb(colour)) ** 2.2, (0.2126, 0.7152, 0.0722))
                          for colour in (background, text)), reverse=True)
    return float((light + 0.05) / (dark + 0.05))
