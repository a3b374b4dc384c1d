"""The loop behind train.py, usable from Python: fit, and evaluate."""

from __future__ import annotations

import math
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import islice
from typing import Any, overload

import numpy as np

from .. import data, nn, ops, optim
from ..compiler import CompileError, compile
from ..core import rng
from ..core.device import to_device
from ..core.mode import no_grad
from ..core.tensor import Tensor, as_tensor
from ..data.loader import drawn_apart
from ..data.sets.table import unnamed
from ..data.sources import leaves, mapped
from ..distributed import average
from ..habits import told
from ..nn.module import switched
from ..ops.common.geometry import whole
from ..optim.rates import factor_at
from . import metrics as measure
from . import ranks
from .callbacks import Callback, Callbacks, Step
from .checkpoint import Checkpoints, Interrupted
from .metrics import Batch, Function, Metrics, Parts, Progress, RunningMetrics
from .resume import (
    Place,
    contents_of,
    modes_of,
    modules_of,
    named_tensors,
    require_held,
    restore,
    set_modes,
    state_of,
)

SIGNALS = signal.SIGINT, signal.SIGTERM
AGREE_EVERY = 16                           # steps that are not waited for, between two checks whether all ranks go on
LOOK_EVERY = 2.0                           # seconds of these, between two checks whether the losses are finite


class Diverged(FloatingPointError):
    """A loss that is not finite. step: in which step of the whole training, from 1; 0 if that is not known."""

    def __init__(self, loss: float, lr: float, step: int = 0, epoch: int = 0):
        self.loss, self.lr, self.step = loss, lr, step
        where = f"diverged in step {step} (epoch {epoch}): " if step else ""
        way_out = ("no rate has changed the net yet; look for NaN and large numbers in the inputs and targets, and in "
                   "the net's parameters") if step == 1 else (
            "use a smaller learning rate, as one that training.find_rate finds, a warm-up, or clip=1.0; if the losses "
            "before did not grow, look for NaN in the inputs and targets")
        super().__init__(f"training: {where}the loss is {loss} (learning rate {lr:g}); {way_out}")


def train_step(model: nn.Module, optimizer: optim.Optimizer, images: Tensor | np.ndarray,
               labels: Tensor | np.ndarray | list[int], rates: optim.Rates | None = None) -> tuple[float, int]:
    """One update of all parameters on one batch: images (n,c,h,w), labels (n,) -> (mean loss, count right).

    rates: as `optim.Optimizer.step` takes them. With several ranks (`distributed.start`) each gives its part of the
    images, and all get the loss and count of the whole batch. Raises FloatingPointError if the loss is not finite; the
    parameters are then as they were.
    """
    require_parameters("train_step", model, optimizer, ops.cross_entropy)
    batch = Batch.of((images, labels))
    loss, _, logits, _ = update(model, optimizer, [batch], rates, ops.cross_entropy, None)
    return loss, int(ranks.added_up([measure.right_answers(logits, batch.targets)])[0])


def update(model: nn.Module, optimizer: optim.Optimizer, batches: Sequence[Batch], rates: optim.Rates | None,
           loss: Function, metrics: RunningMetrics | None, images: int = 0,
           clip: float | None = None) -> tuple[float, int, Any, bool]:
    """One update of all parameters by the gradient of one batch, or of several taken as one batch of all their images:
    (the last one's loss, how many images all have, the last one's outputs, whether metrics counted right answers).

    images: how many the whole step has, on all ranks; 0: the ranks ask each other, and refuse a loss that is not
    finite. clip: the largest norm that all gradients may have.
    """
    optimizer.zero_grad()
    params = [p for group in optimizer.groups for p in group["params"]]
    total: Tensor | float = 0              # how much the batches count together
    known, seen, mean, classes = images, 0, 0.0, False
    with ranks.of_parts(images if len(batches) == 1 else 0) as size:
        for batch in batches:
            outputs = batch.outputs(model)
            value = batch.loss(loss, outputs)
            weight = measure.weight_of(value)
            if not known:
                mean, here = ranks.whole_loss(value, len(batch), weight)
                images += here
                if not math.isfinite(mean):
                    lr = optimizer.lr if rates is None else rates.table.numpy()[0, int(rates.position.numpy()[0])]
                    raise Diverged(mean, lr)
            counts: Tensor | float = len(batch) * size if weight is None else weight
            seen, total = seen + len(batch), total + counts
            if len(batches) == 1 and weight is None:
                counts = counts / max(1, images)       # 1 if all ranks have as many
            alone = len(batches) == 1 and (size == 1 or (weight is None and counts == 1))
            held = [] if len(batch) or not seen else [p.grad for p in params]      # of no images it may add 0 * NaN
            if held:
                optimizer.zero_grad()
            (value if alone else value * counts).backward()
            for p, gradient in zip(params, held, strict=False):
                p.grad = gradient
            classes = metrics is not None and metrics.update(value, outputs, batch.targets)
        weighted = isinstance(total, Tensor)
        average(params, total if weighted else None if seen else 0)
    if len(batches) > 1 and not (weighted and size > 1):
        optim.clip.divide(params, total if weighted else images)
    if clip is not None:
        optim.clip_grad_norm(tuple(params), clip)
    optimizer.step(rates)
    return mean, images, outputs, classes


