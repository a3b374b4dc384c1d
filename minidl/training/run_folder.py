"""The folder that a run leaves behind: its configuration, its metrics, its weights."""

from __future__ import annotations

import errno
import functools
import itertools
import json
import math
import os
import platform
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from .. import data, nn
from ..core.version import __version__
from ..distributed import by_first, current
from ..nn.weights import require_described, save
from .callbacks import Step
from .checkpoint import NAMES, lock
from .metrics import Metrics
from .record import FILE, Record, machine
from .resume import contents_of

OF_DATA = ("in_channels", "in_features", "classes")    # options of a net that its data decide
MAX_CONFIG = 2**20                         # bytes of a config.json that are read; train.py writes some thousand


def versions() -> dict[str, Any]:
    """What computes a run, for config.json."""
    return {"minidl": __version__, "numpy": np.__version__, "python": platform.python_version(), "machine": machine(),
            "ranks": current().size}


def facts(model: nn.Module, train: data.DataLoader | None, test: data.DataLoader | None) -> dict[str, Any]:
    """What config.json says of a net and its loaders: as `minidl train` says it, so that its commands find both. They
    find only the first items of a set, so others of it are not named."""
    options = {name: value for name, value in getattr(model, "model_args", {}).items() if name not in OF_DATA}
    found = {"program": True, "model": getattr(model, "model_name", type(model).__name__), "option": options,
             "code": getattr(model, "model_code", None), **versions()}
    for split, loader in (("train", train), ("test", test)):
        if loader is not None:
            found |= {f"{split}_images": loader.images_per_epoch, "device": loader.device}
    if train is not None:
        named = isinstance(train.dataset, (data.Dataset, data.Table))          # a Subset has its items as a source
        found |= {"batch_size": train.batch_size, "data_source": train.dataset.source if named else None}
    kept = getattr(test, "dataset", None)
    if isinstance(kept, (data.Dataset, data.Table)) and kept.split == "test" and kept.name in data.DATASETS and (
            contents_of(test) == _first_of(kept.name, len(kept), kept.source)):
        found |= {"data": kept.name, "limit_test": len(kept)}
    return found


@functools.lru_cache(8)
def _first_of(name: str, count: int, source: str) -> dict[str, str]:
    """What a set's first test items hold, as `contents_of` says it; nothing if they are not on this machine."""
    try:
        first = data.load(name, "test", source if os.path.isdir(source) else None, download=False, count=count)
    except (OSError, ValueError):
        return {}
    return contents_of(data.DataLoader(first, 1))


