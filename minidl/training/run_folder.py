"""The folder that a run leaves behind: its configuration, its metrics, its weights."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..distributed import by_first
from .checkpoint import NAMES, lock
from .metrics import Metrics

MAX_CONFIG = 2**20                         # bytes of a config.json that are read; train.py writes some thousand


class RunFolder:
    """The folder of one run: config.json at its start, a line of metrics.jsonl per epoch, checkpoints, weights.h5.

    Two runs never share one: it belongs to whoever makes its metrics.jsonl, and to one process at a time. Raises
    OSError where the folder cannot be made or written, and ValueError where it holds a run already.

    at_end: is told at the end of its `with` of the error that ended it, or None.
    """

    at_end: Callable[[BaseException | None], object] = staticmethod(lambda error: None)

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self._mine = False
        with self._undone_if_refused():
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                if any((self.path / name).exists() for name in ("config.json", "weights.h5")):
                    raise FileExistsError
                self._lock = open(self.path / "metrics.jsonl", "xb")  # noqa: SIM115  # held open, for its lock
                self._mine = True
                self._take()
            except FileExistsError:
                raise ValueError(f"run folder: {self.path} holds an earlier run already; name another folder or "
                                 "remove that one") from None

    @classmethod
    def beside(cls, path: str | os.PathLike[str]) -> RunFolder:
        """A new one, named after `path` and the time."""
        stem = f"{os.fspath(path)}-{time.strftime('%Y%m%d-%H%M%S')}"
        names = (f"{stem}-{i}" if i else stem for i in itertools.count())
        while True:
            with suppress(ValueError):     # another run, begun in the same second, has that name
                return cls(next(names))

    @classmethod
    def again(cls, path: str | os.PathLike[str]) -> RunFolder:
        """That of a run which is to go on. Raises ValueError where there is none, or where another process is at it."""
        folder = cls.__new__(cls)
        folder.path, folder._made, folder._mine = Path(path), [], False
        read_config(folder.path / "config.json")
        with folder._writing():
            folder._lock = open(folder.path / "metrics.jsonl", "ab")      # noqa: SIM115
        folder._take()
        return folder

    @classmethod
    def of_first(cls, make: Callable[[], RunFolder]) -> RunFolder:
        """The folder that rank 0 makes; the other ranks of a run know its path, and write nothing there."""
        folder = cls.__new__(cls)
        folder._made, folder._mine, folder._lock = [], False, open(os.devnull, "ab")           # noqa: SIM115

        def path() -> Path:
            nonlocal folder
            folder = make()
            return folder.path

        folder.path = by_first(path)
        return folder

    def close(self) -> None:
        """The run has ended: another process may go on with it. It is also the end of `with RunFolder(...)`."""
        self._lock.close()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.at_end(error)
        self.close()

    def _take(self) -> None:
        """Keep other processes out until `close`, or for as long as this object lives, where the system has locks."""
        weakref.finalize(self, self._lock.close)
        lock(self._lock.fileno(), f"run folder: another process is at the run in {self.path}; wait for its end, or "
                                  "stop it")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(f"run folder: {self.path} cannot be written ({error.strerror}); name another with "
                          "--output-dir") from None

    @contextmanager
    def _undone_if_refused(self) -> Iterator[None]:
        """As `_writing`, for a run that has not begun: nothing is left of a folder that was made for it."""
        try:
            with self._writing():
                yield
        except OSError:
            for name in (".config.json.part", "metrics.jsonl") if self._mine else ():
                with suppress(OSError):
                    (self.path / name).unlink()
            for folder in self._made:
                with suppress(OSError):
                    folder.rmdir()
            raise

    @property
    def weights(self) -> Path:
        return self.path / "weights.h5"

    def has_checkpoint(self) -> bool:
        """Whether there is one to go on from."""
        return any((self.path / name).exists() for name in NAMES)

    def write_config(self, config: dict[str, Any]) -> None:
        """Write config.json, whole or not at all."""
        part = self.path / ".config.json.part"
        with self._undone_if_refused():
            part.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            os.replace(part, self.path / "config.json")

    def append_metrics(self, metrics: Metrics) -> None:
        """Add one line to metrics.jsonl, as `append` does."""
        self.append("metrics.jsonl", metrics)

    def append(self, name: str, metrics: Metrics, sync: bool = True) -> None:
        """Add one line to a file, whole or not at all; half a line that a full disk left at its end goes, and so do
        lines of the same epoch and later ones, which a run left that goes on from an earlier checkpoint.
        sync: wait until it is on the disk."""
        line = (json.dumps(metrics, allow_nan=False) + "\n").encode()
        with self._writing(), open(self.path / name, "a+b", buffering=0) as file:
            file.seek(0)
            held = file.read()
            end = held.rfind(b"\n") + 1
            while end and (start := held.rfind(b"\n", 0, end - 1) + 1) < end and _epoch(held[start:end]) >= metrics.get(
                    "epoch", math.inf):
                end = start
            file.truncate(end)
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if sync:
                    os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a run's config.json holds. Raises ValueError where there is none, or none that can be read."""
    try:
        _require_file(path)
        with open(path, "rb") as file:
            text = file.read(MAX_CONFIG + 1)
        if len(text) > MAX_CONFIG:
            raise ValueError(f"it has more than {MAX_CONFIG:,} bytes")
        config = json.loads(text.decode("utf-8"))
    except FileNotFoundError:
        raise ValueError(f"run folder: '{path}' does not exist, so no run is there; name the folder that train.py "
                         "made") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"run folder: '{path}' cannot be read ({error}); name a file that train.py wrote") from None
    if not isinstance(config, dict):
        raise ValueError(f"run folder: '{path}' holds a {type(config).__name__} but must hold an object of JSON")
    return config


def _require_file(path: str | os.PathLike[str]) -> None:
    """Refuse a pipe or a device, which may have no end."""
    if Path(path).exists() and not Path(path).is_file():
        raise OSError(f"{path} is not an ordinary file; name one that train.py wrote")


def _epoch(line: bytes) -> float:
    """Of a line of metrics.jsonl; -1 of another one."""
    try:
        epoch = json.loads(line)["epoch"]
    except (ValueError, TypeError, KeyError, RecursionError):
        epoch = None
    return epoch if isinstance(epoch, int) else -1


def read_metrics(folder: str | os.PathLike[str], name: str = "metrics.jsonl") -> list[Metrics]:
    """The lines of a run folder's metrics.jsonl, or of a file of another name. Half a line at its end, of an epoch that
    was cut short, is left out.

    Raises OSError for what cannot be read or is not a file, ValueError, with its line, for one that holds other things.
    """
    path, found = Path(folder) / name, []
    _require_file(path)
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            metrics = json.loads(line)
        except (ValueError, RecursionError):
            metrics = None
        if not isinstance(metrics, dict):
            raise ValueError(f"metrics: line {number} of {path} is {line[:40]!r} but must be an object of JSON; remove "
                             "that line")
        found.append(metrics)
    return found
