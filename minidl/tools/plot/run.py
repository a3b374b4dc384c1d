"""The pictures of a run folder: what is read from it, what its net answers on the test set, and the files drawn."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ... import data, nn, ops, zoo
from ...core.mode import no_grad
from ...core.tensor import Tensor
from ...nn import weights
from ...nn.module import switched
from ...training import read_config, read_metrics
from .figures import DARK, LIGHT, confusion_figure, count_pairs, curves_figure, filters_figure, rendered, write
from .page import Answers, Mistake, Picture, Run, page

MAX_MISTAKES = 24
Batches = Iterable[tuple[Any, Any]]


def pictures(folder: str | os.PathLike[str], model: nn.Module | None = None,
             test: Batches | None = None) -> list[Path]:
    """Draw a run folder's curves.png, filters.png, confusion.png and report.html; returns the paths of those made.

    model: the trained net; None for the one in weights.h5, if the zoo can build it. test: a `data.DataLoader` of the
    test set, or other batches of (images, labels); None for the set that config.json names, if it lies on this machine.
    What is lacking is left out, and the report says why: a run that is not finished has its curves. Filters are those
    of the first convolution, or those of the first linear layer where they have the shape of the images. Raises
    FileNotFoundError where there is no run folder, ValueError for a damaged file, OSError where the pictures cannot be
    written, ImportError without matplotlib.
    """
    run, drawn = _drawn(folder, model, test)
    return [*(write(run.folder / f"{name}.png", picture.light) for name, picture in drawn.items()),
            write(run.folder / "report.html", page(run, drawn).encode())]


def report(folder: str | os.PathLike[str], model: nn.Module | None = None,
           test: Batches | None = None) -> Path:
    """Write a run folder's report.html alone: one file that holds its pictures and needs no network. As `pictures`."""
    run, drawn = _drawn(folder, model, test)
    return write(run.folder / "report.html", page(run, drawn).encode())


def _drawn(folder: str | os.PathLike[str], model: nn.Module | None,
           test: Batches | None) -> tuple[Run, dict[str, Picture]]:
    run = read(Path(folder), model, test)
    draw: dict[str, tuple[Any, ...]] = {}
    if run.metrics:
        draw["curves"] = curves_figure, run.metrics
    if run.filters is not None:
        draw["filters"] = filters_figure, run.filters
    if run.answers:
        draw["confusion"] = confusion_figure, run.answers.counts, run.answers.classes
    return run, {name: Picture(*(rendered(figure(*of, theme)) for theme in (LIGHT, DARK)))
                 for name, (figure, *of) in draw.items()}


# ---------------------------------------------------------------- what is known of a run
def read(folder: Path, model: nn.Module | None = None, test: Batches | None = None) -> Run:
    """What a run folder holds, and what its net answers. Raises as `pictures` does."""
    config, metrics, file = (folder / name for name in ("config.json", "metrics.jsonl", "weights.h5"))
    if not config.exists() and not metrics.exists():
        raise FileNotFoundError(f"plot: '{folder}' is not a run folder: it has neither config.json nor metrics.jsonl; "
                                "name one that minidl train has written")
    settings = _settings(config) if config.exists() else {}
    notes = [f"Data: {settings['data_note']}"] if settings.get("data_note") else []
    answers = filters = None
    if model is None and file.exists():
        model = _stored_model(file, notes)
    elif model is None:
        notes.append("There is no weights.h5: the run is not finished, or its net was not saved there; pass model=.")
    if model is not None:
        if test is None:
            test = _stored_test(settings, file, next((p.device for p in model.parameters()), "cpu"), notes)
        answers = None if test is None else answer(model, test, notes)
        filters = first_filters(model, answers.shape if answers else None)
    return Run(folder, settings, read_metrics(folder) if metrics.exists() else [], filters, answers, notes)


