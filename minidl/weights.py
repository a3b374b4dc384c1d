"""A model's weights in an HDF5 file: the dataset /model/c1/weight is the parameter "c1.weight".

A file is data from a stranger. The model alone says which parameters there are and how large; whatever in the
file is not exactly that, or is more than a plain array, is refused before a value of it is read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .version import __version__

FORMAT = "minidl"
FORMAT_VERSION = 1

_ATTRIBUTES = ("format", "format_version", "minidl_version", "model", "model_args")
_DTYPES = ("float32", "float64")
_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")
_SIGNATURE = b"\x89HDF\r\n\x1a\n"


class WeightsError(ValueError):
    """A file is not the weights that the model needs."""


class Model(Protocol):
    """What is asked of a model: these two methods, as nn.Module has them.

    Attributes model_name and model_args (a dict), where there are any, say how to build it again.
    """

    def state_dict(self) -> dict[str, np.ndarray]: ...

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None: ...


def save(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a model's weights to an HDF5 file, whole or not at all; an older file at `path` is replaced.

    Equal weights give equal bytes. Raises OSError when the file cannot be written, TypeError or ValueError when
    a file cannot hold what the model has; an older file then stays as it was.

    >>> import minidl, tempfile
    >>> net = minidl.nn.Linear(3, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     minidl.save(net, f"{folder}/weights.h5")
    ...     minidl.load(net, f"{folder}/weights.h5")
    """
    image = _image(_state("save", model), _attributes(model))
    target = Path(os.path.realpath(path))  # a symbolic link stays, and the file it names is replaced
    if os.path.exists(target):
        _require_file("save", target)
    if not os.path.isdir(target.parent):
        raise FileNotFoundError(f"save: '{target.parent}' is not a folder; create it, or choose another for "
                                f"'{target.name}'")
    try:
        _replace(target, image)
    except OSError as error:
        raise type(error)(f"save: '{target}' cannot be written ({error.strerror or error}); "
                          "choose a folder that is writable and has room") from error


def load(model: Model, path: str | os.PathLike[str]) -> None:
    """Set a model's weights from a file that `save` wrote.

    Names, shapes and dtypes must be exactly the model's and every checksum must agree; otherwise a ValueError
    lists all that is wrong and the model is unchanged. Raises OSError when there is no file that can be read.

    >>> import minidl, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     minidl.save(minidl.nn.Linear(3, 2), f"{folder}/weights.h5")
    ...     minidl.load(minidl.nn.Linear(5, 2), f"{folder}/weights.h5")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    minidl.weights.WeightsError: load: ... weight is (2,5) float32 in the model but (2,3) float32 in the file; ...
    """
    own = _state("load", model)
    expected = {name: _describe(array.shape, array.dtype.name) for name, array in own.items()}
    state = {}
    damaged = []
    with _opened(path) as file:
        saved_from = _metadata(file)["model"]
        stored = dict(_objects(file))
        found = {name: _describe_object(entry) for name, entry in stored.items()}
        wrong = [f"{name} is {expected.get(name, 'missing')} in the model but {found.get(name, 'missing')} "
                 "in the file" for name in {**expected, **found} if expected.get(name) != found.get(name)]
        if wrong:
            raise WeightsError(f"was saved from {saved_from!r} and does not fit {_model_name(model)!r}: "
                               f"{'; '.join(wrong)}; build the model that it was saved from, or write it anew "
                               "with minidl.save")
        for name, array in own.items():
            state[name], noted = _read(stored[name], array)
            if (digest := _digest(state[name])) != noted:
                damaged.append(f"{name} has sha256 {digest} but its attribute says {noted}")
        if damaged:
            raise WeightsError(f"is damaged: {'; '.join(damaged)}; copy it again from where it came from")
    model.load_state_dict(state)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file says of itself: format, format_version, minidl_version, model and model_args (a dict).

    It is what is needed to build the model that the file was saved from. Raises as `load` does.

    >>> import minidl, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     minidl.save(minidl.nn.Linear(3, 2), f"{folder}/weights.h5")
    ...     read_metadata(f"{folder}/weights.h5")["model"]
    'Linear'
    """
    with _opened(path) as file:
        return _metadata(file)


# ---------------------------------------------------------------------- what both sides share
def _describe(shape: tuple[int, ...], dtype: str) -> str:
    """All that must be equal of two arrays, as it is shown: "(6,1,5,5) float32"."""
    return f"{str(shape).replace(' ', '')} {dtype}"


def _digest(array: np.ndarray) -> str:
    """SHA-256 of an array's values in C order, little-endian."""
    return hashlib.sha256(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data).hexdigest()


