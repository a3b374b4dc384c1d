"""The command line: `minidl` and `python -m minidl`. One file per command, imported when it is asked for."""

from __future__ import annotations

import importlib
import sys

COMMANDS: dict[str, str] = {               # each is a module of this package with a main(argv, prog)
    "train": "train a model of the zoo, or a net of your own, and write a run folder",
    "predict": "classes and probabilities of pictures, by a weights file",
    "report": "report.html of a run folder, also while it trains",
    "runs": "the runs of a folder: what differs, how good they are",
    "plot": "curves, filters, confusion matrix and report of a run folder",
    "profile": "the calls of a net's training step: time, bytes, FLOP, limit",
    "summary": "a model's layers: shapes, parameters, multiply-adds, memory",
    "models": "the models of the zoo and their recipes",
    "data": "the data sets: where they are found, or fetch them",
    "doctor": "what this machine has and lacks, and what cures it",
    "emulate": "run a CUDA kernel on the CPU, see what is wrong with it and what its accesses cost",
    "lab": "the labs of the course: start, check, grade",
    "check": "compare kernels of your own with the op that they compute, with a GPU or without",
    "check-conv": "the same, by its name of old",
}


def usage() -> str:
    """What `minidl --help` prints."""
    rows = "\n".join(f"  {name:12}{what}" for name, what in COMMANDS.items())
    return ("usage: minidl COMMAND [flags]\n\nA minimal deep-learning framework.\n\n"
            f"{rows}\n\nminidl COMMAND --help says more; minidl --version names the version.")


def main(argv: list[str] | None = None) -> int:
    """Run a command with these arguments, else those of the process; returns the exit status.

    Ctrl-C is a line and status 130 if the arguments are the process's, and KeyboardInterrupt if a program gives them.
    """
    from .common import complain, interrupted, meant, say

    flags = sys.argv[1:] if argv is None else argv
    name = flags[0] if flags else ""
    if name in ("-h", "--help", "help"):
        say(usage())
        return 0
    if name == "--version":
        from ...core.version import __version__

        say(f"minidl {__version__}")
        return 0
    if name not in COMMANDS:
        text = (f"{f'{name!r} is not a command' if name else 'no command is given'}; it must be one of "
                f"{', '.join(COMMANDS)}")
        complain(f"error: {text}{meant(text)}; see minidl --help", prog="minidl")
        return 2
    command = importlib.import_module(f".{name.removesuffix('-conv').replace('-', '_')}", __name__)
    try:
        return command.main(flags[1:], prog=f"minidl {name}")
    except KeyboardInterrupt as stop:
        return interrupted(stop, argv)
