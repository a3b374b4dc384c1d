"""`minidl plot`: pictures and the report of a run folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from .common import Parser, add_code, run, say


def main(argv: list[str] | None = None, prog: str = "minidl plot") -> int:
    """Run with these arguments; returns the exit status."""
    parser = Parser(prog=prog, description="Draw curves.png, filters.png, confusion.png and report.html into a run "
                    "folder. Needs the extra plot.")
    parser.add_argument("run", metavar="RUN", help="a run folder, as minidl train writes it")
    add_code(parser)
    return run(parser, argv, command)


def command(args: argparse.Namespace) -> None:
    """Draw, and name the files."""
    if not Path(args.run).is_dir():
        raise FileNotFoundError(f"{args.run} is not a folder; name a run folder, such as runs/lenet5-mnist")
    from minidl import plot

    for path in plot.pictures(args.run, code=args.code):
        say(str(path))
