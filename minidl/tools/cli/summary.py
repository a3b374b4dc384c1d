"""`minidl summary`: the layers of a zoo model, or of the net in a weights file."""

from __future__ import annotations

import argparse
from dataclasses import asdict

import minidl
from minidl import nn, zoo

from .common import Parser, add_code, add_json, add_model, add_option, run, say, say_json, weights_in


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
    add_model(parser, default=None)
    add_option(parser)
    parser.add_argument("--weights", metavar="FILE", help="the net that a weights file holds, or a run's folder, in "
                        "place of a model")
    add_code(parser)
    parser.add_argument("--input", type=shape, metavar="C,H,W", help="shape of one image, or the columns of a "
                        "table (default: the model's own)")
    add_json(parser)
    return run(parser, argv, command)


def command(args: argparse.Namespace) -> None:
    """Print the table."""
    if (args.model is None) == (args.weights is None):
        raise ValueError("one of --model and --weights must be given")
    if args.weights is not None:
        path = weights_in(args.weights)
        net = minidl.load(path, code=args.code)
        known = minidl.weights.read_metadata(path)
        model = zoo.find(args.code) if args.code else zoo.MODELS[known["model"]]
        channels, *sizes = (known["input"] if args.code else None) or (0,)
        of_file = (channels, *(size + 2 * known["preprocessing"]["padding"] for size in sizes))
    else:
        model, of_file = zoo.find(args.model), (0,)
        net = model.build(**{**(model.of_data(args.input) if args.input else {}), **args.option})
    own = net.model_args.get(model.reads, model.shape[0]), *model.shape[1:]
    wanted = args.input or (of_file if of_file[0] else model.item(own, **net.model_args))
    if 0 in wanted:
        raise ValueError(f"{model.name} does not say the shape of what it reads; name it: --input 3,32,32")
    found = nn.summary(net, wanted)
    say_json(asdict(found)) if args.json else say(str(found))