@overload
def evaluate(model: nn.Module, batches: Iterable[tuple[Any, ...]], *, loss: Function = ...) -> tuple[float, float]: ...


@overload
def evaluate(model: nn.Module, batches: Iterable[tuple[Any, ...]], *, loss: Function = ...,
             metrics: Mapping[str, Function]) -> tuple[float, float, dict[str, float]]: ...


def evaluate(model: nn.Module, batches: Iterable[tuple[Any, ...]], *, loss: Function = ops.cross_entropy,
             metrics: Mapping[str, Function] | None = None) -> tuple[Any, ...]:
    """(mean loss, share right in [0, 1]) over batches of (images, labels), Tensors or arrays, in evaluation mode, off
    the tape; for other kinds of batches see `fit`.

    The share is NaN if the targets are not the integer classes of logits (n,classes). metrics: by name, what else is
    measured, as for `fit`; their means, by name, are then a third result.

    Warns of a `data.DataLoader` whose drop_last leaves out items, or that augments them. Raises ValueError if there is
    no image; FloatingPointError if the loss is not finite.
    """
    _warn_of_other_items("evaluate: the loader", batches, 3)
    means = _evaluated(model, batches, loss, metrics or {})
    found = means["loss"], means.get("accuracy", math.nan)
    return found if metrics is None else (*found, {name: means[name] for name in metrics})


def predict(model: nn.Module, batches: Iterable[object] | Tensor | np.ndarray) -> Parts:
    """What a model answers to all batches, in evaluation mode, off the tape: as NumPy arrays (images, ...), one or a
    tuple or dict of them, as the model gives.

    batches: (inputs, targets) as for `fit`, whose targets are not read, or inputs alone, an array or a dict of them. Or
    all inputs at once, which are then cut into batches: an array, or for a model with several inputs a tuple or dict of
    arrays. Raises ValueError for a `data.DataLoader` that shuffles, if there is no batch, and for answers that are not
    one per input; TypeError for inputs that are not arrays.

    >>> import numpy as np
    >>> predict(nn.Linear(3, 2), np.ones((1000, 3), np.float32)).shape
    (1000, 2)
    """
    if isinstance(batches, (Tensor, tuple, dict)) or hasattr(batches, "__array__"):
        parts = _arrays(batches)
        device = next((t.device for _, t in model.named_tensors()), "cpu")
        batches = data.DataLoader((batches, np.zeros(len(parts[0]))), 256, shuffle=False, device=device)
    if isinstance(batches, data.DataLoader) and batches.shuffle:
        raise ValueError("predict: the loader shuffles, so that the answers would come in an order that is not known; "
                         "pass shuffle=False")
    if isinstance(batches, data.DataLoader) and batches.drop_last:
        raise ValueError("predict: the loader leaves out the images of a last batch that is not full; pass "
                         "drop_last=False")
    _warn_of_other_items("predict: the loader", batches, 3)
    with switched([model], False), no_grad():
        found = [_answers(model, batch[0] if isinstance(batch, (tuple, list)) and batch else batch)
                 for batch in batches]
    if not found:
        raise ValueError("predict: got 0 batches but needs at least 1")
    return measure.joined(found)


def _arrays(inputs: Parts) -> list[Any]:
    """The arrays among inputs. Raises TypeError if they are something else, or have no axis of items."""
    parts = leaves(inputs)
    if not parts or not all(hasattr(each, "shape") and each.shape for each in parts):
        raise TypeError(f"predict: the inputs are a {type(inputs).__name__} of "
                        f"{', '.join(type(each).__name__ for each in parts) or 'nothing'} but must be arrays with an "
                        "axis of items, one for each input of the model; pass all inputs in one, np.array(inputs), or "
                        "batches in a list, [(inputs, targets), ...]")
    return parts


def _answers(model: nn.Module, inputs: Parts) -> Parts:
    """What a model answers to the inputs of a batch."""
    count = len(_arrays(inputs)[0])
    answers = measure.answers_of("predict", measure.outputs_of(model, mapped(as_tensor, inputs)))
    for each in leaves(answers):
        if each.shape[:1] != (count,):
            raise ValueError(f"predict: the model answers with shape {each.shape} to a batch of {count} items but must "
                             f"have {count} rows; a batch is an array (items, ...)")
    return answers


