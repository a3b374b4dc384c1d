"""What is measured during training: summed on the device, and shown while it runs."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import ops
from ..core.device import to_device
from ..core.host import can_print, install
from ..core.mode import mode, no_grad
from ..core.tensor import Tensor, as_tensor, wrap
from ..data.sources import leaves, mapped
from ..ops.common.backend import backend_of
from ..ops.common.geometry import is_int
from ..ops.create import ones

if TYPE_CHECKING:
    from tqdm.auto import tqdm

Metrics = dict[str, Any]
Function = Callable[[Any, Any], Any]       # of outputs and targets: a loss, or what else is measured
Parts = Any                                # one Tensor or array, or a tuple or dict of them
# The names of an epoch's own numbers.
TAKEN = "loss", "accuracy", "epoch", "step", "lr", "seconds", "images_per_second"


class Batch(NamedTuple):
    """What a loader gives, as Tensors: inputs and targets, each one or a tuple or dict of them, and how much each image
    counts, (n,), if that is given."""

    inputs: Parts
    targets: Parts
    weights: Tensor | None

    @classmethod
    def of(cls, batch: object) -> Batch:
        """Raises TypeError for another batch: a single array could be unpacked image by image; ValueError for targets
        or weights of other images, and for invalid weights, unless a compiled step makes the batch."""
        if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
            found = f"{len(batch)} things" if isinstance(batch, (tuple, list)) else f"of type {type(batch).__name__}"
            raise TypeError(f"training: a batch is {found} but must be (inputs, targets), or these and weights; make "
                            "the loader of both, as in DataLoader((inputs, targets), 128); several inputs are a tuple "
                            "or dict, as in DataLoader(((images, rows), targets), 128)")
        inputs = mapped(as_tensor, batch[0])
        targets, *weights = (mapped(lambda part: as_tensor(part, leaves(inputs)[0].device), each) for each in batch[1:])
        made = cls(inputs, targets, weights[0] if weights else None)
        shapes = [t.shape[:1] for t in leaves(targets)]
        if len(set(shapes)) != 1 or () in shapes:
            raise ValueError(f"training: the targets of a batch have shapes "
                             f"{', '.join(str(t.shape) for t in leaves(targets))} but their first axes must count the "
                             "same images")
        if made.weights is not None and (not isinstance(made.weights, Tensor) or made.weights.shape != shapes[0]):
            given = getattr(made.weights, "shape", type(made.weights).__name__)
            raise ValueError(f"training: the third part of a batch has shape {given} but must be {shapes[0]}, the "
                             "weight of each image; several inputs or targets are a tuple, as in "
                             "DataLoader(((images, rows), targets), 128)")
        if made.weights is not None and not mode.recorder.recording:
            require_weights(made.weights.data)
        return made

    def __len__(self) -> int:
        """How many images."""
        return len(leaves(self.targets)[0])

    def outputs(self, model: Callable[..., Any]) -> Parts:
        """A model's outputs. It gets several inputs one by one: those of a tuple by position, of a dict by name."""
        return outputs_of(model, self.inputs)

    def loss(self, function: Function, outputs: object) -> Tensor:
        """The mean that is trained: the loss, or the mean of its numbers per image, each counted by its weight.

        Raises TypeError if it is not one number, or with weights if it is not one number for each image.
        """
        value, weights = asked(function, outputs, self.targets), self.weights
        if weights is None and isinstance(value, Tensor) and value.shape == (len(self),):
            if value.weights is None:      # as a mean of one number, which on another rank may have other images
                return value.sum() / max(1, len(self))
            weights = ones(len(self), device=value.device)
        if weights is None:
            require_loss(value)
            return value if not value.shape else value.reshape(())
        if not isinstance(value, Tensor) or value.shape != weights.shape:
            raise TypeError(f"training: the loss is a {_named(value)} but must be a Tensor of one number per image, of "
                            f"shape {weights.shape}, since the batches have weights; pass loss=partial("
                            "ops.cross_entropy, reduction='none')")
        with no_grad():
            weights = _cast(weights, str(value.dtype))
            counts = weights if value.weights is None else weights * _cast(value.weights, str(value.dtype))
            total = counts.sum()
            total = ops.where(ops.eq(total, 0), 1.0, total)        # of a batch in which nothing counts
        mean = ops.where(ops.eq(counts, 0), 0.0, value * weights).sum() / total
        mean.weights = counts
        return mean


