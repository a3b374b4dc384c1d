"""How far a training is, as data, and how it is resumed: with the data that it began with, as digests. Also checkpoints
for a loop of one's own: like those of `fit`, but of the objects that are named."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import rng
from ..core.device import to_device, to_numpy
from ..core.mode import note_change
from ..core.tensor import Tensor, mark_changed
from ..data.items import Items
from ..data.loader import DataLoader
from ..data.once import once
from ..data.sources import arrays_of, leaves
from ..distributed import by_first, current
from ..nn import Module
from ..nn.weights import OF_DATA, WeightsError, warn_of_change
from ..nn.weights.common import shown
from ..optim import Optimizer
from ..optim.state import Named, examples
from .callbacks import Callbacks
from .checkpoint import State, read_newest, read_state, write_state
from .metrics import Metrics

if TYPE_CHECKING:
    from .loop import _Plain

# The attributes of a loader that decide which numbers a step is given.
DATA = ("images_per_epoch", "batch_size", "seed", "shuffle", "drop_last", "preprocessing", "augment")
MAX_BYTES = 2**28                          # of an array, read in a third of a second; of a larger one, every k-th item
MAX_TEXT = 60                              # characters of names that a message can show
LAYERS = {"model": "layers", "loss": "loss layers"}    # what a state calls what `layers_of` says of each


@dataclass
class Place:
    """How far a training is."""

    epoch: int = 0                         # epochs that are finished, with their evaluation
    batch: int = 0                         # steps done of the epoch under way,
    images: int = 0                        # and how many images these had
    step: int = 0                          # of all epochs
    ended: bool = False                    # the epoch under way has no more steps: its evaluation is next
    stopped: bool = False                  # a callback wants the end
    classes: bool = True                   # right answers are counted
    lr: float = 0.0                        # of the last step of an epoch that ended
    totals: list[float] = field(default_factory=list)      # of an epoch that ended, as RunningMetrics.totals
    history: list[Metrics] = field(default_factory=list)
    key: list[int] = field(default_factory=list)           # of the random stream when the epoch ended

    def next_epoch(self, metrics: Metrics) -> None:
        """An epoch is finished."""
        self.history.append(metrics)
        self.epoch, self.batch, self.images, self.ended, self.totals, self.key = self.epoch + 1, 0, 0, False, [], []


def _facts(run: _Plain) -> dict[str, Any]:
    """What decides which images a step is given, and what these hold."""
    return json.loads(json.dumps({**{name: getattr(run.train, name, None) for name in DATA},
                                  "accumulate": run.accumulate, "contents": run.contents,
                                  "metrics": list(run.functions)}))


def modules_of(model: Module, loss: object) -> dict[str, Module]:
    """What a training changes: a model, and a loss that is a Module, unless this is a layer of the model."""
    if not isinstance(loss, Module) or any(each is loss for _, each in model.named_modules()):
        return {"model": model}
    return {"model": model, "loss": loss}


def named_tensors(modules: dict[str, Module]) -> list[tuple[str, Tensor]]:
    """Their Tensors by path, a loss's behind "loss.". The model's come last: of two names the last counts."""
    return [(name if part == "model" else f"{part}.{name}", t) for part, module in reversed(modules.items())
            for name, t in module.named_tensors()]


def outside(optimizer: Optimizer, modules: dict[str, Module]) -> list[Tensor]:
    """An optimizer's parameters that are Tensors of none of the modules."""
    held = {id(t) for _, t in named_tensors(modules)}
    return [p for group in optimizer.groups for p in group["params"] if id(p) not in held]


def require_held(run: _Plain) -> None:
    """Refuse parameters that a checkpoint would not hold: after it they would begin anew."""
    if left := outside(run.optimizer, run.modules):
        raise ValueError(f"fit: checkpoints hold the Tensors of the {' and the '.join(run.modules)} but {len(left)} of "
                         f"the optimizer's parameters are none of these, the first of shape {left[0].shape}; make them "
                         "attributes of the model, or of a loss that is a Module")


