"""A model's weights in an HDF5 file: /model/c1/weight holds the parameter "c1.weight".

A file is data from a stranger. The model alone says which parameters there are and how large; what in the
file is not exactly that, or is more than a plain array, is refused before a byte of it is read.
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

from . import __version__

FORMAT = "minidl"
FORMAT_VERSION = 1

_DTYPES = ("float32", "float64")
_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
# What h5py raises on damaged bytes; never ValueError, which is left for our own messages.
_DAMAGE = (OSError, RuntimeError, KeyError, TypeError)


class Model(Protocol):
    """What is asked of a model: an nn.Module, or anything with its two methods."""

    def state_dict(self) -> dict[str, np.ndarray]: ...

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None: ...


def save(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a model's weights to an HDF5 file, whole or not at all; an older file of that name is replaced.

    Equal weights give equal bytes. Raises OSError when the file cannot be written (the older file is then
    still there), TypeError or ValueError when the model has something that the file cannot hold.

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
        raise type(error)(f"save: '{target}' cannot be written ({error.strerror or error}); choose a folder "
                          "that is writable and has room") from error


def load(model: Model, path: str | os.PathLike[str]) -> None:
    """Set a model's weights from a file that `save` wrote.

    Names, shapes and dtypes must be exactly the model's and every checksum must agree; otherwise ValueError
    lists all that is wrong, and the model is unchanged. Raises OSError when the file cannot be read.
    """
    own = _state("load", model)
    state = {}
    damaged = []
    with _opened(path) as file:
        saved_from = _metadata(file, path)["model"]
        objects = dict(_objects(file))
        expected = {name: _describe(array.shape, array.dtype.name) for name, array in own.items()}
        found = {name: _describe_object(stored) for name, stored in objects.items()}
        wrong = [f"{name} is {expected.get(name, 'missing')} in the model but {found.get(name, 'missing')} in the file"
                 for name in {**expected, **found} if expected.get(name) != found.get(name)]
        if wrong:
            raise ValueError(f"load: '{path}' was saved from {saved_from!r} and does not fit "
                             f"{_model_name(model)!r}: {'; '.join(wrong)}; build the model that the file was saved "
                             "from, or write the file anew with minidl.save")
        for name, array in own.items():
            state[name], noted = _read(objects[name], array)
            if (digest := _digest(state[name])) != noted:
                damaged.append(f"{name} has sha256 {digest} but its attribute says {noted}")
    if damaged:
        raise ValueError(f"load: '{path}' is damaged: {'; '.join(damaged)}; copy the file again from where it "
                         "came from")
    model.load_state_dict(state)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file says of itself: format, format_version, minidl_version, model and model_args (a dict).

    Enough to build the model that the file was saved from. Raises as `load` does.
    """
    with _opened(path) as file:
        return _metadata(file, path)


# ---------------------------------------------------------------------- the model's side
def _state(op: str, model: Model) -> dict[str, np.ndarray]:
    """The model's parameters, all of which a file can hold."""
    if not hasattr(model, "state_dict"):
        raise TypeError(f"{op}: expected a model but got a {type(model).__name__}; call minidl.{op}(model, path)")
    state = model.state_dict()
    for name, array in state.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{op}: parameter name {name!r} must be letters, digits, '_' and '-' with single dots "
                             "between; rename the attribute that holds it")
        if array.dtype.name not in _DTYPES:
            raise TypeError(f"{op}: {name} is {array.dtype} but must be {' or '.join(_DTYPES)}; "
                            "convert the model with .to(dtype=...)")
    return state


def _model_name(model: Model) -> str:
    return str(getattr(model, "model_name", type(model).__name__))


def _attributes(model: Model) -> dict[str, str | int]:
    """The file's root attributes."""
    try:
        text = json.dumps(dict(getattr(model, "model_args", {})), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"save: model_args of {_model_name(model)!r} cannot be written as JSON ({error}); use "
                        "a dict of finite numbers, texts, lists and dicts") from error
    return {"format": FORMAT, "format_version": FORMAT_VERSION, "minidl_version": __version__,
            "model": _model_name(model), "model_args": text}