def require_weights(weights: Any) -> None:
    """Refuse an array of images' weights with one that is below 0, infinite or NaN: the mean
    divides by their sum. So weights of only -1 would train like weights of only 1, and some could make the sum 0."""
    if not (right := (weights >= 0) & (weights < math.inf)).all():
        raise ValueError(f"training: an image's weight is {weights[~right][0].item():g} but must be a number of at "
                         "least 0; leave an image out by a weight of 0")


def outputs_of(model: Callable[..., Any], inputs: Parts) -> Parts:
    """model(inputs); several inputs are passed by position if they are a tuple, and by name if they are a dict."""
    by_place, by_name = (inputs, {}) if isinstance(inputs, tuple) else ((), inputs) if isinstance(inputs, dict) else \
        ((inputs,), {})
    mode.recorder.reads(model)             # which a Module tells, unless its class has a __call__ of its own
    try:
        return model(*by_place, **by_name)
    except TypeError:
        require_taken(getattr(model, "forward", model), by_place, by_name, model)
        raise


def answers_of(who: str, outputs: Parts) -> Parts:
    """A model's outputs as NumPy arrays. Raises TypeError for what is not a Tensor."""
    for each in leaves(outputs):
        if not isinstance(each, Tensor):
            raise TypeError(f"{who}: the model answers with a {type(each).__name__} but must with Tensors, one or a "
                            "tuple or dict of them; return a tuple in place of a list")
    return mapped(Tensor.numpy, outputs)


def require_taken(forward: Callable[..., Any], by_place: Sequence[Any], by_name: Mapping[str, Any],
                  model: object) -> None:
    """Refuse inputs that a model's forward does not take, by their number or names."""
    try:
        takes = inspect.signature(forward)
        takes.bind(*by_place, **by_name)
    except ValueError:                     # some builtin functions have no signature
        return
    except TypeError as error:
        given = f"inputs named {', '.join(map(str, by_name))}" if by_name else f"{len(by_place)} inputs"
        raise TypeError(f"training: a batch has {given} but {type(model).__name__}.forward takes "
                        f"({', '.join(takes.parameters)}): {error}; the first part of a batch is all inputs, as in "
                        "DataLoader((x, targets), 128) or DataLoader(((x, y), targets), 128)") from None