def _settings(path: Path) -> dict[str, Any]:
    try:
        return read_config(path)
    except ValueError:
        raise ValueError(f"plot: {path} is damaged: it must be an object of JSON; copy it again, or remove "
                         "it") from None


def _stored_model(path: Path, notes: list[str]) -> nn.Module | None:
    """The zoo's model with a file's weights; None, with a note, where the zoo does not have it."""
    known = weights.read_metadata(path)
    if known["model"] not in zoo.MODELS:
        notes.append(f"weights.h5 was saved from {known['model']}, which is not in the zoo, and no model was given.")
        return None
    return weights.load(path)


def _stored_test(settings: dict[str, Any], path: Path, device: str, notes: list[str]) -> data.DataLoader | None:
    """The test set that a run's settings name, in batches as its weights file says; None, with a note, where it does
    not lie on this machine."""
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
    return data.DataLoader(test.first(settings.get("limit_test")), 500, shuffle=False, device=device, **known)


def first_filters(model: nn.Module, shape: tuple[int, ...] | None = None) -> np.ndarray | None:
    """The filters (m,c,kh,kw) of a net's first convolution; without one the weights of its first linear layer as
    images of a shape (c,h,w), where they fit it, else None. A net of the zoo knows its images' shape by itself.

    >>> first_filters(zoo.build("perceptron", in_channels=1)).shape
    (10, 1, 32, 32)
    """
    found = [weight.numpy() for _, module in model.named_modules()
             if isinstance(weight := getattr(module, "weight", None), Tensor)]
    for weight in found:
        if weight.ndim == 4:
            return weight
    matrix = next((weight for weight in found if weight.ndim == 2), None)
    if matrix is None:
        return None
    if shape is None and "in_channels" in (known := getattr(model, "model_args", {})):
        side = math.isqrt(matrix.shape[1] // known["in_channels"])
        shape = known["in_channels"], side, side
    fits = shape is not None and len(shape) == 3 and math.prod(shape) == matrix.shape[1]
    return matrix.reshape(-1, *shape) if fits else None        # type: ignore[misc]


def answer(model: nn.Module, test: Batches, notes: list[str]) -> Answers | None:
    """What a classifier answers on batches of (images, labels), in evaluation mode, off the tape; None, with a note,
    where outputs are not (n,classes) or labels not integers (n,). Raises ValueError where there is no image, or a label
    has no output."""
    counts, worst = None, list[Mistake]()
    shape: tuple[int, ...] = ()
    with switched(model, False), no_grad():
        for batch in test:
            images, targets = (part if isinstance(part, Tensor) else Tensor(part) for part in batch)
            outputs, labels = model(images), targets.numpy()
            if outputs.ndim != 2 or labels.ndim != 1 or labels.dtype.kind not in "iu":
                notes.append("The net is not a classifier: its outputs are not (n, classes), or targets not (n,).")
                return None
            sure = np.nan_to_num(ops.softmax(outputs, axis=1).numpy())
            predictions, shape = sure.argmax(axis=1), images.shape[1:]
            found = count_pairs(labels, predictions, sure.shape[1])
            counts = found if counts is None else counts + found
            of_labels = sure[np.arange(len(labels)), labels]
            wrong = np.flatnonzero(predictions != labels)
            worst += [Mistake(as_picture(images[i].numpy(), getattr(test, "preprocessing", None)),
                              *(labels[i], predictions[i], of_labels[i], sure[i, predictions[i]]))
                      for i in wrong[np.argsort(of_labels[wrong], kind="stable")][:MAX_MISTAKES].tolist()]
            worst = sorted(worst, key=lambda mistake: mistake.of_label)[:MAX_MISTAKES]
    if counts is None:
        raise ValueError("plot: the test set has 0 images but needs at least 1")
    names = [str(name) for name in getattr(getattr(test, "dataset", None), "classes", ())][:len(counts)]
    return Answers(counts, [*names, *map(str, range(len(names), len(counts)))], shape, worst)


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
