"""`minidl check`: kernels of one's own, compared with the op that they compute, on random shapes."""

from __future__ import annotations

import argparse

from minidl.lab.check import check
from minidl.ops.common.conv.own import KINDS, REGISTERED
from minidl.zoo.own import import_file

from .common import Parser, complain, run, say


def main(argv: list[str] | None = None, prog: str = "minidl check") -> int:
    """Run with these arguments; returns the exit status, 1 if a result is wrong."""
    parser = Parser(prog=prog, description="Import a Python file that calls minidl.register_conv, register_linear, "
                    "register_pool or register_activation, and compare each direction of what it registers, y, dx and "
                    "dw, with the formula, on random shapes.")
    parser.add_argument("file", metavar="FILE.py", help="it registers the kernels")
    parser.add_argument("--device", choices=("emulated", "cuda"), default="emulated", help="emulated: on the CPU, by "
                        "g++ (Linux), which sees each access to memory; cuda: on a GPU (default: %(default)s)")
    parser.add_argument("--shapes", type=int, default=20, help="random ones (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="decides them (default: %(default)s)")
    return run(parser, argv, command)


def command(args: argparse.Namespace) -> int:
    """Check all that the file registers, and print a line for each direction."""
    module = import_file(args.file).__name__
    mine = [own for known in REGISTERED.values() for own in known.values() if own.module == module]
    if not mine:
        raise ValueError(f"{args.file} registers no kernels; call minidl.register_conv in it, or register_linear, "
                         "register_pool or register_activation")
    where, failed = "the emulated GPU" if args.device == "emulated" else "the GPU", False
    for own in mine:
        name = own.name if own.kind == "conv2d" else f"{own.kind} {own.name}"
        try:
            seen = check(own.name, own.kind, shapes=args.shapes, seed=args.seed, device=args.device)
        except AssertionError as error:
            for line in str(error).splitlines():
                complain(line.removeprefix("check: "))
            failed = True
            continue
        for direction in KINDS[own.kind]:
            if direction not in seen:
                say(f"{name} {direction}: there is no launcher; 'auto' computes it")
                continue
            compared, refused, share, differing = seen[direction]
            say(f"{name} {direction}: {compared} cases compared on {where}, {refused} refused, at most {share:.2f} of "
                f"the tolerance used{f'; of {differing} two runs differ in bits (atomics)' * bool(differing)}")
    return int(failed)