def modes_of(model: Module) -> dict[str, bool]:
    """Which of a net's modules are in training, by path."""
    return {path: module.training for path, module in model.named_modules()}


def set_modes(model: Module, modes: dict[str, bool]) -> None:
    """Inverse of `modes_of`. A module that has come since stays as it is."""
    for path, module in model.named_modules():
        module.training = modes.get(path, module.training)


def layers_of(model: Module, modes: dict[str, bool] | None = None) -> dict[str, Any]:
    """Which Tensors of a model are trained, and which modules are in training."""
    return {"trained": [name for name, _ in model.named_parameters()], "modes": modes or modes_of(model)}


def set_layers(model: Module, layers: dict[str, Any]) -> None:
    """Inverse of `layers_of`."""
    trained = set(layers["trained"])
    for name, t in model.named_tensors():
        if t.requires_grad != (name in trained):
            t.requires_grad, t.grad = name in trained, None
    set_modes(model, layers["modes"])
    note_change()


def set_tensors(model: Module, arrays: dict[str, np.ndarray]) -> None:
    """Set a model in place: recorded steps read its arrays there."""
    tensors = dict(model.named_tensors())
    mark_changed(tensors.values())
    for name, t in tensors.items():
        t.data[...] = to_device(arrays[name], t.device)


def _tensors(run: _Plain) -> dict[str, dict[str, np.ndarray]]:
    """The modules' arrays by name. Those of a loss are views: it may share Tensors with the model, and a file holds an
    object that is given twice under its first name alone."""
    return {part: {name: t.numpy() if part == "model" else t.numpy()[...] for name, t in module.named_tensors()}
            for part, module in run.modules.items()}


def _of_metrics(run: _Plain) -> dict[str, dict[str, dict[str, np.ndarray]]]:
    """The same of metrics that are Modules, if there are any."""
    arrays = {name: {path: t.numpy()[...] for path, t in each.named_tensors()} for name, each in _metrics(run).items()}
    return {"metrics": arrays} if arrays else {}


def _metrics(run: _Plain) -> dict[str, Module]:
    """Those metrics that are Modules, which may have a state."""
    functions = {**run.functions, **{name: each.function for name, each in run.whole.items()}}
    return {name: each for name, each in functions.items() if isinstance(each, Module)}


def _tell_names(run: _Plain, callbacks: Callbacks) -> None:
    """Tell the names of the Tensors to all that keep something of them: it is then kept by name."""
    for each in (run.optimizer, *callbacks.all):
        if hasattr(each, "learn_names"):
            each.learn_names(named_tensors(run.modules))


def state_of(run: _Plain, place: Place, callbacks: Callbacks) -> State | None:
    """All that a training depends on from here; None if its loss is not finite."""
    if not place.ended:
        place.totals = run.totals()
    if not math.isfinite(place.totals[0]):
        return None
    _tell_names(run, callbacks)
    net = run.model                        # how to build it, if zoo.build made it from code
    code = getattr(net, "model_code", None)
    accuracies = [metrics["test_accuracy"] for metrics in place.history if "test_accuracy" in metrics]
    layers = {LAYERS[part]: layers_of(each, run.modes.get(part)) for part, each in run.modules.items()}
    layers[LAYERS["model"]]["before"] = run.before or {}
    return {"place": asdict(place), "rng": place.key or list(rng.get_state()), "data": _facts(run),
            "best_accuracy": max(accuracies, default=None), **_tensors(run), **_of_metrics(run),
            "optimizer": run.optimizer.state_dict(), "callbacks": callbacks.state_dict(),
            "net": {"model": net.model_name, "model_args": net.model_args, "code": dict(code)} if code else None,
            **layers}