class RunningMetrics:
    """Losses, right answers and other numbers of many steps, summed where they are computed, so that no step makes the
    host wait.

    Call `update` in a step, compiled or not, and `read` when the numbers are wanted. device: "cpu" or "cuda".
    functions: by name, what else is measured: function(outputs, targets) -> the batch's mean, one number; in a compiled
    step a Tensor. Raises ValueError for a name that a number of each epoch has.

    A mean counts by the number of images in its batch. A mean over something else says so, as those of
    `ops.cross_entropy` with ignore_index or weights do: it has `weights`, a Tensor of how much each label counts, and
    counts by their sum. Right answers are then counted only where a loss's weights (n,) are not 0.
    """

    def __init__(self, device: str, functions: Mapping[str, Function] | None = None):
        self.functions = dict(functions or {})
        require_free(self.functions)
        # Sums of losses, of right answers, and of batches until a sum of losses was not finite.
        self.sums = Tensor(np.zeros(3), device=device)
        self._others = {name: Tensor(np.zeros(3), device=device) for name in self.functions}
        # By how much the count of each sum exceeds the images: for losses, for right answers, for functions.
        self._more = [Tensor(np.zeros(3), device=device) for _ in range(2 + len(self.functions))]
        self._class = Tensor(np.zeros(1, np.int64), device=device)

    def update(self, loss: Tensor, outputs: Parts, targets: Parts) -> bool:
        """Add a batch: its mean loss (one number), outputs, targets (n, ...), one Tensor or several. Returns whether
        right answers were counted: if outputs are logits (n,classes) and targets integers (n,).

        Raises TypeError for a loss or another function's result that is not one number, ValueError for outputs of
        other images than the targets'.
        """
        require_loss(loss)
        n = len(leaves(targets)[0])
        if isinstance(outputs, Tensor) and outputs.shape[:1] != (n,):
            shapes = ", ".join(str(t.shape) for t in leaves(targets))
            raise ValueError(f"RunningMetrics: outputs and targets have shapes {outputs.shape} and {shapes} but "
                             "must be (n, ...) and (n, ...); give one target per image")
        classes = (isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.ndim == 2
                   and outputs.shape[1] > 1 and targets.shape == outputs.shape[:1] and targets.dtype.kind in "iu")
        if not n:                          # the part of a rank without images: it has no mean
            return classes
        with no_grad():
            weights = loss.weights
            mean = self._mean(loss, n, self._more[0])
            if not classes:
                self._add(self.sums, mean, n)
            elif weights is None or weights.shape != targets.shape:
                self._count(self.sums, mean, outputs, targets)
            else:
                counts = ops.where(ops.ne(weights, 0), 1.0, 0.0)
                self._count(self.sums, mean, outputs, ops.where(ops.ne(weights, 0), _cast(targets, "int64"), -1))
                self._add(self._more[1], counts.sum() - n)
            for (name, function), more in zip(self.functions.items(), self._more[2:], strict=True):
                value = asked(function, outputs, targets)
                require_number(name, value, "must be one number, the batch's mean")
                value = value if isinstance(value, Tensor) else Tensor(float(value), device=self.sums.device)
                self._add(self._others[name], self._mean(value, n, more), n)
        return classes

    def _mean(self, mean: Tensor, n: int, more: Tensor) -> Tensor:
        """A mean, scaled to count by its weights instead of n images; the difference in count is added to `more`."""
        weight = weight_of(mean)
        if weight is None:
            return mean
        self._add(more, _cast(weight, "float64") - n)
        # If all labels are ignored, there is no mean.
        return ops.where(ops.eq(weight, 0), 0.0, mean.reshape(()) * weight) / n

    def _add(self, sums: Tensor, mean: Tensor, n: int = 1) -> None:
        """sums[0] += mean * n, as the sum of losses does it: as a batch of one image, which counts in sums[1]."""
        total = mean.reshape(()) * n
        self._count(sums, total, total.reshape(1, 1), self._class)

    @staticmethod
    def _count(sums: Tensor, mean: Tensor, outputs: Tensor, targets: Tensor) -> None:
        k = backend_of(outputs, sums, mean, targets)
        k.update_metrics(sums._data, mean._data, outputs._data, targets._data)

    def totals(self) -> list[float]:
        """The sums since the last `read` or `reset`: the loss, how many were right, and each function's. Then, for each
        of these, by how much the count of the sum exceeds the images: 0 if the sum is over the images."""
        return [*self.sums.tolist()[:2], *(t.tolist()[0] for t in (*self._others.values(), *self._more))]

    def finite(self) -> float:
        """How many batches were counted from the last reset until the sum of losses was not finite; inf if it is."""
        total, _, batches = self.sums.tolist()
        return math.inf if math.isfinite(total) else batches

    def reset(self, totals: list[float] | None = None) -> None:
        """Begin at 0, or at what `totals` gave."""
        given = totals or [0.0] * 2 * len(self._more)
        starts = [[*given[:2], 0.0], *([total, 0.0, 0.0] for total in given[2:])]
        for sums, start in zip((self.sums, *self._others.values(), *self._more), starts, strict=True):
            sums.data[...] = to_device(np.array(start), sums.device)

    def read(self) -> tuple[float, int]:
        """(loss summed over images, count right) since the last look."""
        loss, right, *_ = self.totals()
        self.reset()
        return loss, int(right)

    def means(self, count: int, classes: bool = True) -> dict[str, float]:
        """Means over `count` images: loss, accuracy (a share in [0, 1]) if right answers were counted, each function's.
        """
        return means_of(self.totals(), count, classes, self.functions)


def asked(function: Function, outputs: object, targets: object) -> Any:
    """The result of a user's loss or metric. A compiled step takes note of what its code reads, as it does for a
    Module."""
    mode.recorder.reads(function)
    return function(outputs, targets)


