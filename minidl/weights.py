"""A model's weights in an HDF5 file: the dataset /model/c1/weight is the parameter (or buffer) "c1.weight".

An array that the model has under several names (tied) is stored under the first; the root attribute "ties" then maps
the others to it. A file is data from a stranger. The model alone says which arrays there are and how large; whatever
in the file is not exactly that, or is more than a plain array, is refused before a value of it is read. HDF5 is
given no more bytes than such a file needs, and what a file says of itself is printed quoted and cut short.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import re
import secrets
import stat
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np

from .version import __version__

if TYPE_CHECKING:
    import h5py  # imported where a file is opened

FORMAT = "minidl"
FORMAT_VERSION = 1

_ATTRIBUTES = ("format", "format_version", "minidl_version", "model", "model_args")
_DTYPES = ("float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64")
_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_TEMPORARY = re.compile(r"\.minidl-[0-9a-f]{16}\.tmp")
_ABANDONED = 3600                          # seconds after which a temporary file is what a killed save left

_TEXT = 2**20                              # the longest text among the root attributes, in bytes
_OVERHEAD = 4 * 2**20                      # bytes that HDF5 may read beside values: for the root, and for each array
_OVERHEAD_PER_ARRAY = 2**13
_MAX_NAMED = 20                            # of what is wrong, as many are named in a message,
_MAX_CHARACTERS = 3000                     # in as many characters,
_CUT = 80                                  # and as many of each text from the file


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

    Equal weights give equal bytes. An older file's permissions stay. Raises OSError when the file cannot be written,
    TypeError or ValueError when a file cannot hold what the model has; an older file then stays as it was. Warns of
    weights that are NaN or infinite (RuntimeWarning).

    >>> import minidl, tempfile
    >>> net = minidl.nn.Linear(3, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     minidl.save(net, f"{folder}/weights.h5")
    ...     minidl.load(net, f"{folder}/weights.h5")
    """
    state = _state("save", model)
    ties = _ties(state)
    image = _image({name: array for name, array in state.items() if name not in ties}, _attributes(model, ties))
    _warn_of_nonfinite("save", _write("save", path, image), state)


def load(model: Model, path: str | os.PathLike[str]) -> None:
    """Set a model's weights from a file that `save` wrote.

    Names, shapes and dtypes must be exactly the model's and every checksum must agree; otherwise a ValueError lists
    what is wrong, at most 20 entries, and the model is unchanged. Arrays that are tied in the model may be apart in the
    file where they are equal, and the other way round. Raises OSError when there is no file that can be read. Warns
    of weights that are NaN or infinite (RuntimeWarning).

    >>> import minidl, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     minidl.save(minidl.nn.Linear(3, 2), f"{folder}/weights.h5")
    ...     minidl.load(minidl.nn.Linear(5, 2), f"{folder}/weights.h5")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    minidl.weights.WeightsError: load: ... weight is (2,5) float32 in the model but (2,3) float32 in the file; ...
    """
    own = _state("load", model)
    ties = _ties(own)
    expected = {name: _describe(array.shape, array.dtype.name) for name, array in own.items()}
    source: dict[str, str] = {}
    apart = []
    with _opened(path, len(own)) as (file, meter):
        saved_from = _metadata(file)["model"]
        aliases = _aliases(file)
        stored, all_seen = _objects(file, own)
        found = {name: _describe_object(entry) for name, entry in stored.items()}
        found |= {alias: found.get(name, "tied to what is missing") if alias not in found else "stored and tied"
                  for alias, name in aliases.items()}
        given = {ties.get(name, name) for name in found}       # of arrays with several names, one is enough
        wrong = [f"{_cut(name)} is {expected.get(name, 'missing')} in the model but {_cut(found.get(name, 'missing'))} "
                 "in the file" for name in {**expected, **found}
                 if expected.get(name) != found.get(name)
                 and (name in found or (all_seen and ties.get(name, name) not in given))]
        if wrong:
            raise WeightsError(f"was saved from {_shown(saved_from)} and does not fit {_shown(_model_name(model))}: "
                               f"{_listed(wrong, all_seen)}; build the model that it was saved from, or write it anew "
                               "with minidl.save")
        state, damaged = _values(stored, own, meter)
        state |= {alias: state[name] for alias, name in aliases.items()}
        for name in own:                   # of several names of an array in the model, the first that is given counts
            first = source.setdefault(ties.get(name, name), name) if name in state else None
            if first not in (name, None) and state[name].tobytes() != state[first].tobytes():
                apart.append(f"{name} and {first}")
        if damaged:
            raise WeightsError(f"is damaged: {_listed(damaged)}; copy it again from where it came from")
        if apart:
            raise WeightsError(f"does not fit {_shown(_model_name(model))}: {_listed(apart)} are one array in the "
                               "model but differ in the file; untie them in the model")
    state |= {name: state[source[ties.get(name, name)]] for name in own}
    model.load_state_dict(state)
    _warn_of_nonfinite("load", path, state)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file says of itself: format, format_version, minidl_version, model and model_args (a dict).

    It is what is needed to build the model that the file was saved from. Raises as `load` does.

    >>> import minidl, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     minidl.save(minidl.nn.Linear(3, 2), f"{folder}/weights.h5")
    ...     read_metadata(f"{folder}/weights.h5")["model"]
    'Linear'
    """
    with _opened(path) as (file, _):
        return _metadata(file)


# ---------------------------------------------------------------------- what both sides share
def _describe(shape: tuple[int, ...], dtype: str) -> str:
    """All that must be equal of two arrays, as it is shown: "(6,1,5,5) float32"."""
    return f"{str(shape).replace(' ', '')} {dtype}"


def _digest(array: np.ndarray) -> str:
    """SHA-256 of an array's values in C order, little-endian."""
    return hashlib.sha256(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data).hexdigest()


