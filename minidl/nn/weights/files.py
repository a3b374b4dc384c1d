"""Named arrays and attributes in a file: written whole or not at all, and read by a schema that is known beforehand.

A file is data from a stranger. The reader says which arrays there are and how large they are. Whatever in the file is
not exactly that, or is more than a plain array, is refused before any value of it is read. What a file says of itself
is printed quoted and cut short.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import secrets
import stat
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from .common import DTYPES, NAME, TEXT, File, Kind, WeightsError, cut, describe, digest, listed, require_file, shown

T = TypeVar("T")
Path_ = str | os.PathLike[str]

_TEMPORARY = re.compile(r"\.minidl-[0-9a-f]{16}\.tmp")
_ABANDONED = 3600                          # seconds after which a temporary file must be from a killed save


def _format(path: Path_) -> Any:
    """The module of a path's format; only what is needed is imported."""
    suffix = Path(path).suffix.lower()
    return importlib.import_module(suffix if suffix in (".npz", ".safetensors") else ".hdf5", __package__)


# Endings that other programs use for their files.
_OTHERS = {".pt": "PyTorch", ".pth": "PyTorch", ".onnx": "ONNX", ".keras": "Keras", ".pkl": "pickles", ".npy": "NumPy"}
_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"         # how torch.save's files began before they were archives


def require_own_ending(op: str, path: Path_) -> None:
    """Refuse a name that other programs would take for one of their own files."""
    if (others := _OTHERS.get(Path(path).suffix.lower())) is not None:
        raise ValueError(f"{op}: '{path}' has the ending of a file of {others} but would hold HDF5; choose .h5, .npz "
                         "or .safetensors, or write for ONNX by minidl.onnx.export(net, path, example), for PyTorch by "
                         "torch.save({name: torch.tensor(a) for name, a in net.state_dict().items()}, path)")


# ---------------------------------------------------------------------- arrays by name
def ties_of(state: Mapping[str, np.ndarray]) -> dict[str, str]:
    """The names whose array also has an earlier name: {name: the first name}."""
    first = {id(array): name for name, array in reversed(list(state.items()))}
    return {name: first[id(array)] for name, array in state.items() if first[id(array)] != name}


def require_storable(op: str, state: Mapping[str, np.ndarray]) -> None:
    """Refuse names and dtypes that a file cannot hold."""
    modules = {name[:i] for name in state for i, letter in enumerate(name) if letter == "."}
    for name, array in state.items():
        if not NAME.fullmatch(name):
            raise ValueError(f"{op}: parameter name {name!r} must be letters, digits, '_' and '-' with single "
                             "dots in between; rename the attribute that holds it")
        if name in modules:
            raise ValueError(f"{op}: {name} is a parameter and also part of other parameters' names; rename one")
        if array.dtype.name not in DTYPES:
            raise TypeError(f"{op}: {name} is {array.dtype} but must be {', '.join(DTYPES[:-1])} or {DTYPES[-1]}; "
                            "convert it with .to(dtype=...)")


# ---------------------------------------------------------------------- writing
def write(kind: Kind, op: str, path: Path_, state: Mapping[str, np.ndarray],
          attributes: Mapping[str, str | int]) -> None:
    """Write named arrays and attributes, whole or not at all; an older file at `path` is replaced.

    An array with several names (tied) is stored under the first. Equal contents give equal bytes. Raises TypeError or
    ValueError for what a file cannot hold, OSError if it cannot be written; an older file then stays as it was.
    """
    require_storable(op, state)
    ties = ties_of(state)
    noted = {**attributes, **({"ties": json.dumps(ties)} if ties else {})}
    for name, value in noted.items():
        if (length := len(str(value).encode())) > TEXT:
            raise ValueError(f"{op}: {name} of {shown(attributes.get('model'))} takes {length} bytes but may take "
                             f"{TEXT}; shorten it")
    image = _format(path).image(kind, {name: array for name, array in state.items() if name not in ties}, noted)
    write_whole(op, path, image)