def _require_file(op: str, path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(f"{op}: '{path}' is a folder but must be a file, such as '{path / 'weights.h5'}'")
    if not path.is_file():  # to open a pipe could wait for ever, to replace a device would break the system
        raise OSError(f"{op}: '{path}' is a device or pipe but must be an ordinary file; choose another path")


# ---------------------------------------------------------------------- the model's side
def _model_name(model: Model) -> str:
    return str(getattr(model, "model_name", type(model).__name__))


def _state(op: str, model: Model) -> dict[str, np.ndarray]:
    """The model's parameters, all of which a file can hold."""
    if not hasattr(model, "state_dict"):
        raise TypeError(f"{op}: expected a model but got a {type(model).__name__}; "
                        f"call minidl.{op}(model, path)")
    state = model.state_dict()
    modules = {name[:i] for name in state for i, letter in enumerate(name) if letter == "."}
    for name, array in state.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{op}: parameter name {name!r} must be letters, digits, '_' and '-' with single "
                             "dots in between; rename the attribute that holds it")
        if name in modules:
            raise ValueError(f"{op}: {name} is a parameter and also part of other parameters' names; rename one")
        if array.dtype.name not in _DTYPES:
            raise TypeError(f"{op}: {name} is {array.dtype} but must be {' or '.join(_DTYPES)}; "
                            "convert the model with .to(dtype=...)")
    return state


def _attributes(model: Model) -> dict[str, str | int]:
    """The file's root attributes."""
    try:
        arguments = json.dumps(dict(getattr(model, "model_args", {})), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"save: model_args of {_model_name(model)!r} cannot be written as JSON ({error}); "
                        "use a dict of finite numbers, texts, lists and dicts") from error
    values = (FORMAT, FORMAT_VERSION, __version__, _model_name(model), arguments)
    return dict(zip(_ATTRIBUTES, values, strict=True))


# ---------------------------------------------------------------------- writing
def _image(state: Mapping[str, np.ndarray], attributes: Mapping[str, str | int]) -> io.BytesIO:
    """The file's bytes, made in memory: HDF5 cannot close a file cleanly once the disk is full."""
    import h5py

    image = io.BytesIO()
    # v108 is the oldest layout with checksums over the metadata. No times are recorded, so the bytes are fixed.
    with h5py.File(image, "w", libver=("v108", "v108")) as file:
        for name, value in attributes.items():
            _put(file, name, value)
        group = file.create_group("model")
        for name, array in state.items():
            dataset = group.create_dataset(name.replace(".", "/"), data=array, track_times=False,
                                           dtype=array.dtype.newbyteorder("<"))
            _put(dataset, "sha256", _digest(array))
    return image


def _put(owner: Any, name: str, value: str | int) -> None:
    """Set an attribute. A text has fixed length, since HDF5 has no checksum over those of variable length."""
    import h5py

    if isinstance(value, str):
        encoded = value.encode()
        owner.attrs.create(name, encoded, dtype=h5py.string_dtype("utf-8", len(encoded) or 1))
    else:
        owner.attrs.create(name, value, dtype="<i8")


