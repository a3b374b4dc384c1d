"""Many trainings of one architecture whose settings differ: each is a run folder of its own."""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import math
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import minidl
from minidl import nn, ops, optim, zoo
from minidl.core import device as devices
from minidl.data import DataLoader, Dataset, Table
from minidl.data.once import unchanging
from minidl.data.sources import as_set, counted
from minidl.distributed import by_first, current, start
from minidl.distributed.world import World, alone
from minidl.nn.weights import warn_of_change
from minidl.ops.common.geometry import whole
from minidl.training import RunFolder, fit, read_config, read_metrics
from minidl.training.checkpoint import lock
from minidl.training.metrics import Progress, show
from minidl.training.resume import contents_of, differences
from minidl.zoo.recipe import PLAIN

from .cli.runs import aligned, outcome, place, shown
from .plot.figures import short, write
from .plot.page import Run, document, number_table
from .plot.svg import chart, series
from .workers import Job, Net, Outcome, most_at_once, train_all

FILE, ROWS, PAGE = "sweep.json", "sweep.jsonl", "sweep.html"
REPEATS = ("seed", "fold")                 # settings over which results spread: none of their values is better
MAX_LINES = 40                             # of a table on the screen

Row = dict[str, Any]
Items = Any                                # what `data.DataLoader` takes
Build = str | Callable[..., nn.Module]
Ints = int | Sequence[int] | np.ndarray
Schedules = str | optim.Schedule | Sequence[str | optim.Schedule]


def combined(values: Mapping[str, Sequence[Any]], epochs: Callable[[dict[str, Any]], int]) -> list[Net]:
    """A net for each combination of values, the last setting changing first. Raises ValueError if two are the same."""
    found: dict[str, Net] = {}
    for each in itertools.product(*values.values()):
        settings = dict(zip(values, each, strict=True))
        told = ",".join(f"{name}={text(value)}" for name, value in settings.items())
        name = re.sub(r"[^\w.,=+-]+", "-", told) or "net"
        if name in found:
            raise ValueError(f"sweep: two nets would have the folder {name}; give each value once, and functions names "
                             "of their own")
        found[name] = Net(name, settings, epochs(settings))
    return list(found.values())


def text(value: object) -> Any:
    """A setting as a file says it: a number or a text as it is, a function by its name, an object without its address.

    >>> text(0.1), text(len), text([8, 16]), text(object())
    (0.1, 'len', '[8, 16]', '<object object>')
    """
    if value is None or type(value) in PLAIN:
        return value
    return getattr(value, "__name__", re.sub(r" at 0x\w+", "", str(value)))


def _known_by(value: object) -> Any:
    """As text, and of a function of Python also what it keeps, such as the numbers of `optim.step(10, 0.1)`."""
    kept = inspect.getclosurevars(value).nonlocals if inspect.isfunction(value) else {}
    return f"{text(value)}({', '.join(f'{name}={text(kept[name])}' for name in sorted(kept))})" if kept else text(value)


