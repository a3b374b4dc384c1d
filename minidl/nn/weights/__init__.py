"""A model's weights in a file: HDF5, .npz or .safetensors, as the path's ending says.

An array that the model has under several names (tied) is stored under the first; the attribute "ties" then maps the
others to it. A file is data from a stranger: the model alone says which arrays there are and how large.

common.py says what a format must do, files.py writes and reads arrays and attributes of every format, and each format
has a file of its own.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import numpy as np

from ...core.host import MAX_NAME, is_name
from ...core.version import __version__
from .common import File, Kind, WeightsError, listed, shown
from .files import opened, parsed, read, require_format, require_own_ending, require_storable, ties_of, write

if TYPE_CHECKING:
    from .. import Module

Path_ = str | os.PathLike[str]

WEIGHTS = Kind("minidl", 1, "model", "load", "minidl.save")

MAX_CLASSES = 2**16                        # limits on what a file says of itself: classes,
MAX_CHANNELS = 2**10
MAX_PADDING = 2**10
MAX_OPTION = 2**31                         # the value of an option of the zoo's models; and its characters
MAX_OPTION_CHARACTERS = 80
MAX_ITEM = 2**24                           # numbers in an item that the model reads
MAX_PLACE = 2**10                          # characters of a file's name, of a function's, of a digest
MAX_BUILT = 2**30                          # bytes of parameters that may be built from a file alone,
MAX_OF_CODE = 2**26                        # and, however small the file is, by code that the caller names


class Model(Protocol):
    """What a model must have: these two methods, as nn.Module has them.

    Attributes model_name, model_args and model_code (dicts), if there are any, say how to build it again.
    """

    def state_dict(self) -> dict[str, np.ndarray]: ...

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None: ...


M = TypeVar("M", bound=Model)


def save(model: Model, path: Path_, *, preprocessing: dict[str, Any] | None = None,
         classes: Sequence[str] | None = None, columns: Sequence[str] | None = None, data: object = None) -> None:
    """Write a model's weights to a file, whole or not at all; an older file at `path` is replaced.

    The path's ending says the format: .npz, .safetensors (extra `safetensors`), and HDF5 for all else. An ending that
    other programs use, such as PyTorch's .pt, is refused.

    preprocessing: how images become the model's input, as `DataLoader.preprocessing` gives it: "mean" and "std" per
    channel of pixels/255, and "padding", the zero pixels around. classes: the names of the model's outputs. columns:
    the names of its inputs, if it reads rows of a table. data: a `DataLoader` of the training data, which gives all of
    these, the shape of an item, and whether there was a transform, which is called once for that shape. A file cannot
    hold what a transform does.

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
    require_own_ending("save", path)
    given = {"preprocessing": preprocessing, "classes": classes, "columns": columns}
    known = {**_of_data(data), **{name: value for name, value in given.items() if value is not None}}
    write(WEIGHTS, "save", path, state, _attributes(model, known))
    _warn_of_nonfinite("save", os.path.realpath(path), state)


def require_described(model: Model, data: object) -> None:
    """Refuse, before a training, what `save` would refuse to write of a model and its loader after it."""
    _attributes(model, _of_data(data))