def _ties(state: dict[str, np.ndarray]) -> dict[str, str]:
    """The names whose array has an earlier name too, which is the value."""
    first = {id(array): name for name, array in reversed(state.items())}
    return {name: first[id(array)] for name, array in state.items() if first[id(array)] != name}


def _warn_of_nonfinite(op: str, path: object, state: dict[str, np.ndarray]) -> None:
    ties = _ties(state)
    wrong = [f"{name} ({array.size - np.count_nonzero(np.isfinite(array))} of {array.size})"
             for name, array in state.items() if name not in ties and not np.isfinite(array).all()]
    if wrong:
        warnings.warn(f"{op}: '{path}' holds values that are NaN or infinite: {_listed(wrong)}", RuntimeWarning,
                      stacklevel=3)


def _shown(value: object) -> str:
    """A value of a file as it is printed: quoted, without control characters, cut."""
    return _cut(repr(value[:_CUT] if isinstance(value, str) else value))


def _cut(text: str) -> str:
    return text if len(text) <= _CUT else text[:_CUT - 3] + "..."


def _listed(items: list[str], all_seen: bool = True) -> str:
    """The first of the items that are wrong, and how many there are beside."""
    told = items[:1]
    for item in items[1:_MAX_NAMED]:
        if len("; ".join(told)) + len(item) > _MAX_CHARACTERS:
            break
        told.append(item)
    if len(told) < len(items) or not all_seen:
        told.append(f"{len(items) - len(told)} more" if all_seen else "more")
    return "; ".join(told)


def _require_file(op: str, path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(f"{op}: '{path}' is a folder but must be a file, such as '{path / 'weights.h5'}'")
    if not path.is_file():  # to open a pipe could wait for ever, to replace a device would break the system
        raise OSError(f"{op}: '{path}' is a device or pipe but must be an ordinary file; choose another path")


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
    modules = {name[:i] for name in state for i, letter in enumerate(name) if letter == "."}
    for name, array in state.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{op}: parameter name {name!r} must be letters, digits, '_' and '-' with single "
                             "dots in between; rename the attribute that holds it")
        if name in modules:
            raise ValueError(f"{op}: {name} is a parameter and also part of other parameters' names; rename one")
        if array.dtype.name not in _DTYPES:
            raise TypeError(f"{op}: {name} is {array.dtype} but must be {', '.join(_DTYPES[:-1])} or {_DTYPES[-1]}; "
                            "convert it with .to(dtype=...)")
    return state


def _attributes(model: Model, ties: dict[str, str]) -> dict[str, str | int]:
    """The file's root attributes."""
    try:
        arguments = json.dumps(dict(getattr(model, "model_args", {})), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"save: model_args of {_model_name(model)!r} cannot be written as JSON ({error}); "
                        "use a dict of finite numbers, texts, lists and dicts") from error
    values = (FORMAT, FORMAT_VERSION, __version__, _model_name(model), arguments)
    attributes: dict[str, str | int] = dict(zip(_ATTRIBUTES, values, strict=True))
    if ties:
        attributes["ties"] = json.dumps(ties)
    for name, value in attributes.items():
        if (length := len(str(value).encode())) > _TEXT:
            raise ValueError(f"save: {name} of {_shown(_model_name(model))} takes {length} bytes but may take {_TEXT}; "
                             "shorten it")
    return attributes


