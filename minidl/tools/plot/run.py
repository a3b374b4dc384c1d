"""The pictures of a run folder: what is read from it, what its net answers on the test set, and the files drawn."""

from __future__ import annotations

import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from ... import data, nn, ops, zoo
from ...core.device import to_numpy
from ...core.tensor import Tensor
from ...data.sources import leaves, mapped
from ...lab.profile import cells
from ...nn import weights
from ...nn.table import MULTIPLY_ADDS, Summary, Watcher, watching
from ...ops.common.primitives import ACTIVATIONS
from ...training import Views, read_config, read_metrics, read_statistics
from ...training.metrics import Batch
from ...training.stored import contradictions, read_net, weights_in
from ...training.views import TTA, are_shares
from .figures import LIGHT, confusion_figure, count_pairs, curves_figure, filters_figure, rendered, write
from .page import PALETTE, Answers, Labels, Mistake, Numbers, Pairs, Run, page

MAX_MISTAKES = 24
MAX_NUMBERS = 2**20                        # values of a regression that are kept
Batches = Iterable[tuple[Any, Any]]
RECURRENT = nn.LSTM, nn.LSTMCell, nn.GRU, nn.GRUCell, nn.RNN, nn.RNNCell
T = TypeVar("T")
Code = str | Callable[..., nn.Module]


def pictures(folder: str | os.PathLike[str], model: nn.Module | None = None,
             test: Batches | None = None, code: Code | None = None) -> list[Path]:
    """Draw a run folder's curves.png, filters.png, confusion.png and report.html; returns the paths of those made.

    model: the trained net; None for the one in weights.h5, if the zoo can build it, or code, the function that built a
    net of one's own, as `minidl.load` takes it. test: a `data.DataLoader` of the test set, or other batches as `fit`
    takes them; None for the set that config.json names, if it is on this machine. What is lacking, or fails, is left
    out, and the report says why: a run that is not finished has its curves. Filters are those of the first convolution
    that runs, or those of the first linear layer if they have the shape of the images. Warns of a net that needs its
    code. Raises FileNotFoundError if there is no run folder, ValueError for a damaged file, OSError if the pictures
    cannot be written, ImportError without matplotlib.
    """
    run = read(Path(folder), model, test, code)
    draw: dict[str, tuple[Any, ...]] = {}
    if run.metrics:
        draw["curves"] = curves_figure, run.metrics
    if run.filters is not None:
        draw["filters"] = filters_figure, run.filters
    if run.answers:
        draw["confusion"] = confusion_figure, run.answers.counts, run.answers.classes
    return [*(write(run.folder / f"{name}.png", rendered(figure(*of, LIGHT))) for name, (figure, *of) in draw.items()),
            write(run.folder / "report.html", page(run).encode())]


def report(folder: str | os.PathLike[str], model: nn.Module | None = None,
           test: Batches | None = None, live: int = 0, code: Code | None = None) -> Path:
    """Write a run folder's report.html alone: one file that holds its pictures and needs no network, and no matplotlib.
    As `pictures`.

    live: seconds after which a browser that shows it reads it again; 0: never.
    """
    run = read(Path(folder), model, test, code)
    return write(run.folder / "report.html", page(run, live).encode())


