"""Test accuracy and time of the zoo's recipes: train.py, once for each seed.

    python benchmarks/accuracy.py --device cuda --seeds 5 --data-dir <folder>
    python benchmarks/accuracy.py --device cpu --models lenet5 --seeds 3 --data-dir <folder>
    python benchmarks/accuracy.py --device cuda --models mlp --data-dir <folder>  # the 2009 report: 10,000 hidden units

Each seed is a process of its own, one after the other. Accuracy is that of the last epoch; seconds are those of all
epochs, with evaluation and whatever is compiled on the way. Images/s are of training alone, the median of all epochs
but the first two.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))                                  # minidl and zoo as they lie here, installed or not

import results  # noqa: E402
from results import Result, digits  # noqa: E402
from train_step import names, parser, positive, publish  # noqa: E402

from minidl import zoo  # noqa: E402
from minidl.training import read_metrics  # noqa: E402


def trained(model: str, seed: int, args: argparse.Namespace) -> Result:
    """One row: what train.py has put into its run folder."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        options = {"--data-dir": args.data_dir, "--epochs": args.epochs, "--precision": args.precision}
        given = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
        subprocess.run([sys.executable, str(ROOT / "train.py"), "--model", model, "--device", args.device, "--seed",
                        str(seed), "--output-dir", str(folder), "--no-progress", *given], check=True)
        epochs, config = read_metrics(folder), json.loads((folder / "config.json").read_text(encoding="utf-8"))
    later = [epoch["images_per_second"] for epoch in epochs[2:]]
    return {"model": model, "precision": config["precision"], "data": config["data"], "epochs": len(epochs),
            "seed": seed, "accuracy": epochs[-1]["test_accuracy"],
            "seconds_s": sum(epoch["seconds"] for epoch in epochs),
            "images_per_s": statistics.median(later) if later else None, "train_images": config["train_images"]}


def measure(args: argparse.Namespace, peers: Sequence[str]) -> Result:
    return {**results.about("accuracy", peers, args.device, args.threads, seeds=args.seeds),
            "rows": [trained(model, seed, args)
                     for model, seed in itertools.product(args.models, range(args.seeds))]}


def report(several: Sequence[Result]) -> list[str]:
    """One line for each model and number of epochs, its seeds beside each other."""
    body = []
    rows = [row for result in several for row in result["rows"]]
    for key in dict.fromkeys(map(alike, rows)):
        of = [row for row in rows if alike(row) == key]
        seconds = [row["seconds_s"] for row in of if row["seconds_s"] is not None]
        rates = [row["images_per_s"] for row in of if row["images_per_s"] is not None]
        rate = statistics.median(rates) if rates else 0
        body.append([*map(str, key), ", ".join(f"{100 * row['accuracy']:.2f}" for row in of),
                     f"{mean_accuracy(of):.2f}", f"{standard_error(of):.2f}" if len(of) > 1 else "",
                     results.span(min(seconds), max(seconds)) if seconds else "",
                     f"{rate:,.0f}" if rates else "", digits(of[0]["train_images"] / rate) if rates else ""])
    return [*results.table("model, precision, data, epochs, test accuracy % (each seed), mean %, its standard error, "
                           "all epochs s, images/s, s per epoch (training alone)", body, 3), *results.facts(several)]


def alike(row: Result) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("model", "precision", "data", "epochs"))


def mean_accuracy(rows: Sequence[Result]) -> float:
    """In percent."""
    return 100 * statistics.mean(row["accuracy"] for row in rows)


def standard_error(rows: Sequence[Result]) -> float:
    """Of the mean, in percent; of two rows or more."""
    return 100 * statistics.stdev(row["accuracy"] for row in rows) / math.sqrt(len(rows))


def main(argv: Sequence[str] | None = None) -> None:
    flags = parser(__doc__, dict.fromkeys(zoo.MODELS))
    flags.set_defaults(models=names(dict.fromkeys(zoo.MODELS))("lenet5,krizhevsky2009"), peers=[])
    flags.add_argument("--seeds", type=positive, default=5, help="how many, from 0 on")
    flags.add_argument("--epochs", type=positive, help="the recipe's by default")
    flags.add_argument("--precision", help="train.py's by default")
    flags.add_argument("--data-dir", metavar="DIR", help="where the data sets lie, as train.py has it")
    publish(measure, report, flags.parse_args(argv))


if __name__ == "__main__":
    main()
