"""`minidl summary`: the layers of a model of the zoo, of a net of one's own, or of the net in a weights file."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from minidl import nn

from .common import Parser, add_json, add_net, net_of, run, say, say_json


def main(argv: list[str] | None = None, prog: str = "minidl summary") -> int:
    """Run with these arguments; returns the exit status."""
    parser = Parser(prog=prog, description="Print a net's layers: output shapes, parameters, multiply-adds, memory.",
                    epilog="In Python: minidl.nn.summary(net, (3, 32, 32)).")
    add_net(parser)
    add_json(parser)
    return run(parser, argv, command)


def command(args: argparse.Namespace) -> None:
    """Print the table."""
    _, net, shape = net_of(args)
    found = nn.summary(net, shape)
    say_json(asdict(found)) if args.json else say(str(found))