# ---------------------------------------------------------------------- bytes
def _digest(array: np.ndarray) -> str:
    """SHA-256 of an array's values in C order, little-endian."""
    return hashlib.sha256(np.ascontiguousarray(array, array.dtype.newbyteorder("<"))).hexdigest()


def _image(state: Mapping[str, np.ndarray], attributes: Mapping[str, str | int]) -> io.BytesIO:
    """The file's bytes, made in memory: HDF5 cannot close a file cleanly once the disk is full."""
    import h5py

    image = io.BytesIO()
    # v108: the oldest layout whose metadata carries checksums. No times are recorded, so the bytes are fixed.
    with h5py.File(image, "w", libver=("v108", "v108")) as file:
        file.attrs.update(attributes)
        group = file.create_group("model")
        for name, array in state.items():
            dataset = group.create_dataset(name.replace(".", "/"), data=array, track_times=False,
                                           dtype=array.dtype.newbyteorder("<"))
            dataset.attrs["sha256"] = _digest(array)
    return image


def _replace(target: Path, image: io.BytesIO) -> None:
    """Put bytes in a file's place: at every instant the target is the old file or the new one, both whole."""
    temporary = target.with_name(f".minidl-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(image.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):  # elsewhere a folder cannot be opened, and the rename needs no such help
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# ---------------------------------------------------------------------- the file's side
def _require_file(op: str, path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(f"{op}: '{path}' is a folder but must be a file, such as "
                                f"'{path / 'weights.h5'}'")
    if not path.is_file():  # to open a pipe could wait forever, to replace a device would break the system
        raise OSError(f"{op}: '{path}' is a device or pipe but must be an ordinary file; choose another path")


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """The h5py.File at `path`, with one-line errors for all that can be wrong with its bytes."""
    import h5py

    if not os.path.exists(path):
        raise FileNotFoundError(f"load: there is no file '{path}'; check the path, or write it with minidl.save")
    _require_file("load", Path(path))
    try:
        raw = open(path, "rb")  # noqa: SIM115 (closed just below)
    except OSError as error:
        raise type(error)(f"load: '{path}' cannot be read ({error.strerror or error}); check its permissions") \
            from error
    with raw:
        start = raw.read(len(_HDF5_SIGNATURE))
        if start != _HDF5_SIGNATURE:
            raise ValueError(f"load: '{path}' is not an HDF5 file (it starts with {start!r}, expected "
                             f"{_HDF5_SIGNATURE!r}); choose a file that minidl.save wrote")
        try:
            with h5py.File(raw, "r") as file:
                yield file
        except _DAMAGE as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"load: '{path}' is truncated or damaged ({reason}); copy the file again from where "
                             "it came from") from error


def _attribute(owner: Any, name: str) -> str | int | None:
    """An attribute that is one text or whole number; None where it is missing or anything else."""
    value = owner.attrs.get(name)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, np.integer):
        value = int(value)
    return value if isinstance(value, (str, int)) else None


def _metadata(file: Any, path: str | os.PathLike[str]) -> dict[str, Any]:
    """The root attributes, checked, with model_args as a dict."""
    found: dict[str, Any] = {name: _attribute(file, name)
                             for name in ("format", "format_version", "minidl_version", "model", "model_args")}
    if found["format"] != FORMAT:
        raise ValueError(f"load: '{path}' has format {found['format']!r} but must have {FORMAT!r}; choose a file "
                         "that minidl.save wrote")
    if found["format_version"] != FORMAT_VERSION:
        raise ValueError(f"load: '{path}' has format_version {found['format_version']!r} but minidl {__version__} "
                         f"reads {FORMAT_VERSION}; read it with minidl {found['minidl_version']!r}")
    if not isinstance(found["model"], str):
        raise ValueError(f"load: '{path}' has model {found['model']!r} but must have a text; write it anew with "
                         "minidl.save")
    text = found["model_args"]
    try:
        found["model_args"] = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        found["model_args"] = None
    if not isinstance(found["model_args"], dict):
        raise ValueError(f"load: '{path}' has model_args {text!r} but must have a JSON object; write it anew with "
                         "minidl.save")
    return found


