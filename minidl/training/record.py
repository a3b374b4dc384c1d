"""What a run leaves written of itself: of its machine and its command, as its config.json tells them, and of the inside
of the training, as a report shows it: losses and rates of its steps, statistics of its weights."""

from __future__ import annotations

import functools
import math
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import nn
from ..core.device import Array, to_numpy
from ..core.tensor import Tensor
from ..data.once import once
from ..distributed import current
from .callbacks import Step
from .metrics import Metrics

if TYPE_CHECKING:
    from .run_folder import RunFolder

FILE = "statistics.jsonl"                  # in the run folder, a line per epoch
MAX_POINTS = 400                           # losses of an epoch that are written: if more, neighbours are averaged
MAX_WEIGHTS = 24                           # Tensors that are looked at: if more, some of them
MAX_VALUES = 2**16                         # values of a Tensor that are looked at: if more, each k-th
BINS = 40                                  # of a histogram
# Seconds between two looks at the loss. One takes 10 us; on a GPU it waits for all steps that were started, and on
# several ranks all of them take part.
PAUSE, LONG_PAUSE = 0.001, 0.1
ALLOWED, SHARE = 0.01, 0.005               # seconds, and share of the time, that statistics of weights may take
WRITE_EVERY = 10.0                         # seconds, in an epoch that takes long


