"""`minidl summary`: the layers of a zoo model, or of the net in a weights file."""

from __future__ import annotations

import argparse
from dataclasses import asdict

import minidl
from minidl import nn, zoo

from .common import Parser, add_json, add_option, run, say, say_json


def shape(text: str) -> tuple[int, ...]:
    """An argparse type: "3,32,32".

    >>> shape("3,32,32")
    (3, 32, 32)
    """
    sizes = tuple(int(size) if size.strip().isdigit() else 0 for size in text.split(","))
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape, ints of at least 1 such as 3,32,32")
    return sizes


def main(argv: list[str] | None = None, prog: str = "minidl summary") -> int:
    """Run with these arguments; returns the exit status."""
    parser = Parser(prog=prog, description="Print a net's layers: output shapes, parameters, multiply-adds, memory.",
                    epilog="In Python: minidl.nn.summary(net, (3, 32, 32)).")
    parser.add_argument("--model", choices=zoo.MODELS, help="a model of the zoo")
    add_option(parser)
    parser.add_argument("--weights", metavar="FILE", help="the net that a weights file holds, in place of --model")
    parser.add_argument("--input", type=shape, metavar="C,H,W", help="shape of one image, or the columns of a "
                        "table (default: the model's own)")
    add_json(parser)
    return run(parser, argv, command)


def command(args: argparse.Namespace) -> None:
    """Print the table."""
    if (args.model is None) == (args.weights is None):
        raise ValueError("one of --model and --weights must be given")
    if args.weights is not None:
        net = minidl.load(args.weights)
    else:
        of_input = {zoo.MODELS[args.model].reads: args.input[0]} if args.input else {}
        net = zoo.build(args.model, **{**of_input, **args.option})
    known = zoo.MODELS[net.model_name]
    found = nn.summary(net, args.input or (net.model_args[known.reads], *known.shape[1:]))
    say_json(asdict(found)) if args.json else say(str(found))