def write_whole(op: str, path: Path_, content: bytes) -> None:
    """Write bytes to a file, whole or not at all. Raises OSError if that fails; an older file then stays as it was."""
    target = Path(os.path.realpath(path))  # a symbolic link stays, and the file it names is replaced
    if os.path.exists(target):
        require_file(op, target)
    if not os.path.isdir(target.parent):
        raise FileNotFoundError(f"{op}: '{target.parent}' is not a folder; create it, or choose another for "
                                f"'{target.name}'")
    try:
        replace(target, content)
    except OSError as error:
        raise type(error)(f"{op}: '{target}' cannot be written ({error.strerror or error}); "
                          "choose a folder that is writable and has room") from error
    try:
        sync_folder(target.parent)
    except OSError as error:
        warnings.warn(f"{op}: '{target}' was written, but its folder could not be synced ({error.strerror or error}); "
                      "after a power failure the older file may be there", RuntimeWarning, stacklevel=4)


def replace(target: Path, content: bytes) -> None:
    """Put bytes in a file's place: at every instant the target is the old file or the new one, whole."""
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    _remove_abandoned(target.parent)
    temporary = target.with_name(f".minidl-{secrets.token_hex(8)}.tmp")
    try:
        # Created with no more permissions than the old file has; without an old file, with what the umask leaves.
        with open(temporary, "xb", opener=functools.partial(os.open, mode=0o666 if mode is None else mode)) as file:
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed saves have left, as far as possible."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if (_TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
                        and time.time() - entry.stat().st_mtime > _ABANDONED):
                    os.unlink(entry.path)


def sync_folder(path: Path) -> None:
    """Make a folder's new entry durable, if the system can open a folder."""
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# ---------------------------------------------------------------------- reading
@contextmanager
def opened(kind: Kind, path: Path_, arrays: int = 0, form: ModuleType | None = None) -> Iterator[File]:
    """The open file at `path`. No more of it is read than `arrays` arrays need. A WeightsError from within gets the
    file as the subject of its sentence. form: the format's module, by default that of the path's ending."""
    op = kind.reader
    if not os.path.exists(path):
        raise FileNotFoundError(f"{op}: '{path}' does not exist; check the path, or write it with {kind.writer}")
    require_file(op, Path(path))
    try:
        # A format is given an open file: HDF5 would lock a path, which some shared file systems refuse.
        with open(path, "rb") as raw:
            if (start := raw.read(128)).startswith(_TORCH) or (start[:4] == b"PK\3\4" and b"/data.pkl" in start):
                raise WeightsError("is a file of PyTorch, a pickle, which is not read here; write "
                                   f"net.load_state_dict(torch.load('{path}', weights_only=True, map_location='cpu'))")
            if Path(path).suffix.lower() == ".keras":
                raise WeightsError("is a whole net of Keras, whose code is not run here; in Keras write its weights, "
                                   "net.save_weights('net.weights.h5'), build the net here and load that file")
            raw.seek(0)
            with (form or _format(path)).opened(kind, raw, arrays) as file:
                yield file
    except WeightsError as verdict:
        raise WeightsError(f"{op}: '{path}' {verdict}") from None
    except PermissionError as error:
        raise PermissionError(f"{op}: '{path}' cannot be read ({error.strerror}); "
                              "change its permissions") from error
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:  # all of them seen on damaged bytes
        said = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(str(error).split())[:200])
        raise WeightsError(f"{op}: '{path}' is truncated or damaged ({said}); "
                           "copy it again from where it came from") from error