# ---------------------------------------------------------------------- writing
def _image(state: Mapping[str, np.ndarray], attributes: Mapping[str, str | int], top: str = "model") -> io.BytesIO:
    """The file's bytes, made in memory: HDF5 cannot close a file cleanly once the disk is full.

    top: the group that holds the arrays; "" for the root.
    """
    import h5py

    image = io.BytesIO()
    # v108 is the oldest layout with checksums over the metadata. No times are recorded, so the bytes are fixed.
    with h5py.File(image, "w", libver=("v108", "v108")) as file:
        for name, value in attributes.items():
            _put(file, name, value)
        group = file.create_group(top) if top else file
        for name, array in state.items():
            dataset = group.create_dataset(name.replace(".", "/"), data=array, track_times=False,
                                           dtype=array.dtype.newbyteorder("<"))
            _put(dataset, "sha256", _digest(array))
    return image


def _put(owner: h5py.Group, name: str, value: str | int) -> None:
    """Set an attribute. A text has fixed length, since HDF5 has no checksum over those of variable length."""
    import h5py

    if isinstance(value, str):
        encoded = value.encode()
        owner.attrs.create(name, encoded, dtype=h5py.string_dtype("utf-8", len(encoded) or 1))
    else:
        owner.attrs.create(name, value, dtype="<i8")


def _write(op: str, path: str | os.PathLike[str], image: io.BytesIO) -> Path:
    """Make a file of these bytes, whole or not at all, and make it last; returns where it lies."""
    target = Path(os.path.realpath(path))  # a symbolic link stays, and the file it names is replaced
    if os.path.exists(target):
        _require_file(op, target)
    if not os.path.isdir(target.parent):
        raise FileNotFoundError(f"{op}: '{target.parent}' is not a folder; create it, or choose another for "
                                f"'{target.name}'")
    try:
        _replace(target, image)
    except OSError as error:
        raise type(error)(f"{op}: '{target}' cannot be written ({error.strerror or error}); "
                          "choose a folder that is writable and has room") from error
    try:
        _sync_folder(target.parent)
    except OSError as error:
        warnings.warn(f"{op}: '{target}' was written, but its folder could not be synced ({error.strerror or error}); "
                      "after a power failure the older file may be there", RuntimeWarning, stacklevel=3)
    return target


def _replace(target: Path, image: io.BytesIO) -> None:
    """Put bytes in a file's place: at every instant the target is the old file or the new one, whole."""
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    _remove_abandoned(target.parent)
    temporary = target.with_name(f".minidl-{secrets.token_hex(8)}.tmp")
    try:
        # Born with no more permissions than the old file has; without one, with what the umask leaves.
        with open(temporary, "xb", opener=functools.partial(os.open, mode=0o666 if mode is None else mode)) as file:
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)
            file.write(image.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove what saves that were killed have left, as far as that can be done."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if (_TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
                        and time.time() - entry.stat().st_mtime > _ABANDONED):
                    os.unlink(entry.path)


def _sync_folder(path: Path) -> None:
    """Make a folder's new entry last, where a folder can be opened."""
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# ---------------------------------------------------------------------- reading
class _Meter(io.RawIOBase):
    """A file of which HDF5 may read so many bytes: it would take whatever length a file claims for anything."""

    def __init__(self, raw: BinaryIO, left: int, writer: str):
        self.raw, self.left = raw, left
        self.verdict = f"has more beside its arrays than {writer} writes; choose a file that {writer} wrote"

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.raw.seek(offset, whence)

    def tell(self) -> int:
        return self.raw.tell()

    def readinto(self, buffer: Any) -> int:
        self.left -= len(buffer)
        if self.left < 0:
            raise WeightsError(self.verdict)
        return self.raw.readinto(buffer)  # type: ignore[attr-defined]


