"""A model's weights in a file: HDF5, .npz or .safetensors, as the path's ending says.

An array that the model has under several names (tied) is stored under the first; the attribute "ties" then maps the
others to it. A file is data from a stranger: the model alone says which arrays there are and how large.

common.py says what is asked of a format, files.py writes and reads arrays and attributes whatever the format, and each
format has a file of its own.
"""

from __future__ import annotations

import inspect
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import numpy as np

from ...core.version import __version__
from .common import File, Kind, WeightsError, listed, shown
from .files import opened, parsed, read, require_format, require_storable, ties_of, write

if TYPE_CHECKING:
    from .. import Module

Path_ = str | os.PathLike[str]

WEIGHTS = Kind("minidl", 1, "model", "load", "minidl.save")

MAX_CLASSES = 2**16                        # of what a file says of itself, as many are believed:
MAX_CLASS = 200                            # characters of a class's name
MAX_CHANNELS = 2**10
MAX_PADDING = 2**10
MAX_OPTION = 2**31                         # of an option of the zoo's models; and characters
MAX_OPTION_CHARACTERS = 80
MAX_BUILT = 2**30                          # bytes of parameters that a file may have built by itself


class Model(Protocol):
    """What is asked of a model: these two methods, as nn.Module has them.

    Attributes model_name and model_args (a dict), where there are any, say how to build it again.
    """

    def state_dict(self) -> dict[str, np.ndarray]: ...

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None: ...


M = TypeVar("M", bound=Model)