def _replace(target: Path, image: io.BytesIO) -> None:
    """Put bytes in a file's place: at every instant the target is the old file or the new one, whole."""
    temporary = target.with_name(f".minidl-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(image.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):  # where a folder can be opened, its new entry is made to last too
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# ---------------------------------------------------------------------- reading
@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """The h5py.File at `path`; a WeightsError from within is a sentence about the file, which gets its subject."""
    import h5py

    if not os.path.exists(path):
        raise FileNotFoundError(f"load: '{path}' does not exist; check the path, or write it with minidl.save")
    _require_file("load", Path(path))
    try:
        # HDF5 is given an open file: it would lock a path, which some shared file systems refuse.
        with open(path, "rb") as raw:
            if (start := raw.read(len(_SIGNATURE))) != _SIGNATURE:
                raise WeightsError(f"is not an HDF5 file (it starts with {start!r} instead of {_SIGNATURE!r}); "
                                   "choose a file that minidl.save wrote")
            with h5py.File(raw, "r") as file:
                yield file
    except WeightsError as verdict:
        raise WeightsError(f"load: '{path}' {verdict}") from None
    except PermissionError as error:
        raise PermissionError(f"load: '{path}' cannot be read ({error.strerror}); "
                              "change its permissions") from error
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:  # all of them seen on damaged bytes
        raise WeightsError(f"load: '{path}' is truncated or damaged ({' '.join(str(error).split())}); "
                           "copy it again from where it came from") from error


def _get(owner: Any, name: str) -> str | int | None:
    """An attribute that is one fixed-length text or whole number; None where it is missing or anything else.

    A text of variable length is not even read: one flipped bit in their heap and HDF5 (2.0) never returns.
    """
    from h5py import h5t

    if name not in owner.attrs:
        return None
    attribute = owner.attrs.get_id(name)
    kind = attribute.get_type()
    if attribute.shape == () and kind.get_class() == h5t.INTEGER:
        return int(owner.attrs[name])
    if attribute.shape == () and kind.get_class() == h5t.STRING and not kind.is_variable_str():
        return owner.attrs[name].decode("utf-8", "backslashreplace")
    return None


def _metadata(file: Any) -> dict[str, Any]:
    """The root attributes, checked, with model_args as a dict."""
    found: dict[str, Any] = {name: _get(file, name) for name in _ATTRIBUTES}
    if found["format"] != FORMAT:
        raise WeightsError(f"has format {found['format']!r} but must have the fixed-length text {FORMAT!r}; "
                           "choose a file that minidl.save wrote")
    if found["format_version"] != FORMAT_VERSION:
        raise WeightsError(f"has format_version {found['format_version']!r} but minidl {__version__} reads "
                           f"{FORMAT_VERSION}; read it with minidl {found['minidl_version']!r}, which wrote it")
    if not isinstance(found["model"], str):
        raise WeightsError(f"has model {found['model']!r} but must have a fixed-length text; "
                           "write it anew with minidl.save")
    text = found["model_args"]
    try:
        found["model_args"] = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        found["model_args"] = None
    if not isinstance(found["model_args"], dict):
        raise WeightsError(f"has model_args {text!r} but must have a JSON object as fixed-length text; "
                           "write it anew with minidl.save")
    return found


def _objects(file: Any) -> Iterator[tuple[str, Any]]:
    """All that lies below /model, by parameter name: a dataset's id, or in words what is there instead."""
    import h5py

    links = {h5py.h5l.TYPE_SOFT: "a soft link", h5py.h5l.TYPE_EXTERNAL: "an external link"}
    seen = set()
    waiting: list[tuple[tuple[str, ...], bytes, Any]] = []
    if file.id.links.exists(b"model"):
        waiting.append(((), b"model", file.id))
    while waiting:
        parts, link, group = waiting.pop()
        name = ".".join(parts) or "/model"
        # HDF5 would take a "/" within a link's name for a path, and follow every link along it.
        kind = None if b"/" in link else group.links.get_info(link).type
        if kind != h5py.h5l.TYPE_HARD:
            yield name, links.get(kind, "an unknown link")
            continue
        entry = h5py.h5o.open(group, link)
        address = h5py.h5o.get_info(entry).addr
        if address in seen:
            yield name, "a second link to another entry"
        elif isinstance(entry, h5py.h5g.GroupID):
            waiting += [((*parts, _part(child)), child, entry) for child in entry]
        else:
            yield name, entry if isinstance(entry, h5py.h5d.DatasetID) else "a named type"
        seen.add(address)


def _part(link: bytes) -> str:
    """A link's name as a part of a parameter's; quoted where it would read as two parts or two lines."""
    text = link.decode("utf-8", "backslashreplace")
    return text if text.isprintable() and "." not in text else ascii(text)


def _describe_object(entry: Any) -> str:
    """A dataset as `_describe` has it, or in words what keeps it from being a plain array."""
    import h5py

    if isinstance(entry, str):
        return entry
    storage = entry.get_create_plist()
    layout = storage.get_layout()
    # Asked before the shape: to find a virtual dataset's, HDF5 may open the files it is made of.
    refused = {"a virtual dataset": layout == h5py.h5d.VIRTUAL,
               "kept in another file": storage.get_external_count() > 0,
               "compressed or filtered": storage.get_nfilters() > 0,
               "chunked or compact": layout != h5py.h5d.CONTIGUOUS}
    for reason, applies in refused.items():
        if applies:
            return reason
    if entry.get_space().get_simple_extent_type() == h5py.h5s.NULL:
        return "empty"
    return _describe(entry.shape, _type_name(entry.get_type()))


def _type_name(kind: Any) -> str:
    """float32 and float64 by name, any other HDF5 type by class and size."""
    from h5py import h5t

    for name, exact in zip(_DTYPES, (h5t.IEEE_F32LE, h5t.IEEE_F64LE), strict=True):
        if kind == exact:
            return name
    names = {getattr(h5t, name): name.lower() for name in ("INTEGER", "FLOAT", "STRING", "COMPOUND", "VLEN",
                                                           "REFERENCE", "ENUM", "ARRAY", "OPAQUE", "BITFIELD")}
    return f"{names.get(kind.get_class(), 'unknown type')} of {kind.get_size()} bytes"


def _read(dataset: Any, like: np.ndarray) -> tuple[np.ndarray, str | int | None]:
    """A dataset's values as an array of the model's shape and dtype, and the checksum noted beside them."""
    import h5py

    array = np.empty(like.shape, like.dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return array, _get(h5py.Dataset(dataset), "sha256")