@contextmanager
def _opened(path: str | os.PathLike[str], arrays: int = 0, op: str = "load",
            writer: str = "minidl.save") -> Iterator[tuple[Any, _Meter]]:
    """The h5py.File at `path`, and what counts its reads; a WeightsError from within is a sentence about the file,
    which gets its subject. writer: what writes such files, for messages."""
    import h5py

    if not os.path.exists(path):
        raise FileNotFoundError(f"{op}: '{path}' does not exist; check the path, or write it with {writer}")
    _require_file(op, Path(path))
    meter = None
    try:
        # HDF5 is given an open file: it would lock a path, which some shared file systems refuse.
        with open(path, "rb") as raw:
            header = raw.read(48)
            if (start := header[:len(_SIGNATURE)]) != _SIGNATURE:
                raise WeightsError(f"is not an HDF5 file (it starts with {start!r} instead of {_SIGNATURE!r}); "
                                   f"choose a file that {writer} wrote")
            # Superblock 2, addresses of 8 bytes, none of them relative, no extension: as `_image` writes it.
            if len(header) == 48 and (header[8:11] != b"\x02\x08\x08" or header[12:28] != bytes(8) + b"\xff" * 8):
                raise WeightsError(f"is HDF5 of another layout (its superblock is {header[8:28].hex()}); choose a file "
                                   f"that {writer} wrote")
            meter = _Meter(raw, _OVERHEAD + arrays * _OVERHEAD_PER_ARRAY, writer)
            with h5py.File(meter, "r") as file:
                size, end = raw.seek(0, os.SEEK_END), int.from_bytes(header[28:36], "little")
                if size > end:
                    raise WeightsError(f"has {size - end} bytes after its end; choose a file that {writer} wrote")
                yield file, meter
    except WeightsError as verdict:
        raise WeightsError(f"{op}: '{path}' {verdict}") from None
    except PermissionError as error:
        raise PermissionError(f"{op}: '{path}' cannot be read ({error.strerror}); "
                              "change its permissions") from error
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:  # all of them seen on damaged bytes
        if meter is not None and meter.left < 0:
            raise WeightsError(f"{op}: '{path}' {meter.verdict}") from None
        said = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(str(error).split())[:200])
        raise WeightsError(f"{op}: '{path}' is truncated or damaged ({said}); "
                           "copy it again from where it came from") from error


def _get(owner: h5py.Group, name: str) -> str | int | None:
    """An attribute that is one fixed-length text or whole number; None where it is missing or anything else.

    A text of variable length is not even read: one flipped bit in their heap and HDF5 (2.0) never returns.
    """
    from h5py import h5t

    if name not in owner.attrs:
        return None
    attribute = owner.attrs.get_id(name)
    kind = attribute.get_type()
    if attribute.get_storage_size() > _TEXT:
        return None
    if attribute.shape == () and kind.get_class() == h5t.INTEGER:
        return int(owner.attrs[name])
    if attribute.shape == () and kind.get_class() == h5t.STRING and not kind.is_variable_str():
        return owner.attrs[name].decode("utf-8", "backslashreplace")
    return None


def _metadata(file: h5py.File) -> dict[str, Any]:
    """The root attributes, checked, with model_args as a dict."""
    found: dict[str, Any] = {name: _get(file, name) for name in _ATTRIBUTES}
    if found["format"] != FORMAT:
        raise WeightsError(f"has format {_shown(found['format'])} but must have the fixed-length text {FORMAT!r}; "
                           "choose a file that minidl.save wrote")
    if found["format_version"] != FORMAT_VERSION:
        raise WeightsError(f"has format_version {_shown(found['format_version'])} but minidl {__version__} reads "
                           f"{FORMAT_VERSION}; read it with minidl {_shown(found['minidl_version'])}, which wrote it")
    if not isinstance(found["model"], str):
        raise WeightsError(f"has model {_shown(found['model'])} but must have a fixed-length text; "
                           "write it anew with minidl.save")
    text = found["model_args"]
    try:
        found["model_args"] = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        found["model_args"] = None
    if not isinstance(found["model_args"], dict):
        raise WeightsError(f"has model_args {_shown(text)} but must have a JSON object as fixed-length text; "
                           "write it anew with minidl.save")
    return found


def _aliases(file: h5py.File) -> dict[str, str]:
    """The root attribute "ties": names of arrays that are stored under other names."""
    if "ties" not in file.attrs:
        return {}
    text = _get(file, "ties")
    try:
        found = json.loads(text)  # type: ignore[arg-type]  # what is not a text is a TypeError
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(name, str) and _NAME.fullmatch(name)
                                              for name in [*found, *found.values()]):
        raise WeightsError(f"has ties {_shown(text)} but must have a JSON object of names as fixed-length text; "
                           "write it anew with minidl.save")
    return found


