"""`minidl models`: the models of the zoo and their recipes."""

from __future__ import annotations

from .common import Parser, run
from .train import list_models


def main(argv: list[str] | None = None, prog: str = "minidl models") -> int:
    """Run with these arguments; returns the exit status."""
    parser = Parser(prog=prog, description="Name the models of the zoo and the recipes that they are trained by.",
                    epilog="minidl summary --model NAME prints the layers of one.")
    return run(parser, argv, lambda args: list_models())