# ---------------------------------------------------------------- what is known of a run
def read(folder: Path, model: nn.Module | None = None, test: Batches | None = None, code: Code | None = None) -> Run:
    """What a run folder holds, and what its net answers. Raises as `pictures` does."""
    config, metrics, file = folder / "config.json", folder / "metrics.jsonl", weights_in(folder)
    if not config.exists() and not metrics.exists():
        raise FileNotFoundError(f"plot: '{folder}' is not a run folder: it has neither config.json nor metrics.jsonl; "
                                "name one that minidl train has written")
    settings = _settings(config) if config.exists() else {}
    notes = [f"Data: {settings['data_note']}"] if settings.get("data_note") else []
    run = Run(folder, settings, read_metrics(folder) if metrics.exists() else [], read_statistics(folder), notes,
              profile=_profile(folder / "profile.json"))
    shape: tuple[int, ...] | None = None
    if model is None and file.exists():
        model, shape = _stored_model(file, code, notes)
    elif model is None:
        notes.append("There is no weights.h5: the run is not finished, or its net was not saved there; pass model=.")
    if model is None:
        return run
    if test is None:
        test = _stored_test(settings, file, next((p.device for p in model.parameters()), "cpu"), notes)
    how = TTA.get(str(settings.get("tta")))            # as the run's metrics have them
    views = Views(model, **how) if how and not isinstance(model, Views) else None
    if views and test is not None:
        notes.append(f"The answers are means over views of each image (--tta {settings['tta']}), as in the metrics; "
                     "minidl predict gives the net's for the image alone.")
    found = {} if test is None else _tried("answers", partial(answer, model, test, notes, views), notes) or {}
    example = found.pop("example", None)
    of_zoo = zoo.MODELS.get(getattr(model, "model_name", ""))
    shape = example.shape[1:] if isinstance(example, Tensor) else shape or (of_zoo.read_by(model) if of_zoo else None)
    if example is None and shape and 0 not in shape:
        example = (shape,)
    by_name = example if isinstance(example, dict) else {}
    by_place = () if example is None or by_name else example if isinstance(example, tuple) else (example,)
    layers = _tried("layers", partial(nn.summary, model, *by_place, **by_name), notes) if example is not None else None
    return run._replace(**found, filters=first_filters(model, shape, layers), layers=layers)


def _tried(what: str, make: Callable[[], T], notes: list[str]) -> T | None:
    """What `make` gives; None, with a note, if the net or its data make it fail: the rest of the report is there."""
    try:
        return make()
    except Exception as error:             # of a user's code: any
        notes.append(f"The net's {what} are left out: {type(error).__name__}: {error}")
        return None


def _settings(path: Path) -> dict[str, Any]:
    try:
        return read_config(path)
    except ValueError:
        raise ValueError(f"plot: {path} is damaged: it must be an object of JSON; copy it again, or remove "
                         "it") from None


def _profile(path: Path) -> dict[str, Any]:
    """What `minidl profile --run` has left; nothing if it is something else."""
    found = _settings(path) if path.exists() else {}
    try:
        cells(found["rows"], found["limits"])
    except (KeyError, TypeError, AttributeError, ArithmeticError):
        return {}
    return {**found, "title": found.get("title", "")}


def _stored_model(path: Path, code: Code | None, notes: list[str]) -> tuple[nn.Module | None, tuple[int, ...] | None]:
    """The net with a file's weights, and the shape of an item; None, with a note and a warning, if neither the zoo has
    it nor the user has named its code."""
    known = weights.read_metadata(path)
    if code is None and known["model"] not in zoo.MODELS:
        notes.append(f"The net's layers, filters and answers are left out: {path.name} was saved from "
                     f"{weights.not_of_zoo(known)}.")
        warnings.warn(notes[-1], UserWarning, stacklevel=5)
        return None, None
    net, _, shape = read_net(path, code)
    return net, shape


