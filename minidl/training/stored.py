"""The net that a run has left: its weights, what their file says of itself, and what the net reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .. import data, nn, zoo
from ..nn import weights


class Stored(NamedTuple):
    """A net with the weights of a file, what the file says (as `weights.read_metadata` gives it), and the shape of an
    item as the net reads it, padded; a size that is not known is 0."""

    net: nn.Module
    known: dict[str, Any]
    shape: tuple[int, ...]


def weights_in(path: str | os.PathLike[str]) -> Path:
    """The weights file of a run's folder, or of a path itself."""
    return Path(path) / "weights.h5" if Path(path).is_dir() else Path(path)


def read_net(path: str | os.PathLike[str], code: str | Callable[..., nn.Module] | None = None) -> Stored:
    """The net of a weights file, or of a run's folder. code: for a net of one's own, as `minidl.load` takes it; see
    there for what is run and what this raises. A file does not decide what the zoo's models read."""
    path = weights_in(path)
    net, known = weights.load(path, code=code), weights.read_metadata(path)
    model = zoo.MODELS[known["model"]] if code is None else zoo.find(code)
    if model.code is None or known["input"] is None:
        return Stored(net, known, model.read_by(net))
    first, *sizes = known["input"]
    padding = (known["preprocessing"] or {"padding": 0})["padding"]
    return Stored(net, known, (first, *(size + 2 * padding for size in sizes)))


def contradictions(path: object, known: dict[str, Any], items: data.Data) -> Iterator[tuple[str, bool]]:
    """In words, where data has other classes or columns than a weights file knows, and whether only their order is
    another: the net would take one for another."""
    for what in ("classes", "columns"):
        mine, theirs = known[what] or (), getattr(items, what, ())
        if mine and tuple(mine) != tuple(theirs):
            yield (f"{path} knows the {what} {', '.join(mine)}, but {items.name} has {', '.join(theirs)}",
                   sorted(mine) == sorted(theirs))