def require_functions(loss: object, metrics: object, who: str = "fit") -> None:
    """Refuse a loss and metrics that are not functions, as their names or classes are not."""
    if not (metrics is None or isinstance(metrics, Mapping)):
        raise TypeError(f"{who}: metrics is {metrics!r} but must map names to functions of (outputs, targets), as "
                        "{'top5': training.top_k_accuracy(5)}; loss and, of classes, accuracy are measured always")
    for what, function in (("loss", loss), *((f"metric {name!r}", each) for name, each in (metrics or {}).items())):
        if not callable(function) or isinstance(function, type):
            shown = f"the class {function.__name__}" if isinstance(function, type) else repr(function)
            raise TypeError(f"{who}: {what} is {shown} but must be a function of (outputs, targets), such as "
                            "ops.cross_entropy, ops.mse_loss or nn.HuberLoss()")


def require_free(names: Iterable[str]) -> None:
    """Refuse the name of a metric that a number of each epoch has."""
    for name in TAKEN:
        if name in names:
            raise ValueError(f"training: a metric has the name {name!r}, which a number of each epoch has already; "
                             f"choose another, as 'own_{name}'")


def require_loss(loss: object) -> None:
    """Refuse a loss that is not a Tensor of one number."""
    if not isinstance(loss, Tensor) or loss.size != 1:
        raise TypeError(f"training: the loss is a {_named(loss)} but must be a Tensor of one number, a batch's mean, "
                        "or of one for each image; compute it with minidl's ops, and .mean()")


def require_number(name: str, value: object, must: str) -> None:
    """Refuse what a metric's function gave if it is not one number: a Tensor with one value, or what float() takes."""
    shape = getattr(value, "shape", ())
    if isinstance(value, Tensor):
        given, good = f"a {_named(value)}", value.size == 1
    else:
        given = f"an array of shape {shape}" if shape else "None" if value is None else f"a {type(value).__name__}"
        good = hasattr(value, "__float__") and not shape and not isinstance(value, (str, bytes))   # NumPy's have it
    if not good:
        raise TypeError(f"training: metric {name!r} is {given} but {must}; reduce it, as by .mean()")


def _named(value: object) -> str:
    return f"Tensor of shape {value.shape}" if isinstance(value, Tensor) else type(value).__name__


def weight_of(mean: Tensor) -> Tensor | None:
    """How much a mean counts, if it says so, one number of its dtype; None: as much as its batch has images."""
    weights = mean.weights
    return None if weights is None else _cast(weights.sum(), str(mean.dtype))


def _cast(t: Tensor, dtype: str) -> Tensor:
    """A cast off the tape, also in a compiled step."""
    return wrap(backend_of(t).cast(t._data, dtype))