# ---------------------------------------------------------------- the nets of a folder
def trained(nets: Sequence[Net], job: Job, workers: int, device: str, *, facts: Mapping[str, Any],
            resume: bool = False, progress: bool = True, say: Callable[[str], object] | None = show) -> Sweep:
    """Train what is not trained yet, and write sweep.jsonl and sweep.html.

    workers: nets at once, each in a process, which share the CPU's threads; 0: one net after another in this thread.
    facts: what sweep.json says in addition to the nets; `data` (digests) must be the same when it goes on, and a change
    of `code` is warned of. Ranks share out the nets; all see one folder.
    Raises ValueError for a folder that holds another sweep, or if another process works on it.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.exit(1)                        # a script without `if __name__ == "__main__"`: the first process says so
    world, rows, lines = current(), dict[str, Row](), dict[str, str]()
    settings = [{name: _known_by(value) for name, value in net.settings.items()} for net in nets]
    told = json.dumps({**facts, "nets": settings}, indent=2)                   # as it is read back
    if other := [rank for rank, each in enumerate(world.gather(told)) if each != told]:
        raise ValueError(f"sweep: rank {world.rank} has other nets, settings or data than rank {other[0]}; give all "
                         "ranks the same")

    def written() -> None:
        if world.rank == 0:
            lines.update({name: json.dumps(rows[name]) + "\n" for name in rows.keys() - lines.keys()})
            write(job.folder / ROWS, "".join(lines[each.name] for each in nets if each.name in lines).encode())

    def done(net: Net, state: str, why: str = "") -> None:
        rows[net.name] = _row(net, job.folder, state, why)
        written()

    with ExitStack() as stack:
        kept = by_first(lambda: _begun(nets, told, job.folder, resume, stack))
        todo = _of_rank(world, [net for net in nets if net.name not in kept])
        rows |= {net.name: _row(net, job.folder, *kept[net.name]) for net in nets if net.name in kept}
        written()
        ours = [net for net in nets if net.name in kept or net in todo]
        bar = _Bar(ours, job.folder, progress and world.rank == 0, rows)
        try:
            with alone():
                train_all(todo, job, workers, device, done, bar.look, say)
        finally:
            bar.progress.close()
        rows = {name: row for each in world.gather(rows) for name, row in each.items()}
        found = Sweep(job.folder, sorted(rows.values(), key=lambda row: (row["state"] != "finished", place(row))))
        if world.rank == 0:
            written()
            write(job.folder / PAGE, found.page().encode())
        world.barrier()                    # the folder is whole for all
    return found


def of_data(*parts: Items) -> dict[str, str]:
    """The digests of the training set and the test set, or of what is to be folded."""
    return {f"{which} {name}": digest for which, part in zip(("training", "test"), parts, strict=False)
            for name, digest in contents_of(DataLoader(part, 1)).items()}


def _of_rank(world: World, nets: Sequence[Net]) -> list[Net]:
    """Those that a rank trains: at random, or the nets of one rate or width, each k-th, could all come to one rank."""
    mine = np.random.Generator(np.random.Philox(0)).permutation(len(nets))[world.rank::world.size]
    return [nets[i] for i in sorted(mine)]


def _begun(nets: Sequence[Net], told: str, folder: Path, resume: bool, stack: ExitStack) -> dict[str, Outcome]:
    """Make the folder, or see that it is of these nets, of which sweep.json says what was `told`; it is this process's
    until the stack is closed. Returns the state of those that are done, and why."""
    new = not (folder / FILE).exists()
    if new:
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / FILE, f"{told}\n".encode())
    elif not resume:
        raise ValueError(f"sweep: {folder} holds a sweep already; go on with it by --resume {folder}, in Python by "
                         "resume=True, or name another folder")
    kept = {} if new else _kept(nets, told, folder)
    held = stack.enter_context((folder / FILE).open("rb"))
    lock(held.fileno(), f"sweep: another process is at the sweep in {folder}; wait for its end, or stop it")
    return kept


def _kept(nets: Sequence[Net], told: str, folder: Path) -> dict[str, Outcome]:
    """The state of the nets that are done in a folder, and why. Raises ValueError if it is of other nets."""
    there, here = read_config(folder / FILE), json.loads(told)
    warn_of_change(folder / FILE, there.get("code"), here.pop("code"))
    wrong = differences(there.get("data"), here.pop("data"))
    fixed, given = there.get("fixed") or {}, here.pop("fixed", {})
    wrong += [*_unlike(there, here, here), *_unlike(fixed, given, fixed | given)]
    if wrong:
        raise ValueError(f"sweep: {folder} has other nets, or other data: {'; '.join(wrong)}; name another folder, or "
                         "give what it began with")
    rows = read_metrics(folder, ROWS) if (folder / ROWS).exists() else []
    kept = {row["net"]: ("diverged", row["why"]) for row in rows if row.get("state") == "diverged"}
    return kept | {net.name: ("finished", "") for net in nets if (folder / net.name / "weights.h5").exists()}


def _unlike(there: dict[str, Any], here: dict[str, Any], names: Iterable[str]) -> list[str]:
    return [f"{name} {short(there.get(name), 120)} there but {short(here.get(name), 120)} here" for name in names
            if there.get(name) != here.get(name)]


def _row(net: Net, folder: Path, state: str, why: str) -> Row:
    path = folder / net.name
    metrics = read_metrics(path) if (path / "metrics.jsonl").exists() else []
    found = outcome(Run(path, {}, metrics, [], []))
    del found["started"]
    return {"net": net.name, "settings": {name: text(value) for name, value in net.settings.items()}, "state": state,
            "why": why, **found, "folder": str(path)}


class _Bar:
    """One bar over the epochs of all nets."""

    def __init__(self, nets: Sequence[Net], folder: Path, enabled: bool, rows: Mapping[str, Row]):
        self.nets, self.folder, self.rows, self.seen = nets, folder, rows, 0
        self.progress = Progress(f"{len(nets)} nets", sum(net.epochs for net in nets), enabled, unit="epoch")
        self.look([])

    def look(self, running: Sequence[Net]) -> None:
        """Count what was written since the last look."""
        if self.progress.bar is None:
            return
        epochs = sum(net.epochs for net in self.nets if net.name in self.rows)
        for net in running:
            with suppress(OSError):
                epochs += (self.folder / net.name / "metrics.jsonl").read_bytes().count(b"\n")
        best = [row["best"] for row in self.rows.values() if row["of"] == "test_accuracy"]
        self.progress.update(epochs - self.seen, {"accuracy": max(best)} if best else {})
        self.seen = epochs


# ---------------------------------------------------------------- what came of it
class Sweep:
    """What came of a sweep: its nets, the best first. It shows as a table.

    rows: a dict per net: net, settings, state ("finished", "diverged", "failed") and why, best and of (the best value
    of an epoch, and of which metric), epoch, epochs, seconds, folder (its run folder).
    """

    def __init__(self, folder: Path, rows: Sequence[Row], build: Build | None = None):
        self.folder, self.rows, self.build = folder, list(rows), build

    @property
    def best(self) -> Row:
        """The row of the best net. Raises ValueError if none has finished."""
        if self.rows[0]["state"] != "finished":
            raise ValueError(f"sweep: none of {len(self.rows)} nets has finished; the first {self.rows[0]['state']}: "
                             f"{self.rows[0]['why']}")
        return self.rows[0]

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        names = list(self.rows[0]["settings"])
        more = ["best", "of", "epoch", "epochs", "seconds", "state"]
        return [*names, *more], [[short(shown(value), 120) for value in (
            *map(row["settings"].get, names), *map(row.get, more[:-1]),
            ": ".join(filter(None, (row["state"], row["why"]))))] for row in self.rows]

    def spread(self) -> list[Row]:
        """Of each combination of settings but seed and fold: how many nets finished, and the mean, the lowest and the
        highest of their best values; the best mean first."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            if row["state"] == "finished" and row["best"] is not None:
                rest = {name: value for name, value in row["settings"].items() if name not in REPEATS}
                groups.setdefault(json.dumps(rest), []).append(row)
        found = []
        for told, rows in groups.items():
            values = [row["best"] for row in rows]
            found.append({"settings": json.loads(told), "nets": len(rows), "mean": math.fsum(values) / len(values),
                          "lowest": min(values), "highest": max(values), "of": rows[0]["of"]})
        return sorted(found, key=lambda each: place({"best": each["mean"], "of": each["of"]}))

    def table(self) -> str:
        """The nets, and if several differ by seed or fold alone, what they have in common."""
        head, lines = self._cells()
        told = aligned(head, lines[:MAX_LINES])
        if len(lines) > MAX_LINES:
            told.append(f"and {len(lines) - MAX_LINES} more, in {self.folder / ROWS}")
        spread = self.spread()
        if any(each["nets"] > 1 for each in spread):
            names = list(spread[0]["settings"])
            head = [*names, "nets", "mean", "lowest", "highest", "of"]
            told += ["", *aligned(head, [[shown(each["settings"].get(name, each.get(name))) for name in head]
                                         for each in spread][:MAX_LINES])]
        return "\n".join(told)

    __repr__ = table

    def _repr_html_(self) -> str:
        return number_table(*self._cells())

    def page(self) -> str:
        """sweep.html: the table, and what was reached over the values of each setting."""
        rows = [row for row in self.rows if row["state"] == "finished" and row["best"] is not None]
        sections = [("Nets", number_table(*self._cells()), "wide")]
        for name in self.rows[0]["settings"]:
            values = list(dict.fromkeys(row["settings"][name] for row in rows))
            with suppress(TypeError):      # numbers in their order, words as they came
                values.sort()
            reached = [[row["best"] for row in rows if row["settings"][name] == value] for value in values]
            if len(values) > 1:
                drawn = {"highest": [*map(max, reached)], "mean": [*map(np.mean, reached)],
                         "lowest": [*map(min, reached)]}
                lines = [series(which, f"s{i}", range(len(values)), each) for i, (which, each) in
                         enumerate(drawn.items()) if which == "mean" or max(map(len, reached)) > 1]
                sections.append((name, chart(lines, name, rows[0]["of"].replace("_", " "),
                                             names=[shown(value) for value in values]), ""))
        return document(self.folder.name, sections)

    def ensemble(self, k: int | None = None) -> nn.Module:
        """The best k nets, or all that finished, as one in evaluation mode. Of classifiers its outputs are the
        logarithm of the mean of the probabilities, which a loss and `evaluate` take as logits and whose softmax is that
        mean; of other nets, the mean of the outputs. Raises ValueError for a k that is not from 1 to the nets that
        finished."""
        rows = [row for row in self.rows if row["state"] == "finished"]
        k = len(rows) if k is None else k
        if not (type(k) is int and 0 < k <= len(rows)):
            raise ValueError(f"ensemble: k is {k!r} but must be an int from 1 to {len(rows)}, the nets that finished")
        nets = [minidl.load(Path(row["folder"]) / "weights.h5", code=self.build) for row in rows[:k]]
        return _Ensemble(nets, rows[0]["of"] == "test_accuracy").eval()


