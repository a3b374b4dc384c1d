"""The loop behind train.py, usable from Python: fit, and evaluate."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, overload

import numpy as np

from .. import data, nn, ops, optim
from ..compiler import CompileError, compile
from ..core import rng
from ..core.device import to_device
from ..core.mode import no_grad
from ..core.tensor import Tensor, as_tensor
from ..data.loader import drawn_apart
from ..distributed import average
from ..habits import told
from ..nn.module import switched
from ..ops.common.geometry import is_int
from ..optim.rates.schedules import factor_at
from . import ranks
from .callbacks import Callback, Callbacks, Step
from .checkpoint import Checkpoints, Interrupted
from .contents import contents_of
from .metrics import (
    Function,
    Metrics,
    Progress,
    RunningMetrics,
    asked,
    line_of,
    means_of,
    require_counted,
    require_functions,
    require_loss,
    right_answers,
    show,
    weight_of,
)
from .resume import Place, modes_of, restore, state_of

SIGNALS = signal.SIGINT, signal.SIGTERM
AGREE_EVERY = 16                           # steps that are not waited for, between two questions whether all go on


def train_step(model: nn.Module, optimizer: optim.Optimizer, images: Tensor | np.ndarray,
               labels: Tensor | np.ndarray | list[int], rates: optim.Rates | None = None) -> tuple[float, int]:
    """One update of all parameters on one batch: images (n,c,h,w), labels (n,) -> (mean loss, count right).

    rates: as `optim.Optimizer.step` takes them. Of several ranks (`distributed.start`) each gives its part of the
    images, and all get the whole's loss and count. Raises FloatingPointError where the loss is not finite; the
    parameters are then as they were.
    """
    images, labels = _pair((images, labels))
    loss, _, logits, _ = _update(model, optimizer, images, labels, rates, ops.cross_entropy, None)
    return loss, int(ranks.added_up([right_answers(logits, labels)])[0])


def _update(model: nn.Module, optimizer: optim.Optimizer, inputs: object, targets: Any, rates: optim.Rates | None,
            loss: Function, metrics: RunningMetrics | None, images: int = 0) -> tuple[float, int, Any, bool]:
    """One update of all parameters: (the loss, of how many images, the outputs, whether metrics counted right answers).

    images: how many the whole step has, on all ranks; 0: they ask each other, and refuse a loss that is not finite.
    """
    optimizer.zero_grad()
    outputs = model(inputs)
    value, mean = asked(loss, outputs, targets), 0.0
    require_loss(value)
    weight = weight_of(value)
    if not images:
        mean, images = ranks.whole_loss(value, len(targets), weight)
        if not math.isfinite(mean):
            lr = optimizer.lr if rates is None else rates.table.numpy()[0, int(rates.position.numpy()[0])]
            raise FloatingPointError(f"training: the loss is {mean} (learning rate {lr:g}); use a smaller learning "
                                     "rate")
    value.backward()
    average([p for group in optimizer.groups for p in group["params"]],
            len(targets) / max(1, images) if weight is None else weight)
    classes = metrics is not None and metrics.update(value, outputs, targets)
    optimizer.step(rates)
    return mean, images, outputs, classes


def _pair(batch: object) -> tuple[Tensor, Tensor]:
    """(inputs, targets), Tensors of what may be arrays. Raises TypeError for another batch: that of an array alone
    could be unpacked image by image."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        inputs = as_tensor(batch[0])
        return inputs, as_tensor(batch[1], inputs.device)
    found = f"{len(batch)} things" if isinstance(batch, (tuple, list)) else f"of type {type(batch).__name__}"
    raise TypeError(f"training: a batch is {found} but must be (inputs, targets); make the loader of both, as in "
                    "DataLoader((inputs, targets), 128)")


@overload
def evaluate(model: nn.Module, batches: Iterable[tuple[Any, Any]], *, loss: Function = ...) -> tuple[float, float]: ...


@overload
def evaluate(model: nn.Module, batches: Iterable[tuple[Any, Any]], *, loss: Function = ...,
             metrics: Mapping[str, Function]) -> tuple[float, float, dict[str, float]]: ...