def _objects(file: h5py.File, own: Mapping[str, Any], top: str = "model") -> tuple[dict[str, Any], bool]:
    """All that lies in the file, by the names of arrays: a dataset's id, or in words what is there instead.

    top: the group that holds the arrays; "" for the root. Stops at the 20th that the model does not have, which the
    second result then says with False.
    """
    import h5py

    links = {h5py.h5l.TYPE_SOFT: "a soft link", h5py.h5l.TYPE_EXTERNAL: "an external link"}
    deepest = 1 + max(name.count(".") for name in own)
    seen: set[int] = set()
    found: dict[str, Any] = {}
    waiting: list[tuple[tuple[str, ...], bytes, Any]] = [((f"/{_part(link)}" if top else _part(link),), link,
                                                          file.id) for link in _links(file.id, len(own))]
    while waiting and len(found.keys() - own.keys()) < _MAX_NAMED:
        parts, link, group = waiting.pop()
        name = ".".join(parts)
        parts = parts if parts != (f"/{top}",) else ()
        # HDF5 would take a "/" within a link's name for a path, and follow every link along it.
        kind = None if b"/" in link else group.links.get_info(link).type
        if kind != h5py.h5l.TYPE_HARD:
            found[name] = links.get(kind, "an unknown link")
            continue
        entry = h5py.h5o.open(group, link)
        address = h5py.h5o.get_info(entry).addr
        if address in seen:
            found[name] = "a second link to another entry"
        elif not isinstance(entry, h5py.h5g.GroupID):
            found[name] = entry if isinstance(entry, h5py.h5d.DatasetID) else "a named type"
        elif name != f"/{top}" and (name.startswith("/") or len(parts) >= deepest):
            found[name] = "a group"
        elif below := _links(entry, len(own)):
            waiting += [((*parts, _part(child)), child, entry) for child in reversed(below)]
        else:
            found[name] = "an empty group"
        seen.add(address)
    return found, not waiting


def _links(group: h5py.Group, expected: int) -> list[bytes]:
    """The names in a group, as many as matter."""
    import h5py

    names: list[bytes] = []

    def note(name: bytes) -> bool:
        names.append(name)
        return len(names) > expected + _MAX_NAMED

    group.links.iterate(note, order=h5py.h5.ITER_NATIVE)       # in another order, HDF5 would read all names first
    return names


def _part(link: bytes) -> str:
    """A link's name as a part of a parameter's; quoted where it would read as two parts or two lines."""
    text = link.decode("utf-8", "backslashreplace")
    return text if text.isprintable() and "." not in text else ascii(text)


def _describe_object(entry: h5py.Dataset) -> str:
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


def _type_name(kind: h5py.h5t.TypeID) -> str:
    """A type that may be stored by name, any other HDF5 type by class and size."""
    from h5py import h5t

    for name in _DTYPES:
        if kind == h5t.py_create(np.dtype(name).newbyteorder("<"), logical=True):
            return name
    names = {getattr(h5t, name): name.lower() for name in ("INTEGER", "FLOAT", "STRING", "COMPOUND", "VLEN",
                                                           "REFERENCE", "ENUM", "ARRAY", "OPAQUE", "BITFIELD")}
    return f"{names.get(kind.get_class(), 'unknown type')} of {kind.get_size()} bytes"


def _values(stored: Mapping[str, Any], own: Mapping[str, np.ndarray],
            meter: _Meter) -> tuple[dict[str, np.ndarray], list[str]]:
    """The values of all datasets that there are for `own`'s arrays, which they fit; and in words what is damaged."""
    state: dict[str, np.ndarray] = {}
    damaged = []
    for name in (name for name in own if name in stored):
        meter.left += own[name].nbytes
        state[name], noted = _read(stored[name], own[name])
        if (digest := _digest(state[name])) != noted:
            damaged.append(f"{name} has sha256 {digest} but its attribute says {_shown(noted)}")
        elif state[name].dtype == bool and state[name].view(np.uint8).max(initial=0) > 1:
            damaged.append(f"{name} has values other than False and True")
    return state, damaged


def _read(dataset: h5py.Dataset, like: np.ndarray) -> tuple[np.ndarray, str | int | None]:
    """A dataset's values as an array of the model's shape and dtype, and the checksum noted beside them."""
    import h5py

    array = np.empty(like.shape, like.dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return array, _get(h5py.Dataset(dataset), "sha256")
