"""`minidl runs`: the run folders in a folder, side by side."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minidl.tools.plot.figures import short, write
from minidl.tools.plot.page import MACHINE, ORIGIN, Run, best, overlay
from minidl.training import read_config, read_metrics, read_statistics

from .common import Parser, add_json, complain, run, say, say_json

FACTS = {*ORIGIN, *MACHINE, "machine", "output_dir", "data_asked", "data_source", "data_note", "train_images", "epochs",
         "program", "test_images", "save_every", "tensorboard", "threads", "data_dir", "preprocessing"}    # no settings
PAGE = "runs.html"


def main(argv: list[str] | None = None, prog: str = "minidl runs") -> int:
    """Run with these arguments; returns the exit status."""
    parser = Parser(prog=prog, description="List the run folders in a folder, the best first: the settings in which "
                    "they differ, the best epoch, the time.")
    parser.add_argument("folder", nargs="?", default="runs", help="(default: %(default)s)")
    parser.add_argument("--best", action="store_true", help="name the best one alone")
    parser.add_argument("--curves", action="store_true", help=f"draw their curves over one another, into {PAGE} in the "
                        "folder")
    add_json(parser)
    return run(parser, argv, command)


def command(args: argparse.Namespace) -> None:
    """Print the table, or what the flags name in its place."""
    folder = Path(args.folder)
    runs = ranked(folder)
    if not runs:
        raise FileNotFoundError(f"{folder} holds no run folder; name a folder of them, such as runs")
    if args.best:
        runs = dict(list(runs.items())[:1])
    names = differing(runs)
    rows = [{"run": str(folder / name), **{each: of.config.get(each) for each in names}, **outcome(of)}
            for name, of in runs.items()]
    head = list(rows[0])
    lines = [[short(shown(row[name]), 60) for name in head] for row in rows]
    if args.curves:
        say(str(write(folder / PAGE, overlay(str(folder), runs, (head, lines)).encode())))
    elif args.json:
        say_json(rows)
    elif args.best:
        say(rows[0]["run"])
    else:
        say("\n".join(aligned(head, lines)))


def aligned(head: Sequence[str], lines: list[list[str]], numbers: int = 0) -> list[str]:
    """A table's lines, its columns below each other, the last `numbers` to the right."""
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    sides = ["<"] * (len(head) - numbers) + [">"] * numbers
    return ["  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)).rstrip()
            for line in (head, *lines)]


def ranked(folder: Path) -> dict[str, Run]:
    """By their names, those with the highest test accuracy first, then those with the lowest test loss."""
    found = dict[str, Run]()
    for path in sorted({file.parent for name in ("metrics.jsonl", "config.json") for file in folder.glob(f"*/{name}")}):
        try:
            config = read_config(path / "config.json") if (path / "config.json").exists() else {}
            metrics = read_metrics(path) if (path / "metrics.jsonl").exists() else []
            found[path.name] = Run(path, config, metrics, read_statistics(path), [])
        except (ValueError, OSError) as error:
            complain(f"warning: {path} is left out: {error}")
    return dict(sorted(found.items(), key=lambda item: place(outcome(item[1]))))


def place(row: dict[str, Any]) -> tuple[int, float]:
    """The key by which an `outcome` is sorted."""
    if row["best"] is None:
        return 2, 0.0
    return (0, -row["best"]) if row["of"] == "test_accuracy" else (1, row["best"])


def differing(runs: dict[str, Run]) -> list[str]:
    """The settings that are not the same in all that have them."""
    names = dict.fromkeys(name for of in runs.values() for name in of.config if name not in FACTS)
    return [name for name in names if len({json.dumps(of.config[name], sort_keys=True)
                                           for of in runs.values() if name in of.config}) > 1]


def outcome(of: Run) -> dict[str, Any]:
    """The best epoch, what it reached, and how long all took."""
    at = best(of)
    found: dict[str, Any] = {"best": None, "of": None, "epoch": None, "epochs": len(of.metrics)}
    if at:
        found |= {"best": of.metrics[at[0]][at[1]], "of": at[1], "epoch": at[0] + 1}
    seconds = [m["seconds"] for m in of.metrics if isinstance(m.get("seconds"), (int, float))]
    started = next((line["origin"].get("started") for line in of.statistics if isinstance(line.get("origin"), dict)),
                   None)
    return {**found, "seconds": round(sum(seconds), 1), "started": started}


def shown(value: object) -> str:
    """A setting or a number, in few letters."""
    if isinstance(value, dict) and "sha256" in value:          # of the code of a net of one's own
        value = str(value["sha256"])[:12]
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else value if isinstance(
        value, str) else json.dumps(value)