def _evaluated(model: nn.Module, batches: Iterable[tuple[Any, ...]], loss: Function,
               functions: Mapping[str, Function], shared: bool = False) -> dict[str, float]:
    """shared: each rank has its part of the batches."""
    metrics, count, classes, seen = None, 0, True, []
    functions, whole = measure.apart(functions)
    with switched(modules_of(model, loss).values(), False), no_grad():
        for batch in map(Batch.of, batches):
            metrics = metrics or RunningMetrics(leaves(batch.inputs)[0].device, functions)
            outputs = batch.outputs(model)
            classes &= metrics.update(batch.loss(loss, outputs), outputs, batch.targets)
            count += len(batch)
            if whole:
                seen.append(measure.answers_of("WholeSet", (outputs, batch.targets)))
    return _means(metrics, count, classes, whole, seen, shared)


def _warn_of_other_items(who: str, batches: object, level: int) -> None:
    if isinstance(batches, data.DataLoader):
        left, augment = batches.count - batches.images_per_epoch, batches.augment
        for what, found in {f"leaves out {left} of {batches.count} items; pass drop_last=False": left > 0,
                            f"changes images at random, by {augment}; pass augment=None": augment is not None}.items():
            if found:
                warnings.warn(f"{who} {what}", UserWarning, stacklevel=level)


def training(model: nn.Module) -> AbstractContextManager[object]:
    """A model in training stays as it is: its layers in evaluation are meant to be so. A model in evaluation is
    switched as a whole. A loss has its own mode: it may be a net that only measures."""
    return switched([] if model.training else [model], True)


def _means(metrics: RunningMetrics | None, count: int, classes: bool, whole: Mapping[str, Any], seen: list[Any],
           shared: bool) -> dict[str, float]:
    """The means over `count` images of a test set, and the metrics of the whole set, whose batches were `seen`."""
    sums = [*(metrics.totals() if metrics else ()), count]
    *totals, images = ranks.added_up(sums) if shared else sums
    if metrics is None or not images:
        raise ValueError("evaluate: got 0 images but needs at least 1")
    measure.require_counted(totals, int(images), "evaluate")
    means = measure.means_of(totals, int(images), classes, metrics.functions)
    if not math.isfinite(means["loss"]):
        raise FloatingPointError(f"evaluate: the test loss is {means['loss']}; the parameters are unusable, train with "
                                 "a smaller learning rate, or the test set holds NaN")
    return means | measure.measured(whole, ranks.gathered(seen) if whole and shared else seen)


