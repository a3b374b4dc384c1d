"""`minidl check-conv`: a convolution algorithm of one's own, compared with the formula on random shapes."""

from __future__ import annotations

import argparse

from minidl.lab.check_conv import DIRECTIONS, check_conv
from minidl.ops.common.conv.own import OWN
from minidl.zoo.own import import_file

from .common import Parser, complain, run, say


def main(argv: list[str] | None = None, prog: str = "minidl check-conv") -> int:
    """Run with these arguments; returns the exit status, 1 if a result is wrong."""
    parser = Parser(prog=prog, description="Import a Python file that calls minidl.register_conv, and compare y, dx "
                    "and dw of what it registers with the formula, on random shapes.")
    parser.add_argument("file", metavar="FILE.py", help="it registers the algorithm")
    parser.add_argument("--device", choices=("emulated", "cuda"), default="emulated", help="emulated: on the CPU, by "
                        "g++ (Linux), which sees each access to memory; cuda: on a GPU (default: %(default)s)")
    parser.add_argument("--shapes", type=int, default=20, help="random ones (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="decides them (default: %(default)s)")
    return run(parser, argv, command)


def command(args: argparse.Namespace) -> int:
    """Check each algorithm, and print a line for each of its directions."""
    module = import_file(args.file).__name__
    names = [name for name in OWN if OWN[name].module == module]
    if not names:
        raise ValueError(f"{args.file} registers no convolution algorithm; call minidl.register_conv in it")
    where, failed = "the emulated GPU" if args.device == "emulated" else "the GPU", False
    for name in names:
        try:
            seen = check_conv(name, shapes=args.shapes, seed=args.seed, device=args.device)
        except AssertionError as error:
            for line in str(error).splitlines():
                complain(line.removeprefix("check_conv: "))
            failed = True
            continue
        for direction in DIRECTIONS:
            if direction in seen:
                compared, refused, share = seen[direction]
                say(f"{name} {direction}: {compared} cases compared on {where}, {refused} refused, at most "
                    f"{share:.2f} of the tolerance used")
            else:
                say(f"{name} {direction}: there is no launcher; 'auto' computes it")
    return int(failed)