def evaluate(model: nn.Module, batches: Iterable[tuple[Any, Any]], *, loss: Function = ops.cross_entropy,
             metrics: Mapping[str, Function] | None = None) -> tuple[Any, ...]:
    """(mean loss, share right in [0, 1]) over batches of (images, labels), Tensors or arrays, in evaluation mode, off
    the tape.

    The share is NaN where the targets are not the integer classes of logits (n,classes). metrics: by name, what else is
    measured, as for `fit`; their means are a third, by name.

    Raises ValueError where there is no image; FloatingPointError where the loss is not finite.
    """
    means = _evaluated(model, batches, loss, metrics or {})
    found = means["loss"], means.get("accuracy", math.nan)
    return found if metrics is None else (*found, {name: means[name] for name in metrics})


def _evaluated(model: nn.Module, batches: Iterable[tuple[Any, Any]], loss: Function,
               functions: Mapping[str, Function], shared: bool = False) -> dict[str, float]:
    """shared: each rank has its part of the batches."""
    metrics, count, classes = None, 0, True
    with _evaluating(model):
        for batch in batches:
            inputs, targets = _pair(batch)
            metrics = metrics or RunningMetrics(inputs.device, functions)
            outputs = model(inputs)
            classes &= metrics.update(loss(outputs, targets), outputs, targets)
            count += len(targets)
    totals = metrics.totals() if metrics else []
    *totals, images = ranks.added_up([*totals, count]) if shared else [*totals, count]
    return _means(totals, int(images), classes, functions)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    with switched(model, False), no_grad():
        yield


def _training(model: nn.Module) -> AbstractContextManager[None]:
    """A model in training stays as it is: a layer of it that is in evaluation is meant to be. One in evaluation is
    switched as a whole."""
    return nullcontext() if model.training else switched(model, True)


def _means(totals: list[float], count: int, classes: bool, functions: Mapping[str, Function]) -> dict[str, float]:
    """Of so many images of a test set."""
    if not count:
        raise ValueError("evaluate: got 0 images but needs at least 1")
    require_counted(totals, count, "evaluate")
    means = means_of(totals, count, classes, functions)
    if not math.isfinite(means["loss"]):
        raise FloatingPointError(f"evaluate: the test loss is {means['loss']}; the parameters are unusable, train with "
                                 "a smaller learning rate")
    return means