@told
def fit(model: nn.Module, optimizer: optim.Optimizer, train: data.DataLoader, test: data.DataLoader, *, epochs: int,
        schedule: optim.Schedule | Sequence[optim.Schedule] | None = None, loss: Function = ops.cross_entropy,
        metrics: Mapping[str, Function] | None = None, callbacks: Callback | Sequence[Callback] = (),
        accumulate: int = 1, clip: float | None = None, compiled: bool | None = None, progress: bool = True,
        say: Callable[[str], object] | None = measure.show, checkpoints: str | os.PathLike[str] | None = None,
        save_every: int = 0, resume: bool | str | os.PathLike[str] = False) -> list[Metrics]:
    """Train for a number of epochs and evaluate on the test set after each.

    train, test: `data.DataLoader`s of (inputs, targets), each one or a tuple or dict. A model is called with the inputs
    of a tuple by position, model(images, rows), and with those of a dict by name; loss and metrics get the targets as
    they are. Or of (inputs, targets, weights), where weights say how much each image counts: the loss then gives one
    number per image, and the mean is weighted. schedule: step -> factor of the learning rate that each of the
    optimizer's groups has at the start of the step's epoch; fit does not set that rate; a list has one schedule for
    each group. loss(outputs, targets) -> the batch's mean, a Tensor of one number. metrics: by name, what else is
    measured: function(outputs, targets) -> the batch's mean; or a `WholeSet`, which gets the whole test set at once.

    accumulate: each step adds up the gradients of this many batches. If the loss is a mean, weighted or not, this is
    the same as one batch of all their images; a sum of means with different weights counts by each batch's images.
    There are fewer steps, and fewer reports of steps, by this factor. An epoch's last step has the batches that are
    left. clip: the largest norm of all gradients, of all groups as one vector (`optim.clip_grad_norm`).

    callbacks: functions of an epoch's metrics, and objects with `on_train_begin()`, called after a checkpoint was
    accepted, `on_step_end(step)` (a `Step`), `on_epoch_end(metrics)` or several of them. They may set the optimizer's
    rates, from the next step on. One that returns True ends the training after that step or epoch. A checkpoint keeps
    what their `state_dict` gives, and returns it by `load_state_dict`. Metrics of an epoch: epoch, step, lr,
    train_loss, train_accuracy (if the targets are integer classes), the same for test_, and for each of `metrics`;
    seconds (training and evaluation) and images_per_second (training alone). Returns those of all epochs.

    compiled: replay the steps of training and evaluation with `minidl.compile`. Batches, rates and metrics are then on
    the device, and an epoch runs without waiting for the host, except for a look at the losses every two seconds. None:
    only on a CUDA device, and only with loaders that do not make their batches in a way of their own
    (`data.own_batches`); compiled=True refuses all others. progress: a bar in a terminal or notebook. say: a
    function that gets a line per epoch.

    checkpoints: a folder for checkpoint.h5 and the one before it, checkpoint-previous.h5: one after each epoch, each
    `save_every` steps, and on Ctrl-C and SIGTERM, which then stop the training between two steps (`Interrupted`, a
    KeyboardInterrupt). resume: go on from the newest in that folder, if there is one, or from the file or folder named;
    the training ends with the same bits as one that was not interrupted.

    Each layer is left in the mode in which it was. A layer in evaluation stays so while the net trains; a net that is
    itself in evaluation trains as a whole. A loss that is a Module stays in its mode while the net trains, and is in
    evaluation while the test set is evaluated; checkpoints hold its state, too.

    Processes that `mpiexec -n` has started together divide the images of each step and of the evaluation among them.
    Losses and weights are those of one process with the same batches, up to rounding. Only rank 0 calls the callbacks
    and `say`, and writes. What callbacks change is sent to the other ranks (docs/distributed.md).

    Raises ValueError for numbers that are not possible, an optimizer that holds none of the model's parameters, or with
    checkpoints some that neither the model nor the loss holds, a train that gives more batches than its len(), a metric
    whose name is taken, a schedule that gives no finite number of at least 0, a checkpoint that does not fit, is from
    other data, or would be overwritten, a folder of checkpoints that another training writes to, and ranks with other
    data, rates or epochs; Diverged (a FloatingPointError), naming the step, if the loss is not finite; TypeError for
    loaders, an optimizer, a schedule or callbacks of another kind; CompileError for a model that cannot be compiled:
    pass compiled=False.
    """
    _check_fit(optimizer, train, test, epochs, schedule, accumulate, clip)
    measure.require_functions(loss, metrics)
    require_parameters("fit", model, optimizer, loss)
    called = Callbacks(callbacks)
    called.require_of(model, optimizer)
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
        run = kind(model, optimizer, train, test, loss, metrics, accumulate, clip)
        if saved is not None or resume:
            require_held(run)
        if saved is not None or resume or world.size > 1:
            run.contents = {"train": contents_of(train), "test": contents_of(test)}
        ranks.require_same(run, epochs)
        source = (saved.folder if saved is not None and there else None) if resume is True else resume
        place, say = restore(source, run, called, epochs) if source else Place(), say if first else None
        if place.step and say and place.epoch < epochs:
            say(f"nothing is left of {epochs} epochs: a callback ended this training after epoch {place.epoch}; to "
                "train on, begin another with its weights, in another folder" if place.stopped and not place.ended else
                f"goes on in epoch {place.epoch + 1}/{epochs}, after step {place.step}")
        ranks.called(called, "on_train_begin", None, run)
        history = _Fit(run, place, epochs, schedule or optim.constant(), called, saved, progress and first, say).run()
        states = world.tell(called.state_dict() if first and world.size > 1 else [])       # as an EMA's averages
        if not first and [each["kind"] for each in states] == called.kinds():
            called.load_state_dict(states)
        return history


def _check_fit(optimizer: Any, train: object, test: object, epochs: object, schedule: object, accumulate: object,
               clip: object) -> None:
    """Refuse what fit cannot work with, and say what it can."""
    whole("fit", "epochs", epochs, 0)
    whole("fit", "accumulate", accumulate, 1)
    if clip is not None:
        optim.clip.check_limit("fit", "clip", clip)
    require_trainer("fit", optimizer, train=train, test=test)
    require_same_names("fit", train, test)
    _warn_of_other_items("fit: the test loader", test, 5)
    if isinstance(schedule, (list, tuple)) and all(map(callable, schedule)):
        if len(schedule) != len(optimizer.groups):
            raise ValueError(f"fit: schedule has {len(schedule)} functions but the optimizer has "
                             f"{len(optimizer.groups)} groups; give one to each, or one function for all")
    elif schedule is not None and not callable(schedule):
        raise TypeError(f"fit: schedule is {schedule!r} but must be a function of the step, or a list of them; pass "
                        "optim.schedule(name, total)")


def require_same_names(who: str, train: object, test: object) -> None:
    """Refuse data whose classes or columns have other names, or another order, in training than in the test: labels
    are places among the classes."""
    for what in ("classes", "columns"):
        mine, other = (_names(loader, what) for loader in (train, test))
        if mine and other and mine != other:
            raise ValueError(f"{who}: the training data has the {what} {', '.join(mine[:9])} but the test data has "
                             f"{', '.join(other[:9])}; give both the same, in one order: cut both out of one set, with "
                             "train_and_test() or data.random_split")