class RunFolder:
    """The folder of one run: config.json at its start, a line of metrics.jsonl per epoch, checkpoints, weights.h5.

    It is a callback of `fit`. With the net and its loaders it writes what `minidl train` does, so that all commands can
    read the run: while it trains, config.json, metrics.jsonl and, for the report, statistics.jsonl; at the end of its
    `with`, unless that is an error, weights.h5. Checkpoints are written by fit. The net should be made by `zoo.build`,
    which also takes a function of your own: config.json and weights.h5 then say which code the net is from. resume: go
    on with the run that is there, if there is one; lines of epochs that are trained again are replaced.

    A second `fit` with the same RunFolder goes on counting: after 3 epochs its first one is the fourth. One that
    resumes has the numbers of its checkpoint.

    >>> import tempfile
    >>> from minidl import data, nn, optim, training, zoo
    >>> def build(classes=10):
    ...     return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))
    >>> digits = data.DataLoader(data.load("synthetic-digits", "test").first(200), 50)
    >>> net = zoo.build(build)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with training.RunFolder(f"{place}/run", net, digits, digits, resume=True) as run:
    ...         _ = training.fit(net, optim.SGD(net.parameters(), 0.1), digits, digits, epochs=1, say=None,
    ...                          callbacks=run, checkpoints=run.path, resume=True)
    ...     sorted(file.name for file in run.path.iterdir())
    ['checkpoint.h5', 'config.json', 'metrics.jsonl', 'statistics.jsonl', 'weights.h5']

    Two runs never share a folder: it belongs to the run that makes its metrics.jsonl, and to one process at a time.
    Raises OSError if the folder cannot be made or written, and ValueError if it holds a run already, or if a weights
    file cannot hold what the loader says, such as the names of classes.
    """

    model: nn.Module | None = None         # its weights are written at the end
    train: data.DataLoader | None = None
    record: Record | None = None           # of the inside of the training
    config: Mapping[str, Any] = MappingProxyType({})           # written when training begins,
    names: Mapping[str, str] = MappingProxyType({})            # and these in each line of metrics.jsonl
    _made: Sequence[Path] = ()             # the folders that were made for it,
    _mine = False                          # and whether its metrics.jsonl was
    _begun = False                         # whether the training has done a step,
    _before: Mapping[str, int] = MappingProxyType({"epoch": 0, "step": 0})     # what trainings before it have done,
    _done = _before                        # and with its own

    def __init__(self, path: str | os.PathLike[str], model: nn.Module | None = None,
                 train: data.DataLoader | None = None, test: data.DataLoader | None = None, resume: bool = False):
        self.path = Path(path)
        self.model, self.train, self.config = model, train, {} if model is None else facts(model, train, test)
        self.names = {name: self.config[name] for name in ("model", "data") if name in self.config}
        if model is not None:
            require_described(model, train)
        self.record = None if model is None else Record(self, model)
        if resume and (self.path / "metrics.jsonl").exists():  # before config.json, if that run was killed early
            self._go_on()
        else:
            self._begin()

    def _begin(self) -> None:
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
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
                                 "remove that one; in Python, resume=True goes on with it, and RunFolder.beside makes "
                                 "a new one") from None

    @classmethod
    def beside(cls, path: str | os.PathLike[str]) -> RunFolder:
        """A new folder, named after `path` and the time."""
        stem = f"{os.fspath(path)}-{time.strftime('%Y%m%d-%H%M%S')}"
        names = (f"{stem}-{i}" if i else stem for i in itertools.count())
        while True:
            with suppress(ValueError):     # another run, begun in the same second, has that name
                return cls(next(names))

    @classmethod
    def again(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The folder of a run that is to go on. Raises ValueError if there is none, or if another process uses it."""
        folder = cls.__new__(cls)
        folder.path = Path(path)
        read_config(folder.path / "config.json")
        folder._go_on()
        return folder

    def _go_on(self) -> None:
        with self._writing():
            self._lock = open(self.path / "metrics.jsonl", "ab")          # noqa: SIM115
        self._take()

    @classmethod
    def of_first(cls, make: Callable[[], RunFolder]) -> RunFolder:
        """The folder that rank 0 makes; the other ranks of a run know its path, and write nothing there."""
        folder = cls.__new__(cls)
        folder._lock = open(os.devnull, "ab")                             # noqa: SIM115

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
        if self.record:
            self.record.ended(error)
        if error is None and self.model is not None:
            save(self.model, self.weights, data=self.train)
        self.close()

    def on_train_begin(self) -> None:
        """What `fit` calls."""
        if self.config:
            self.write_config(self.config)
        self._begun = False
        if self.record:
            self.record.on_train_begin()

    def on_step_end(self, step: Step) -> None:
        """What `fit` calls."""
        if not self._begun and step.epoch == step.batch == 1:          # from the start, not from a checkpoint
            self._before = self._done
        self._begun = True
        if self.record:
            if any(self._before.values()):
                step = step._replace(epoch=step.epoch + self._before["epoch"], step=step.step + self._before["step"])
            self.record.on_step_end(step)

    def on_epoch_end(self, metrics: Metrics) -> None:
        """What `fit` calls."""
        self._done = {name: metrics.get(name, 0) + count for name, count in self._before.items()}
        metrics = {**self.names, **metrics, **self._done}
        self.append_metrics(metrics)
        if self.record:
            self.record.on_epoch_end(metrics)

    def _take(self) -> None:
        """Keep other processes out until `close`, or for as long as this object lives, if the system has locks."""
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
        """Whether there is a checkpoint to go on from."""
        return any((self.path / name).exists() for name in NAMES)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write config.json, whole or not at all."""
        part = self.path / ".config.json.part"
        with self._undone_if_refused():
            part.write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")
            os.replace(part, self.path / "config.json")

    def append_metrics(self, metrics: Metrics) -> None:
        """Add one line to metrics.jsonl, as `append` does."""
        self.append("metrics.jsonl", metrics)

    def append(self, name: str, metrics: Metrics, sync: bool = True) -> None:
        """Add one line to a file, whole or not at all. Half a line at the end, which a full disk left, is removed. So
        are lines of the same epoch and later ones, which are there if a run goes on from an earlier checkpoint.
        sync: wait until the line is on the disk."""
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
    """What a run's config.json holds. Raises ValueError if there is none, or if it cannot be read."""
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
    """The epoch of a line of metrics.jsonl; -1 for another line."""
    try:
        epoch = json.loads(line)["epoch"]
    except (ValueError, TypeError, KeyError, RecursionError):
        epoch = None
    return epoch if isinstance(epoch, int) else -1


def read_metrics(folder: str | os.PathLike[str], name: str = "metrics.jsonl") -> list[Metrics]:
    """The lines of a run folder's metrics.jsonl, or of a file of another name. Half a line at its end, of an epoch that
    was cut short, is left out.

    Raises OSError for what cannot be read or is not a file, ValueError for a line, named by number, that does not
    hold metrics.
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


def read_statistics(folder: str | os.PathLike[str]) -> list[Metrics]:
    """The lines of a run folder's statistics.jsonl; none if there is no such file. Raises as `read_metrics`."""
    try:
        return read_metrics(folder, FILE)
    except FileNotFoundError:
        return []