class _Ensemble(nn.Module):
    def __init__(self, nets: list[nn.Module], classes: bool):
        super().__init__()
        self.nets, self.classes = nets, classes

    def forward(self, *inputs: minidl.Tensor, **named: minidl.Tensor) -> minidl.Tensor:
        answers = [net(*inputs, **named) for net in self.nets]
        outputs = ops.stack([ops.log_softmax(y, axis=-1) for y in answers] if self.classes else answers, axis=0)
        return outputs.logsumexp(axis=0) - math.log(len(answers)) if self.classes else outputs.mean(axis=0)


# ---------------------------------------------------------------- in Python
def sweep(build: Build, data: Items, *, epochs: Ints, fold: int | None = None, batch_size: Ints = 128, seed: Ints = 0,
          optimizer: str | Sequence[str] = "sgd", schedule: Schedules = "constant",
          loss: Callable[..., Any] | None = None, metrics: Mapping[str, Callable[..., Any]] | None = None,
          callbacks: Callable[..., Any] | None = None, loader: Mapping[str, Any] | None = None, device: str = "auto",
          folder: str | os.PathLike[str] | None = None, workers: int | None = None, resume: bool = False,
          progress: bool = True, say: Callable[[str], object] | None = show, **settings: object) -> Sweep:
    """Train a net for each combination of the settings that are lists, ranges or arrays; other values hold for all.

    build: a function of options that returns a net, or a name or place as `zoo.find` takes it. data: (train, test),
    each as `data.DataLoader` takes it; with fold=k it is one of them, and each of k nets holds out another part as its
    test set. What can be a list: epochs, batch_size, seed, optimizer (a name of optim.OPTIMIZERS), schedule (a name of
    optim.SCHEDULES, or as `fit` takes it), the optimizer's numbers (lr, momentum, ...), and the options of build. Those
    that the data decide (in_channels, image_size, in_features, classes) are set if it has them, and images and tables
    are normalised, as `minidl train` does it.

    loss: as `fit` takes it, else the net's own method, else the cross entropy. metrics: as `fit` takes them.
    callbacks(net, optimizer, folder): as in `fit`. loader: what both loaders take; augment, drop_last: for training.

    folder: a new one, in which each net has its run folder; by default it is in runs/. resume: go on with a sweep that
    is there. workers: nets at once, each in a process, by default one for each CPU thread, on a GPU one for two, up to
    8; 0: one after another in this thread. What cannot be sent to a process, such as a lambda, is trained in this one.
    Processes have what `set_precision` and `set_workspace_limit` said; what else a program sets or registers must be in
    a file that they import. Each net has the bits that it has alone. Ranks that `mpiexec -n` has started share out the
    nets, each on a GPU of its own; all have the result.

    Raises ValueError for settings that neither the optimizer nor build has, and for a folder that holds another sweep;
    TypeError for a loss or a metric that cannot be copied: each net has its own.

    >>> import tempfile
    >>> from minidl import data, nn
    >>> def build(width=8, classes=10):
    ...     return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, classes))
    >>> digits = data.load("synthetic-digits", "train").first(200)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     found = sweep(build, digits, fold=2, epochs=1, lr=[0.01, 0.1], folder=f"{place}/rates", say=None)
    ...     len(found.rows), sorted(found.best["settings"]), found.ensemble(2)(minidl.zeros(3, 1, 28, 28)).shape
    (4, ['fold', 'lr'], (3, 10))
    """
    given = {"epochs": epochs, "batch_size": batch_size, "optimizer": optimizer, "schedule": schedule, **settings,
             "seed": seed, **({"fold": range(fold)} if type(fold) is int else {})}
    say = None if start().rank else say
    data, loader = _as_sets(data, fold, loader or {}), dict(loader or {})
    program = _Program(build, data, fold, given, loss, metrics, callbacks, loader, devices.resolve(device))
    at_once = most_at_once(program.device) if workers is None else whole("sweep", "workers", workers, 0)
    nets, facts = program.nets(), program.facts()
    place_ = by_first(lambda: Path(folder) if folder is not None else new_folder(facts["model"]))
    found = trained(nets, Job(place_, _fit, program, unchanging), at_once, program.device, facts=facts, resume=resume,
                    progress=progress, say=say)
    found.build = None if isinstance(build, str) and build in zoo.MODELS else build
    return found


