"""Checkpoints for a loop of one's own: like those of `fit`, but of the objects that are named."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core import rng
from ..nn import Module
from ..nn.weights import WeightsError
from ..optim import Optimizer
from ..optim.state import Named, examples
from .checkpoint import read_state, write_state
from .resume import are_layers, layers_of, set_layers, set_tensors

Part = Any                                 # what has a state_dict and a load_state_dict


class Checkpoint:
    """What a loop of your own needs to go on with the same bits: a model, an optimizer, and whatever else has a
    `state_dict()` and a `load_state_dict(state)`, each by a name; and the random stream. Of a model it also holds which
    parameters are frozen and which layers are in evaluation.

    save(path, **facts) writes the file whole or not at all, with facts such as the epoch: numbers, texts, arrays,
    lists, tuples and dicts of these. load(path) puts everything back, in place, and returns the facts. A loader needs
    no state: call `set_epoch`, and `skip` in the middle of an epoch. Parameters must be those that the optimizer was
    made of.

    Raises TypeError for an object without these two methods. `load` raises ValueError, and has changed nothing, for a
    file that does not fit, and OSError for one that cannot be read.

    >>> import tempfile
    >>> from minidl import nn, optim
    >>> net = nn.Linear(3, 2)
    >>> checkpoint = Checkpoint(model=net, optimizer=optim.SGD(net.parameters(), 0.1, momentum=0.9))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoint.save(f"{folder}/mine.h5", epoch=3)
    ...     checkpoint.load(f"{folder}/mine.h5")
    {'epoch': 3}
    """

    def __init__(self, **parts: Part):
        for name, part in parts.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise TypeError(f"Checkpoint: {name} is a {type(part).__name__} but must have a state_dict and a "
                                "load_state_dict; give numbers and arrays to save()")
        self.parts = parts

    def save(self, path: str | os.PathLike[str], **facts: object) -> None:
        """Raises OSError if it cannot be written, TypeError or ValueError for facts that a file cannot hold, and for
        the ending of another kind of file: it is HDF5."""
        if Path(path).suffix.lower() not in ("", ".h5", ".hdf5"):
            raise ValueError(f"Checkpoint: '{path}' would hold HDF5, whatever its ending says; choose .h5")
        self._tell_names()
        write_state(path, {"parts": {name: part.state_dict() for name, part in self.parts.items()},
                           "rng": list(rng.get_state()), "facts": facts,
                           "layers": {name: layers_of(part) for name, part in self._models().items()}})

    def _models(self) -> dict[str, Module]:
        return {name: part for name, part in self.parts.items() if isinstance(part, Module)}

    def load(self, path: str | os.PathLike[str], like: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Put everything back; returns the facts. like: facts with arrays, as they were saved, if there are any."""
        self._tell_names()
        own = {name: examples(part) if isinstance(part, Optimizer) else part.state_dict()
               for name, part in self.parts.items()}
        optional = tuple(f"parts.{name}." for name, part in self.parts.items() if isinstance(part, Optimizer))
        state = read_state(path, {"parts": own, "facts": like or {}}, optional)
        found, layers = state.get("parts"), state.pop("layers", {})        # not in files of earlier versions
        if state.keys() != {"parts", "rng", "facts"} or not isinstance(found, dict) or found.keys() != own.keys():
            names = ", ".join(map(str, found)) if isinstance(found, dict) else "none"
            raise WeightsError(f"Checkpoint: '{path}' has states of {names} but here are {', '.join(own)}; name what "
                               "was saved")
        if not isinstance(layers, dict) or not all(are_layers(layers[name], model)
                                                   for name, model in self._models().items() if name in layers):
            raise WeightsError(f"Checkpoint: '{path}' says of the layers of {', '.join(self._models())} what this "
                               "program's do not have; build the model that was saved")
        rng.require_state(state["rng"])
        before: list[tuple[Any, Any]] = []
        try:
            for name, part in self.parts.items():
                if not isinstance(part, Module):       # it refuses a state that does not fit
                    before.append((part, part.state_dict()))
                    part.load_state_dict(found[name])
        except BaseException:
            for part, own_state in before:
                part.load_state_dict(own_state)
            raise
        for name, part in self.parts.items():
            if isinstance(part, Module):
                set_layers(part, layers.get(name, layers_of(part)))
                set_tensors(part, found[name])
        rng.set_state(state["rng"])
        return dict(state["facts"])

    def _tell_names(self) -> None:
        """Tell the names of the models' Tensors to each part that keeps something of them."""
        named = [(model, name, t) for model, part in self._models().items() for name, t in part.named_tensors()]
        for part in self.parts.values():
            if hasattr(part, "learn_names"):
                own = {id(p) for p in part._parameters()} if isinstance(part, Named) else set()
                mine = {(name, id(t)) for _, name, t in named if id(t) in own}
                alike = len(dict(mine)) < len(mine)    # of several models; else as in files of earlier versions
                part.learn_names([(f"{model}.{name}" if alike else name, t) for model, name, t in named])
