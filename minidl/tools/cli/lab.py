"""`minidl lab`: the labs of the course. Their engine is next to them, in course/labkit."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from .common import Parser, run

HELP = """\
  minidl lab                             the labs, and how far the files here are
  minidl lab start N [FOLDER]            copy a lab's page, starting file and checks
  minidl lab check N [FILE]              its steps, with points, and the first fault
  minidl lab grade N FOLDER --json FILE  the same for each submission of a class"""


def main(argv: list[str] | None = None, prog: str = "minidl lab") -> int:
    """Run with these arguments; returns the exit status, 1 if a lab is not passed."""
    course = found(Path.cwd())
    if course is None:
        parser = Parser(prog=prog, description="The labs of the course.", epilog=HELP,
                        formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("rest", nargs="*", help="see below")
        return run(parser, argv, lambda args: _missing())
    sys.path.insert(0, str(course))
    return int(importlib.import_module("labkit.commands").main(argv, prog, course))


def found(here: Path) -> Path | None:
    """The folder of labs that is here, or in course/, or that holds this one."""
    for folder in (here, *here.parents):
        for each in (folder, folder / "course"):
            if (each / "labkit" / "commands.py").is_file():
                return each
    return None


def _missing() -> int:
    raise FileNotFoundError("lab: there are no labs here; run this in a checkout of minidl, or in a folder that minidl "
                            "lab start has made")