def restore(path: str | os.PathLike[str], run: _Plain, callbacks: Callbacks, epochs: int) -> Place:
    """Set modules, optimizer, metrics, random stream and callbacks from a checkpoint (a file, or a folder's newest).

    If it is refused, nothing has changed (ValueError; OSError if it cannot be read).
    """
    _tell_names(run, callbacks)
    like = {**_tensors(run), **_of_metrics(run), "callbacks": callbacks.state_dict(),
            "optimizer": examples(run.optimizer)}
    constant = not outside(run.optimizer, {"model": run.model})        # a loss that no step changes
    optional = ("optimizer.", "metrics.", *["loss."] * constant)       # files of earlier versions have no loss
    state = by_first(lambda: read_newest(path, like, optional))
    place = _place(state, run, path)
    if place.epoch > epochs or (place.epoch == epochs and place.step and (place.batch or place.ended)):
        raise ValueError(f"fit: epochs is {epochs} but the checkpoint in '{path}' is of epoch {place.epoch + 1}; ask "
                         "for more epochs")
    there, here = {"accumulate": 1, **state["data"]}, _facts(run)     # not in files of earlier versions
    wrong = [f"{name} is {here[name]!r} here but {there.get(name)!r} there" for name in (*DATA, "accumulate")
             if here[name] != there.get(name)]
    if wrong:
        raise ValueError(f"fit: the checkpoint in '{path}' is from other batches: {'; '.join(wrong)}; make the loader "
                         "as it was")
    if (named := there.get("metrics", here["metrics"])) != here["metrics"]:       # not in files of earlier versions
        raise ValueError(f"fit: the checkpoint in '{path}' has sums of the metrics {named} but here are "
                         f"{here['metrics']}; pass the metrics of the run that it is from, in their order")
    held = there.get("contents", {})       # not in files of earlier versions
    wrong = [f"{what} {each}" for what, contents in run.contents.items() if isinstance(held, dict)
             for each in differences(held.get(what), contents)]
    if wrong:
        raise ValueError(f"fit: the checkpoint in '{path}' is from other data: {'; '.join(wrong)}; give the data that "
                         "it began with, or begin anew in another folder")
    if state.get("net"):
        warn_of_change(path, state["net"]["code"], getattr(run.model, "model_code", None))
    callbacks.check(state["callbacks"])
    rng.require_state(state["rng"])
    run.optimizer.load_state_dict(state["optimizer"])
    _set_modules(run, state, place)
    if place.epoch < epochs and not (place.stopped and not place.ended):
        run.warm_up(place)
    for held, there in ((run.modules, state), (_metrics(run), state.get("metrics", {}))):
        for name in held.keys() & there.keys():
            set_tensors(held[name], there[name])
    run.optimizer.load_state_dict(state["optimizer"])
    run.metrics.reset(place.totals if current().rank == 0 else None)       # on one of the ranks
    rng.set_state(state["rng"])
    callbacks.load_state_dict(state["callbacks"])
    return place


def _set_modules(run: _Plain, state: State, place: Place) -> None:
    """Set modes, what is trained, and values of the modules."""
    for part, module in run.modules.items():
        if layers := state.get(LAYERS[part]):          # not in files of earlier versions
            fresh = {} if module.training else modes_of(module)
            set_layers(module, layers)
            if part == "model" and place.batch:
                run.before = layers.get("before", fresh)       # not in files of earlier versions
        if part in state:
            module.load_state_dict(state[part])        # this gives buffers arrays of their own


def are_layers(layers: object, model: Module) -> bool:
    """Whether these layers can be set: all of `trained` must be floating Tensors of this net."""
    floating = {name for name, t in model.named_tensors() if t.dtype.kind == "f"}
    return (isinstance(layers, dict) and layers.keys() - {"before"} == {"trained", "modes"}
            and isinstance(layers["trained"], list)
            and all(isinstance(name, str) and name in floating for name in layers["trained"])
            and all(isinstance(modes, dict) and all(isinstance(each, bool) for each in modes.values())
                    for modes in (layers["modes"], layers.get("before", {}))))


