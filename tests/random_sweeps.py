"""Random sweeps: each net has the bits that it has alone, whatever its neighbours do and whenever it was stopped.

    python tests/random_sweeps.py --sweeps 500 --processes 2 [--seconds 1200] [--device cuda]

A sweep is drawn: the net and its options, data, folds, the optimizer and what is swept of it, schedules, augmentation,
and what ends a net early. Among its nets some diverge, fail, or are stopped by a callback. It is trained in this
process or in two of its own, and interrupted at random steps: by SIGINT, which writes a checkpoint, or, in a process of
its own, by SIGKILL. It goes on until nothing is left. Then each net is trained alone, and weights, metrics and state
are compared.

--sweep N runs one, and prints it.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":                 # the package beside this folder, not an installed one
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from random_nets import timed

import minidl
from minidl import data, nn, ops, training

QUIET: Any = {"progress": False, "say": None}
MOST_TIMES = 40                            # that one sweep is begun again


def build(width: int = 4, layers: str = "plain", classes: int = 3, wrong: bool = False) -> nn.Module:
    if wrong:
        raise RuntimeError("this net cannot be built")
    between = {"plain": [nn.ReLU()], "dropout": [nn.Tanh(), nn.Dropout(0.3)], "images": [nn.Sigmoid()],
               "norm": [nn.BatchNorm1d(width), nn.ReLU()]}[layers]
    first = [nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, width)] if layers == "images" else [
        nn.Flatten(), nn.Linear(64, width)]
    return nn.Sequential(*first, *between, nn.Linear(width, classes))


@dataclass(frozen=True)
class Stops:
    """What `minidl.sweep` takes as callbacks: each net is stopped early, or not, and its process gets a signal at one
    of these steps, of a net, each once."""

    early: bool
    folder: str
    signum: int
    at: tuple[tuple[int, int], ...]        # number of the net that begins, its step

    def __call__(self, net: nn.Module, optimizer: Any, folder: Path) -> list[Any]:
        begun = Path(self.folder) / f"{folder.name}.begun"
        begun.touch()
        numbers = sorted(path.name for path in begun.parent.glob("*.begun"))
        stop = [training.EarlyStop("test_loss", patience=1, better_by=0.05)] if self.early else []
        return stop + [
            Signal(begun.with_suffix(f".{step}"), step, self.signum)
            for number, step in self.at if number == numbers.index(begun.name)]


@dataclass
class Signal:
    """A callback that sends its process a signal after a step, once."""

    mark: Path
    step: int
    signum: int

    def on_step_end(self, step: training.Step) -> None:
        if step.step == self.step and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), self.signum)


@functools.cache
def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(count)
    return rng.integers(0, 256, (count, 1, 8, 8), np.uint8), rng.integers(0, 3, count)


def dataset(count: int, kind: str) -> Any:
    images, labels = digits(count)
    return data.Dataset("drawn", "train", images, labels, ("a", "b", "c")) if kind == "images" else (
        images.astype(np.float32) / 255, labels)


@dataclass(frozen=True)
class Drawn:
    number: int
    kind: str                              # of the data
    fold: int                              # 0: none
    counts: tuple[int, int]
    options: dict[str, Any]                # of `minidl.sweep`, the same for all nets
    swept: dict[str, list[Any]]
    early: bool
    workers: int
    signals: tuple[tuple[int, int], ...]

    def given(self) -> Any:
        parts = [dataset(count, self.kind) for count in self.counts]
        return parts[0] if self.fold else tuple(parts)


def drawn(number: int) -> Drawn:
    rng = random.Random(f"sweeps {number}")
    kind, fold = rng.choice(("images", "arrays")), rng.choice((0, 0, 2, 3))
    optimizer = rng.choice(("sgd", "sgd", "adamw", "rmsprop"))
    lists: dict[str, list[Any]] = {
        "lr": [0.1, rng.choice((0.02, 0.3, 1e38))] if optimizer == "sgd" else [0.01, 0.001],
        "seed": [0, rng.randint(4, 99), 3], "epochs": [1, 4], "batch_size": [8, rng.choice((5, 16, 100))],
        "width": [2, 7], "layers": ["plain", rng.choice(("dropout", "norm", "images"))],
        "schedule": ["constant", rng.choice(("cosine", "linear", "step"))], "weight_decay": [0.0, 0.01],
        "wrong": [False, True]}
    names = rng.sample(["lr", "seed", "epochs", "batch_size", "width", "layers", "schedule", "weight_decay"],
                       rng.choice((1, 1, 2)))
    names += ["wrong"] * (rng.random() < 0.1)
    options = {name: rng.choice(values) for name, values in lists.items() if name not in (*names, "wrong")}
    options |= {"optimizer": optimizer, **({"momentum": 0.9} if optimizer == "sgd" and rng.random() < 0.5 else {}),
                "loader": {"augment": data.Augment(flip=True)} if kind == "images" and rng.random() < 0.4 else {},
                "metrics": {"error": error} if rng.random() < 0.3 else None}
    return Drawn(number, kind, fold, (rng.randint(20, 70), rng.randint(3, 20)), options,
                 {name: lists[name] for name in names}, rng.random() < 0.4, rng.choice((0, 0, 0, 2)),
                 tuple((rng.randint(0, 3), rng.randint(1, 6)) for _ in range(rng.randint(1, 4))))


def error(outputs: Any, targets: Any) -> Any:
    return ops.where(ops.eq(outputs.argmax(axis=1), targets), 0.0, 1.0).mean()


def kept(folder: Path) -> Any:
    """What is to be the same: weights, and the metrics of each epoch but for times."""
    metrics = training.read_metrics(folder) if (folder / "metrics.jsonl").exists() else []
    same = ("train_", "test_", "lr", "epoch", "step")
    lines = [{name: value for name, value in line.items() if name.startswith(same)} for line in metrics]
    weights = folder / "weights.h5"
    return json.dumps(lines), weights.read_bytes() if weights.exists() else b""


def differences(each: Drawn, place: Path, device: str) -> list[str]:
    """Of each net that is not what it is alone, what differs."""
    stops = Stops(each.early, str(place / "marks"), signal.SIGKILL if each.workers else signal.SIGINT, each.signals)
    (place / "marks").mkdir()
    fold = {"fold": each.fold} if each.fold else {}
    quiet = {"device": device, **QUIET}
    for _ in range(MOST_TIMES):
        try:
            found = minidl.sweep(build, each.given(), **each.options, **each.swept, **fold, callbacks=stops,
                                 folder=place / "all", workers=each.workers, resume=True, **quiet)
        except KeyboardInterrupt:
            continue
        if not any("its process ended" in row["why"] for row in found.rows):
            break
    else:
        return [f"was begun {MOST_TIMES} times and has not ended"]
    wrong = []
    for row in found.rows:
        settings = {name: row["settings"][name] for name in each.swept}
        if each.fold:                      # a fold by itself: its parts as the two sets
            settings["fold"] = each.fold
        alone = minidl.sweep(build, each.given(), **each.options, **settings, callbacks=Stops(each.early, str(
            place / "marks"), 0, ()), folder=place / "alone", workers=0, **quiet)
        own = alone.rows[0] if not each.fold else next(
            other for other in alone.rows if other["settings"]["fold"] == row["settings"]["fold"])
        if (own["state"], own["why"]) != (row["state"], row["why"]):
            wrong.append(f"{row['net']}: {row['state']} ({row['why']}) and alone {own['state']} ({own['why']})")
        elif kept(Path(own["folder"])) != kept(Path(row["folder"])):
            wrong.append(f"{row['net']}: other weights or metrics than alone")
        shutil.rmtree(place / "alone")
    return wrong


def check(number: int, device: str = "cpu") -> tuple[int, list[str], Counter[str]]:
    """(number, what differs, how many nets and signals there were)"""
    each = drawn(number)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        wrong = differences(each, Path(folder), device)
        states = [row["state"] for row in training.read_metrics(Path(folder) / "all", "sweep.jsonl")]
        signals = sum(path.suffix != ".begun" for path in (Path(folder) / "marks").iterdir())
        return number, wrong, Counter({"sweeps": 1, "that differ": len(wrong) > 0, "signals": signals,
                                       "nets": len(states), **Counter(states)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=100)
    parser.add_argument("--sweep", type=int, help="run and print this one alone")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after so long")
    given = parser.parse_args()
    numbers = range(given.sweeps) if given.sweep is None else [given.sweep]
    if given.sweep is not None:
        print(drawn(given.sweep))
    tally: Counter[str] = Counter()
    # Its processes may have some of their own, which those of a multiprocessing.Pool may not.
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn")) as pool:
        for number, found, counts in timed(
                pool.map(functools.partial(check, device=given.device), numbers), len(numbers), given.seconds):
            tally += counts
            for line in found:
                print(f"sweep {number}: {line}", flush=True)
        pool.shutdown(cancel_futures=True)
    print(", ".join(f"{tally[name]} {name}" for name in (
        "sweeps", "that differ", "nets", "signals", "finished", "diverged", "failed")))
    return int(tally["that differ"] > 0)


if __name__ == "__main__":
    sys.exit(main())