def save(model: Model, path: Path_, *, preprocessing: dict[str, Any] | None = None,
         classes: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> None:
    """Write a model's weights to a file, whole or not at all; an older file at `path` is replaced.

    The path's ending says the format: .npz, .safetensors (extra `safetensors`), and HDF5 for all else.

    preprocessing: how images were made what the model takes, as `DataLoader.preprocessing` gives it: "mean" and "std"
    per channel of pixels/255, and "padding", the zero pixels around. classes: the names of the model's outputs.
    columns: those of its inputs, where it reads rows of a table.

    Equal weights give equal bytes. An older file's permissions stay. Raises OSError when the file cannot be written,
    TypeError or ValueError when a file cannot hold what the model has; an older file then stays as it was. Warns of
    weights that are NaN or infinite (RuntimeWarning).

    >>> import minidl, tempfile
    >>> net = minidl.nn.Linear(3, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     minidl.save(net, f"{folder}/weights.h5", classes=["cat", "dog"])
    ...     minidl.load(net, f"{folder}/weights.h5")
    Linear(3, 2)
    """
    state = _state("save", model)
    write(WEIGHTS, "save", path, state, _attributes(model, preprocessing, classes=classes, columns=columns))
    _warn_of_nonfinite("save", os.path.realpath(path), state)


@overload
def load(model: M, path: Path_) -> M: ...
@overload
def load(model: Path_) -> Module: ...
def load(model: Any, path: Path_ | None = None) -> Any:
    """Set a model's weights from a file that `save` wrote, and return the model.

    load(path) builds the zoo's model that the file was saved from. A model of one's own, or one of more
    than 1 GiB, is built before: load(model, path).

    Names, shapes and dtypes must be exactly the model's and every checksum must agree; otherwise a ValueError lists
    what is wrong, at most 20 entries, and the model is unchanged. Arrays that are tied in the model may be apart in the
    file where they are equal, and the other way round.
    A .safetensors file of another program, as PyTorch's users write it, has no checksums; counts of batches
    (num_batches_tracked) in it are passed over. A file of Keras 3, net.weights.h5, is read into an nn.Sequential of the
    same layers, and turned to our layouts.
    Raises OSError when there is no file that can be read. Warns of weights that are NaN or infinite (RuntimeWarning).

    >>> import minidl, tempfile
    >>> from minidl import zoo
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     minidl.save(zoo.build("perceptron", classes=3), f"{folder}/weights.h5")
    ...     print(minidl.load(f"{folder}/weights.h5").output)
    Linear(1024, 3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     minidl.save(minidl.nn.Linear(3, 2), f"{folder}/weights.h5")
    ...     minidl.load(minidl.nn.Linear(5, 2), f"{folder}/weights.h5")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    minidl.nn.weights.WeightsError: load: ... weight is (2,5) float32 in the model but (2,3) float32 in the file; ...
    """
    if path is None:
        if not isinstance(model, (str, os.PathLike)):
            raise TypeError(f"load: got a {type(model).__name__} alone; call minidl.load(model, path), or "
                            "minidl.load(path) for a model of the zoo")
        model, path = _built(model), model
    own = _state("load", model)
    if _is_keras(path):
        state = _from_keras(model, path, own)
    else:
        state, _ = read(WEIGHTS, path, own, _model_name(model), lambda file: file.foreign or _metadata(file))
    model.load_state_dict(state)
    _warn_of_nonfinite("load", path, state)
    return model


def read_metadata(path: Path_) -> dict[str, Any]:
    """What a file says of itself: format, format_version, minidl_version, model and model_args (a dict), and
    preprocessing (a dict), classes and columns (lists of texts) as `save` was given them, else None.

    It is what is needed to build the model that the file was saved from, and to give it images. Raises as `load` does.

    >>> import minidl, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     minidl.save(minidl.nn.Linear(3, 2), f"{folder}/weights.h5")
    ...     read_metadata(f"{folder}/weights.h5")["model"]
    'Linear'
    """
    with opened(WEIGHTS, path) as file:
        return _metadata(file)


# ---------------------------------------------------------------------- the model's side
def _model_name(model: Model) -> str:
    return str(getattr(model, "model_name", type(model).__name__))


def _state(op: str, model: Model) -> dict[str, np.ndarray]:
    """The model's parameters and buffers, all of which a file can hold."""
    if not hasattr(model, "state_dict"):
        raise TypeError(f"{op}: expected a model but got a {type(model).__name__}; "
                        f"call minidl.{op}(model, path)")
    state = model.state_dict()
    if not state:
        raise ValueError(f"{op}: {_model_name(model)!r} holds no Tensor; hold Tensors and Modules as attributes, or in "
                         "lists, tuples and dicts there")
    require_storable(op, state)
    return state


def _warn_of_nonfinite(op: str, path: object, state: Mapping[str, np.ndarray]) -> None:
    ties = ties_of(state)
    wrong = [f"{name} ({array.size - np.count_nonzero(np.isfinite(array))} of {array.size})"
             for name, array in state.items() if name not in ties and not np.isfinite(array).all()]
    if wrong:
        warnings.warn(f"{op}: '{path}' holds values that are NaN or infinite: {listed(wrong)}", RuntimeWarning,
                      stacklevel=3)


# ---------------------------------------------------------------------- what a file says of itself
PREPROCESSING = ('a JSON object {"mean": [...], "std": [...], "padding": n}, with finite numbers per channel, '
                 f"std above 0, and 0 <= n <= {MAX_PADDING}")
NAMES = f"a JSON list of 1 to {MAX_CLASSES} printable texts of 1 to {MAX_CLASS} characters"
NAMED = {"classes": "outputs", "columns": "inputs"}         # what names in a file name


def _number(value: object, above: float = -1e30) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and above < value < 1e30


def _is_preprocessing(value: object) -> bool:
    if not isinstance(value, dict) or value.keys() != {"mean", "std", "padding"}:
        return False
    mean, std, padding = value["mean"], value["std"], value["padding"]
    return (isinstance(mean, list) and isinstance(std, list) and 1 <= len(mean) == len(std) <= MAX_CHANNELS
            and all(map(_number, mean)) and all(_number(each, above=0.0) for each in std)
            and type(padding) is int and 0 <= padding <= MAX_PADDING)


def _are_names(value: object) -> bool:
    return (isinstance(value, list) and 1 <= len(value) <= MAX_CLASSES
            and all(isinstance(name, str) and 1 <= len(name) <= MAX_CLASS and name.isprintable() for name in value))


def _plain(value: object) -> object:
    """NumPy's numbers and arrays as JSON has them."""
    if isinstance(value, (np.number, np.bool_, np.ndarray)):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is not JSON")


def _attributes(model: Model, preprocessing: object, **names: object) -> dict[str, str | int]:
    """The file's attributes."""
    try:
        arguments = json.dumps(dict(getattr(model, "model_args", {})), sort_keys=True, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise TypeError(f"save: model_args of {_model_name(model)!r} cannot be written as JSON ({error}); "
                        "use a dict of finite numbers, texts, lists and dicts") from error
    attributes: dict[str, str | int] = {"format": WEIGHTS.format, "format_version": WEIGHTS.version,
                                        "minidl_version": __version__, "model": _model_name(model),
                                        "model_args": arguments}
    if preprocessing is not None:
        try:
            text = json.dumps(preprocessing, sort_keys=True, default=_plain)
        except (TypeError, ValueError):
            text = "null"
        if not _is_preprocessing(json.loads(text)):
            raise ValueError(f"save: preprocessing is {shown(preprocessing)} but must be {PREPROCESSING}; pass "
                             "DataLoader.preprocessing")
        attributes["preprocessing"] = text
    for each, given in names.items():
        if given is None:
            continue
        given = list(given) if isinstance(given, (tuple, np.ndarray)) else given       # as a Dataset has them
        if not _are_names(given):
            raise ValueError(f"save: {each} is {shown(given)} but must be {NAMES}; pass the names of the model's "
                             f"{NAMED[each]}")
        attributes[each] = json.dumps(given)
    return attributes


def _metadata(file: File) -> dict[str, Any]:
    """The attributes, checked, those that hold JSON as what it says."""
    if file.foreign:
        raise WeightsError("was written by another program and does not say which model it is of; build the model and "
                           "call minidl.load(model, path)")
    require_format(WEIGHTS, file, __version__)
    name = file.attribute("model")
    if not isinstance(name, str):
        raise WeightsError(f"has model {shown(name)} but must have a fixed-length text; "
                           "write it anew with minidl.save")
    found: dict[str, Any] = {each: file.attribute(each) for each in ("format", "format_version", "minidl_version")}
    found |= {"model": name, "model_args": parsed(WEIGHTS, file, "model_args", "a JSON object",
                                                  lambda value: isinstance(value, dict))}
    for each, must, good in (("preprocessing", PREPROCESSING, _is_preprocessing),
                             *((name, NAMES, _are_names) for name in NAMED)):
        found[each] = parsed(WEIGHTS, file, each, must, good) if file.has(each) else None
    return found


# ---------------------------------------------------------------------- Keras's files
def _is_keras(path: Path_) -> bool:
    if not os.fspath(path).endswith(".weights.h5") or not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(9) == b"\x89HDF\r\n\x1a\n\0"     # minidl.save writes a later layout of HDF5


def _from_keras(model: Model, path: Path_, own: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The model's state from a file of Keras 3."""
    from . import keras

    try:
        places, expected = keras.schema(model, own)
    except WeightsError as verdict:
        raise WeightsError(f"load: '{path}' {verdict}") from None
    stored, _ = read(keras.KERAS, path, expected, _model_name(model), lambda file: None, keras)
    if other := keras.other_eps(model):
        warnings.warn(f"load: '{path}' is of Keras, whose norms have an eps of {keras.EPS} unless they were given "
                      f"another, which the file does not say; the model has {listed(other)}", RuntimeWarning,
                      stacklevel=3)
    return {name: np.ascontiguousarray(place.turned(stored[place.key])) for name, place in places.items()}


# ---------------------------------------------------------------------- the zoo's model of a file
def _built(path: Path_) -> Module:
    """The zoo's model that a file names, new. Its parameters take no more bytes than the file has."""
    from ... import zoo  # the zoo is made of minidl's public names
    from .. import init

    found = read_metadata(path)
    own_way = "build its model and call minidl.load(model, path)"
    subject = f"load: '{path}' was saved from {shown(found['model'])}"
    if (name := found["model"]) not in zoo.MODELS:
        raise WeightsError(f"{subject}, which is not one of the zoo's {', '.join(zoo.MODELS)}; {own_way}")
    known = inspect.signature(zoo.MODELS[name].layers).parameters
    for option, value in found["model_args"].items():
        kind = type(known[option].default) if option in known else None
        if kind not in (int, float, bool, str) or type(value) is not kind or (
                len(value) > MAX_OPTION_CHARACTERS if kind is str else not 0 <= value <= MAX_OPTION):
            wanted = ", ".join(f"{each}={parameter.default!r}" for each, parameter in known.items())
            raise WeightsError(f"{subject} with the option {shown(option)}: {shown(value)}, but its options are like "
                               f"{wanted}; {own_way}")
    most = min(os.path.getsize(path), MAX_BUILT)
    try:
        with init.at_most(most):
            return zoo.build(name, **found["model_args"])
    except ValueError as error:
        raise WeightsError(f"{subject}, which cannot be built as it says ({error}); {own_way}") from None


__all__ = ["WEIGHTS", "Model", "WeightsError", "load", "read_metadata", "save"]