def _stored_test(settings: dict[str, Any], path: Path, device: str, notes: list[str]) -> data.DataLoader | None:
    """The test set that a run's settings name, in batches as its weights file says; None, with a note, if it is not on
    this machine, or has other classes or columns by now."""
    metadata = weights.read_metadata(path) if path.exists() else {}
    known, name = metadata.get("preprocessing"), str(settings.get("data"))
    if known is None or not (name in data.DATASETS or Path(name).exists()):
        notes.append("No test set was given, and the run does not say which it was and how its images were normalised.")
        return None
    try:
        if name in data.DATASETS:
            test: data.Data = data.load(name, "test", settings.get("data_dir"), download=False,
                                        count=settings.get("limit_test"))
        else:
            model = zoo.MODELS.get(metadata["model"])
            shape = len(known["mean"]), *(model.shape if model else metadata["input"] or (0, 0, 0))[1:]
            _, test = data.own_splits(name, shape, seed=settings.get("seed", 0), label=settings.get("label"),
                                      header=settings.get("header"))
    except (FileNotFoundError, ValueError, ImportError) as error:
        notes.append(f"The test set is not on this machine: {error}")
        return None
    for differ, _ in contradictions(path, metadata, test):
        notes.append(f"The net's answers are left out, as the data have changed: {differ}.")
        return None
    if metadata.get("transform"):
        weights.warn_of_transform(path, metadata)
        notes.append("In the training items went through a transform, which the weights' file cannot hold: here they "
                     "were given to the net without it.")
    return data.DataLoader(test.first(settings.get("limit_test")), 500, shuffle=False, device=device, **known)


