"""`minidl report`: the report of a run folder, once or while the run goes on."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from minidl import plot
from minidl.training import read_statistics

from .common import Parser, add_code, run, say

EVERY = 5                                  # seconds between two reports of a run that goes on


def main(argv: list[str] | None = None, prog: str = "minidl report") -> int:
    """Run with these arguments; returns the exit status."""
    parser = Parser(prog=prog, description="Write report.html into a run folder: curves, classes, mistakes, layers, "
                    "weights. It is one file, which needs no network.")
    parser.add_argument("run", metavar="RUN", help="a run folder, as minidl train writes it")
    add_code(parser)
    parser.add_argument("--live", action="store_true", help=f"write it again every {EVERY} s until the run ends, or "
                        "Ctrl-C; a browser that shows it follows")
    return run(parser, argv, command)


def command(args: argparse.Namespace) -> None:
    """Write, and name the file."""
    folder = Path(args.run)
    if not folder.is_dir():
        raise FileNotFoundError(f"{args.run} is not a folder; name a run folder, such as runs/lenet5-mnist")
    try:
        while args.live and not ended(folder):
            path = plot.report(folder, live=EVERY, code=args.code)
            say(f"{path}, after {len(read_statistics(folder))} lines of statistics")
            time.sleep(EVERY)
    finally:
        say(str(plot.report(folder, code=args.code)))


def ended(folder: Path) -> bool:
    """Whether a run has its weights, or was cut short, since it last began."""
    weights, config = folder / "weights.h5", folder / "config.json"
    begun = config.stat().st_mtime_ns if config.exists() else 0
    return (weights.exists() and weights.stat().st_mtime_ns >= begun) or (
        "ended" in (read_statistics(folder) or [{}])[-1])