OWN = "epochs", "batch_size", "optimizer", "schedule", "seed", "fold"     # settings of any sweep
OF_NETS = "dataset", "batch_size", "seed", "shuffle", "device", "part"         # what the sweep gives to loaders


def new_folder(name: str) -> Path:
    """One in runs/ that is not there yet."""
    stem = f"{re.sub(r'[.]py:|[^A-Za-z0-9_.-]+', '-', name)}-sweep-{time.strftime('%Y%m%d-%H%M%S')}"
    paths = (Path("runs") / (f"{stem}-{i}" if i else stem) for i in itertools.count())
    return next(path for path in paths if not path.exists())


class _Program(NamedTuple):
    """What a sweep in Python is given, which each worker gets. given: the settings, of one value or of several."""

    build: Build
    data: Items
    fold: int | None
    given: dict[str, Any]
    loss: Callable[..., Any] | None
    metrics: Mapping[str, Callable[..., Any]] | None
    callbacks: Callable[..., Any] | None
    loader: dict[str, Any]
    device: str

    def lists(self) -> dict[str, list[Any]]:
        """The settings of several values."""
        return {name: value.tolist() if isinstance(value, np.ndarray) else list(value)
                for name, value in self.given.items() if isinstance(value, (list, range, np.ndarray))}

    def nets(self) -> list[Net]:
        """A net for each combination of settings. Raises ValueError and TypeError for what cannot be trained."""
        if self.fold is not None and (type(self.fold) is not int or self.fold < 2):
            raise ValueError(f"sweep: fold is {self.fold!r} but must be an int of at least 2, the parts of the data")
        if empty := [name for name, value in self.lists().items() if not value]:
            raise ValueError(f"sweep: {empty[0]} has no values; give at least 1")
        if self.fold is None and not (isinstance(self.data, (tuple, list)) and len(self.data) == 2):
            raise ValueError(f"sweep: data is a {type(self.data).__name__} but must be (train, test), or one data set "
                             "with fold=k, which holds out a part")
        options = [name for name in inspect.signature(DataLoader).parameters if name not in OF_NETS]
        if wrong := [name for name in self.loader if name not in options]:
            raise ValueError(f"sweep: loader has {wrong[0]!r} but may have {', '.join(options)}; the sweep itself "
                             f"gives {', '.join(OF_NETS)}, of which batch_size and seed can be named, as in "
                             "sweep(..., seed=3)")
        nets, model = combined(self.lists(), lambda each: {**self.given, **each}["epochs"]), zoo.find(self.build)
        for net in nets:
            _, of_net = _split_settings(model, {**self.given, **net.settings})
            said = [name for name in self.given if name in net.settings or name not in OWN]
            if twice := [name for name in said if name in model.options and name not in of_net]:
                raise ValueError(f"sweep: {twice[0]} is a setting of the sweep or of its optimizer and an option of "
                                 f"{model.name}, too, which would not get it; give the option another name")
        measured = self.metrics.items() if isinstance(self.metrics, Mapping) else ()
        for what, each in (("loss", self.loss), *((f"metric {name!r}", each) for name, each in measured)):
            try:
                copy.deepcopy(each)
            except (TypeError, copy.Error) as error:
                raise TypeError(f"sweep: the {what} is a {type(each).__name__} but must be one that can be copied, "
                                f"since each net has its own ({error}); pass a function, or a Module without what "
                                "cannot be copied") from error
        return nets

    def facts(self) -> dict[str, Any]:
        """What sweep.json says of it, in addition to the nets."""
        model, lists = zoo.find(self.build), self.lists()
        measured = self.metrics if isinstance(self.metrics, Mapping) else {}
        given = {**self.given, "loss": self.loss, "callbacks": self.callbacks,
                 **{f"metric {name}": value for name, value in measured.items()},
                 **{f"loader {name}": value for name, value in self.loader.items()}}
        return {"program": True, "model": model.name, "code": model.code,
                "data": of_data(*([self.data] if self.fold is not None else self.data)),
                "fixed": {name: _known_by(value) for name, value in given.items() if name not in lists}}


