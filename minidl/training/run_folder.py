"""The folder that a run leaves behind: its configuration, its metrics, its weights."""

from __future__ import annotations

import errno
import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .metrics import Metrics


class RunFolder:
    """The folder of one run: config.json at its start, a line of metrics.jsonl per epoch, weights.h5.

    Two runs never share one: it belongs to whoever makes its metrics.jsonl. Raises OSError where the folder cannot be
    made or written, and ValueError where it holds a run already.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self._mine = False
        with self._undone_if_refused():
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                if any((self.path / name).exists() for name in ("config.json", "weights.h5")):
                    raise FileExistsError
                open(self.path / "metrics.jsonl", "x").close()
                self._mine = True
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

    def write_config(self, config: dict[str, Any]) -> None:
        """Write config.json, whole or not at all."""
        part = self.path / ".config.json.part"
        with self._undone_if_refused():
            part.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            os.replace(part, self.path / "config.json")

    def append_metrics(self, metrics: Metrics) -> None:
        """Add one line to metrics.jsonl, whole or not at all; half a line that a full disk left at its end goes."""
        line = (json.dumps(metrics, allow_nan=False) + "\n").encode()
        with self._writing(), open(self.path / "metrics.jsonl", "a+b", buffering=0) as file:
            file.seek(0)
            end = file.read().rfind(b"\n") + 1
            file.truncate(end)
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise


def read_metrics(folder: str | os.PathLike[str]) -> list[Metrics]:
    """The lines of a run folder's metrics.jsonl. Half a line at its end, of an epoch that was cut short, is left out.

    Raises OSError for a file that cannot be read, ValueError, with its line, for one that holds other things.
    """
    path, found = Path(folder) / "metrics.jsonl", []
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