def _place(state: State, run: _Plain, path: object) -> Place:
    """The Place that a file holds, with its numbers checked."""
    kinds = {each.name: type(getattr(Place(), each.name)) for each in fields(Place)}
    found, keys = state.get("place"), {"place", "rng", "data", "model", "optimizer", "callbacks", "best_accuracy"}
    own = _tensors(run)
    net = state.get("net") or {"model": "", "model_args": {}, "code": None}    # not in files of earlier versions
    if (state.keys() - {"layers", "net", "loss", "loss layers", "metrics"} == keys
            and all(are_layers(state.get(LAYERS[part], {"trained": [], "modes": {}}), module)
                    for part, module in run.modules.items())
            and isinstance(net, dict) and net.keys() == {"model", "model_args", "code"}
            and (net["code"] is None or OF_DATA["code"][1](net["code"]))
            and isinstance(found, dict) and isinstance(state["data"], dict)
            and all(isinstance(held := state.get(part, tensors if part == "loss" else None), dict)
                    and held.keys() == tensors.keys()
                    and all(isinstance(array, np.ndarray) for array in held.values()) for part, tensors in own.items())
            and {name: type(value) for name, value in found.items()} == kinds):
        place = Place(**found)
        if len(place.totals) == len(run.metrics.totals()) // 2:    # files of earlier versions: over images
            place.totals += [0.0] * len(place.totals)
        if (all(0 <= value < 2**63 for value in (place.epoch, place.batch, place.images, place.step))
                and place.batch <= len(run.train) and len(place.history) == place.epoch
                and len(place.totals) == len(run.metrics.totals())
                and all(isinstance(total, float) and math.isfinite(total) for total in place.totals)
                and all(isinstance(metrics, dict) for metrics in place.history)):
            return place
    raise WeightsError(f"resume: '{path}' has a state that is not what training.fit writes here; take the checkpoint "
                       "before it, and the metrics of the run that it is from")


# ---------------------------------------------------------------------- what a loader's data holds
def contents_of(loader: object) -> dict[str, str]:
    """By name, what must be the same: labels, class names and items, in their order, or the arrays. Empty for objects
    whose items are made only when they are needed, and for a user's own loaders.

    >>> from minidl import data
    >>> sorted(contents_of(data.DataLoader(data.load("synthetic-digits", "test"), 100)))
    ['class names', 'images', 'labels']
    """
    source: Any = loader.dataset if isinstance(loader, DataLoader) else None
    if isinstance(source, Items):
        names = {f"{what} names": _names(getattr(source, field))
                 for what, field in (("class", "classes"), ("column", "columns")) if hasattr(source, field)}
        return once(source, lambda: {**names, "labels": _digest(source.labels.astype(np.int64)),
                                     source.items: _digest(getattr(source, source.items))})
    arrays = None if source is None else arrays_of(source, "fit")
    parts = [] if arrays is None else leaves(arrays)
    return {f"values of array {i} of {len(parts)}": _digest(to_numpy(part)) for i, part in enumerate(parts, 1)}


def differences(there: object, here: dict[str, str]) -> list[str]:
    """What is not the same, in words. What only one of the two knows is not compared."""
    known = there if isinstance(there, dict) else {}
    return [f"{name} are {shown(here[name])} here but {shown(known[name])} there" for name in here
            if name in known and known[name] != here[name]]


def _names(names: Sequence[str]) -> str:
    """The names as they are if their text is short, else a digest."""
    text = ", ".join(map(str, names))
    return text if len(text) < MAX_TEXT else hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _digest(array: np.ndarray) -> str:
    """A digest of dtype, shape and values, in their order."""
    found = hashlib.blake2b(f"{array.dtype.str} {array.shape}".encode(), digest_size=8)
    step = -(-array.nbytes // MAX_BYTES) or 1
    found.update(np.ascontiguousarray(array[::step]).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


# ---------------------------------------------------------------------- of a loop of one's own
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

    def __init__(self, **parts: object):
        for name, part in parts.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise TypeError(f"Checkpoint: {name} is a {type(part).__name__} but must have a state_dict and a "
                                "load_state_dict; give numbers and arrays to save()")
        self.parts: dict[str, Any] = dict(parts)

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