def _split_settings(model: zoo.Model, settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The optimizer's numbers and the net's options. Raises ValueError for a name that neither has."""
    if settings["optimizer"] not in optim.OPTIMIZERS:
        raise ValueError(f"sweep: optimizer is {settings['optimizer']!r} but must be one of "
                         f"{', '.join(optim.OPTIMIZERS)}")
    make, defaults = optim.OPTIMIZERS[settings["optimizer"]]
    known = list(inspect.signature(make).parameters)[1:]
    for name in settings:
        if name not in (*OWN, *known, *model.options):
            raise ValueError(f"sweep: {name} is not a setting of {settings['optimizer']}, which has "
                             f"{', '.join(known)}, nor an option of {model.name}, which has "
                             f"{', '.join(model.options) or 'none'}")
    rates = {name: value for name, value in defaults.items() if value is not None}
    return ({**rates, **{name: value for name, value in settings.items() if name in known}},
            {name: value for name, value in settings.items() if name not in (*OWN, *known)})


def _as_sets(data: Items, fold: int | None, loader: Mapping[str, Any]) -> Items:
    """Subsets of data sets as a DataLoader takes them, but once for all nets."""
    if "transform" in loader:
        return data
    both = fold is None and isinstance(data, (tuple, list))
    return tuple(map(as_set, data)) if both else as_set(data)


def _parts(data: Items, fold: int, part: int) -> Iterator[Any]:
    """One data set as two: all but the part-th of `fold` parts, and this part. Which items it has does not depend on
    the net's seed."""
    count, taken = counted(data, "sweep")
    parts = np.array_split(np.random.Generator(np.random.Philox(0)).permutation(count), fold)
    yield taken(np.concatenate([each for i, each in enumerate(parts) if i != part]))
    yield taken(parts[part])


def _fit(program: _Program, net: Net, path: Path, told: Callable[[str], object]) -> None:
    """Train a net of Python's."""
    settings = {**program.given, **net.settings}
    train, test = program.data if program.fold is None else _parts(program.data, program.fold, settings["fold"])
    model = zoo.find(program.build)
    rates, options = _split_settings(model, settings)
    extra: dict[str, Any] = {}
    if isinstance(train, (Dataset, Table)):
        shape = model.item(train.shape, **options)
        options = {**model.of_data(shape, len(train.classes)), **options}
        extra = train.preprocessing(shape)
    extra |= {"device": program.device, **program.loader}
    loaders = (DataLoader(train, settings["batch_size"], seed=settings["seed"], **extra),
               DataLoader(test, 500, shuffle=False, **{name: value for name, value in extra.items()
                                                       if name not in ("augment", "drop_last")}))
    minidl.manual_seed(settings["seed"])
    model_ = model.build(**options).to(program.device)
    make, schedule = optim.OPTIMIZERS[settings["optimizer"]][0], settings["schedule"]
    updates = make(model_.parameters(), **rates)
    if isinstance(schedule, str):
        schedule = optim.schedule(schedule, settings["epochs"] * len(loaders[0]))
    loss, metrics = copy.deepcopy((program.loss, program.metrics))     # a Module has a state
    with RunFolder(path, model_, *loaders, resume=True) as run:
        run.config = {**run.config, **{name: text(value) for name, value in settings.items()}}
        callbacks = program.callbacks(model_, updates, path) if program.callbacks else []
        fit(model_, updates, *loaders, epochs=settings["epochs"], schedule=schedule, metrics=metrics,
            loss=getattr(model_, "loss", ops.cross_entropy) if loss is None else loss, progress=False, say=told,
            callbacks=[run, *(callbacks if isinstance(callbacks, (list, tuple)) else [callbacks])], checkpoints=path,
            resume=True)
