"""Checkpoints: all that a training needs to go on as if nothing had happened, in an HDF5 file.

The file has the format of weights files. The group "checkpoint" has arrays by their paths, model/c1/weight and
optimizer/groups/0/velocities/0, and "state", the rest as JSON. In the JSON, {"__array__": true} replaces the array of
that path, {"__tuple__": [...]} a tuple, and {"__dict__": [[key, value], ...]} a dict whose keys are not all texts. The
file is written whole or not at all, and read with the names, shapes and dtypes that the running training has; anything
else is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from ..core.version import __version__
from ..nn.weights.common import Kind, WeightsError, choose_another, describe, listed, shown
from ..nn.weights.files import opened, require_format, values, write
from ..ops.common.geometry import whole

KIND = Kind("minidl-checkpoint", 1, "checkpoint", "resume", "training.fit")
MAX_STATE = 2**26                          # bytes of JSON
NAMES = "checkpoint.h5", "checkpoint-previous.h5"
# What JSON does not have
ARRAY, TUPLE, DICT, NUMBER = {"__array__": True}, "__tuple__", "__dict__", "__number__"

State = dict[str, Any]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM stopped a training between two steps; what was to be saved is saved. signum: the signal."""

    def __init__(self, message: str, signum: int):
        super().__init__(message)
        self.signum = signum