@told
def fit(model: nn.Module, optimizer: optim.Optimizer, train: data.DataLoader, test: data.DataLoader, *, epochs: int,
        schedule: optim.Schedule | Sequence[optim.Schedule] | None = None, loss: Function = ops.cross_entropy,
        metrics: Mapping[str, Function] | None = None, callbacks: Callback | Sequence[Callback] = (),
        compiled: bool | None = None, progress: bool = True, say: Callable[[str], object] | None = show,
        checkpoints: str | os.PathLike[str] | None = None, save_every: int = 0,
        resume: bool | str | os.PathLike[str] = False) -> list[Metrics]:
    """Train for a number of epochs and evaluate on the test set after each.

    train, test: `data.DataLoader`s. schedule: step -> factor of the learning rate that each of the optimizer's
    groups has at the start of the step's epoch; fit does not set it; a list has one for each group. loss(outputs,
    targets) -> the batch's mean, a Tensor of one number. metrics: by name, what else is measured: function(outputs,
    targets) -> the batch's mean.

    callbacks: functions of an epoch's metrics, and objects with `on_train_begin()`, called after a checkpoint was
    accepted, `on_step_end(step)` (a `Step`), `on_epoch_end(metrics)` or several of them. They may set the optimizer's
    rates, which holds from the next step on; one that returns True ends the training after that step or epoch. What is
    to go on with a checkpoint is in their `state_dict` and taken back by `load_state_dict`. Metrics of an epoch: epoch,
    step, lr, train_loss, train_accuracy (where the targets are integer classes), the same for test_, and for each of
    `metrics`; seconds (training and evaluation) and images_per_second (training alone). Returns all of them.

    compiled: replay the step, and that of the evaluation, with `minidl.compile`, with batches, rates and metrics on the
    device, so that an epoch runs without waiting for the host; a loss that is not finite is then seen at the epoch's
    end. None: on a CUDA device alone, and with loaders that do not make their batches in a way of their own
    (`data.own_batches`), which compiled=True refuses. progress: a bar in a terminal or notebook. say: is given a line
    per epoch.

    checkpoints: a folder for checkpoint.h5 and the one before it, checkpoint-previous.h5: one after each epoch, each
    `save_every` steps, and upon Ctrl-C and SIGTERM, which then stop the training between two steps (`Interrupted`, a
    KeyboardInterrupt). resume: go on from the newest in that folder, if there is one, or from the file or folder named;
    the training ends in the bits of one that was not interrupted.

    Each layer is left in the mode in which it was. One in evaluation stays so while the net trains; a net that is in
    evaluation itself trains as a whole.

    Processes that `mpiexec -n` has started together share out the images of each step and of the evaluation: losses and
    weights are those of one process with the same batches, to rounding. Rank 0 alone calls the callbacks, says and
    writes; the rates that callbacks set, and after an epoch the weights, are sent to the others (docs/distributed.md).

    Raises ValueError for a negative number of epochs, an optimizer that holds none of the model's parameters, a metric
    whose name is taken, a schedule that gives no finite number of at least 0, a checkpoint that does not fit, is from
    other data, or would be overwritten, and a folder of checkpoints that another training writes to;
    FloatingPointError, naming epoch and step, where the loss is not finite; TypeError for loaders, an optimizer, a
    schedule or callbacks of another kind; CompileError for a model that cannot be compiled: pass compiled=False.
    """
    _check_fit(optimizer, train, test, epochs, schedule)
    require_functions(loss, metrics)
    _check_parameters(model, optimizer, loss)
    called = Callbacks(callbacks)
    with ranks.joined(train, test) as world, ExitStack() as stack:
        first = world.rank == 0
        saved = None if checkpoints is None else Checkpoints(checkpoints, save_every, writes=first)
        if resume is True and saved is None:
            raise ValueError("fit: resume is True but no folder is named; pass checkpoints=folder, or resume=file")
        if saved is not None:
            stack.callback(saved.release)
            ranks.by_first(saved.take)
        there = saved is not None and ranks.by_first(saved.exist)
        if saved is not None and there and resume is not True and not (resume and saved.holds(resume)):
            raise ValueError(f"fit: '{saved.folder}' holds a checkpoint already; pass resume=True to go on from it, or "
                             "name another folder")
        if compiled is None:
            compiled = train.device == "cuda" and not (data.own_batches(train) or data.own_batches(test))
        kind = _Compiled if compiled else _Plain
        ranks.send(model)
        run = kind(model, optimizer, train, test, loss, metrics)
        if saved is not None or resume:
            run.contents = {"train": contents_of(train), "test": contents_of(test)}
        place, say = Place(), say if first else None
        if resume is True and saved is not None and there:
            place = restore(saved.folder, run, called, epochs)
        elif resume is not True and resume:
            place = restore(resume, run, called, epochs)
        if place.step and say and (place.epoch < epochs):
            say(f"goes on in epoch {place.epoch + 1}/{epochs}, after step {place.step}")
        ranks.called(called, "on_train_begin", None, optimizer, None)
        return _Fit(run, place, epochs, schedule or optim.constant(), called, saved, progress and first, say).run()


def _check_fit(optimizer: object, train: object, test: object, epochs: object, schedule: object) -> None:
    """Refuse what fit cannot work with, and say what it can."""
    if not is_int(epochs, 0):
        raise ValueError(f"fit: epochs is {epochs!r} but must be an int of at least 0")
    if not hasattr(optimizer, "groups"):
        given = f"the class {optimizer.__name__}" if isinstance(optimizer, type) else f"a {type(optimizer).__name__}"
        raise TypeError(f"fit: optimizer is {given} but must be one of minidl.optim; make one, such as optim.Adam("
                        "net.parameters()), or with one of your own write the loop: loss.backward(), your update")
    for what, loader in (("train", train), ("test", test)):
        if not all(hasattr(loader, name) for name in ("device", "images_per_epoch", "set_epoch")):
            of = type(loader).__module__.partition(".")[0].replace("builtins", "")
            raise TypeError(f"fit: {what} is a {of}{'.' * bool(of)}{type(loader).__name__} but must be a "
                            f"data.DataLoader of minidl; make one of the data itself, data.DataLoader({what}"
                            f"{'.dataset' if hasattr(loader, 'dataset') else ''}, batch_size); with other "
                            "batches, write the loop with training.train_step and training.evaluate")
    if isinstance(schedule, (list, tuple)) and all(map(callable, schedule)):
        if len(schedule) != len(optimizer.groups):
            raise ValueError(f"fit: schedule has {len(schedule)} functions but the optimizer has "
                             f"{len(optimizer.groups)} groups; give one to each, or one function for all")
    elif schedule is not None and not callable(schedule):
        raise TypeError(f"fit: schedule is {schedule!r} but must be a function of the step, or a list of them; pass "
                        "optim.schedule(name, total)")