def _names(loader: object, what: str) -> list[str]:
    """The names of a loader's data, if it has some."""
    source = getattr(loader, "dataset", None)
    while isinstance(source, data.Subset):
        source = source.source
    names = getattr(source, what, None)
    found = [*map(str, names)] if isinstance(names, (list, tuple)) else []
    return [] if what == "columns" and found == unnamed(len(found)) else found


def require_trainer(who: str, optimizer: object, **loaders: object) -> None:
    """Refuse what is not an optimizer, or not a loader, in the name of `who`."""
    if not hasattr(optimizer, "groups"):
        given = f"the class {optimizer.__name__}" if isinstance(optimizer, type) else f"a {type(optimizer).__name__}"
        raise TypeError(f"{who}: optimizer is {given} but must be one of minidl.optim; make one, such as optim.Adam("
                        "net.parameters()), or with one of your own write the loop: loss.backward(), your update")
    for what, loader in loaders.items():
        if not all(hasattr(loader, name) for name in ("device", "images_per_epoch", "set_epoch")):
            of = type(loader).__module__.partition(".")[0].replace("builtins", "")
            raise TypeError(f"{who}: {what} is a {of}{'.' * bool(of)}{type(loader).__name__} but must be a "
                            f"data.DataLoader of minidl; make one of the data itself, data.DataLoader({what}"
                            f"{'.dataset' if hasattr(loader, 'dataset') else ''}, batch_size); with other "
                            "batches, write the loop with training.train_step and training.evaluate")


def require_parameters(who: str, model: nn.Module, optimizer: optim.Optimizer, loss: Function) -> None:
    """Refuse an optimizer that would change nothing of the net, nor of a loss that is a Module."""
    trained = {id(p) for group in optimizer.groups for p in group["params"]}
    ours = [t for _, t in named_tensors(modules_of(model, loss))]
    if not any(id(t) in trained for t in ours):
        raise ValueError(f"{who}: the optimizer holds {len(trained)} parameters but none of the {len(ours)} Tensors of "
                         f"the {type(model).__name__}; make it of model.parameters(), after layers are replaced")