def first_filters(model: nn.Module, shape: tuple[int, ...] | None = None, layers: Summary | None = None
                  ) -> np.ndarray | None:
    """The filters (m,c,kh,kw) of a net's first convolution; without one the weights of its first linear layer as images
    of a shape (c,h,w), if they fit it, else None. A net of the zoo knows its images' shape by itself. layers: those
    that run, in their order; None for the order in which they are defined.

    >>> first_filters(zoo.build("perceptron", in_channels=1)).shape
    (10, 1, 32, 32)
    """
    modules = dict(model.named_modules())
    ran = [modules[path] for path in (modules if layers is None else (row.path for row in layers.rows))]
    found = [(module, weight.numpy()) for module in ran
             if isinstance(weight := getattr(module, "weight", None), Tensor)]
    for module, weight in found:
        if weight.ndim == 4 and not isinstance(module, nn.LocallyConnected2d):     # its filters are of one place each
            return weight.swapaxes(0, 1) if isinstance(module, nn.ConvTranspose2d) else weight
    matrix = next((weight for module, weight in found if weight.ndim == 2), None)
    if matrix is None:
        return None
    if shape is None and "in_channels" in (known := getattr(model, "model_args", {})):
        side = math.isqrt(matrix.shape[1] // known["in_channels"])
        shape = known["in_channels"], side, side
    fits = shape is not None and len(shape) == 3 and math.prod(shape) == matrix.shape[1]
    return matrix.reshape(-1, *shape) if fits else None        # type: ignore[misc]


def answer(model: nn.Module, test: Batches, notes: list[str], views: Views | None = None) -> dict[str, Any]:
    """What a net, or its views, answers on batches as `fit` takes them, in evaluation mode, off the tape: fields of a
    Run, and an example, the first item's inputs.

    By the shapes of outputs and targets it is a classifier, finds masks, makes images, or predicts numbers. For any
    other net there is only a note. Of several inputs, the first images are shown. Raises ValueError if there is no
    item, or a label has no output.
    """
    units, kind = Units(model), None
    preprocessing, example = getattr(test, "preprocessing", None), None
    with watching(model, units):
        for batch in map(Batch.of, test):
            units.begin()
            outputs, targets, parts = batch.outputs(model), batch.targets, leaves(batch.inputs)
            inputs = next((part for part in parts if part.ndim == 4), parts[0])
            if batch.weights is not None and isinstance(targets, Tensor) and targets.dtype.kind in "iu":
                labels = targets.numpy().astype(np.int64)
                labels[batch.weights.numpy() == 0] = -1        # does not count, as in the metrics
                targets = Tensor(labels)
            if views is not None:
                with watching(views, Watcher(views)):       # units are those of one call of the net
                    outputs = batch.outputs(views)
            if example is None:
                example = mapped(lambda part: part[:1], batch.inputs)
                kind = next((make(preprocessing) for fits, make in KINDS if isinstance(outputs, Tensor)
                             and isinstance(targets, Tensor) and fits(outputs, targets, inputs)), None)
            if kind is None:
                notes.append("The net's outputs and targets are none that are drawn: classes (n, classes) of labels "
                             "(n,), masks, images, numbers.")
                return {"example": example}
            kind.take(inputs, outputs, targets)
    if kind is None:
        raise ValueError("plot: the test set has 0 images but needs at least 1")
    names = [str(name) for name in getattr(getattr(test, "dataset", None), "classes", ())]
    found = kind.found(names)
    notes += found.pop("notes", ())
    return {"example": example, "silent": units.silent(), **found}


class Classes:
    """Of logits or probabilities (n,classes) and labels (n,): which are right, and the worst mistakes. A label below 0
    is ignored, and so is an item whose outputs are NaN."""

    def __init__(self, preprocessing: dict[str, Any] | None):
        self.preprocessing, self.counts = preprocessing, np.zeros((0, 0), int)
        self.worst: list[Mistake] = []
        self.shape: tuple[int, ...] = ()
        self.left_out = 0

    def take(self, images: Tensor, outputs: Tensor, targets: Tensor) -> None:
        labels, logits, self.shape = targets.numpy(), outputs.numpy(), images.shape[1:]
        unknown = np.isnan(logits).any(axis=1)
        self.left_out += int(unknown.sum())
        at = np.flatnonzero(~unknown & (labels >= 0))
        if not at.size:
            return
        shares = outputs if are_shares(outputs) else ops.softmax(outputs, axis=1)
        labels, predictions, sure = labels[at], logits[at].argmax(axis=1), np.nan_to_num(shares.numpy()[at])
        self.count(labels, predictions, logits.shape[1])
        of_labels = sure[np.arange(len(labels)), labels]
        wrong = np.flatnonzero(predictions != labels)
        self.worst += [Mistake(as_picture(images[int(at[i])].numpy(), self.preprocessing),
                               *(labels[i], predictions[i], of_labels[i], sure[i, predictions[i]]))
                       for i in wrong[np.argsort(of_labels[wrong], kind="stable")][:MAX_MISTAKES].tolist()]
        self.worst = sorted(self.worst, key=lambda mistake: mistake.of_label)[:MAX_MISTAKES]

    def count(self, labels: np.ndarray, predictions: np.ndarray, classes: int) -> None:
        found = count_pairs(labels, predictions, classes)
        self.counts = found if not self.counts.size else self.counts + found

    def answers(self, names: list[str], items: str) -> Answers:
        named = names[:len(self.counts)]
        return Answers(self.counts, [*named, *map(str, range(len(named), len(self.counts)))], self.shape, self.worst,
                       items)

    def found(self, names: list[str], items: str = "") -> dict[str, Any]:
        items = items or {1: "rows", 3: "images"}.get(len(self.shape), "items")
        notes = [f"{self.left_out} test {items} are left out: the net's outputs are NaN."] * (self.left_out > 0)
        return {"notes": notes, **({"answers": self.answers(names, items)} if self.counts.size else {})}


class Images:
    """Of outputs like the images, and targets like them or none: the input, the target, the output, the worst first."""

    error = "mean squared error"

    def __init__(self, preprocessing: dict[str, Any] | None):
        self.preprocessing, self.rows = preprocessing, list[tuple[float, list[np.ndarray | None]]]()
        self.columns: tuple[str, ...] = ()

    def take(self, images: Tensor, outputs: Tensor, targets: Tensor) -> None:
        own = targets.shape == outputs.shape
        self.columns = ("input", "target", "output") if own else ("input", "output")
        x, y = images.numpy(), outputs.numpy()
        t = targets.numpy() if own else x
        self.add(((y - t) ** 2).mean(axis=(1, 2, 3)), lambda i: [
            as_picture(each[i], self.preprocessing) for each in ((x, t, y) if own else (x, y))])

    def add(self, errors: np.ndarray, pictures: Callable[[int], list[np.ndarray | None]]) -> None:
        """Keep the largest errors, with their pictures."""
        errors = np.nan_to_num(errors, nan=math.inf)
        self.rows += [(float(errors[i]), pictures(i))
                      for i in np.argsort(-errors, kind="stable")[:MAX_MISTAKES].tolist()]
        self.rows = sorted(self.rows, key=lambda row: -row[0])[:MAX_MISTAKES]

    def found(self, names: list[str]) -> dict[str, Any]:
        return {"pairs": Pairs(self.columns, self.rows, self.error)}


class Masks(Images):
    """Of logits (n,classes,h,w) and labels (n,h,w): which pixels are right, and the masks side by side. A label that is
    not a class does not count, nor does a pixel whose outputs are NaN."""

    error = "share of wrong pixels"
    columns = "image", "mask", "predicted mask"

    def __init__(self, preprocessing: dict[str, Any] | None):
        super().__init__(preprocessing)
        self.columns, self.pixels = Masks.columns, Classes(preprocessing)

    def take(self, images: Tensor, outputs: Tensor, targets: Tensor) -> None:
        labels, classes = targets.numpy(), outputs.shape[1]
        predictions, unknown = outputs.numpy().argmax(axis=1), np.isnan(outputs.numpy()).any(axis=1)
        self.pixels.left_out += int(unknown.sum())
        known = ~unknown & (labels >= 0) & (labels < classes)
        if known.any():
            self.pixels.count(labels[known], predictions[known], classes)
        wrong = (known & (labels != predictions)).sum(axis=(1, 2)) / np.maximum(known.sum(axis=(1, 2)), 1)
        colours = np.array([[int(each[k:k + 2], 16) for k in (1, 3, 5)] for each, _ in PALETTE], np.uint8)

        def drawn(mask: np.ndarray) -> np.ndarray:
            return np.where((mask > 0)[..., None], colours[(mask - 1) % len(colours)], 0).astype(np.uint8)
        self.add(wrong, lambda i: [as_picture(images[i].numpy(), self.preprocessing), drawn(labels[i]),
                                   drawn(predictions[i])])

    def found(self, names: list[str]) -> dict[str, Any]:
        return {**super().found(names), **self.pixels.found(names, "pixels")}


class Regression:
    """Of numbers and numbers. If all targets are 0 and 1 these are labels, and the numbers their logits, or their
    probabilities if all are from 0 to 1."""

    def __init__(self, preprocessing: object):
        self.parts: list[tuple[np.ndarray, np.ndarray]] = []
        self.more = 0

    def take(self, inputs: Tensor, outputs: Tensor, targets: Tensor) -> None:
        if sum(part.size for part, _ in self.parts) < MAX_NUMBERS:
            self.parts.append(tuple(each.numpy().reshape(len(each), -1).astype(np.float64)  # type: ignore[arg-type]
                                    for each in (targets, outputs)))
        else:
            self.more += len(targets)

    def found(self, names: list[str]) -> dict[str, Any]:
        both = [np.concatenate(each) for each in zip(*self.parts)]
        known = np.isfinite(both[0]).all(axis=1) & np.isfinite(both[1]).all(axis=1)
        targets, outputs = (each[known] for each in both)
        left_out = {"their outputs or targets are not finite": np.sum(~known), "the others are enough": self.more}
        found: dict[str, Any] = {"notes": [f"{n} test items are left out: {why}." for why, n in left_out.items() if n]}
        if np.array_equal(np.unique(targets), [0, 1]):
            shares = outputs.min() >= 0 and outputs.max() <= 1
            return {**found, "labels": Labels(targets == 1, outputs > (0.5 if shares else 0), names)}
        return {**found, "numbers": Numbers(targets, outputs)} if known.any() else found


# What a net is, by outputs, targets and inputs: the first that fits.
KINDS: tuple[tuple[Callable[[Tensor, Tensor, Tensor], bool], Callable[[Any], Any]], ...] = (
    (lambda y, t, x: y.ndim == 2 and t.ndim == 1 and t.dtype.kind in "iu" and y.shape[1] > 1, Classes),
    (lambda y, t, x: y.ndim == 4 and t.shape == (y.shape[0], *y.shape[2:]) and t.dtype.kind in "iu", Masks),
    (lambda y, t, x: y.ndim == 4 and (y.shape in (t.shape, x.shape)), Images),
    (lambda y, t, x: y.ndim < 3 and t.dtype.kind == "f" and y.size == t.size, Regression))


class Units(Watcher):
    """Is told of a net's activations: the least and the largest output of each unit, over all items and places. Units
    are the channels of a convolution, and else the last axis. Gates of recurrent layers are no units."""

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.paths = {id(module): path for path, module in model.named_modules()}
        self.count = Counter[tuple[str, int]]()
        self.ends: dict[tuple[str, int, int], tuple[np.ndarray, np.ndarray]] = {}
        self.axis = 1                      # of the units

    def begin(self) -> None:
        """Another batch is about to run."""
        self.calls.clear()
        self.count.clear()
        self.axis = 1

    def run(self, name: str, body: Callable[..., Any], k: ModuleType, arrays: list[Any],
            options: dict[str, Any]) -> Any:
        y, backward = super().run(name, body, k, arrays, options)
        if name.startswith("conv") or name in MULTIPLY_ADDS:
            self.axis = 1 if name.startswith("conv") else -1
        if name in ACTIVATIONS and y.ndim > 1 and y.size and not isinstance(module := self.open[-1].module, RECURRENT):
            call = self.paths.get(id(module), ""), sum(each.module is module for each in self.calls) - 1
            self.count[call] += 1
            axes = tuple(i for i in range(y.ndim) if i != self.axis % y.ndim)
            low, high = to_numpy(y.min(axis=axes)), to_numpy(y.max(axis=axes))
            key = *call, self.count[call]
            before = self.ends.get(key)
            if before is None or before[0].shape == low.shape:
                self.ends[key] = (low, high) if before is None else (np.minimum(low, before[0]),
                                                                     np.maximum(high, before[1]))
        return y, backward

    def silent(self) -> dict[tuple[str, int], tuple[int, int]]:
        """By the path of the module that called an activation, and the number of the module's call, from 0: units with
        one output for all, and how many it has."""
        found = dict[tuple[str, int], tuple[int, int]]()
        for (path, number, _), (low, high) in self.ends.items():
            silent, all_ = found.get((path, number), (0, 0))
            found[path, number] = silent + int(np.sum(low == high)), all_ + low.size
        return found


def as_picture(image: np.ndarray, preprocessing: dict[str, Any] | None = None) -> np.ndarray | None:
    """An image (c,h,w) as the net reads it, as bytes (h,w,3); None for data that are not an image.

    What a DataLoader's preprocessing did is undone; without it, the darkest value becomes black and the brightest
    white. Of channels that are not red, green and blue the first is shown, in grey.

    >>> as_picture(np.array([[[-1.0, 1.0]]])).tolist()
    [[[0, 0, 0], [255, 255, 255]]]
    """
    if image.ndim != 3 or not image.size:
        return None
    image = np.nan_to_num(image.astype(np.float64))
    if preprocessing:
        mean, std = (np.reshape(preprocessing[name], (-1, 1, 1)) for name in ("mean", "std"))
        p = preprocessing["padding"]
        image = (image * std + mean)[:, p:image.shape[1] - p, p:image.shape[2] - p]
    else:
        image = (image - image.min()) / (np.ptp(image) or 1)
    image = image if len(image) == 3 else image[:1].repeat(3, 0)
    return np.round(255 * image.clip(0, 1)).astype(np.uint8).transpose(1, 2, 0)