def _check_parameters(model: nn.Module, optimizer: optim.Optimizer, loss: Function) -> None:
    """Refuse an optimizer by which nothing of the net, nor of a loss that is a Module, would change."""
    trained = {id(p) for group in optimizer.groups for p in group["params"]}
    ours = [t for each in (model, loss) if isinstance(each, nn.Module) for _, t in each.named_tensors()]
    if not any(id(t) in trained for t in ours):
        raise ValueError(f"fit: the optimizer holds {len(trained)} parameters but none of the {len(ours)} Tensors of "
                         f"the {type(model).__name__}; make it of model.parameters(), after layers are replaced")


class _Plain:
    """Steps that are looked at one by one: what they have summed up to is known at any time."""

    known = True
    contents: dict[str, dict[str, str]] = {}                # of the data, where checkpoints are used
    modes: dict[str, bool] | None = None   # those of training, while the net is in evaluation

    def __init__(self, model: nn.Module, optimizer: optim.Optimizer, train: data.DataLoader, test: data.DataLoader,
                 loss: Function = ops.cross_entropy, functions: Mapping[str, Function] | None = None):
        self.model, self.optimizer, self.train, self.test = model, optimizer, train, test
        self.loss, self.functions, self.classes = loss, dict(functions or {}), True
        self.metrics = RunningMetrics(train.device, functions)
        self.rates = optim.Rates(Tensor(np.zeros((len(optimizer.groups), len(train))), device=train.device),
                                 self.position())

    def position(self) -> Tensor:
        """The number of the step in its epoch, from 0."""
        return Tensor(np.zeros(1, np.int64), device=self.train.device)

    def own_rates(self) -> list[float]:
        """The learning rate of each group."""
        return [group["lr"] for group in self.optimizer.groups]

    def begin(self, factors: list[list[float]]) -> float:
        """Make an epoch's rates known, by factors of each group's; returns the last of the first group."""
        rates = np.array(self.own_rates())[:, None] * factors
        self.rates.table.data[...] = to_device(rates, self.train.device)
        return float(rates[0, -1])

    def evaluate(self, number: int = 0, look: Callable[[], None] = lambda: None) -> dict[str, float]:
        """As the function, on the test set, after the epoch of that number; look is called before each batch."""
        def looking() -> Iterator[Any]:
            for batch in drawn_apart(self.test, number):
                look()
                yield batch
        return _evaluated(self.model, looking(), self.loss, self.functions, shared=True)

    def totals(self) -> list[float]:
        """Those of the metrics, of all ranks."""
        return ranks.added_up(self.metrics.totals())

    def epoch(self, number: int = 0, done: int = 0) -> Iterator[int]:
        """The steps of the epoch of that number, but for the first so many; after each, how many images it had, on all
        ranks."""
        skipped = 0 if data.own_batches(self.train) == "__iter__" else done
        if skipped:
            self.train.skip(skipped)
        for step, batch in enumerate(drawn_apart(self.train, number, skipped), skipped):
            if step >= done:
                inputs, targets = _pair(batch)
                self.rates.position.data[...] = step
                _, images, _, self.classes = _update(self.model, self.optimizer, inputs, targets, self.rates,
                                                     self.loss, self.metrics)
                yield images

    def warm_up(self, place: Place) -> None:
        """Do what steps before a checkpoint have left behind, apart from numbers: nothing."""


def compiled_step(model: nn.Module, optimizer: optim.Optimizer, batches: data.DeviceBatches, metrics: RunningMetrics,
                  rates: optim.Rates, loss: Function = ops.cross_entropy) -> Callable[..., bool]:
    """A compiled step(size): one update on the next of the batches, by its rate, counted by the metrics. It needs
    nothing from the host but to be started. Returns whether right answers are counted. On several ranks it is
    step(size, images), of which the whole step has so many."""
    @compile
    def step(size: int, images: int = 0) -> bool:
        inputs, targets = _pair(batches.next(size))
        *_, classes = _update(model, optimizer, inputs, targets, rates, loss, metrics, images or size)
        return classes
    return step