def require_counted(totals: list[float], images: int, where: str) -> None:
    """Refuse a mean over no loss at all."""
    if not images + totals[len(totals) // 2]:
        raise ValueError(f"{where}: none of {images} images counts: the weights of their labels add up to 0; look at "
                         "the loss's ignore_index and weight")


def means_of(totals: list[float], count: int, classes: bool, names: Mapping[str, Any]) -> dict[str, float]:
    """The means, by name, of `RunningMetrics.totals` over `count` images; NaN if nothing has counted yet."""
    half = len(totals) // 2
    loss, right, *others = (total / (count + more) if count + more else math.nan
                            for total, more in zip(totals[:half], totals[half:], strict=True))
    return {"loss": loss, **({"accuracy": right} if classes else {}), **dict(zip(names, others, strict=True))}


def right_answers(logits: Tensor, labels: Tensor | np.ndarray | list[int]) -> int:
    """How many of logits (n,classes) are largest at their label (n,)."""
    return int(np.sum(logits.argmax(axis=1).numpy() == as_tensor(labels).numpy()))


def top_k_accuracy(k: int, ignore_index: int | None = None) -> Function:
    """A metric for `fit`: function(logits (n,classes), labels (n,)) -> the share of images whose label is among the k
    largest (KSH 2012, section 1: k = 5). If others are as large as the label's, the label counts as behind them.

    ignore_index: the label of images that do not count, as in the loss; by default all do, and one whose label is no
    class is never right.

    Raises ValueError for a k that is not an int of 1 up to one less than the classes.

    >>> logits, labels = Tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), Tensor([1, 2])
    >>> top_k_accuracy(1)(logits, labels).item(), top_k_accuracy(2)(logits, labels).item()
    (0.0, 0.5)
    """
    if ignore_index is not None and not is_int(ignore_index, -math.inf):
        raise ValueError(f"top_k_accuracy: ignore_index is {ignore_index!r} but must be an int, a label")

    def top_k(logits: Tensor, labels: Tensor) -> Tensor:
        if logits.ndim != 2 or labels.shape != logits.shape[:1]:
            raise ValueError(f"top_k_accuracy: logits have shape {logits.shape} and labels {labels.shape} but must be "
                             "(n,classes) and (n,); see .reshape()")
        if not is_int(k, 1) or k >= logits.shape[1]:
            raise ValueError(f"top_k_accuracy: k is {k!r} but must be an int from 1 to {logits.shape[1] - 1}, less "
                             f"than the {logits.shape[1]} classes")
        known = ops.clip(labels, low=0, high=logits.shape[1] - 1)     # another label is not a class, and never right
        own = ops.gather(logits, 1, known.reshape(-1, 1))
        reached = ops.where(logits < own, 0.0, 1.0).sum(axis=1)        # the label's own among them; NaN too
        right = ops.where(ops.eq(labels, known) & (reached <= k), 1.0, 0.0)
        if ignore_index is None:
            return right.mean()
        counts = ops.where(ops.eq(labels, ignore_index), 0.0, 1.0)
        share = (right * counts).sum() / ops.maximum(counts.sum(), 1.0)
        share.weights = counts
        return share
    return top_k


class WholeSet:
    """A metric of `fit` and `evaluate` that is not a mean over batches: function(outputs, targets) of all test images
    at once, NumPy arrays (or tuples or dicts of them, as the model and the loader give) -> one number. An epoch has it
    as `test_<name>`; it is not measured on training images, since the net changes at each step.

    >>> spread = WholeSet(lambda outputs, targets: np.ptp(outputs[:, 0]).item())
    >>> spread(np.eye(2), None)
    1.0
    """

    def __init__(self, function: Function):
        if not callable(function) or isinstance(function, type):
            raise TypeError(f"WholeSet: function is {function!r} but must be a function of (outputs, targets)")
        self.function = function

    def __call__(self, outputs: Parts, targets: Parts) -> Any:
        return self.function(outputs, targets)


def of_sklearn(name: str, outputs_as: Callable[[np.ndarray], np.ndarray], ignore_index: int | None, *,
               of_classes: bool = False, **options: str) -> WholeSet:
    """sklearn.metrics.<name>(labels, what `outputs_as` makes of the logits). of_classes: labels of three classes and
    more are given as a column of 0 and 1 for each class."""
    try:
        function = getattr(importlib.import_module("sklearn.metrics"), name)
    except ImportError:
        raise ImportError(f"training.{name}: scikit-learn is not installed; run {install('metrics')}") from None

    def measure(outputs: np.ndarray, labels: np.ndarray) -> Any:
        if outputs.size == len(outputs) == labels.size:        # one logit: of class 1, that of class 0 is 0
            labels = labels.reshape(-1)
            outputs = np.stack([np.zeros_like(labels, outputs.dtype), outputs.reshape(-1)], axis=1)
        if outputs.ndim != 2 or labels.shape != outputs.shape[:1]:
            raise ValueError(f"training.{name}: outputs have shape {outputs.shape} and labels {labels.shape} but must "
                             "be logits (n,classes) and (n,), or one logit for each label; write a training.WholeSet "
                             "of your own")
        counts = labels != ignore_index
        labels, outputs = labels[counts], outputs[counts]
        if of_classes and outputs.shape[1] > 2:
            labels = labels[:, None] == np.arange(outputs.shape[1])
        return function(labels, outputs_as(outputs), **options)
    return WholeSet(measure)


def f1_score(average: str = "macro", ignore_index: int | None = None) -> WholeSet:
    """A metric for `fit`: the F1 score of logits (n,classes) and labels (n,) over the whole test set, by scikit-learn
    (extra `metrics`); also of one logit for each label of 0 or 1, (n,) or (n,1). average: as in scikit-learn, "macro",
    "micro" or "weighted". ignore_index: the label of images that do not count."""
    return of_sklearn("f1_score", lambda logits: logits.argmax(axis=1), ignore_index, average=average)


def roc_auc_score(average: str = "macro", ignore_index: int | None = None) -> WholeSet:
    """A metric for `fit`: the area under the ROC curve, as `f1_score`; of several classes, one against the rest."""
    def scores(logits: np.ndarray) -> np.ndarray:
        """The logarithm of a class's probability over that of the others: probabilities round to 1, and tie."""
        x = logits.astype(np.float64)
        if x.shape[1] == 2:
            return x[:, 1] - x[:, 0]
        others = [np.logaddexp.reduce(np.delete(x, i, axis=1), axis=1) for i in range(x.shape[1])]
        return x - np.stack(others, axis=1)
    return of_sklearn("roc_auc_score", scores, ignore_index, of_classes=True, average=average)


def apart(functions: Mapping[str, Any]) -> tuple[dict[str, Function], dict[str, WholeSet]]:
    """Metrics that are means over batches, and those of the whole set."""
    whole = {name: each for name, each in functions.items() if isinstance(each, WholeSet)}
    require_free(whole)
    return {name: each for name, each in functions.items() if name not in whole}, whole


def measured(whole: Mapping[str, WholeSet], parts: list[Any]) -> dict[str, float]:
    """Metrics of the whole set, from the outputs and targets of its batches."""
    both = joined(parts) if whole else ()
    found = {name: each(*both) for name, each in whole.items()}
    for name, value in found.items():
        require_number(name, value, "a WholeSet's function must give one number")
    return {name: float(value) for name, value in found.items()}


def joined(parts: list[Any]) -> Any:
    """Batches joined one after the other: arrays, or each part of tuples and dicts.

    >>> joined([(np.zeros(1), np.ones(2)), (np.ones(1), np.ones(1))])
    (array([0., 1.]), array([1., 1., 1.]))
    """
    first = parts[0]
    if isinstance(first, np.ndarray) and not first.shape:
        raise ValueError("WholeSet: the model answers with one number, of shape (), to a batch, but each of its "
                         "answers must have an axis of items; leave it out in evaluation, or give one for each item")
    if isinstance(first, dict):
        return {name: joined([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple):
        return tuple(joined(list(each)) for each in zip(*parts, strict=True))
    return np.concatenate(parts)


def line_of(metrics: Metrics, epochs: int) -> str:
    """An epoch's metrics as a line to print."""
    def shown(name: str) -> str:
        value, title = metrics[name], name.removeprefix("train_").replace("_", " ")
        return f"{title} {100 * value:.2f} %" if name.endswith("accuracy") else f"{title} {value:.4f}"

    facts = [shown(name) for name in metrics if name.startswith(("train_", "test_"))]
    return (f"epoch {metrics['epoch']:2}/{epochs}: {', '.join(facts)}, lr {metrics['lr']:.3g}, "
            f"{metrics['seconds']:.1f} s, {metrics['images_per_second']:.0f} images/s")


def show(text: str) -> None:
    """Print a line, if there is a stdout."""
    if can_print(sys.stdout):
        print(text)


class Progress:
    """A tqdm bar per epoch with loss, accuracy, images/s and time left: on stderr in a terminal, or in a notebook;
    silent elsewhere, also without a stderr. done: how many images were seen before. unit: what is counted, if not
    images."""

    def __init__(self, title: str, images: int, enabled: bool, done: int = 0, unit: str = "image"):
        self.bar: tqdm | None = None
        if enabled and can_print(sys.stderr):
            from tqdm.auto import tqdm

            self.bar = tqdm(total=images, initial=done, desc=title, unit=unit, unit_scale=unit == "image",
                            leave=False, disable=None)

    def update(self, images: int, means: Mapping[str, float]) -> None:
        """Add images, and show the means so far, if they are known."""
        if self.bar is not None:
            if means:
                self.bar.set_postfix({name: f"{100 * value:.2f} %" if name == "accuracy" else f"{value:.4f}"
                                      for name, value in means.items()}, refresh=False)
            self.bar.update(images)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