# ---------------------------------------------------------------------- a file
def write_state(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write a state (dicts, lists and tuples of arrays, texts and numbers) to a file, whole or not at all.

    Raises OSError when it cannot be written, TypeError or ValueError for what a file cannot hold.
    """
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(_apart(state, "", arrays), default=_number).encode()
    if "state" in arrays or len(text) > MAX_STATE:
        raise ValueError(f"checkpoint: the state takes {len(text)} bytes beside its arrays but may take {MAX_STATE}; "
                         "hold large parts as arrays")
    write(KIND, "checkpoint", path, {**arrays, "state": np.frombuffer(text, np.uint8)}, {
        "format": KIND.format, "format_version": KIND.version, "minidl_version": __version__,
        "state_bytes": len(text)})


def read_state(path: str | os.PathLike[str], like: Mapping[str, Any], optional: str | tuple[str, ...] = "-") -> State:
    """The state that `write_state` wrote.

    like: a state that has its arrays, by path, shape and dtype; those whose path begins with `optional` may be missing.
    Raises ValueError for a file that holds anything else, which lists what does not fit; OSError if it cannot be read.
    """
    own: dict[str, np.ndarray] = {}
    _apart(like, "", own)
    with opened(KIND, path, len(own) + 1) as file:
        require_format(KIND, file, __version__)
        size = file.attribute("state_bytes")
        if not isinstance(size, int) or not 2 <= size <= MAX_STATE:
            raise WeightsError(f"has state_bytes {shown(size)} but must have a number up to {MAX_STATE}; "
                               f"{choose_another(KIND)}")
        own["state"] = np.empty(size, np.uint8)
        there, all_seen = file.entries(own)
        expected = {name: describe(array.shape, array.dtype.name) for name, array in own.items()}
        wrong = [f"{shown(name)} is {expected.get(name, 'missing')} here but {there.get(name, 'missing')} in the file"
                 for name in {**expected, **there} if expected.get(name) != there.get(name)
                 and (name in there or (all_seen and not name.startswith(optional)))]
        if wrong:
            raise WeightsError(f"does not fit this training: {listed(wrong, all_seen)}; build the model, optimizer "
                               "and callbacks that it was saved from")
        arrays, damaged = values(file, {name: own[name] for name in own if name in there})
        if damaged:
            raise WeightsError(f"is damaged: {listed(damaged)}; take the checkpoint before it")
        try:
            state = _together(json.loads(arrays.pop("state").tobytes()), "", arrays)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            state = None
        if not isinstance(state, dict):
            raise WeightsError(f"has a state that is not what {KIND.writer} writes; take the checkpoint before it")
    return state


def _apart(value: object, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """A state without its arrays, which are put into `arrays`."""
    if isinstance(value, np.ndarray):
        if path in arrays:
            raise ValueError(f"checkpoint: {path!r} names two arrays; rename a key")
        arrays[path] = value
        return ARRAY
    if isinstance(value, (list, tuple)):
        items = [_apart(each, _join(path, i), arrays) for i, each in enumerate(value)]
        return {TUPLE: items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        entries = {key: _apart(each, _join(path, key), arrays) for key, each in value.items()}
        if all(isinstance(key, str) for key in entries) and not entries.keys() & {*ARRAY, TUPLE, DICT, NUMBER}:
            return entries
        return {DICT: [[_key(key), each] for key, each in entries.items()]}
    if isinstance(value, np.number) and not isinstance(value, float):      # as float32, which rounds what is computed
        return {NUMBER: [value.dtype.name, value.item()]}
    return value


def _key(key: object) -> Any:
    """A dict's key as `_apart` gives values."""
    if isinstance(key, tuple):
        return {TUPLE: [_key(each) for each in key]}
    if key is None or isinstance(key, (str, int, float, np.number, np.bool)):
        return key
    raise TypeError(f"checkpoint: a dict in a state has the key {key!r}, a {type(key).__name__}, but keys may be "
                    "texts, numbers, None and tuples of these; let state_dict give these")


def _together(value: object, path: str, arrays: Mapping[str, np.ndarray]) -> Any:
    """The inverse of `_apart`."""
    if value == ARRAY:
        return arrays[path]
    if isinstance(value, list):
        return [_together(each, _join(path, i), arrays) for i, each in enumerate(value)]
    if isinstance(value, dict):
        if value.keys() == {TUPLE}:
            return tuple(_together(value[TUPLE], path, arrays))
        if value.keys() == {NUMBER}:
            name, number = value[NUMBER]
            if (dtype := np.dtype(name)).kind not in "iuf":            # in a file that no checkpoint wrote
                raise TypeError(f"checkpoint: a number has dtype {dtype}")
            return dtype.type(number)
        if value.keys() == {DICT}:
            value = {_together(key, "", {}): each for key, each in value[DICT]}
        return {key: _together(each, _join(path, key), arrays) for key, each in value.items()}
    return value


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _number(value: object) -> Any:
    """NumPy's numbers as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"checkpoint: a state holds a {type(value).__name__} but may hold arrays, numbers, texts, lists, "
                    "tuples and dicts; let state_dict give these")


# ---------------------------------------------------------------------- a run's
def read_newest(path: str | os.PathLike[str], like: Mapping[str, Any], optional: str | tuple[str, ...]) -> State:
    """`read_state` of a file, or of the newest checkpoint of a folder that can be read. If this is not the last one
    that was written, a warning says why."""
    if not os.path.isdir(path):
        return read_state(path, like, optional)
    newest, previous = (Path(path) / name for name in NAMES)
    try:
        return read_state(newest, like, optional)
    except (OSError, WeightsError) as error:
        if not previous.exists():
            raise
        try:
            state = read_state(previous, like, optional)
        except (OSError, WeightsError):
            raise error from None          # of the newest, which was requested
        if newest.exists():
            warnings.warn(f"{error}; goes on from '{previous}'", UserWarning, stacklevel=2)
        return state


def lock(file: int, taken: str) -> None:
    """Lock an open file or folder for as long as it is open, if the system and the file system have locks. Raises
    ValueError, which says `taken`, if it is already locked."""
    with contextlib.suppress(ImportError):
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(taken) from None
        except OSError:                    # some shared file systems have no locks
            pass


class Checkpoints:
    """The last two checkpoints of a training, checkpoint.h5 and checkpoint-previous.h5 in its folder, and the signals
    that cause one to be written.

    folder: made if it is missing. every: steps between checkpoints, in addition to the one after each epoch; 0: none.
    writes: False on the ranks of a run that leave writing to the first.
    """

    def __init__(self, folder: str | os.PathLike[str], every: int = 0, writes: bool = True):
        self.folder, self.every, self.writes = Path(folder), whole("checkpoints", "every", every, 0), writes
        try:
            if writes:
                self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise type(error)(f"checkpoints: '{self.folder}' cannot be made ({error.strerror}); name a folder that can "
                              "be written") from None
        self.newest, self.previous = (self.folder / name for name in NAMES)
        self._lock: int | None = None
        self.noted: int | None = None     # the signal that came, and the one that is to be obeyed
        self.signum: int | None = None

    def take(self) -> None:
        """Keep other trainings out of the folder until `release`, if the system has locks. Raises ValueError if one
        uses it."""
        if self.writes:
            with contextlib.suppress(OSError):         # only POSIX systems open a folder
                self._lock = os.open(self.folder, os.O_RDONLY)
                lock(self._lock, f"checkpoints: another training writes to '{self.folder}'; wait for its end, or name "
                                 "another folder")

    def release(self) -> None:
        """Another training may use the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def exist(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self.newest.exists() or self.previous.exists()

    def holds(self, path: str | os.PathLike[str]) -> bool:
        """Whether a path is this folder or one of its checkpoints."""
        return Path(path) in (self.folder, self.newest, self.previous)

    def save(self, state: State) -> bool:
        """Write the newest and keep the one before it. If that fails, there is a warning, and both stay."""
        if not self.writes:
            return False
        following = self.folder / ".checkpoint-next.h5"
        try:
            write_state(following, state)
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.newest, self.previous)
            os.replace(following, self.newest)         # a kill in between leaves the previous one
        except (OSError, MemoryError) as error:
            with contextlib.suppress(OSError):
                following.unlink(missing_ok=True)
            warnings.warn(f"no checkpoint could be written to '{self.folder}' after step {state['place']['step']} "
                          f"({getattr(error, 'strerror', None) or error}); the training goes on, and the older ones "
                          "stay", UserWarning, stacklevel=2)
            return False
        return True

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Within this, Ctrl-C and SIGTERM are `noted`, to be obeyed between two steps; the second raises
        KeyboardInterrupt at once. Only on the main thread, and only if no other code already handles the signal."""
        def note(signum: int, frame: FrameType | None) -> None:
            if self.noted is not None:
                raise KeyboardInterrupt
            self.noted = signum

        self.noted, self.signum, before = None, None, {}
        if threading.current_thread() is threading.main_thread():
            for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                if signal.getsignal(number) is default:
                    before[number] = signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