def read(kind: Kind, path: Path_, own: Mapping[str, np.ndarray], fits: str,
         look: Callable[[File], T], form: ModuleType | None = None) -> tuple[dict[str, np.ndarray], T]:
    """The arrays of a file by the names, shapes and dtypes of `own`, and what `look` made of its attributes.

    `fits` is what messages call the owner of `own`. Names, shapes and dtypes must be exactly `own`'s and every checksum
    must agree; else a WeightsError lists what is wrong, at most 20 entries. Arrays that are tied in `own` may be
    separate in the file if they are equal, and the other way round.
    """
    ties = ties_of(own)
    expected = {name: describe(array.shape, array.dtype.name) for name, array in own.items()}
    source: dict[str, str] = {}
    apart = []
    with opened(kind, path, len(own), form) as file:
        looked = look(file)
        aliases = _aliases(kind, file)
        stored, all_seen = file.entries(own)
        found = stored | {alias: stored.get(name, "tied to what is missing") if alias not in stored
                          else "stored and tied" for alias, name in aliases.items()}
        given = {ties.get(name, name) for name in found}       # of arrays with several names, one is enough
        wrong = [f"{cut(name)} is {expected.get(name, 'missing')} in the model but {cut(found.get(name, 'missing'))} "
                 "in the file" for name in {**expected, **found}
                 if expected.get(name) != found.get(name)
                 and (name in found or (all_seen and ties.get(name, name) not in given))]
        if wrong:
            raise WeightsError(f"was saved from {shown(file.attribute('model'))} and does not fit {shown(fits)}: "
                               f"{listed(wrong, all_seen)}; build the model that it was saved from, or write it anew "
                               f"with {kind.writer}")
        state, damaged = values(file, {name: own[name] for name in own if name in stored})
        state |= {alias: state[name] for alias, name in aliases.items()}
        for name in own:                   # of several names of an array in the model, the first that is given counts
            first = source.setdefault(ties.get(name, name), name) if name in state else None
            if first not in (name, None) and state[name].tobytes() != state[first].tobytes():
                apart.append(f"{name} and {first}")
        if damaged:
            raise WeightsError(f"is damaged: {listed(damaged)}; copy it again from where it came from")
        if apart:
            raise WeightsError(f"does not fit {shown(fits)}: {listed(apart)} are one array in the "
                               "model but differ in the file; untie them in the model")
    return state | {name: state[source[ties.get(name, name)]] for name in own}, looked


def values(file: File, like: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays of a file that `like` has, and in words which of them are damaged."""
    state: dict[str, np.ndarray] = {}
    damaged = []
    for name, array in like.items():
        state[name], noted = file.read(name, array)
        if (sum_ := digest(state[name])) != noted:
            damaged.append(f"{name} has sha256 {sum_} but its attribute says {shown(noted)}")
        elif state[name].dtype == bool and state[name].view(np.uint8).max(initial=0) > 1:
            damaged.append(f"{name} has values other than False and True")
    return state, damaged


def require_format(kind: Kind, file: File, version: str) -> None:
    """Refuse a file of another kind, or another version of this kind."""
    if (said := file.attribute("format")) != kind.format:
        raise WeightsError(f"has format {shown(said)} but must have the fixed-length text {kind.format!r}; "
                           f"choose a file that {kind.writer} wrote")
    if (said := file.attribute("format_version")) != kind.version:
        raise WeightsError(f"has format_version {shown(said)} but minidl {version} reads {kind.version}; read it with "
                           f"minidl {shown(file.attribute('minidl_version'))}, which wrote it")


def parsed(kind: Kind, file: File, name: str, must: str, good: Callable[[Any], bool]) -> Any:
    """An attribute that holds JSON. Raises WeightsError if it is not `good`: `must` says what it must be."""
    text = file.attribute(name)
    try:
        value = json.loads(text)  # type: ignore[arg-type]  # what is not a text is a TypeError
        if good(value):
            return value
    except (TypeError, ValueError, RecursionError):
        pass
    raise WeightsError(f"has {name} {shown(text)} but must have {must} as fixed-length text; write it anew with "
                       f"{kind.writer}")


def _aliases(kind: Kind, file: File) -> dict[str, str]:
    """The attribute "ties": names of arrays that are stored under other names."""
    if not file.has("ties"):
        return {}
    return parsed(kind, file, "ties", "a JSON object of names", lambda found: isinstance(found, dict) and all(
        isinstance(name, str) and NAME.fullmatch(name) for name in [*found, *found.values()]))