@overload
def load(model: M, path: Path_) -> M: ...
@overload
def load(model: Path_, *, code: str | Callable[..., Module] | None = None) -> Module: ...
def load(model: Any, path: Path_ | None = None, *, code: str | Callable[..., Module] | None = None) -> Any:
    """Set a model's weights from a file that `save` wrote, and return the model.

    load(path) builds the zoo's model that the file was saved from. A model of more than 1 GiB must be built first:
    load(model, path). Any other model may be built first too. code: the function that built the file's model, or its
    place, "my_net.py:build" or "package.module:build", as `zoo.find` takes it. It is called with the options of the
    file. Code that the file itself names is never imported. A warning says if the code has changed since.

    Names, shapes and dtypes must be exactly the model's and every checksum must agree; otherwise a ValueError lists
    what is wrong, at most 20 entries, and the model is unchanged. Arrays that are tied in the model may be separate in
    the file if they are equal, and the other way round.
    A .safetensors file of another program, as PyTorch's users write it, has no checksums; counts of batches
    (num_batches_tracked) in it are skipped. A file of Keras 3, net.weights.h5, is read into an nn.Sequential of the
    same layers, and its arrays are converted to our layouts.
    Raises OSError when there is no file that can be read. Warns of weights that are NaN or infinite (RuntimeWarning),
    and of a model of the same name that was built with other options (UserWarning).

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
        model, path = _built(model, code), model
    own = _state("load", model)
    if _is_keras(path):
        state = _from_keras(model, path, own)
    else:
        state, known = read(WEIGHTS, path, own, _model_name(model),
                            lambda file: {} if file.foreign else _metadata(file))
        _warn_of_options(path, known, model)
    model.load_state_dict(state)
    _warn_of_nonfinite("load", path, state)
    return model


def read_metadata(path: Path_) -> dict[str, Any]:
    """What a file says of itself: format, format_version, minidl_version, model and model_args (a dict). Also, or None
    if the file lacks it: preprocessing (a dict), classes and columns (lists of texts) as `save` was given them, input
    (the shape of an item before it is padded) and code (a dict: file, name and sha256 of a user's own model). Only if
    the loader that `save` was given had a transform: transform, which is True.

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
        raise TypeError(f"{op}: expected a model but got a {type(model).__name__}; call minidl.{op}(model, path)")
    state = model.state_dict()
    if not all(hasattr(array, "dtype") for array in state.values()):
        raise TypeError(f"{op}: expected a model but got {type(model).__name__}, whose state_dict() is not of arrays; "
                        f"call minidl.{op}(model, path); of an optimizer, fit(checkpoints=folder) keeps the state")
    if not state:
        raise ValueError(f"{op}: {_model_name(model)!r} holds no Tensor; hold Tensors and Modules as attributes, or in "
                         "lists, tuples and dicts there")
    require_storable(op, state)
    return state


def _warn_of_options(path: object, known: Mapping[str, Any], model: Model) -> None:
    """Warn if a model was built with other options than the one of a file: an activation is not among the weights."""
    def text(value: object) -> str:
        return json.dumps(value, sort_keys=True, default=lambda each: getattr(each, "tolist", each.__repr__)())

    mine, there = getattr(model, "model_args", {}), known.get("model_args", {})
    differ = [f"{name}={shown(there[name])} there and {shown(mine[name])} here" for name in there
              if name in mine and text(mine[name]) != text(there[name])]
    if differ and known["model"] == _model_name(model):
        warnings.warn(f"load: '{path}' was saved from {shown(known['model'])} with {listed(differ)}; if the net is to "
                      "compute the same, build it with the options of the file", UserWarning, stacklevel=3)


def _warn_of_nonfinite(op: str, path: object, state: Mapping[str, np.ndarray]) -> None:
    ties = ties_of(state)
    wrong = [f"{name} ({array.size - np.count_nonzero(np.isfinite(array))} of {array.size})"
             for name, array in state.items() if name not in ties and not np.isfinite(array).all()]
    if wrong:
        warnings.warn(f"{op}: '{path}' holds values that are NaN or infinite: {listed(wrong)}", RuntimeWarning,
                      stacklevel=3)


# ---------------------------------------------------------------------- what a file says of itself
PREPROCESSING = ('a JSON object {"mean": [...], "std": [...], "padding": n}, with finite numbers below 1e30 for each '
                 f"of up to {MAX_CHANNELS} channels or columns, std above 0, and 0 <= n <= {MAX_PADDING}")
NAMES = f"a JSON list of 1 to {MAX_CLASSES} printable texts of 1 to {MAX_NAME} characters"


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
    return isinstance(value, list) and 1 <= len(value) <= MAX_CLASSES and all(map(is_name, value))


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and len(value) in (1, 3) and all(
        type(size) is int and size >= 1 for size in value) and math.prod(value) <= MAX_ITEM


def _is_code(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {"file", "name", "sha256"} and all(
        isinstance(text, str) and len(text) <= MAX_PLACE and text.isprintable() for text in value.values())


# What a file may say of its data: by name, what it must be, its check, and what is to be passed to `save`.
OF_DATA: dict[str, tuple[str, Callable[[object], bool], str]] = {
    "preprocessing": (PREPROCESSING, _is_preprocessing, "DataLoader.preprocessing"),
    "classes": (NAMES, _are_names, "the names of the model's outputs"),
    "columns": (NAMES, _are_names, "the names of the model's inputs"),
    "input": (f"a JSON list of 1 or 3 sizes, of an item of up to {MAX_ITEM} numbers", _is_shape, "an item's shape"),
    "code": ('a JSON object {"file": ..., "name": ..., "sha256": ...} of printable texts of up to '
             f"{MAX_PLACE} characters", _is_code, "a net that zoo.build made"),
    "transform": ("true", lambda value: value is True, "a DataLoader"),
}


def _of_data(loader: object) -> dict[str, object]:
    """What a loader says of a Dataset or a Table, without what it does not know; of other data, only whether there was
    a transform."""
    preprocessing, dataset = getattr(loader, "preprocessing", None), getattr(loader, "dataset", None)
    known: dict[str, object] = {"transform": True} if getattr(loader, "transform", None) is not None else {}
    if preprocessing is None:
        return known
    found = {name: list(getattr(dataset, name, ())) for name in ("classes", "columns")}
    shape = list(getattr(loader, "item_shape", getattr(dataset, "shape", ())))
    found |= {"input": shape} if _is_shape(shape) else {}
    return {**known, "preprocessing": preprocessing, **{name: value for name, value in found.items() if value}}


def _plain(value: object) -> object:
    """NumPy's numbers and arrays as JSON has them."""
    if isinstance(value, (np.number, np.bool_, np.ndarray)):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is not JSON")


def _attributes(model: Model, known: dict[str, object]) -> dict[str, str | int]:
    """The file's attributes."""
    try:
        arguments = json.dumps(dict(getattr(model, "model_args", {})), sort_keys=True, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise TypeError(f"save: model_args of {_model_name(model)!r} cannot be written as JSON ({error}); "
                        "use a dict of finite numbers, texts, lists and dicts") from error
    attributes: dict[str, str | int] = {"format": WEIGHTS.format, "format_version": WEIGHTS.version,
                                        "minidl_version": __version__, "model": _model_name(model),
                                        "model_args": arguments}
    if code := getattr(model, "model_code", None):
        known = {**known, "code": dict(code)}
    for name, value in known.items():
        must, good, to_pass = OF_DATA[name]
        try:
            text = json.dumps(value, sort_keys=True, default=_plain)
        except (TypeError, ValueError):
            text = "null"
        if not good(json.loads(text)):
            names = value if good is _are_names and isinstance(value, (list, tuple)) else ()
            wrong = next((f", with {shown(each)}," for each in names if not is_name(each)), "")
            raise ValueError(f"save: {name} is {shown(value)}{wrong} but must be {must}; pass {to_pass}")
        attributes[name] = text
    return attributes


def _metadata(file: File) -> dict[str, Any]:
    """The attributes, checked; those that hold JSON are parsed."""
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
    found |= dict.fromkeys(("preprocessing", "classes", "columns", "input", "code"))
    return found | {each: parsed(WEIGHTS, file, each, must, good) for each, (must, good, _) in OF_DATA.items()
                    if file.has(each)}


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


# ---------------------------------------------------------------------- the model of a file
def _built(path: Path_, code: str | Callable[..., Module] | None) -> Module:
    """A new model as a file describes it: the zoo's, or that of the code which the caller names. A model of the zoo
    takes no more bytes than the file has."""
    from ... import zoo  # the zoo is made of minidl's public names
    from .. import init

    found, size = read_metadata(path), os.path.getsize(path)
    own_way = "build its model and call minidl.load(model, path)"
    subject = f"load: '{path}' was saved from {shown(found['model'])}"
    if code is not None:
        model, limit = zoo.find(code), max(2 * size, MAX_OF_CODE)      # it may make more than the model keeps
        warn_of_change(path, found["code"], model.code)
    elif found["model"] in zoo.MODELS:
        model, limit = zoo.MODELS[found["model"]], size
    else:
        raise WeightsError(f"load: '{path}' was saved from {not_of_zoo(found)}; {'or ' * bool(found['code'])}{own_way}")
    for option, value in found["model_args"].items():
        kind = type(model.options[option].default) if option in model.options else None
        own = model.code is not None and kind is not None and kind not in zoo.PLAIN    # default not plain, or missing
        if not (_is_option(value, lists=own, least=-MAX_OPTION * (model.code is not None))
                and (own or type(value) is kind)):
            wanted = ", ".join(f"{each}={parameter.default!r}" for each, parameter in model.options.items())
            raise WeightsError(f"{subject} with the option {shown(option)}: {shown(value)}, but its options are like "
                               f"{wanted}; {own_way}")
    try:
        with init.at_most(min(limit, MAX_BUILT)):
            return model.build(**found["model_args"])
    except ValueError as error:
        raise WeightsError(f"{subject}, which cannot be built as it says ({error}); {own_way}") from None


def not_of_zoo(found: Mapping[str, Any]) -> str:
    """The model of a file's metadata, why the zoo does not build it, and what to name."""
    from ... import zoo

    if not found["code"]:
        return f"{shown(found['model'])}, which is not one of the zoo's {', '.join(zoo.MODELS)}"
    place = shown(":".join((found["code"]["file"], found["code"]["name"])))
    return (f"{shown(found['model'])}, code that runs only if you name it; if you trust it, add --code {place}, in "
            f"Python code={place}")


def _is_option(value: object, lists: bool, least: int) -> bool:
    if isinstance(value, list):
        return lists and len(value) <= MAX_OPTION_CHARACTERS and all(_is_option(each, False, least) for each in value)
    return len(value) <= MAX_OPTION_CHARACTERS if isinstance(value, str) else (
        isinstance(value, (int, float)) and least <= value <= MAX_OPTION)


def warn_of_change(path: object, there: Mapping[str, str] | None, here: Mapping[str, str] | None) -> None:
    """Warn if what was saved is from code, and that code is different now."""
    if there and there["sha256"] != (here or {}).get("sha256"):
        warnings.warn(f"'{path}' was saved from {shown(there['file'])}, sha256 {shown(there['sha256'][:12])}; "
                      f"{here['file'] if here else 'the net here'} has changed since, or is other code", UserWarning,
                      stacklevel=3)


def warn_of_transform(path: object, known: Mapping[str, Any]) -> None:
    """Warn if the items of a net's training went through a transform, which the file of its weights cannot hold."""
    if known.get("transform"):
        warnings.warn(f"{path} was trained through the transform of a DataLoader, which its file cannot hold, so items "
                      "are given to the net without it; if it does more than change them at random, use the net in "
                      "Python, with that transform", UserWarning, stacklevel=3)


__all__ = ["WEIGHTS", "Model", "WeightsError", "load", "read_metadata", "save"]