class _Compiled(_Plain):
    """Compiled steps, which need nothing from the host but to be started, and are looked at together."""

    known = False

    def __init__(self, model: nn.Module, optimizer: optim.Optimizer, train: data.DataLoader, test: data.DataLoader,
                 loss: Function = ops.cross_entropy, functions: Mapping[str, Function] | None = None):
        for what, loader in (("train", train), ("test", test)):
            if data.own_batches(loader) is not None:
                raise CompileError(f"fit: {what} is a {type(loader).__name__} with a {data.own_batches(loader)} of its "
                                   "own, which compiled steps would not run; pass compiled=False")
        self.batches, tests = data.DeviceBatches(train), data.DeviceBatches(test)
        super().__init__(model, optimizer, train, test, loss, functions)
        self.step = compiled_step(model, optimizer, self.batches, self.metrics, self.rates, loss)
        metrics = self.test_metrics = RunningMetrics(test.device, functions)
        self.tests = tests

        @compile
        def look(size: int) -> bool:
            inputs, targets = _pair(tests.next(size))
            outputs = model(inputs)
            return metrics.update(asked(loss, outputs, targets), outputs, targets)
        self.look = look

    def position(self) -> Tensor:
        return self.batches.position

    def evaluate(self, number: int = 0, look: Callable[[], None] = lambda: None) -> dict[str, float]:
        classes = True
        self.test_metrics.reset()
        with _evaluating(self.model):
            for size in self.tests:
                look()
                classes &= self.look(size)
        totals = ranks.added_up(self.test_metrics.totals())
        return _means(totals, self.test.images_per_epoch, classes, self.functions)

    def epoch(self, number: int = 0, done: int = 0) -> Iterator[int]:
        self.train.skip(done)
        for size, images in zip(self.batches, self.train.sizes[done:], strict=True):
            self.classes = self.step(size, images)
            yield images

    def warm_up(self, place: Place) -> None:
        """Record what was recorded before the checkpoint: the steps after it are then replayed where they were, which
        on a GPU gives other bits than recording them does."""
        steps = list(zip(self.batches.sizes, self.train.sizes, strict=True))
        done = [*steps * min(2, place.epoch), *steps[:place.batch]]
        with _training(self.model):
            for step in dict.fromkeys(done):
                iter(self.batches)
                for _ in range(min(2, done.count(step))):
                    self.batches.position.data[...] = steps.index(step) - 1
                    self.step(*step)
        with _evaluating(self.model):
            for size in set(self.tests.sizes) if place.epoch else ():
                iter(self.tests)
                for _ in range(min(2, place.epoch * self.tests.sizes.count(size))):
                    self.tests.position.data[...] = self.tests.sizes.index(size) - 1
                    self.look(size)