def _objects(file: Any) -> Iterator[tuple[str, Any]]:
    """All that lies below /model, by parameter name: a dataset's id, or in words what is there instead."""
    import h5py

    if not file.id.links.exists(b"model"):
        return
    links = {h5py.h5l.TYPE_SOFT: "a soft link", h5py.h5l.TYPE_EXTERNAL: "an external link"}
    seen = set()
    waiting: list[tuple[tuple[str, ...], bytes, Any]] = [((), b"model", file.id)]
    while waiting:
        parts, link, group = waiting.pop()
        name = ".".join(parts) or "/model"
        # HDF5 would take a "/" inside a link's name for a path, and follow links on the way.
        kind = None if b"/" in link else group.links.get_info(link).type
        if kind != h5py.h5l.TYPE_HARD:
            yield name, links.get(kind, "an unknown link")
            continue
        stored = h5py.h5o.open(group, link)
        address = h5py.h5o.get_info(stored).addr
        if address in seen:
            yield name, "a second link to another entry"
        elif isinstance(stored, h5py.h5g.GroupID):
            waiting += [((*parts, _part(child)), child, stored) for child in stored]
        else:
            yield name, stored if isinstance(stored, h5py.h5d.DatasetID) else "a named type"
        seen.add(address)


def _part(link: bytes) -> str:
    """A link's name as a part of a parameter's; quoted where it would read as two parts or two lines."""
    text = link.decode("utf-8", "backslashreplace")
    return text if text.isprintable() and "." not in text else ascii(text)


def _describe(shape: tuple[int, ...], dtype: str) -> str:
    """What is compared and shown of an array: "(6,1,5,5) float32"."""
    return f"{str(shape).replace(' ', '')} {dtype}"


def _describe_object(stored: Any) -> str:
    """A dataset as `_describe` has it, or in words what keeps it from being a plain array."""
    import h5py

    if isinstance(stored, str):
        return stored
    # Before the shape: to find a virtual dataset's, HDF5 may open the files it is made of.
    how = stored.get_create_plist()
    layout = how.get_layout()
    refused = ((layout == h5py.h5d.VIRTUAL, "a virtual dataset"),
               (how.get_external_count() > 0, "kept in another file"),
               (how.get_nfilters() > 0, "compressed or filtered"),
               (layout != h5py.h5d.CONTIGUOUS, "chunked or compact instead of contiguous"))
    for applies, reason in refused:
        if applies:
            return reason
    if stored.get_space().get_simple_extent_type() == h5py.h5s.NULL:
        return "empty"
    return _describe(stored.shape, _type_name(stored.get_type()))


def _type_name(stored: Any) -> str:
    """float32 and float64 by name; any other type by class and size."""
    from h5py import h5t

    for name, exact in zip(_DTYPES, (h5t.IEEE_F32LE, h5t.IEEE_F64LE), strict=True):
        if stored == exact:
            return name
    kinds = ("INTEGER", "FLOAT", "STRING", "COMPOUND", "VLEN", "REFERENCE", "ENUM", "ARRAY", "OPAQUE", "BITFIELD")
    kind = {getattr(h5t, name): name.lower() for name in kinds}.get(stored.get_class(), "unknown")
    return f"{kind} of {stored.get_size()} bytes"


def _read(stored: Any, like: np.ndarray) -> tuple[np.ndarray, str | int | None]:
    """A dataset's values as an array of the model's shape and dtype, and the checksum noted beside them."""
    import h5py

    array = np.empty(like.shape, like.dtype)
    stored.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return array, _attribute(h5py.Dataset(stored), "sha256")