class Record:
    """What a run folder that knows its net records of each step and epoch. It writes statistics.jsonl there, from which
    `plot.report` draws the losses and rates of steps, and the sizes of gradients, updates and weights.

    Losses are means over the images since the loss before. There is one for each step, except for steps that take less
    than 1 ms, or 100 ms on a GPU, and one at the end of each epoch. For each weight with two or more axes it writes, at
    the first step of an epoch, the norm of the gradient, and the norm of the update as a share of the weight's norm; at
    the end of an epoch it writes the weight's histogram. For weights with over 65,536 values, these are of some of the
    values. It takes under 1 % of a training of some seconds: if epochs are short, some of them have no statistics of
    weights. The training itself is not changed: its weights have the same bits.

    At the end of the folder's `with` it writes what is known of an epoch that was cut short, and by what.
    """

    def __init__(self, folder: RunFolder, model: nn.Module):
        self.folder, self.model, self.append = folder, model, functools.partial(folder.append, FILE, sync=False)
        self.epoch, self.line, self.ranks = 0, dict[str, Any](), current().size        # in a callback it is 1
        self.last: Step | None = None
        self.losses: list[tuple[int, float, float]] = []       # (step, loss, rate)
        self.seen = self.total = 0.0       # images of this epoch, and their loss, up to the last look
        self.before, self.after = dict[str, np.ndarray](), 0   # weights, and after which epoch
        self.looked = self.written = self.begun = 0.0          # when
        self.spent = 0.0                   # seconds, on statistics of weights

    # ------------------------------------------------------------ called by the folder
    def on_train_begin(self) -> None:
        """Describe the weights before the first step, unless the run goes on."""
        slow = self.ranks > 1 or any(p.device != "cpu" for p in self.model.parameters())
        self.pause = LONG_PAUSE if slow else PAUSE
        self.begun = self.written = time.perf_counter()
        self.epoch, self.last, self.line = 0, None, {}         # another fit may have been here before
        weights = self._timed(self._weights)
        if (self.folder.path / FILE).exists():
            self.written = -math.inf       # the first step writes: no line says any more that the run has ended
        else:
            self.append({"epoch": 0, "origin": origin(), "weights": weights})

    def on_step_end(self, step: Step) -> None:
        """Note the loss and the rate, and at an epoch's first step its gradients and updates."""
        now = time.perf_counter()
        if step.epoch != self.epoch:
            if not self.epoch:             # the weights are those of the beginning
                self.after = step.epoch - 1
            self.epoch, self.losses, self.seen, self.total = step.epoch, [], 0.0, 0.0
            self.line = {"epoch": step.epoch}
            if step.batch > 1:             # the run goes on in the middle of an epoch
                self.seen, self.total = step.images, step.means()["loss"] * step.images
        if step.batch == 1:
            self.line |= self._timed(self._updates)
        self.last = step
        if now - self.looked >= self.pause:
            self._look(step)
            self.looked = now
            if now - self.written >= WRITE_EVERY:
                self._write()

    def on_epoch_end(self, metrics: Metrics) -> None:
        """Write the epoch's line, with the loss of the steps since the last look: the metrics know it, so that no rank
        has to be asked."""
        if self.last is not None and {"train_loss", "lr"} <= metrics.keys():
            self._look(self.last, metrics)
        self.line = {"epoch": metrics["epoch"], **self.line, "weights": self._timed(self._weights)}
        self._write()
        self.line = {}                     # nothing is left to be written

    def ended(self, error: BaseException | None) -> None:
        """Write what is known of an epoch that was cut short."""
        if self.line and self.last is not None and error is not None:
            self.line["ended"] = str(error)[:1000] or type(error).__name__
            with suppress(Exception):      # the user is told of the first error, whatever else fails
                if current().size == 1:    # other ranks may have ended, and do not help
                    self._look(self.last)
            with suppress(OSError):
                self._write()

    # ------------------------------------------------------------ what is looked at
    def _look(self, step: Step, metrics: Metrics | None = None) -> None:
        if step.images == self.seen:
            return
        loss, lr = (step.means()["loss"], step.lr()) if metrics is None else (metrics["train_loss"], metrics["lr"])
        total = loss * step.images
        self.losses.append((step.step, (total - self.total) / (step.images - self.seen), lr))
        self.seen, self.total = step.images, total

    def _timed(self, look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What a look at the weights finds; after the first epoch nothing if the looks before took too long."""
        begin = time.perf_counter()
        if self.epoch > 1 and self.spent > ALLOWED + SHARE * (begin - self.begun):
            return {}
        found = look()
        self.spent += time.perf_counter() - begin
        return found

    def _matrices(self) -> dict[str, Any]:
        found = {name: p for name, p in self.model.named_parameters() if p.ndim > 1}
        every = -(-len(found) // MAX_WEIGHTS) or 1
        return dict(list(found.items())[::every])

    def _weights(self) -> dict[str, Any]:
        self.before = {name: _some(p.data) for name, p in self._matrices().items()}
        self.after = self.epoch
        return {name: _histogram(values) for name, values in self.before.items()}

    def _updates(self) -> dict[str, Any]:
        gradients, updates = dict[str, Any](), dict[str, Any]()
        for name, p in self._matrices().items():
            if p.grad is not None:
                gradients[name] = _number(_norm(_some(p.grad.data)) * _scale(p.size))
            old = self.before.get(name)
            if old is not None and self.after == self.epoch - 1:
                update = _some(p.data) - old
                share = _norm(update) / (_norm(old) or 1.0)
                updates[name] = {"share": _number(share), **_histogram(update)}
        return {"gradients": gradients, "updates": updates}

    # ------------------------------------------------------------ what is written
    def _write(self) -> None:
        every = -(-len(self.losses) // MAX_POINTS) or 1
        groups = [self.losses[i:i + every] for i in range(0, len(self.losses), every)]
        self.append({**self.line, "step": [group[-1][0] for group in groups],
                      "loss": [_number(sum(loss for _, loss, _ in group) / len(group)) for group in groups],
                      "lr": [_number(group[-1][2]) for group in groups]})
        self.written = time.perf_counter()


def _some(array: Array) -> np.ndarray:
    """Each k-th value, on the host; always a copy."""
    flat = array.reshape(-1)
    return np.array(to_numpy(flat[::-(-flat.size // MAX_VALUES) or 1]), np.float64)


def _norm(values: np.ndarray) -> float:
    """By minidl's own op: NumPy's would wake a thread of BLAS per core, which waits for more by working."""
    return float(Tensor(values).norm().item())


def _scale(size: int) -> float:
    """The factor from the norm of some values to that of all."""
    every = -(-size // MAX_VALUES) or 1
    return math.sqrt(size / (-(-size // every) or 1))


def _histogram(values: np.ndarray) -> dict[str, Any]:
    """A histogram's ends and counts, of finite values, and how many values are not finite."""
    finite = values[np.isfinite(values)].astype(np.float64).clip(-1e300, 1e300)
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    if finite.size and high - low <= max(1e-300, 1e-9 * max(-low, high)):          # all the same, or nearly
        low, high = low - max(0.5, abs(low) / 2), high + max(0.5, abs(high) / 2)
    counts, _ = np.histogram(finite, np.linspace(low, high, BINS + 1))     # sorts: half the time of (low, high)
    return {"low": _number(low), "high": _number(high), "counts": counts.tolist(),
            "not_finite": values.size - finite.size}


def _number(value: float) -> float | None:
    """The value with five digits; None if it is not finite, which JSON does not have."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


# ---------------------------------------------------------------------- where and how it ran
def machine() -> dict[str, Any]:
    """{"system", "processor", "cores"}, with CUDA in use also {"gpu", "cupy", "cuda", "driver"}: for a run's record.

    cores: those that this process may use. Nothing is imported that is not in use.

    >>> sorted(machine())[:3]
    ['cores', 'processor', 'system']
    """
    processor = platform.processor()
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        processor = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), processor)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {"system": platform.platform(), "processor": processor or platform.machine(), "cores": cores}
    if (cupy := sys.modules.get("cupy")) is not None:
        runtime = cupy.cuda.runtime
        with suppress(runtime.CUDARuntimeError):       # CuPy is there, but no GPU
            found |= {"gpu": _name_of_gpu(runtime, runtime.getDevice()), "cupy": cupy.__version__,
                      "cuda": runtime.runtimeGetVersion(), "driver": runtime.driverGetVersion()}
    return found


@functools.cache
def _name_of_gpu(runtime: ModuleType, number: int) -> str:
    """Asked for once: processes on one GPU take turns at this."""
    name: bytes = runtime.getDeviceProperties(number)["name"]
    return name.decode()


def origin() -> dict[str, str]:
    """{"started", "command", "commit"}: when this process began to train, by which command line, and the commit of the
    user's git repository, with "changed" if files differ from it: for a run's record.

    What is not known is left out: a notebook has no command, and not each folder is in a repository.
    """
    found = {"started": time.strftime("%Y-%m-%d %H:%M:%S %z"), "command": shlex.join(sys.orig_argv)}
    return found | once(origin, _commit)   # it takes as long as some hundred steps: in a sweep it is asked once


def _commit() -> dict[str, str]:
    with suppress(OSError, subprocess.SubprocessError):
        script = sys.argv[0].endswith(".py") and "__main__" not in sys.argv[0]
        place = os.path.dirname(os.path.abspath(sys.argv[0])) if script else os.getcwd()
        asked = ("git", "-C", place, "describe", "--always", "--dirty= (changed)", "--abbrev=12", "--exclude=*")
        told = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True)
        return {"commit": told.stdout.strip()}
    return {}