class _Fit:
    """The loop over epochs and steps, from a place on."""

    def __init__(self, run: _Plain, place: Place, epochs: int, schedule: optim.Schedule | Sequence[optim.Schedule],
                 callbacks: Callbacks, checkpoints: Checkpoints | None, progress: bool,
                 say: Callable[[str], object] | None):
        self.steps, self.place, self.epochs = run, place, epochs
        self.schedules = [schedule] * len(run.optimizer.groups) if callable(schedule) else schedule
        self.callbacks, self.checkpoints, self.progress, self.say = callbacks, checkpoints, progress, say

    def run(self) -> list[Metrics]:
        """All epochs that are left; returns the metrics of all that there are."""
        place = self.place
        with self.checkpoints.signals() if self.checkpoints else nullcontext():
            while place.epoch < self.epochs and not (place.stopped and not place.ended):
                begin = time.perf_counter()
                with _training(self.steps.model):
                    seen = self.train()
                trained = time.perf_counter() - begin
                self.finish(begin, seen / max(trained, 1e-9))
            self.agree()
            self.obey()
        return place.history

    def train(self) -> int:
        """The steps that are left of an epoch; returns how many images they had."""
        run, place, before = self.steps, self.place, self.place.images
        if place.ended:
            return 0
        epoch = place.epoch + 1
        run.train.set_epoch(place.epoch)
        rates = self.begin()
        bar = Progress(f"epoch {epoch}/{self.epochs}", run.train.images_per_epoch, self.progress, place.images)
        try:
            for size in run.epoch(place.epoch, place.batch):
                place.batch, place.step, place.images = place.batch + 1, place.step + 1, place.images + size
                place.ended = place.batch == len(run.train)
                bar.update(size, self.means() if run.known or place.ended else {})
                if self.callbacks.steps:
                    given = Step(epoch, place.step, place.batch, self.asked, place.images, self.lr)
                    place.stopped = ranks.called(self.callbacks, "on_step_end", given, run.optimizer, self.means)
                    place.ended |= place.stopped
                    if run.own_rates() != rates and not place.ended:
                        rates = self.begin()
                if place.ended:
                    break
                self.look(due=True)
            place.totals = run.totals()
            if not math.isfinite(place.totals[0]):
                raise FloatingPointError("training: a loss of this epoch is not finite (learning rate now "
                                         f"{self.lr():g}); use a smaller learning rate")
            require_counted(place.totals, place.images, f"fit: epoch {epoch}")
        except FloatingPointError as error:
            raise FloatingPointError(f"{error} (epoch {epoch}, step {place.step + run.known})") from None
        finally:
            bar.close()
        place.classes, place.lr = run.classes, self.lr()
        place.key = list(rng.get_state())
        return place.images - before

    def begin(self) -> list[float]:
        """Make the rates of this epoch known; returns what the groups' own are."""
        first = self.place.step - self.place.batch
        steps = range(first, first + len(self.steps.train))
        self.steps.begin([[factor_at(schedule, step) for step in steps] for schedule in self.schedules])
        return self.steps.own_rates()

    def lr(self) -> float:
        """The learning rate of the last step, of the first group."""
        return float(self.steps.rates.table.numpy()[0, self.place.batch - 1])

    def means(self) -> dict[str, float]:
        """Of the epoch so far."""
        return means_of(self.steps.totals(), self.place.images, self.steps.classes, self.steps.functions)

    def asked(self) -> dict[str, float]:
        """The same for a callback, which only rank 0 calls."""
        ranks.ask(ranks.current())
        return self.means()

    def finish(self, begin: float, images_per_second: float) -> None:
        """An epoch's evaluation, what is called and written after it."""
        run, place = self.steps, self.place
        trained = means_of(place.totals, place.images, place.classes, run.functions)
        run.test.set_epoch(place.epoch)
        run.modes = modes_of(run.model)
        tested = run.evaluate(place.epoch, self.look)
        run.modes = None
        metrics = {"epoch": place.epoch + 1, "step": place.step, "lr": place.lr,
                   **{f"train_{name}": mean for name, mean in trained.items()},
                   **{f"test_{name}": mean for name, mean in tested.items()},
                   "seconds": time.perf_counter() - begin, "images_per_second": images_per_second}
        metrics = ranks.current().tell(metrics)        # of rank 0's clock
        place.next_epoch(metrics)
        run.metrics.reset()
        if self.say:
            self.say(line_of(metrics, self.epochs))
        place.stopped |= ranks.called(self.callbacks, "on_epoch_end", metrics, run.optimizer, None)
        ranks.send(run.model)              # which a callback may have changed
        self.save()
        self.agree()
        self.obey()

    def look(self, due: bool = False) -> None:
        """Between two batches: obey a signal, and save where that is due."""
        if self.checkpoints is None:
            return
        every = self.checkpoints.every
        self.agree(now=self.steps.known or self.place.step % AGREE_EVERY == 0)
        if self.checkpoints.signum is not None or (due and every and self.place.step % every == 0):
            self.save()
        self.obey()

    def save(self) -> None:
        """Write a checkpoint; none of numbers that are not finite, for which the epoch will end in an error."""
        if self.checkpoints is not None and (state := state_of(self.steps, self.place, self.callbacks)) is not None:
            self.checkpoints.save(state)
            ranks.current().barrier()      # others do not go on, or end, while rank 0 writes

    def agree(self, now: bool = True) -> None:
        """A signal that came is obeyed from here on; one that came to any rank, by all of them, if they ask each other
        now."""
        saved = self.checkpoints
        if saved is not None and (now or ranks.current().size == 1):
            counts = ranks.added_up([float(saved.noted == each) for each in SIGNALS])
            saved.signum = next((each for each, count in zip(SIGNALS, counts, strict=True) if count), None)

    def obey(self) -> None:
        """Stop if a signal asks for it."""
        if self.checkpoints is not None and self.checkpoints.signum is not None:
            name, folder = signal.Signals(self.checkpoints.signum).name, self.checkpoints.folder
            raise Interrupted(f"training: {name} stopped it after step {self.place.step}; "
                              + (f"fit(..., checkpoints='{folder}', resume=True) goes on" if self.checkpoints.exist()
                                 else f"there is no checkpoint in '{folder}'"), self.checkpoints.signum)