class _Plain:
    """Steps that are read one by one: their sums are known at any time."""

    known = True
    contents: dict[str, dict[str, str]] = {}           # of the data, if checkpoints are used
    modes: dict[str, dict[str, bool]] = {}             # those of training, while the modules are in evaluation
    before: dict[str, bool] | None = None              # within an epoch, the modes that the model has again after it

    def __init__(self, model: nn.Module, optimizer: optim.Optimizer, train: data.DataLoader, test: data.DataLoader,
                 loss: Function = ops.cross_entropy, functions: Mapping[str, Function] | None = None,
                 accumulate: int = 1, clip: float | None = None):
        self.model, self.optimizer, self.train, self.test = model, optimizer, train, test
        self.loss, self.classes, self.accumulate, self.clip = loss, True, accumulate, clip
        self.modules = modules_of(model, loss)
        self.functions, self.whole = measure.apart(functions or {})
        self.steps = -(-len(train) // accumulate)      # of an epoch
        self.metrics = RunningMetrics(train.device, self.functions)
        self.rates = optim.Rates(Tensor(np.zeros((len(optimizer.groups), len(train))), device=train.device),
                                 Tensor(np.zeros(1, np.int64), device=train.device))

    @contextmanager
    def training(self) -> Iterator[None]:
        """Within this the model is in the modes in which an epoch trains it, see the function `training`. In an epoch
        that goes on, a checkpoint has said what comes after it."""
        if self.before is None:
            self.before = {} if self.model.training else modes_of(self.model)
            if self.before:
                self.model.train()
        try:
            yield
        finally:
            set_modes(self.model, self.before)
            self.before = None

    def own_rates(self) -> list[float]:
        """The learning rate of each group."""
        return [group["lr"] for group in self.optimizer.groups]

    def use(self, rates: optim.Rates) -> None:
        """Take the rates of steps from these tables."""
        self.rates = rates

    def begin(self, factors: list[list[float]]) -> None:
        """Set an epoch's rates, by the factors of each group and step."""
        if len(self.train) != (before := self.rates.table.shape[1]):
            raise ValueError(f"fit: train has {len(self.train)} batches but had {before} before; leave it as it is "
                             "during fit, and call fit anew for another batch_size or length")
        if self.rates.table.shape[0] != (groups := len(self.optimizer.groups)):        # a callback has added one
            self.use(self.rates._replace(table=Tensor(np.zeros((groups, before)), device=self.train.device)))
        factors_of_batches = np.repeat(factors, self.accumulate, axis=-1)[..., :len(self.train)]
        rates = np.array(self.own_rates())[:, None] * factors_of_batches
        self.rates.table.data[...] = to_device(rates, self.train.device)

    def evaluate(self, number: int = 0, look: Callable[[], None] = lambda: None) -> dict[str, float]:
        """As the function `evaluate`, on the test set, after epoch `number`; look is called before each batch."""
        def looking() -> Iterator[Any]:
            for batch in drawn_apart(self.test, number):
                look()
                yield batch
        return _evaluated(self.model, looking(), self.loss, self.functions | self.whole, shared=True)

    def totals(self) -> list[float]:
        """The totals of the metrics, over all ranks."""
        return ranks.added_up(self.metrics.totals())

    def epoch(self, number: int = 0, done: int = 0) -> Iterator[int]:
        """Does the steps of epoch `number`, except the first `done`. Gives after each step how many images it had on
        all ranks."""
        begin = done * self.accumulate
        skipped = 0 if data.own_batches(self.train) == "__iter__" else begin
        if skipped:
            self.train.skip(skipped)
        batches = islice(drawn_apart(self.train, number, skipped), begin - skipped, None)
        for first in range(begin, end := len(self.train), self.accumulate):
            if not (group := [Batch.of(batch) for batch in islice(batches, min(self.accumulate, end - first))]):
                return
            if first + len(group) == end:
                self.require_no_more(next(batches, None) is not None)
            self.rates.position.data[...] = first
            _, images, _, self.classes = update(self.model, self.optimizer, group, self.rates, self.loss, self.metrics,
                                                clip=self.clip)
            yield images

    def require_no_more(self, more: bool) -> None:
        """Refuse more batches than len(), for which rates and places are made."""
        if more:
            raise ValueError(f"fit: train is a {type(self.train).__name__} whose len() is {len(self.train)} but it "
                             "gives more batches; define __len__, the number of batches that its __iter__ gives, or "
                             "end it after these")

    def warm_up(self, place: Place) -> None:
        """Redo what steps before a checkpoint have left behind, not counting numbers: here nothing."""


def compiled_step(model: nn.Module, optimizer: optim.Optimizer, batches: data.DeviceBatches, metrics: RunningMetrics,
                  rates: optim.Rates, loss: Function = ops.cross_entropy,
                  clip: float | None = None) -> Callable[..., bool]:
    """A compiled step(size): one update on the next of the batches, by its rate, counted by the metrics. A tuple of
    sizes means one update on as many batches. The host only has to start it. Returns whether right answers are counted.
    On several ranks it is step(size, images), where `images` is how many the whole step has."""
    @compile
    def step(size: int | tuple[int, ...], images: int = 0) -> bool:
        sizes = size if isinstance(size, tuple) else (size,)
        group = [Batch.of(batches.next(each)) for each in sizes]
        *_, classes = update(model, optimizer, group, rates, loss, metrics, images or sum(sizes), clip)
        return classes
    return step


class _Compiled(_Plain):
    """Compiled steps: the host only has to start them, and they are read together."""

    known = False

    def __init__(self, model: nn.Module, optimizer: optim.Optimizer, train: data.DataLoader, test: data.DataLoader,
                 loss: Function = ops.cross_entropy, functions: Mapping[str, Function] | None = None,
                 accumulate: int = 1, clip: float | None = None):
        for what, loader in (("train", train), ("test", test)):
            if data.own_batches(loader) is not None:
                raise CompileError(f"fit: {what} is a {type(loader).__name__} with a {data.own_batches(loader)} of its "
                                   "own, which compiled steps would not run; pass compiled=False")
            if isinstance(loader.stored, tuple) and len(loader.stored) == 3:
                for part in leaves(loader.stored[2]):
                    measure.require_weights(part)
        super().__init__(model, optimizer, train, test, loss, functions, accumulate, clip)
        self.batches, tests = data.DeviceBatches(train), data.DeviceBatches(test)
        self.use(self.rates._replace(position=self.batches.position))
        here = self.batches.sizes
        everywhere = train.sizes if ranks.current().size > 1 else here         # a user may have set its part
        self.require_no_more(len(here) > len(train))
        # What each step of an epoch is given: the sizes of its batches here, and how many images it has on all ranks
        self.given = [(here[i] if accumulate == 1 else tuple(here[i:i + accumulate]), sum(everywhere[i:i + accumulate]))
                      for i in range(0, len(here), accumulate)]
        metrics = self.test_metrics = RunningMetrics(test.device, self.functions)
        self.tests, whole = tests, bool(self.whole)

        @compile
        def look(size: int) -> tuple[bool, Any]:
            batch = Batch.of(tests.next(size))
            outputs = batch.outputs(model)
            classes = metrics.update(batch.loss(loss, outputs), outputs, batch.targets)
            return classes, (outputs, batch.targets) if whole else ()
        self.look = look

    def use(self, rates: optim.Rates) -> None:
        super().use(rates)
        self.step = compiled_step(self.model, self.optimizer, self.batches, self.metrics, rates, self.loss, self.clip)

    def evaluate(self, number: int = 0, look: Callable[[], None] = lambda: None) -> dict[str, float]:
        classes, seen = True, []
        self.test_metrics.reset()
        with switched(self.modules.values(), False), no_grad():
            for size in self.tests:
                look()
                right, answers = self._run(self.look, size)
                classes &= right
                if self.whole:
                    seen.append(measure.answers_of("WholeSet", answers))
        return _means(self.test_metrics, sum(self.tests.sizes), classes, self.whole, seen, shared=True)

    def epoch(self, number: int = 0, done: int = 0) -> Iterator[int]:
        self.train.skip(done * self.accumulate)
        iter(self.batches)                 # begins the loader's epoch
        for given in self.given[done:]:
            self.classes = self._run(self.step, *given)
            yield given[1]

    @staticmethod
    def _run(step: Callable[..., Any], *sizes: Any) -> Any:
        """Run a step. If it is refused, the error begins with the solution that needs no other model."""
        try:
            return step(*sizes)
        except CompileError as error:
            raise CompileError(f"fit: pass compiled=False (--no-compile), or change this: {error}") from error

    def warm_up(self, place: Place) -> None:
        """Record what was recorded before the checkpoint. The steps after it are then replayed if they were replayed
        before: on a GPU, replaying gives other bits than recording."""
        done = [*self.given * min(2, place.epoch), *self.given[:place.batch]]
        with nullcontext() if place.batch else training(self.model):
            for step in dict.fromkeys(done):
                iter(self.batches)
                for _ in range(min(2, done.count(step))):
                    self.batches.position.data[...] = self.given.index(step) * self.accumulate - 1
                    self.step(*step)
        with switched(self.modules.values(), False), no_grad():
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
        self.schedule = schedule
        self.callbacks, self.checkpoints, self.progress, self.say = callbacks, checkpoints, progress, say
        self.left: set[str] = set()        # the parameters that are known not to be trained
        self.world = ranks.current()       # others may be given no callbacks; rank 0's count
        self.called, self.free = self.world.tell((bool(callbacks.steps), callbacks.free))

    def run(self) -> list[Metrics]:
        """Run all epochs that are left. Returns the metrics of all epochs, with those before."""
        place = self.place
        with self.checkpoints.signals() if self.checkpoints else nullcontext():
            while place.epoch < self.epochs and not (place.stopped and not place.ended):
                begin = time.perf_counter()
                with self.steps.training():
                    seen = self.train()
                trained = time.perf_counter() - begin
                self.finish(begin, seen / max(trained, 1e-9))
            self.agree()
            self.obey()
        return place.history

    def train(self) -> int:
        """Do the steps that are left of an epoch. Returns how many images they had."""
        run, place, before = self.steps, self.place, self.place.images
        if place.ended:
            return 0
        self.warn_of_left()
        epoch, first, due = place.epoch + 1, place.step, time.monotonic() + LOOK_EVERY
        run.train.set_epoch(place.epoch)
        rates = self.begin()
        bar = Progress(f"epoch {epoch}/{self.epochs}", run.train.images_per_epoch, self.progress, place.images)
        try:
            for size in run.epoch(place.epoch, place.batch):
                place.batch, place.step, place.images = place.batch + 1, place.step + 1, place.images + size
                place.ended = place.batch == run.steps
                bar.update(size, self.means() if run.known or place.ended else {})
                if self.called:
                    given = Step(epoch, place.step, place.batch, self.asked, place.images, self.lr)
                    place.stopped = ranks.called(self.callbacks, "on_step_end", given, run, self.means, self.free)
                    place.ended |= place.stopped
                    if run.own_rates() != rates and not place.ended:
                        rates = self.begin()
                if place.ended:
                    break
                if not run.known and ranks.current().size == 1 and time.monotonic() > due:
                    self.require_finite(run.metrics.totals()[0], first)
                    due = time.monotonic() + LOOK_EVERY
                self.look(due=True)
            place.totals = run.totals()
            self.require_finite(place.totals[0], first)
            measure.require_counted(place.totals, place.images, f"fit: epoch {epoch}")
        except Diverged as error:
            raise Diverged(error.loss, error.lr, error.step or place.step + 1, epoch) from None
        finally:
            bar.close()
        place.classes, place.lr = run.classes, self.lr()
        place.key = list(rng.get_state())
        return place.images - before

    def warn_of_left(self) -> None:
        """Warn of parameters that no step changes: they were frozen when the optimizer was made, and are not now."""
        held = {id(p) for group in self.steps.optimizer.groups for p in group["params"]}
        left = [name for name, t in named_tensors(self.steps.modules) if t.requires_grad and id(t) not in held]
        if ranks.current().rank == 0 and (new := [name for name in left if name not in self.left]):
            self.left.update(new)
            warnings.warn(f"fit: {len(new)} parameters require a gradient but are in no group of the optimizer, so no "
                          f"step changes them: {', '.join(new[:8])}{', ...' * (len(new) > 8)}; make the optimizer "
                          "before layers are frozen, or after they are unfrozen, or freeze what is not to be trained",
                          UserWarning, stacklevel=6)                   # train, run, fit, told, and who calls fit

    def require_finite(self, total: float, first: int) -> None:
        """Refuse losses whose sum `total` after the step `first` is not finite, and say in which step this began.
        """
        if not math.isfinite(total):
            last = (self.place.step - first) * self.steps.accumulate - 1
            batches = int(min(last, *ranks.current().gather(self.steps.metrics.finite())))
            step = first + batches // self.steps.accumulate + 1
            raise Diverged(total, self.lr(step), step)

    def begin(self) -> list[float]:
        """Set the rates of this epoch. Returns the groups' own rates."""
        first = self.place.step - self.place.batch
        steps, groups = range(first, first + self.steps.steps), len(self.steps.optimizer.groups)
        schedules = [self.schedule] * groups if callable(self.schedule) else self.schedule
        if len(schedules) != groups:
            raise ValueError(f"fit: schedule has {len(schedules)} schedules but the optimizer has {groups} groups now; "
                             "add or remove groups before fit, or give one schedule for all")
        self.steps.begin([[factor_at(schedule, step) for step in steps] for schedule in schedules])
        return self.steps.own_rates()

    def lr(self, step: int | None = None) -> float:
        """The learning rate of a step of this epoch, or of the last one, of the first group."""
        batch = self.place.batch - (0 if step is None else self.place.step - step)
        return float(self.steps.rates.table.numpy()[0, (batch - 1) * self.steps.accumulate])

    def means(self) -> dict[str, float]:
        """The means of the epoch so far."""
        return measure.means_of(self.steps.totals(), self.place.images, self.steps.classes, self.steps.functions)

    def asked(self) -> dict[str, float]:
        """The same for a callback, which only rank 0 calls."""
        with ranks.joined_as(self.world):
            ranks.ask(self.world)
            return self.means()

    def finish(self, begin: float, images_per_second: float) -> None:
        """An epoch's evaluation, and what is called and written after it."""
        run, place = self.steps, self.place
        trained = measure.means_of(place.totals, place.images, place.classes, run.functions)
        run.test.set_epoch(place.epoch)
        run.modes = {part: modes_of(module) for part, module in run.modules.items()}
        # Of a layer with across_ranks=False, each has its own running statistics
        ranks.send(run.modules.values(), run.optimizer)
        tested = run.evaluate(place.epoch, self.look)
        run.modes = {}
        metrics = {"epoch": place.epoch + 1, "step": place.step, "lr": place.lr,
                   **{f"train_{name}": mean for name, mean in trained.items()},
                   **{f"test_{name}": mean for name, mean in tested.items()},
                   "seconds": time.perf_counter() - begin, "images_per_second": images_per_second}
        metrics = ranks.current().tell(metrics)        # of rank 0's clock
        place.next_epoch(metrics)
        run.metrics.reset()
        if self.say:
            self.say(measure.line_of(metrics, self.epochs))
        place.stopped |= ranks.called(self.callbacks, "on_epoch_end", metrics, run)
        metrics.update(ranks.current().tell(metrics))          # a callback may have changed them
        self.save()
        self.agree()
        self.obey()

    def look(self, due: bool = False) -> None:
        """Between two batches: obey a signal, and save if that is due."""
        if self.checkpoints is None:
            return
        every = self.checkpoints.every
        self.agree(now=self.steps.known or self.place.step % AGREE_EVERY == 0)
        if self.checkpoints.signum is not None or (due and every and self.place.step % every == 0):
            self.save()
        self.obey()

    def save(self) -> None:
        """Write a checkpoint, but not of numbers that are not finite: the epoch will then end in an error."""
        if self.checkpoints is not None and (state := state_of(self.steps, self.place, self.callbacks)) is not None:
            self.checkpoints.save(state)
            ranks.current().barrier()      # others do not go on, or end, while rank 0 writes

    def agree(self, now: bool = True) -> None:
        """A signal that came is obeyed from here on. If the ranks ask each other now, all of them obey one that came to
        any rank."""
        saved = self.checkpoints
        if saved is not None and ranks.current().size == 1:
            saved.signum = saved.noted
        elif saved is not None and now:
            counts = ranks.added_up([float(saved.noted == each) for each in SIGNALS])
            saved.signum = next((each for each, count in zip(SIGNALS, counts, strict=True) if count), None)

    def obey(self) -> None:
        """Stop if a signal requires it."""
        if self.checkpoints is not None and self.checkpoints.signum is not None:
            name, folder = signal.Signals(self.checkpoints.signum).name, self.checkpoints.folder
            raise Interrupted(f"training: {name} stopped it after step {self.place.step}; "
                              + (f"fit(..., checkpoints='{folder}', resume=True) goes on" if self.checkpoints.exist()
                                 else f"there is no checkpoint in '{folder}'"), self.checkpoints.signum)
